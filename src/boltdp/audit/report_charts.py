"""Charts of an audit: as a picture by matplotlib, which is optional, and as an HTML page without dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from boltdp._charts import (
    BLUE,
    ORANGE,
    RED,
    draw_diagonal,
    draw_dot,
    draw_figure,
    draw_lines,
    escape_text,
    label_axes,
    save_figure,
)
from boltdp.audit.black_box import CONFIDENCES, BlackBox
from boltdp.audit.exact_loss import ExactLoss
from boltdp.audit.report import Report
from boltdp.errors import ParameterError
from boltdp.export.html_pages import write_document

#: The smallest delta in a chart.
MIN_DELTA = 1e-12

Points: TypeAlias = Sequence[tuple[float, float]]


def draw_report(report: Report, path: str | Path) -> None:
    """Save a picture of the claimed and the measured privacy of an audit report."""
    count = len(report.exact) + len(report.black_boxes)
    if not count:
        raise ParameterError("a picture must have something to draw, and nothing could be audited")
    with save_figure(path, columns=count, size=(4.6 * count, 4.2)) as (figure, ((*axes,),)):
        for place, exact in zip(axes, report.exact, strict=False):
            _plot_profile(place, exact)
        for place, box in zip(axes[len(report.exact) :], report.black_boxes, strict=True):
            _plot_trade_off(place, box)
        figure.suptitle(report.verdict, color=RED if report.broken else "black", fontsize=11)


def _plot_profile(axes: Any, exact: ExactLoss) -> None:
    claimed, found = _list_points(exact)
    axes.plot(*zip(*claimed, strict=True), color="black", linestyle="--", label="claimed, at most", zorder=3)
    if found:
        axes.plot(*zip(*found, strict=True), color=BLUE, linewidth=1.8, label="found on the worst rows")
    budget = exact.claim.budget
    axes.axvline(budget.epsilon, color=ORANGE, linewidth=1.0, label=f"claimed epsilon = {budget.epsilon:.3g}")
    axes.set(yscale="log")
    axes.locator_params(axis="x", nbins=5)
    label_axes(axes, f"Privacy profile: {exact.claim.name}", "epsilon", "delta", legend="lower left")


def _plot_trade_off(axes: Any, box: BlackBox) -> None:
    draw_diagonal(axes)
    axes.plot(*zip(*box.claimed, strict=True), color="black", linestyle="--", label="claimed, at most", zorder=3)
    axes.plot(*zip(*box.rates, strict=True), color=BLUE, linewidth=1.8, label=f"{box.trials:,} trainings on each")
    draw_dot(axes, *box.chosen, _describe_proved(box))
    title = f"Attack: {box.claim.name}"
    label_axes(axes, title, "false positive rate", "true positive rate", legend="lower right", shares=True)


def _list_points(exact: ExactLoss) -> tuple[Points, Points]:
    claimed = [(epsilon, max(delta, MIN_DELTA)) for epsilon, delta, _ in exact.curve if delta >= MIN_DELTA]
    found = [(epsilon, delta) for epsilon, _, delta in exact.curve if delta >= MIN_DELTA]
    return claimed or [(exact.claim.budget.epsilon, MIN_DELTA)], found


def _describe_proved(box: BlackBox) -> str:
    return f"epsilon = {box.epsilon[0]:.3g} proved at {CONFIDENCES[0]:.0%}"


def write_report_page(report: Report, *, planned: bool = False) -> str:
    """Return an audit report as an HTML page, with its findings and charts."""
    kind = "guarantee none" if report.broken else "guarantee"
    lines = "".join(
        f"<dt>{escape_text(one.method)}, {escape_text(one.what)}</dt><dd>{'<b>BROKEN</b>: ' if one.broken else ''}"
        f"{escape_text(one.found, 500)} <span class='legend'>(claimed: {escape_text(one.claimed)})</span></dd>"
        for one in report.findings
    )
    notes = "".join(f"<p>{escape_text(note, 500)}</p>" for note in report.notes)
    figures = "".join(
        draw_figure(f"Privacy profile: {one.claim.name}", [one.pair], _draw_profile_svg(one)) for one in report.exact
    ) + "".join(
        draw_figure(f"Attack: {one.claim.name}", [_describe_proved(one)], _draw_trade_off_svg(one))
        for one in report.black_boxes
    )
    legend = (
        "Blue: what was found. Dashed: the most that the claim allows. Orange: the epsilon that is claimed, and the "
        "threshold of the attack."
    )
    return write_document(
        "An audit of a claim",
        f"<p>{escape_text(report.certificate.guarantee(planned=planned), 5000)}</p>"
        f'<p class="{kind}">{escape_text(report.verdict)}</p><dl>{lines}</dl>{notes}'
        f'<p class="legend">{legend}</p><div class="drawings">{figures}</div>',
    )


def _draw_profile_svg(exact: ExactLoss) -> str:
    claimed, found = _list_points(exact)
    values = [math.log10(delta) for _, delta in [*claimed, *found]]
    low, high = math.floor(min(values)), math.ceil(max(values) + 1e-9)
    first, last = exact.curve[0][0], exact.curve[-1][0]

    def scale_points(points: Points) -> Points:
        span = max(high - low, 1)
        return [((x - first) / (last - first), (math.log10(y) - low) / span) for x, y in points]

    mark = (exact.claim.budget.epsilon - first) / (last - first)
    return draw_lines(
        [("bound", scale_points(claimed)), ("line", scale_points(found)), ("mark", [(mark, 0.0), (mark, 1.0)])],
        x_axis=("epsilon", f"{first:.2g}", f"{last:.2g}"),
        y_axis=("delta", f"1e{low}", f"1e{high}"),
    )


def _draw_trade_off_svg(box: BlackBox) -> str:
    lines = [("axis", [(0.0, 0.0), (1.0, 1.0)]), ("bound", box.claimed), ("line", box.rates)]
    return draw_lines(
        lines, x_axis=("false positive rate", "0", "1"), y_axis=("true positive rate", "0", "1"), dot=box.chosen
    )
