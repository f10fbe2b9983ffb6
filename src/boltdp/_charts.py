"""Helpers for charts: pictures by matplotlib, which is optional, and inline SVG for HTML pages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeAlias

from boltdp._files.outputs import check_writable, replace_file
from boltdp.errors import ParameterError, make_printable, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
#: Colours of the first line, of marks, of reference lines, and of warnings.
BLUE, ORANGE, GREY, RED = "#2563a8", "#d9822b", "#8a8f98", "#b00020"

_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.12,
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.fonttype": "none",
}


def check_can_draw(path: str | Path) -> None:
    """Raise an error if a picture could not be saved at this path, before anything is computed for it."""
    if Path(path).suffix not in ENDINGS:
        raise ParameterError(f"a picture must end in {', '.join(ENDINGS)}, got {str(path)!r}")
    check_writable(str(path))
    require("plot", "a picture")


@contextmanager
def save_figure(
    path: str | Path, *, columns: int, size: tuple[float, float], rows: int = 1
) -> Iterator[tuple[Figure, Any]]:
    """Yield a matplotlib figure and its `rows` by `columns` axes, and save it to `path` at the end."""
    check_can_draw(path)
    # Imported late: it takes a second, and is optional.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)
        with replace_file(path) as aside, warnings.catch_warnings():
            # A character that is missing in the font is drawn as a box.
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(aside, dpi=150, format=Path(path).suffix[1:])


def escape_label(text: str, longest: int = 24) -> str:
    r"""Return untrusted text for matplotlib, without control characters and formulas.

    >>> print(escape_label("$a$"))
    \$a\$
    """
    return make_printable(text, longest=longest).replace("$", r"\$")


def label_axes(
    axes: Any, title: str, x_label: str, y_label: str, *, legend: str | None = None, shares: bool = False
) -> None:
    """Set the title, the labels and the legend of axes; with `shares`, both axes are from 0 to 1."""
    axes.set_title(title)
    axes.set(xlabel=x_label, ylabel=y_label)
    if shares:
        axes.set(xlim=(-0.015, 1.015), ylim=(-0.015, 1.03))
    if legend is not None and axes.get_legend_handles_labels()[1]:
        axes.legend(loc=legend)


def draw_diagonal(axes: Any) -> None:
    """Draw a dashed diagonal of the unit square, as in an ROC curve."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")


def draw_dot(axes: Any, x: float, y: float, label: str) -> None:
    """Draw a labelled point."""
    axes.plot(x, y, "o", color=ORANGE, markersize=6.5, markeredgecolor="white", label=label, zorder=5)


# ---- inline SVG; export/html_pages.py has the style of its classes ---------------------------------------------------

#: Width and height of a chart's frame, and its left and bottom margins.
WIDTH, HEIGHT, LEFT, BELOW = 240.0, 120.0, 44.0, 18.0
#: Height of a bar with its spacing, and width of the names to its left.
BAR, NAMES = 18.0, 128.0
#: Maximum number of categories in a chart, of characters of a line of their names, and the height of such a line.
MAX_BARS, MAX_NAME, NAME_LINE = 24, 18, 12.0

Points: TypeAlias = Iterable[tuple[float, float]]


def escape_text(text: str, longest: int = 80) -> str:
    """Return untrusted text for HTML, escaped and without control characters."""
    return escape(make_printable(text, longest=longest))


def format_number(value: float) -> str:
    """Format a value of a column, without an exponent where it is short.

    >>> format_number(100_000.0), format_number(-0.25), format_number(3.2e9)
    ('100,000', '-0.25', '3.2e+09')
    """
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e7 else f"{value:,.4g}"


def draw_svg(name: str, width: float, height: float, *parts: str) -> str:
    """Return an SVG element with the given parts."""
    label = escape_text(name, 300)
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def draw_text(x: float, y: float, html: str, anchor: str = "start") -> str:
    """Return an SVG text from escaped HTML; `anchor` says whether x is its start, middle or end."""
    return f'<text x="{x:.4g}" y="{y:g}" text-anchor="{anchor}">{html}</text>'


def draw_box(css_class: str, x1: float, x2: float, top: float, height: float) -> str:
    """Return an SVG rectangle between two horizontal positions, in either order."""
    left, width = min(x1, x2), abs(x1 - x2)
    return f'<rect class="{css_class}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def draw_points(shape: str, css_class: str, points: Points) -> str:
    """Return an SVG polyline or polygon."""
    return f'<{shape} class="{css_class}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def draw_figure(title: str, texts: Iterable[str], drawing: str) -> str:
    """Return an HTML figure with a title and lines of text above the drawing."""
    lines = "".join(f"<span>{escape_text(one, 1000)}</span>" for one in texts)
    return f"<figure><figcaption>{escape_text(title)} {lines}</figcaption>{drawing}</figure>"


def draw_named_bars(
    name: str,
    rows: Sequence[tuple[str, str]],
    draw_row: Callable[[int, float], str],
    draw_below: Callable[[float], str] | None = None,
) -> str:
    """Return an SVG bar chart with a name, in lines if it is long, and a tooltip per row.

    `draw_row` draws a bar from its index and top, `draw_below` what is below all of them from their height.
    """
    drawn, top = "", 0.0
    for index, (label, said) in enumerate(rows):
        lines = wrap(make_printable(label, longest=80), MAX_NAME) or [""]
        drawn += f"<g><title>{escape_text(label)}: {said}</title>"
        for number, line in enumerate(lines):
            drawn += draw_text(NAMES - 6, top + 13 + number * NAME_LINE, escape(line), "end")
        drawn += f"</g>{draw_row(index, top)}"
        top += BAR + (len(lines) - 1) * NAME_LINE
    if draw_below is None:
        return draw_svg(name, LEFT + WIDTH, top, drawn)
    return draw_svg(name, LEFT + WIDTH, top + BELOW, draw_below(top), drawn)


def draw_lines(
    lines: Iterable[tuple[str, Points]],
    *,
    x_axis: tuple[str, str, str],
    y_axis: tuple[str, str, str],
    dot: tuple[float, float] | None = None,
) -> str:
    """Return an SVG line chart in the unit square; `x_axis` and `y_axis` are the name and the two ends of each."""
    width, height, left, above = 300.0, 200.0, 54.0, 8.0

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        return left + width * x, above + height * (1.0 - y)

    parts = [draw_points("polyline", kind, [to_pixels(*point) for point in points]) for kind, points in lines]
    if dot is not None:
        parts.append('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="4"/>'.format(*to_pixels(*dot)))
    bottom, middle = above + height, above + height / 2
    (what, first, last), (value, least, most) = (tuple(map(escape_text, one)) for one in (x_axis, y_axis))
    return draw_svg(
        y_axis[0],
        left + width + 8,
        bottom + 40,
        f'<path class="axis" d="M{left:g} {above:g}V{bottom:g}H{left + width:g}"/>',
        *parts,
        draw_text(left, bottom + 16, first),
        draw_text(left + width, bottom + 16, last, "end"),
        draw_text(left + width / 2, bottom + 30, what, "middle"),
        draw_text(left - 4, bottom, least, "end"),
        draw_text(left - 4, above + 8, most, "end"),
        f'<text x="14" y="{middle:g}" text-anchor="middle" transform="rotate(-90 14 {middle:g})">{value}</text>',
    )
