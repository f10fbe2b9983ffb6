"""Prepared rows in a temporary table that is private to the session and not logged.

Each pass, draw or sum is one statement that runs the kernel in the server; a shuffle creates a new table. The server
drops the table however the session ends.
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

#: Bytes of packed rows per tuple, so that a tuple with its headers fits on a page.
TUPLE_BYTES = 8160 - 96

#: Approximate upper bound on the drawn rows, in bytes, that one scan sorts in the memory of the session.
DRAWN_BYTES = 256 * 2**20
#: Memory per drawn position: as sent, as passed to the aggregate, and two copies in the sort.
POSITION_BYTES = 48


@dataclass(frozen=True)
class Packing:
    """The parameters of encoding the rows of a source into one table."""

    plan: bytes  #: the compiled encoding plan
    columns: Composed
    cells: int
    feature_map: FeatureMap | None
    rows: int
    ordered: bool
    condition: Composed | None = None  #: on public columns; None selects all rows


class PreparedTable(StoredRows):
    """The packed rows of a temporary table, or a range of them."""

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
        user_path: bool,
        layout: Layout,
        seed: int | None,
    ) -> list[PreparedTable]:
        """Encode the rows of a source into new tables, one per packing, in one scan (`user_path` as in `Session.ask`).

        The seed determines their order; None is a seed that only the server knows.
        """
        tables = [
            _Table(session, rows=one.rows, cells=one.cells, layout=layout, random=seed is None, ordered=one.ordered)
            for one in packings
        ]
        session.reserve(sum(table.size for table in tables))
        for table in tables:
            table.create_table()
        plans = list(dict.fromkeys(one.plan for one in packings))  # without repetitions
        rows = sum(one.rows for one in packings)
        calls = []
        for table, one in zip(tables, packings, strict=True):
            share = max(1, session.memory * one.rows // max(1, rows))
            call = table.pack(plans.index(one.plan) + 1, one.columns, seed=seed, memory=share)
            calls.append(call if one.condition is None else sql.SQL("{} FILTER (WHERE {})").format(call, one.condition))
        fill = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(calls), source)
        (packed,) = session.ask(fill, plans, fault="the rows cannot be prepared", user_path=user_path)
        if [number or 0 for number in packed] != [one.rows for one in packings]:
            raise DataError("the data changed while it was read: its number of rows is not what it was")
        return [
            cls(table, 0, one.rows, feature_map=one.feature_map) for table, one in zip(tables, packings, strict=True)
        ]

    def vacuum(self) -> None:
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
        sample = self._table.sample_rows(share, self._start, self._stop)
        try:
            yield PreparedTable(sample, 0, self.rows, feature_map=self.feature_map)
        finally:
            sample.drop()

    def close(self) -> None:
        self._table.drop()


class _Table:
    """A temporary table of packed rows, which are appended, so that a scan reads them in the order written."""

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
        """Return the aggregate call that encodes rows by the plan in parameter number `plan` and permutes them."""
        order = sql.SQL("{}, {}").format(sql.Literal(self._rows), _seed_literal(seed))
        return sql.SQL("boltdp.pack({}, {}::pg_catalog.bytea, {}, {}, {}, {})").format(
            self._table_literal(),
            sql.SQL(f"${plan}"),
            sql.Literal(self._block_rows),
            order if self.ordered else sql.SQL("NULL, NULL"),
            sql.Literal(memory),
            columns,
        )

    def _new_name(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"boltdp_{secrets.token_hex(8)}")

    def _table_literal(self) -> Composed:
        return sql.SQL("{}::pg_catalog.regclass").format(sql.Literal(self._name.as_string()))

    @property
    def size(self) -> int:
        """The approximate number of bytes of the table."""
        # Tuple headers, alignment and page margins add an eighth.
        return -(-self._rows // self._block_rows) * (self._block_rows * (4 * self.cells + 4) * 9 // 8 + 64)

    def create_table(self) -> None:
        fault = "the rows cannot be prepared"
        create = "CREATE TEMPORARY TABLE {} (start bigint, block real[]) USING heap WITH (toast_tuple_target = 8160)"
        self._session.ask(sql.SQL(create).format(self._name), fault=fault)
        # Rows wider than a page are toasted without compression, which hardly shortens numbers.
        self._session.ask(sql.SQL("ALTER TABLE {} ALTER block SET STORAGE EXTERNAL").format(self._name), fault=fault)

    def vacuum(self) -> None:
        """Set the visibility map after the transaction has ended, which speeds up scans of one row per tuple."""
        if self._block_rows == 1:
            self._session.ask(sql.SQL("VACUUM {}").format(self._name), fault="the rows cannot be prepared")

    def run(self, states: Sequence[State], start: int, stop: int) -> None:
        source = sql.SQL("{} WHERE {}").format(self._name, self._overlap_condition(start, stop))
        call = sql.SQL("boltdp.sgd((SELECT boltdp.get_state($1)), {})").format(self._block_expression(start, stop))
        self._feed(states, call, source)

    def sample_rows(self, share: float, start: int, stop: int) -> _Table:
        """Copy the sampled rows of a range to a new table; their number is private."""
        sample = copy.copy(self)
        sample._name, sample._rows, sample.ordered = self._new_name(), stop - start, False
        sample.create_table()
        # OFFSET 0 prevents merging the subquery, which would call the function twice per block.
        sampled = sql.SQL("SELECT start, boltdp.sample_block({}, {}) AS few FROM {} WHERE {} OFFSET 0").format(
            self._block_expression(start, stop),
            sql.Literal(of_hashes(share)),
            self._name,
            self._overlap_condition(start, stop),
        )
        fill = "INSERT INTO {} SELECT start, few FROM ({}) AS blocks WHERE few IS NOT NULL"
        self._session.ask(
            sql.SQL(fill).format(sample._name, sampled), fault="the rows cannot be sampled", prepared_only=True
        )
        return sample

    def run_drawn(self, states: Sequence[State], positions: Integers, start: int, stop: int) -> None:
        """Update the models with the drawn rows, which each scan sorts in the memory of the session."""
        source = sql.SQL("{} WHERE {}").format(self._name, self._overlap_condition(start, stop))
        # The number of positions may be secret, so the number of scans depends on the number of rows in the range.
        memory = min(DRAWN_BYTES, self._session.memory)
        scans = -(-(stop - start) * (4 * (1 + self.cells) + POSITION_BYTES) // memory)
        for part in np.array_split(positions, scans):
            with self._session.send_positions(part) as handle:
                call = sql.SQL(
                    "boltdp.sgd_drawn((SELECT boltdp.get_state($1)), (SELECT boltdp.get_state($2)), start, block)"
                )
                self._feed(states, call, source, handle)

    def sum(self, sums: Sequence[Summation], start: int, stop: int) -> None:
        """Add the rows of a range to all sums in one scan, with one aggregate per sum."""
        block = self._block_expression(start, stop)
        calls = [
            sql.SQL(f"boltdp.sums((SELECT boltdp.get_state(${number})), {{}})").format(block)
            for number in range(1, len(sums) + 1)
        ]
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(calls), self._name, self._overlap_condition(start, stop)
        )
        try:
            handles = self._session.send_states(*(each.to_bytes() for each in sums))
            (summed,) = self._session.ask(query, handles, fault="the rows cannot be summed", prepared_only=True)
            for each, state in zip(sums, summed, strict=True):
                if state is not None:  # NULL for an empty range
                    each.update(bytes(state))
        finally:
            self._session.drop_states()

    def _feed(self, states: Sequence[State], call: Composed, source: Composed, *handles: int) -> None:
        """Update the models by an aggregate whose first parameter is their handle, followed by other handles."""
        models = [state.to_bytes() for state in states]
        joined = b"".join(models)
        if joined != self._session.kept_state:
            self._session.send_states(joined)
        self._session.kept_state = None
        query = sql.SQL("SELECT boltdp.put_state($1, {}) FROM {}").format(call, source)
        answer = self._session.ask(
            query, [self._session.handle, *handles], fault="a pass cannot be run", prepared_only=True
        )
        done = bytes(answer[0][0])
        self._session.kept_state = done
        at = 0
        for state, model in zip(states, models, strict=True):
            state.update(done[at : at + len(model)])
            at += len(model)

    def blocks(self, start: int, stop: int) -> Iterator[PackedRows]:
        block = self._block_expression(start, stop)
        select = sql.SQL("SELECT {} FROM {} WHERE {}").format(block, self._name, self._overlap_condition(start, stop))
        for gathered in self._session.stream(select, ["bytea"]):
            for (raw,) in gathered:
                # The header of a two-dimensional array has 28 bytes; each number follows its length.
                numbers = np.frombuffer(raw, [("length", ">i4"), ("number", ">f4")], offset=28)["number"]
                yield numbers.astype(np.float32).reshape(-1, 1 + self.cells)

    def shuffle(self, start: int, stop: int, seed: int) -> None:
        old, self._name = self._name, self._new_name()
        try:
            self.create_table()
            repack = sql.SQL("SELECT boltdp.repack({}, {}, {}, {}, {}, {}, {}, start, block) FROM {}").format(
                self._table_literal(),
                *map(sql.Literal, (self._block_rows, self._rows)),
                _seed_literal(None if self._random else seed),
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
        """Drop the table and the models, unless the end of the session has done so."""
        if self._dropped:
            return
        self._session.drop_states()
        self._dropped = True
        if not self._session.closed:
            self._session.ask(sql.SQL("DROP TABLE {}").format(self._name), fault="the rows cannot be dropped")

    def _overlap_condition(self, start: int, stop: int) -> Composed:
        """Return the condition that a tuple has rows in the range."""
        if (start, stop) == (0, self._rows):
            return sql.SQL("true")
        within = "start OPERATOR(pg_catalog.>) {} AND start OPERATOR(pg_catalog.<) {}"
        return sql.SQL(within).format(sql.Literal(start - self._block_rows), sql.Literal(stop))

    def _block_expression(self, start: int, stop: int) -> Composed:
        if self._block_rows == 1 or (start, stop) == (0, self._rows):
            return sql.SQL("block")
        return sql.SQL(
            "CASE WHEN start OPERATOR(pg_catalog.>=) {start}"
            " AND (start OPERATOR(pg_catalog.+) {n}) OPERATOR(pg_catalog.<=) {stop} THEN block"
            " ELSE block[GREATEST({start} OPERATOR(pg_catalog.-) start, 0) OPERATOR(pg_catalog.+) 1"
            " : LEAST({stop} OPERATOR(pg_catalog.-) start, {n})] END"
        ).format(start=sql.Literal(start), stop=sql.Literal(stop), n=sql.Literal(self._block_rows))


def _seed_literal(seed: int | None) -> Composed:
    """Return a 64-bit seed as a bigint literal, or NULL for a secret seed that the server draws.

    >>> _seed_literal(7).as_string(), _seed_literal(2**64 - 1).as_string(), _seed_literal(None).as_string()
    ('7', ' -1', 'NULL')
    """
    if seed is None:
        return sql.SQL("NULL")
    return sql.SQL("{}").format(sql.Literal(seed - 2**64 if seed >= 2**63 else seed))
