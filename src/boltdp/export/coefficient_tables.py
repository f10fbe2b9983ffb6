"""The coefficients of a model as text, CSV, LaTeX and an HTML page with a forest plot."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence

from boltdp._charts import BAR, BELOW, draw_box, draw_svg, draw_text, escape_text
from boltdp.errors import make_printable
from boltdp.export.coefficients import Coefficient, Coefficients
from boltdp.export.html_pages import choose_guarantee_class, write_document
from boltdp.model import Model

#: The columns of a table, as MADlib and statsmodels name them.
COLUMNS = ("term", "coef", "std_err", "z", "p_value", "odds_ratio", "low", "high")
#: An interval of whose variance more than this share is noise is wide because of it.
MOSTLY_NOISE = 0.5
#: The width of a forest plot, and of the names to its left.
WIDTH, NAMES = 420.0, 220.0


def list_columns(table: Coefficients) -> tuple[str, ...]:
    """Return the names of the columns; those of a number have no odds ratios."""
    return tuple(name for name in COLUMNS if name != "odds_ratio" or table.has_odds)


def format_cells(table: Coefficients) -> list[tuple[str, ...]]:
    """Return the cells of the table as text."""
    names = list_columns(table)
    return [tuple(_format_cell(line, name) for name in names) for line in table]


def _format_cell(line: Coefficient, name: str) -> str:
    value = getattr(line, name)
    if isinstance(value, str):
        return make_printable(value)
    if name == "p_value":
        return "<0.001" if value < 0.001 else f"{value:.3f}"
    return f"{value:.2f}" if name == "z" else f"{value:.4g}"


def describe_table(table: Coefficients) -> list[str]:
    """Return what a reader must know about the table, a sentence or two each."""
    model, level = table.model, f"{table.level:.0%}" if table.level * 100 % 1 == 0 else f"{table.level:.1%}"
    what = "the log odds" if table.has_odds else f"{model.schema.target.column!r}"
    lines = [
        f"Each coefficient is the change of {what} per unit of its column. In {level} of repeated samples the interval "
        "holds the parameter of the model, if the model holds; the noise of the release is included."
    ]
    for column, reference in table.references.items():
        lines.append(
            f"{make_printable(column)} is compared with {make_printable(reference)}, as which a missing value counts."
        )
    for test in table.joint_tests:
        tail = "< 0.001" if test.p_value < 0.001 else f"= {test.p_value:.3f}"
        lines.append(
            f"All of {make_printable(test.column)}: Wald chi-squared {test.statistic:.2f} with {test.degrees} degrees "
            f"of freedom, p {tail}."
        )
    noisy = [line.term for line in table if line.noise_share > MOSTLY_NOISE]
    if noisy:
        lines.append(
            f"Most of the width is noise for {len(noisy)} of {len(table)} terms: a larger epsilon would narrow them."
        )
    else:
        lines.append("Most of the width of every interval is due to the number of rows, not to noise.")
    if table.warning is not None:
        lines.append(f"Caution: {table.warning}.")
    return lines


def write_text_table(table: Coefficients) -> str:
    """Return the table in aligned columns, and below it what a reader must know."""
    rows = [list_columns(table), *format_cells(table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_align(row, widths) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *describe_table(table)]) + "\n"


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


def write_csv(table: Coefficients) -> str:
    """Return the table as CSV, with all digits."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list_columns(table)
    writer.writerow(names)
    writer.writerows([getattr(line, name) for name in names] for line in table)
    return out.getvalue()


def write_json(table: Coefficients) -> str:
    """Return the table as JSON, with all digits."""
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_latex(table: Coefficients) -> str:
    """Return the table as LaTeX, for the package booktabs."""
    names = list_columns(table)
    rows = [" & ".join(map(_escape_latex, row)) + r" \\" for row in [names, *format_cells(table)]]
    notes = [f"% {line}" for line in describe_table(table)]
    body = [r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
    return "\n".join([*notes, rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", *body, r"\end{tabular}"]) + "\n"


def _escape_latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$"}
    special |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
    return "".join(special.get(sign, sign) for sign in text)


def write_html(table: Coefficients) -> str:
    """Return a page of its own with the table and a forest plot of all terms but the intercept."""
    certificate = table.model.certificate
    title = f"Coefficients: {escape_text(table.model.schema.target.column)}"
    cells = [list_columns(table), *format_cells(table)]
    head, *rows = ("".join(f"<t{tag}>{escape_text(cell, 1000)}</t{tag}>" for cell in row) for tag, row in _tag(cells))
    lines = "".join(f"<p>{escape_text(line, 2000)}</p>" for line in describe_table(table))
    guarantee = f'<p class="{choose_guarantee_class(table.model)}">{escape_text(certificate.guarantee(), 2000)}</p>'
    shown = f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
    return write_document(title, guarantee + draw_forest(table) + shown + lines)


def _tag(cells: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    return [("d" if number else "h", row) for number, row in enumerate(cells)]


def draw_forest(table: Coefficients) -> str:
    """Draw each interval as a line around its estimate: of a number per standard deviation, of a category as it is.

    Odds ratios are on a logarithmic scale.
    """
    units = _list_units(table.model)
    lines = [(line, unit) for line, unit in zip(table, units, strict=False)]
    if not lines:
        return ""
    low = min(0.0, *(line.low * unit for line, unit in lines))
    high = max(0.0, *(line.high * unit for line, unit in lines))
    room = WIDTH / (high - low)

    def place(value: float) -> float:
        return NAMES + (value - low) * room

    parts = [f'<path class="axis" d="M{place(0.0):.1f} 0V{BAR * len(lines):g}"/>']
    for index, (line, unit) in enumerate(lines):
        top = index * BAR
        said = escape_text(f"{line.term}: {line.coef:.4g} ({line.low:.4g} to {line.high:.4g})", 1000)
        parts += [
            draw_text(NAMES - 8, top + 13, f"{escape_text(line.term, 36)}<title>{said}</title>", "end"),
            draw_box("one", place(line.low * unit), place(line.high * unit), top + 7.0, 4.0),
            draw_box("bar", place(line.coef * unit) - 3.0, place(line.coef * unit) + 3.0, top + 6.0, 6.0),
        ]
    ends = [(low, "start"), (0.0, "middle"), (high, "end")]
    for value, anchor in ends:
        shown = math.exp(value) if table.has_odds else value
        if value or anchor == "middle":
            parts.append(draw_text(place(value), BAR * len(lines) + 14, f"{shown:.3g}", anchor))
    what = "odds ratios" if table.has_odds else f"change of {table.model.schema.target.column}"
    drawing = draw_svg("forest plot", NAMES + WIDTH + 8, BAR * len(lines) + BELOW, *parts)
    said = f"{what}: per standard deviation of a number, and of a category against its reference"
    return f'<figure class="wide"><figcaption><span>{escape_text(said, 1000)}</span></figcaption>{drawing}</figure>'


def _list_units(model: Model) -> list[float]:
    """Return the released standard deviation of each feature that is a number, in the units of its column; else 1."""
    units: list[float] = []
    for scaled in model.schema.encoding.scaled_rules:
        count = scaled.rule.number_count
        deviations = 1.0 / (scaled.original_units[1][:count] * model.schema.row_norm)
        units += [*deviations.tolist(), *[1.0] * (scaled.rule.feature_count - count)]
    return units


#: The function that writes each format.
WRITERS: dict[str, Callable[[Coefficients], str]] = {
    "text": write_text_table,
    "csv": write_csv,
    "json": write_json,
    "latex": write_latex,
    "html": write_html,
}
