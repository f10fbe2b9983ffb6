"""What a run has with it from beginning to end: one object, made once, in the place of four arguments everywhere."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

from boltdp import _interrupts
from boltdp._threads import processors
from boltdp.encoding.values import OnBadRow
from boltdp.errors import ParameterError
from boltdp.privacy.release import Randomness

__all__ = ["Context", "OnBadRow", "Progress"]


class Progress(Protocol):
    """Told how far a run is: rows and passes only, never anything computed from the rows.

    It is told one thing at a time, but not always by the same thread.
    """

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` rows of `stage`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where random bits come from, how rows are shuffled, what becomes of bad ones, and whom to tell of progress.

    >>> context = Context(progress=print).at("preparing", 100)
    >>> context.done(40)
    preparing 40 100
    """

    randomness: Randomness = field(default_factory=Randomness)
    seed: int = field(default_factory=lambda: secrets.randbits(63))  #: of the shuffle, which is public
    on_bad_row: OnBadRow = "neutral"  #: "error" is for data that is not private
    threads: int = field(default_factory=processors)  #: that work on rows; how many they are changes no bit
    progress: Progress | None = None
    stage: str = ""
    total: int = 0  #: rows of this stage

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ParameterError(f"threads must be >= 1, got {self.threads}")

    def at(self, stage: str, total: int) -> Context:
        """The same run at a stage of so many rows."""
        return replace(self, stage=stage, total=total)

    def done(self, rows: int) -> None:
        """Tell how many rows of this stage are done, and go no further if the process was asked to stop."""
        _interrupts.check()
        if self.progress is not None and self.stage:
            self.progress(self.stage, rows, self.total)

    def silent(self) -> Context:
        """The same run without a word, where how far it is would tell something."""
        return replace(self, progress=None)

    def named(self, prefix: str) -> Context:
        """The same run, telling which of several parts it is about."""
        whole = self.progress
        return self if whole is None else replace(self, progress=lambda stage, *rows: whole(prefix + stage, *rows))
