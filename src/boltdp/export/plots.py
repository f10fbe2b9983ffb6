"""A model as a picture, by matplotlib, which is optional."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from boltdp._files import replacing
from boltdp.errors import ParameterError, printable, require
from boltdp.export.effects import Effect, Effects

if TYPE_CHECKING:
    from boltdp.model import Model

ENDINGS = (".png", ".svg")
#: Drawings beside each other, and categories in one, at most.
ACROSS, MOST_BARS = 3, 12
#: Drawings of all classes together, at most: more would be too large for a picture.
MOST_DRAWINGS = 120


def draw(model: Model, effects: Effects, path: str | Path, *, top: int) -> None:
    """Save a picture of the `top` columns with the largest effects, for each class."""
    ending = Path(path).suffix
    if ending not in ENDINGS:
        raise ParameterError(f"a picture must end in {' or '.join(ENDINGS)}, got {str(path)!r}")
    # Only here: it takes a second to import, and is optional.
    require("plot", "a picture")
    from matplotlib.figure import Figure

    several = len(effects.panels) > 1
    drawings = [
        (effect, panel.reach(top), f"{panel.favours}: {effect.name}" if several else effect.name)
        for panel in effects.panels
        for effect in panel.effects[:top]
    ]
    if len(drawings) > MOST_DRAWINGS:
        raise ParameterError(
            f"a picture must have at most {MOST_DRAWINGS} drawings, got {len(drawings)}",
            hint="--top draws fewer columns",
        )
    across = min(ACROSS, len(drawings))
    down = math.ceil(len(drawings) / across)
    figure = Figure(figsize=(4.2 * across, 2.4 * down + 1.2), layout="constrained")
    for axes, (effect, reach, title) in zip(figure.subplots(down, across, squeeze=False).flat, drawings, strict=False):
        _draw(axes, effect, reach, at_most=effects.at_most)
        # A name is no formula, whatever it looks like.
        axes.set_title(printable(title, longest=48), fontsize=10, parse_math=False)
    for axes in figure.axes[len(drawings) :]:
        axes.set_axis_off()
    guarantee = model.certificate.guarantee().partition(":")[0]
    if not model.certificate.private:
        guarantee = "NOT PRIVATE"
    bands = "; dashed: the most that one and two standard deviations of noise can be" if effects.at_most else ""
    if effects.spread is not None and effects.spread.exact and effects.spread.deviation:
        bands = "; shaded: one and two standard deviations of noise"
    said = f"{guarantee}\n{effects.unit}{bands}"
    colour = "black" if model.certificate.private else "#b00020"
    figure.suptitle(printable_lines(said), color=colour, fontsize=11, parse_math=False)
    with replacing(path) as aside, warnings.catch_warnings():
        # A character that the font does not have is drawn as a box.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(aside, dpi=150, format=ending[1:])


def printable_lines(text: str) -> str:
    r"""Each line of a text, printable.

    >>> printable_lines("a\nb\a")
    'a\nb\\x07'
    """
    return "\n".join(printable(line, longest=160) for line in text.split("\n"))


def _draw(axes: Any, effect: Effect, reach: float, *, at_most: bool) -> None:
    band: dict[str, Any] = {"color": "C0", "alpha": 0.2, "linewidth": 0}
    if at_most:
        band = {"facecolor": "none", "edgecolor": "C0", "linestyle": "--", "linewidth": 0.7}
    noise = np.array(effect.deviations if effect.deviations is not None else [0.0] * len(effect.effects))
    if effect.kind == "vector":
        axes.text(0.5, 0.5, f"weights {effect.difference:.3g} long", ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    if effect.kind == "number":
        places, values = np.array(effect.places), np.array(effect.effects)
        for times in (2, 1):
            axes.fill_between(places, values - times * noise, values + times * noise, **band)
        axes.plot(places, values, color="C0")
        axes.axhline(0.0, color="gray", linewidth=0.5)
        axes.set(xlim=(places[0], places[-1]), ylim=(-reach, reach))
        axes.locator_params(axis="x", nbins=5)
        return
    shown = list(effect.largest(MOST_BARS))
    values, rows = np.array(effect.effects)[shown], np.arange(len(shown))
    axes.barh(rows, values, height=0.5, color="C0")
    for times in (2, 1):
        axes.barh(rows, 2 * times * noise[shown], left=values - times * noise[shown], height=0.7, **band)
    axes.axvline(0.0, color="gray", linewidth=0.5)
    labels = [printable(effect.labels[index], longest=20) for index in shown]
    axes.set_yticks(rows, labels=labels, parse_math=False)
    axes.invert_yaxis()
    axes.set(xlim=(-reach, reach))
