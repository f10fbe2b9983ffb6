"""The paper's claims one by one: what it says, what was measured here, and a verdict, all from the files of results.

A verdict follows from the numbers by the rule that stands beside it. It judges the valid line: what the paper's
algorithm does with the noise that its guarantee needs. Where the published line differs, the text says so.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

Verdict = Literal["holds", "in part", "fails"]
#: Accuracy that counts as reaching the noiseless line.
NEAR = 0.02
#: An "up to" is reached by this part of it: the largest of many noisy ratios.
REACHED = 0.8
#: Lines are straight from here.
STRAIGHT = 0.98
_THREE = ("mnist", "protein", "covertype")
_SHORT = {"mnist": "MNIST", "protein": "Protein", "covertype": "Covertype"}
_NAMES = {"published": "as published", "valid": "valid", "auto": "default"}


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what came of it."""

    figure: int
    claim: str
    paper: str
    here: str  #: the numbers to set beside the paper's
    verdict: Verdict
    rule: str  #: by which the verdict follows
    why: str  #: in a sentence or two
    details: Sequence[str] = ()


def claims(results: Path) -> list[Claim]:
    """All claims of which something was measured."""
    made = [make(results) for make in MAKERS]
    return [claim for claim in made if claim is not None]


def numbered(results: Path) -> list[tuple[str, Claim]]:
    """The claims with numbers: that of the figure, and which of the figure's it is."""
    found = claims(results)
    return [
        (f"{one.figure}.{1 + sum(other.figure == one.figure for other in found[:place])}", one)
        for place, one in enumerate(found)
    ]


def markdown(results: Path) -> Iterator[str]:
    """The verdicts as a table, what they rest on, and who beats whom."""
    yield "| | the paper's claim | paper | here, valid | verdict |\n|---|---|---|---|---|"
    for number, one in numbered(results):
        yield f"| {number} | {one.claim} | {one.paper} | {one.here} | **{one.verdict}** |"
    if table := duels(results):
        yield "\n## Who beats whom\n"
        yield _wrapped(DUELS)
        yield "\n| figure | ours | " + " | ".join(RIVALS.values()) + " |\n|---|---|" + "---|" * len(RIVALS)
        for figure, ours, *counts in table:
            yield f"| {figure} | {ours} | {' | '.join(counts)} |"
        yield "\nWhere the default does worst against each rival at its best:\n"
        yield from (_wrapped(one, bullet=True) for one in worst(results))
    yield "\n## Claim by claim"
    for number, one in numbered(results):
        yield f"\n### {number} {one.claim}\n"
        yield _wrapped(f"**{one.verdict.capitalize()}.** {one.why}") + "\n"
        yield from (_wrapped(detail, bullet=True) for detail in one.details)
        yield _wrapped(f"Rule: {one.rule}.", bullet=True)


def _wrapped(text: str, *, bullet: bool = False) -> str:
    first, rest = ("- ", "  ") if bullet else ("", "")
    return textwrap.fill(
        text, 100, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def shown(runs: Runs | None, metric: str = "accuracy") -> str:
    """Mean, deviation and number of runs.

    >>> shown({0: {"accuracy": 0.5}, 1: {"accuracy": 0.7}})
    '0.600 ± 0.141 (2 runs)'
    """
    if not runs:
        return "not measured"
    mean, spread = mean_and_spread(runs, metric)
    return f"{mean:.3f} ± {spread:.3f} ({len(runs)} run{'s' if len(runs) > 1 else ''})"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _mean(runs: Runs | None) -> float:
    return math.nan if not runs else mean_and_spread(runs, "accuracy")[0]


def _read(results: Path, name: str) -> Results:
    figure = FIGURES[name]
    assert isinstance(figure, AccuracyFigure)
    return figure.read(results)


def _of(held: Iterable[bool]) -> Verdict:
    """All, some or none.

    >>> _of([True, False])
    'in part'
    """
    listed = list(held)
    return "holds" if all(listed) else "in part" if any(listed) else "fails"


# -- figure 3


def _passes(results: Path) -> Claim | None:
    found = _read(results, "passes")
    one, twenty = (found.get(Cell("mnist", 1, "published", 4.0, batch_size=1, passes=k)) for k in (1, 20))
    if not one or not twenty:
        return None
    dropped = _mean(one) - _mean(twenty)
    return Claim(
        3,
        "MNIST, Test 1, b = 1, ε = 4: 20 passes lose accuracy",
        "0.71 → 0.45",
        f"{_mean(one):.2f} → {_mean(twenty):.2f}",
        "holds" if dropped > 0.1 else "in part" if dropped > 0 else "fails",
        "holds if accuracy drops by more than 0.1, in part if it drops at all",
        "The bound is right here, and the noise grows with the passes.",
        [f"1 pass {shown(one)}, 20 passes {shown(twenty)}."],
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
        "0.45 → 0.71",
        f"{_mean(one):.2f} → {_mean(ten):.2f}",
        "holds" if gained > 0.1 else "in part" if gained > 0 else "fails",
        "holds if accuracy rises by more than 0.1, in part if it rises at all",
        "In the convex case the bound may be divided by the batch size.",
        [f"b = 1 {shown(one)}, b = 10 {shown(ten)}."],
    )


def _strong_passes(results: Path) -> Claim | None:
    found = _read(results, "passes")
    cells = {
        way: [found.get(Cell("mnist", 3, way, 4.0, passes=k, regularization=REGULARIZATION)) for k in (1, 20)]
        for way in ("published", "valid")
    }
    if not all(runs for pair in cells.values() for runs in pair):
        return None
    gained = _mean(cells["valid"][1]) - _mean(cells["valid"][0])
    spent = mean_and_spread(cells["published"][1] or {}, "spent")[0]
    return Claim(
        3,
        "MNIST, Test 3, b = 50, ε = 4: 20 passes gain accuracy, since they need no more noise",
        "rises",
        " → ".join(f"{_mean(runs):.2f}" for runs in cells["valid"]),
        "holds" if gained > 0 else "fails",
        "holds if the valid line rises from 1 to 20 passes",
        f"As published it seems to hold, but 20 passes then keep ε = {spent:.0f}, not 4. With the noise that ε = 4 "
        "needs, every pass adds noise, as in the convex case, until there have been about 1/λ updates.",
        [
            f"{_sentence(_NAMES[way])}: 1 pass {shown(pair[0])}, 20 passes {shown(pair[1])}."
            for way, pair in cells.items()
        ],
    )


# -- figures 1, 2, 6: up to how many times better


@dataclass(frozen=True)
class _Lead:
    times: float
    ours: Runs
    theirs: Runs
    where: str

    def __str__(self) -> str:
        (ours, spread), (theirs, other) = (mean_and_spread(runs, "accuracy") for runs in (self.ours, self.theirs))
        runs = min(len(self.ours), len(self.theirs))
        pair = f"{ours:.3f} ± {spread:.3f} against {theirs:.3f} ± {other:.3f}"
        return f"{self.times:.2f}X ({self.where}: {pair}, n = {runs})"


@dataclass(frozen=True)
class _Arena:
    """A figure in which ours and the rivals meet: the datasets, and how ours is tuned."""

    name: str
    data: Sequence[str]
    tuned: bool  #: privately; else by hand

    def cells(self, way: str) -> Iterator[Cell]:
        loss: LossName = "huber" if self.name == "huber" else "logistic"
        for one in self.data:
            for test in TESTS:
                for epsilon in EPSILONS[one]:
                    cell = Cell(one, test, way, epsilon, loss, tuning="portions" if self.tuned else "fixed")
                    yield cell if test < 3 or self.tuned else replace(cell, regularization=REGULARIZATION)

    def pairs(self, found: Results, way: str, rival: str) -> Iterator[tuple[Cell, Runs, Runs]]:
        """The runs of both in all cells that both were measured in; "valid-tuned" is ours with the best lambda."""
        for cell in self.cells(way.removesuffix("-tuned")):
            ours = found.get(_own(cell).normal())
            if way == "valid-tuned" and not cell.convex and not self.tuned and cell.epsilon is not None:
                ours = best_runs(found, cell.data, cell.test, cell.epsilon)
            theirs = found.get(_own(replace(cell, way=rival)).normal())
            if ours and theirs:
                yield cell, ours, theirs

    def leads(self, found: Results, way: str, rival: str) -> list[_Lead]:
        """How many times the rival's accuracy ours is, in each cell."""
        return [
            _Lead(
                _mean(ours) / _mean(theirs),
                ours,
                theirs,
                f"{SOURCES[cell.data].title.split(', ')[0]}, Test {cell.test}, ε = {cell.epsilon:g}",
            )
            for cell, ours, theirs in self.pairs(found, way, rival)
            if _mean(theirs) > 0
        ]


def _own(cell: Cell) -> Cell:
    """The default and the rivals at their best are not tuned."""
    return replace(cell, tuning="fixed") if cell.way == "auto" or cell.way.endswith("-best") else cell


_PUBLIC = _Arena("public-tuning", _THREE, tuned=False)
_PRIVATE = _Arena("private-tuning", _THREE, tuned=True)
_HUBER = _Arena("huber", _THREE, tuned=True)
RIVALS: Mapping[str, str] = {
    "scs13": "SCS13",
    "bst14": "BST14",
    "scs13-best": "SCS13 at its best",
    "bst14-best": "BST14 at its best",
}
DUELS = (
    "Every dataset, test and ε is one cell. Each entry counts the cells in which ours is better / level / worse by "
    "more than the pooled standard deviation of the two. “Best λ” is the valid line with the λ of the best mean on the "
    "test rows, which is a little optimistic."
)


_ARENAS: Mapping[str, _Arena] = {
    "1, public tuning": _PUBLIC,
    "2, private tuning": _PRIVATE,
    "6, Huber SVM": _HUBER,
    "7, HIGGS (part of 54,422 rows)": _Arena("more-data", ("higgs",), tuned=False),
    "7, KDDCup-99 (10% file)": _Arena("more-data", ("kddcup99",), tuned=False),
}


def worst(results: Path) -> Iterator[str]:
    """For each figure, the cell in which the default does worst against each rival at its best."""
    for title, arena in _ARENAS.items():
        found = _read(results, arena.name)
        for rival, name in RIVALS.items():
            if rival.endswith("-best") and (leads := arena.leads(found, "auto", rival)):
                yield f"Figure {title}, {name}: {min(leads, key=lambda one: one.times)}."


def duels(results: Path) -> list[tuple[str, ...]]:
    """For each figure and line of ours, the cells won, level and lost against each rival."""
    table = []
    for title, arena in _ARENAS.items():
        found = _read(results, arena.name)
        lines = {"published": "as published", "valid": "valid", "valid-tuned": "valid, best λ", "auto": "default"}
        if arena.tuned:
            del lines["valid-tuned"]
        for way, name in lines.items():
            counts = [_duel(arena, found, way, rival) for rival in RIVALS]
            if any(map(sum, counts)):
                table.append((title, name, *(" / ".join(map(str, one)) for one in counts)))
    return table


def _duel(arena: _Arena, found: Results, way: str, rival: str) -> list[int]:
    counts = [0, 0, 0]
    for _, ours, theirs in arena.pairs(found, way, rival):
        (mean, spread), (other, others) = (mean_and_spread(runs, "accuracy") for runs in (ours, theirs))
        pooled = math.sqrt((spread**2 + others**2) / 2)
        counts[0 if mean > other + pooled else 2 if mean < other - pooled else 1] += 1
    return counts


def _everywhere(results: Path) -> Claim | None:
    found = _read(results, "public-tuning")
    counts = [_duel(_PUBLIC, found, "valid-tuned", rival) for rival in ("scs13", "bst14")]
    won, level, lost = (sum(one[place] for one in counts) for place in range(3))
    if not (cells := won + level + lost):
        return None
    plain = [_duel(_PUBLIC, found, "valid", rival) for rival in ("scs13", "bst14")]
    fair = [_duel(_PUBLIC, found, "valid-tuned", rival) for rival in ("scs13-best", "bst14-best")]
    return Claim(
        1,
        "In all tests ours is significantly better than SCS13 and BST14",
        "all",
        f"{won} of {cells} cells",
        "holds" if won == cells else "in part" if 2 * won > cells else "fails",
        "a cell is a dataset, test and ε; it is won by more than a pooled standard deviation. Holds if the valid line "
        "wins all with its best λ, in part if more than half",
        f"With its best λ the valid line loses {lost or 'no'} cells to the rivals as the paper ran them. Against the "
        f"rivals at their best it loses {sum(one[2] for one in fair)} of {sum(map(sum, fair))}: the paper compares "
        "settings, not algorithms.",
        [
            f"With the paper's λ = 0.0001 the valid line wins {sum(one[0] for one in plain)} and loses "
            f"{sum(one[2] for one in plain)} of {sum(map(sum, plain))}.",
        ],
    )


def _up_to(arena: _Arena, claim: str, bounds: Mapping[str, float]) -> Callable[[Path], Claim | None]:
    def make(results: Path) -> Claim | None:
        found = _read(results, arena.name)
        here, published, held, details = [], [], [], []
        for rival, times in bounds.items():
            way = "valid" if arena.tuned else "valid-tuned"
            leads = {ours: arena.leads(found, ours, rival) for ours in ("published", way)}
            if not all(leads.values()):
                return None
            best = {ours: max(listed, key=lambda one: one.times) for ours, listed in leads.items()}
            here.append(f"{best[way].times:.1f}X")
            published.append(f"{best['published'].times:.1f}X")
            held.append(best[way].times >= REACHED * times)
            name = RIVALS[rival]
            details += [
                f"Over {name}, valid: up to {best[way]}.",
                f"Over {name}, as published: up to {best['published']}.",
            ]
            for ours in (way, "auto"):
                if fair := arena.leads(found, ours, f"{rival}-best"):
                    low, high = (pick(fair, key=lambda one: one.times) for pick in (min, max))
                    details.append(
                        f"Over {name} at its best, {_NAMES[ours.removesuffix('-tuned')]}: at best {high}; at worst "
                        f"{low}."
                    )
        return Claim(
            FIGURES[arena.name].number,
            claim,
            " and ".join(f"{times:g}X" for times in bounds.values()),
            f"{' and '.join(here)} ({' and '.join(published)} as published)",
            _of(held),
            f"for each rival as the paper ran it, the largest ratio of mean accuracies must reach {REACHED:g} of the "
            "claimed one, with the valid line. Holds if both do, in part if one does",
            "These ratios compare settings: most are of rivals that do hardly better than guessing. Rivals that are "
            "centred, with batches and steps of their own, are level with the paper's algorithm or above it.",
            details,
        )

    return make


_public = _up_to(_PUBLIC, "Public tuning: up to 4X better than SCS13, and than BST14", {"scs13": 4.0, "bst14": 4.0})
_private = _up_to(_PRIVATE, "Private tuning: up to 3X better than SCS13, 3.5X than BST14", {"scs13": 3.0, "bst14": 3.5})


def _huber(results: Path) -> Claim | None:
    claim = _up_to(
        replace(_HUBER, data=("mnist",)),
        "Huber SVM, MNIST: up to 2.5X better than SCS13, 6X than BST14",
        {"scs13": 2.5, "bst14": 6.0},
    )(results)
    if claim is None:
        return None
    return replace(
        claim,
        why=f"{claim.why} The default is one model of ten classes, whose hinge has parabolas of the same width at its "
        "kinks: by noisy gradient descent with a δ, by an objective without.",
    )


def _reaches(found: Results, name: str, test: int, way: str) -> float | None:
    """The smallest epsilon from which on a line is near the noiseless one of its test."""
    strong = 0.0 if test < 3 else REGULARIZATION
    noiseless = _mean(found.get(Cell(name, test, "noiseless", regularization=strong).normal()))
    reached = None
    for epsilon in reversed(EPSILONS[name]):
        runs = found.get(Cell(name, test, way.removesuffix("-tuned"), epsilon, regularization=strong).normal())
        if way == "valid-tuned" and test > 2:
            runs = best_runs(found, name, test, epsilon)
        if not _mean(runs) > noiseless - NEAR:
            break
        reached = epsilon
    return reached


def _from(epsilon: float | None) -> str:
    return "never" if epsilon is None else f"{epsilon:g}"


_REACHING = {
    "published": "as published",
    "valid": "valid",
    "valid-tuned": "valid with the best λ",
    "auto": "default",
    **RIVALS,
}


def _reaching(found: Results, name: str, test: int) -> str:
    listed = ", ".join(
        f"{title} {_from(_reaches(found, name, test, way))}"
        for way, title in _REACHING.items()
        if (test > 2 or way != "valid-tuned") and Cell(name, test, way).able
    )
    strong = 0.0 if test < 3 else REGULARIZATION
    noiseless = _mean(found.get(Cell(name, test, "noiseless", regularization=strong).normal()))
    return f"{SOURCES[name].title}, Test {test} (noiseless {noiseless:.3f}), near from ε = {listed}."


def _covertype(results: Path) -> Claim | None:
    found = _read(results, "public-tuning")
    if not found.get(Cell("covertype", 4, "published", 0.05, regularization=REGULARIZATION)):
        return None
    reached = {
        (test, way): _reaches(found, "covertype", test, way) for test in (2, 4) for way in ("valid-tuned", "bst14")
    }
    held = [
        (reached[test, "valid-tuned"] or math.inf) <= 0.05 < (reached[test, "bst14"] or math.inf) for test in (2, 4)
    ]
    ours, theirs = (" / ".join(_from(reached[test, way]) for test in (2, 4)) for way in ("valid-tuned", "bst14"))
    return Claim(
        1,
        "Covertype: near the noiseless line from ε ≈ 0.05, BST14 only from 0.4",
        "0.05; BST14 0.4",
        f"Tests 2 / 4: {ours}; BST14 {theirs}",
        _of(held),
        f"near is within {NEAR} of the noiseless line of the test, from that ε on, to 0.4. It holds for a test if the "
        "valid line with its best λ is near from 0.05 and BST14 as the paper ran it from more; in part if for one of "
        "Tests 2 and 4",
        "The convex tests keep it, and their noiseless line is a low one. In the strongly convex ones the published "
        "bound is wrong, and the noise that is needed keeps the valid line away.",
        [_reaching(found, "covertype", test) for test in (2, 4)],
    )


def _protein(results: Path) -> Claim | None:
    found = _read(results, "private-tuning")
    ways = ("published", "valid", "bst14", "scs13")
    cells = {way: found.get(Cell("protein", 4, way, 0.1, tuning="portions").normal()) for way in ways}
    wide = found.get(Cell("protein", 4, "scs13", 0.4, tuning="portions").normal())
    low = found.get(Cell("protein", 4, "scs13", 0.01, tuning="portions").normal())
    if not all(cells.values()) or not wide or not low:
        return None
    every = {**cells, "auto": found.get(Cell("protein", 4, "auto", 0.1).normal())}
    names = {**_NAMES, **RIVALS}
    gap = _mean(cells["valid"]) - _mean(cells["bst14"])
    return Claim(
        2,
        "Protein: BST14 is very close to ours, and SCS13 falls with smaller ε",
        "no numbers",
        f"ours {_mean(cells['valid']):.3f}, BST14 {_mean(cells['bst14']):.3f}; SCS13 {_mean(wide):.2f} → "
        f"{_mean(low):.2f}",
        _of([abs(gap) < NEAR, _mean(low) < _mean(wide) - NEAR]),
        f"Test 4. Close is within {NEAR} at ε = 0.1; SCS13 falls if it loses more than that from ε = 0.4 to 0.01. "
        "Holds if both, in part if one",
        "99.1 % of the rows are of one class. Most of what looks like accuracy is answering “no” to everyone, as "
        "balanced accuracies near 0.5 tell.",
        [
            f"ε = 0.1, {names[way]}: {shown(runs)}, balanced {mean_and_spread(runs, 'balanced')[0]:.2f}."
            for way, runs in every.items()
            if runs
        ],
    )


def _batches(results: Path) -> Claim | None:
    found = _read(results, "batches")
    cells = {
        way: [
            found.get(Cell("mnist", 3, way, 1.0, batch_size=b, regularization=REGULARIZATION).normal())
            for b in (50, 200)
        ]
        for way in ("noiseless", "published", "valid", "scs13")
    }
    if not all(runs for pair in cells.values() for runs in pair):
        return None
    gained = _mean(cells["valid"][1]) - _mean(cells["valid"][0])
    gap = _mean(cells["noiseless"][1]) - _mean(cells["valid"][1])
    spent = mean_and_spread(cells["published"][1] or {}, "spent")[0]
    names = {"noiseless": "noiseless", **_NAMES, **RIVALS}
    return Claim(
        8,
        "MNIST, strongly convex: batches of 50 to 200 reach almost native accuracy",
        "rises",
        f"{' → '.join(f'{_mean(runs):.2f}' for runs in cells['valid'])}; noiseless {_mean(cells['noiseless'][1]):.2f}",
        "holds" if gap < NEAR else "in part" if gained > 0 and gap < 0.1 else "fails",
        f"Test 3, ε = 1. Holds if the valid line at b = 200 is within {NEAR} of the noiseless one, in part if it rises "
        "from b = 50 and comes within 0.1",
        f"As published it seems to hold, but b = 200 then keeps ε = {spent:.0f}, not 1: the bound must not be divided "
        "by b. What the valid line gains comes from fewer updates.",
        [f"{_sentence(names[way])}: b = 50 {shown(a)}, b = 200 {shown(b)}." for way, (a, b) in cells.items()],
    )


def _more_data(name: str, claim: str, why: str) -> Callable[[Path], Claim | None]:
    def make(results: Path) -> Claim | None:
        found = _read(results, "more-data")
        ways = {"noiseless": "noiseless", **_REACHING}
        runs = {way: found.get(Cell(name, 4, way, 0.1, regularization=REGULARIZATION).normal()) for way in ways}
        runs["valid-tuned"] = best_runs(found, name, 4, 0.1)
        if not all(runs.values()):
            return None
        means = {way: _mean(one) for way, one in runs.items()}
        near = {way: mean > means["noiseless"] - NEAR for way, mean in means.items()}
        even = near["scs13"] or near["bst14"]
        return Claim(
            7,
            claim,
            "no numbers",
            f"{means['valid-tuned']:.3f}, noiseless {means['noiseless']:.3f}; SCS13 {means['scs13']:.3f}, BST14 "
            f"{means['bst14']:.3f}",
            "fails" if not near["valid-tuned"] else "in part" if even else "holds",
            f"Test 4, public tuning, ε = 0.1. Near is within {NEAR} of the noiseless line. Holds if the valid line "
            "with its best λ is near and both rivals as the paper ran them are not, in part if a rival is near too",
            f"{why} BST14 as the paper ran it is {'near too' if near['bst14'] else 'not near'}.",
            [
                *(f"ε = 0.1, {title}: {shown(runs[way])}." for way, title in ways.items()),
                *(_reaching(found, name, test) for test in (2, 4)),
            ],
        )

    return make


_higgs = _more_data(
    "higgs",
    "HIGGS (part of 54,422 rows): almost as accurate as without noise, the rivals notably worse",
    "The claim is about size: the paper had 10,500,000 rows for training, 240 times as many, and this part needs 240 "
    "times the noise. So this verdict says nothing about the whole.",
)
_kddcup99 = _more_data(
    "kddcup99",
    "KDDCup-99 (10% file): almost as accurate as without noise, the rivals notably worse",
    "With a λ of its own, ours has enough rows here for noise that is enough.",
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
    middle = sorted(ratios)[len(ratios) // 2]
    return Claim(
        4,
        "Ours has virtually no overhead over noiseless training",
        "none",
        f"{middle:.2f}X",
        "holds" if middle < 1.05 else "fails",
        "holds if the median ratio of processor times is below 1.05",
        "Noise is drawn once, after all epochs.",
        [f"{min(ratios):.2f}X to {max(ratios):.2f}X over {len(ratios)} settings, means of {_runs(found)} runs each."],
    )


def _runs(found: Mapping[tuple[object, ...], Runs]) -> str:
    counts = sorted({len(runs) for runs in found.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _slower(
    *, epochs: int, size: int, claim: str, paper: str, rule: str, judge: Callable[[Sequence[Sequence[float]]], Verdict]
) -> Callable[[Path], Claim | None]:
    def make(results: Path) -> Claim | None:
        found = Runtime().read(results)
        here, details, every = [], [], []
        for way in ("scs13", "bst14"):
            able = {name: one for name in _THREE if (one := ratio(found, name, epochs, size, way)) is not None}
            if not able:
                return None
            times = [one for one, _ in able.values()]
            every.append(times)
            low, high = (f"{one:.1f}X" for one in (min(times), max(times)))
            here.append(f"{WAYS[way]} {low}" + (f" to {high}" if high != low else ""))
            listed = ", ".join(f"{one:.2f}X ± {spread:.2f} on {_SHORT[name]}" for name, (one, spread) in able.items())
            details.append(f"{WAYS[way]} over ours, processor time, {_runs(found)} runs: {listed}.")
        return Claim(
            4,
            claim,
            paper,
            ", ".join(here),
            judge(every),
            rule,
            "SCS13 pays for the noise of every update. BST14 pays for drawing its rows at random too, which larger "
            "batches do not make cheaper.",
            details,
        )

    return make


_slower_at_ten = _slower(
    epochs=20,
    size=10,
    claim="b = 10, 20 epochs: SCS13 and BST14 take 2X to 3X as long",
    paper="2X to 3X",
    rule="a rival must take 1.5X to 4X on every dataset. Holds if both do, in part if one does",
    judge=lambda every: _of(all(1.5 <= one <= 4.0 for one in times) for times in every),
)
_slower_at_one = _slower(
    epochs=1,
    size=1,
    claim="b = 1, 1 epoch: SCS13 and BST14 take up to 6X as long",
    paper="6X",
    rule=f"the largest ratio of a rival must reach {REACHED:g} of 6X. Holds if both do, in part if one does",
    judge=lambda every: _of(max(times) >= REACHED * 6.0 for times in every),
)
_even_at_many = _slower(
    epochs=1,
    size=500,
    claim="b = 500: the gap practically disappears",
    paper="no gap",
    rule="a rival must take less than 1.3X on every dataset. Holds if both do, in part if one does",
    judge=lambda every: _of(max(times) < 1.3 for times in every),
)


def _linear(results: Path) -> Claim | None:
    found = Scale().read(results)
    details, most = [], 0
    least: dict[str, float] = {}
    for place, about in PLACES.items():
        straights = {way: line for way in WAYS if (line := straight(found, place, way)) is not None}
        if not straights:
            continue
        for way, line in straights.items():
            least[way] = min(line.squared, least.get(way, 1.0))
            most = max(most, line.rows)
        listed = ", ".join(
            f"{WAYS[way]} {line.nanoseconds:.0f} ns a row (R² = {line.squared:.4f})" for way, line in straights.items()
        )
        details.append(f"{about.title}, to {max(line.rows for line in straights.values()):,} rows: {listed}.")
    if not details:
        return None
    curved = [WAYS[way] for way, one in least.items() if one <= STRAIGHT]
    return Claim(
        5,
        "All algorithms scale linearly, in memory and beyond",
        "linear",
        f"R² ≥ {least['valid']:.4f} for ours, ≥ {min(least.values()):.4f} for all, to {most:,} rows of 50",
        _of(one > STRAIGHT for one in least.values()),
        f"an algorithm is linear if a straight line through its median times of an epoch has R² > {STRAIGHT:g} in all "
        "places. Holds if all four are, in part if some are",
        "Ours makes one scan an epoch, wherever the rows are."
        + f" Not linear: {', '.join(curved)}." * bool(curved)
        + " BST14 draws as many rows as there are; PostgreSQL needs a scan for every 128 MB of them, and so more scans "
        "of more rows.",
        [
            *details,
            f"Medians of {_runs({key: runs for key, runs in found.items() if key[2] != 'prepare'})} runs, b = 1.",
        ],
    )


def _effort(results: Path) -> Claim | None:
    rows = {row["way"]: row for row in Effort().rows(results)}
    if not rows:
        return None
    ours = rows["bolton"]
    return Claim(
        9,
        "Ours needs about 10 lines of Python and none in the engine; the rivals dozens of lines of C",
        "10; 0; dozens",
        f"{ours['controller']}; {ours['engine']}; {rows['scs13']['engine']} and {rows['bst14']['engine']}",
        _of(
            [
                ours["controller"] <= 20,
                ours["engine"] == 0,
                all(rows[way]["engine"] >= 24 for way in ("scs13", "bst14")),
            ]
        ),
        "three parts: at most 20 lines of Python for ours, none in the engine, at least 24 of C for each rival. Holds "
        "if all are so, in part if some are",
        "None of ours are in the engine. Our Python includes what plans and describes a training, and a sensitivity "
        "that holds is more than ten lines.",
        [
            f"{title}: {rows[way]['controller']} lines of Python, {rows[way]['engine']} of C in the engine."
            for way, title in (("bolton", "Ours"), ("scs13", "SCS13"), ("bst14", "BST14"))
        ],
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
    _higgs,
    _kddcup99,
    _batches,
    _effort,
)
