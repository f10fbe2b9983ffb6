"""The site: built without a warning, all links lead somewhere, and nothing comes from another server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from website.pages import PROOFS, ROOT, formulas, relinked

import boltdp

#: What a browser fetches by itself.
FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("img", "srcset")}


@dataclass
class Found(HTMLParser):
    """The links and anchors of a page."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if value and (tag, name) in FETCHED and not value.startswith("data:"):
                self.fetched.append(value)
            if value and (tag, name) in {*FETCHED, ("a", "href")}:
                self.links.append(value)


@cache
def read(page: Path) -> Found:
    found = Found()
    found.feed(page.read_text("utf-8"))
    return found


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere; those to other servers are not tried."""
    for link in read(page).links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file() or (
            target.suffix == ".html" and parts.fragment and unquote(parts.fragment) not in read(target).anchors
        ):
            yield link


def elsewhere(file: Path) -> list[str]:
    """What a file of the site has fetched from another server."""
    if file.suffix == ".css":
        return re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']*)", file.read_text("utf-8"))
    return [link for link in read(file).fetched if urlsplit(link).netloc]


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert {str(page.relative_to(site)): links for page in pages if (links := list(broken(page)))} == {}


def test_nothing_is_fetched_from_another_server(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert {str(file.relative_to(site)): links for file in files if (links := elsewhere(file))} == {}


def test_pictures_are_small() -> None:
    large = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {name: size for name, size in large.items() if size > 150_000} == {}


def test_formulas_are_set_in_the_built_proofs(site: Path) -> None:
    page = (site / "proofs" / "sgd_sensitivity.html").read_text("utf-8")
    assert '<pre class="formula">' in page
    assert "<sub>t+1</sub>A<sub>t+1</sub>" in page
    assert "_{" not in re.sub(r"<code.*?</code>", "", page, flags=re.DOTALL)


def test_every_proof_and_every_public_name_has_its_place(site: Path) -> None:
    first = (site / "index.html").read_text("utf-8")
    assert all(f'href="proofs/{path.stem}.html"' in first for path in (ROOT / PROOFS).rglob("*.md"))
    reference = read(site / "api.html").anchors
    assert {name for name in boltdp.__all__ if f"boltdp.{name}" not in reference} == set()
    assert "boltdp.Settings.noise_seed" in reference


def test_a_broken_link_is_told(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h1 id="b">B</h1>')
    page = tmp_path / "a.html"
    page.write_text('<a href="b.html#b"></a><a href="b.html#c"></a><img src="c.png"><a href="https://d">')
    assert list(broken(page)) == ["b.html#c", "c.png"]


def test_a_request_elsewhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://a/b.js"></script><img src="c.png"><a href="https://d">')
    (tmp_path / "a.css").write_text('@import "//e/f.css"; a { background: url(https://g/h.png) url(i.png) }')
    assert elsewhere(tmp_path / "a.html") == ["https://a/b.js"]
    assert elsewhere(tmp_path / "a.css") == ["//e/f.css", "https://g/h.png"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Σ_{k≠y} p_k²", "Σ<sub>k≠y</sub> p<sub>k</sub>²"),
        ("∫_1^∞ (u²)^{μ+j}", "∫<sub>1</sub><sup>∞</sup> (u²)<sup>μ+j</sup>"),
        ("η_tλ and w^(p) and b_jk", "η<sub>t</sub>λ and w<sup>(p)</sup> and b<sub>jk</sub>"),
        ("`w_t` and _stressed_ words", "`w_t` and _stressed_ words"),
    ],
)
def test_formulas(written: str, shown: str) -> None:
    assert formulas(written) == shown


def test_code_keeps_its_links() -> None:
    text = "`[a](../SECURITY.md)` [b](../SECURITY.md)\n\n    [c](../SECURITY.md)\n"
    assert relinked(text, origin="docs/x.md") == "`[a](../SECURITY.md)` [b](security.md)\n\n    [c](../SECURITY.md)\n"
