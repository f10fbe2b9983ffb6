"""Encoding plans compiled to words, the one form in which every engine runs them: see `kernel/columns_to_cells.h`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from boltdp._array_types import PackedRows
from boltdp.encoding.declared_values import Matcher
from boltdp.encoding.plan import EncodingPlan, NumberListRule, NumberRule, RuleVisitor, TimePartRule, ValueRule
from boltdp.kernel.columns_to_cells import Packer, Values

# The codes of `kernel/columns_to_cells.h`.
_MAGIC = b"boltpln2"
_CLASS, _CATEGORY, _NUMBER, _VECTOR = range(4)
_MATCH_TEXT, _MATCH_INTEGER, _MATCH_FLOAT = range(3)


def compile_plan(plan: EncodingPlan, types: Sequence[str]) -> bytes:
    """Compile a plan for values of these types (see `columns_to_cells.TYPES`) of the label and of each rule."""
    kinds = [_CLASS, *[_CATEGORY] * (len(types) - 1)]
    rules = zip(plan.encoded_rules, types, kinds, strict=True)
    columns = [rule.accept(_Compiler(name, kind=kind)) for rule, name, kind in rules]
    words = _MAGIC + _pack_words(len(columns)) + b"".join(columns)
    matrix = plan.projection_matrix
    if matrix is None:
        return words + _pack_words(0)
    block = plan.unprojected_map.block.tobytes()
    return words + _pack_words(len(block)) + block + _pack_words(matrix.shape[1]) + matrix.tobytes()


class PlanPacker:
    """Packs columns by a plan, which it compiles once for each combination of types; several threads may share one."""

    def __init__(self, plan: EncodingPlan) -> None:
        self._plan = plan
        self._packers: dict[tuple[str, ...], Packer] = {}

    def pack(self, values: Sequence[Values], out: PackedRows) -> PackedRows:
        """Pack the values of the label and of each rule into `out`; return the cells, before any projection."""
        types = tuple(column.type for column in values)
        packer = self._packers.get(types)
        if packer is None:
            packer = self._packers[types] = Packer(compile_plan(self._plan, types))
        return packer.pack(values, out)


class _Compiler(RuleVisitor[bytes]):
    """Compiles an encoding rule to words for cells of one type; `kind` is the code of rules that match values."""

    def __init__(self, type_name: str, *, kind: int = _CATEGORY) -> None:
        self._type, self._kind = type_name, kind

    def visit_number(self, rule: NumberRule) -> bytes:
        return _pack_words(_NUMBER, *map(float, rule.bounds))

    def visit_number_list(self, rule: NumberListRule) -> bytes:
        return _pack_words(_VECTOR, *map(float, rule.bounds), rule.length)

    def visit_value(self, rule: ValueRule) -> bytes:
        return _pack_words(self._kind) + _pack_values(Matcher.from_values(rule.known_values), self._type)

    def visit_time_part(self, rule: TimePartRule) -> bytes:
        # The values are codes already.
        codes = ((code, code) for code in range(len(rule.values)))
        return _pack_words(self._kind) + _pack_lookup(_MATCH_INTEGER, codes)


def _pack_values(matcher: Matcher, type_name: str) -> bytes:
    """Pack the declared values that cells of a type are compared with, and their codes."""
    numbers = matcher.numbers.items()
    if type_name == "text":
        texts = {text.encode(): code for text, code in matcher.texts.items()}
        entries = (_pack_words(code, len(text)) + text + bytes(-len(text) % 8) for text, code in texts.items())
        return _pack_words(_MATCH_TEXT, len(texts)) + b"".join(entries)
    if type_name in ("float32", "float64"):
        # In the type of the column, so that a declared 0.1 matches the float32 nearest to 0.1.
        own = np.dtype(type_name).type
        return _pack_lookup(_MATCH_FLOAT, ((float(own(number)), code) for number, code in numbers))
    # An unsigned integer above 2^63 has the bits of a negative one.
    least = -(2**63) if type_name.startswith("int") else 0
    return _pack_lookup(
        _MATCH_INTEGER, ((int(number), code) for number, code in numbers if number == int(number) >= least)
    )


def _pack_lookup(match: int, numbers: Iterable[tuple[int | float, int]]) -> bytes:
    entries = [_pack_words(code, number) for number, code in numbers]
    return _pack_words(match, len(entries)) + b"".join(entries)


def _pack_words(*numbers: int | float) -> bytes:
    """Pack integers and floats, 8 bytes each."""
    return b"".join(struct.pack("<q" if isinstance(number, int) else "<d", number) for number in numbers)
