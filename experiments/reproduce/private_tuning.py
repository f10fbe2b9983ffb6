"""Figure 2: the same with the paper's private tuning, Algorithm 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.reproduce import methods
from experiments.reproduce.data import SOURCES
from experiments.reproduce.figure import EPSILONS, QUICK_EPSILONS, AccuracyFigure, Results, against_epsilon
from experiments.reproduce.methods import PAPER_WAYS, TESTS, Cell, LossName
from experiments.reproduce.panels import Panel

GRID = "k in {5, 10}, and λ in {0.0001, 0.001, 0.01} with R = 1/λ in Tests 3 and 4; b = 50"


class PrivateTuning(AccuracyFigure):
    """Each candidate on its own portion of the rows, the exponential mechanism on the last."""

    number, name = 2, "private-tuning"
    title = "Accuracy against epsilon, tuned privately"
    settings = (
        f"Logistic regression, tuned by the paper's Algorithm 3 over {GRID}. “Tuned by trials” is boltdp's own tuning "
        "over the same grid: a random number of trials on all rows. The default and the rivals at their best are not "
        "tuned: they choose their settings from public numbers."
    )
    data: Sequence[str] = ("mnist", "protein", "covertype")
    loss: LossName = "logistic"

    def cells(self, *, quick: bool) -> Iterator[Cell]:
        """All ways at all epsilons in all tests."""
        for name in self.data:
            for epsilon in (QUICK_EPSILONS if quick else EPSILONS)[name]:
                yield from tuned_cells(name, epsilon, self.loss)

    def panels(self, results: Path) -> list[Panel]:
        """A panel for each dataset and test."""
        found = self.read(results)
        return [
            panel for name in self.data for test in TESTS if (panel := tuned_panel(found, name, test, self.loss)).series
        ]


def tuned_cells(name: str, epsilon: float, loss: LossName) -> Iterator[Cell]:
    """All ways with private tuning, and those that need none."""
    for test in TESTS:
        for way in PAPER_WAYS:
            yield Cell(name, test, way, epsilon, loss, tuning="portions")
        yield Cell(name, test, "valid", epsilon, loss, tuning="trials")
        for way in methods.OWN_WAYS:
            yield Cell(name, test, way, epsilon, loss)


def tuned_panel(found: Results, name: str, test: int, loss: LossName) -> Panel:
    """All ways with private tuning."""
    lines = {way: Cell(name, test, way, None, loss, tuning="portions") for way in ("noiseless", "published", "valid")}
    lines["trials"] = Cell(name, test, "valid", None, loss, tuning="trials")
    lines |= {way: Cell(name, test, way, None, loss) for way in ("auto",)}
    for way in ("scs13", "bst14"):
        lines[way] = Cell(name, test, way, None, loss, tuning="portions")
        lines[f"{way}-best"] = Cell(name, test, f"{way}-best", None, loss)
    series = against_epsilon(found, lines, EPSILONS[name])
    return Panel(f"{SOURCES[name].title}: {TESTS[test]}", "epsilon", "test accuracy", series)
