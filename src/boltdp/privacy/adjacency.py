"""Between which data sets the promise holds."""

from __future__ import annotations

from enum import Enum


class Adjacency(Enum):
    """Neighbouring data sets; every sensitivity in this package is for exactly one of these relations."""

    REPLACE_ONE = "replace-one"

    @property
    def unit(self) -> str:
        """What is protected, in two words.

        >>> Adjacency.REPLACE_ONE.unit
        'one row'
        """
        return "one row"

    @property
    def meaning(self) -> str:
        """In plain words.

        >>> Adjacency.REPLACE_ONE.meaning.split(";")[0]
        'one row, at its position, is replaced by any other'
        """
        return (
            "one row, at its position, is replaced by any other; the number of rows is public, and no position "
            "depends on values"
        )
