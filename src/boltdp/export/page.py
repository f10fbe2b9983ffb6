"""A model as one page of HTML: nothing is loaded from elsewhere, and nothing in a model file is taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from boltdp.errors import printable
from boltdp.export.effects import Effect, Effects, Panel

if TYPE_CHECKING:
    from boltdp.model import Model

#: Categories of one column that are drawn, at most.
MOST_BARS = 24

#: Of a drawing of a number, in units of the picture: the frame, and the room to its left and below it.
WIDTH, HEIGHT, LEFT, BELOW = 240.0, 120.0, 44.0, 18.0
#: Of a bar, with the room to the next; and of the names to its left.
BAR, NAMES = 18.0, 110.0

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6a6a6a; --paper: #ffffff; --rule: #d8d8d8; --line: #1f5fbf;
  --one: #1f5fbf55; --two: #1f5fbf26; --warn: #b00020; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a0a0a0; --paper: #161616; --rule: #3a3a3a;
  --line: #7fb0ff; --one: #7fb0ff55; --two: #7fb0ff2b; --warn: #ff7a8a; --good: #7fd6a0; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.promise { border-left: 4px solid var(--good); padding: .5rem 1rem; }
.promise.none { border-color: var(--warn); color: var(--warn); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1.25rem; }
figure { margin: 0; border-top: 1px solid var(--rule); padding-top: .5rem; }
figcaption { overflow-wrap: anywhere; font-weight: 600; } figcaption span { color: var(--soft); font-weight: 400; }
figure > svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; } .bar { fill: var(--line); }
.one { fill: var(--one); } .two { fill: var(--two); }
.most .one, .most .two { fill: none; stroke: var(--line); stroke-width: .75; stroke-dasharray: 3 3; }
.axis { stroke: var(--rule); fill: none; }
"""


def page(model: Model, effects: Effects, facts: Sequence[tuple[str, str]], *, top: int) -> str:
    """The page; `facts` are lines below the promise, and `top` columns are drawn for each class."""
    certificate = model.certificate
    kind = "promise" if certificate.private else "promise none"
    title = f"What a model says of {_text(model.schema.label)}"
    lines = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value, 2000)}</dd>" for name, value in facts)
    panels = "".join(_panel(panel, top, several=len(effects.panels) > 1) for panel in effects.panels)
    if effects.left_out:
        panels += f"<p>{effects.left_out:,} classes more are not shown.</p>"
    bands = "most" if effects.at_most else "exact"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>"
        f'<p class="{kind}">{_text(certificate.promise(), 5000)}</p><dl>{lines}</dl>'
        f'<div class="{bands}">{panels}</div></main></body></html>\n'
    )


def _panel(panel: Panel, top: int, *, several: bool) -> str:
    head = f"<h2>{_text(panel.favours)}</h2>" if several else ""
    if panel.constant is not None:
        head += f"<p>With everything missing: {_signed(panel.constant, panel.constant_deviation)}</p>"
    reach = panel.reach(top)
    figures = "".join(_figure(effect, reach) for effect in panel.effects[:top])
    left = len(panel.effects) - top
    more = f"<p>{left:,} columns with smaller effects are not drawn.</p>" if left > 0 else ""
    return f'<section>{head}<div class="grid">{figures}</div>{more}</section>'


def _figure(effect: Effect, reach: float) -> str:
    told = _signed(effect.difference, effect.deviation)
    if effect.kind == "vector":
        return (
            f"<figure><figcaption>{_text(effect.name)}</figcaption>"
            f"<p>A vector: its weights are {effect.difference:.3g} long{_noise(effect.deviation)}.</p></figure>"
        )
    drawing = _line(effect, reach) if effect.kind == "number" else _bars(effect, reach)
    return f"<figure><figcaption>{_text(effect.name)} <span>{told}</span></figcaption>{drawing}</figure>"


def _line(effect: Effect, reach: float) -> str:
    """A number: its line, with the bands around it."""
    low, high = effect.places[0], effect.places[-1]

    def across(place: float) -> float:
        return WIDTH * (place - low) / (high - low)

    def down(value: float) -> float:
        return HEIGHT / 2 * (1.0 - value / reach)

    def points(pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{across(place):.1f},{down(value):.1f}" for place, value in pairs)

    bands = ""
    for name, times in (("two", 2.0), ("one", 1.0)) if effect.deviations is not None else ():
        known = [*zip(effect.places, effect.effects, effect.deviations or (), strict=True)]
        upper = [(place, value + times * noise) for place, value, noise in known]
        lower = [(place, value - times * noise) for place, value, noise in reversed(known)]
        bands += f'<polygon class="{name}" points="{points([*upper, *lower])}"/>'
    line = points(zip(effect.places, effect.effects, strict=True))
    bottom = HEIGHT + BELOW - 4
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {HEIGHT + BELOW:g}" role="img">'
        f'<path class="axis" d="M{LEFT:g} 0V{HEIGHT:g}M{LEFT:g} {HEIGHT / 2:g}H{LEFT + WIDTH:g}"/>'
        # A picture in the picture: what is outside of its frame is not drawn.
        f'<svg x="{LEFT:g}" y="0" width="{WIDTH:g}" height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">{bands}'
        f'<polyline class="line" points="{line}"/></svg>'
        f'<text x="{LEFT - 4:g}" y="10" text-anchor="end">{reach:+.2g}</text>'
        f'<text x="{LEFT - 4:g}" y="{HEIGHT / 2 + 4:g}" text-anchor="end">0</text>'
        f'<text x="{LEFT - 4:g}" y="{HEIGHT:g}" text-anchor="end">{-reach:+.2g}</text>'
        f'<text x="{LEFT:g}" y="{bottom:g}">{low:.4g}</text>'
        f'<text x="{LEFT + WIDTH:g}" y="{bottom:g}" text-anchor="end">{high:.4g}</text></svg>'
    )


def _bars(effect: Effect, reach: float) -> str:
    """Categories: a bar each, with the bands around its end."""
    middle = NAMES + (LEFT + WIDTH - NAMES) / 2
    half = LEFT + WIDTH - middle

    def across(value: float) -> float:
        return middle + half * min(max(value / reach, -1.0), 1.0)

    shown, drawn = effect.largest(MOST_BARS), ""
    for row, index in enumerate(shown):
        top, value = row * BAR, effect.effects[index]
        drawn += f'<text x="{NAMES - 6:g}" y="{top + 13:g}" text-anchor="end">{_text(effect.labels[index], 18)}</text>'
        drawn += _box("bar", across(0.0), across(value), top + 4, BAR - 8)
        if effect.deviations is not None:
            noise = effect.deviations[index]
            drawn += _box("two", across(value - 2 * noise), across(value + 2 * noise), top + 2, BAR - 4)
            drawn += _box("one", across(value - noise), across(value + noise), top + 2, BAR - 4)
    height, left = BAR * len(shown), len(effect.labels) - len(shown)
    more = f"<p>{left:,} categories with smaller effects are not drawn.</p>" if left else ""
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {height + BELOW:g}" role="img">'
        f'<path class="axis" d="M{middle:g} 0V{height:g}"/>{drawn}'
        f'<text x="{NAMES:g}" y="{height + BELOW - 4:g}">{-reach:+.2g}</text>'
        f'<text x="{LEFT + WIDTH:g}" y="{height + BELOW - 4:g}" text-anchor="end">{reach:+.2g}</text></svg>{more}'
    )


def _box(name: str, one: float, other: float, top: float, height: float) -> str:
    left, width = min(one, other), abs(one - other)
    return f'<rect class="{name}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _signed(value: float, deviation: float | None) -> str:
    return f"{value:+.3g}{_noise(deviation)}"


def _noise(deviation: float | None) -> str:
    return "" if not deviation else f" ± {deviation:.2g} of noise"


def _text(text: str, longest: int = 80) -> str:
    """A text of a model file in HTML: escaped, and without control characters."""
    return escape(printable(text, longest=longest))
