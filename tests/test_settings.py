"""An option is declared once, as a field of Settings; the command line, the estimators and grids follow from it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

import boltdp
from boltdp.algorithms import ALGORITHMS
from boltdp.algorithms._sgd import BATCH_SIZE, EXPONENT, PASSES
from boltdp.algorithms.noisy_gd import CLIP, JOINT_CLIP, JOINT_SCANS, SCANS, WIDE_JOINT_CLIP
from boltdp.cli import main
from boltdp.errors import ParameterError
from boltdp.settings import OPTIONAL, OPTIONS, TUNABLE, Settings

#: Loads settings with one field more, and looks for it everywhere.
_PROGRAM = """\
import importlib.util, inspect, sys
import boltdp

spec = importlib.util.find_spec("boltdp.settings")
source = open(spec.origin, encoding="utf-8").read()
field = '''\
    patience: int | None = declare_option(
        "Passes without progress.", group="Algorithm", default_text="3", some_algorithms=True, tunable=True
    )
'''
head, found, tail = source.partition("    batch_size: int | None = ")
assert found
module = importlib.util.module_from_spec(spec)
sys.modules["boltdp.settings"] = module
exec(compile(head + field + found + tail, spec.origin, "exec"), module.__dict__)

from boltdp.estimators import PrivateHuberSVM, PrivateLogisticRegression
from boltdp.estimators.search import NAMES
from boltdp.settings import OPTIONAL, Settings
from boltdp.workflows.tune import expand_grid

for estimator in (PrivateLogisticRegression, PrivateHuberSVM):
    assert "patience" in inspect.signature(estimator).parameters
    assert estimator(patience=2)._make_settings().patience == 2
assert "patience : int or None" in PrivateLogisticRegression.__doc__
assert "patience" in NAMES and "patience" in OPTIONAL
assert [one.patience for one in expand_grid(Settings(epsilon=1.0), {"patience": [1, 2]})] == [1, 2]
try:
    Settings(epsilon=1.0, patience=0.5).check()
except ValueError as fault:
    assert str(fault) == "patience must be a whole number, got 0.5", fault

from boltdp.cli import main
from boltdp.cli.tune import _parse_grid
assert _parse_grid("patience=1,2") == ("patience", [1, 2])
main(["train", "--help-all"], prog_name="boltdp")
"""


def test_a_new_field_is_an_option_a_parameter_and_in_grids() -> None:
    path = str(Path(boltdp.__file__).parents[1])
    made = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
    assert "--patience N" in made.stdout
    assert "Passes without progress.  [default: 3]" in made.stdout


def test_every_setting_is_an_option_of_train() -> None:
    command = main.get_command(click.Context(main), "train")
    assert command is not None
    assert {one.name for one in command.params} >= OPTIONS.keys()


def test_the_defaults_that_help_names_are_those_of_the_algorithms() -> None:
    named = {
        "passes": f"{PASSES}; noisy-gd: {SCANS}, or {JOINT_SCANS} for several classes at once",
        "batch_size": f"{BATCH_SIZE}",
        "exponent": f"{EXPONENT}",
        "gradient_clip": f"{CLIP}; {JOINT_CLIP} for several classes at once, "
        f"{WIDE_JOINT_CLIP} where there is little noise",
    }
    assert {name: OPTIONS[name].default_text for name in named} == named


def test_some_algorithm_takes_each_of_the_settings_that_only_some_have() -> None:
    taken = frozenset[str]().union(*(one.takes for one in ALGORITHMS.values()))
    assert taken == set(OPTIONAL)
    assert set(TUNABLE) <= {*OPTIONAL, "regularization"}


@pytest.mark.parametrize("name", [name for name, one in OPTIONS.items() if one.kind != "other"])
def test_a_value_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match=f"^{name} must be "):
        replace(Settings(epsilon=1.0), **{name: object()}).check()  # type: ignore[arg-type]
