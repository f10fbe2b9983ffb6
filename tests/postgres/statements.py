"""A reader of our own SQL, which tells names in it that a search path would resolve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

_TOKEN = re.compile(
    r"""\s+ | --[^\n]*
      | (?P<text>[Ee]?'(?:[^']|'')*') | (?P<name>"(?:[^"]|"")*"|[^\W\d][\w$]*)
      | (?P<value>\$\d+|\d[\d.]*(?:[eE][+-]?\d+)?)
      | (?P<cast>::) | (?P<mark>[()\[\],.;:]) | (?P<operator>[-+*/<>=~!@\#%^&|`?]+)""",
    re.VERBOSE,
)
#: Words of the grammar that may stand before a parenthesis; what COALESCE and the like do is found by operator class.
_BEFORE = re.compile(
    "ALL|AND|ANY|ARRAY|AS|BY|COALESCE|CONFLICT|COPY|ELSE|EXISTS|FILTER|FROM|GREATEST|JOIN|LEAST|NOT|ON|OPERATOR|OR|OVER"
    "|SELECT|STDIN|STDOUT|THEN|VALUES|WHEN|WHERE|WITH"
)
#: Types that the grammar knows itself.
_TYPES = {"BIGINT", "BOOLEAN", "INT", "INTEGER", "NUMERIC", "REAL", "SMALLINT"}
#: Words that stand for an operator or a function by its bare name.
_BARE = {"IN", "BETWEEN", "LIKE", "ILIKE", "SIMILAR", "DISTINCT", "NULLIF", "CAST", "NATURAL", "OVERLAPS"}
#: After these, a minus sign before a number is a part of it.
_SIGNED = {"(", ",", "[", "AND", "ELSE", "OR", "SELECT", "THEN", "WHEN"}
_SCHEMAS = ("pg_catalog", "boltdp", "pg_temp", '"pg_temp"')
#: Tables that a statement makes for itself.
_LOCAL = {"base", "b"}


def unqualified(statement: str, *, known: str = "") -> list[str]:
    """What in a statement is looked up in the search path, but for tables of the schema `known`.

    >>> unqualified("SELECT pg_catalog.abs(a OPERATOR(pg_catalog.-) -1)::pg_catalog.text FROM pg_catalog.t")
    []
    >>> unqualified("SELECT abs(a - 1)::text, CASE a WHEN 1 THEN 2 END FROM t WHERE a IN (1)")
    ['abs(', 'operator -', 'type text', 'CASE', 'table t', 'IN(', 'IN']
    """
    tokens = list(_tokens(statement))
    faults = []
    for at, (kind, token) in enumerate(tokens):
        before, after = tokens[at - 1][1] if at else "", tokens[at + 1][1] if at + 1 < len(tokens) else ""
        qualified = before == "." and at >= 2 and tokens[at - 2][1] in _SCHEMAS
        word = token.upper()
        if kind == "operator":
            inside = [text for _, text in tokens[max(at - 4, 0) : at]] == ["OPERATOR", "(", "pg_catalog", "."]
            star = token == "*" and before.upper() in ("(", ",", ".", "SELECT")
            # After OPERATOR(...) too, whose last token is a parenthesis.
            first = before.upper() in _SIGNED or (before == ")" and tokens[at - 2][0] == "operator")
            sign = token == "-" and first and tokens[at + 1][0] == "value"
            option = token == "=" and before == "toast_tuple_target"
            if not (inside or star or sign or option):
                faults.append(f"operator {token}")
        elif kind == "name":
            if after == "(" and not qualified and not _BEFORE.fullmatch(word) and before.upper() not in ("TABLE", "AS"):
                faults.append(f"{token}(")
            if before == "::" and word not in _TYPES and token not in _SCHEMAS:
                faults.append(f"type {token}")
            if before.upper() == "COLLATE" and token not in _SCHEMAS:
                faults.append(f"collation {token}")
            if word in _BARE or (word == "CASE" and after.upper() != "WHEN"):
                faults.append(token)
            relation = before.upper() in ("FROM", "JOIN", "COPY", "INTO", "VACUUM", "TABLE") and after != "("
            named = token in _SCHEMAS or token in _LOCAL or token.strip('"') == known
            if relation and not named and word not in ("STDIN", "STDOUT"):
                faults.append(f"table {token}")
    return faults


def _tokens(statement: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(statement):
        found = _TOKEN.match(statement, at)
        assert found is not None, f"not understood: {statement[at:]}"
        if found.lastgroup is not None:
            yield found.lastgroup, found[found.lastgroup]
        at = found.end()


@contextmanager
def recorded() -> Iterator[list[str]]:
    """The texts of all statements that are sent by psycopg from here to the end."""
    sent: list[str] = []

    def remember(statement: Any) -> None:
        if isinstance(statement, bytes):  # the test's own
            return
        text = statement if isinstance(statement, str) else statement.as_string()
        sent.append(re.sub(r"%(\(\w+\))?s", "$1", text))

    execute, copy = psycopg.Cursor.execute, psycopg.Cursor.copy

    def watched_execute(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        remember(query)
        return execute(self, query, *values, **options)

    def watched_copy(self: Any, query: Any, *values: Any, **options: Any) -> Any:
        remember(query)
        return copy(self, query, *values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", watched_execute)
        patch.setattr(psycopg.Cursor, "copy", watched_copy)
        yield sent
