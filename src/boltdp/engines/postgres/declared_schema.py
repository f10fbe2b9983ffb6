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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
        values = self.values
        if values is None or other.values is None:
            values = values if other.values is None else other.values
        else:
            values = tuple(value for value in values if value in other.values)
        return Declaration(
            max(self.low, other.low),
            min(self.high, other.high),
            values,
            self.length if other.length is None else other.length,
            self.key or other.key,
        )

    def apply(self, column: ColumnType) -> ColumnType:
        """Return a column type with the declared bounds, values, length and key."""
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


def read_declarations(run_query: RunQuery, fields: Sequence[Field]) -> dict[str, Declaration]:
    """Read the declarations of each column from the catalogue: those of its type and those of its table."""
    tables = sorted({field.table for field in fields} - {0})
    checks = _read_checks(run_query, tables)
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
    types = _read_types(run_query, [type_oid for _, type_oid, _ in columns.values()] + [field.type for field in fields])
    declared = {}
    for field in fields:
        name, type_oid, key = columns.get((field.table, field.number), ("", field.type, False))
        constraints = [check[name] for check in checks.get(field.table, ()) if name in check]
        declared[field.name] = reduce(Declaration.__and__, constraints, types[type_oid] & Declaration(key=key))
    return declared


def _read_types(run_query: RunQuery, types: Sequence[int]) -> dict[int, Declaration]:
    """Read the labels of enum types, and the constraints of domains and their base domains."""
    rows = run_query(
        "WITH RECURSIVE base AS"
        " (SELECT oid AS given, oid, typbasetype FROM pg_catalog.pg_type"
        " WHERE oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])"
        " UNION ALL SELECT given, t.oid, t.typbasetype FROM base b"
        " JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) b.typbasetype)"
        " SELECT given::bigint, ARRAY(SELECT pg_catalog.pg_get_expr(conbin, 0::pg_catalog.oid)"
        " FROM pg_catalog.pg_constraint WHERE contypid OPERATOR(pg_catalog.=) b.oid"
        " AND contype OPERATOR(pg_catalog.=) 'c' ORDER BY conname),"
        " ARRAY(SELECT enumlabel::pg_catalog.text FROM pg_catalog.pg_enum"
        " WHERE enumtypid OPERATOR(pg_catalog.=) b.oid ORDER BY enumsortorder) FROM base b",
        [list(types)],
    )
    declared: dict[int, Declaration] = {}
    for oid, checks, labels in rows:
        constraints = [read_check(check).get("VALUE", Declaration()) for check in checks]
        # Labels first: they determine the order of the values.
        first = Declaration(values=tuple(labels) or None) & declared.get(oid, Declaration())
        declared[oid] = reduce(Declaration.__and__, constraints, first)
    return declared


def _read_checks(run_query: RunQuery, tables: Sequence[int]) -> dict[int, list[dict[str, Declaration]]]:
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
        checks.setdefault(oid, []).append(read_check(check or ""))
    return checks


def read_check(text: str) -> dict[str, Declaration]:
    """Parse a constraint printed by `pg_get_expr` to declarations by column name. The column of a domain is VALUE.

    >>> read_check("((age >= 0) AND (age <= 120))")["age"].high
    120.0
    >>> read_check("((sex)::text = ANY ((ARRAY['F'::bpchar, 'M'::bpchar])::text[]))")["sex"].values
    ('F', 'M')
    """
    try:
        tree = _Parser(text).parse()
    except _NotUnderstoodError:
        return {}
    declared: dict[str, Declaration] = {}
    for name, declaration in _read_conjunction(tree):
        declared[name] = declared.get(name, Declaration()) & declaration
    return declared


# A parsed expression: (kind, ...), with kinds column, literal, list, call, and, or, is (a comparison), null and other.
_Tree: TypeAlias = tuple[Any, ...]

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w$]*) | (?P<mark>::|[()\[\],.]|[-+*/<>=~!@\#%^&|`?]+) )""",
    re.VERBOSE,
)
_OTHER: _Tree = ("other",)
_COMPARISONS = ("<=", "<", ">=", ">", "=")
_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "=": "="}
_LENGTH_FUNCTIONS = ("array_length", "cardinality", "vector_dims")
_NORM_FUNCTIONS = ("vector_norm", "l2_norm")


class _NotUnderstoodError(Exception):
    """The expression has an unknown form."""


class _Parser:
    """A recursive descent parser of printed expressions, which ignores casts."""

    def __init__(self, text: str) -> None:
        self._tokens: deque[tuple[str, str]] = deque()
        text, at = text.strip(), 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise _NotUnderstoodError
            self._tokens.append((token.lastgroup, token[token.lastgroup]))
            at = token.end()

    def parse(self) -> _Tree:
        tree = self._parse_expression()
        if self._tokens:
            raise _NotUnderstoodError
        return tree

    def _parse_expression(self) -> _Tree:
        """Parse one term, or several joined by AND or by OR; a printed expression never mixes the two."""
        terms = [self._parse_comparison()]
        word = self._peek()
        while word in ("AND", "OR") and self._accept(word):
            terms.append(self._parse_comparison())
        return terms[0] if len(terms) == 1 else (word.lower(), terms)

    def _parse_comparison(self) -> _Tree:
        if self._accept("NOT"):
            self._parse_operand()
            return _OTHER
        left = self._parse_operand()
        if self._accept("IS"):
            negated = self._accept("NOT")
            return ("null",) if self._take() == "NULL" and not negated else _OTHER
        if not self._tokens or self._tokens[0][0] != "mark" or self._peek() in (")", "]", ","):
            return left
        comparison = self._take()
        each = next((word for word in ("ANY", "ALL") if self._accept(word)), "")
        right = self._parse_operand()
        return ("is", left, comparison, each, right) if comparison in _COMPARISONS else _OTHER

    def _parse_operand(self) -> _Tree:
        kind, token = self._tokens[0] if self._tokens else ("", "")
        self._take()
        tree: _Tree
        if token == "(":
            tree = self._parse_expression()
            self._expect(")")
        elif kind == "text":
            tree = ("literal", token[1:-1].replace("''", "'"))
        elif kind == "number":
            tree = ("literal", token)
        elif kind == "word" and token == "ARRAY":
            self._expect("[")
            tree = ("list", self._parse_list("]"))
        elif kind in ("word", "quoted"):
            tree = self._parse_name(token)
        else:
            raise _NotUnderstoodError
        while self._accept("::"):
            self._skip_type()
        return tree

    def _parse_name(self, token: str) -> _Tree:
        name = _unquote(token)
        while self._accept("."):
            name = _unquote(self._take())
        if self._accept("("):
            return ("call", name, self._parse_list(")"))
        return ("literal", token) if token in ("true", "false") else ("column", name)

    def _parse_list(self, end: str) -> list[_Tree]:
        trees: list[_Tree] = []
        while not self._accept(end):
            if trees:
                self._expect(",")
            trees.append(self._parse_expression())
        return trees

    def _skip_type(self) -> None:
        """Skip the name of a type: words, optionally with a schema, a size and brackets."""
        while self._tokens and (self._tokens[0][0] in ("word", "quoted") and self._peek() not in ("AND", "OR", "IS")):
            self._take()
            self._accept(".")
        if self._accept("("):
            self._parse_list(")")
        while self._accept("["):
            self._expect("]")

    def _peek(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self) -> str:
        if not self._tokens:
            raise _NotUnderstoodError
        return self._tokens.popleft()[1]

    def _accept(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._take()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise _NotUnderstoodError


def _read_conjunction(tree: _Tree) -> Iterator[tuple[str, Declaration]]:
    """Yield the column and the declaration of each term of a conjunction."""
    if tree[0] == "and":
        for part in tree[1]:
            yield from _read_conjunction(part)
    elif tree[0] == "or":
        yield from _read_alternatives(tree[1])
    elif tree[0] == "is":
        _, left, comparison, each, right = tree
        if left[0] == "literal" and each in ("", "ALL"):
            left, comparison, right = right, _MIRRORED[comparison], left
        elif each == "ALL" or (each == "ANY" and comparison != "="):
            return
        yield from _read_comparison(left, comparison, right)


def _read_alternatives(parts: Sequence[_Tree]) -> Iterator[tuple[str, Declaration]]:
    """Combine equalities of one column to its values. IS NULL is ignored, because NULL satisfies every constraint."""
    parts = [part for part in parts if part[0] != "null"]
    if len(parts) == 1:
        yield from _read_conjunction(parts[0])
        return
    constraints = [list(_read_conjunction(part)) for part in parts]
    names = {name for each in constraints for name, _ in each}
    if len(names) == 1 and all(len(each) == 1 and each[0][1].values is not None for each in constraints):
        values = [value for each in constraints for value in each[0][1].values or ()]
        yield names.pop(), Declaration(values=tuple(dict.fromkeys(values)))


def _read_comparison(left: _Tree, comparison: str, right: _Tree) -> Iterator[tuple[str, Declaration]]:
    if left[0] == "column" and right[0] == "list":
        if all(item[0] == "literal" for item in right[1]):
            yield left[1], Declaration(values=tuple(item[1] for item in right[1]))
        return
    if right[0] != "literal":
        return
    number = _parse_number(right[1])
    if left[0] == "column" and comparison == "=":
        yield left[1], Declaration(values=(right[1],))
    elif left[0] == "column" and number is not None:
        yield left[1], Declaration(low=float(number)) if comparison in (">", ">=") else Declaration(high=float(number))
    elif left[0] == "call" and left[2] and left[2][0][0] == "column" and number is not None:
        _, function, ((_, name), *_rest) = left
        if function in _LENGTH_FUNCTIONS and comparison == "=":
            yield name, Declaration(length=int(number))
        elif function in _NORM_FUNCTIONS and comparison in ("<", "<="):
            yield name, Declaration(-float(number), float(number))


def _unquote(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token


def _parse_number(text: str) -> int | float | None:
    """Parse a finite number; return None for any other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(text) if text.lstrip("-").isdecimal() else number
