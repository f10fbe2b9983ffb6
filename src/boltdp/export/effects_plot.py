"""A picture of a model's effects, drawn by matplotlib, which is optional."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._charts import BLUE, GREY, ORANGE, RED, check_can_draw, escape_label, save_figure
from boltdp.errors import ParameterError
from boltdp.export.effects import Effect, Effects, PairEffect
from boltdp.model import Model

#: The maximum number of drawings per row, and of categories per drawing.
MAX_ACROSS, MAX_BARS = 3, 12
MAX_DRAWINGS = 120


def draw_effects(model: Model, effects: Effects, path: str | Path, *, top: int) -> None:
    """Save a picture of the first `top` columns for each class; those that are not significant are grey."""
    check_can_draw(path)
    several = len(effects.panels) > 1
    drawings: list[tuple[Effect | PairEffect, str]] = []
    for panel in effects.panels:
        shown: list[Effect | PairEffect] = [*panel.effects[:top], *panel.pairs[:top]]
        drawings += [(one, f"{panel.favours}: {one.name}" if several else one.name) for one in shown]
    if len(drawings) > MAX_DRAWINGS:
        raise ParameterError(
            f"a picture must have at most {MAX_DRAWINGS} drawings, got {len(drawings)}",
            hint="--top draws fewer columns",
        )
    across = min(MAX_ACROSS, len(drawings))
    down = math.ceil(len(drawings) / across)
    guarantee = model.certificate.guarantee().partition(":")[0] if model.certificate.private else "NOT PRIVATE"
    legend = "; grey: not significant; each with its own scale"
    if effects.exact and effects.spread is not None and effects.spread.deviation:
        legend += "; shaded: one and two standard deviations of noise"
    said = f"{escape_label(guarantee, 160)}\n{escape_label(effects.unit + legend, 200)}"
    with save_figure(path, rows=down, columns=across, size=(4.2 * across, 2.4 * down + 1.2)) as (figure, axes):
        for place, (effect, title) in zip(axes.flat, drawings, strict=False):
            if isinstance(effect, PairEffect):
                _draw_pair(place, effect)
            else:
                _draw_effect(place, effect, exact=effects.exact)
            place.set_title(textwrap.fill(escape_label(title, 200), 48), fontsize=10)
        for place in axes.flat[len(drawings) :]:
            place.set_axis_off()
        figure.suptitle(said, color="black" if model.certificate.private else RED, fontsize=11)


def _draw_pair(axes: Any, pair: PairEffect) -> None:
    """Draw a heat map of what two columns do together, with the effects in it."""
    from matplotlib.colors import LinearSegmentedColormap  # only here: it takes a second, and is optional

    rows, across = pair.rows[:MAX_BARS], pair.across[:MAX_BARS]
    values, reach = np.array(pair.effects)[: len(rows), : len(across)], pair.largest or 1.0
    ends = (ORANGE, BLUE) if pair.significant else (GREY, GREY)
    colors = LinearSegmentedColormap.from_list("effects", [ends[0], "white", ends[1]])
    axes.pcolormesh(values, cmap=colors, vmin=-reach, vmax=reach)
    axes.invert_yaxis()
    for (row, column), value in np.ndenumerate(values):
        axes.text(column + 0.5, row + 0.5, f"{value:+.2g}", ha="center", va="center", fontsize=7)
    axes.grid(visible=False)
    labels = [[textwrap.fill(escape_label(one, 80), 16) for one in names] for names in (across, rows)]
    axes.set_xticks(np.arange(len(across)) + 0.5, labels=labels[0])
    axes.set_yticks(np.arange(len(rows)) + 0.5, labels=labels[1])
    axes.set(xlabel=escape_label(pair.columns[1], 40), ylabel=escape_label(pair.columns[0], 40))


def _draw_effect(axes: Any, effect: Effect, *, exact: bool) -> None:
    color = BLUE if effect.significant else GREY
    band: dict[str, Any] = {"color": color, "alpha": 0.2, "linewidth": 0}
    noise = np.array(effect.deviations if exact else [0.0] * len(effect.effects))
    reach = effect.compute_axis_limit(exact=exact)
    if effect.kind == "vector":
        axes.text(0.5, 0.5, f"norm of the weights {effect.difference:.3g}", ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    if effect.kind == "number":
        places, values = np.array(effect.places), np.array(effect.effects)
        for times in (2, 1):
            axes.fill_between(places, values - times * noise, values + times * noise, **band)
        axes.plot(places, values, color=color)
        axes.axhline(0.0, color=GREY, linewidth=0.5)
        axes.set(xlim=(places[0], places[-1]), ylim=(-reach, reach))
        axes.locator_params(axis="x", nbins=5)
        return
    shown = list(effect.find_largest_categories(MAX_BARS))
    values, rows = np.array(effect.effects)[shown], np.arange(len(shown))
    axes.barh(rows, values, height=0.5, color=color)
    for times in (2, 1):
        axes.barh(rows, 2 * times * noise[shown], left=values - times * noise[shown], height=0.7, **band)
    axes.axvline(0.0, color=GREY, linewidth=0.5)
    axes.set_yticks(rows, labels=[textwrap.fill(escape_label(effect.labels[index], 80), 24) for index in shown])
    axes.invert_yaxis()
    axes.set(xlim=(-reach, reach))
