"""The kernel built with AddressSanitizer and UndefinedBehaviorSanitizer, and a Python that uses that build."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import boltdp._native

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
#: Not optimised: nothing is missed by that, and compiling takes a quarter of the time.
_FLAGS = ("-std=c99", "-O0", "-g", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", *SANITIZERS)
#: In the environment of a child: the library to use.
_BUILT = "BOLTDP_FUZZ_KERNEL"


def runtime() -> str:
    """What a process that loads such a build must have loaded before."""
    asked = [["cc", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
    return ":".join(subprocess.check_output(command, text=True).strip() for command in asked)


def use_sanitized_kernel() -> None:
    """Take the library that the parent built, if this is such a child; before the kernel is imported."""
    if _BUILT in os.environ:
        boltdp._native._PATH = Path(os.environ[_BUILT])


def run_sanitized(arguments: Sequence[str]) -> int:
    """Build the library, run `python -m fuzz` again with it, and give its exit code."""
    kernel = Path(boltdp._native.__file__).parent / "kernel"
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "kernel.so"
        subprocess.run(["cc", *_FLAGS, "-o", str(built), *map(str, sorted(kernel.glob("*.c"))), "-lm"], check=True)
        environment = {
            **os.environ,
            _BUILT: str(built),
            "LD_PRELOAD": runtime(),
            # Python itself leaves much to the end of the process.
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        command = [sys.executable, "-m", "fuzz", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode
