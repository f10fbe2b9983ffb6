"""Files are replaced whole or not at all, and what a killed process left beside them goes with the next write."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import boltdp
from boltdp._files.outputs import OUTPUT_PREFIX, check_writable, replace_file

#: Writes half a file and waits for its end.
WRITES = """
import sys, time
from boltdp._files.outputs import replace_file
with replace_file(sys.argv[1]) as aside:
    aside.write_text("half of ")
    print("begun", flush=True)
    time.sleep(600)
"""


def writer(path: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(boltdp.__file__).parents[1])}
    process = subprocess.Popen([sys.executable, "-c", WRITES, path], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".boltdp-")]


def test_what_a_killed_process_left_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("before")
    with writer(path) as living:
        (kept,) = hidden(tmp_path)
        with writer(path) as killed:
            assert len(hidden(tmp_path)) == 2
            killed.send_signal(signal.SIGKILL)
        assert len(hidden(tmp_path)) == 2
        check_writable(path)
        assert hidden(tmp_path) == [kept]
        assert (tmp_path / kept / "model.json").read_text() == "half of "
        living.send_signal(signal.SIGKILL)
    with replace_file(tmp_path / "other.json") as aside:
        aside.write_text("other")
    assert sorted(os.listdir(tmp_path)) == ["model.json", "other.json"]
    assert path.read_text() == "before"


def test_directories_of_others_stay(tmp_path: Path) -> None:
    others = [".boltdp-notes", "boltdp-output-mine", f"{OUTPUT_PREFIX}link"]
    for name in others[:2]:
        (tmp_path / name).mkdir()
    (tmp_path / others[2]).symlink_to(tmp_path / others[0])
    check_writable(tmp_path / "model.json")
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_where_there_are_no_locks_files_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    left = tmp_path / f"{OUTPUT_PREFIX}left"
    left.mkdir()
    with replace_file(tmp_path / "model.json") as aside:
        aside.write_text("whole")
    assert sorted(os.listdir(tmp_path)) == [left.name, "model.json"]
