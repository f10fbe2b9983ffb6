"""Training inside PostgreSQL: a pass over the rows is one statement that calls an aggregate of the extension.

The rows are encoded, projected, permuted and packed once into a temporary table, which is private to the session, not
logged, and dropped by the server however the session ends.

Between passes the un-noised models are in the memory of the session (`boltdp.put_state`). They are sent by COPY into a
view that stores nothing (`boltdp.inbox`). Statements and their parameters are public, so a server that logs all
statements logs nothing private.

Without the extension or the right to create temporary tables, the rows are streamed to this process by COPY and
spooled here; the trained models are the same, bit for bit.
"""

from boltdp.engines.postgres.engine import PostgresEngine, PostgresGroups, PostgresSlice
from boltdp.engines.postgres.prepared_rows import Layout, PreparedTable
from boltdp.engines.postgres.session import Session

__all__ = ["Layout", "PostgresEngine", "PostgresGroups", "PostgresSlice", "PreparedTable", "Session"]
