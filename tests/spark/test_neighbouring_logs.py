"""What Spark logs of a training is the same whatever stands in one of the rows: sizes and counts too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.logs import differences, kinds, leaves
from tests.spark.neighbours import EVALUATION, SETTINGS

ROOT = Path(__file__).parents[2]


def logged(folder: Path, algorithm: str, source: str, instead: str, name: str) -> Path:
    """The folder of a training's log; it was elsewhere then, and always at one place, which is in what is logged."""
    now = folder / "now"
    now.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.spark.neighbours", str(now), algorithm, source, instead]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return now.rename(folder / name)


def test_a_size_that_differs_is_seen() -> None:
    """Also where it is the value of an accumulated number; but not a time."""
    event = {"Accumulables": [{"Name": "shuffle bytes", "Value": 5}, {"Name": "run time", "Value": 7}], "Time": 3}
    assert [*leaves(event, ())] == [
        (("Accumulables", "Name"), "shuffle bytes"),
        (("Accumulables", "shuffle bytes", "Value"), "5"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [*SETTINGS, EVALUATION])
def test_logs_of_neighbouring_tables_are_the_same(tmp_path: Path, algorithm: str) -> None:
    first, again, other = (
        logged(tmp_path, algorithm, "csv", instead, name)
        for instead, name in (("none", "first"), ("none", "again"), ("far", "other"))
    )
    # What differs between two runs on the same rows is not of the rows, and must be nothing, or the test sees little.
    assert not kinds(differences(first, again))
    assert not kinds(differences(first, other))
