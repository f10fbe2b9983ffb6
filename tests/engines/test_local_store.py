"""The spool: nothing of it is ever left behind, only its owner can read it, and it says when it does not fit."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import PackedRows
from boltdp.engines.local_store import FileStore, LocalRows, fetch_rows, find_spool_directory, store_rows
from boltdp.engines.prepared_rows import offset_positions
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import sgd
from boltdp.losses import Logistic
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from tests.engines.sources import in_order


def packed(rows: int, width: int = 3) -> PackedRows:
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width)


def spool_file(directory: Path, rows: int = 1000) -> LocalRows:
    return store_rows(
        [packed(rows)], rows=rows, width=3, context=Context(seed=1), directory=directory, memory_bytes=1200
    )


def cut(rows: PackedRows, sizes: list[int]) -> Iterator[PackedRows]:
    start = 0
    for size in sizes:
        yield rows[start : start + size]
        start += size
    yield rows[start:]


@given(
    rows=st.integers(1, 400),
    width=st.integers(1, 5),
    memory_bytes=st.integers(1, 3000),
    sizes=st.lists(st.integers(0, 100), max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_order_depends_on_the_seed_alone(rows: int, width: int, memory_bytes: int, sizes: list[int], seed: int) -> None:
    """Not on how the rows are cut, nor on the size of the buckets."""
    given_rows = packed(rows, width)
    blocks = cut(given_rows, sizes)
    with store_rows(blocks, rows=rows, width=width, context=Context(seed=seed), memory_bytes=memory_bytes) as prepared:
        content = np.concatenate(list(prepared.read_blocks()))
    np.testing.assert_array_equal(content, in_order(given_rows, seed))


@given(
    rows=st.integers(1, 200),
    memory_bytes=st.integers(1, 3000),
    positions=st.lists(st.integers(-1, 199), max_size=300),
    sizes=st.lists(st.integers(0, 100), max_size=5),
)
def test_drawn_rows_depend_on_the_positions_alone(
    rows: int, memory_bytes: int, positions: list[int], sizes: list[int]
) -> None:
    """Not on how they are cut, nor on the size of the buckets; `BATCH_END` stays."""
    asked = np.array([position % rows if position >= 0 else -1 for position in positions], np.int64)
    parts = np.split(asked, np.cumsum(sizes)) if sizes else [asked]
    with store_rows([packed(rows)], rows=rows, width=3, context=Context(seed=5), memory_bytes=memory_bytes) as prepared:
        store = prepared._store
        cut_anew = offset_positions(parts, start=0, stop=rows, size=store.max_draws)
        given_rows = []
        for block, drawn in store.read_at_positions(cut_anew):
            given_rows += [block[position].tolist() if position >= 0 else None for position in drawn]
    permuted = in_order(packed(rows), 5).tolist()
    assert given_rows == [permuted[position] if position >= 0 else None for position in asked]


def test_rows_drawn_many_times_come_in_short_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boltdp.engines.local_store.WINDOW_BYTES", 120)
    positions = np.array([7] * 50 + [8, 999, -1] * 20)
    with spool_file(tmp_path) as prepared:
        assert isinstance(prepared._store, FileStore)
        blocks = list(prepared._store._read_at_sorted_positions(np.sort(positions)))
        assert max(len(block) for block in blocks) == 10
        permuted = in_order(packed(1000), 1)
        expected = np.vstack([[permuted[7]] * 50, [permuted[8]] * 20, [permuted[999]] * 20])
        np.testing.assert_array_equal(np.concatenate(blocks)[20:], expected)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files by way of /proc")
def test_drawing_leaves_no_second_file(tmp_path: Path) -> None:
    recipe = Recipe(loss=Logistic(), dims=2, rows=10, batch_size=1, passes=1, schedule=make_constant_schedule(0.1))
    with spool_file(tmp_path) as prepared:
        prepared.run_sampled_batches([sgd.State(recipe)], [np.arange(10)])
        assert len(open_spools(tmp_path)) == 1
        with pytest.raises(ParameterError, match="rows"):
            prepared.run_sampled_batches([sgd.State(recipe)], [np.arange(11)])
        assert len(open_spools(tmp_path)) == 1


@pytest.mark.parametrize(("worked", "least"), [(0.0, 0.25), (0.3, 0.5)])
def test_fetched_rows_are_open_for_a_power_of_two_of_seconds(tmp_path: Path, worked: float, least: float) -> None:
    with spool_file(tmp_path) as prepared:
        start = time.monotonic()
        with fetch_rows(prepared, Context(seed=2)) as fetched:
            content = np.concatenate(list(fetched.read_blocks()))
            time.sleep(worked)
        assert time.monotonic() - start >= least
        np.testing.assert_array_equal(content, np.concatenate(list(prepared.read_blocks())))


@pytest.mark.parametrize("rows", [999, 1001])
@pytest.mark.parametrize("in_memory", [False, True])
def test_data_that_changes_while_it_is_read_is_refused(tmp_path: Path, rows: int, in_memory: bool) -> None:
    with pytest.raises(DataError, match=r"^the data must keep its 1000 rows while it is read, and it has changed$"):
        store_rows(
            [packed(rows)],
            rows=1000,
            width=3,
            context=Context(seed=1),
            directory=tmp_path,
            memory_bytes=1200,
            in_memory=in_memory,
        )
    assert list(tmp_path.iterdir()) == []


def open_spools(directory: Path) -> list[int]:
    """Descriptors of this process that are open on a nameless file of the directory."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if target.startswith(str(directory)):
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files by way of /proc")
def test_file_is_private_nameless_and_gone_when_closed(tmp_path: Path) -> None:
    with spool_file(tmp_path):
        (descriptor,) = open_spools(tmp_path)
        status = os.fstat(descriptor)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert status.st_nlink == 0
        assert status.st_size == 1000 * 3 * 4
        assert list(tmp_path.iterdir()) == []
    assert open_spools(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files by way of /proc")
def test_nothing_is_left_after_an_error_or_an_interrupt(tmp_path: Path) -> None:
    def interrupted() -> Iterator[PackedRows]:
        yield packed(500)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store_rows(interrupted(), rows=1000, width=3, context=Context(seed=1), directory=tmp_path, memory_bytes=1200)
    assert open_spools(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_process_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from tests.engines.test_local_store import spool_file\n"
        "prepared = spool_file(pathlib.Path(sys.argv[1]))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(how)
        process.wait()
    assert process.returncode == -how
    assert list(tmp_path.iterdir()) == []


def test_spool_that_does_not_fit_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    def rows() -> Iterator[PackedRows]:
        raise AssertionError("a row was read")
        yield

    with pytest.raises(DataError, match=r"^the spool needs 12000000\.0 GB in .* which has \d+\.\d GB$") as caught:
        store_rows(rows(), rows=10**15, width=3, context=Context(seed=1), directory=tmp_path)
    assert caught.value.hint is not None


def test_full_disk_while_writing_is_told(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(DataError, match=r"^the spool in .* cannot be used: File too large$"):
            spool_file(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^the spool in .*nowhere' cannot be used: No such file or directory$"):
        spool_file(tmp_path / "nowhere")


def test_directory_is_the_argument_else_the_setting_else_the_system_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOLTDP_SPOOL", raising=False)
    assert find_spool_directory() == Path(tempfile.gettempdir())
    monkeypatch.setenv("BOLTDP_SPOOL", "/setting")
    assert find_spool_directory() == Path("/setting")
    assert find_spool_directory("/argument") == Path("/argument")


def test_closed_rows_are_gone(tmp_path: Path) -> None:
    prepared = store_rows([packed(10)], rows=10, width=3, context=Context(seed=1), in_memory=True)
    prepared.close()
    assert sum(len(block) for block in prepared.read_blocks()) == 0
    stored = spool_file(tmp_path)
    stored.close()
    with pytest.raises(ValueError, match="closed file"):
        list(stored.read_blocks())
