"""Rows in PostgreSQL, which stay there: a pass is one statement, an aggregate of the extension around the kernel.

Prepare once: encode, project, permute, and write packed rows into a temporary table. It is private to the session,
not logged, and the server drops it however the session ends. Then one statement per pass.

The un-noised models go from pass to pass in the memory of the session (`boltdp.put_state`) and come back as results.
They get there by COPY into a view that keeps them and stores nothing (`boltdp.inbox`). Statements have no values, and
their parameters are public: a server that logs every statement with its parameters logs nothing private.

Without the extension, or where no temporary table may be made, the rows are streamed once to this process by
COPY and spooled here; the bits are the same.

PostgreSQL's messages may quote rows, so only those that cannot are passed on, and its exceptions are not chained.
"""

from boltdp.engines.postgres.engine import PostgresEngine, PostgresGroups, PostgresSlice
from boltdp.engines.postgres.packed_table import Layout, PreparedTable
from boltdp.engines.postgres.session import Session

__all__ = ["Layout", "PostgresEngine", "PostgresGroups", "PostgresSlice", "PreparedTable", "Session"]
