"""Pairs of columns: products of their features, by which a column can count more or less where another has some value.

A pair has features for each two of a step or a category of one column and of the other, less their centres. Where a
value of either is missing or not declared, all of them are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from boltdp.encoding.plan import PAIR_STEPS
from boltdp.errors import ParameterError, join_names, show_value, suggest_names
from boltdp.kernel.feature_map import MAX_AXES
from boltdp.schema.columns import Column, Numeric

if TYPE_CHECKING:
    from boltdp.schema.schema import Schema

#: The largest number of pairs: those of all columns that can be in one.
MAX_PAIRS = MAX_AXES * (MAX_AXES - 1) // 2


def add_pairs(schema: Schema, pairs: Sequence[tuple[str, str]]) -> Schema:
    """Return the schema with these pairs of columns beside those that it has; of two that are equal one stays."""
    known = {frozenset(pair) for pair in schema.pairs}
    return replace(schema, pairs=(*schema.pairs, *(pair for pair in pairs if frozenset(pair) not in known)))


def add_pair_curves(schema: Schema) -> Schema:
    """Return the schema with a curve of PAIR_STEPS steps for each number of a pair that has none.

    The steps are those of an automatic curve, chosen by the public bounds alone: numbers within [-1, 1] have none, and
    are split in their middle. A schema with a standardization is returned unchanged.
    """
    if not schema.pairs or schema.standardization is not None:
        return schema
    paired = {name for pair in schema.pairs for name in pair}
    columns = (column.add_curve(PAIR_STEPS) if column.name in paired else column for column in schema.columns)
    return replace(schema, columns=tuple(columns))


def list_pairs(schema: Schema) -> str:
    """List the pairs of a schema for display, the first of them if there are many."""
    return join_names([f"{one} & {other}" for one, other in schema.pairs])


def check_pairs(schema: Schema) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a schema as tuples; raise a ParameterError if it cannot have them."""
    given: Any = schema.pairs
    if not isinstance(given, (list, tuple)):
        raise ParameterError(
            f"pairs must be a list of pairs of columns, got {show_value(given)}", hint='such as [["age", "sex"]]'
        )
    if not given:
        return ()
    if schema.projection is not None:
        raise ParameterError("a schema with pairs of columns must have no projection, got both")
    if schema.is_monotone:
        raise ParameterError("a schema with pairs of columns must have no monotone column, got both")
    if schema.downweights:
        raise ParameterError("a schema with pairs of columns must not downweight long rows, got both")
    if len(given) > MAX_PAIRS:
        raise ParameterError(f"the pairs must be at most {MAX_PAIRS:,}, got {len(given):,}")
    columns = {column.name: column for column in schema.columns}
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for pair in given:
        one, other = _check_pair(pair, columns)
        if frozenset((one, other)) in pairs:
            raise ParameterError(f"each pair must be declared once, got {show_value([one, other])} more than once")
        pairs[frozenset((one, other))] = (one, other)
    paired = {name for pair in pairs.values() for name in pair}
    if len(paired) > MAX_AXES:
        raise ParameterError(f"the pairs must be of at most {MAX_AXES} columns, got {len(paired)}")
    return tuple(pairs.values())


def _check_pair(pair: Any, columns: dict[str, Column]) -> tuple[str, str]:
    is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
    if not is_pair:
        raise ParameterError(
            f"each of the pairs must be the names of two columns, got {show_value(pair)}", hint='such as ["age", "sex"]'
        )
    for name in pair:
        column = columns.get(name)
        if column is None:
            raise ParameterError(
                f"each of the pairs must be of declared columns, got {show_value(name)}",
                hint=suggest_names(name, columns),
            )
        if not isinstance(column, Numeric) and not column.encoding_rule.values:
            raise ParameterError(f"each of the pairs must be of numbers or categories, got the vector {name!r}")
    if pair[0] == pair[1]:
        raise ParameterError(f"each of the pairs must be of two different columns, got {show_value(pair[0])} twice")
    return pair[0], pair[1]
