"""What is published: one wheel for every Python, and an sdist that it is built from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What the sdist is made of.
NEEDED = ("LICENSE", "MANIFEST.in", "README.md", "postgres", "pyproject.toml", "setup.py", "src", "tools")

SCHEMA = """\
label = "sick"
classes = ["no", "yes"]

[numeric]
age = [0, 100]

[categorical]
ward = ["A", "B"]
"""
ROWS = "age,ward,sick\n" + "".join(
    f"{i % 100},{'AB'[i % 3 % 2]},{'no' if i % 100 < 50 else 'yes'}\n" for i in range(5000)
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build a wheel with")


def run(command: Sequence[object], *, folder: Path, **environment: str) -> str:
    """What a command prints, which must not fail."""
    made = subprocess.run(
        list(map(str, command)), cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def build(folder: Path, **environment: str) -> tuple[Path, Path]:
    """A wheel and an sdist, built in a copy, so that nothing else of the checkout is used or changed."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in NEEDED:
        source, ignored = ROOT / name, shutil.ignore_patterns("*.so", "*.o", "*.egg-info", "__pycache__")
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, copy / name)
    run(["tools/wheel", folder / "dist"], folder=copy, PYTHON=sys.executable, **environment)
    (wheel,), (sdist,) = folder.glob("dist/*.whl"), folder.glob("dist/*.tar.gz")
    return wheel, sdist


def files_of_the_package() -> set[str]:
    return {
        f"boltdp/{Path(folder, name).relative_to(ROOT / 'src/boltdp')}"
        for folder, _, names in os.walk(ROOT / "src/boltdp", followlinks=True)
        for name in names
        if not name.endswith((".so", ".o", ".pyc"))
    }


def test_one_wheel_serves_every_python_and_has_every_file_of_the_package(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')  # names and contents are the same, and it is built in seconds
    compiler.chmod(0o755)
    wheel, sdist = build(tmp_path, CC=str(compiler))

    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("boltdp", "0.2.0", "py3", "none")
    assert platform.startswith("manylinux")
    with zipfile.ZipFile(wheel) as archive:
        inside = {one for one in archive.namelist() if one.startswith("boltdp/") and not one.endswith("/")}
    assert inside == files_of_the_package() | {"boltdp/kernel/_kernel.so"}

    with tarfile.open(sdist) as packed:
        sources = {one.partition("/")[2] for one in packed.getnames()}
    assert {f"src/{one}" for one in files_of_the_package()} <= sources
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md"} <= sources
    assert not {one for one in sources if one.endswith(".so") or one.startswith("tests")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that BOLTDP_WHEEL names, or else a new one."""
    given = os.environ.get("BOLTDP_WHEEL")
    if given is not None:
        return Path(given).resolve(strict=True)
    return build(tmp_path_factory.mktemp("wheel"))[0]


def interpreter(version: str) -> str:
    """The Python of a version that is on the PATH, where pyenv has a name for each and wants to be told which."""
    try:
        command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
        return run(command, folder=ROOT, PYENV_VERSION=version).strip()
    except (FileNotFoundError, AssertionError):
        pytest.skip(f"there is no python{version} on the PATH")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_wheel_works_in_an_empty_environment_without_a_compiler(wheel: Path, tmp_path: Path, version: str) -> None:
    environment = tmp_path / "environment"
    run([interpreter(version), "-m", "venv", environment], folder=tmp_path)
    scripts = environment / "bin"
    assert shutil.which("cc", path=str(scripts)) is None
    python, boltdp, alone = scripts / "python", scripts / "boltdp", {"PATH": str(scripts)}
    run([python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel], folder=tmp_path, **alone)

    def ask(*command: object) -> str:
        return run(command, folder=tmp_path, **alone)

    assert ask(boltdp, "--version") == ask(python, "-m", "boltdp", "--version") == "boltdp 0.2.0\n"
    tmp_path.joinpath("schema.toml").write_text(SCHEMA)
    tmp_path.joinpath("rows.csv").write_text(ROWS)
    ask(boltdp, "train", "rows.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "model.json")
    assert "epsilon = 1" in ask(boltdp, "verify", "model.json")
    ask(boltdp, "predict", "model.json", "rows.csv", "-o", "predictions.csv")
    assert len(tmp_path.joinpath("predictions.csv").read_text().splitlines()) == 5001
    assert "boltdp.control" in os.listdir(
        next(environment.glob("lib/*/site-packages/boltdp/engines/postgres/extension"))
    )
