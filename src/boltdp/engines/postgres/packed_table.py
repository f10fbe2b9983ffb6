"""The prepared rows: packed, in a temporary table that is private to the session and not logged.

Passes, draws and sums are statements, one for each, that run the kernel in the server; a shuffle makes a new table.
The server drops the table however the session ends.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from psycopg import sql

from boltdp import _interrupts
from boltdp._arrays import Integers, PackedRows
from boltdp.context import Context
from boltdp.engines.postgres.session import Composed, Session
from boltdp.engines.prepared_rows import StoredRows, check_ordered, check_width
from boltdp.errors import DataError
from boltdp.kernel.feature_map import FeatureMap
from boltdp.kernel.packing import of_hashes
from boltdp.kernel.sgd import State
from boltdp.kernel.sum_state import Summation
from boltdp.schema.source_columns import BATCH_ROWS

Layout = Literal["packed", "rows"]
Shuffle = Literal["seeded", "random"]

#: A tuple as large as fits on a page, with room for its header and the array's.
TUPLE_BYTES = 8160 - 96

#: Bytes of drawn rows, about and at most, that one scan of the table puts in order in the memory of the session.
DRAWN_BYTES = 256 * 2**20
#: Of it, for the position of a row: as it was sent, as the aggregate gets it, and twice where it is sorted.
POSITION_BYTES = 48


@dataclass(frozen=True)
class Packing:
    """How rows of a source become those of a table."""

    plan: bytes  #: by which their columns are encoded
    columns: Composed
    cells: int
    feature_map: FeatureMap | None
    rows: int
    ordered: bool
    which: Composed | None = None  #: a condition on public columns; None: all rows


class PreparedTable(StoredRows):
    """Packed rows in a temporary table, or those of them from one position to another."""

    def __init__(self, table: _Table, start: int, stop: int, *, feature_map: FeatureMap | None) -> None:
        super().__init__(start, stop, cells=table.cells, feature_map=feature_map, ordered=table.ordered)
        self._table = table

    @classmethod
    def create(
        cls,
        session: Session,
        packings: Sequence[Packing],
        *,
        source: Composed,
        theirs: bool,
        layout: Layout,
        seed: int | None,
    ) -> list[PreparedTable]:
        """Encode the rows of a source into new tables, one for each packing, in one scan; `Session.ask` has `theirs`.

        Their order follows from the seed; None stands for one that nobody knows.
        """
        tables = [
            _Table(session, rows=one.rows, cells=one.cells, layout=layout, random=seed is None, ordered=one.ordered)
            for one in packings
        ]
        session.reserve(sum(table.size for table in tables))
        for table in tables:
            table.make()
        # Each plan is sent once.
        plans = list(dict.fromkeys(one.plan for one in packings))
        rows = sum(one.rows for one in packings)
        calls = []
        for table, one in zip(tables, packings, strict=True):
            share = max(1, session.memory * one.rows // max(1, rows))
            call = table.pack(plans.index(one.plan) + 1, one.columns, seed=seed, memory=share)
            calls.append(call if one.which is None else sql.SQL("{} FILTER (WHERE {})").format(call, one.which))
        fill = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(calls), source)
        (packed,) = session.ask(fill, plans, fault="the rows cannot be prepared", theirs=theirs)
        if [number or 0 for number in packed] != [one.rows for one in packings]:
            raise DataError("the data changed while it was read: its number of rows is not what it was")
        return [
            cls(table, 0, one.rows, feature_map=one.feature_map) for table, one in zip(tables, packings, strict=True)
        ]

    def vacuum(self) -> None:
        """Make the rows quicker to scan, once the transaction that wrote them has ended."""
        self._table.vacuum()

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        check_ordered(self)
        check_width(states, self.cells)
        self._table.run(states, self._start, self._stop)
        context.report_rows(self.rows)

    def run_drawn(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        _interrupts.check()
        parts = self._join_positions(states, positions, BATCH_ROWS)
        drawn = np.concatenate([np.empty(0, np.int64), *(part.copy() for part in parts)])
        self._table.run_drawn(states, drawn, self._start, self._stop)

    def sum(self, sums: Sequence[Summation]) -> None:
        _interrupts.check()
        check_width(sums, self.cells)
        if sums:
            self._table.sum(sums, self._start, self._stop)

    def _shuffle(self, seed: int) -> None:
        self._table.shuffle(self._start, self._stop, seed)

    def blocks(self) -> Iterator[PackedRows]:
        return self._table.blocks(self._start, self._stop)

    @contextmanager
    def sample_rows(self, share: float) -> Iterator[PreparedTable]:
        few = self._table.sample_rows(share, self._start, self._stop)
        try:
            yield PreparedTable(few, 0, self.rows, feature_map=self.feature_map)
        finally:
            few.drop()

    def close(self) -> None:
        self._table.drop()


class _Table:
    """A temporary table of packed rows. They are appended, so a scan meets them in the order written."""

    def __init__(self, session: Session, *, rows: int, cells: int, layout: Layout, random: bool, ordered: bool) -> None:
        self.cells = cells
        self.ordered = ordered
        self._session = session
        self._dropped = False
        self._rows = rows
        self._random = random
        self._block_rows = max(1, TUPLE_BYTES // (4 * (1 + cells))) if layout == "packed" else 1
        self._name = self._new_name()

    def pack(self, plan: int, columns: Composed, *, seed: int | None, memory: int) -> Composed:
        """Return the aggregate that encodes rows by the plan that is this parameter, and puts each in its place."""
        order = sql.SQL("{}, {}").format(sql.Literal(self._rows), _seed(seed))
        return sql.SQL("boltdp.pack({}, {}::pg_catalog.bytea, {}, {}, {}, {})").format(
            self._target(),
            sql.SQL(f"${plan}"),
            sql.Literal(self._block_rows),
            order if self.ordered else sql.SQL("NULL, NULL"),
            sql.Literal(memory),
            columns,
        )

    def _new_name(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"boltdp_{secrets.token_hex(8)}")

    def _target(self) -> Composed:
        return sql.SQL("{}::pg_catalog.regclass").format(sql.Literal(self._name.as_string()))

    @property
    def size(self) -> int:
        """Bytes of the table, about."""
        # Tuples have a header and alignment, and pages a margin: an eighth more, rounded up to whole blocks.
        return -(-self._rows // self._block_rows) * (self._block_rows * (4 * self.cells + 4) * 9 // 8 + 64)

    def make(self) -> None:
        fault = "the rows cannot be prepared"
        create = "CREATE TEMPORARY TABLE {} (start bigint, block real[]) USING heap WITH (toast_tuple_target = 8160)"
        self._session.ask(sql.SQL(create).format(self._name), fault=fault)
        # Rows too wide for a page are put aside as they are: numbers hardly get shorter by compression.
        self._session.ask(sql.SQL("ALTER TABLE {} ALTER block SET STORAGE EXTERNAL").format(self._name), fault=fault)

    def vacuum(self) -> None:
        """Mark pages as visible to all, so that scans need not check each tuple; blocks are too few to gain by it."""
        if self._block_rows == 1:
            self._session.ask(sql.SQL("VACUUM {}").format(self._name), fault="the rows cannot be prepared")

    def run(self, states: Sequence[State], start: int, stop: int) -> None:
        source = sql.SQL("{} WHERE {}").format(self._name, self._within(start, stop))
        call = sql.SQL("boltdp.sgd((SELECT boltdp.get_state($1)), {})").format(self._block(start, stop))
        self._feed(states, call, source)

    def sample_rows(self, share: float, start: int, stop: int) -> _Table:
        """Those of the rows from start to stop - 1 that sums of a share take; how many they are is private."""
        few = copy.copy(self)
        few._name, few._rows, few.ordered = self._new_name(), stop - start, False
        few.make()
        # Once for each block: a subquery without OFFSET would be merged, and its function called twice.
        sampled = sql.SQL("SELECT start, boltdp.sample_block({}, {}) AS few FROM {} WHERE {} OFFSET 0").format(
            self._block(start, stop), sql.Literal(of_hashes(share)), self._name, self._within(start, stop)
        )
        fill = "INSERT INTO {} SELECT start, few FROM ({}) AS blocks WHERE few IS NOT NULL"
        self._session.ask(sql.SQL(fill).format(few._name, sampled), fault="the rows cannot be sampled", ours=True)
        return few

    def run_drawn(self, states: Sequence[State], positions: Integers, start: int, stop: int) -> None:
        """Feed drawn rows to the models: they are put in order in the memory of the session, in one scan or a few."""
        source = sql.SQL("{} WHERE {}").format(self._name, self._within(start, stop))
        # How many positions there are may be secret, so the number of scans follows from public ones.
        most = min(DRAWN_BYTES, self._session.memory)
        scans = -(-(stop - start) * (4 * (1 + self.cells) + POSITION_BYTES) // most)
        for part in np.array_split(positions, scans):
            with self._session.drawn(part) as handle:
                call = sql.SQL(
                    "boltdp.sgd_drawn((SELECT boltdp.get_state($1)), (SELECT boltdp.get_state($2)), start, block)"
                )
                self._feed(states, call, source, handle)

    def sum(self, sums: Sequence[Summation], start: int, stop: int) -> None:
        """Add the rows from start to stop - 1 to each of the sums: an aggregate for each, in one scan."""
        block = self._block(start, stop)
        calls = [
            sql.SQL(f"boltdp.{each.aggregate}((SELECT boltdp.get_state(${number})), {{}})").format(block)
            for number, each in enumerate(sums, 1)
        ]
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(calls), self._name, self._within(start, stop)
        )
        try:
            handles = self._session.lend(*(each.to_bytes() for each in sums))
            (summed,) = self._session.ask(query, handles, fault="the rows cannot be summed", ours=True)
            for each, state in zip(sums, summed, strict=True):
                if state is not None:  # which it is of no rows
                    each.update(bytes(state))
        finally:
            self._session.forget()

    def _feed(self, states: Sequence[State], call: Composed, source: Composed, *handles: int) -> None:
        """Run an aggregate that takes what is kept under $1, the models, and under the handles from $2 on."""
        models = [state.to_bytes() for state in states]
        joined = b"".join(models)
        if joined != self._session.known:
            self._session.lend(joined)
        self._session.known = None
        query = sql.SQL("SELECT boltdp.put_state($1, {}) FROM {}").format(call, source)
        answer = self._session.ask(query, [self._session.handle, *handles], fault="a pass cannot be run", ours=True)
        done = bytes(answer[0][0])
        self._session.known = done
        at = 0
        for state, model in zip(states, models, strict=True):
            state.update(done[at : at + len(model)])
            at += len(model)

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        block = self._block(start, stop)
        select = sql.SQL("SELECT {} FROM {} WHERE {}").format(block, self._name, self._within(start, stop))
        for gathered in self._session.stream(select, ["bytea"]):
            for (raw,) in gathered:
                # Two dimensions take 28 bytes of header, each number its length and itself.
                numbers = np.frombuffer(raw, [("length", ">i4"), ("number", ">f4")], offset=28)["number"]
                yield numbers.astype(np.float32).reshape(-1, 1 + self.cells)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        old, self._name = self._name, self._new_name()
        try:
            self.make()
            repack = sql.SQL("SELECT boltdp.repack({}, {}, {}, {}, {}, {}, {}, start, block) FROM {}").format(
                self._target(),
                *map(sql.Literal, (self._block_rows, self._rows)),
                _seed(None if self._random else seed),
                *map(sql.Literal, (self._session.memory, start, stop)),
                old,
            )
            self._session.ask(repack, fault="the rows cannot be prepared")
        except BaseException:
            self._name = old
            raise
        self._session.ask(sql.SQL("DROP TABLE {}").format(old), fault="the rows cannot be dropped")
        self.vacuum()

    def drop(self) -> None:
        """Drop the table and the models, once; where the session has ended, the server has done so."""
        if self._dropped:
            return
        self._session.forget()
        self._dropped = True
        if not self._session.closed:
            self._session.ask(sql.SQL("DROP TABLE {}").format(self._name), fault="the rows cannot be dropped")

    def _within(self, start: int, stop: int) -> Composed:
        """Which tuples have rows from start to stop - 1."""
        if (start, stop) == (0, self._rows):
            return sql.SQL("true")
        within = "start OPERATOR(pg_catalog.>) {} AND start OPERATOR(pg_catalog.<) {}"
        return sql.SQL(within).format(sql.Literal(start - self._block_rows), sql.Literal(stop))

    def _block(self, start: int, stop: int) -> Composed:
        if self._block_rows == 1 or (start, stop) == (0, self._rows):
            return sql.SQL("block")
        return sql.SQL(
            "CASE WHEN start OPERATOR(pg_catalog.>=) {start}"
            " AND (start OPERATOR(pg_catalog.+) {n}) OPERATOR(pg_catalog.<=) {stop} THEN block"
            " ELSE block[GREATEST({start} OPERATOR(pg_catalog.-) start, 0) OPERATOR(pg_catalog.+) 1"
            " : LEAST({stop} OPERATOR(pg_catalog.-) start, {n})] END"
        ).format(start=sql.Literal(start), stop=sql.Literal(stop), n=sql.Literal(self._block_rows))


def _seed(seed: int | None) -> Composed:
    """A seed of 64 bits as a bigint; NULL for one that the server draws and tells nobody.

    >>> _seed(7).as_string(), _seed(2**64 - 1).as_string(), _seed(None).as_string()
    ('7', ' -1', 'NULL')
    """
    if seed is None:
        return sql.SQL("NULL")
    return sql.SQL("{}").format(sql.Literal(seed - 2**64 if seed >= 2**63 else seed))
