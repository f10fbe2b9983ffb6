"""The report of a check as one page of HTML with a drawing of each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from boltdp.export.html import (
    BAR,
    BELOW,
    HEIGHT,
    LEFT,
    LONGEST_NAME,
    MOST_BARS,
    NAMES,
    WIDTH,
    box,
    document,
    place_of,
    text_of,
)

if TYPE_CHECKING:
    from boltdp.schema.check import CheckedColumn, Report

#: Between the bars of what is within the bounds and those of what is not.
GAP = 6.0


def write_page(report: Report, schema: str) -> str:
    """The page of a report; `schema` is the name of the schema file."""
    from boltdp.schema.check import NOT_PRIVATE, RULE

    title = f"{report.rows:,} rows compared with {text_of(schema)}"
    lines = "".join(f"<li>{text_of(problem, 1000)}</li>" for problem in report.problems)
    verdict = (
        f"<p>Training would learn garbage:</p><ul>{lines}</ul>"
        if lines
        else "<p>Training can learn from such rows.</p>"
    )
    unused = "".join(f"<dt>{text_of(name)}</dt><dd>{text_of(why)}</dd>" for name, why in report.unused)
    figures = "".join(_figure(column) for column in report.columns)
    return document(
        title,
        f'<p class="guarantee none">{text_of(NOT_PRIVATE, 1000)}.</p>{verdict}'
        f'<p class="legend">{text_of(RULE, 1000)}.</p>'
        f'<div class="drawings">{figures}</div>'
        + (f"<h2>Columns that are not used</h2><dl>{unused}</dl>" if unused else ""),
    )


def _figure(column: CheckedColumn) -> str:
    findings = "".join(f"<span>{text_of(finding, 1000)}</span>" for finding in column.findings)
    drawing = _histogram(column) if column.bars else _counts(column)
    head = f"{text_of(column.name)} <span>{column.role}</span>{findings}"
    return f"<figure><figcaption>{head}</figcaption>{drawing if column.fault is None else ''}</figure>"


def _histogram(column: CheckedColumn) -> str:
    """How often numbers occur between the bounds, which are lines, and on the outer sides of them."""
    assert column.low is not None
    assert column.high is not None
    largest, wide = max(*column.bars, column.below, column.above, 1), (WIDTH - 2 * GAP) / (len(column.bars) + 2)

    def bar(kind: str, left: float, count: int) -> str:
        tall = HEIGHT * count / largest
        return box(kind, left, left + 0.9 * wide, HEIGHT - tall, tall)

    inner = wide + GAP
    drawn = bar("one", 0.0, column.below) + bar("one", WIDTH - wide, column.above)
    drawn += "".join(bar("bar", inner + place * wide, count) for place, count in enumerate(column.bars))
    low, high = inner - GAP / 2, WIDTH - inner + GAP / 2
    bottom = HEIGHT + BELOW - 4
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {HEIGHT + BELOW:g}" role="img" aria-label="{text_of(column.name)}">{drawn}'
        f'<path class="axis" d="M{low:g} 0V{HEIGHT:g}M{high:g} 0V{HEIGHT:g}M0 {HEIGHT:g}H{WIDTH:g}"/>'
        f'<text x="{low:g}" y="{bottom:g}">{place_of(column.low)}</text>'
        f'<text x="{high:g}" y="{bottom:g}" text-anchor="end">{place_of(column.high)}</text></svg>'
    )


def _counts(column: CheckedColumn) -> str:
    """How often each declared value occurs, and all others together."""
    counts = [*column.counts[:MOST_BARS], ("not declared", column.undeclared), ("missing", column.missing)]
    largest, drawn = max(1, *(count for _, count in counts)), ""
    for row, (name, count) in enumerate(counts):
        kind = "bar" if row < len(counts) - 2 else "one"
        top, end = row * BAR, NAMES + (LEFT + WIDTH - NAMES) * count / largest
        drawn += f'<text x="{NAMES - 6:g}" y="{top + 13:g}" text-anchor="end">{text_of(name, LONGEST_NAME)}'
        drawn += f"<title>{text_of(name)}: {count:,}</title></text>{box(kind, NAMES, end, top + 4, BAR - 8)}"
    left = len(column.counts) - MOST_BARS
    more = f"<p>{left:,} more are not drawn.</p>" if left > 0 else ""
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {BAR * len(counts):g}" role="img" aria-label="{text_of(column.name)}">'
        f"{drawn}</svg>{more}"
    )
