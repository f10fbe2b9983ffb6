"""A model as one page of HTML: nothing is loaded from elsewhere, and nothing in a model file is taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from boltdp.errors import printable
from boltdp.export.effects import Effect, Effects, Panel

if TYPE_CHECKING:
    from boltdp.model import Model

#: Categories of one column that are drawn, at most, and characters of the name of each.
MOST_BARS, LONGEST_NAME = 24, 18
#: How many times the largest effect a drawing reaches, to show bands.
WIDEST = 1.5
#: Steps of a curve that are this many times as far apart in one place as in another are drawn equally far apart.
UNEVEN = 8.0
#: Places below a drawing that are written: the ends and so many between them, at most.
MOST_PLACES = 2

#: Of a drawing of a number, in units of the picture: the frame, and the room to its left and below it.
WIDTH, HEIGHT, LEFT, BELOW = 240.0, 120.0, 44.0, 18.0
#: Of a bar, with the room to the next; and of the names to its left.
BAR, NAMES = 18.0, 128.0

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6a6a6a; --paper: #ffffff; --rule: #d8d8d8; --line: #1f5fbf;
  --one: #1f5fbf55; --two: #1f5fbf26; --warn: #b00020; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a0a0a0; --paper: #161616; --rule: #3a3a3a;
  --line: #7fb0ff; --one: #7fb0ff55; --two: #7fb0ff2b; --warn: #ff7a8a; --good: #7fd6a0; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.guarantee { border-left: 4px solid var(--good); padding: .5rem 1rem; }
.guarantee.none { border-color: var(--warn); color: var(--warn); font-weight: 700; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
.legend { color: var(--soft); }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { border-top: 1px solid var(--rule); padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top; }
.drawings { columns: 19rem; column-gap: 1.25rem; }
figure { margin: 0 0 1.25rem; border-top: 1px solid var(--rule); padding-top: .5rem; break-inside: avoid; }
figcaption { overflow-wrap: anywhere; font-weight: 600; margin-bottom: .25rem; }
figcaption span { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
figure > svg { display: block; width: 100%; max-width: 26rem; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; } .bar { fill: var(--line); }
.one { fill: var(--one); } .two { fill: var(--two); }
.most .one, .most .two { fill: none; stroke: var(--soft); }
.most .one { stroke-width: 1; } .most .two { stroke-width: .75; stroke-dasharray: 3 3; }
.axis { stroke: var(--rule); fill: none; }
"""


def page(model: Model, effects: Effects, facts: Sequence[tuple[str, str]], *, top: int) -> str:
    """The page; `facts` are lines below the guarantee, and `top` columns are drawn for each class."""
    certificate = model.certificate
    kind = "guarantee" if certificate.private else "guarantee none"
    title = f"What a model says of {text_of(model.schema.label)}"
    lines = "".join(f"<dt>{text_of(name)}</dt><dd>{text_of(value, 2000)}</dd>" for name, value in facts)
    panels = "".join(_panel(panel, top, effects) for panel in effects.panels)
    if effects.left_out:
        panels += f"<p>{effects.left_out:,} classes more are not shown.</p>"
    bands = "most" if effects.at_most else "exact"
    return document(
        title,
        f'<p class="{kind}">{text_of(certificate.guarantee(), 5000)}</p><dl>{lines}</dl>'
        f'<div class="{bands}">{panels}</div>',
    )


def document(title: str, body: str) -> str:
    """A page that needs nothing else, of a title and a body that are HTML already.

    >>> document("a title", "<p>a text</p>").count("a title")
    2
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _panel(panel: Panel, top: int, effects: Effects) -> str:
    head = f"<h2>{text_of(panel.favours)}</h2>" if len(effects.panels) > 1 else ""
    at_most, reach = effects.at_most, panel.reach(top, widest=WIDEST)
    if panel.constant is not None:
        noise = _noise(panel.constant_deviation, at_most=at_most)
        head += f"<p>With everything missing: {panel.constant:+.3g}{noise}</p>"
    drawn = [effect for effect in panel.effects[:top] if effect.kind != "vector"]
    if drawn:
        uneven = any(effect.kind == "number" and _uneven(_marks(effect)) for effect in drawn)
        head += f'<p class="legend">{text_of(_legend(reach, effects, uneven=uneven), 1000)}</p>'
    figures = "".join(_figure(effect, reach, at_most=at_most) for effect in panel.effects[:top])
    left = len(panel.effects) - top
    more = f"<p>{left:,} columns with smaller effects are not drawn.</p>" if left > 0 else ""
    return f'<section>{head}<div class="drawings">{figures}</div>{more}</section>'


def _legend(reach: float, effects: Effects, *, uneven: bool) -> str:
    text = f"Lines and bars are effects: {effects.unit}, from {-reach:+.2g} to {reach:+.2g} in every drawing."
    if uneven:
        text += (
            " Where the steps of a line are close in one place and far in another, they are drawn equally far apart."
        )
    if effects.spread is None or not effects.spread.deviation:
        return text
    if effects.at_most:
        return f"{text} Thin and dashed: the most that one and two standard deviations of noise can be."
    return f"{text} Shaded: one and two standard deviations of noise."


def _figure(effect: Effect, reach: float, *, at_most: bool) -> str:
    noise = _noise(effect.deviation, at_most=at_most)
    if effect.kind == "vector":
        return (
            f"<figure><figcaption>{text_of(effect.name)}</figcaption>"
            f"<p>A vector: its weights are {effect.difference:.3g} long{noise}.</p></figure>"
        )
    if effect.kind == "number":
        text = f"{place_of(effect.places[0])} to {place_of(effect.places[-1])}: {effect.difference:+.3g}{noise}"
        drawing = _line(effect, reach, at_most=at_most)
    else:
        between = "smallest to largest: " if len(effect.labels) > 1 else ""
        text = f"{between}{effect.difference:+.3g}{noise}"
        drawing = _bars(effect, reach, at_most=at_most)
    return f"<figure><figcaption>{text_of(effect.name)} <span>{text}</span></figcaption>{drawing}</figure>"


def _line(effect: Effect, reach: float, *, at_most: bool) -> str:
    """A number: its line, with the bands around it, and a mark below each of its steps."""
    marks = _marks(effect)
    spots = (
        np.linspace(0.0, WIDTH, len(marks))
        if _uneven(marks)
        else np.interp(marks, marks[:: len(marks) - 1], (0, WIDTH))
    )

    def across(place: float) -> float:
        return float(np.interp(place, marks, spots))

    def down(value: float) -> float:
        return HEIGHT / 2 * (1.0 - value / reach)

    def points(pairs: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{across(place):.1f},{down(value):.1f}" for place, value in pairs)

    bands = ""
    for name, times in (("two", 2.0), ("one", 1.0)) if effect.deviations is not None else ():
        known = [*zip(effect.places, effect.effects, effect.deviations or (), strict=True)]
        upper = [(place, value + times * noise) for place, value, noise in known]
        lower = [(place, value - times * noise) for place, value, noise in reversed(known)]
        if at_most:
            bands += "".join(f'<polyline class="{name}" points="{points(side)}"/>' for side in (upper, lower))
        else:
            bands += f'<polygon class="{name}" points="{points([*upper, *lower])}"/>'
    line = points(zip(effect.places, effect.effects, strict=True))
    ticks = "".join(f"M{LEFT + spot:.1f} {HEIGHT:g}v4" for spot in spots)
    text, bottom = "", HEIGHT + BELOW - 2
    for mark in sorted({round(part) for part in np.linspace(0, len(marks) - 1, MOST_PLACES + 2)}):
        anchor = "start" if mark == 0 else "end" if mark == len(marks) - 1 else "middle"
        place = place_of(marks[mark])
        text += f'<text x="{LEFT + spots[mark]:.1f}" y="{bottom:g}" text-anchor="{anchor}">{place}</text>'
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {HEIGHT + BELOW:g}" role="img" aria-label="{text_of(effect.name)}">'
        f'<path class="axis" d="M{LEFT:g} 0V{HEIGHT:g}M{LEFT:g} {HEIGHT / 2:g}H{LEFT + WIDTH:g}{ticks}"/>'
        # A picture in the picture: what is outside of its frame is not drawn.
        f'<svg x="{LEFT:g}" y="0" width="{WIDTH:g}" height="{HEIGHT:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">{bands}'
        f'<polyline class="line" points="{line}"/></svg>'
        f'<text x="{LEFT - 4:g}" y="10" text-anchor="end">{reach:+.2g}</text>'
        f'<text x="{LEFT - 4:g}" y="{HEIGHT / 2 + 4:g}" text-anchor="end">0</text>'
        f'<text x="{LEFT - 4:g}" y="{HEIGHT:g}" text-anchor="end">{-reach:+.2g}</text>{text}</svg>'
    )


def _marks(effect: Effect) -> list[float]:
    """Of a number: its ends, and its steps between them."""
    return sorted({place for place, _, _ in effect.corners})


def _uneven(marks: Sequence[float]) -> bool:
    """Whether steps are much closer to each other in one place than in another; the ends may be anywhere.

    >>> _uneven([0, 1, 10, 100, 1000]), _uneven([0, 0.5, 2.5, 4.5, 5]), _uneven([0, 100])
    (True, False, False)
    """
    gaps = np.diff(marks)[1:-1]
    return len(gaps) > 1 and bool(gaps.max() > UNEVEN * gaps.min())


def _bars(effect: Effect, reach: float, *, at_most: bool) -> str:
    """Categories: a bar each, with the bands around its end."""
    middle = NAMES + (LEFT + WIDTH - NAMES) / 2
    half = LEFT + WIDTH - middle

    def across(value: float) -> float:
        return middle + half * min(max(value / reach, -1.0), 1.0)

    shown, drawn = effect.largest(MOST_BARS), ""
    for row, index in enumerate(shown):
        top, value, label = row * BAR, effect.effects[index], effect.labels[index]
        drawn += f'<text x="{NAMES - 6:g}" y="{top + 13:g}" text-anchor="end">{text_of(label, LONGEST_NAME)}'
        drawn += f"<title>{text_of(label)}: {value:+.3g}</title></text>"
        drawn += box("bar", across(0.0), across(value), top + 4, BAR - 8)
        for name, times in (("two", 2.0), ("one", 1.0)) if effect.deviations is not None else ():
            noise = times * (effect.deviations or ())[index]
            ends = across(value - noise), across(value + noise)
            if at_most:
                drawn += _whisker(name, *ends, top + BAR / 2, 2.0 * times)
            else:
                drawn += box(name, *ends, top + 2, BAR - 4)
    height, left = BAR * len(shown), len(effect.labels) - len(shown)
    more = f"<p>{left:,} categories with smaller effects are not drawn.</p>" if left else ""
    bottom = height + BELOW - 4
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH:g} {height + BELOW:g}" role="img" aria-label="{text_of(effect.name)}">'
        f'<path class="axis" d="M{middle:g} 0V{height:g}"/>{drawn}'
        f'<text x="{NAMES:g}" y="{bottom:g}">{-reach:+.2g}</text>'
        f'<text x="{middle:g}" y="{bottom:g}" text-anchor="middle">0</text>'
        f'<text x="{LEFT + WIDTH:g}" y="{bottom:g}" text-anchor="end">{reach:+.2g}</text></svg>{more}'
    )


def box(name: str, one: float, other: float, top: float, height: float) -> str:
    """A rectangle from one place to another, of a class of the style.

    >>> box("bar", 2, 1, 0, 9)
    '<rect class="bar" x="1.0" y="0.0" width="1.0" height="9.0"/>'
    """
    left, width = min(one, other), abs(one - other)
    return f'<rect class="{name}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def _whisker(name: str, one: float, other: float, middle: float, height: float) -> str:
    """A line with an end of its own to both sides."""
    ends = f"M{one:.1f} {middle - height:g}v{2 * height:g}M{other:.1f} {middle - height:g}v{2 * height:g}"
    return f'<path class="{name}" d="M{one:.1f} {middle:g}H{other:.1f}{ends}"/>'


def place_of(place: float) -> str:
    """A value of a column, in digits where these are few.

    >>> place_of(100_000.0), place_of(-0.25), place_of(3.2e9)
    ('100,000', '-0.25', '3.2e+09')
    """
    return f"{place:,.0f}" if place == round(place) and abs(place) < 1e7 else f"{place:,.4g}"


def _noise(deviation: float | None, *, at_most: bool) -> str:
    return "" if not deviation else f" ± {deviation:.2g} of noise{' at most' if at_most else ''}"


def text_of(text: str, longest: int = 80) -> str:
    """A text of unknown origin in HTML: escaped, and without control characters.

    >>> text_of("a < b")
    'a &lt; b'
    """
    return escape(printable(text, longest=longest))
