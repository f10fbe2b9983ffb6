"""Figure 8: batches of 50 to 200 rows, on MNIST, strongly convex."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiments.reproduce import methods
from experiments.reproduce.figure import EPSILONS, QUICK_EPSILONS, AccuracyFigure, against_epsilon
from experiments.reproduce.methods import REGULARIZATION, TESTS, Cell
from experiments.reproduce.panels import Panel

BATCH_SIZES = (50, 100, 150, 200)


class Batches(AccuracyFigure):
    """The paper's appendix on larger batches."""

    number, name = 8, "batches"
    title = "Batches of 50 to 200 rows"
    settings = (
        "MNIST, logistic regression, strongly convex: k = 10, λ = 0.0001, R = 1/λ, (ε, 0) and (ε, 1/m²). The published "
        "bound divides by b, which it must not: all that the published line gains with b, it gains there."
    )

    def cells(self, *, quick: bool) -> Iterator[Cell]:
        """The paper's ways at every size, and the default."""
        for epsilon in (QUICK_EPSILONS if quick else EPSILONS)["mnist"]:
            for test in (3, 4):
                for way in (*methods.PAPER_WAYS, *methods.OWN_WAYS):
                    for size in BATCH_SIZES[:: 3 if quick else 1]:
                        yield Cell("mnist", test, way, epsilon, batch_size=size, regularization=REGULARIZATION)

    def panels(self, results: Path) -> list[Panel]:
        """A panel for each size and test."""
        found = self.read(results)
        panels = []
        for test in (3, 4):
            for size in BATCH_SIZES:
                lines = {
                    way: Cell("mnist", test, way, batch_size=size, regularization=REGULARIZATION)
                    for way in methods.WAYS
                }
                series = against_epsilon(found, lines, EPSILONS["mnist"])
                if any(one.style == "published" for one in series):
                    panels.append(Panel(f"b = {size}: {TESTS[test]}", "epsilon", "test accuracy", series))
        return panels
