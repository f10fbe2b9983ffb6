"""The prepared rows: packed, in a temporary table that is private to the session and not logged.

Passes, draws and sums are statements, one for each, that run the kernel in the server; a shuffle makes a new table.
The server drops the table however the session ends.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
from psycopg import sql

from boltdp import stopping
from boltdp.arraytypes import Integers, PackedRows
from boltdp.context import Context
from boltdp.data.source import BATCH_ROWS
from boltdp.engines.postgres.encoding import Query, Shuffle, permuted
from boltdp.engines.postgres.session import Composed, Session
from boltdp.engines.prepared import Prepared, check_part, check_width, joined_positions
from boltdp.kernel import State
from boltdp.kernel.sums import Summation

Layout = Literal["packed", "rows"]

#: A tuple as large as fits on a page, with room for its header and the array's.
TUPLE_BYTES = 8160 - 96

#: Memory of the session for drawn rows, about and at most: a scan of the table puts so many in order.
DRAWN_BYTES = 256 * 2**20
#: Of it, for the position of a row: as it was sent, as the aggregate gets it, and twice where it is sorted.
POSITION_BYTES = 48

#: A row that is stored one per tuple, as a packed one, and as a block.
_ROW = sql.SQL("label OPERATOR(pg_catalog.||) features")
_BLOCK_OF_ONE = sql.SQL("ARRAY[{}]").format(_ROW)


class PreparedTable(Prepared):
    """Packed rows in a temporary table, or those of them from one position to another."""

    def __init__(self, table: _Table, start: int, stop: int) -> None:
        self._table = table
        self._start = start
        self.rows = stop - start
        self.dims = table.dims

    @classmethod
    def create(
        cls, session: Session, placed: Query, *, rows: int, dims: int, layout: Layout, shuffle: Shuffle, theirs: bool
    ) -> PreparedTable:
        """Write rows, each with the place it has in the permuted order, into a new table; see `Session.ask`."""
        table = _Table(session, rows=rows, dims=dims, layout=layout, shuffle=shuffle)
        table.write(placed, theirs=theirs)
        return cls(table, 0, rows)

    def settle(self) -> None:
        """Make the rows quicker to scan, once the transaction that wrote them has ended."""
        self._table.settle()

    def run_pass(self, states: Sequence[State], context: Context) -> None:
        """Feed every row once, in order, to every state: one statement."""
        check_width(states, self.dims)
        self._table.run(states, self._start, self._start + self.rows)
        context.done(self.rows)

    def run_drawn(self, states: Sequence[State], positions: Iterable[Integers]) -> None:
        """Feed the rows at these positions, in this order, to every state. -1 stands for a marker."""
        stopping.check()
        check_width(states, self.dims)
        stop = self._start + self.rows
        parts = joined_positions(positions, start=self._start, stop=stop, size=BATCH_ROWS)
        drawn = np.concatenate([np.empty(0, np.int64), *(part.copy() for part in parts)])
        self._table.run_drawn(states, drawn, self._start, stop)

    def sum(self, sums: Sequence[Summation]) -> None:
        """Add every row once to each of the sums, where the rows are: one statement."""
        stopping.check()
        check_width(sums, self.dims)
        if sums:
            self._table.sum(sums, self._start, self._start + self.rows)

    def reshuffle(self, seed: int) -> None:
        """Permute the current order again: position p takes the row now at source_position(p; seed)."""
        self._table.shuffle(self._start, self._start + self.rows, seed)

    def portion(self, start: int, stop: int) -> PreparedTable:
        """The rows at positions start to stop - 1, as a view: it shares the rows and needs no closing."""
        check_part(start, stop, rows=self.rows, what="a portion")
        return PreparedTable(self._table, self._start + start, self._start + stop)

    def blocks(self) -> Iterator[PackedRows]:
        """The packed rows in order, a block at a time; they leave the server."""
        return self._table.blocks(self._start, self._start + self.rows)

    def close(self) -> None:
        """Drop the table and the models."""
        self._table.drop()


class _Table:
    """A temporary table of packed rows. CREATE TABLE AS appends, so a scan meets the rows in the order written."""

    def __init__(self, session: Session, *, rows: int, dims: int, layout: Layout, shuffle: Shuffle) -> None:
        self.dims = dims
        self._session = session
        self._rows = rows
        self._packed = layout == "packed"
        self._random = shuffle == "random"
        self._block_rows = max(1, TUPLE_BYTES // (4 * (1 + dims))) if self._packed else 1
        self._name = sql.Identifier("pg_temp", f"boltdp_{secrets.token_hex(8)}")

    def write(self, placed: Query, *, theirs: bool = False) -> None:
        """Make the table of `placed`: rows (place, packed) in any order."""
        if self._packed:
            # Each row finds its slot by its place, so it does not matter how the server gets a block's rows together.
            select = sql.SQL(
                "SELECT nth OPERATOR(pg_catalog.*) {n} AS start, boltdp.pack(slot, packed) AS block FROM"
                " (SELECT place OPERATOR(pg_catalog./) {n} AS nth, (place OPERATOR(pg_catalog.%) {n})::int AS slot,"
                " packed FROM ({placed}) AS placed) AS slotted GROUP BY nth ORDER BY nth"
            )
        else:
            select = sql.SQL(
                "SELECT packed[1] AS label, packed[2:] AS features, place AS start FROM ({placed}) AS placed"
                " ORDER BY place"
            )
        create = sql.SQL(
            "CREATE TEMPORARY TABLE {name} USING heap WITH (toast_tuple_target = 8160) AS {select}"
        ).format(name=self._name, select=select.format(n=sql.Literal(self._block_rows), placed=placed.text))
        # Tuples have a header and alignment, and pages a margin: an eighth more, rounded up to whole blocks.
        self._session.reserve(
            -(-self._rows // self._block_rows) * (self._block_rows * (4 * self.dims + 4) * 9 // 8 + 64)
        )
        sorting = "SELECT pg_catalog.set_config('enable_hashagg', 'off', false)"
        self._session.ask(sorting, fault="the session cannot be set up")
        self._session.ask(create, placed.values, fault="the rows cannot be prepared", theirs=theirs)

    def settle(self) -> None:
        """Mark pages as visible to all, so that scans need not check each tuple; blocks are too few to gain by it."""
        if not self._packed:
            self._session.ask(sql.SQL("VACUUM {}").format(self._name), fault="the rows cannot be prepared")

    def run(self, states: Sequence[State], start: int, stop: int) -> None:
        """Feed the rows from start to stop - 1 to the models."""
        rows = self._block(start, stop) if self._packed else sql.SQL("label, features")
        source = sql.SQL("{} WHERE {}").format(self._name, self._within(start, stop))
        self._feed(states, sql.SQL("boltdp.sgd((SELECT boltdp.kept($1)), {})").format(rows), source)

    def run_drawn(self, states: Sequence[State], positions: Integers, start: int, stop: int) -> None:
        """Feed drawn rows to the models: they are put in order in the memory of the session, in one scan or a few."""
        block = sql.SQL("block") if self._packed else _BLOCK_OF_ONE
        source = sql.SQL("{} WHERE {}").format(self._name, self._within(start, stop))
        # How many positions there are may be secret, so the number of scans follows from public ones.
        most = min(DRAWN_BYTES, self._session.memory)
        scans = -(-(stop - start) * (4 * (1 + self.dims) + POSITION_BYTES) // most)
        for part in np.array_split(positions, scans):
            with self._session.drawn(part) as handle:
                call = sql.SQL("boltdp.sgd_drawn((SELECT boltdp.kept($1)), (SELECT boltdp.kept($2)), start, {})")
                self._feed(states, call.format(block), source, handle)

    def sum(self, sums: Sequence[Summation], start: int, stop: int) -> None:
        """Add the rows from start to stop - 1 to each of the sums: an aggregate for each, in one scan."""
        block = self._block(start, stop)
        calls = [
            sql.SQL(f"boltdp.{each.aggregate}((SELECT boltdp.kept(${number})), {{}})").format(block)
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
        query = sql.SQL("SELECT boltdp.keep($1, {}) FROM {}").format(call, source)
        answer = self._session.ask(query, [self._session.handle, *handles], fault="a pass cannot be run", ours=True)
        done = bytes(answer[0][0])
        self._session.known = done
        at = 0
        for state, model in zip(states, models, strict=True):
            state.update(done[at : at + len(model)])
            at += len(model)

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        """The rows from start to stop - 1."""
        block = self._block(start, stop)
        select = sql.SQL("SELECT {} FROM {} WHERE {}").format(block, self._name, self._within(start, stop))
        for gathered in self._session.stream(select, ["bytea"]):
            for (raw,) in gathered:
                # Two dimensions take 28 bytes of header, each number its length and itself.
                numbers = np.frombuffer(raw, [("length", ">i4"), ("number", ">f4")], offset=28)["number"]
                yield numbers.astype(np.float32).reshape(-1, 1 + self.dims)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        """Permute the rows from start to stop - 1, into a new table."""
        place = sql.SQL("(start OPERATOR(pg_catalog.+) i OPERATOR(pg_catalog.-) 1)" if self._packed else "start")
        inside = sql.SQL("({p} OPERATOR(pg_catalog.>=) {start} AND {p} OPERATOR(pg_catalog.<) {stop})").format(
            p=place, start=sql.Literal(start), stop=sql.Literal(stop)
        )
        moved = (
            sql.SQL(
                "(pg_catalog.row_number() OVER (PARTITION BY {inside} ORDER BY pg_catalog.random())"
                " OPERATOR(pg_catalog.-) 1)"
            ).format(inside=inside)
            if self._random
            else permuted(
                sql.SQL("{} OPERATOR(pg_catalog.-) {}").format(place, sql.Literal(start)), rows=stop - start, seed=seed
            )
        )
        row = sql.SQL("block[i:i]") if self._packed else _ROW
        series = sql.SQL(", pg_catalog.generate_series(1, pg_catalog.array_length(block, 1)) AS i")
        each = series if self._packed else sql.SQL("")
        # OFFSET 0 has the rows taken out of their blocks before they are sorted, not each sorted with its whole block.
        placed = sql.SQL(
            "SELECT CASE WHEN {inside} THEN {start} OPERATOR(pg_catalog.+) {moved} ELSE {place} END AS place,"
            " {row} AS packed"
            " FROM {name}{each} OFFSET 0"
        ).format(
            inside=inside,
            start=sql.Literal(start),
            moved=moved,
            place=place,
            row=row,
            name=self._name,
            each=each,
        )
        old = self._name
        self._name = sql.Identifier("pg_temp", f"boltdp_{secrets.token_hex(8)}")
        try:
            self.write(Query(placed, []))
        except BaseException:
            self._name = old
            raise
        self._session.ask(sql.SQL("DROP TABLE {}").format(old), fault="the rows cannot be dropped")
        self.settle()

    def drop(self) -> None:
        """Drop the table and the models; where the session has ended, the server has done so."""
        self._session.forget()
        if not self._session.closed:
            self._session.ask(sql.SQL("DROP TABLE {}").format(self._name), fault="the rows cannot be dropped")

    def _within(self, start: int, stop: int) -> Composed:
        """Which tuples have rows from start to stop - 1."""
        if (start, stop) == (0, self._rows):
            return sql.SQL("true")
        within = "start OPERATOR(pg_catalog.>) {} AND start OPERATOR(pg_catalog.<) {}"
        return sql.SQL(within).format(sql.Literal(start - self._block_rows), sql.Literal(stop))

    def _block(self, start: int, stop: int) -> Composed:
        """The rows of a block that lie within; a tuple of a single row is a block of one."""
        if not self._packed:
            return _BLOCK_OF_ONE
        if (start, stop) == (0, self._rows):
            return sql.SQL("block")
        return sql.SQL(
            "CASE WHEN start OPERATOR(pg_catalog.>=) {start}"
            " AND (start OPERATOR(pg_catalog.+) {n}) OPERATOR(pg_catalog.<=) {stop} THEN block"
            " ELSE block[GREATEST({start} OPERATOR(pg_catalog.-) start, 0) OPERATOR(pg_catalog.+) 1"
            " : LEAST({stop} OPERATOR(pg_catalog.-) start, {n})] END"
        ).format(start=sql.Literal(start), stop=sql.Literal(stop), n=sql.Literal(self._block_rows))
