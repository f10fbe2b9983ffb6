"""An audit as a picture, by matplotlib, which is optional, and as a page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltdp._files import replacing
from boltdp.audit.black_box import CONFIDENCES, BlackBox
from boltdp.audit.exact_loss import Exact
from boltdp.audit.report import Report
from boltdp.errors import ParameterError, require
from boltdp.export.html import document, text_of
from boltdp.export.plots import ENDINGS

BLUE, ORANGE, GREY = "#1f5fbf", "#d9730d", "#6a6a6a"
#: Of a drawing on the page: the frame, and the room to its left, below and above.
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 300.0, 200.0, 54.0, 40.0, 8.0
#: No delta below this is drawn.
SMALLEST = 1e-12

Points = Sequence[tuple[float, float]]


def draw(report: Report, path: str | Path) -> None:
    """Save a picture of what is claimed and what was found."""
    ending = Path(path).suffix
    if ending not in ENDINGS:
        raise ParameterError(f"a picture must end in {' or '.join(ENDINGS)}, got {str(path)!r}")
    require("plot", "a picture")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    count = len(report.exact) + len(report.black_boxes)
    if not count:
        raise ParameterError("a picture must have something to draw, and nothing could be audited")
    with rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.6 * count, 4.2), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
        for place, exact in zip(axes, report.exact, strict=False):
            _draw_exact(place, exact)
        for place, box in zip(axes[len(report.exact) :], report.black_boxes, strict=True):
            _draw_box(place, box)
        figure.suptitle(report.verdict, color="#b00020" if report.broken else "black", fontsize=11)
        with replacing(path) as aside:
            figure.savefig(aside, dpi=150, format=ending[1:])


def _draw_exact(axes: Any, exact: Exact) -> None:
    claimed, found = _curves(exact)
    axes.plot(*zip(*claimed, strict=True), color="black", linestyle="--", label="claimed, at most", zorder=3)
    if found:
        axes.plot(*zip(*found, strict=True), color=BLUE, linewidth=1.8, label="found on the worst rows")
    budget = exact.stage.budget
    axes.axvline(budget.epsilon, color=ORANGE, linewidth=1.0, label=f"claimed epsilon = {budget.epsilon:.3g}")
    axes.set(yscale="log", xlabel="epsilon", ylabel="delta", title=f"Privacy profile: {exact.stage.name}")
    axes.locator_params(axis="x", nbins=5)
    axes.legend(loc="lower left", fontsize=8)


def _draw_box(axes: Any, box: BlackBox) -> None:
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.7)
    axes.plot(*zip(*box.claimed, strict=True), color="black", linestyle="--", label="claimed, at most", zorder=3)
    axes.plot(*zip(*box.rates, strict=True), color=BLUE, linewidth=1.8, label=f"{box.trials:,} trainings on each")
    axes.plot(*box.chosen, "o", color=ORANGE, markeredgecolor="white", label=_proved(box))
    axes.set(xlabel="false positive rate", ylabel="true positive rate", title=f"Attack: {box.stage.name}")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.legend(loc="lower right", fontsize=8)


def _curves(exact: Exact) -> tuple[Points, Points]:
    claimed = [(epsilon, max(delta, SMALLEST)) for epsilon, delta, _ in exact.curve if delta >= SMALLEST]
    found = [(epsilon, delta) for epsilon, _, delta in exact.curve if delta >= SMALLEST]
    return claimed or [(exact.stage.budget.epsilon, SMALLEST)], found


def _proved(box: BlackBox) -> str:
    return f"epsilon = {box.epsilon[0]:.3g} proved at {CONFIDENCES[0]:.0%}"


def page(report: Report, *, planned: bool = False) -> str:
    """The report as a page: the findings, and the same drawings."""
    kind = "guarantee none" if report.broken else "guarantee"
    lines = "".join(
        f"<dt>{text_of(one.method)}, {text_of(one.what)}</dt><dd>{'<b>BROKEN</b>: ' if one.broken else ''}"
        f"{text_of(one.found, 500)} <span class='legend'>(claimed: {text_of(one.claimed)})</span></dd>"
        for one in report.findings
    )
    notes = "".join(f"<p>{text_of(note, 500)}</p>" for note in report.notes)
    figures = "".join(
        _figure(f"Privacy profile: {one.stage.name}", one.pair, _profile(one)) for one in report.exact
    ) + "".join(_figure(f"Attack: {one.stage.name}", _proved(one), _trade_off(one)) for one in report.black_boxes)
    legend = (
        "Blue: what was found. Dashed: the most that the claim allows. Orange: the epsilon that is claimed, and the "
        "threshold of the attack."
    )
    return document(
        "An audit of a claim",
        f"<p>{text_of(report.certificate.guarantee(planned=planned), 5000)}</p>"
        f'<p class="{kind}">{text_of(report.verdict)}</p><dl>{lines}</dl>{notes}'
        f'<p class="legend">{legend}</p><div class="drawings">{figures}</div>',
    )


def _figure(title: str, said: str, drawing: str) -> str:
    return f"<figure><figcaption>{text_of(title)} <span>{text_of(said, 200)}</span></figcaption>{drawing}</figure>"


def _profile(exact: Exact) -> str:
    claimed, found = _curves(exact)
    values = [math.log10(delta) for _, delta in [*claimed, *found]]
    low, high = math.floor(min(values)), math.ceil(max(values) + 1e-9)
    first, last = exact.curve[0][0], exact.curve[-1][0]

    def spots(points: Points) -> Points:
        span = max(high - low, 1)
        return [((x - first) / (last - first), (math.log10(y) - low) / span) for x, y in points]

    mark = (exact.stage.budget.epsilon - first) / (last - first)
    return _frame(
        [("bound", spots(claimed)), ("line", spots(found)), ("mark", [(mark, 0.0), (mark, 1.0)])],
        across=("epsilon", f"{first:.2g}", f"{last:.2g}"),
        up=("delta", f"1e{low}", f"1e{high}"),
    )


def _trade_off(box: BlackBox) -> str:
    lines = [("axis", [(0.0, 0.0), (1.0, 1.0)]), ("bound", box.claimed), ("line", box.rates)]
    return _frame(lines, across=("false positive rate", "0", "1"), up=("true positive rate", "0", "1"), dot=box.chosen)


def _frame(
    lines: Sequence[tuple[str, Points]],
    *,
    across: tuple[str, str, str],
    up: tuple[str, str, str],
    dot: tuple[float, float] | None = None,
) -> str:
    """Lines of points from 0 to 1 in both directions, in a frame with a name and two ends at each side."""

    def spot(x: float, y: float) -> str:
        return f"{LEFT + WIDTH * x:.1f},{ABOVE + HEIGHT * (1.0 - y):.1f}"

    styles = {
        "bound": 'fill="none" stroke="currentColor" stroke-dasharray="4 3"',
        "mark": 'fill="none" stroke="#d9730d"',
    }
    drawn = "".join(
        f'<polyline {styles.get(name, f"""class="{name}" """)} points="{" ".join(spot(x, y) for x, y in points)}"/>'
        for name, points in lines
    )
    if dot is not None:
        x, y = spot(*dot).split(",")
        drawn += f'<circle cx="{x}" cy="{y}" r="4" fill="#d9730d"/>'
    bottom, middle = ABOVE + HEIGHT, ABOVE + HEIGHT / 2
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH + 8:g} {bottom + BELOW:g}" role="img" aria-label="{text_of(up[0])}">'
        f'<path class="axis" d="M{LEFT:g} {ABOVE:g}V{bottom:g}H{LEFT + WIDTH:g}"/>{drawn}'
        f'<text x="{LEFT:g}" y="{bottom + 16:g}">{text_of(across[1])}</text>'
        f'<text x="{LEFT + WIDTH:g}" y="{bottom + 16:g}" text-anchor="end">{text_of(across[2])}</text>'
        f'<text x="{LEFT + WIDTH / 2:g}" y="{bottom + 30:g}" text-anchor="middle">{text_of(across[0])}</text>'
        f'<text x="{LEFT - 4:g}" y="{bottom:g}" text-anchor="end">{text_of(up[1])}</text>'
        f'<text x="{LEFT - 4:g}" y="{ABOVE + 8:g}" text-anchor="end">{text_of(up[2])}</text>'
        f'<text x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">'
        f"{text_of(up[0])}</text>"
        "</svg>"
    )
