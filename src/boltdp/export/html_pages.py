"""Self-contained HTML pages of a model and of the report of `boltdp check`, in which all texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from boltdp._charts import (
    BAR,
    BELOW,
    HEIGHT,
    LEFT,
    MAX_BARS,
    NAMES,
    WIDTH,
    draw_box,
    draw_figure,
    draw_named_bars,
    draw_points,
    draw_svg,
    draw_text,
    escape_text,
    format_number,
)
from boltdp.export.effects import Effect, Effects, Panel

if TYPE_CHECKING:
    from boltdp.model import Model
    from boltdp.schema.check import CheckedColumn, Report

#: The maximum extent of a drawing's axis, as a multiple of the largest effect.
MAX_REACH = 1.5
#: If the ratio of the gaps between steps of a curve exceeds this, the steps are drawn equally spaced.
MAX_GAP_RATIO = 8.0
#: The maximum number of tick labels between the ends of an axis.
MAX_PLACES = 2
#: The gap between the bars of a histogram within the bounds and those beyond them.
GAP = 6.0

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6a6a6a; --paper: #ffffff; --rule: #d8d8d8; --line: #1f5fbf;
  --one: #1f5fbf55; --two: #1f5fbf26; --warn: #b00020; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a0a0a0; --paper: #161616; --rule: #3a3a3a;
  --line: #7fb0ff; --one: #7fb0ff55; --two: #7fb0ff2b; --warn: #ff7a8a; --good: #7fd6a0; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.guarantee { border-left: 4px solid var(--good); padding: .5rem 1rem; }
.guarantee.none { border-color: var(--warn); color: var(--warn); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
.legend { color: var(--soft); }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { border-top: 1px solid var(--rule); padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top; }
.drawings { columns: 19rem; column-gap: 1.25rem; }
figure { margin: 0 0 1.25rem; border-top: 1px solid var(--rule); padding-top: .5rem; break-inside: avoid; }
figcaption { overflow-wrap: anywhere; font-weight: 600; margin-bottom: .25rem; }
figcaption span { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
figure > svg { display: block; width: 100%; max-width: 26rem; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; } .bar { fill: var(--line); }
.one { fill: var(--one); } .two { fill: var(--two); }
.most .one, .most .two { fill: none; stroke: var(--soft); }
.most .one { stroke-width: 1; } .most .two { stroke-width: .75; stroke-dasharray: 3 3; }
.axis { stroke: var(--rule); fill: none; }
.bound { fill: none; stroke: currentColor; stroke-dasharray: 4 3; }
.mark { fill: none; stroke: #d9822b; } .dot { fill: #d9822b; }
"""


def write_model_page(model: Model, effects: Effects, facts: Sequence[tuple[str, str]], *, top: int) -> str:
    """Write the page, with `facts` below the guarantee and drawings of the `top` columns for each class."""
    title = f"What a model says of {escape_text(model.schema.label)}"
    panels = "".join(_draw_panel(panel, top, effects) for panel in effects.panels)
    if effects.left_out:
        panels += f"<p>{effects.left_out:,} classes more are not shown.</p>"
    bands = "most" if effects.has_upper_bounds else "exact"
    guarantee = f'<p class="{choose_guarantee_class(model)}">{escape_text(model.certificate.guarantee(), 5000)}</p>'
    return write_document(title, f'{guarantee}{write_facts(facts, 2000)}<div class="{bands}">{panels}</div>')


def choose_guarantee_class(model: Model) -> str:
    """Return the CSS class of the paragraph with the guarantee."""
    return "guarantee" if model.certificate.private else "guarantee none"


def write_facts(facts: Iterable[tuple[str, str]], longest: int = 80) -> str:
    """Write names and texts as an HTML list; nothing if there are none."""
    lines = "".join(f"<dt>{escape_text(name)}</dt><dd>{escape_text(text, longest)}</dd>" for name, text in facts)
    return f"<dl>{lines}</dl>" if lines else ""


def write_document(title: str, body: str) -> str:
    """Write a self-contained HTML page; title and body must be HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _draw_panel(panel: Panel, top: int, effects: Effects) -> str:
    head = f"<h2>{escape_text(panel.favours)}</h2>" if len(effects.panels) > 1 else ""
    at_most, reach = effects.has_upper_bounds, panel.compute_axis_limit(top, max_reach=MAX_REACH)
    if panel.constant is not None:
        noise = _format_noise(panel.constant_deviation, at_most=at_most)
        head += f"<p>With everything missing: {panel.constant:+.3g}{noise}</p>"
    drawn = [effect for effect in panel.effects[:top] if effect.kind != "vector"]
    if drawn:
        uneven = any(effect.kind == "number" and _is_uneven(_list_axis_marks(effect)) for effect in drawn)
        head += f'<p class="legend">{escape_text(_write_legend(reach, effects, uneven=uneven), 1000)}</p>'
    figures = "".join(_draw_effect(effect, reach, at_most=at_most) for effect in panel.effects[:top])
    left = len(panel.effects) - top
    more = f"<p>{left:,} columns with smaller effects are not drawn.</p>" if left > 0 else ""
    return f'<section>{head}<div class="drawings">{figures}</div>{more}</section>'


def _write_legend(reach: float, effects: Effects, *, uneven: bool) -> str:
    text = f"Lines and bars are effects: {effects.unit}, from {-reach:+.2g} to {reach:+.2g} in every drawing."
    if uneven:
        text += (
            " Where the steps of a line are close in one place and far in another, they are drawn equally far apart."
        )
    if effects.spread is None or not effects.spread.deviation:
        return text
    if effects.has_upper_bounds:
        return f"{text} Thin and dashed: the most that one and two standard deviations of noise can be."
    return f"{text} Shaded: one and two standard deviations of noise."


def _draw_effect(effect: Effect, reach: float, *, at_most: bool) -> str:
    noise = _format_noise(effect.deviation, at_most=at_most)
    if effect.kind == "vector":
        said = f"<p>A vector: the norm of its weights is {effect.difference:.3g}{noise}.</p>"
        return draw_figure(effect.name, (), said)
    if effect.kind == "number":
        ends = f"{format_number(effect.places[0])} to {format_number(effect.places[-1])}: "
        drawing = _draw_line(effect, reach, at_most=at_most)
    else:
        ends = "smallest to largest: " if len(effect.labels) > 1 else ""
        drawing = _draw_bars(effect, reach, at_most=at_most)
    return draw_figure(effect.name, [f"{ends}{effect.difference:+.3g}{noise}"], drawing)


def _draw_line(effect: Effect, reach: float, *, at_most: bool) -> str:
    """Draw the effect of a number as a line, with bands of noise, and a tick below each step."""
    marks = _list_axis_marks(effect)
    places = (
        np.linspace(0.0, WIDTH, len(marks))
        if _is_uneven(marks)
        else np.interp(marks, marks[:: len(marks) - 1], (0, WIDTH))
    )

    def points(values: Iterable[float]) -> list[tuple[float, float]]:
        return [
            (float(np.interp(place, marks, places)), HEIGHT / 2 * (1.0 - value / reach))
            for place, value in zip(effect.places, values, strict=True)
        ]

    drawn = ""
    for kind, times in (("two", 2.0), ("one", 1.0)) if effect.deviations is not None else ():
        noise = times * np.array(effect.deviations)
        upper, lower = points(effect.effects + noise), points(effect.effects - noise)
        if at_most:
            drawn += draw_points("polyline", kind, upper) + draw_points("polyline", kind, lower[::-1])
        else:
            drawn += draw_points("polygon", kind, [*upper, *lower[::-1]])
    drawn += draw_points("polyline", "line", points(effect.effects))
    ticks = "".join(f"M{LEFT + place:.1f} {HEIGHT:g}v4" for place in places)
    texts = [
        draw_text(LEFT - 4, 10, f"{reach:+.2g}", "end"),
        draw_text(LEFT - 4, HEIGHT / 2 + 4, "0", "end"),
        draw_text(LEFT - 4, HEIGHT, f"{-reach:+.2g}", "end"),
    ]
    for mark in sorted({round(part) for part in np.linspace(0, len(marks) - 1, MAX_PLACES + 2)}):
        anchor = "start" if mark == 0 else "end" if mark == len(marks) - 1 else "middle"
        texts.append(draw_text(LEFT + places[mark], HEIGHT + BELOW - 2, format_number(marks[mark]), anchor))
    return draw_svg(
        effect.name,
        LEFT + WIDTH,
        HEIGHT + BELOW,
        f'<path class="axis" d="M{LEFT:g} 0V{HEIGHT:g}M{LEFT:g} {HEIGHT / 2:g}H{LEFT + WIDTH:g}{ticks}"/>',
        # The inner picture clips what is outside of its frame.
        f'<svg x="{LEFT:g}" y="0" width="{WIDTH:g}" height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">',
        drawn,
        "</svg>",
        *texts,
    )


def _list_axis_marks(effect: Effect) -> list[float]:
    """List the numbers to mark on the axis of an effect: the bounds and the steps of a column."""
    return sorted({place for place, _, _ in effect.corners})


def _is_uneven(marks: Sequence[float]) -> bool:
    """Return whether the gaps between steps, without those to the ends, differ by more than `MAX_GAP_RATIO`."""
    gaps = np.diff(marks)[1:-1]
    return len(gaps) > 1 and bool(gaps.max() > MAX_GAP_RATIO * gaps.min())


def _draw_bars(effect: Effect, reach: float, *, at_most: bool) -> str:
    middle, right = NAMES + (LEFT + WIDTH - NAMES) / 2, LEFT + WIDTH
    shown = effect.find_largest_categories(MAX_BARS)

    def across(value: float) -> float:
        return middle + (right - middle) * min(max(value / reach, -1.0), 1.0)

    def draw_row(row: int, top: float) -> str:
        value = effect.effects[shown[row]]
        drawn = draw_box("bar", across(0.0), across(value), top + 4, BAR - 8)
        for kind, times in (("two", 2.0), ("one", 1.0)) if effect.deviations is not None else ():
            noise = times * (effect.deviations or ())[shown[row]]
            ends = across(value - noise), across(value + noise)
            if at_most:
                drawn += _draw_whisker(kind, *ends, top + BAR / 2, 2.0 * times)
            else:
                drawn += draw_box(kind, *ends, top + 2, BAR - 4)
        return drawn

    height, left = BAR * len(shown), len(effect.labels) - len(shown)
    more = f"<p>{left:,} categories with smaller effects are not drawn.</p>" if left else ""
    bars = draw_named_bars(
        effect.name,
        [(effect.labels[index], f"{effect.effects[index]:+.3g}") for index in shown],
        draw_row,
        f'<path class="axis" d="M{middle:g} 0V{height:g}"/>',
        draw_text(NAMES, height + BELOW - 4, f"{-reach:+.2g}"),
        draw_text(middle, height + BELOW - 4, "0", "middle"),
        draw_text(right, height + BELOW - 4, f"{reach:+.2g}", "end"),
    )
    return bars + more


def _draw_whisker(name: str, one: float, other: float, middle: float, height: float) -> str:
    ends = f"M{one:.1f} {middle - height:g}v{2 * height:g}M{other:.1f} {middle - height:g}v{2 * height:g}"
    return f'<path class="{name}" d="M{one:.1f} {middle:g}H{other:.1f}{ends}"/>'


def _format_noise(deviation: float | None, *, at_most: bool) -> str:
    return "" if not deviation else f" ± {deviation:.2g} of noise{' at most' if at_most else ''}"


def write_check_page(report: Report, schema: str) -> str:
    """Write the page of a `boltdp check` report; `schema` is the name of the schema file."""
    from boltdp.schema.check import NOT_PRIVATE, RULE

    title = f"{report.rows:,} rows compared with {escape_text(schema)}"
    lines = "".join(f"<li>{escape_text(problem, 1000)}</li>" for problem in report.problems)
    verdict = (
        f"<p>Training would learn garbage:</p><ul>{lines}</ul>"
        if lines
        else "<p>Training can learn from such rows.</p>"
    )
    unused = write_facts(report.unused)
    figures = ""
    for column in report.columns:
        draw = _draw_histogram if column.bars else _draw_value_counts
        drawing = draw(column) if column.fault is None else ""
        figures += draw_figure(column.name, (column.role, *column.findings), drawing)
    return write_document(
        title,
        f'<p class="guarantee none">{escape_text(NOT_PRIVATE, 1000)}.</p>{verdict}'
        f'<p class="legend">{escape_text(RULE, 1000)}.</p>'
        f'<div class="drawings">{figures}</div>' + (f"<h2>Columns that are not used</h2>{unused}" if unused else ""),
    )


def _draw_histogram(column: CheckedColumn) -> str:
    """Draw a histogram of the numbers within the bounds, which are lines, and beyond them."""
    assert column.low is not None
    assert column.high is not None
    largest, wide = max(*column.bars, column.below, column.above, 1), (WIDTH - 2 * GAP) / (len(column.bars) + 2)

    def bar(kind: str, left: float, count: int) -> str:
        tall = HEIGHT * count / largest
        return draw_box(kind, left, left + 0.9 * wide, HEIGHT - tall, tall)

    inner = wide + GAP
    drawn = bar("one", 0.0, column.below) + bar("one", WIDTH - wide, column.above)
    drawn += "".join(bar("bar", inner + place * wide, count) for place, count in enumerate(column.bars))
    low, high = inner - GAP / 2, WIDTH - inner + GAP / 2
    return draw_svg(
        column.name,
        LEFT + WIDTH,
        HEIGHT + BELOW,
        drawn,
        f'<path class="axis" d="M{low:g} 0V{HEIGHT:g}M{high:g} 0V{HEIGHT:g}M0 {HEIGHT:g}H{WIDTH:g}"/>',
        draw_text(low, HEIGHT + BELOW - 4, format_number(column.low)),
        draw_text(high, HEIGHT + BELOW - 4, format_number(column.high), "end"),
    )


def _draw_value_counts(column: CheckedColumn) -> str:
    counts = [*column.counts[:MAX_BARS], ("not declared", column.undeclared), ("missing", column.missing)]
    largest, left = max(1, *(count for _, count in counts)), len(column.counts) - MAX_BARS

    def draw_row(row: int, top: float) -> str:
        kind = "bar" if row < len(counts) - 2 else "one"
        return draw_box(kind, NAMES, NAMES + (LEFT + WIDTH - NAMES) * counts[row][1] / largest, top + 4, BAR - 8)

    more = f"<p>{left:,} more are not drawn.</p>" if left > 0 else ""
    return draw_named_bars(column.name, [(name, f"{count:,}") for name, count in counts], draw_row) + more
