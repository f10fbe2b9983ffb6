"""What needs a package that only an extra brings says so, with the command that installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from boltdp.errors import EXTRAS

from .conftest import Run

URI = "postgresql://localhost/hospital"


def test_every_extra_brings_the_package_that_is_missed() -> None:
    declared = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))["project"]
    for extra, (_, name) in EXTRAS.items():
        (requirement,) = declared["optional-dependencies"][extra]
        assert requirement.lower().startswith(name.lower())
        assert not [one for one in declared["dependencies"] if one.lower().startswith(name.lower())]


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("postgres", ("train", URI, "--table", "patients", "--schema", "schema.toml", "--epsilon", 1, "-o", "m.json")),
        ("postgres", ("postgres", "check", URI)),
        ("postgres", ("postgres", "install")),
        ("postgres", ("postgres", "store", "model.json", URI)),
        ("postgres", ("postgres", "demo")),
        ("spark", ("train", "local[2]", "--table", "t", "--schema", "schema.toml", "--epsilon", 1, "-o", "m.json")),
        ("plot", ("show", "model.json", "--picture", "model.png")),
        ("sign", ("sign", "model.json", "--key", "key.pem")),
    ],
)
def test_a_command_without_its_package_names_the_extra(
    run: Run, rows: Path, monkeypatch: pytest.MonkeyPatch, extra: str, command: tuple[object, ...]
) -> None:
    made = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert made.exit_code == 0, made.output
    module, name = EXTRAS[extra]
    monkeypatch.setitem(sys.modules, module, None)
    result = run(*command)
    assert result.exit_code == 1, result.output
    first, second = result.stderr.strip().splitlines()[-2:]
    assert first.startswith("error: ")
    assert first.endswith(f"needs {name}, which is not installed")
    assert second == f"hint: pip install 'boltdp[{extra}]'"


@pytest.mark.parametrize(
    "program",
    [
        "from boltdp import PrivateLogisticRegression",
        "import boltdp; boltdp.PrivateGridSearch",
        "import boltdp; boltdp.Model.load('model.json').to_sklearn()",
    ],
)
def test_estimators_without_scikit_learn_name_the_extra_and_the_rest_works(run: Run, rows: Path, program: str) -> None:
    made = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert made.exit_code == 0, made.output
    program = f"""\
import sys
sys.modules["sklearn"] = None
try:
    {program}
except ImportError as fault:
    print(fault, fault.hint, sep="\\n")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    first, second = said.splitlines()
    assert first.endswith("needs scikit-learn, which is not installed")
    assert second == "pip install 'boltdp[sklearn]'"
