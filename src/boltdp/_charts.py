"""How charts are drawn, for all that draw: pictures by matplotlib, which is optional, and inline SVG for HTML pages."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boltdp._files import check_writable, replacing
from boltdp.errors import ParameterError, printable, require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
#: The first line, what is marked, lines of reference, and warnings.
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


def check_picture(path: str | Path) -> None:
    """Refuse a picture that cannot be drawn; called before anything is computed for it."""
    if Path(path).suffix not in ENDINGS:
        raise ParameterError(f"a picture must end in {', '.join(ENDINGS)}, got {str(path)!r}")
    check_writable(str(path))
    require("plot", "a picture")


@contextmanager
def picture(
    path: str | Path, *, across: int, size: tuple[float, float], down: int = 1
) -> Iterator[tuple[Figure, npt.NDArray[np.object_]]]:
    """A figure with `down` rows of `across` axes, which is saved at the end."""
    check_picture(path)
    # Only here: it takes a second to import, and is optional.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(down, across, squeeze=False)
        with replacing(path) as aside, warnings.catch_warnings():
            # A character that the font does not have is drawn as a box.
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(aside, dpi=150, format=Path(path).suffix[1:])


def plain(text: str, longest: int = 24) -> str:
    r"""A text of unknown origin as matplotlib draws it: no formula, whatever it looks like.

    >>> print(plain("$a$"))
    \$a\$
    """
    return printable(text, longest=longest).replace("$", r"\$")


def finish(axes: Any, title: str, across: str, up: str, *, legend: str | None = None, shares: bool = False) -> None:
    """Give axes their texts, and their legend if something has a label; `shares` are from 0 to 1 both ways."""
    axes.set_title(title)
    axes.set(xlabel=across, ylabel=up)
    if shares:
        axes.set(xlim=(-0.015, 1.015), ylim=(-0.015, 1.03))
    if legend is not None and axes.get_legend_handles_labels()[1]:
        axes.legend(loc=legend)


def diagonal(axes: Any) -> None:
    """Where two shares are equal."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle="--")


def mark(axes: Any, across: float, up: float, label: str) -> None:
    """A dot."""
    axes.plot(across, up, "o", color=ORANGE, markersize=6.5, markeredgecolor="white", label=label, zorder=5)
