"""The encoding plan in the words of the extension, by which `boltdp.pack` encodes a row as `Encoder` does."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import numpy as np
from psycopg import sql

from boltdp.encoding.declared_values import Matcher
from boltdp.encoding.plan import EncodingPlan, NumberListRule, NumberRule, RuleVisitor, TimePartRule, ValueRule
from boltdp.engines.postgres.session import Composed
from boltdp.engines.postgres.source import INTEGERS, SourceColumn

#: Columns that are arguments of their own; more of them are the fields of one. A function may have 100.
MAX_ARGUMENTS = 90

# The words of a plan, as columns.c has them.
_MAGIC = b"boltpln1"
_CLASS, _CATEGORY, _NUMBER, _VECTOR = range(4)
_BY_TEXT, _BY_INTEGER, _BY_FLOAT = range(3)


def compile_plan(plan: EncodingPlan, columns: Mapping[str, SourceColumn]) -> tuple[bytes, Composed]:
    """Compile a plan to the words that columns.c reads, of public facts alone, and the columns that it is for."""
    label = plan.label.accept(_Compiler(columns[plan.label.source], values=_CLASS))
    compiled = [label, *(rule.accept(_Compiler(columns[rule.source])) for rule in plan.rules)]
    given = [argument for argument, _ in compiled]
    arguments: Composed = sql.SQL(", ").join(given)
    if len(given) > MAX_ARGUMENTS:
        arguments = sql.SQL("ROW({})").format(arguments)
    return b"".join([_MAGIC, _words(len(given)), *(words for _, words in compiled), _projection(plan)]), arguments


class _Compiler(RuleVisitor[tuple[Composed, bytes]]):
    """The argument that `boltdp.pack` takes for a column, and its words of the plan; `values` is what values become."""

    def __init__(self, source: SourceColumn, *, values: int = _CATEGORY) -> None:
        self._source, self._values = source, values

    def number(self, rule: NumberRule) -> tuple[Composed, bytes]:
        return self._source.argument(), _words(_NUMBER, *rule.bounds, len(rule.places), *rule.places)

    def number_list(self, rule: NumberListRule) -> tuple[Composed, bytes]:
        return self._source.argument(), _words(_VECTOR, *rule.bounds, rule.length)

    def value(self, rule: ValueRule) -> tuple[Composed, bytes]:
        return self._source.argument(), _words(self._values) + _entries(self._source, Matcher.of(rule.values))

    def time_part(self, rule: TimePartRule) -> tuple[Composed, bytes]:
        # The server makes a code of it, which stands for itself.
        codes = ((code, code) for code in range(len(rule.values)))
        return self._source.part(rule.part), _words(_CATEGORY) + _numbers(_BY_INTEGER, codes)


def _entries(column: SourceColumn, matcher: Matcher) -> bytes:
    """Write what cells are compared with, as `Matcher` says, and the code of each."""
    if column.type.kind == "text":
        texts = {text.encode(): code for text, code in matcher.texts.items() if "\0" not in text}
        entries = (_words(code, len(text)) + text + bytes(-len(text) % 8) for text, code in texts.items())
        return _words(_BY_TEXT, len(texts)) + b"".join(entries)
    if column.base == "bool":
        codes = ((cell, matcher.match_boolean(bool(cell))) for cell in (0, 1))
        return _numbers(_BY_INTEGER, ((cell, code) for cell, code in codes if code >= 0))
    if column.base in INTEGERS:
        return _numbers(_BY_INTEGER, ((int(n), code) for n, code in matcher.numbers.items() if n == int(n)))
    # In the column's own type, so that the real nearest to 0.1 is met by the declared 0.1.
    own = np.float32 if column.base == "float4" else np.float64
    return _numbers(_BY_FLOAT, ((float(own(n)), code) for n, code in matcher.numbers.items()))


def _numbers(match: int, numbers: Iterable[tuple[int | float, int]]) -> bytes:
    entries = [_words(code, number) for number, code in numbers]
    return _words(match, len(entries)) + b"".join(entries)


def _projection(plan: EncodingPlan) -> bytes:
    if plan.matrix is None:
        return _words(0)
    block = plan.unprojected_map.block.tobytes()
    return _words(len(block)) + block + _words(plan.matrix.shape[1]) + plan.matrix.tobytes()


def _words(*numbers: int | float) -> bytes:
    """Whole numbers and floats, 8 bytes each.

    >>> _words(1, 0.5).hex(" ", 8)
    '0100000000000000 000000000000e03f'
    """
    return b"".join(struct.pack("<q" if isinstance(number, int) else "<d", number) for number in numbers)
