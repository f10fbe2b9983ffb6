"""The site in a real browser, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")

OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000", "--dump-dom"),
]

#: Opens each page as wide as a telephone; writes down how wide it came out, if wider, and what it fetched elsewhere.
HARNESS = """<!doctype html><title>pages</title>
<iframe id=page style="width: 390px; height: 800px"></iframe><pre id=found></pre>
<script>
(async () => {
  const found = {opened: 0, wide: {}, elsewhere: []};
  for (const page of PAGES) {
    const frame = document.getElementById("page");
    await new Promise((loaded) => { frame.onload = loaded; frame.src = page; });
    const width = frame.contentDocument.documentElement.scrollWidth;
    const fetched = frame.contentWindow.performance.getEntriesByType("resource").map((entry) => entry.name);
    found.opened += fetched.length > 0;
    if (width > 390) found.wide[page] = width;
    found.elsewhere.push(...fetched.filter((url) => !url.startsWith(location.origin) && !url.startsWith("data:")));
  }
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def browse(url: str, profile: Path) -> str:
    """What a page has become when its scripts have run."""
    command = [str(BROWSER), *OPTIONS, f"--user-data-dir={profile}", url]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_search_finds_pages(site: Path, tmp_path: Path) -> None:
    with served(site) as address:
        page = browse(f"{address}/search.html?q=certificate", tmp_path / "profile")
    results = re.search(r'<ul[^>]* class="search">.*', page, re.DOTALL)
    assert results is not None, "no results"
    assert "api.html" in results[0]


def test_pages_fit_a_telephone_and_ask_nothing_of_another_server(site: Path, tmp_path: Path) -> None:
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "report" not in path.name)
    harness = site / "harness.html"
    harness.write_text(HARNESS.replace("PAGES", json.dumps(pages)))
    with served(site) as address:
        dom = browse(f"{address}/harness.html", tmp_path / "profile")
    harness.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', dom)
    assert found is not None
    assert json.loads(found[1]) == {"opened": len(pages), "wide": {}, "elsewhere": []}
