"""The template of self-contained HTML pages about models: style, guarantee and facts. All texts are escaped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from boltdp._charts import escape_text

if TYPE_CHECKING:
    from boltdp.model import Model

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #6a6a6a; --paper: #ffffff; --rule: #d8d8d8; --line: #1f5fbf;
  --one: #1f5fbf55; --two: #1f5fbf26; --under: #b3541e; --warn: #b00020; --good: #1b6e3c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --soft: #a0a0a0; --paper: #161616; --rule: #3a3a3a;
  --line: #7fb0ff; --one: #7fb0ff55; --two: #7fb0ff2b; --under: #ffb27f; --warn: #ff7a8a; --good: #7fd6a0; } }
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
.numbers td, .numbers th { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.numbers td:first-child, .numbers th:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.numbers svg { display: block; width: 20rem; } .wide { overflow-x: auto; }
.drawings { columns: 19rem; column-gap: 1.25rem; }
figure { margin: 0 0 1.25rem; border-top: 1px solid var(--rule); padding-top: .5rem; break-inside: avoid; }
figcaption { overflow-wrap: anywhere; font-weight: 600; margin-bottom: .25rem; }
figcaption span { display: block; color: var(--soft); font-size: 13px; font-weight: 400; }
figure > svg { display: block; width: 100%; max-width: 26rem; height: auto; }
svg text { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; } .bar { fill: var(--line); }
.one { fill: var(--one); } .two { fill: var(--two); }
.grey { --line: #8a8f98; --under: #b9a48f; --one: #8a8f9855; --two: #8a8f9826; color: var(--soft); }
.axis { stroke: var(--rule); fill: none; }
.bound { fill: none; stroke: currentColor; stroke-dasharray: 4 3; }
.above { fill: var(--line); } .below { fill: var(--under); }
.cell { stroke: var(--paper); opacity: .45; } .cell + text { fill: var(--ink); }
.frame { fill: none; stroke: var(--rule); }
.mark { fill: none; stroke: #d9822b; } .dot { fill: #d9822b; }
"""


def choose_guarantee_class(model: Model) -> str:
    """Return the CSS class of the paragraph with the guarantee: another one if the model is not private."""
    return "guarantee" if model.certificate.private else "guarantee none"


def write_facts(facts: Iterable[tuple[str, str]], longest: int = 80) -> str:
    """Write names and texts as an HTML list; nothing if there are none."""
    lines = "".join(f"<dt>{escape_text(name)}</dt><dd>{escape_text(text, longest)}</dd>" for name, text in facts)
    return f"<dl>{lines}</dl>" if lines else ""


def write_document(title: str, body: str) -> str:
    """Write a self-contained HTML page; title and body must be HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )
