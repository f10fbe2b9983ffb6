"""Between which datasets the guarantee holds."""

from __future__ import annotations

from enum import Enum


class Adjacency(Enum):
    """Neighbouring datasets; every sensitivity in this package is for exactly one of these relations."""

    REPLACE_ONE = "replace-one"
    REPLACE_PERSON = "replace-person"

    @property
    def unit(self) -> str:
        """What is protected, in two words.

        >>> Adjacency.REPLACE_ONE.unit, Adjacency.REPLACE_PERSON.unit
        ('one row', 'one person')
        """
        return "one row" if self is Adjacency.REPLACE_ONE else "one person"

    @property
    def meaning(self) -> str:
        """In plain words.

        >>> Adjacency.REPLACE_ONE.meaning.split(";")[0]
        'one row, at its position, is replaced by any other'
        >>> Adjacency.REPLACE_PERSON.meaning.split(";")[0]
        "all rows of one person, at their positions, become those of one other person, or nobody's"
        """
        if self is Adjacency.REPLACE_ONE:
            return (
                "one row, at its position, is replaced by any other; the number of rows is public, and no position "
                "depends on values"
            )
        return (
            "all rows of one person, at their positions, become those of one other person, or nobody's; the number of "
            "rows is public, and no position depends on values"
        )

    @classmethod
    def of(cls, person_rows: int | None) -> Adjacency:
        """The relation where this many rows of a person count; None: a row is all that neighbours differ in.

        >>> Adjacency.of(None), Adjacency.of(2)
        (<Adjacency.REPLACE_ONE: 'replace-one'>, <Adjacency.REPLACE_PERSON: 'replace-person'>)
        """
        return cls.REPLACE_ONE if person_rows is None else cls.REPLACE_PERSON
