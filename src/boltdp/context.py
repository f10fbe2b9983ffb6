"""What a run carries from beginning to end: randomness, the seed of the shuffle, threads and progress."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

from boltdp import _interrupts
from boltdp._threads import processors
from boltdp.encoding.declared_values import OnBadRow
from boltdp.errors import ParameterError
from boltdp.privacy.release import Randomness

__all__ = ["Context", "OnBadRow", "Progress"]


class Progress(Protocol):
    """Receives how many of the `total` rows of a stage are done: never anything computed from the rows.

    Calls never overlap, but not all of them come from the same thread.
    """

    def __call__(self, stage: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where random bits come from, how rows are shuffled, what becomes of bad ones, and who receives progress.

    >>> context = Context(progress=print).start_stage("preparing", 100)
    >>> context.report_rows(40)
    preparing 40 100
    """

    randomness: Randomness = field(default_factory=Randomness)
    seed: int = field(default_factory=lambda: secrets.randbits(63))  #: of the shuffle, which is public
    on_bad_row: OnBadRow = "neutral"  #: "error" is for data that is not private
    threads: int = field(default_factory=processors)  #: that work on rows; their number changes no bit
    progress: Progress | None = None
    stage: str = ""
    total: int = 0  #: rows of this stage

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ParameterError(f"threads must be >= 1, got {self.threads}")

    def start_stage(self, stage: str, total: int) -> Context:
        """Return the context of a stage of `total` rows."""
        return replace(self, stage=stage, total=total)

    def report_rows(self, done: int) -> None:
        """Report how many rows of this stage are done; raise KeyboardInterrupt if the process was asked to stop."""
        _interrupts.check()
        if self.progress is not None and self.stage:
            self.progress(self.stage, done, self.total)

    def mute(self) -> Context:
        """Return a context without progress, where progress would reveal something."""
        return replace(self, progress=None)

    def prefix_stages(self, prefix: str) -> Context:
        """Return a context that names every stage with a prefix, such as that of a candidate."""
        whole = self.progress
        return self if whole is None else replace(self, progress=lambda stage, *rows: whole(prefix + stage, *rows))
