"""A measurement and its target."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two things measured in one run, one over the other, and the range it is meant to be in."""

    name: str
    value: float
    at_most: float = math.inf
    at_least: float = 0.0

    @property
    def met(self) -> bool:
        return self.at_least <= self.value <= self.at_most

    @property
    def target(self) -> str:
        return f"<= {self.at_most:g}" if self.at_most < math.inf else f">= {self.at_least:g}"
