"""How many threads work on rows changes no bit, and they end when they are asked to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp import _interrupts
from boltdp._array_types import PackedRows
from boltdp._threads import map_in_order
from boltdp.encoding.encode import Encoder
from boltdp.engines import local_store as spools
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.local_store import FileStore, LocalRows, store_rows
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.number_errors import NumberErrors
from boltdp.kernel.sum_state import Summation
from boltdp.losses import Logistic, Multinomial, Robust
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import score_batches
from boltdp.workflows.train import train

THREADS = (1, 2, 3, 8)
ROWS = 20_000
SCHEMA = Schema(Classes("sick", (0, 1)), (Numeric("age", 0, 100, curve=(18, 65)), Categorical("sex", ("F", "M"))))


def table() -> pa.Table:
    rng = np.random.default_rng(3)
    age = rng.uniform(-10, 110, ROWS)
    sick = (age > 60) ^ (rng.random(ROWS) < 0.1)
    return pa.table({"age": age, "sex": rng.choice(["F", "M", "?"], ROWS), "sick": sick})


@pytest.fixture(params=["memory", "file", "csv"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Many parts of few rows, so that threads have something to overtake each other with."""
    monkeypatch.setattr(spools, "GATHER_BYTES", 1 << 16)
    monkeypatch.setattr(spools, "WINDOW_BYTES", 1 << 14)
    monkeypatch.setattr(spools, "SINGLE_THREAD_WORK", 0)
    monkeypatch.setattr("boltdp.schema.source_columns.MAX_BATCH_ROWS", 700)
    if request.param == "csv":
        table().to_pandas().to_csv(tmp_path / "rows.csv", index=False)
        source = open_source(tmp_path / "rows.csv", spool=tmp_path)
    else:
        source = open_source(table()).slice(0, ROWS)  # a slice is spooled as the rows of files are
    with source as opened:
        opened.spool = tmp_path
        opened.memory_bytes = 64 << 20 if request.param == "memory" else 1 << 14
        yield opened


@pytest.mark.parametrize("permuted", [True, False])
def test_prepared_rows_have_the_same_bits_for_any_number_of_threads(engine: Engine, permuted: bool) -> None:
    found = set()
    for threads in THREADS:
        with engine.prepare(SCHEMA, Context(seed=5, threads=threads), permuted=permuted) as prepared:
            found.add(np.concatenate([*prepared.read_blocks()]).tobytes())
            if permuted:
                prepared.reshuffle(6)
                found_again = np.concatenate([*prepared.read_blocks()]).tobytes()
                assert found_again not in found
    assert len(found) == 1


@pytest.mark.parametrize("permuted", [True, False])
def test_sums_have_the_same_bits_for_any_number_of_threads_and_any_order(engine: Engine, permuted: bool) -> None:
    found = set()
    for threads in THREADS:
        with engine.prepare(SCHEMA, Context(seed=threads, threads=threads), permuted=permuted) as prepared:
            weights = np.linspace(-1, 1, prepared.dims).reshape(1, -1)
            sums: list[Any] = [
                FeatureSums(prepared.feature_map, clip_norm=0.9),
                DerivativeSums(Logistic(), weights, feature_map=prepared.feature_map),
                DerivativeSums(Logistic(), weights, feature_map=prepared.feature_map, hessian=True),
                ErrorCounts(weights[None], classes=2, feature_map=prepared.feature_map),
            ]
            prepared.add_to_sums(sums)
            # Each adds to what is there.
            prepared.add_to_sums(sums[:1])
            values = [np.array(each.counts) if isinstance(each, ErrorCounts) else each.value for each in sums]
            found.add(b"".join(value.tobytes() for value in values))
    assert len(found) == 1


@pytest.mark.parametrize("algorithm", ["auto", "objective", "bolton"])
def test_trained_models_have_the_same_bits_for_any_number_of_threads(engine: Engine, algorithm: str) -> None:
    settings = Settings(epsilon=1.0, algorithm=algorithm, seed=1, noise_seed=2)
    models = [train(engine, SCHEMA, settings, context=settings.context(threads=threads)) for threads in THREADS]
    assert len({model.weights.tobytes() for model in models}) == 1
    assert (
        len({b"".join(m.tobytes() for m in score_batches(model, engine, Context(threads=3))) for model in models}) == 1
    )


def test_encoded_rows_come_in_order_from_any_number_of_threads(engine: Engine) -> None:
    blocks = [[block.tobytes() for block in encode_rows(engine, SCHEMA, context=Context(threads=n))] for n in THREADS]
    assert len(blocks[0]) > 20
    assert all(some == blocks[0] for some in blocks)


def test_rows_in_a_file_are_drawn_alike_by_any_number_of_threads(tmp_path: Path) -> None:
    rows = np.arange(3000, dtype=np.float32).reshape(1000, 3)
    positions = np.random.default_rng(1).integers(-1, 1000, 700)
    found = set()
    for threads in THREADS:
        context = Context(seed=1, threads=threads)
        with store_rows([rows], rows=1000, width=3, context=context, directory=tmp_path, memory_bytes=1200) as prepared:
            assert isinstance(prepared._store, FileStore)
            found.add(b"".join(block.tobytes() for block, _ in prepared._store.read_at_positions([positions])))
    assert len(found) == 1


def test_a_bad_row_in_any_part_is_told_and_nothing_is_left(engine: Engine, tmp_path: Path) -> None:
    before = threading.active_count()
    for threads in THREADS:
        with pytest.raises(DataError, match=r"^column 'sex' must be complete, got a missing value or [a-z ]+$"):
            engine.prepare(SCHEMA, Context(threads=threads, on_bad_row="error"))
    assert threading.active_count() <= before + 1  # the one in which DuckDB reads
    assert [path.name for path in tmp_path.iterdir()] in ([], ["rows.csv"])


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("permuted", [True, False])
def test_a_stop_ends_the_threads_that_encode(
    engine: Engine, threads: int, permuted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    encode, calls, before = Encoder.encode, [0], threading.active_count()

    def encode_and_ask(self: Encoder, batch: pa.RecordBatch, out: PackedRows | None = None) -> PackedRows:
        calls[0] += 1
        if calls[0] == 5:
            _interrupts.request_stop()
        return encode(self, batch, out)

    monkeypatch.setattr(Encoder, "encode", encode_and_ask)
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.prepare(SCHEMA, Context(threads=threads), permuted=permuted)
    finally:
        _interrupts.clear_request()
    assert 5 <= calls[0] <= 5 + 2 * threads * 3
    assert threading.active_count() <= before + 1
    assert [path.name for path in tmp_path.iterdir()] in ([], ["rows.csv"])
    # The engine can still be used.
    monkeypatch.setattr(Encoder, "encode", encode)
    with engine.prepare(SCHEMA, Context(threads=threads), permuted=permuted) as prepared:
        assert prepared.rows == ROWS


@pytest.mark.parametrize("threads", THREADS)
def test_a_stop_ends_the_threads_that_sum(engine: Engine, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = FeatureSums.add, [0]

    def add_and_ask(self: FeatureSums, rows: PackedRows) -> None:
        calls[0] += 1
        if calls[0] == 5:
            _interrupts.request_stop()
        add(self, rows)

    with engine.prepare(SCHEMA, Context(threads=threads), permuted=False) as prepared:
        monkeypatch.setattr(FeatureSums, "add", add_and_ask)
        assert isinstance(prepared, LocalRows)
        monkeypatch.setattr("boltdp.engines.local_store.BUCKET_BYTES", 1 << 14)
        try:
            with pytest.raises(KeyboardInterrupt):
                prepared.add_to_sums([FeatureSums(prepared.feature_map, clip_norm=1.0)])
        finally:
            _interrupts.clear_request()
    assert 5 <= calls[0] <= 5 + 3 * threads


def test_few_rows_are_summed_by_the_thread_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("another thread was asked")

    with open_source(table()).prepare(SCHEMA, Context(threads=4), permuted=False) as prepared:
        monkeypatch.setattr("boltdp.engines.local_store.map_in_order", none)
        prepared.add_to_sums([FeatureSums(prepared.feature_map, clip_norm=1.0)])


@pytest.mark.parametrize(
    "sums",
    [
        [DerivativeSums(Multinomial(2000), np.zeros((2000, 3)))],
        [DerivativeSums(Logistic(), np.zeros((1, 3))) for _ in range(2000)],
        [DerivativeSums(Multinomial(700), np.zeros((700, 3)), hessian=True)],
        [ErrorCounts(np.zeros((1, 2000, 3)), classes=2000)],
        [NumberErrors(Robust(), np.zeros((2000, 3)))],
    ],
)
def test_few_rows_of_much_work_are_summed_by_several_threads(
    sums: Sequence[Summation], monkeypatch: pytest.MonkeyPatch
) -> None:
    add, used = Summation.add, []

    def add_and_record(self: Summation, rows: PackedRows, *, build: str | None = None) -> None:
        used.append(threading.current_thread())
        add(self, rows, build=build)

    monkeypatch.setattr(Summation, "add", add_and_record)
    rows = np.zeros((1000, 4), np.float32)
    with store_rows([rows], rows=1000, width=4, context=Context(threads=3), permuted=False) as prepared:
        prepared.add_to_sums(sums)
    assert used
    assert threading.current_thread() not in used


# ---- the pipeline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
def test_few_items_are_taken_before_the_first_result_is(threads: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = map_in_order(lambda number: number * number, items(), threads=threads)
    assert next(results) == 0
    assert len(taken) <= threads + 2
    assert list(results) == [number * number for number in range(1, 100)]


@pytest.mark.parametrize("threads", THREADS)
def test_what_is_raised_comes_in_its_turn_and_nothing_new_begins(threads: int) -> None:
    begun = []

    def work(number: int) -> int:
        begun.append(number)
        return 10 // (number - 7)

    results = map_in_order(work, range(1000), threads=threads)
    assert [next(results) for _ in range(7)] == [10 // (number - 7) for number in range(7)]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert max(begun) <= 7 + threads + 2
    assert list(results) == []


@pytest.mark.parametrize("threads", THREADS)
def test_a_source_that_fails_ends_the_work(threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise DataError("no more")

    before = threading.active_count()
    with pytest.raises(DataError, match="no more"):
        list(map_in_order(abs, items(), threads=threads))
    assert threading.active_count() == before


def test_results_that_nobody_takes_are_given_up() -> None:
    before = threading.active_count()
    results = map_in_order(abs, range(100), threads=3)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_no_threads_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"^threads must be >= 1, got 0$"):
        Context(threads=0)
