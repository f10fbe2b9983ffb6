"""The neighbouring relations of datasets for which a guarantee holds."""

from __future__ import annotations

from enum import Enum


class Adjacency(Enum):
    """A relation of neighbouring datasets; every sensitivity in this package is for exactly one of them."""

    REPLACE_ONE = "replace-one"
    REPLACE_PERSON = "replace-person"

    @property
    def unit(self) -> str:
        """The unit of privacy in words: "one row" or "one person"."""
        return "one row" if self is Adjacency.REPLACE_ONE else "one person"

    @property
    def meaning(self) -> str:
        """The definition of the relation in words."""
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
    def from_person_rows(cls, person_rows: int | None) -> Adjacency:
        """Return the relation for at most `person_rows` rows per person; None: neighbours differ in one row."""
        return cls.REPLACE_ONE if person_rows is None else cls.REPLACE_PERSON
