"""The paper's claims one by one: what it says, what was measured here, and a verdict, all from the files of results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.reproduce.data import SOURCES
from experiments.reproduce.effort import Effort
from experiments.reproduce.figure import EPSILONS, AccuracyFigure, Results, Runs, mean_and_spread
from experiments.reproduce.figures import FIGURES
from experiments.reproduce.methods import REGULARIZATION, TESTS, Cell, LossName
from experiments.reproduce.public_tuning import best_runs
from experiments.reproduce.runtime import Runtime, ratio
from experiments.reproduce.scale import PLACES, Scale, straight
from experiments.reproduce.timing import WAYS

Verdict = Literal["holds", "in part", "fails", "not measured"]
#: Accuracy that counts as reaching the noiseless line.
NEAR = 0.02
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what came of it."""

    figure: int
    claim: str
    paper: str
    measured: str
    verdict: Verdict
    why: str  #: in a sentence or two


def claims(results: Path) -> list[Claim]:
    """All claims of which something was measured."""
    made = [make(results) for make in MAKERS]
    return [claim for claim in made if claim is not None]


def markdown(results: Path) -> Iterator[str]:
    """The verdicts as a table."""
    yield "| figure | the paper's claim | the paper | here | verdict |\n|---|---|---|---|---|"
    for one in claims(results):
        yield f"| {one.figure} | {one.claim} | {one.paper} | {one.measured} | **{one.verdict}**: {one.why} |"


def shown(runs: Runs | None, metric: str = "accuracy") -> str:
    """Mean, deviation and number of runs.

    >>> shown({0: {"accuracy": 0.5}, 1: {"accuracy": 0.7}})
    '0.600 ± 0.141 (2 runs)'
    """
    if not runs:
        return NOT_MEASURED
    mean, spread = mean_and_spread(runs, metric)
    return f"{mean:.3f} ± {spread:.3f} ({len(runs)} runs)"


def _mean(runs: Runs | None) -> float:
    return math.nan if not runs else mean_and_spread(runs, "accuracy")[0]


def _read(results: Path, name: str) -> Results:
    figure = FIGURES[name]
    assert isinstance(figure, AccuracyFigure)
    return figure.read(results)


# -- figure 3


def _passes(results: Path) -> Claim | None:
    found = _read(results, "passes")
    one, twenty = (found.get(Cell("mnist", 1, "published", 4.0, batch_size=1, passes=k)) for k in (1, 20))
    if not one or not twenty:
        return None
    dropped = _mean(one) - _mean(twenty)
    return Claim(
        3,
        "MNIST, Test 1, b = 1, ε = 4: more passes lose accuracy",
        "0.71 → 0.45 from 1 to 20 passes",
        f"{shown(one)} → {shown(twenty)}",
        "holds" if dropped > 0.1 else "in part" if dropped > 0 else "fails",
        "the bound is right here, and the noise grows with the passes",
    )


def _small_batches(results: Path) -> Claim | None:
    found = _read(results, "passes")
    one, ten = (found.get(Cell("mnist", 1, "published", 4.0, batch_size=b, passes=20)) for b in (1, 10))
    if not one or not ten:
        return None
    gained = _mean(ten) - _mean(one)
    return Claim(
        3,
        "MNIST, Test 1, 20 passes, ε = 4: batches of 10 bring it back",
        "0.45 → 0.71 from b = 1 to 10",
        f"{shown(one)} → {shown(ten)}",
        "holds" if gained > 0.1 else "in part" if gained > 0 else "fails",
        "in the convex case the bound may be divided by b",
    )


def _strong_passes(results: Path) -> Claim | None:
    found = _read(results, "passes")
    cells = {
        way: [found.get(Cell("mnist", 3, way, 4.0, passes=k, regularization=REGULARIZATION)) for k in (1, 20)]
        for way in ("published", "valid")
    }
    if not all(runs for pair in cells.values() for runs in pair):
        return None
    published, valid = ([_mean(runs) for runs in cells[way]] for way in ("published", "valid"))
    gains = published[1] > published[0], valid[1] > valid[0]
    spent = mean_and_spread(cells["published"][1] or {}, "spent")[0]
    return Claim(
        3,
        "MNIST, Test 3, b = 50: more passes gain accuracy, since they need no more noise",
        "rises (no numbers)",
        f"ε = 4, 1 → 20 passes: as published {shown(cells['published'][0])} → {shown(cells['published'][1])}; "
        f"valid {shown(cells['valid'][0])} → {shown(cells['valid'][1])}",
        "holds" if all(gains) else "in part" if gains[1] else "fails",
        f"20 passes as published keep ε = {spent:.0f}, not 4; with the noise that ε = 4 needs, passes up to 1/λ "
        "updates add noise as in the convex case",
    )


# -- figures 1, 2, 6: up to so many times better


@dataclass(frozen=True)
class _Lead:
    times: float
    ours: Runs
    theirs: Runs
    where: str


def _leads(found: Results, pairs: Iterable[tuple[Cell, Callable[[Cell], Runs | None], Cell]]) -> Iterator[_Lead]:
    for cell, ours_of, rival in pairs:
        ours, theirs = ours_of(cell), found.get(rival.normal())
        if ours and theirs and _mean(theirs) > 0:
            where = f"{cell.data}, Test {cell.test}, ε = {cell.epsilon:g}"
            yield _Lead(_mean(ours) / _mean(theirs), ours, theirs, where)


def _lead_text(leads: Sequence[_Lead]) -> str:
    if not leads:
        return NOT_MEASURED
    best, worst = max(leads, key=lambda one: one.times), min(leads, key=lambda one: one.times)
    most = f"{_mean(best.ours):.3f} against {_mean(best.theirs):.3f}: {best.where}"
    return f"{worst.times:.2f}X to {best.times:.2f}X ({most})"


def _up_to(
    results: Path, name: str, claim: str, paper: str, bounds: dict[str, float], *, tuned: bool, data: Sequence[str]
) -> Claim | None:
    figure = FIGURES[name]
    found = _read(results, name)
    loss: LossName = "huber" if name == "huber" else "logistic"
    tuning: Literal["fixed", "portions"] = "portions" if tuned else "fixed"

    def cells(way: str) -> Iterator[Cell]:
        for one in data:
            for test in TESTS:
                for epsilon in EPSILONS[one]:
                    cell = Cell(one, test, way, epsilon, loss, tuning=tuning)
                    yield cell if test < 3 or tuned else replace(cell, regularization=REGULARIZATION)

    def plain(cell: Cell) -> Runs | None:
        return found.get(cell.normal())

    def best(cell: Cell) -> Runs | None:
        if cell.convex or tuned:
            return plain(cell)
        assert cell.epsilon is not None
        return best_runs(found, cell.data, cell.test, cell.epsilon)

    parts, reached = [], []
    for rival, times in bounds.items():
        published = list(_leads(found, ((cell, plain, replace(cell, way=rival)) for cell in cells("published"))))
        valid = list(_leads(found, ((cell, best, replace(cell, way=rival)) for cell in cells("valid"))))
        fair = list(
            _leads(
                found,
                ((cell, best, replace(cell, way=f"{rival}-best", tuning="fixed")) for cell in cells("valid")),
            )
        )
        default = list(
            _leads(
                found,
                (
                    (
                        replace(cell, way="auto", tuning="fixed"),
                        plain,
                        replace(cell, way=f"{rival}-best", tuning="fixed"),
                    )
                    for cell in cells("auto")
                ),
            )
        )
        if not published or not valid:
            return None
        reached.append(
            (
                max(one.times for one in published) >= 0.8 * times,
                max(one.times for one in valid) >= 0.8 * times,
                min(one.times for one in default) >= 0.99 if default else False,
            )
        )
        parts.append(
            f"over {rival.upper()} as in the paper: as published {_lead_text(published)}; valid {_lead_text(valid)}. "
            f"Over {rival.upper()} at its best: valid {_lead_text(fair)}; default {_lead_text(default)}"
        )
    as_published, as_valid = (all(one[place] for one in reached) for place in (0, 1))
    verdict: Verdict = "holds" if as_published and as_valid else "in part" if as_published or as_valid else "fails"
    return Claim(
        figure.number,
        claim,
        paper,
        ". ".join(parts),
        verdict,
        "the ratio is one of settings: rivals that are centred and have their own batches and steps are level with or "
        "above the paper's algorithm under a valid bound",
    )


_THREE = ("mnist", "protein", "covertype")


def _public(results: Path) -> Claim | None:
    return _up_to(
        results,
        "public-tuning",
        "Public tuning: up to 4X better than SCS13 and BST14",
        "up to 4X",
        {"scs13": 4.0, "bst14": 4.0},
        tuned=False,
        data=_THREE,
    )


def _private(results: Path) -> Claim | None:
    return _up_to(
        results,
        "private-tuning",
        "Private tuning: up to 3X better than SCS13, 3.5X than BST14",
        "up to 3X and 3.5X",
        {"scs13": 3.0, "bst14": 3.5},
        tuned=True,
        data=_THREE,
    )


def _huber(results: Path) -> Claim | None:
    return _up_to(
        results,
        "huber",
        "Huber SVM, MNIST: up to 2.5X better than SCS13, 6X than BST14",
        "up to 2.5X and 6X",
        {"scs13": 2.5, "bst14": 6.0},
        tuned=True,
        data=("mnist",),
    )


def _everywhere(results: Path) -> Claim | None:
    """In all tests and data sets: by a pooled standard deviation."""
    found = _read(results, "public-tuning")
    counts: dict[tuple[str, str], list[int]] = {}
    for name in _THREE:
        for test in TESTS:
            for epsilon in EPSILONS[name]:
                for way in ("published", "valid", "auto"):
                    cell = Cell(name, test, way, epsilon, regularization=0.0 if test < 3 else REGULARIZATION)
                    ours = found.get(cell.normal())
                    if way == "valid" and test > 2:
                        ours = best_runs(found, name, test, epsilon)
                    for rival in ("scs13", "bst14", "scs13-best", "bst14-best"):
                        if ours and (theirs := found.get(replace(cell, way=rival).normal())):
                            (mean, spread), (other, others) = (
                                mean_and_spread(runs, "accuracy") for runs in (ours, theirs)
                            )
                            pooled = math.sqrt((spread**2 + others**2) / 2)
                            place = 0 if mean > other + pooled else 2 if mean < other - pooled else 1
                            counts.setdefault((way, rival), [0, 0, 0])[place] += 1
    if not counts:
        return None

    def told(way: str, rival: str) -> str:
        above, even, below = counts.get((way, rival), [0, 0, 0])
        return f"{above} / {even} / {below}"

    names = {"published": "as published", "valid": "valid, best λ", "auto": "default"}
    text = "; ".join(
        f"{names[way]}: SCS13 {told(way, 'scs13')}, BST14 {told(way, 'bst14')}, at their best SCS13 "
        f"{told(way, 'scs13-best')}, BST14 {told(way, 'bst14-best')}"
        for way in names
    )
    lost = sum(counts.get(("valid", rival), [0, 0, 0])[2] for rival in ("scs13", "bst14"))
    fair = sum(counts.get(("valid", rival), [0, 0, 0])[2] for rival in ("scs13-best", "bst14-best"))
    return Claim(
        1,
        "In all tests ours is significantly better than SCS13 and BST14",
        "every data set, test and ε",
        f"cells above / within a standard deviation / below. {text}",
        "holds" if lost + fair == 0 else "in part" if lost <= 5 else "fails",
        f"valid, it loses {lost} cells to the rivals as the paper ran them and {fair} to the rivals at their best",
    )


def _covertype(results: Path) -> Claim | None:
    found = _read(results, "public-tuning")
    epsilons = EPSILONS["covertype"]

    def reaches(test: int, way: str) -> str:
        noiseless = _mean(found.get(Cell("covertype", test, "noiseless", regularization=_strong(test)).normal()))
        for epsilon in epsilons:
            cell = Cell("covertype", test, way, epsilon, regularization=_strong(test))
            if _mean(found.get(cell.normal())) > noiseless - NEAR:
                return f"{epsilon:g}"
        return "none to 0.4"

    if not found.get(Cell("covertype", 4, "published", 0.05, regularization=REGULARIZATION)):
        return None
    parts = [
        f"Test {test}: as published {reaches(test, 'published')}, valid {reaches(test, 'valid')}, default "
        f"{reaches(test, 'auto')}, BST14 {reaches(test, 'bst14')}, BST14 at its best {reaches(test, 'bst14-best')}"
        for test in (2, 4)
    ]
    holds = [reaches(test, "valid") in ("0.01", "0.02", "0.05") for test in (2, 4)]
    return Claim(
        1,
        "Covertype: ours is near the noiseless line from ε ≈ 0.05, BST14 only from 0.4",
        "0.05 and 0.4",
        f"smallest ε within {NEAR} of the noiseless line of the test. {'; '.join(parts)}",
        "holds" if all(holds) else "in part" if any(holds) else "fails",
        "it holds in the convex tests, whose noiseless line is lower, and not in the strongly convex ones, where the "
        "published bound is wrong",
    )


def _strong(test: int) -> float:
    return 0.0 if test < 3 else REGULARIZATION


def _protein(results: Path) -> Claim | None:
    found = _read(results, "private-tuning")
    cells = {
        way: found.get(Cell("protein", 4, way, 0.1, tuning="portions").normal())
        for way in ("published", "valid", "bst14", "scs13")
    }
    auto = found.get(Cell("protein", 4, "auto", 0.1).normal())
    if not all(cells.values()):
        return None
    close = abs(_mean(cells["valid"]) - _mean(cells["bst14"])) < NEAR
    balanced = ", ".join(f"{way} {mean_and_spread(runs or {}, 'balanced')[0]:.2f}" for way, runs in cells.items())
    if auto:
        balanced += f", default {mean_and_spread(auto, 'balanced')[0]:.2f}"
    return Claim(
        2,
        "Protein: BST14 is very close to ours, SCS13 falls with smaller ε",
        "no numbers",
        "Test 4, ε = 0.1: "
        + ", ".join(f"{way} {shown(runs)}" for way, runs in cells.items())
        + f"; default {shown(auto)}. Balanced accuracy: {balanced}",
        "holds" if close else "in part",
        "99.1 % of the rows are of one class: most of what looks like accuracy is answering “no” to everyone, as the "
        "balanced accuracy of 0.5 tells",
    )


def _batches(results: Path) -> Claim | None:
    found = _read(results, "batches")
    cells = {
        way: [
            found.get(Cell("mnist", 3, way, 1.0, batch_size=b, regularization=REGULARIZATION).normal())
            for b in (50, 200)
        ]
        for way in ("published", "valid", "noiseless", "scs13")
    }
    if not all(runs for pair in cells.values() for runs in pair):
        return None
    gains = {way: _mean(pair[1]) - _mean(pair[0]) for way, pair in cells.items()}
    gap = _mean(cells["noiseless"][1]) - _mean(cells["valid"][1])
    spent = mean_and_spread(cells["published"][1] or {}, "spent")[0]
    return Claim(
        8,
        "MNIST, strongly convex: batches of 50 to 200 reach almost native accuracy",
        "rises with b (no numbers)",
        "Test 3, ε = 1, b = 50 → 200: "
        + "; ".join(f"{way} {shown(pair[0])} → {shown(pair[1])}" for way, pair in cells.items()),
        "holds" if gap < NEAR else "in part" if gains["valid"] > 0.1 and gap < 0.1 else "fails",
        f"as published, b = 200 keeps ε = {spent:.0f}; what the valid line gains with b comes from fewer updates",
    )


def _more_data(results: Path) -> Claim | None:
    found = _read(results, "more-data")
    parts, near = [], []
    for name in ("higgs", "kddcup99"):
        for epsilon in (0.01, 0.1):
            runs = {
                way: found.get(Cell(name, 4, way, epsilon, regularization=REGULARIZATION).normal())
                for way in ("noiseless", "published", "valid", "bst14", "scs13", "auto", "bst14-best")
            }
            if not all(runs.values()):
                continue
            runs["valid, best λ"] = best_runs(found, name, 4, epsilon)
            told = ", ".join(f"{way} {_mean(one):.3f}" for way, one in runs.items())
            parts.append(f"{SOURCES[name].title}, Test 4, ε = {epsilon:g}: {told}")
            near.append(_mean(runs["valid, best λ"]) > _mean(runs["noiseless"]) - NEAR)
    if not parts:
        return None
    return Claim(
        7,
        "HIGGS and KDDCup-99: almost as accurate as without noise, SCS13 and BST14 notably worse",
        "no numbers",
        "; ".join(parts),
        "holds" if all(near) else "in part" if any(near) else "fails",
        "on a part of HIGGS with 240 times fewer rows than the paper's the claim cannot be tested; on KDDCup-99 (10% "
        "file) it needs the larger ε or the default",
    )


# -- figures 4, 5 and 9


def _overhead(results: Path) -> Claim | None:
    found = Runtime().read(results)
    ratios = [
        mean_and_spread(runs, "processor")[0] / mean_and_spread(plain, "processor")[0]
        for (name, epochs, size, way), runs in found.items()
        if way == "valid" and (plain := found.get((name, epochs, size, "noiseless")))
    ]
    if not ratios:
        return None
    most = max(ratios)
    middle = sorted(ratios)[len(ratios) // 2]
    return Claim(
        4,
        "Ours has virtually no overhead over noiseless training",
        "none to be seen",
        f"ours over noiseless, processor time: median {middle:.2f}, {min(ratios):.2f} to {most:.2f} over {len(ratios)} "
        "settings",
        "holds" if middle < 1.05 else "in part",
        "noise is drawn once, after all epochs",
    )


def _slower(
    results: Path, *, epochs: int, size: int, claim: str, paper: str, holds: Callable[[float], bool]
) -> Claim | None:
    found = Runtime().read(results)
    told, verdicts = [], []
    for way in ("scs13", "bst14"):
        ratios = {name: ratio(found, name, epochs, size, way) for name in _THREE}
        able = {name: one for name, one in ratios.items() if one is not None}
        if not able:
            return None
        told.append(
            f"{WAYS[way]} "
            + ", ".join(f"{one:.1f}X on {SOURCES[name].title.split(',')[0]}" for name, one in able.items())
        )
        verdicts.append(all(map(holds, able.values())))
    return Claim(
        4,
        claim,
        paper,
        "; ".join(told) + "; processor time, over ours",
        "holds" if all(verdicts) else "in part" if any(verdicts) else "fails",
        "SCS13 pays for the noise of every update; BST14 also for drawing its rows at random, which larger batches do "
        "not make cheaper",
    )


def _slower_at_ten(results: Path) -> Claim | None:
    return _slower(
        results,
        epochs=20,
        size=10,
        claim="b = 10, 20 epochs: SCS13 and BST14 take 2X to 3X as long",
        paper="2X to 3X",
        holds=lambda times: 1.4 <= times <= 4.5,
    )


def _slower_at_one(results: Path) -> Claim | None:
    return _slower(
        results,
        epochs=1,
        size=1,
        claim="b = 1, 1 epoch: up to 6X as long",
        paper="up to 6X",
        holds=lambda times: times >= 3.0,
    )


def _even_at_many(results: Path) -> Claim | None:
    return _slower(
        results,
        epochs=1,
        size=500,
        claim="b = 500: the gap practically disappears",
        paper="no gap",
        holds=lambda times: times < 1.3,
    )


def _linear(results: Path) -> Claim | None:
    found = Scale().read(results)
    told, squares = [], []
    for place, about in PLACES.items():
        line = straight(found, place, "valid")
        if line is None:
            continue
        others = [one for way in WAYS if (one := straight(found, place, way)) is not None]
        least = min(one.squared for one in others)
        squares.append(least)
        told.append(
            f"{about.title}: ours {line.nanoseconds:.0f} ns a row, R² = {line.squared:.4f}, to {line.rows:,} rows (all "
            f"algorithms R² ≥ {least:.3f})"
        )
    if not told:
        return None
    return Claim(
        5,
        "All algorithms scale linearly, in memory and beyond",
        "linear",
        "; ".join(told),
        "holds" if min(squares) > 0.98 else "in part",
        "an epoch is a scan; beyond memory BST14 has to look for its rows",
    )


def _effort(results: Path) -> Claim | None:
    rows = {row["way"]: row for row in Effort().rows(results)}
    if not rows:
        return None
    told = "; ".join(
        f"{title} {rows[way]['controller']} lines of Python and {rows[way]['engine']} of C in the engine"
        for way, title in (("bolton", "ours"), ("scs13", "SCS13"), ("bst14", "BST14"))
    )
    return Claim(
        9,
        "Ours needs about 10 lines in the controller and none in the engine; the rivals dozens of lines of C",
        "about 10 lines of Python; dozens of C",
        told,
        "holds" if rows["bolton"]["engine"] == 0 and rows["scs13"]["engine"] > 24 else "fails",
        "our count includes what plans and describes a training; a sensitivity that holds is more than 10 lines, and "
        "none of them are in the engine",
    )


MAKERS: Sequence[Callable[[Path], Claim | None]] = (
    _everywhere,
    _public,
    _covertype,
    _private,
    _protein,
    _passes,
    _small_batches,
    _strong_passes,
    _overhead,
    _slower_at_ten,
    _slower_at_one,
    _even_at_many,
    _linear,
    _huber,
    _more_data,
    _batches,
    _effort,
)
