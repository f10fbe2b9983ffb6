"""Compare rows that may be looked at with a schema, before private ones are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltdp.engines import open_source
from boltdp.schema.schema import Schema

if TYPE_CHECKING:
    from boltdp.schema.check import Report


def check(source: Any, schema: Schema | str | Path, *, table: str | None = None, query: str | None = None) -> Report:
    """What `schema` makes of rows that may be looked at, such as a sample or last year's public file.

    `source` is an engine, or whatever `open_source` takes; `schema` may be the name of a TOML file. The report is
    computed from the rows without noise: it is not private.

    >>> import pyarrow as pa
    >>> from boltdp.schema.schema import Classes, Numeric
    >>> rows = pa.table({"age": [30, 40], "sick": ["Yes", "No"]})
    >>> report = check(rows, Schema(Classes("sick", ("no", "yes")), (Numeric("age", 0, 100),)))
    >>> report.ok, report.problems
    (False, ("label 'sick': no row has a declared class",))
    """
    # Only here: a module that is imported by its package must not need Arrow.
    from boltdp.engines.base import Engine
    from boltdp.schema.check import check_source

    declared = schema if isinstance(schema, Schema) else Schema.load(schema)
    if isinstance(source, Engine):
        return check_source(source, declared)
    with open_source(source, table=table, query=query) as engine:
        return check_source(engine, declared)
