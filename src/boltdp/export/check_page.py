"""The HTML page of `boltdp check`: rows compared with a schema, as histograms and counts of each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    draw_svg,
    draw_text,
    escape_text,
    format_number,
)
from boltdp.export.html_pages import write_document, write_facts

if TYPE_CHECKING:
    from boltdp.schema.check import CheckedColumn, CheckReport

#: The gap between the bars of a histogram within the bounds and those beyond them.
GAP = 6.0


def write_check_page(report: CheckReport, schema: str) -> str:
    """Write the HTML page of a `boltdp check` report; `schema` is the name of the schema file."""
    from boltdp.schema.check import NOT_PRIVATE, RULE

    title = f"{report.rows:,} rows compared with {escape_text(schema)}"
    lines = "".join(f"<li>{escape_text(problem, 1000)}</li>" for problem in report.problems)
    garbage = f"<p>Training would learn garbage:</p><ul>{lines}</ul>"
    verdict = garbage if lines else "<p>Training can learn from such rows.</p>"
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
    """Draw a histogram of a numeric column in SVG: counts within the bounds, which are lines, and beyond them."""
    assert column.low is not None
    assert column.high is not None
    largest, wide = max(*column.bars, column.below, column.above, 1), (WIDTH - 2 * GAP) / (len(column.bars) + 2)

    def draw_bar(kind: str, left: float, count: int) -> str:
        tall = HEIGHT * count / largest
        return draw_box(kind, left, left + 0.9 * wide, HEIGHT - tall, tall)

    inner = wide + GAP
    drawn = draw_bar("one", 0.0, column.below) + draw_bar("one", WIDTH - wide, column.above)
    drawn += "".join(draw_bar("bar", inner + place * wide, count) for place, count in enumerate(column.bars))
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
    """Draw the counts of each declared value, of undeclared ones and of missing cells as bars in SVG."""
    counts = [*column.counts[:MAX_BARS], ("not declared", column.undeclared), ("missing", column.missing)]
    largest, left = max(1, *(count for _, count in counts)), len(column.counts) - MAX_BARS

    def draw_row(row: int, top: float) -> str:
        kind = "bar" if row < len(counts) - 2 else "one"
        return draw_box(kind, NAMES, NAMES + (LEFT + WIDTH - NAMES) * counts[row][1] / largest, top + 4, BAR - 8)

    more = f"<p>{left:,} more are not drawn.</p>" if left > 0 else ""
    return draw_named_bars(column.name, [(name, f"{count:,}") for name, count in counts], draw_row) + more
