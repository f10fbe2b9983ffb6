"""One page with all figures, the verdicts and the settings, that needs no network: everything is inside it."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from boltdp._files.outputs import replace_file
from experiments.reproduce.claims import DUELS, RIVALS, duels, markdown, numbered, worst
from experiments.reproduce.figure import Figure
from experiments.reproduce.figures import FIGURES
from experiments.reproduce.panels import STYLES, Panel, colours, png, svg
from experiments.store import lines

PAGE = "reproduction.html"
MAX_BYTES = 2_000_000  #: of a page that is kept with the documents
BEGIN, END = "<!-- made by the report: begin -->", "<!-- made by the report: end -->"
_DARK_INK, _DARK_FAINT = "#e6e9ee", "#3a4150"
_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --soft: #f4f6f8; %(light)s }
@media (prefers-color-scheme: dark) { :root { --paper: #14171d; --soft: #1d222b; %(dark)s } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 86rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.6rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin: 2.2rem 0 .3rem }
p, li { max-width: 62rem } code { font-size: .9em; background: var(--soft); padding: .1em .3em; border-radius: 3px }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%%, 19rem), 1fr)); gap: .6rem }
.panels svg { width: 100%%; height: auto; display: block; stroke-linejoin: round }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .9rem; margin: .5rem 0 }
.legend span { display: inline-flex; align-items: center; gap: .4rem }
.legend svg { width: 2.2rem; height: .9rem; flex: none }
.settings { font-size: .9rem; opacity: .85 }
table { border-collapse: collapse; width: 100%%; font-size: .88rem }
td:first-child { white-space: nowrap }
th, td { text-align: left; vertical-align: top; padding: .45rem .5rem; border-bottom: 1px solid var(--faint) }
.holds, .part, .fails { font-weight: 600; white-space: nowrap; border-radius: 4px; padding: 0 .35rem; color: #fff }
.holds { background: #14774b } .part { background: #8a6100 } .fails { background: #ab2540 }
details { font-size: .95em } summary { cursor: pointer; opacity: .8 }
details p { margin: .4rem 0 } details ul { margin: 0; padding-left: 1.1rem }
nav { font-size: .95rem; display: flex; flex-wrap: wrap; gap: .1rem .9rem } a { color: var(--c-valid) }
@media (max-width: 44rem) {
  table, tbody, tr, td { display: block } thead { display: none }
  tr { border-bottom: 2px solid var(--faint); padding: .5rem 0 } td { border: 0; padding: .15rem 0 }
  td:not([data-name=""])::before { content: attr(data-name) ": "; font-weight: 600 }
}
"""
_INTRODUCTION = """<p>Everything that <em>Bolt-on Differential Privacy for Scalable Stochastic Gradient
Descent-based Analytics</em> (SIGMOD 2017) measured, measured again on real data. Two lines are ours:
<strong>as published</strong>, dotted, with the noise that the paper's formulas give, and
<strong>valid</strong>, the same training with the noise that the guarantee needs. They differ in the strongly
convex tests: there the paper divides its bound by the batch size, which it must not, and the dotted line is
<strong>not private</strong> at the ε under it; under each figure stands the ε that our proof gives for its
noise. Tests 1 and 2 are convex, 3 and 4 strongly convex; 2 and 4
allow a δ of 1/m². The third line is what boltdp does today if nothing is asked for. SCS13 and BST14 are there twice, as
the paper ran them and at their best: on centred rows, with batches, steps and an accounting of their own.
BST14 as in the paper is not private either: its noise is for half of what a row can change.</p>
<p>Error bars are standard deviations over runs with fresh noise and a fresh order of the rows; of run times,
90 % confidence intervals. The data is public: accuracies on test rows are for research, not something to do
with private rows.</p>"""


def write(results: Path) -> Path:
    """Write the page, a picture and a table for each figure, and the verdicts; the path of the page."""
    for figure in FIGURES.values():
        figure.save_table(results)
        if panels := figure.panels(results):
            png(panels, results / f"{figure.name}.png", title=f"Figure {figure.number}. {figure.title}")
    with replace_file(results / "verdicts.md") as aside:
        aside.write_text("\n".join(markdown(results)) + "\n", "utf-8")
    path = results / PAGE
    with replace_file(path) as aside:
        aside.write_text("\n".join(page(results)) + "\n", "utf-8")
    return path


def publish(results: Path, docs: Path) -> None:
    """Put the verdicts into the document, and the page beside it if it is small enough to be kept with the source."""
    path = docs / "reproduction.md"
    before, _, rest = path.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    verdicts = (results / "verdicts.md").read_text("utf-8")
    with replace_file(path) as aside:
        aside.write_text(f"{before}{BEGIN}\n\n{verdicts}\n{END}{after}", "utf-8")
    made = (results / PAGE).read_bytes()
    (docs / PAGE).unlink(missing_ok=True)
    if len(made) < MAX_BYTES:
        (docs / PAGE).write_bytes(made)


def page(results: Path) -> Iterator[str]:
    """The lines of the page."""
    by_day = colours()
    by_night = {"ink": _DARK_INK, "faint": _DARK_FAINT, **{f"c-{name}": style.dark for name, style in STYLES.items()}}
    light, dark = ("; ".join(f"--{name}: {colour}" for name, colour in one.items()) for one in (by_day, by_night))
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="icon" href="data:,">'
    yield "<title>The paper's evaluation, again</title>"
    yield f"<style>{_STYLE % {'light': light, 'dark': dark}}</style>\n</head>"
    yield "<body>\n<h1>The paper's evaluation, again</h1>"
    yield _INTRODUCTION
    drawn = [figure for figure in FIGURES.values() if figure.panels(results)]
    links = "".join(f'<a href="#{one.name}">{one.number}. {html.escape(one.title)}</a> ' for one in drawn)
    met = duels(results)
    before = '<a href="#verdicts">Verdicts</a> ' + '<a href="#duels">Who beats whom</a> ' * bool(met)
    yield f'<nav>{before}{links}<a href="#made">How it was made</a></nav>'
    yield '<h2 id="verdicts">Verdicts</h2>'
    yield from _verdicts(results)
    if met:
        yield '<h2 id="duels">Who beats whom</h2>'
        yield from _duels(met, results)
    for figure in drawn:
        yield from _section(figure, results)
    yield '<h2 id="made">How it was made</h2>'
    yield from _made(results)
    yield "</body>\n</html>"


def _verdicts(results: Path) -> Iterator[str]:
    rows = []
    for number, one in numbered(results):
        css = {"holds": "holds", "in part": "part"}.get(one.verdict, "fails")
        listed = "".join(f"<li>{html.escape(detail)}</li>" for detail in (*one.details, f"Rule: {one.rule}."))
        why = f"<details><summary>Why</summary><p>{html.escape(one.why)}</p><ul>{listed}</ul></details>"
        verdict = f'<span class="{css}">{one.verdict}</span>'
        rows.append((number, html.escape(one.claim) + why, html.escape(one.paper), html.escape(one.here), verdict))
    yield from _table(("", "The paper's claim", "Paper", "Here, valid", "Verdict"), rows)


def _duels(met: Sequence[tuple[str, ...]], results: Path) -> Iterator[str]:
    rows = [tuple(map(html.escape, row)) for row in met]
    yield f"<p>{html.escape(DUELS)}</p>"
    yield from _table(("Figure", "Ours", *RIVALS.values()), rows)
    yield "<p>Where the default does worst against each rival at its best:</p><ul>"
    yield from (f"<li>{html.escape(one)}</li>" for one in worst(results))
    yield "</ul>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table whose rows become lists on a phone; the cells are HTML."""
    yield "<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr></thead><tbody>"
    for row in rows:
        cells = zip(names, row, strict=True)
        yield "<tr>" + "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in cells) + "</tr>"
    yield "</tbody></table>"


def _section(figure: Figure, results: Path) -> Iterator[str]:
    panels = figure.panels(results)
    yield f'<h2 id="{figure.name}">Figure {figure.number}. {html.escape(figure.title)}</h2>'
    yield f'<p class="settings">{html.escape(figure.settings)}</p>'
    yield from _legend(panels)
    yield '<div class="panels">'
    for number, panel in enumerate(panels):
        yield svg(panel, prefix=f"f{figure.number}-{number}")
    yield "</div>"
    if notes := figure.notes(results):
        yield "<ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in notes) + "</ul>"


def _legend(panels: Sequence[Panel]) -> Iterator[str]:
    shown = {series.label: STYLES[series.style] for panel in panels for series in panel.series}
    variables = {style.light: name for name, style in STYLES.items()}
    yield '<div class="legend">'
    for label, style in shown.items():
        dashes = " ".join(f"{2.2 * dash:g}" for dash in style.dashes)
        line = f'stroke="var(--c-{variables[style.light]})" stroke-width="2.4" stroke-dasharray="{dashes}"'
        yield (
            f'<span><svg viewBox="0 0 36 14" aria-hidden="true"><line x1="1" y1="7" x2="35" y2="7" {line}/></svg>'
            f"{html.escape(label)}</span>"
        )
    yield "</div>"


def _builds(figure: Figure, results: Path) -> str:
    """The versions of the source that measured a figure."""
    found = dict.fromkeys(record.get("commit") for record in lines(figure.path(results)))
    named = [str(one) for one in found if one] + ["earlier builds"] * (None in found)
    return f", measured by {', '.join(named)}" if named else ""


def _made(results: Path) -> Iterator[str]:
    yield "<p>One command a figure; the results are files, and this page is made of them alone:</p><ul>"
    versions = ""
    for figure in FIGURES.values():
        path = results / f"{figure.name}.json"
        about = json.loads(path.read_text("utf-8")) if path.exists() else {}
        runs = [row["runs"] for row in figure.rows(results) if "runs" in row]
        repeats = (
            "" if not runs else f"{min(runs)} runs" if min(runs) == max(runs) else f"{min(runs)} to {max(runs)} runs"
        )
        versions = versions or ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
        told_of = f" ({repeats} of a cell{_builds(figure, results)})" if repeats else ""
        yield f"<li>Figure {figure.number}: <code>python -m experiments.reproduce {figure.name}</code>{told_of}</li>"
    yield f"</ul><p>{html.escape(versions)}. HIGGS is a part of 54,422 rows, KDDCup-99 the 10% file.</p>"
