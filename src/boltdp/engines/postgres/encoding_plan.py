"""The encoding plan in the binary format of the extension, by which `boltdp.pack` encodes rows as `Encoder` does."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import numpy as np
from psycopg import sql

from boltdp.encoding.declared_values import Matcher
from boltdp.encoding.plan import EncodingPlan, NumberListRule, NumberRule, RuleVisitor, TimePartRule, ValueRule
from boltdp.engines.postgres.session import Composed
from boltdp.engines.postgres.source import INTEGERS, SourceColumn

#: Maximal number of columns passed as separate arguments; more are passed as one row. A function may have 100.
MAX_ARGUMENTS = 90

# The codes of the format, as in columns.c.
_MAGIC = b"boltpln1"
_CLASS, _CATEGORY, _NUMBER, _VECTOR = range(4)
_BY_TEXT, _BY_INTEGER, _BY_FLOAT = range(3)


def compile_plan(plan: EncodingPlan, columns: Mapping[str, SourceColumn]) -> tuple[bytes, Composed]:
    """Compile a plan to the bytes that columns.c reads, which are public, and the column arguments of `boltdp.pack`."""
    label = plan.label.accept(_Compiler(columns[plan.label.source], values=_CLASS))
    compiled = [label, *(rule.accept(_Compiler(columns[rule.source])) for rule in plan.rules)]
    arguments: Composed = sql.SQL(", ").join([argument for argument, _ in compiled])
    if len(compiled) > MAX_ARGUMENTS:
        arguments = sql.SQL("ROW({})").format(arguments)
    rules = b"".join(words for _, words in compiled)
    return _MAGIC + _pack_words(len(compiled)) + rules + _pack_projection(plan), arguments


class _Compiler(RuleVisitor[tuple[Composed, bytes]]):
    """Compiles a rule to an argument of `boltdp.pack` and its part of the plan; `values` is the code of value rules."""

    def __init__(self, source: SourceColumn, *, values: int = _CATEGORY) -> None:
        self._source, self._values = source, values

    def number(self, rule: NumberRule) -> tuple[Composed, bytes]:
        return self._source.pack_argument(), _pack_words(_NUMBER, *rule.bounds, len(rule.places), *rule.places)

    def number_list(self, rule: NumberListRule) -> tuple[Composed, bytes]:
        return self._source.pack_argument(), _pack_words(_VECTOR, *rule.bounds, rule.length)

    def value(self, rule: ValueRule) -> tuple[Composed, bytes]:
        return self._source.pack_argument(), _pack_words(self._values) + _pack_values(
            self._source, Matcher.of(rule.values)
        )

    def time_part(self, rule: TimePartRule) -> tuple[Composed, bytes]:
        # The server computes the code itself.
        codes = ((code, code) for code in range(len(rule.values)))
        return self._source.time_part(rule.part), _pack_words(_CATEGORY) + _pack_numbers(_BY_INTEGER, codes)


def _pack_values(column: SourceColumn, matcher: Matcher) -> bytes:
    """Pack the values that cells are compared with, in the representation of the column type, and their codes."""
    if column.type.kind == "text":
        texts = {text.encode(): code for text, code in matcher.texts.items() if "\0" not in text}
        entries = (_pack_words(code, len(text)) + text + bytes(-len(text) % 8) for text, code in texts.items())
        return _pack_words(_BY_TEXT, len(texts)) + b"".join(entries)
    if column.base == "bool":
        codes = ((cell, matcher.match_boolean(bool(cell))) for cell in (0, 1))
        return _pack_numbers(_BY_INTEGER, ((cell, code) for cell, code in codes if code >= 0))
    if column.base in INTEGERS:
        return _pack_numbers(_BY_INTEGER, ((int(n), code) for n, code in matcher.numbers.items() if n == int(n)))
    # In the type of the column, so that a declared 0.1 matches the real nearest to 0.1.
    own = np.float32 if column.base == "float4" else np.float64
    return _pack_numbers(_BY_FLOAT, ((float(own(n)), code) for n, code in matcher.numbers.items()))


def _pack_numbers(match: int, numbers: Iterable[tuple[int | float, int]]) -> bytes:
    entries = [_pack_words(code, number) for number, code in numbers]
    return _pack_words(match, len(entries)) + b"".join(entries)


def _pack_projection(plan: EncodingPlan) -> bytes:
    if plan.matrix is None:
        return _pack_words(0)
    block = plan.unprojected_map.block.tobytes()
    return _pack_words(len(block)) + block + _pack_words(plan.matrix.shape[1]) + plan.matrix.tobytes()


def _pack_words(*numbers: int | float) -> bytes:
    """Pack integers and floats, 8 bytes each.

    >>> _pack_words(1, 0.5).hex(" ", 8)
    '0100000000000000 000000000000e03f'
    """
    return b"".join(struct.pack("<q" if isinstance(number, int) else "<d", number) for number in numbers)
