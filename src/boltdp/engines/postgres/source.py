"""The source of rows: a table, view or query, named `source` in every statement, and expressions of its columns."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from boltdp._array_types import Doubles
from boltdp.encoding.compiled_plan import compile_plan
from boltdp.encoding.plan import EncodingPlan, Rule, TimePartRule
from boltdp.encoding.timestamp_parts import HOUR_AT, MAX_CHARACTERS, PATTERN, TimestampPart
from boltdp.engines.postgres.catalog_constraints import CatalogType, Declaration, Field
from boltdp.engines.postgres.session import Composed, Session
from boltdp.errors import DataError, list_names, suggest_names
from boltdp.schema.source_columns import ColumnType, Kind

#: Maximal number of columns passed to `boltdp.pack` as separate arguments; more are passed as one row. A function may
#: have 100.
MAX_ARGUMENTS = 90
_INTEGERS = ("int2", "int4", "int8")
_NUMBERS = (*_INTEGERS, "float4", "float8", "numeric")
_VECTORS = ("vector", "halfvec")  # pgvector's
_TIMES: dict[str, Kind] = {"date": "date", "timestamp": "timestamp", "timestamptz": "timestamp"}
_KINDS: dict[str, Kind] = {**dict.fromkeys(_NUMBERS, "number"), "bool": "bool", **_TIMES}
#: The server's name of each part of a date and the first value.
_FIELDS: dict[TimestampPart, tuple[str, int]] = {
    "hour": ("hour", 0),
    "weekday": ("isodow", 1),
    "month": ("month", 1),
    "day": ("day", 1),
}
#: Types whose values are equal exactly if they are printed alike; unlike numeric, interval or citext.
_PRINTED_EQUAL = (*_INTEGERS, "float4", "float8", "bool", "uuid", "oid", "bytea", *_TIMES)
_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast", "boltdp")
_ENUM = "enum"
_LISTS = pa.list_(pa.float64())
_TEXTS = ("text", "varchar", "bpchar", _ENUM)  # text types that the extension compares without a cast


def find_table(session: Session, name: str | tuple[str, str]) -> Composed:
    """Find a table or view by its exact name, with or without a schema; a pair of schema and name is not looked up."""
    found = resolve_name(session, name) if isinstance(name, str) else name
    return sql.SQL("{} AS source").format(sql.Identifier(*found))


def get_dataset_name(uri: str, name: str) -> str:
    """Return the name by which a ledger knows a PostgreSQL table: without its schema if that is public."""
    with closing(Session(uri)) as session:
        schema, table = resolve_name(session, name)
    return table if schema == "public" else f"{schema}.{table}"


def resolve_name(session: Session, name: str) -> tuple[str, str]:
    """Return the schema and the name of the table or view with an exact name, with or without a schema."""
    tables = session.ask(
        "SELECT nspname::pg_catalog.text, relname::pg_catalog.text, pg_catalog.pg_table_is_visible(c.oid),"
        " pg_catalog.has_table_privilege(c.oid, 'SELECT') FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) relnamespace"
        """ WHERE relkind OPERATOR(pg_catalog.=) ANY ('{r,v,m,p,f}'::pg_catalog."char"[])""",
        fault="the table cannot be looked up",
        user_path=True,  # the search path determines visibility
    )
    named = [
        (schema, table)
        for schema, table, visible, _ in tables
        if name == f"{schema}.{table}" or (visible and name == table)
    ]
    if len(named) != 1:
        readable = [
            table if visible else f"{schema}.{table}"
            for schema, table, visible, may_read in tables
            if may_read and schema not in _SYSTEM_SCHEMAS
        ]
        raise DataError(
            f"the database must have one table or view named {name!r}, it has {len(named) or 'none'}",
            hint=(suggest_names(name, readable) or f"there are {list_names(readable) or 'none'}")
            + "; names are as PostgreSQL keeps them: lower case unless quoted when made, and schema.table "
            "outside the search path",
        )
    return named[0]


def slice_source(source: Composed, start: int, stop: int) -> Composed:
    """Return the SQL of the rows at positions start to stop - 1 of a full scan of a source.

    They are numbered, because OFFSET and LIMIT could lead to another plan, which orders ties differently.
    """
    return sql.SQL(
        "(SELECT * FROM (SELECT *, pg_catalog.row_number() OVER () AS {number} FROM {source}) AS numbered"
        " WHERE {number} OPERATOR(pg_catalog.>) {start} AND {number} OPERATOR(pg_catalog.<=) {stop}) AS source"
    ).format(number=sql.Identifier(f"boltdp_{secrets.token_hex(8)}"), source=source, start=start, stop=stop)


def limit_rows_per_person(
    source: Composed, columns: Sequence[SourceColumn], person_id: SourceColumn, limit: int
) -> Composed:
    """Return the SQL of columns of a source, with NULL in all cells beyond the limit per person (`person_limit`)."""
    number, place = (sql.Identifier(f"boltdp_{secrets.token_hex(8)}") for _ in range(2))
    counted = "CASE WHEN source.{place} OPERATOR(pg_catalog.<=) {limit} THEN {cell} END AS {name}"
    names = [sql.Identifier(column.name) for column in (*columns, person_id)]
    return sql.SQL(
        "(SELECT {counted} FROM (SELECT source.*,"
        " pg_catalog.row_number() OVER (PARTITION BY {person_id} ORDER BY source.{number}) AS {place}"
        " FROM (SELECT {names}, pg_catalog.row_number() OVER () AS {number} FROM {source}) AS source"
        ") AS source ORDER BY source.{number}) AS source"
    ).format(
        counted=sql.SQL(", ").join(
            sql.SQL(counted).format(place=place, limit=limit, cell=column.reference, name=sql.Identifier(column.name))
            for column in columns
        ),
        names=sql.SQL(", ").join(names),
        person_id=person_id.write_person_key_sql(),
        number=number,
        place=place,
        source=source,
    )


def number_persons(source: Composed, person_id: SourceColumn, number: str) -> Composed:
    """Return the SQL of a source with a column `number`, equal for rows whose person ids are equal by their type."""
    return sql.SQL(
        "(SELECT source.*, pg_catalog.dense_rank() OVER (ORDER BY {person_id}) AS {number}"
        " FROM (SELECT source.*, pg_catalog.row_number() OVER () AS {place} FROM {source}) AS source"
        " ORDER BY source.{place}) AS source"
    ).format(
        person_id=person_id.write_person_key_sql(),
        number=sql.Identifier(number),
        place=sql.Identifier(f"boltdp_{secrets.token_hex(8)}"),
        source=source,
    )


def add_group_numbers(source: Composed, column: SourceColumn, values: Sequence[str], number: str) -> Composed:
    """Return the SQL of a source with a column `number`: the index, from 1, of the row's group in `values`, or NULL.

    OFFSET 0 makes the server compute it once per row.
    """
    return sql.SQL(
        "(SELECT source.*, pg_catalog.array_position({values}::pg_catalog.text[],"
        ' {column} COLLATE pg_catalog."C") AS {number} FROM {source} OFFSET 0) AS source'
    ).format(values=list(values), column=column.write_text_sql(), number=sql.Identifier(number), source=source)


def compile_source_plan(plan: EncodingPlan, columns: Mapping[str, SourceColumn]) -> tuple[bytes, Composed]:
    """Compile a plan to words, which are public, and return them with the column arguments of `boltdp.pack`."""
    rules = plan.encoded_rules
    arguments: Composed = sql.SQL(", ").join([columns[rule.source].write_pack_argument(rule) for rule in rules])
    if len(rules) > MAX_ARGUMENTS:
        arguments = sql.SQL("ROW({})").format(arguments)
    return compile_plan(plan, [columns[rule.source].value_type for rule in rules]), arguments


@dataclass(frozen=True)
class SourceColumn:
    """A column of a PostgreSQL source, and the SQL that reads it, which raises an error for no value."""

    name: str
    base: str  #: PostgreSQL's name of the type, or of the element type of a list; "enum" for any enum
    type: ColumnType
    trusted: bool = True  #: as in `CatalogType`
    sortable: bool = True

    @classmethod
    def from_catalog(cls, field: Field, known: CatalogType, declared: Declaration) -> SourceColumn:
        # A type of another role may have any name.
        base, column = known.name if known.trusted else "", ColumnType("other", called=known.name)
        if base in _KINDS:
            column = ColumnType(_KINDS[base])
        elif base in _VECTORS:
            column = ColumnType("list", field.modifier if field.modifier > 0 else None)
        elif known.trusted and known.element in _NUMBERS:
            base, column = known.element, ColumnType("list")
        elif known.category in ("S", "E"):
            base, column = _ENUM if known.category == "E" else base, ColumnType("text")
        return cls(field.name, base, declared.add_to_type(column), known.trusted, known.sortable)

    @property
    def reference(self) -> sql.Identifier:
        return sql.Identifier("source", self.name)

    def write_text_sql(self) -> Composed:
        """Return the SQL of the column as text: a cast, or the output function if another role may define the cast."""
        if self.trusted:
            return sql.SQL("({}::pg_catalog.text)").format(self.reference)
        return sql.SQL(
            "(CASE WHEN pg_catalog.num_nulls({c}) OPERATOR(pg_catalog.=) 0 THEN pg_catalog.format('%s', {c}) END)"
        ).format(c=self.reference)

    def write_number_sql(self) -> Composed:
        """Return the SQL of the column as double precision; NULL if another role may define the cast."""
        if not self.trusted:
            return sql.SQL("NULL::pg_catalog.float8")
        if self.base == "numeric":
            return _cast_to_double(self.reference)
        return sql.SQL("{}::int::pg_catalog.float8" if self.base == "bool" else "{}::pg_catalog.float8").format(
            self.reference
        )

    def write_number_list_sql(self) -> Composed:
        """Return the SQL of the column as an array of numbers."""
        if self.base in ("float4", "float8"):
            return sql.SQL("{}").format(self.reference)
        if self.base == "numeric":
            return sql.SQL(
                "CASE WHEN pg_catalog.array_ndims({c}) OPERATOR(pg_catalog.=) 1"
                " THEN ARRAY(SELECT {double} FROM pg_catalog.unnest({c}) AS element) END"
            ).format(c=self.reference, double=_cast_to_double(sql.Identifier("element")))
        return sql.SQL("{}::real[]" if self.base in _VECTORS else "{}::pg_catalog.float8[]").format(self.reference)

    @property
    def value_type(self) -> str:
        """The type as which columns.c reads the column, see `boltdp.kernel.columns_to_cells.TYPES`."""
        if self.type.kind == "text":
            return "text"
        if self.base in _INTEGERS:
            return "int64"
        return {"bool": "bool", "float4": "float32"}.get(self.base, "float64")

    def write_pack_argument(self, rule: Rule) -> Composed:
        """Return the SQL of the column as an argument of `boltdp.pack`, in a type that it supports."""
        if isinstance(rule, TimePartRule):  # the server computes the code of a part itself
            return self.write_time_part_sql(rule.part)
        if self.base in _VECTORS:
            return self.write_number_list_sql()
        cast = self.type.kind == "text" and self.base not in _TEXTS
        return self.write_text_sql() if cast else sql.SQL("{}").format(self.reference)

    def write_time_part_sql(self, part: TimestampPart) -> Composed:
        """Return the SQL of the code of a part, such as the hour, of a timestamp, date or text; NULL if it has none."""
        if self.base in _TIMES:
            return self._write_year_check(_write_date_part(part, self._write_timestamp()))
        text = sql.SQL('({} COLLATE pg_catalog."C")').format(self.write_text_sql())
        date = sql.SQL("pg_catalog.substr({}, 1, 10)::pg_catalog.date").format(text)
        code, min_length = _write_date_part(part, date), 0
        if part == "hour":
            code = sql.SQL("pg_catalog.substr({}, {}, 2)::pg_catalog.int4").format(text, HOUR_AT)
            min_length = HOUR_AT
        # Long texts are not fetched from the TOAST table, because access statistics are visible to all roles.
        return sql.SQL(
            "CASE WHEN pg_catalog.octet_length({text}) OPERATOR(pg_catalog.<=) {max_bytes} THEN"
            " CASE WHEN {text} OPERATOR(pg_catalog.~) {pattern}"
            " AND pg_catalog.length({text}) OPERATOR(pg_catalog.>) {min_length} THEN {code} END END"
        ).format(text=text, max_bytes=MAX_CHARACTERS, pattern=f"^({PATTERN})$", min_length=min_length, code=code)

    def _write_timestamp(self) -> Composed:
        return sql.SQL("pg_catalog.timezone('UTC', {})" if self.base == "timestamptz" else "{}").format(self.reference)

    def _write_year_check(self, value: Composed) -> Composed:
        """Return the SQL of `value` if the year of the date or timestamp is 1 to 9999, else NULL."""
        kind = sql.SQL('pg_catalog."{}"').format(sql.SQL("date" if self.base == "date" else "timestamp"))
        return sql.SQL(
            "CASE WHEN {moment} OPERATOR(pg_catalog.>=) '0001-01-01'::{kind}"
            " AND {moment} OPERATOR(pg_catalog.<) '10000-01-01'::{kind} THEN {value} END"
        ).format(moment=self._write_timestamp(), kind=kind, value=value)

    def to_readable_column(self) -> SourceColumn:
        """Return the column cast to text, unless values of its type are read without loss."""
        plain = self.type.kind in ("bool", "text") or self.base in (*_INTEGERS, "float4", "float8")
        if plain and self.type.kind != "list":
            return self
        return replace(self, base="text", type=ColumnType("text"))

    def write_cell_sql(self) -> tuple[Composed, str, pa.DataType]:
        """Return the SQL of the column as it is copied to this process, with its type in SQL and in Arrow."""
        if self.type.kind == "list":
            return sql.SQL("({})::pg_catalog.float8[]").format(self.write_number_list_sql()), "bytea", _LISTS
        if self.type.kind == "text":
            return self.write_text_sql(), "text", pa.string()
        if self.base in _TIMES:
            counted, arrow = "{m} OPERATOR(pg_catalog.-) '1970-01-01'::pg_catalog.date", pa.date32()
            if self.base != "date":  # microseconds, computed from integers that a double represents exactly
                counted, arrow = (
                    (
                        "pg_catalog.date_part('epoch', pg_catalog.date_trunc('minute', {m}))::bigint"
                        " OPERATOR(pg_catalog.*) 1000000 OPERATOR(pg_catalog.+)"
                        " pg_catalog.date_part('microseconds', {m})::bigint"
                    ),
                    pa.timestamp("us", "UTC" if self.base == "timestamptz" else None),
                )
            value = self._write_year_check(sql.SQL(counted).format(m=self._write_timestamp()))
            return sql.SQL("({})::bigint").format(value), "int8", arrow
        if self.base in _INTEGERS:
            return sql.SQL("{}::bigint").format(self.reference), "int8", pa.int64()
        if self.base == "numeric":
            return self.write_number_sql(), "float8", pa.float64()
        arrow = {"bool": pa.bool_(), "float4": pa.float32()}.get(self.base, pa.float64())
        return sql.SQL("{}").format(self.reference), self.base, arrow

    def write_person_key_sql(self) -> Composed:
        """Return the SQL of a key that is equal for the rows of one person: the id, or its text if ids have no order.

        NaN is no id.
        """
        if self.base in ("float4", "float8", "numeric") and self.type.kind == "number":
            return sql.SQL("CASE WHEN {n} OPERATOR(pg_catalog.<>) 'NaN' THEN {n} END").format(n=self.reference)
        if self.sortable:
            return sql.SQL("{}").format(self.reference)
        return sql.SQL('({} COLLATE pg_catalog."C")').format(self.write_text_sql())

    def is_equal_as_text(self, *, plain_collations: bool) -> bool:
        """Return whether comparing values as texts gives the same result; texts need plain collations for that."""
        if self.type.kind == "text" and self.base in ("text", "varchar"):
            return plain_collations
        return not self.sortable or self.base in _PRINTED_EQUAL


def _write_date_part(part: TimestampPart, timestamp: Composed) -> Composed:
    field, first = _FIELDS[part]
    number = sql.SQL("pg_catalog.date_part({}, {})::pg_catalog.int4 OPERATOR(pg_catalog.-) {}")
    return number.format(field, timestamp, first)


def _cast_to_double(number: Composed | sql.Identifier) -> Composed:
    """Return the SQL that casts a numeric to double precision without an error, which would quote the value."""
    return sql.SQL(
        "CASE WHEN {n} OPERATOR(pg_catalog.=) 'NaN' THEN 'NaN'::pg_catalog.float8"
        " WHEN {n} OPERATOR(pg_catalog.>=) 1e308 THEN 'Infinity' WHEN {n} OPERATOR(pg_catalog.<=) -1e308"
        " THEN '-Infinity' WHEN pg_catalog.abs({n}) OPERATOR(pg_catalog.<) 1e-307 THEN 0"
        " ELSE {n}::pg_catalog.float8 END"
    ).format(n=number)


def read_arrays(raws: Sequence[bytes], length: int) -> Doubles:
    """Read arrays of `length` doubles without NULL in PostgreSQL's binary format."""
    row = np.dtype([("header", "V20"), ("cells", [("length", ">i4"), ("number", ">f8")], (length,))])
    return np.frombuffer(b"".join(raws), row)["cells"]["number"].astype(np.float64)


def read_cells(cells: Sequence[Any], arrow: pa.DataType) -> pa.Array:
    """Convert cells of `SourceColumn.write_cell_sql` to Arrow."""
    return _read_lists(cells) if arrow == _LISTS else pa.array(cells, arrow)


def _read_lists(raws: Sequence[bytes | None]) -> pa.Array:
    """Read lists of doubles in PostgreSQL's binary format, all at once if they have the same length and no NULL."""
    sizes = {None if raw is None else len(raw) for raw in raws}
    flat = b"\0\0\0\1\0\0\0\0"  # one dimension, no NULL
    if len(sizes) == 1 and None not in sizes and all(raw[:8] == flat for raw in raws if raw is not None):
        length = (len(raws[0] or b"") - 20) // 12
        block = read_arrays([raw for raw in raws if raw is not None], length)
        return pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), length)
    oid = psycopg.postgres.types["float8"].array_oid
    loader = psycopg.adapters.get_loader(oid, psycopg.pq.Format.BINARY)
    assert loader is not None
    load = loader(oid).load
    lists = [load(raw) if raw is not None and raw[:4] == flat[:4] else None for raw in raws]
    return pa.array(lists, _LISTS)
