"""What a database declares of its columns: enum types, CHECK constraints, primary keys.

All of it is in the catalogue, is the same whatever the rows are, and is public as the names of the columns are; no row
is read. A constraint counts whether or not it was validated: it says what values are meant to be, and values beyond
it are moved to its bounds or match no category. To tell the two apart would tell something of the rows.

Constraints are read as PostgreSQL prints them, which is always with all parentheses and casts. Of those joined by
AND, each that is understood counts:

    (age >= 0), (0 < age), (x = 1)                  bounds, from either side
    (sex = ANY (ARRAY['F'::text, 'M'::text]))       values; also (x = 1) OR (x = 2)
    ('-1'::integer <= ALL (features))               bounds of each number of an array
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
    """A column of a result, and the column of a table that it is, where it is one."""

    name: str
    type: int  #: as the oid that pg_type knows
    modifier: int
    table: int  #: as the oid that pg_class knows, 0 for an expression
    number: int  #: of the column in that table


@dataclass(frozen=True)
class Declared:
    """What constraints say of one column; values are as the constraint writes them."""

    low: float = -math.inf
    high: float = math.inf
    values: tuple[str, ...] | None = None
    length: int | None = None
    key: bool = False

    def __and__(self, other: Declared) -> Declared:
        values = self.values
        if values is None or other.values is None:
            values = values if other.values is None else other.values
        else:
            values = tuple(value for value in values if value in other.values)
        return Declared(
            max(self.low, other.low),
            min(self.high, other.high),
            values,
            self.length if other.length is None else other.length,
            self.key or other.key,
        )

    def apply(self, column: ColumnType) -> ColumnType:
        """A column's type with what is declared of it.

        >>> Declared(0.0, 120.0).apply(ColumnType("number")).bounds
        (0.0, 120.0)
        """
        bounds = (self.low, self.high) if self.low < self.high and math.isfinite(self.high - self.low) else None
        values: Sequence[Value] = self.values or ()
        if column.kind == "number":
            numbers = [_number(text) for text in self.values or ()]
            values = [number for number in numbers if number is not None]
        return replace(
            column,
            length=column.length if column.length is not None else self.length,
            bounds=bounds if column.kind in ("number", "list") else None,
            values=tuple(values) if values and column.kind in ("number", "text") else None,
            key=self.key,
        )


#: Runs a statement with values bound, and returns its rows.
Ask: TypeAlias = "Callable[[LiteralString, Sequence[Any]], list[Any]]"


def declarations(ask: Ask, fields: Sequence[Field]) -> dict[str, Declared]:
    """What the catalogue declares of each column: by its type, and in the table that it comes from."""
    tables = sorted({field.table for field in fields} - {0})
    checks = _checks(ask, tables)
    columns = {
        (table, number): (name, of_type, key)
        for table, number, name, of_type, key in ask(
            "SELECT attrelid::bigint, attnum::int, attname::pg_catalog.text, atttypid::bigint,"
            " attidentity OPERATOR(pg_catalog.<>) '' OR EXISTS (SELECT FROM pg_catalog.pg_index"
            " WHERE indrelid OPERATOR(pg_catalog.=) attrelid AND indisprimary"
            " AND attnum OPERATOR(pg_catalog.=) ANY (indkey)) FROM pg_catalog.pg_attribute"
            " WHERE attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.oid[])"
            " AND attnum OPERATOR(pg_catalog.>) 0 AND NOT attisdropped",
            [tables],
        )
    }
    # A result tells the type that a domain is based on; the column of the table has the domain itself.
    types = _types(ask, [of_type for _, of_type, _ in columns.values()] + [field.type for field in fields])
    declared = {}
    for field in fields:
        name, of_type, key = columns.get((field.table, field.number), ("", field.type, False))
        said = [check[name] for check in checks.get(field.table, ()) if name in check]
        declared[field.name] = reduce(Declared.__and__, said, types[of_type] & Declared(key=key))
    return declared


def _types(ask: Ask, types: Sequence[int]) -> dict[int, Declared]:
    """Labels of enum types, and constraints of domains and of those they are based on."""
    catalogued = ask(
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
    declared: dict[int, Declared] = {}
    for oid, checks, labels in catalogued:
        said = [read_check(check).get("VALUE", Declared()) for check in checks]
        # Labels first: their order is that of the values.
        before = Declared(values=tuple(labels) or None) & declared.get(oid, Declared())
        declared[oid] = reduce(Declared.__and__, said, before)
    return declared


def _checks(ask: Ask, tables: Sequence[int]) -> dict[int, list[dict[str, Declared]]]:
    """What each constraint of each table says; what children do not inherit says nothing of their rows."""
    checks: dict[int, list[dict[str, Declared]]] = {}
    for oid, check in ask(
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


def read_check(text: str) -> dict[str, Declared]:
    """What a constraint, as `pg_get_expr` prints it, declares of each column. The column of a domain is VALUE.

    >>> read_check("((age >= 0) AND (age <= 120))")["age"].high
    120.0
    >>> read_check("((sex)::text = ANY ((ARRAY['F'::bpchar, 'M'::bpchar])::text[]))")["sex"].values
    ('F', 'M')
    """
    try:
        tree = _Parser(text).whole()
    except _NotUnderstoodError:
        return {}
    declared: dict[str, Declared] = {}
    for name, said in _conjuncts(tree):
        declared[name] = declared.get(name, Declared()) & said
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
_TURNED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "=": "="}
_LENGTHS = ("array_length", "cardinality", "vector_dims")
_NORMS = ("vector_norm", "l2_norm")


class _NotUnderstoodError(Exception):
    """The expression is of a form that we do not read."""


class _Parser:
    """Reads a printed expression. Casts are passed over: what is read are names, constants and how they are joined."""

    def __init__(self, text: str) -> None:
        self._tokens: deque[tuple[str, str]] = deque()
        text, at = text.strip(), 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise _NotUnderstoodError
            self._tokens.append((token.lastgroup, token[token.lastgroup]))
            at = token.end()

    def whole(self) -> _Tree:
        tree = self._joined()
        if self._tokens:
            raise _NotUnderstoodError
        return tree

    def _joined(self) -> _Tree:
        """One term, or several with AND or OR between them; a printed expression never mixes them."""
        terms = [self._compared()]
        word = self._next()
        while word in ("AND", "OR") and self._took(word):
            terms.append(self._compared())
        return terms[0] if len(terms) == 1 else (word.lower(), terms)

    def _compared(self) -> _Tree:
        if self._took("NOT"):
            self._operand()
            return _OTHER
        left = self._operand()
        if self._took("IS"):
            negated = self._took("NOT")
            return ("null",) if self._take() == "NULL" and not negated else _OTHER
        if not self._tokens or self._tokens[0][0] != "mark" or self._next() in (")", "]", ","):
            return left
        comparison = self._take()
        each = next((word for word in ("ANY", "ALL") if self._took(word)), "")
        right = self._operand()
        return ("is", left, comparison, each, right) if comparison in _COMPARISONS else _OTHER

    def _operand(self) -> _Tree:
        kind, token = self._tokens[0] if self._tokens else ("", "")
        self._take()
        tree: _Tree
        if token == "(":
            tree = self._joined()
            self._expect(")")
        elif kind == "text":
            tree = ("literal", token[1:-1].replace("''", "'"))
        elif kind == "number":
            tree = ("literal", token)
        elif kind == "word" and token == "ARRAY":
            self._expect("[")
            tree = ("list", self._several("]"))
        elif kind in ("word", "quoted"):
            tree = self._named(token)
        else:
            raise _NotUnderstoodError
        while self._took("::"):
            self._pass_type()
        return tree

    def _named(self, token: str) -> _Tree:
        name = _unquoted(token)
        while self._took("."):
            name = _unquoted(self._take())
        if self._took("("):
            return ("call", name, self._several(")"))
        return ("literal", token) if token in ("true", "false") else ("column", name)

    def _several(self, end: str) -> list[_Tree]:
        trees: list[_Tree] = []
        while not self._took(end):
            if trees:
                self._expect(",")
            trees.append(self._joined())
        return trees

    def _pass_type(self) -> None:
        """The name of a type: words, maybe with a schema, a size and brackets."""
        while self._tokens and (self._tokens[0][0] in ("word", "quoted") and self._next() not in ("AND", "OR", "IS")):
            self._take()
            self._took(".")
        if self._took("("):
            self._several(")")
        while self._took("["):
            self._expect("]")

    def _next(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _take(self) -> str:
        if not self._tokens:
            raise _NotUnderstoodError
        return self._tokens.popleft()[1]

    def _took(self, token: str) -> bool:
        if self._next() != token:
            return False
        self._take()
        return True

    def _expect(self, token: str) -> None:
        if not self._took(token):
            raise _NotUnderstoodError


def _conjuncts(tree: _Tree) -> Iterator[tuple[str, Declared]]:
    """What each part of a conjunction says, and of which column."""
    if tree[0] == "and":
        for part in tree[1]:
            yield from _conjuncts(part)
    elif tree[0] == "or":
        yield from _alternatives(tree[1])
    elif tree[0] == "is":
        _, left, comparison, each, right = tree
        if left[0] == "literal" and each in ("", "ALL"):
            left, comparison, right = right, _TURNED[comparison], left
        elif each == "ALL" or (each == "ANY" and comparison != "="):
            return
        yield from _compared(left, comparison, right)


def _alternatives(parts: Sequence[_Tree]) -> Iterator[tuple[str, Declared]]:
    """Equalities of one column are its values. A missing value is always allowed, so to say so says nothing."""
    parts = [part for part in parts if part[0] != "null"]
    if len(parts) == 1:
        yield from _conjuncts(parts[0])
        return
    said = [list(_conjuncts(part)) for part in parts]
    names = {name for each in said for name, _ in each}
    if len(names) == 1 and all(len(each) == 1 and each[0][1].values is not None for each in said):
        values = [value for each in said for value in each[0][1].values or ()]
        yield names.pop(), Declared(values=tuple(dict.fromkeys(values)))


def _compared(left: _Tree, comparison: str, right: _Tree) -> Iterator[tuple[str, Declared]]:
    if left[0] == "column" and right[0] == "list":
        if all(item[0] == "literal" for item in right[1]):
            yield left[1], Declared(values=tuple(item[1] for item in right[1]))
        return
    if right[0] != "literal":
        return
    number = _number(right[1])
    if left[0] == "column" and comparison == "=":
        yield left[1], Declared(values=(right[1],))
    elif left[0] == "column" and number is not None:
        yield left[1], Declared(low=float(number)) if comparison in (">", ">=") else Declared(high=float(number))
    elif left[0] == "call" and left[2] and left[2][0][0] == "column" and number is not None:
        _, function, ((_, name), *_rest) = left
        if function in _LENGTHS and comparison == "=":
            yield name, Declared(length=int(number))
        elif function in _NORMS and comparison in ("<", "<="):
            yield name, Declared(-float(number), float(number))


def _unquoted(token: str) -> str:
    return token[1:-1].replace('""', '"') if token.startswith('"') else token


def _number(text: str) -> int | float | None:
    """The number that a constant is, if it is a finite one."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(text) if text.lstrip("-").isdecimal() else number
