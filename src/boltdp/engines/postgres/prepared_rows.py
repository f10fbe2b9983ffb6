"""Prepared rows in a temporary table that is private to the session and not logged.

Each pass, draw or sum is one statement that runs the kernel in the server; a shuffle creates a new table. The server
drops the table however the session ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from psycopg import sql

from boltdp import _interrupts
from boltdp._array_types import Integers, PackedRows
from boltdp.encoding.plan import EncodingPlan
from boltdp.engines.postgres.session import Composed, Session
from boltdp.engines.prepared_rows import PreparedRows
from boltdp.errors import DataError
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.run_context import Context
from boltdp.schema.source_columns import BATCH_ROWS

Layout = Literal["packed", "rows"]
Shuffle = Literal["seeded", "random"]

#: Bytes of packed rows per tuple, so that a tuple with its headers fits on a page.
TUPLE_BYTES = 8160 - 96

#: Approximate upper bound on the drawn rows, in bytes, that one scan sorts in the memory of the session.
DRAWN_BYTES = 256 * 2**20
#: Memory per drawn position: as sent, as passed to the aggregate, and two copies in the sort.
POSITION_BYTES = 48


@dataclass(frozen=True)
class PackArguments:
    """The arguments of the SQL aggregate `boltdp.pack`, which encodes the rows of a source into one table."""

    encoding: EncodingPlan
    plan: bytes  #: compiled
    columns: Composed
    rows: int
    permuted: bool
    condition: Composed | None = None  #: on public columns; None selects all rows


def _make_table_name() -> sql.Identifier:
    return sql.Identifier("pg_temp", f"boltdp_{secrets.token_hex(8)}")


@dataclass
class _Table:
    """A temporary table of packed rows, which are appended, so that a scan reads them in the order written."""

    rows: int
    block_rows: int  #: rows per tuple
    name: sql.Identifier = field(default_factory=_make_table_name)
    dropped: bool = False


class PreparedTable(PreparedRows):
    """Prepared rows in a temporary table of PostgreSQL, or a range of them."""

    def __init__(self, session: Session, pack: PackArguments, *, layout: Layout, seed: int | None) -> None:
        """Use `create`."""
        cells, feature_map = pack.encoding.cell_count, pack.encoding.feature_map
        super().__init__(0, pack.rows, cells=cells, feature_map=feature_map, permuted=pack.permuted)
        self._session, self._seed = session, seed
        self._table = _Table(self.rows, max(1, TUPLE_BYTES // (4 * (1 + self.cells))) if layout == "packed" else 1)

    @classmethod
    def create(
        cls,
        session: Session,
        arguments: Sequence[PackArguments],
        *,
        source: Composed,
        user_path: bool,
        layout: Layout,
        seed: int | None,
    ) -> list[PreparedTable]:
        """Encode the rows of a source into new tables, one for each of `arguments`, in one scan.

        The seed determines their order; None is a seed that only the server knows. `user_path` is as in `Session.ask`.
        """
        tables = [cls(session, one, layout=layout, seed=seed) for one in arguments]
        session.reserve(sum(table._table_bytes for table in tables))
        for table in tables:
            table._create_table()
        plans = list(dict.fromkeys(one.plan for one in arguments))  # without repetitions
        rows = sum(one.rows for one in arguments)
        calls = []
        for table, pack in zip(tables, arguments, strict=True):
            memory = max(1, session.memory * pack.rows // max(1, rows))
            calls.append(table._write_pack_call(pack, plans.index(pack.plan) + 1, memory=memory))
        fill = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(calls), source)
        (packed,) = session.ask(fill, plans, fault="the rows cannot be prepared", user_path=user_path)
        if [number or 0 for number in packed] != [one.rows for one in arguments]:
            raise DataError("the data changed while it was read: its number of rows is not what it was")
        return tables

    def _write_pack_call(self, pack: PackArguments, plan: int, *, memory: int) -> Composed:
        """Return the SQL of the aggregate that encodes rows, by the plan in parameter `plan`, and permutes them."""
        order = (self.rows, _convert_to_bigint(self._seed)) if self.permuted else (None, None)
        call = sql.SQL("boltdp.pack({}, {}::pg_catalog.bytea, {}, {}, {}, {}, {})").format(
            self._write_table_literal(), sql.SQL(f"${plan}"), self._table.block_rows, *order, memory, pack.columns
        )
        return call if pack.condition is None else sql.SQL("{} FILTER (WHERE {})").format(call, pack.condition)

    def _write_table_literal(self) -> Composed:
        """Return the SQL of the table as an argument of the extension's functions."""
        return sql.SQL("{}::pg_catalog.regclass").format(self._table.name.as_string())

    @property
    def _table_bytes(self) -> int:
        block_rows = self._table.block_rows
        # Tuple headers, alignment and page margins add an eighth.
        return -(-self.rows // block_rows) * (block_rows * (4 * self.cells + 4) * 9 // 8 + 64)

    def _create_table(self) -> None:
        create = "CREATE TEMPORARY TABLE {} (start bigint, block real[]) USING heap WITH (toast_tuple_target = 8160)"
        # Rows wider than a page are toasted without compression, which hardly shortens numbers.
        for statement in (create, "ALTER TABLE {} ALTER block SET STORAGE EXTERNAL"):
            self._session.ask(sql.SQL(statement).format(self._table.name), fault="the rows cannot be prepared")

    def vacuum(self) -> None:
        """Set the visibility map after the transaction has ended, which speeds up scans of one row per tuple."""
        if self._table.block_rows == 1:
            self._session.vacuum(self._table.name)

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        self._check_permuted()
        self._check_width(states)
        call = sql.SQL("boltdp.sgd((SELECT boltdp.get_state($1)), {})").format(self._write_block_expression())
        self._update_states(states, call)
        context.report_rows(self.rows)

    def run_sampled_batches(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        """Update SGD states with the sampled rows, which each scan sorts in the memory of the session."""
        _interrupts.check()
        parts = self._translate_positions(states, positions, BATCH_ROWS)
        drawn = np.concatenate([np.empty(0, np.int64), *(part.copy() for part in parts)])
        # The number of positions may be secret, so the number of scans depends on the number of rows in the range.
        memory = min(DRAWN_BYTES, self._session.memory)
        scans = -(-self.rows * (4 * (1 + self.cells) + POSITION_BYTES) // memory)
        call = sql.SQL("boltdp.sgd_drawn((SELECT boltdp.get_state($1)), (SELECT boltdp.get_state($2)), start, block)")
        for part in np.array_split(drawn, scans):
            with self._session.send_positions(part) as handle:
                self._update_states(states, call, handle)

    def _update_states(self, states: Sequence[State], call: Composed, *handles: int) -> None:
        """Update SGD states by an aggregate call in the server, whose parameters are their handle and `handles`."""
        models = [state.to_bytes() for state in states]
        joined = b"".join(models)
        if joined != self._session.kept_state:
            self._session.send_states(joined)
        self._session.kept_state = None
        answer = self._session.ask(
            self._write_select(sql.SQL("boltdp.put_state($1, {})").format(call)),
            [self._session.handle, *handles],
            fault="a pass cannot be run",
            prepared_only=True,
        )
        done = bytes(answer[0][0])
        self._session.kept_state = done
        at = 0
        for state, model in zip(states, models, strict=True):
            state.update(done[at : at + len(model)])
            at += len(model)

    def add_to_sums(self, sums: Sequence[Summation]) -> None:
        """Add the rows to all sums in one scan, with one aggregate per sum."""
        _interrupts.check()
        self._check_width(sums)
        if not sums:
            return
        calls = [
            sql.SQL(f"boltdp.sums((SELECT boltdp.get_state(${number})), {{}})").format(self._write_block_expression())
            for number in range(1, len(sums) + 1)
        ]
        query = self._write_select(sql.SQL(", ").join(calls))
        try:
            handles = self._session.send_states(*(each.to_bytes() for each in sums))
            (summed,) = self._session.ask(query, handles, fault="the rows cannot be summed", prepared_only=True)
            for each, state in zip(sums, summed, strict=True):
                if state is not None:  # NULL for an empty range
                    each.update(bytes(state))
        finally:
            self._session.drop_states()

    def reshuffle(self, seed: int) -> None:
        self._check_permuted()
        old, self._table.name = self._table.name, _make_table_name()
        try:
            self._create_table()
            repack = sql.SQL("SELECT boltdp.repack({}, {}, {}, {}, {}, {}, {}, start, block) FROM {}").format(
                self._write_table_literal(),
                *(self._table.block_rows, self._table.rows, _convert_to_bigint(None if self._seed is None else seed)),
                *(self._session.memory, self._start, self._stop, old),
            )
            self._session.ask(repack, fault="the rows cannot be prepared")
        except BaseException:
            self._table.name = old
            raise
        self._session.ask(sql.SQL("DROP TABLE {}").format(old), fault="the rows cannot be dropped")
        self.vacuum()

    def read_blocks(self) -> Iterator[PackedRows]:
        for gathered in self._session.stream(self._write_select(self._write_block_expression()), ["bytea"]):
            for (raw,) in gathered:
                # The header of a two-dimensional array has 28 bytes; each number follows its length.
                numbers = np.frombuffer(raw, [("length", ">i4"), ("number", ">f4")], offset=28)["number"]
                yield numbers.astype(np.float32).reshape(-1, 1 + self.cells)

    def close(self) -> None:
        """Drop the table and the models, unless the end of the session has done so."""
        if self._table.dropped:
            return
        self._session.drop_states()
        self._table.dropped = True
        if not self._session.closed:
            self._session.ask(sql.SQL("DROP TABLE {}").format(self._table.name), fault="the rows cannot be dropped")

    def _write_select(self, columns: Composed) -> Composed:
        """Return the SQL that selects from all tuples of the table with rows in the range."""
        select = sql.SQL("SELECT {} FROM {}").format(columns, self._table.name)
        if self.rows == self._table.rows:
            return select
        within = "{} WHERE start OPERATOR(pg_catalog.>) {} AND start OPERATOR(pg_catalog.<) {}"
        return sql.SQL(within).format(select, self._start - self._table.block_rows, self._stop)

    def _write_block_expression(self) -> Composed:
        """Return the SQL of the rows of a tuple that are in the range."""
        if self._table.block_rows == 1 or self.rows == self._table.rows:
            return sql.SQL("block")
        return sql.SQL(
            "CASE WHEN start OPERATOR(pg_catalog.>=) {start}"
            " AND (start OPERATOR(pg_catalog.+) {n}) OPERATOR(pg_catalog.<=) {stop} THEN block"
            " ELSE block[GREATEST({start} OPERATOR(pg_catalog.-) start, 0) OPERATOR(pg_catalog.+) 1"
            " : LEAST({stop} OPERATOR(pg_catalog.-) start, {n})] END"
        ).format(start=self._start, stop=self._stop, n=self._table.block_rows)


def _convert_to_bigint(seed: int | None) -> int | None:
    """Return a 64-bit seed as a signed number, or None for a secret seed that the server draws."""
    return seed if seed is None or seed < 2**63 else seed - 2**64
