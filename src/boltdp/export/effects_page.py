"""The HTML page of `boltdp show`: drawings of the effects of a model's columns, with bands of noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from boltdp._charts import (
    BAR,
    BELOW,
    HEIGHT,
    LEFT,
    MAX_BARS,
    MAX_NAME,
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
from boltdp.export.effects import Effect, Effects, PairEffect, Panel
from boltdp.export.html_pages import choose_guarantee_class, write_document, write_facts

if TYPE_CHECKING:
    from boltdp.model import Model

#: The height of a cell of a heat map, and of the base of the text above; and the width of a character in a cell, of
#: which one is left empty.
CELL, TITLE, CHARACTER = 24.0, 14.0, 6.2
#: The height of the slanted names below a heat map: what all need, and what each character adds; and the least distance
#: of two of them.
SLANTED, SLANTED_CHARACTER, SLANTED_DISTANCE = 18.0, 4.0, 18.0

Bands: TypeAlias = tuple[tuple[str, float], ...]

#: If the ratio of the gaps between steps of a curve exceeds this, the steps are drawn equally spaced.
MAX_GAP_RATIO = 8.0
#: The maximum number of tick labels between the ends of an axis.
MAX_PLACES = 2
#: The CSS classes of bands of noise, and their half widths in standard deviations.
BANDS: Bands = (("two", 2.0), ("one", 1.0))


def write_effects_page(model: Model, effects: Effects, facts: Sequence[tuple[str, str]], *, top: int) -> str:
    """Write the HTML page of a model: its guarantee, `facts`, and drawings of the `top` columns for each class."""
    title = f"What a model says of {escape_text(model.schema.label)}"
    panels = "".join(_draw_panel(panel, top, effects) for panel in effects.panels)
    if effects.left_out:
        panels += f"<p>{effects.left_out:,} classes more are not shown.</p>"
    guarantee = f'<p class="{choose_guarantee_class(model)}">{escape_text(model.certificate.guarantee(), 5000)}</p>'
    return write_document(title, f"{guarantee}{write_facts(facts, 2000)}{panels}")


def _draw_panel(panel: Panel, top: int, effects: Effects) -> str:
    head = f"<h2>{escape_text(panel.favours)}</h2>" if len(effects.panels) > 1 else ""
    if panel.constant is not None:
        noise = _format_noise(panel.constant_deviation, effects)
        head += f"<p>With everything missing: {panel.constant:+.3g}{noise}</p>"
    drawn = [effect for effect in panel.effects[:top] if effect.kind != "vector"]
    if drawn:
        uneven = any(effect.kind == "number" and _is_uneven(_list_axis_marks(effect)) for effect in drawn)
        head += f'<p class="legend">{escape_text(_write_legend(effects, uneven=uneven), 1000)}</p>'
    parts = ["", ""]
    for effect in panel.effects[:top]:
        parts[not effect.significant] += _draw_effect(effect, effects)
    figures = f'<div class="drawings">{parts[0]}</div>' if parts[0] else ""
    if parts[1]:
        figures += f'<h3>Not significant</h3><div class="drawings grey">{parts[1]}</div>'
    left = len(panel.effects) - top
    more = f"<p>{left:,} more columns are not drawn.</p>" if left > 0 else ""
    return f"<section>{head}{figures}{more}{_draw_pairs(panel, top, effects)}</section>"


def _draw_pairs(panel: Panel, top: int, effects: Effects) -> str:
    """Draw a heat map for each pair of columns, those that are not significant in grey."""
    if not panel.pairs:
        return ""
    parts = ["", ""]
    for pair in panel.pairs[:top]:
        parts[not pair.significant] += _draw_pair(pair, effects)
    legend = (
        "What two columns do together, beyond what each does alone: blue is more, orange is less, and the stronger the "
        "colour, the larger the effect. A missing value has none. Each drawing has its own scale."
    )
    drawn = f'<h3>Pairs of columns</h3><p class="legend">{legend}</p>'
    drawn += f'<div class="drawings">{parts[0]}</div>' if parts[0] else ""
    if parts[1]:
        drawn += f'<h3>Pairs that are not significant</h3><div class="drawings grey">{parts[1]}</div>'
    left = len(panel.pairs) - top
    return drawn + (f"<p>{left:,} more pairs are not drawn.</p>" if left > 0 else "")


def _draw_pair(pair: PairEffect, effects: Effects) -> str:
    """Draw a heat map in SVG: the values of one column across, and those of the other, with more, below one another."""
    title = pair.name
    if len(pair.across) > len(pair.rows):
        pair = pair.transpose()
    rows, columns = pair.rows[:MAX_BARS], pair.across[:MAX_BARS]
    width, reach = (LEFT + WIDTH - NAMES) / len(columns), pair.largest or 1.0
    drawn = [draw_text(NAMES - 6, TITLE, escape_text(pair.columns[0]), "end")]
    drawn.append(draw_text(NAMES, TITLE, f"{escape_text(pair.columns[1])}:"))
    top = float(CELL)
    for name, values, number in zip(rows, pair.effects, range(len(rows)), strict=False):
        drawn.append(draw_text(NAMES - 6, top + CELL / 2 + 4, escape_text(name, MAX_NAME), "end"))
        for place, (column, value) in enumerate(zip(columns, values, strict=False)):
            noise = "" if pair.deviations is None else _format_noise(pair.deviations[number][place], effects)
            said = f"{pair.columns[0]} {name}, {pair.columns[1]} {column}: {value:+.3g}{noise}"
            left, kind, strength = NAMES + place * width, "above" if value > 0 else "below", abs(value) / reach
            drawn.append(
                f"<g><title>{escape_text(said, 300)}</title>"
                f'<rect class="cell {kind}" fill-opacity="{strength:.2f}" x="{left:.1f}" y="{top:g}" '
                f'width="{width:.1f}" height="{CELL:g}"/>'
                f"{_write_in_cell(value, reach, left + width / 2, top, width)}</g>"
            )
        top += CELL
    drawn.append(
        f'<rect class="frame" x="{NAMES:g}" y="{CELL:g}" width="{LEFT + WIDTH - NAMES:.1f}" height="{top - CELL:g}"/>'
    )
    every = math.ceil(SLANTED_DISTANCE / width)
    for place, column in [*enumerate(columns)][::every]:
        at = NAMES + (place + 0.5) * width
        drawn.append(
            f'<text x="{at:.1f}" y="{top + 12:g}" text-anchor="end" transform="rotate(-35 {at:.1f} {top + 12:g})">'
            f"{escape_text(column, MAX_NAME)}</text>"
        )
    row, column, value, _ = pair.list_cells()[0]
    largest = f"{pair.columns[0]} {row} with {pair.columns[1]} {column}: {value:+.3g}"
    alt = f"Heat map of what {pair.columns[0]} and {pair.columns[1]} do together. Largest effect: {largest}"
    texts = [f"largest: {largest}"]
    if len(rows) < len(pair.rows) or len(columns) < len(pair.across):
        texts.append("only the first values of each column are drawn")
    below = SLANTED + SLANTED_CHARACTER * min(MAX_NAME, max(map(len, columns)))
    return draw_figure(title, texts, draw_svg(alt, LEFT + WIDTH, top + below, *drawn))


def _write_in_cell(value: float, reach: float, middle: float, top: float, width: float) -> str:
    """Write an effect into its cell of a heat map, with two digits of the largest one, if it has room there."""
    written = f"{value:+.{max(0, 1 - math.floor(math.log10(reach)))}f}"
    return draw_text(middle, top + CELL / 2 + 4, written, "middle") if CHARACTER * (len(written) + 1) <= width else ""


def _write_legend(effects: Effects, *, uneven: bool) -> str:
    text = (
        f"Lines and bars are effects: {effects.unit}. Each drawing has its own scale. Columns come by the size of "
        "their effects; grey ones cannot be distinguished from noise."
    )
    if uneven:
        text += (
            " Where the steps of a line are close in one place and far in another, they are drawn equally far apart."
        )
    if effects.exact and effects.spread is not None and effects.spread.deviation:
        text += " Shaded: one and two standard deviations of noise."
    return text


def _draw_effect(effect: Effect, effects: Effects) -> str:
    noise = _format_noise(effect.deviation, effects)
    if effect.kind == "vector":
        text = f"<p>A vector: the norm of its weights is {effect.difference:.3g}{noise}.</p>"
        return draw_figure(effect.name, (), text)
    reach, bands = effect.compute_axis_limit(exact=effects.exact), BANDS if effects.exact else ()
    if effect.kind == "number":
        ends = f"{format_number(effect.places[0])} to {format_number(effect.places[-1])}: "
        drawing = _draw_number_effect(effect, reach, bands)
    else:
        ends = "smallest to largest: " if len(effect.labels) > 1 else ""
        drawing = _draw_category_effects(effect, reach, bands)
    said = [f"{ends}{effect.difference:+.3g}{noise}"]
    if effect.missing is not None:
        said.append(f"missing counts as {format_number(effect.missing)}")
    return draw_figure(effect.name, said, drawing)


def _draw_number_effect(effect: Effect, reach: float, bands: Bands) -> str:
    """Draw the effect of a numeric column as a line in SVG, with bands of noise and a tick below each step."""
    marks = _list_axis_marks(effect)
    places = np.interp(marks, marks[:: len(marks) - 1], (0, WIDTH))
    if _is_uneven(marks):
        places = np.linspace(0.0, WIDTH, len(marks))

    def to_points(values: Iterable[float]) -> list[tuple[float, float]]:
        return [
            (float(np.interp(place, marks, places)), HEIGHT / 2 * (1.0 - value / reach))
            for place, value in zip(effect.places, values, strict=True)
        ]

    drawn = ""
    for kind, times in bands:
        noise = times * np.array(effect.deviations)
        upper, lower = to_points(effect.effects + noise), to_points(effect.effects - noise)
        drawn += draw_points("polygon", kind, [*upper, *lower[::-1]])
    drawn += draw_points("polyline", "line", to_points(effect.effects))
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


def _draw_category_effects(effect: Effect, reach: float, bands: Bands) -> str:
    """Draw the effects of categories as bars in SVG, each with its noise, as `_draw_number_effect` does for numbers."""
    middle, right = NAMES + (LEFT + WIDTH - NAMES) / 2, LEFT + WIDTH
    shown = effect.find_largest_categories(MAX_BARS)

    def to_pixels(value: float) -> float:
        return middle + (right - middle) * min(max(value / reach, -1.0), 1.0)

    def draw_row(row: int, top: float) -> str:
        value = effect.effects[shown[row]]
        drawn = draw_box("bar", to_pixels(0.0), to_pixels(value), top + 4, BAR - 8)
        for kind, times in bands:
            noise = times * (effect.deviations or ())[shown[row]]
            drawn += draw_box(kind, to_pixels(value - noise), to_pixels(value + noise), top + 2, BAR - 4)
        return drawn

    def draw_below(height: float) -> str:
        return (
            f'<path class="axis" d="M{middle:g} 0V{height:g}"/>'
            + draw_text(NAMES, height + BELOW - 4, f"{-reach:+.2g}")
            + draw_text(middle, height + BELOW - 4, "0", "middle")
            + draw_text(right, height + BELOW - 4, f"{reach:+.2g}", "end")
        )

    left = len(effect.labels) - len(shown)
    more = f"<p>{left:,} categories with smaller effects are not drawn.</p>" if left else ""
    bars = draw_named_bars(
        effect.name,
        [(effect.labels[index], f"{effect.effects[index]:+.3g}") for index in shown],
        draw_row,
        draw_below,
    )
    return bars + more


def _format_noise(deviation: float | None, effects: Effects) -> str:
    return f", {effects.noise_name} {deviation:.2g}" if deviation else ""
