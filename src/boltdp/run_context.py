"""The context of a run: randomness, the seed of the shuffle, threads and progress."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from boltdp import _interrupts
from boltdp._threads import count_processors
from boltdp.encoding.declared_values import OnBadRow
from boltdp.errors import ParameterError
from boltdp.privacy.release_with_noise import Randomness

__all__ = ["Context", "OnBadRow", "Progress"]


#: Receives a stage, and how many of how many rows it has processed; nothing computed from the rows.
#: Calls never overlap, but may come from different threads.
Progress: TypeAlias = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Context:
    """The source of randomness, the seed of the shuffle, the handling of bad rows, and the receiver of progress."""

    randomness: Randomness = field(default_factory=Randomness)
    seed: int = field(default_factory=lambda: secrets.randbits(63))  #: the seed of the shuffle, which is public
    on_bad_row: OnBadRow = "neutral"  #: "error" is for non-private data only
    threads: int = field(default_factory=count_processors)  #: threads that process rows; they do not change the result
    hide_scans: bool = False  #: whether no other user of a database may see a number of scans that depends on the rows
    progress: Progress | None = None
    stage: str = ""
    total: int = 0  #: number of rows of this stage

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ParameterError(f"threads must be >= 1, got {self.threads}")

    def start_stage(self, stage: str, total: int) -> Context:
        """Return a context that reports progress of the stage of this name, such as "preparing", over `total` rows."""
        return replace(self, stage=stage, total=total)

    def report_rows(self, done: int) -> None:
        """Report how many rows of this stage are done; raise KeyboardInterrupt if the process was asked to stop."""
        _interrupts.check()
        if self.progress is not None and self.stage:
            self.progress(self.stage, done, self.total)

    def mute(self) -> Context:
        """Return a context that reports no progress, for work whose progress depends on private rows."""
        return replace(self, progress=None)

    def prefix_stages(self, prefix: str) -> Context:
        """Return a context that puts a prefix before the names of stages in progress reports."""
        report = self.progress
        return self if report is None else replace(self, progress=lambda stage, *rows: report(prefix + stage, *rows))
