"""Runs the tests and the audit of a mutant, in processes of their own, on a copy of the source that has the fault."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from mutants.mutant import PACKAGE, REFUTED, ROOT, Mutant

#: Where the objects of the kernel and the results are kept between runs.
KEPT = ROOT / "build" / "mutants"
#: Not optimised, to be compiled sooner; the results are the same bits.
FLAGS = ("-std=c99", "-O0", "-ffp-contract=off", "-fno-math-errno", "-fPIC")
#: The time limits of the tests and of the audit of one mutant.
TEST_SECONDS, AUDIT_SECONDS = 240, 120
#: Exit codes of pytest.
PASSED, FAILED = 0, 1

#: Starts processes that have imported what takes most of the time, and nothing of the package.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["duckdb", "flint", "numpy", "pyarrow.compute", "pytest", "scipy.stats"])


class MutantError(Exception):
    """A mutant was neither caught nor missed: its source does not compile, its tests do not exist, it runs forever."""


@dataclass(frozen=True)
class Result:
    """What caught a mutant; an empty text where nothing did."""

    caught_by_test: str  #: the first test that failed
    caught_by_audit: str  #: the first finding that refutes the claim


def run_mutant(mutant: Mutant) -> Result:
    """Plant a fault into a copy of the source, and run its tests and its audit."""
    with TemporaryDirectory(prefix="boltdp-mutant-") as folder:
        source = copy_source(Path(folder))
        planted = source / "boltdp" / mutant.file
        planted.write_text(mutant.plant(PACKAGE), "utf-8")
        for compiled in planted.parent.glob(f"__pycache__/{planted.stem}.*"):
            compiled.unlink()  # of the file without the fault
        if mutant.is_in_c:
            build_kernel(source / "boltdp" / "kernel")
        test = run_tests(source, mutant.tests)
        return Result(test, "" if mutant.audit is None else run_audit(source, mutant.audit))


def copy_source(folder: Path) -> Path:
    """Copy the package, with its built kernel, and return the folder that must be first on the path."""
    source = folder / "src"
    shutil.copytree(PACKAGE, source / "boltdp")
    return source


def build_kernel(kernel: Path) -> None:
    """Build the library of a kernel; objects whose sources were built before are taken from there."""
    headers = b"".join(path.read_bytes() for path in sorted(kernel.glob("*.h")))
    objects = []
    for path in sorted(kernel.glob("*.c")):
        digest = hashlib.sha256("".join(FLAGS).encode() + headers + path.read_bytes()).hexdigest()
        built = KEPT / "objects" / f"{path.stem}-{digest[:16]}.o"
        if not built.exists():
            built.parent.mkdir(parents=True, exist_ok=True)
            partial = built.with_suffix(f".{os.getpid()}")
            _call(["cc", *FLAGS, "-c", "-o", str(partial), str(path)])
            partial.rename(built)
        objects.append(str(built))
    library = kernel / "_kernel.so"
    library.unlink()
    _call(["cc", "-shared", "-o", str(library), *objects, "-lm"])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MutantError(f"{' '.join(command)}: {done.stderr[-2000:]}")


def run_tests(source: Path, tests: Sequence[str]) -> str:
    """Run tests until one fails, with a source folder, and return its name; empty if all pass."""
    # A server would take most of the time; what it shares with other engines is tested with those too.
    chosen = ("-m", "not slow", "-k", "not postgres and not spark")
    options = ("-x", "-q", *chosen, "-p", "no:cacheprovider", "--tb=no", "-rf")
    code, output = _run(source, ["pytest", *options, *(f"tests/{test}" for test in tests)], TEST_SECONDS)
    if code == PASSED:
        return ""
    failed = re.search(r"^FAILED tests/(.+?)(?: - .*)?$", output, re.MULTILINE)
    if code != FAILED or failed is None:
        raise MutantError(f"pytest ended with {code}: {output[-2000:]}")
    return failed[1]


def run_audit(source: Path, case: str) -> str:
    """Audit a training with a source folder, and return what refutes its claim first; empty if nothing does."""
    code, output = _run(source, ["mutants.audits", case], AUDIT_SECONDS)
    if code not in (0, REFUTED):
        raise MutantError(f"the audit {case!r} ended with {code}: {output[-2000:]}")
    return output.strip().split("\n")[0] if code else ""


def _run(source: Path, module: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run a module in a process that finds the package in `source`; return its exit code and its output."""
    with TemporaryDirectory(prefix="boltdp-mutant-") as folder:
        output = Path(folder) / "output"
        output.touch()
        process = _SERVER.Process(target=_run_module, args=(source, module, output))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise MutantError(f"the time limit of {seconds:g} s was reached")
        return process.exitcode, output.read_text("utf-8", "replace")


def _run_module(source: Path, module: Sequence[str], output: Path) -> None:
    """Run a module as `python -m` does, with its output in a file; it must be the first to import the package."""
    assert not any(name.partition(".")[0] == "boltdp" for name in sys.modules)
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), str(ROOT)])
    sys.path[:0] = [str(source), str(ROOT)]
    sys.argv = [module[0], *module[1:]]
    runpy.run_module(module[0], run_name="__main__", alter_sys=True)
