"""A picture of a model's effects, drawn by matplotlib, which is optional."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from boltdp._charts import BLUE, GREY, RED, check_can_draw, escape_label, save_figure
from boltdp.errors import ParameterError
from boltdp.export.effects import Effect, Effects
from boltdp.model import Model

#: The maximum number of drawings per row, and of categories per drawing.
MAX_ACROSS, MAX_BARS = 3, 12
MAX_DRAWINGS = 120


def draw_effects(model: Model, effects: Effects, path: str | Path, *, top: int) -> None:
    """Save a picture of the `top` columns with the largest effects, for each class."""
    check_can_draw(path)
    several = len(effects.panels) > 1
    drawings = [
        (effect, panel.compute_axis_limit(top), f"{panel.favours}: {effect.name}" if several else effect.name)
        for panel in effects.panels
        for effect in panel.effects[:top]
    ]
    if len(drawings) > MAX_DRAWINGS:
        raise ParameterError(
            f"a picture must have at most {MAX_DRAWINGS} drawings, got {len(drawings)}",
            hint="--top draws fewer columns",
        )
    across = min(MAX_ACROSS, len(drawings))
    down = math.ceil(len(drawings) / across)
    guarantee = model.certificate.guarantee().partition(":")[0] if model.certificate.private else "NOT PRIVATE"
    bands, noise_is_bound = "", effects.has_upper_bounds
    if noise_is_bound:
        bands = "; dashed: the most that one and two standard deviations of noise can be"
    if effects.spread is not None and effects.spread.exact and effects.spread.deviation:
        bands = "; shaded: one and two standard deviations of noise"
    said = f"{escape_label(guarantee, 160)}\n{escape_label(effects.unit + bands, 160)}"
    with save_figure(path, down=down, across=across, size=(4.2 * across, 2.4 * down + 1.2)) as (figure, axes):
        for place, (effect, reach, title) in zip(axes.flat, drawings, strict=False):
            _draw_effect(place, effect, reach, noise_is_bound=noise_is_bound)
            place.set_title(escape_label(title, 48), fontsize=10)
        for place in axes.flat[len(drawings) :]:
            place.set_axis_off()
        figure.suptitle(said, color="black" if model.certificate.private else RED, fontsize=11)


def _draw_effect(axes: Any, effect: Effect, reach: float, *, noise_is_bound: bool) -> None:
    band: dict[str, Any] = {"color": BLUE, "alpha": 0.2, "linewidth": 0}
    if noise_is_bound:
        band = {"facecolor": "none", "edgecolor": BLUE, "linestyle": "--", "linewidth": 0.7}
    noise = np.array(effect.deviations if effect.deviations is not None else [0.0] * len(effect.effects))
    if effect.kind == "vector":
        axes.text(0.5, 0.5, f"norm of the weights {effect.difference:.3g}", ha="center", va="center")
        axes.set(xticks=[], yticks=[])
        return
    if effect.kind == "number":
        places, values = np.array(effect.places), np.array(effect.effects)
        for times in (2, 1):
            axes.fill_between(places, values - times * noise, values + times * noise, **band)
        axes.plot(places, values, color=BLUE)
        axes.axhline(0.0, color=GREY, linewidth=0.5)
        axes.set(xlim=(places[0], places[-1]), ylim=(-reach, reach))
        axes.locator_params(axis="x", nbins=5)
        return
    shown = list(effect.find_largest_categories(MAX_BARS))
    values, rows = np.array(effect.effects)[shown], np.arange(len(shown))
    axes.barh(rows, values, height=0.5, color=BLUE)
    for times in (2, 1):
        axes.barh(rows, 2 * times * noise[shown], left=values - times * noise[shown], height=0.7, **band)
    axes.axvline(0.0, color=GREY, linewidth=0.5)
    axes.set_yticks(rows, labels=[escape_label(effect.labels[index], 20) for index in shown])
    axes.invert_yaxis()
    axes.set(xlim=(-reach, reach))
