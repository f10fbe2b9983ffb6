"""How long commands take that read no rows: processor seconds of a whole process, over what feels instant."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np

import boltdp
from bench.ratio import Ratio
from bench.turns import processor_seconds
from boltdp.engines import open_source
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.train import train

SECONDS = 0.35
REPEATS = 10

COMMANDS = (
    "--help",
    "--version",
    "verify model.json",
    "verify many.json",
    "show model.json",
    "sql model.json",
    "plan --rows 100000 --features 21",
    "train --help",
)


def run() -> list[Ratio]:
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        _train(Path(folder, "model.json"), classes=2, delta=0.0)
        _train(Path(folder, "many.json"), classes=3, delta=1e-6)
        for command in COMMANDS:
            # The first run compiles what the others import, as an installation does.
            taken = [_seconds(command, folder) for _ in range(1 + REPEATS)][1:]
            middle = statistics.median(taken)
            print(f"  boltdp {command}: {middle:.3f} s on the processor, {min(taken):.3f} to {max(taken):.3f}")
            name = f"processor seconds of `boltdp {command}` over {SECONDS}"
            ratios.append(Ratio(name=name, value=middle / SECONDS, at_most=1.0))
    return ratios


def _train(path: Path, *, classes: int, delta: float) -> None:
    random = np.random.default_rng(1)
    features, labels = random.uniform(-1, 1, (10_000, 20)), random.integers(0, classes, 10_000)
    schema = make_array_schema(dims=20, classes=range(classes))
    train(open_source((features, labels)), schema, Settings(epsilon=1.0, delta=delta)).save(path)


def _seconds(command: str, folder: str) -> float:
    return processor_seconds(
        [sys.executable, "-m", "boltdp", *command.split()],
        folder=Path(folder),
        PYTHONPATH=str(Path(boltdp.__file__).parents[1]),
        PYTHONPYCACHEPREFIX=folder,
    )
