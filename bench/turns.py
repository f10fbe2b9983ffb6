"""Several pieces of work that are timed in turns, since what disturbs one then disturbs the others; and commands."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

REPEATS = 3


def take_turns(name: str, works: dict[str, Callable[[], object]], *, repeats: int = REPEATS) -> dict[str, float]:
    """The least seconds of each, by the clock on the wall; those of the processors are printed beside them."""
    wall: dict[str, list[float]] = {key: [] for key in works}
    processor: dict[str, list[float]] = {key: [] for key in works}
    for _ in range(repeats):
        for key, work in works.items():
            start, busy = time.perf_counter(), time.process_time()
            work()
            wall[key].append(time.perf_counter() - start)
            processor[key].append(time.process_time() - busy)
    timings = (f"{key} {min(wall[key]):.2f} s ({min(processor[key]):.2f} of processors)" for key in works)
    print(f"  {name}: {', '.join(timings)}")
    return {key: min(times) for key, times in wall.items()}


def processor_seconds(command: Sequence[str], *, folder: Path, **environment: str) -> float:
    """Of one process, from its start to its end, with all of its threads. What it compiles is kept for the next."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
