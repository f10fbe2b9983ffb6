"""One planted fault: what is replaced where, what guarantee that breaks, and what should catch it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "boltdp"

#: The code by which the process of an audit ends if it refutes the claim; a process that fails ends with 1.
REFUTED = 3


class StaleMutantError(Exception):
    """The text of a mutant is not found exactly once, as after a change of the source."""


@dataclass(frozen=True)
class Mutant:
    """A fault that somebody could make in one place of the source."""

    name: str
    file: str  #: below src/boltdp
    text: str  #: found there exactly once
    replacement: str
    breaks: str  #: the guarantee that is lost, in a sentence
    tests: tuple[str, ...]  #: the tests that should catch it, below tests
    audit: str | None = None  #: the case of `audits.CASES` that should catch it; None: out of the audit's scope

    def plant(self, package: Path) -> str:
        """Return the file of the package with the fault; raise StaleMutantError if it has no place for it."""
        source = (package / self.file).read_text("utf-8")
        found = source.count(self.text)
        if found != 1:
            raise StaleMutantError(f"{self.name}: the text must be once in {self.file}, it is there {found} times")
        return source.replace(self.text, self.replacement)

    @property
    def is_in_c(self) -> bool:
        return self.file.endswith((".c", ".h"))

    def digest(self) -> str:
        """Return a digest of the fault and of the file that it is planted into."""
        parts = (self.file, self.tests, self.audit, self.plant(PACKAGE))
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
