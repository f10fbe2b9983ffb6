"""Figure 3: the number of passes and the size of batches, on MNIST."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from experiments.reproduce import methods
from experiments.reproduce.figure import (
    EPSILONS,
    QUICK_EPSILONS,
    AccuracyFigure,
    Results,
    against_epsilon,
    mean_and_spread,
)
from experiments.reproduce.methods import REGULARIZATION, Cell
from experiments.reproduce.panels import Panel, Series

PASSES, BATCH_SIZES = (1, 5, 10, 20), (1, 10, 50)
EPSILON = 4.0  #: of the panels that set all algorithms side by side
_STYLES = ("one", "two", "three", "four")


class Passes(AccuracyFigure):
    """More passes need more noise in the convex case, and larger batches less."""

    number, name = 3, "passes"
    title = "The number of passes and the size of batches"
    settings = (
        "MNIST, logistic regression, ε-DP. (a) Test 1 with b = 1 and (b) Test 3 with b = 50 and λ = 0.0001 for 1, 5, "
        "10 and 20 passes; (c) Test 1 with 20 passes for b = 1, 10 and 50. Solid lines are valid, dotted ones as "
        "published and not private; in the convex case the published bound holds, and they are the same. (d) to (i): "
        "all algorithms side by side at ε = 4, with δ = 1/m² in Tests 2 and 4. The default and the rivals at their "
        "best choose passes and batches themselves, so that their lines are level. BST14 needs a δ."
    )

    def cells(self, *, quick: bool) -> Iterator[Cell]:
        """As published and valid."""
        for epsilon in (QUICK_EPSILONS if quick else EPSILONS)["mnist"]:
            for lines in _lines().values():
                for cell in lines.values():
                    yield replace(cell, epsilon=epsilon)
                    yield replace(cell, epsilon=epsilon, way="noiseless")
        for cells in _beside().values():
            for cell in list(cells.values())[:: 3 if quick and len(cells) == 4 else 1]:
                yield from (replace(cell, way=way) for way in methods.WAYS)

    def panels(self, results: Path) -> list[Panel]:
        """The three of the paper."""
        found = self.read(results)
        panels = []
        for title, lines in _lines().items():
            names = {style: _named(title, cell) for style, cell in lines.items()}
            series = against_epsilon(found, lines, EPSILONS["mnist"], names=names)
            panels.append(Panel(title, "epsilon", "test accuracy", series))
        for title, cells in _beside().items():
            xlabel = "batch size" if "20 passes" in title else "passes"
            panels.append(Panel(title, xlabel, "test accuracy", list(_against(found, cells))))
        return [panel for panel in panels if panel.series]


def _named(title: str, cell: Cell) -> str:
    count = f"b = {cell.batch_size}" if "(c)" in title else f"{cell.passes} pass{'es' if cell.passes > 1 else ''}"
    return f"{count}, as published" if "(b)" in title and cell.way == "published" else count


def _lines() -> Mapping[str, dict[str, Cell]]:
    """The cells of each panel, without epsilon, by the styles of their lines."""
    convex = Cell("mnist", 1, "published", batch_size=1)
    strong = Cell("mnist", 3, "published", regularization=REGULARIZATION)
    passes = {
        "(a) Test 1, b = 1": [replace(convex, passes=passes) for passes in PASSES],
        "(b) Test 3, b = 50": [replace(strong, passes=passes) for passes in PASSES],
        "(c) Test 1, 20 passes": [replace(convex, passes=20, batch_size=size) for size in BATCH_SIZES],
    }
    return {
        title: {
            style + suffix: replace(cell, way=way)
            for suffix, way in (
                (("", "valid"), ("-published", "published")) if "(b)" in title else (("", "published"),)
            )
            for style, cell in zip(_STYLES, cells, strict=False)
        }
        for title, cells in passes.items()
    }


def _beside() -> Mapping[str, dict[int, Cell]]:
    """The cells of the panels with all algorithms, without a way, by the places of their points."""
    panels: dict[str, dict[int, Cell]] = {}
    for letters, tests, size in (("de", (1, 2), 1), ("fg", (3, 4), 50)):
        for letter, test in zip(letters, tests, strict=True):
            cells = {passes: Cell("mnist", test, "", EPSILON, batch_size=size, passes=passes) for passes in PASSES}
            panels[f"({letter}) Test {test}, b = {size}, ε = 4"] = cells
    for letter, test in zip("hi", (1, 2), strict=True):
        cells = {size: Cell("mnist", test, "", EPSILON, batch_size=size, passes=20) for size in BATCH_SIZES}
        panels[f"({letter}) Test {test}, 20 passes, ε = 4"] = cells
    return panels


def _against(found: Results, cells: Mapping[int, Cell]) -> Iterator[Series]:
    for way in methods.WAYS:
        points = [
            (x, *mean_and_spread(runs, "accuracy"))
            for x, cell in cells.items()
            if (runs := found.get(replace(cell, way=way).normal()))
        ]
        if points:
            yield Series.through(way, points)
