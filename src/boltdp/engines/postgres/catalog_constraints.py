"""The declarations of columns in a database catalogue: enum types, CHECK constraints, primary keys.

The catalogue is independent of the rows and as public as the column names; no row is read. A constraint is used whether
or not it was validated, because validation reveals something about the rows; values outside it are clipped to its
bounds or match no category.

Constraints are parsed as PostgreSQL prints them, with all parentheses and casts. In a conjunction, each term of a
known form is used:

    (age >= 0), (0 < age), (x = 1)                  lower and upper bounds
    (sex = ANY (ARRAY['F'::text, 'M'::text]))       values; also (x = 1) OR (x = 2)
    ('-1'::integer <= ALL (features))               bounds of each array element
    (vector_norm(v) <= 1)                           the same, for pgvector
    (array_length(features, 1) = 50)                length of an array; also cardinality, vector_dims
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from boltdp.encoding.declared_values import Value
from boltdp.schema.source_columns import ColumnType

if TYPE_CHECKING:
    from typing_extensions import LiteralString


@dataclass(frozen=True)
class Field:
    """A column of a query result, and the table column that it comes from, if any."""

    name: str
    type: int  #: oid in pg_type
    modifier: int
    table: int  #: oid in pg_class, 0 for an expression
    number: int  #: column number in that table


@dataclass(frozen=True)
class Declaration:
    """The constraints of one column; values are spelled as in the constraint."""

    low: float = -math.inf
    high: float = math.inf
    values: tuple[str, ...] | None = None
    length: int | None = None
    key: bool = False

    def __and__(self, other: Declaration) -> Declaration:
        lists = [values for values in (self.values, other.values) if values is not None]
        return Declaration(
            max(self.low, other.low),
            min(self.high, other.high),
            tuple(value for value in lists[0] if value in lists[-1]) if lists else None,
            self.length if other.length is None else other.length,
            self.key or other.key,
        )

    def add_to_type(self, column: ColumnType) -> ColumnType:
        bounds = (self.low, self.high) if self.low < self.high and math.isfinite(self.high - self.low) else None
        values: Sequence[Value] = self.values or ()
        if column.kind == "number":
            numbers = [_parse_number(text) for text in self.values or ()]
            values = [number for number in numbers if number is not None]
        return replace(
            column,
            length=column.length if column.length is not None else self.length,
            bounds=bounds if column.kind in ("number", "list") else None,
            values=tuple(values) if values and column.kind in ("number", "text") else None,
            key=self.key,
        )


#: Runs a statement with bound values and returns its rows.
RunQuery: TypeAlias = "Callable[[LiteralString, Sequence[Any]], list[Any]]"


@dataclass(frozen=True)
class CatalogType:
    """A type of the catalogue; a domain has the name, the category and the element type of its base type."""

    name: str
    category: str
    element: str | None  #: the element type of an array
    trusted: bool  #: whether only superusers can define casts of it to types of the server
    sortable: bool  #: whether it has an order of its own, by which values are equal
    declared: Declaration  #: the labels of an enum type, the constraints of a domain


def read_declarations(run_query: RunQuery, fields: Sequence[Field]) -> list[tuple[Field, CatalogType, Declaration]]:
    """Read the type and the declarations of each column from the catalogue: those of its type and of its table."""
    tables = sorted({field.table for field in fields} - {0})
    checks = _read_check_constraints(run_query, tables)
    columns = {
        (table, number): (name, type_oid, key)
        for table, number, name, type_oid, key in run_query(
            "SELECT attrelid::bigint, attnum::int, attname::pg_catalog.text, atttypid::bigint,"
            " attidentity OPERATOR(pg_catalog.<>) '' OR EXISTS (SELECT FROM pg_catalog.pg_index"
            " WHERE indrelid OPERATOR(pg_catalog.=) attrelid AND indisprimary"
            " AND attnum OPERATOR(pg_catalog.=) ANY (indkey)) FROM pg_catalog.pg_attribute"
            " WHERE attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])"
            " AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped",
            [tables],
        )
    }
    # The result of a query has the base type of a domain; the column of the table has the domain itself.
    types = _read_catalog_types(
        run_query, [type_oid for _, type_oid, _ in columns.values()] + [field.type for field in fields]
    )
    found = []
    for field in fields:
        name, type_oid, key = columns.get((field.table, field.number), ("", field.type, False))
        constraints = [check[name] for check in checks.get(field.table, ()) if name in check]
        declared = reduce(Declaration.__and__, constraints, types[type_oid].declared & Declaration(key=key))
        found.append((field, types[field.type], declared))
    return found


def _read_catalog_types(run_query: RunQuery, types: Sequence[int]) -> dict[int, CatalogType]:
    rows = run_query(
        "WITH RECURSIVE base AS"
        " (SELECT oid AS given, 0 AS depth, * FROM pg_catalog.pg_type"
        " WHERE oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])"
        " UNION ALL SELECT given, depth OPERATOR(pg_catalog.+) 1, t.* FROM base b"
        " JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) b.typbasetype)"
        " SELECT given::bigint, b.typname::pg_catalog.text, b.typcategory::pg_catalog.text,"
        " e.typname::pg_catalog.text, ARRAY(SELECT pg_catalog.pg_get_expr(conbin, 0::pg_catalog.oid)"
        " FROM pg_catalog.pg_constraint WHERE contypid OPERATOR(pg_catalog.=) b.oid"
        " AND contype OPERATOR(pg_catalog.=) 'c' ORDER BY conname),"
        " ARRAY(SELECT enumlabel::pg_catalog.text FROM pg_catalog.pg_enum"
        " WHERE enumtypid OPERATOR(pg_catalog.=) b.oid ORDER BY enumsortorder),"
        # Whoever owns a type can define its casts, which are run wherever it is cast. Types of the server and of
        # extensions, which only superusers can create, belong to superusers.
        " b.typnamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace"
        " OR (b.typtype OPERATOR(pg_catalog.=) 'b' AND b.typowner OPERATOR(pg_catalog.=)"
        " ANY (ARRAY(SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper))),"
        " b.typname OPERATOR(pg_catalog.=) 'varchar' OR EXISTS (SELECT FROM pg_catalog.pg_opclass o"
        " JOIN pg_catalog.pg_am m ON m.oid OPERATOR(pg_catalog.=) o.opcmethod"
        " WHERE o.opcdefault AND o.opcintype OPERATOR(pg_catalog.=) b.oid AND m.amname OPERATOR(pg_catalog.=) 'btree')"
        " FROM base b LEFT JOIN pg_catalog.pg_type e ON e.oid OPERATOR(pg_catalog.=) b.typelem"
        " AND b.typcategory OPERATOR(pg_catalog.=) 'A' ORDER BY depth",
        [list(types)],
    )
    found: dict[int, CatalogType] = {}
    for oid, name, category, element, checks, labels, trusted, sortable in rows:
        constraints = [parse_check_constraint(check).get("VALUE", Declaration()) for check in checks]
        domain = found[oid].declared if oid in found else Declaration()
        # Labels first: they determine the order of the values. A base type comes after its domains.
        declared = reduce(Declaration.__and__, constraints, Declaration(values=tuple(labels) or None) & domain)
        found[oid] = CatalogType(name, category, element, trusted, sortable, declared)
    return found


def _read_check_constraints(run_query: RunQuery, tables: Sequence[int]) -> dict[int, list[dict[str, Declaration]]]:
    """Read the CHECK constraints of each table, except those that its child tables do not inherit."""
    checks: dict[int, list[dict[str, Declaration]]] = {}
    for oid, check in run_query(
        "SELECT c.oid::bigint, pg_catalog.pg_get_expr(conbin, conrelid) FROM pg_catalog.pg_constraint"
        " JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) conrelid"
        " WHERE conrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])"
        " AND contype OPERATOR(pg_catalog.=) 'c' AND NOT (connoinherit AND relhassubclass)"
        " UNION ALL SELECT oid::bigint, pg_catalog.pg_get_partition_constraintdef(oid) FROM pg_catalog.pg_class"
        " WHERE oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[]) AND relispartition",
        [list(tables)],
    ):
        checks.setdefault(oid, []).append(parse_check_constraint(check or ""))
    return checks


def parse_check_constraint(text: str) -> dict[str, Declaration]:
    """Parse a constraint printed by `pg_get_expr` to declarations by column name. The column of a domain is VALUE."""
    declared: dict[str, Declaration] = {}
    for name, declaration in _parse_terms(_parse_items(text)):
        declared[name] = declared.get(name, Declaration()) & declaration
    return declared


# An item of a parsed expression: (kind, ...), with the kinds name, literal, list, call, group, mark, word and cast.
_Item: TypeAlias = tuple[Any, ...]

_IDENTIFIER = r"""(?:[^\W\d][\w$]*|"(?:[^"]|"")*")"""
_TOKEN = re.compile(
    rf"""\s*(?: (?P<cast>::(?:(?!(?:AND|OR|IS)\b){_IDENTIFIER}[. ]?)+(?:\([\d, ]*\))?(?:\[\])*)
      | (?P<text>'(?:[^']|'')*') | (?P<literal>(?:true|false)\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>(?:AND|OR|IS|NOT|NULL|ANY|ALL|ARRAY)\b) | (?:{_IDENTIFIER}\.)*(?P<name>{_IDENTIFIER})
      | (?P<mark>[()\[\],]|[-+*/<>=~!@\#%^&|`?]+) )""",
    re.VERBOSE,
)
_AND, _OR, _COMMA = ("word", "AND"), ("word", "OR"), ("mark", ",")
_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "=": "="}
_LENGTH_FUNCTIONS = ("array_length", "cardinality", "vector_dims")
_NORM_FUNCTIONS = ("vector_norm", "l2_norm")


def _parse_items(text: str) -> list[_Item]:
    """Parse an SQL expression to nested items, without casts; return no items if it has an unknown form."""
    open_groups: list[list[_Item]] = [[]]
    text, at = text.strip(), 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            return []
        at, kind, value = token.end(), token.lastgroup, token[token.lastgroup]
        if value in ("(", "["):
            open_groups.append([])
        elif value in (")", "]"):
            if len(open_groups) == 1:
                return []
            group = open_groups.pop()
            open_groups[-1].append(_join_group(open_groups[-1], group, value))
        elif kind == "text":
            open_groups[-1].append(("literal", value[1:-1].replace("''", "'")))
        elif kind == "name":
            open_groups[-1].append(("name", value[1:-1].replace('""', '"') if value.startswith('"') else value))
        elif kind != "cast":
            open_groups[-1].append((kind, value))
    return open_groups[0] if len(open_groups) == 1 else []


def _join_group(before: list[_Item], group: list[_Item], end: str) -> _Item:
    """Return the item of a group, and remove the name of a function or the word ARRAY before it."""
    if end == "]":
        is_list = before[-1:] == [("word", "ARRAY")] and before.pop()
        return ("list", _split_items(group, _COMMA)) if is_list else ("other",)
    if before and before[-1][0] == "name":
        return ("call", before.pop()[1], _split_items(group, _COMMA))
    return group[0] if len(group) == 1 else ("group", group)


def _split_items(items: list[_Item], separator: _Item) -> list[list[_Item]]:
    parts: list[list[_Item]] = [[]]
    for item in items:
        if item == separator:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def _parse_terms(items: list[_Item]) -> Iterator[tuple[str, Declaration]]:
    """Yield the column and the declaration of each term of a conjunction; an expression never mixes AND and OR."""
    match items:
        case [("group", inner)]:
            yield from _parse_terms(inner)
        case _ if _AND in items:
            for part in _split_items(items, _AND):
                yield from _parse_terms(part)
        case _ if _OR in items:
            yield from _parse_alternatives(_split_items(items, _OR))
        case [("name", name), ("mark", "="), ("word", "ANY"), ("list", values)]:
            if all(len(value) == 1 and value[0][0] == "literal" for value in values):
                yield name, Declaration(values=tuple(value[0][1] for value in values))
        case [left, ("mark", comparison), ("literal", text)] if comparison in _MIRRORED:
            yield from _parse_comparison(left, comparison, text)
        case [("literal", text), ("mark", comparison), *_, right] if comparison in _MIRRORED:
            if items[2:-1] in ([], [("word", "ALL")]):
                yield from _parse_comparison(right, _MIRRORED[comparison], text)


def _parse_alternatives(parts: list[list[_Item]]) -> Iterator[tuple[str, Declaration]]:
    """Combine equalities of one column to its values. IS NULL is ignored, because NULL satisfies every constraint."""
    parts = [part[0][1] if len(part) == 1 and part[0][0] == "group" else part for part in parts]
    parts = [part for part in parts if part[1:] != [("word", "IS"), ("word", "NULL")]]
    if len(parts) == 1:
        yield from _parse_terms(parts[0])
        return
    constraints = [list(_parse_terms(part)) for part in parts]
    names = {name for each in constraints for name, _ in each}
    if len(names) == 1 and all(len(each) == 1 and each[0][1].values is not None for each in constraints):
        values = [value for each in constraints for value in each[0][1].values or ()]
        yield names.pop(), Declaration(values=tuple(dict.fromkeys(values)))


def _parse_comparison(item: _Item, comparison: str, text: str) -> Iterator[tuple[str, Declaration]]:
    """Yield the declaration of a comparison of a column, or of the length or norm of one, with a literal."""
    number = _parse_number(text)
    match item:
        case ("name", name) if comparison == "=":
            yield name, Declaration(values=(text,))
        case ("name", name) if number is not None:
            yield name, Declaration(low=float(number)) if comparison[0] == ">" else Declaration(high=float(number))
        case ("call", function, [[("name", name)], *_]) if number is not None:
            if function in _LENGTH_FUNCTIONS and comparison == "=":
                yield name, Declaration(length=int(number))
            elif function in _NORM_FUNCTIONS and comparison in ("<", "<="):
                yield name, Declaration(-float(number), float(number))


def _parse_number(text: str) -> int | float | None:
    """Parse a finite number; return None for any other text."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return int(text) if text.lstrip("-").isdecimal() else number
    return None
