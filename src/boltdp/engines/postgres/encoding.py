"""From columns to packed rows in SQL: each row encoded as `boltdp.data.encode` does it, and its place in the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from psycopg import sql

from boltdp.data.encode import projection_matrix
from boltdp.data.scaling import number_scaling, step_values
from boltdp.data.schema import Categorical, Numeric, Schema, Transform, Vector, indicator_values
from boltdp.data.values import Matcher
from boltdp.engines.postgres.session import Composed
from boltdp.engines.postgres.source import INTEGERS, SourceColumn

if TYPE_CHECKING:
    from typing_extensions import LiteralString

Shuffle = Literal["seeded", "random"]


@dataclass(frozen=True)
class Query:
    """A query, or a part of one, and the values bound to it."""

    text: Composed
    values: list[Any]


def placed_rows(
    schema: Schema, columns: Mapping[str, SourceColumn], source: Composed, *, rows: int, seed: int, shuffle: Shuffle
) -> Query:
    """Every row encoded, with its place in the permuted order, which depends on its position and the seed alone."""
    packed = packed_rows(schema, columns)
    if shuffle == "random":
        place: Composed = sql.SQL(
            "pg_catalog.row_number() OVER (ORDER BY pg_catalog.random()) OPERATOR(pg_catalog.-) 1"
        )
    else:
        place = permuted(sql.SQL("pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1"), rows=rows, seed=seed)
    text = sql.SQL("SELECT {} AS place, {} AS packed FROM {}").format(place, packed.text, source)
    return Query(text, packed.values)


def packed_rows(schema: Schema, columns: Mapping[str, SourceColumn]) -> Query:
    """The expression that encodes a row."""
    values: list[Any] = []
    label = _code(columns[schema.label], Matcher.of(schema.classes), values)
    parts: list[Composed] = [sql.SQL("ARRAY[COALESCE({}::real, 'NaN')]").format(label)]
    numeric = [transform for transform in schema.transforms() if isinstance(transform[0], Numeric)]
    if numeric:
        cells = sql.SQL(", ").join(columns[column.name].number() for column, *_ in numeric)
        parts.append(_packed(sql.SQL("ARRAY[{}]::pg_catalog.float8[]").format(cells), numeric, values))
    categorical = [(c, middles, factors) for c, middles, factors in schema.transforms() if isinstance(c, Categorical)]
    if categorical:
        codes = [_code(columns[column.name], Matcher.of(column.categories), values) for column, *_ in categorical]
        absent, present = np.hstack(
            [indicator_values(middles, factors) for _, middles, factors in categorical]
        ).tolist()
        parts.append(
            sql.SQL("boltdp.pack_categories(ARRAY[{}]::int[], {}::int[], {}::real[], {}::real[])").format(
                sql.SQL(", ").join(codes),
                bind(values, [len(column.categories) for column, *_ in categorical]),
                bind(values, absent),
                bind(values, present),
            )
        )
    for column, middles, factors in schema.transforms():
        if isinstance(column, Vector):
            parts.append(_packed(columns[column.name].numbers(), [(column, middles, factors)], values))
    if schema.intercept:
        parts.append(sql.SQL("ARRAY[{}::real]").format(bind(values, float(np.float32(schema.constant)))))
    packed: Composed = sql.SQL(" OPERATOR(pg_catalog.||) ").join(parts)
    if schema.projection is not None:
        matrix = projection_matrix(schema.projection, schema.encoded_dims)
        packed = sql.SQL("boltdp.project({}, {}::pg_catalog.float8[])").format(packed, bind(values, matrix.tolist()))
    return Query(packed, values)


def _packed(cells: Composed, transforms: Sequence[Transform], values: list[Any]) -> Composed:
    """Numbers clipped, centred and scaled, each with its own bounds, and followed by its steps if it has some."""
    doubles = "{}::pg_catalog.float8[]"
    scaling = [bind(values, numbers) for numbers in number_scaling(transforms).values()]
    steps = step_values(transforms)
    if steps is None:
        return sql.SQL(f"boltdp.pack_numbers({{}}, {doubles}, {doubles}, {doubles}, {doubles})").format(cells, *scaling)
    return sql.SQL(
        f"boltdp.pack_curves({{}}, {doubles}, {doubles}, {doubles}, {doubles}, {{}}::int[], {doubles}, {{}}::real[],"
        " {}::real[])"
    ).format(cells, *scaling, *(bind(values, of_all) for of_all in steps.values()))


def permuted(position: Composed, *, rows: int, seed: int) -> Composed:
    """Where the row at a position goes.

    >>> permuted(sql.SQL("n"), rows=9, seed=7).as_string()
    'boltdp.permuted_position(n, 9, 7)'
    """
    signed = seed - 2**64 if seed >= 2**63 else seed
    return sql.SQL("boltdp.permuted_position({}, {}, {})").format(position, sql.Literal(rows), sql.Literal(signed))


def _code(column: SourceColumn, matcher: Matcher, values: list[Any]) -> Composed:
    """The position of the declared value that it matches, as `Matcher` says, or NULL; binds what it looks for."""
    if column.base == "bool":
        codes = [matcher.truth(True), matcher.truth(False)]
        cases = [sql.Literal(code) if code >= 0 else sql.SQL("NULL") for code in codes]
        return sql.SQL("CASE WHEN {c} THEN {} WHEN NOT {c} THEN {} END::int").format(*cases, c=column.reference)
    if column.type.kind == "text":
        sought = {text: code for text, code in matcher.texts.items() if "\0" not in text}
        return _position(
            sought,
            "pg_catalog.text",
            sql.SQL('{}::pg_catalog.text COLLATE pg_catalog."C"').format(column.reference),
            values,
        )
    if column.base in INTEGERS:
        exact = {int(n): code for n, code in matcher.numbers.items() if n == int(n)}
        return _position(exact, "bigint", sql.SQL("{}::bigint").format(column.reference), values)
    floats = {float(n): code for n, code in matcher.numbers.items()}
    if column.base == "float4":
        # In the column's own type, so that the real nearest to 0.1 is met by the declared 0.1.
        return _position(floats, "real", sql.SQL("{}").format(column.reference), values)
    return _position(floats, "pg_catalog.float8", column.number(), values)


def _position(sought: Mapping[Any, int], kind: LiteralString, cell: Composed, values: list[Any]) -> Composed:
    """The code of what the cell equals, NULL if it equals none."""
    return sql.SQL("({}::int[])[pg_catalog.array_position({}::{}[], {})]").format(
        bind(values, list(sought.values())), bind(values, list(sought)), sql.SQL(kind), cell
    )


def bind(values: list[Any], value: Any) -> Composed:
    """The placeholder of a value.

    >>> values = ["the first"]
    >>> bind(values, "the second").as_string(), values
    ('$2', ['the first', 'the second'])
    """
    values.append(value)
    return sql.SQL(f"${len(values)}")
