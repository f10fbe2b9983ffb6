"""The encoding plan for the types of a PostgreSQL source, by which `boltdp.pack` encodes rows as `Encoder` does."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from boltdp.encoding.compiled_plan import compile_plan
from boltdp.encoding.plan import EncodingPlan, Rule, TimePartRule
from boltdp.engines.postgres.session import Composed
from boltdp.engines.postgres.source import INTEGERS, SourceColumn

#: Maximal number of columns passed as separate arguments; more are passed as one row. A function may have 100.
MAX_ARGUMENTS = 90


def compile_source_plan(plan: EncodingPlan, columns: Mapping[str, SourceColumn]) -> tuple[bytes, Composed]:
    """Compile a plan to words, which are public, and return them with the column arguments of `boltdp.pack`."""
    rules = plan.encoded_rules
    arguments: Composed = sql.SQL(", ").join([_write_argument(rule, columns[rule.source]) for rule in rules])
    if len(rules) > MAX_ARGUMENTS:
        arguments = sql.SQL("ROW({})").format(arguments)
    return compile_plan(plan, [_find_value_type(columns[rule.source]) for rule in rules]), arguments


def _write_argument(rule: Rule, column: SourceColumn) -> Composed:
    # The server computes the code of a part of a timestamp itself.
    return column.write_time_part(rule.part) if isinstance(rule, TimePartRule) else column.write_pack_argument()


def _find_value_type(column: SourceColumn) -> str:
    """Return the type as which columns.c reads a column, see `boltdp.kernel.columns_to_cells.TYPES`."""
    if column.type.kind == "text":
        return "text"
    if column.base in INTEGERS:
        return "int64"
    return {"bool": "bool", "float4": "float32"}.get(column.base, "float64")
