"""What a ledger costs a training: reserving before it and noting the release after it, with fifty entries before."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.plans import plan_certificate

from bench.ratio import Ratio
from boltdp.engines.postgres.local_server import run_private_server
from boltdp.ledger import Account, Ledger, open_ledger
from boltdp.privacy.budget import Budget
from boltdp.settings import Settings

#: Charges in the ledger before the first that is measured, and measured ones.
BEFORE, REPEATS = 50, 21
#: Milliseconds that a training may take longer.
TARGET = 20.0


def run() -> list[Ratio]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        synced = _median(lambda: _sync(Path(folder) / "file"))
        print(f"  one sync of this disk takes {synced:.1f} ms; SQLite makes four to commit")
        ratios = [_measured("SQLite", open_ledger(Path(folder) / "ledger.db"))]
    with run_private_server(extension=False, settings={"fsync": "on"}) as server:
        ratios.append(_measured("PostgreSQL", open_ledger(server.uri)))
    return ratios


def _measured(name: str, ledger: Ledger) -> Ratio:
    certificate = plan_certificate(Settings(epsilon=0.01, delta=1e-9), rows=10_000, dims=50, classes=2)
    ledger.set_budget("rows", Budget(10.0, 1e-6))

    def charge() -> None:
        with Account(ledger, "rows").reserve(certificate, drawn=lambda: True) as reservation:
            reservation.commit("sha256:" + "0" * 64)

    for _ in range(BEFORE):
        charge()
    start = time.process_time()
    wall = _median(charge)
    processor = 1000.0 * (time.process_time() - start) / REPEATS
    print(f"  {name}: {wall:.1f} ms a training, {processor:.1f} ms of them this process's own")
    return Ratio(name=f"milliseconds of a ledger in {name}", value=wall, at_most=TARGET)


def _median(action: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        times.append(1000.0 * (time.perf_counter() - start))
    return statistics.median(times)


def _sync(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
