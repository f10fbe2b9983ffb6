"""Pictures: panels of lines with error bars, in the same colours everywhere, drawn from numbers alone.

Each panel is an SVG of its own, for a page that sets them side by side or one below the other; its colours are those of
the page. All panels of a figure together are one PNG.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Style:
    """How a way looks: the name in the legend, the colour by day and by night, dashes and marker."""

    name: str
    light: str
    dark: str
    dashes: tuple[float, ...] = ()
    marker: str = "o"


#: Ours are blue and green, SCS13 orange, BST14 red; what is not private is dotted, rivals at their best are dashed.
STYLES: Mapping[str, Style] = {
    "noiseless": Style("noiseless", "#5b6470", "#a9b4c0", (), ""),
    "published": Style("ours, as published: not private in Tests 3 and 4", "#2a7ab8", "#6cb6f0", (1, 1.4), "s"),
    "valid": Style("ours, valid", "#12508a", "#8fc7ff", (), "o"),
    "valid-tuned": Style("ours, valid, best λ", "#5a3fa0", "#b9a3ff", (), "v"),
    "trials": Style("ours, valid, tuned by trials", "#5a3fa1", "#b9a3fe", (), "v"),
    "auto": Style("boltdp's default", "#11804f", "#4fd39a", (), "D"),
    "scs13": Style("SCS13, as in the paper", "#c9711a", "#ffae5c", (), "^"),
    "scs13-best": Style("SCS13 at its best", "#c9711b", "#ffae5d", (5, 2), "^"),
    "bst14": Style("BST14, as in the paper", "#b3263f", "#ff7b8f", (), "x"),
    "bst14-best": Style("BST14 at its best", "#b32640", "#ff7b90", (5, 2), "x"),
    "one": Style("1", "#12508b", "#8fc7fe", (), "o"),
    "two": Style("2", "#11804e", "#4fd39b", (), "D"),
    "three": Style("3", "#c9711c", "#ffae5e", (), "^"),
    "four": Style("4", "#b32641", "#ff7b91", (), "x"),
    "one-published": Style("1, as published", "#12508c", "#8fc7fd", (1, 1.4), "o"),
    "two-published": Style("2, as published", "#11804d", "#4fd39c", (1, 1.4), "D"),
    "three-published": Style("3, as published", "#c9711d", "#ffae5f", (1, 1.4), "^"),
    "four-published": Style("4, as published", "#b32642", "#ff7b92", (1, 1.4), "x"),
    "prepare": Style("preparing, once", "#8a8f99", "#8d96a3", (2, 2), "."),
}
INK, FAINT = "#1d2330", "#d3d8df"


@dataclass(frozen=True)
class Series:
    """A line: places, means, and how far the error bars go."""

    style: str
    xs: Sequence[float]
    means: Sequence[float]
    spreads: Sequence[float]
    name: str | None = None  #: in the legend, if not that of the style

    @classmethod
    def through(cls, style: str, points: Sequence[tuple[float, float, float]], *, name: str | None = None) -> Series:
        """A line by its points: place, mean and spread."""
        xs, means, spreads = (tuple(point[part] for point in points) for part in range(3))
        return cls(style, xs, means, spreads, name=name)

    @property
    def label(self) -> str:
        """In the legend."""
        return self.name or STYLES[self.style].name


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `bars` draws the series side by side, by the names of the places."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    log_x: bool = True
    log_y: bool = False
    places: Sequence[str] = ()  #: names of the places 0, 1, ... of bars


def draw(axes: Axes, panel: Panel) -> None:
    """Put a panel on axes."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    for number, series in enumerate(panel.series):
        style = STYLES[series.style]
        if panel.places:
            width = 0.8 / len(panel.series)
            at = [x + (number - (len(panel.series) - 1) / 2) * width for x in series.xs]
            axes.bar(at, series.means, width, color=style.light, label=series.label)
            continue
        axes.errorbar(
            series.xs,
            series.means,
            yerr=series.spreads if any(series.spreads) else None,
            color=style.light,
            linestyle=(0, style.dashes) if style.dashes else "-",
            linewidth=1.6 if style.marker else 1.2,
            marker=style.marker,
            markersize=4,
            markeredgewidth=1.2,
            elinewidth=0.9,
            label=series.label,
        )
    axes.set_title(panel.title.replace(": ", "\n"), fontsize=9.5, color=INK)
    axes.set_xlabel(panel.xlabel, fontsize=8.5, color=INK)
    axes.set_ylabel(panel.ylabel, fontsize=8.5, color=INK)
    axes.patch.set_visible(False)
    axes.tick_params(labelsize=8, color=FAINT, labelcolor=INK)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
    if panel.places:
        axes.set_xticks(range(len(panel.places)), panel.places)
    elif panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(sorted({x for series in panel.series for x in series.xs})))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_locator(NullLocator())


def svg(panel: Panel, *, prefix: str) -> str:
    """A panel as an SVG element whose colours are variables of the page and whose ids begin with a prefix."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix, "font.family": "sans-serif"}):
        figure, axes = plt.subplots(figsize=(3.5, 2.7), layout="constrained")
        figure.patch.set_visible(False)
        draw(axes, panel)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
        plt.close(figure)
    text = slim(written.getvalue(), prefix=prefix)
    for variable, colour in colours().items():
        text = text.replace(colour, f"var(--{variable})")
    label = f"{panel.title}: {panel.ylabel} against {panel.xlabel}".replace('"', "")
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def slim(text: str, *, prefix: str) -> str:
    """The SVG element without what a page does not need: a third of the bytes.

    Nothing is outside of the axes, so that nothing must be clipped; fonts are those of the page; places are to a tenth
    of a point, and only ids that are used are kept.
    """
    text = text[text.index("<svg") :]
    for needless in (
        r"<metadata>.*?</metadata>",
        r"<clipPath.*?</clipPath>",
        r' clip-path="[^"]*"',
        r" font-family: [^;\"]*;",
        r' transform="rotate\(-0 [^"]*\)"',
        r"<style.*?</style>",
        r'(?<=<svg )xmlns:xlink="[^"]*" ',
    ):
        text = re.sub(needless, "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'href="#([^"]+)"', text))
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", text)
    text = text.replace('href="#', f'href="#{prefix}-')
    text = re.sub(r"<[^>]*>", lambda tag: _rounded(tag[0]), text)
    text = re.sub(r" *\n\s*(?=[LMCQz\"])", "", text)
    for _ in range(3):
        text = re.sub(r"<(g|defs)>\s*</\1>", "", text)
    return re.sub(r"\n\s*", "\n", text)


def _rounded(tag: str) -> str:
    """A tag with its numbers to a tenth.

    >>> _rounded('<path d="M 1.234 5.0412">')
    '<path d="M 1.2 5">'
    """
    return re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), tag)


def colours() -> dict[str, str]:
    """The page's variables and the colours by day that stand for them in a picture; no two are the same."""
    return {"ink": INK, "faint": FAINT, **{f"c-{name}": style.light for name, style in STYLES.items()}}


def png(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """All panels of a figure in one picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(3.3 * columns, 2.6 * lines + 0.8), layout="constrained", squeeze=False
    )
    for place, axes in enumerate(grid.flat):
        if place < len(panels):
            draw(axes, panels[place])
        else:
            axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(5, max(1, len(handles))))
    figure.suptitle(title)
    figure.savefig(path, dpi=110, facecolor="white")
    plt.close(figure)
