"""What `pip install boltdp` puts on a disk, package by package, and how long `import boltdp` takes there.

The wheel is the one that BOLTDP_WHEEL names, or else is built first.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.ratio import Ratio
from bench.turns import processor_seconds

ROOT = Path(__file__).parents[1]
MEGABYTES, SECONDS = 400, 0.1
REPEATS = 10

#: Printed by the environment itself: the bytes of the files of each package, with what Python compiled of them.
_SIZES = """\
import json
from importlib.metadata import distributions
print(json.dumps({
    one.name: sum(file.locate().stat().st_size for file in one.files or () if file.locate().is_file())
    for one in distributions() if one.name not in ("pip", "setuptools")
}))
"""


def run() -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(os.environ.get("BOLTDP_WHEEL") or _built(folder)).resolve()
        plain, taken = _installed(Path(folder, "plain"), str(wheel))
        estimators, _ = _installed(Path(folder, "sklearn"), f"{wheel}[sklearn]")
        print(f"  the wheel itself: {wheel.stat().st_size / 1e6:.1f} MB to download")
    table = Table("package", "MB")
    for name, size in sorted(plain.items(), key=lambda each: -each[1]):
        table.add_row(name, f"{size / 1e6:.1f}")
    Console().print(table)
    total = sum(plain.values()) / 1e6
    print(f"  boltdp: {len(plain)} packages, {total:.0f} MB; `import boltdp`: {taken:.3f} s on the processor")
    print(f"  boltdp[sklearn]: {len(estimators)} packages, {sum(estimators.values()) / 1e6:.0f} MB")
    return [
        Ratio(name=f"megabytes of `pip install boltdp` over {MEGABYTES}", value=total / MEGABYTES, at_most=1.0),
        Ratio(name=f"processor seconds of `import boltdp` over {SECONDS}", value=taken / SECONDS, at_most=1.0),
    ]


def _built(folder: str) -> Path:
    subprocess.run(["tools/wheel", folder], cwd=ROOT, env=os.environ | {"PYTHON": sys.executable}, check=True)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def _installed(environment: Path, requirement: str) -> tuple[dict[str, int], float]:
    """The bytes of each package after installing it in an empty environment, and the seconds of an import there."""
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement], check=True)
    sizes: dict[str, int] = json.loads(subprocess.check_output([python, "-c", _SIZES], cwd=environment))
    taken = [processor_seconds([python, "-c", "import boltdp"], folder=environment) for _ in range(1 + REPEATS)][1:]
    return sizes, statistics.median(taken)
