"""The paper's figures again: each runs on a few rows, resumes and is drawn, and the page is shown by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from experiments.reproduce import data, methods, panels, report, scale, timing
from experiments.reproduce.__main__ import chosen_figures, main
from experiments.reproduce.batches import Batches
from experiments.reproduce.claims import claims, duels
from experiments.reproduce.effort import NEEDED, c_function, c_lines, code_lines, python_lines
from experiments.reproduce.figure import QUICK_EPSILONS, AccuracyFigure, Options
from experiments.reproduce.figures import FIGURES
from experiments.reproduce.huber import Huber
from experiments.reproduce.methods import Cell
from experiments.reproduce.more_data import MoreData
from experiments.reproduce.passes import Passes
from experiments.reproduce.private_tuning import PrivateTuning
from experiments.reproduce.public_tuning import PublicTuning
from experiments.reproduce.runtime import Runtime
from experiments.reproduce.scale import Place, Scale
from experiments.store import add_line, lines
from experiments.tasks import Task

from boltdp.engines.in_memory import ArrayEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.errors import DataError
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.output_perturbation import make_output_perturbation
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.schema.schema import make_array_schema


def small_task(name: str) -> Task:
    """A few rows in the place of a dataset: three classes for MNIST, else two."""
    classes = 3 if name == "mnist" else 2
    rng = np.random.default_rng(len(name))
    labels = rng.integers(classes, size=600)
    rows = rng.normal(size=(600, 5)) + 3.0 * np.eye(5)[labels]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    training, testing = (ArrayEngine.from_numpy(rows[part], labels[part]) for part in (slice(0, 400), slice(400, 600)))
    return Task(name, training, testing, make_array_schema(dims=5, classes=tuple(range(classes))))


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All datasets are small, and one epsilon of each is enough."""
    tasks = {name: small_task(name) for name in data.SOURCES}
    monkeypatch.setattr(data, "ensure", lambda _: None)
    monkeypatch.setattr(data, "task", lambda name: tasks[name])
    monkeypatch.setattr(data, "on_the_sphere", lambda name: data.scaled(name, tasks[name]))
    for name in QUICK_EPSILONS:
        monkeypatch.setitem(QUICK_EPSILONS, name, (4.0,) if name == "mnist" else (0.4,))
    for cached in (methods.noiseless_weights, methods.prepare_permuted):
        cached.cache_clear()
    yield
    for cached in (methods.noiseless_weights, methods.prepare_permuted):
        cached.cache_clear()


# -- the algorithms as published and as they must be


@pytest.mark.parametrize("test", [1, 2])
def test_the_published_noise_is_enough_in_the_convex_tests(test: int) -> None:
    cell = Cell("mnist", test, "published", 0.5)
    recipe = methods.recipe_of(cell, rows=60_000, dims=50)
    budget = Budget(0.5, 0.0 if test == 1 else 60_000.0**-2)
    assert methods.spent_epsilon(methods.published_output(recipe, budget), budget) <= 0.5 * (1 + 1e-4)


@pytest.mark.parametrize(("batch_size", "least"), [(1, 0.4), (50, 15.0), (200, 15.0)])
def test_the_published_noise_is_not_enough_for_batches_of_a_strongly_convex_run(batch_size: int, least: float) -> None:
    cell = Cell("mnist", 3, "published", 1.0, batch_size=batch_size, regularization=1e-3)
    recipe = methods.recipe_of(cell, rows=60_000, dims=50)
    spent = methods.spent_epsilon(methods.published_output(recipe, Budget(1.0)), Budget(1.0))
    assert spent >= least
    assert (spent <= 1.0) == (batch_size == 1)


@pytest.mark.parametrize("test", [1, 2, 3, 4])
def test_the_valid_noise_keeps_the_budget(test: int) -> None:
    cell = Cell("mnist", test, "valid", 0.5, regularization=0.0 if test < 3 else 1e-3)
    budget = Budget(0.5, 0.0 if cell.kind == "pure" else 1e-9)
    event = make_output_perturbation(methods.recipe_of(cell, rows=60_000, dims=50), budget)
    assert event.noise.delta(0.5, sensitivity=compute_sgd_sensitivity(event.problem).total) <= budget.delta


def test_cells_with_the_same_result_are_one() -> None:
    auto = [Cell("mnist", test, "auto", 1.0, regularization=0.0 if test < 3 else 1e-4).normal() for test in (1, 3)]
    assert auto[0] == auto[1]
    noiseless = [Cell("mnist", test, "noiseless", epsilon).normal() for test, epsilon in ((1, 0.1), (2, 4.0))]
    assert noiseless[0] == noiseless[1]
    assert Cell("mnist", 3, "valid", 1.0).normal().regularization == 1e-4
    assert not Cell("mnist", 1, "bst14", 1.0).able


def test_private_tuning_tries_the_papers_grid() -> None:
    assert len(methods.candidates(Cell("mnist", 1, "valid", 1.0, tuning="portions"))) == 2
    tried = methods.candidates(Cell("mnist", 3, "valid", 1.0, tuning="portions"))
    assert {(one.passes, one.regularization) for one in tried} == {
        (passes, one) for passes in (5, 10) for one in (1e-4, 1e-3, 1e-2)
    }


# -- data


def test_data_of_another_size_or_content_is_refused() -> None:
    table = pa.table({"label": [0, 1, 1]})
    data.check(table, "some.parquet", 3, (1, 2))
    with pytest.raises(DataError, match="must have 4 rows, got 3"):
        data.check(table, "some.parquet", 4, (1, 2))
    with pytest.raises(DataError, match="must have 1 rows with the label 1, got 2"):
        data.check(table, "some.parquet", 3, (1, 1))


def test_what_is_not_there_and_cannot_be_fetched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLTDP_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"protein\.parquet is not in"):
        data.ensure("protein")


def test_what_is_fetched_is_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOLTDP_DATA", str(tmp_path))
    given = {"some.parquet": pa.table({"label": [0, 1, 1]})}
    source = data.Source("Some", "adult", {"some.parquet": (3, (1, 2))}, fetch=lambda: given)
    monkeypatch.setitem(data.SOURCES, "some", source)
    data.ensure("some")
    assert source.available()

    def offline() -> data.Tables:
        raise OSError("no route")

    monkeypatch.setitem(data.SOURCES, "other", data.Source("Other", "adult", {"no": (3, (1, 2))}, fetch=offline))
    with pytest.raises(DataError, match="cannot be fetched: OSError"):
        data.ensure("other")


@pytest.mark.skipif(not data.SOURCES["protein"].available(), reason="the data is not in the folder of BOLTDP_DATA")
def test_rows_are_on_the_unit_sphere_in_the_papers_sizes() -> None:
    rows = data.scaled("protein", data.task("protein"))
    assert (len(rows.training), len(rows.testing), rows.dims) == (72_876, 72_875, 74)
    assert np.linalg.norm(rows.training, axis=1) == pytest.approx(1.0, abs=1e-6)


# -- running, resuming and drawing


@pytest.mark.usefixtures("few_rows")
@pytest.mark.parametrize("figure", [PublicTuning(), PrivateTuning(), Passes(), Huber(), MoreData(), Batches()])
def test_a_figure_of_accuracies_runs_resumes_and_is_drawn(figure: AccuracyFigure, tmp_path: Path) -> None:
    figure.data = tuple(getattr(figure, "data", ("mnist",)))[:1]  # type: ignore[attr-defined]
    options = Options(tmp_path, quick=True, repeats=1)
    assert figure.run(options) == 0
    found = figure.read(tmp_path)
    assert set(found) == set(figure.wanted(quick=True))
    assert all(0.0 <= run["accuracy"] <= 1.0 for runs in found.values() for run in runs.values())
    noiseless = [runs[0]["accuracy"] for cell, runs in found.items() if cell.way == "noiseless"]
    assert min(noiseless) > 0.8
    written = figure.path(tmp_path).read_text("utf-8")
    kept = written.splitlines(keepends=True)
    figure.path(tmp_path).write_text("".join(kept[:-1]) + kept[-1][:20], "utf-8")  # as if stopped in the last line
    assert figure.run(options) == 0
    assert set(figure.read(tmp_path)) == set(found)
    before = figure.path(tmp_path).read_text("utf-8")
    assert figure.run(options) == 0
    assert figure.path(tmp_path).read_text("utf-8") == before
    drawn = figure.panels(tmp_path)
    assert drawn
    assert all({"published"} & {one.style for one in panel.series} or "one" in panel.series[0].style for panel in drawn)
    figure.save_table(tmp_path)
    assert len((tmp_path / f"{figure.name}.csv").read_text("utf-8").splitlines()) == 1 + len(found)


@pytest.mark.usefixtures("few_rows")
def test_a_run_stops_when_it_is_time(tmp_path: Path) -> None:
    figure = Passes()
    assert figure.run(Options(tmp_path, quick=True, repeats=1, until=time.monotonic() - 1)) == len(
        figure.wanted(quick=True)
    )
    assert not figure.path(tmp_path).exists()


@pytest.fixture
def running(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' server, in the place of one that is started for each measurement."""
    monkeypatch.setattr(timing, "postgres_server", lambda _: nullcontext(server.uri))


@pytest.mark.usefixtures("few_rows", "running")
def test_run_times_are_measured_in_postgresql_once(tmp_path: Path) -> None:
    figure = Runtime()
    figure.data = ("mnist",)
    options = Options(tmp_path, quick=True, repeats=1)
    assert figure.run(options) == 0
    found = figure.read(tmp_path)
    assert set(found) == set(figure.keys("mnist", quick=True))
    assert all(run["seconds"] > 0 for runs in found.values() for run in runs.values())
    before = figure.path(tmp_path).read_text("utf-8")
    assert figure.run(options) == 0
    assert figure.path(tmp_path).read_text("utf-8") == before
    assert [len(panel.series) for panel in figure.panels(tmp_path)] == [4, 4]


@pytest.mark.usefixtures("running")
def test_scalability_is_measured_in_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"postgres": (400,), "duckdb": (400,), "duckdb-disk": (400, 800, 1200)}
    places = {name: Place(**{**vars(scale.PLACES[name]), "quick": rows}) for name, rows in few.items()}
    monkeypatch.setattr(scale, "PLACES", places)
    figure = Scale()
    options = Options(tmp_path, quick=True)
    assert figure.run(options) == 0
    before = figure.path(tmp_path).read_text("utf-8")
    assert figure.run(options) == 0
    assert figure.path(tmp_path).read_text("utf-8") == before
    assert len(figure.panels(tmp_path)) == 3
    (note,) = [note for note in figure.notes(tmp_path) if "R²" in note]
    assert "to 1,200 rows" in note


def test_a_line_that_bends_is_told_from_a_straight_one() -> None:
    bent = {("duckdb", rows, "valid"): {0: {"seconds": float(rows**3)}} for rows in (1, 2, 3, 4)}
    line = scale.straight(bent, "duckdb", "valid")
    assert line is not None
    assert line.squared < 0.95


# -- lines of code


def test_ours_needs_nothing_in_the_engine_and_all_files_are_there() -> None:
    assert not NEEDED["bolton"]["engine"]
    for places in NEEDED.values():
        for named in (one for listed in places.values() for one in listed):
            assert code_lines(named) > 0


def test_comments_blank_lines_and_docstrings_are_no_code() -> None:
    assert c_lines("/* one\n two */ int a;\n// three\n\nint b; /* four */\n") == 2
    assert python_lines('"""What."""\n\nx = 1  # one\n# two\n') == 1
    assert python_lines('class A:\n    """What."""\n\n    def f(self):\n        return """a\nb"""\n', "A") == 4
    assert (
        c_lines(c_function("static int\nother(void)\n{\n    return 1;\n}\nint f(int a)\n{\n    return a;\n}\n", "f"))
        == 4
    )
    with pytest.raises(LookupError):
        c_function("int f;", "g")


# -- verdicts


def record(figure: str, results: Path, cell: Cell, *accuracies: float, **more: float) -> None:
    for repeat, accuracy in enumerate(accuracies):
        measured = {"accuracy": accuracy, "balanced": accuracy, **more}
        add_line(results / f"{figure}.jsonl", {"cell": vars(cell), "repeat": repeat, "measured": measured})


@pytest.mark.parametrize(("after", "verdict"), [(0.5, "holds"), (0.68, "in part"), (0.8, "fails")])
def test_a_verdict_follows_from_the_numbers(tmp_path: Path, after: float, verdict: str) -> None:
    record("passes", tmp_path, Cell("mnist", 1, "published", 4.0, batch_size=1, passes=1), 0.7, 0.72)
    record("passes", tmp_path, Cell("mnist", 1, "published", 4.0, batch_size=1, passes=20), after, after)
    (claim,) = claims(tmp_path)
    assert claim.verdict == verdict
    assert claim.here == f"0.71 → {after:.2f}"
    assert claim.details == [f"1 pass 0.710 ± 0.014 (2 runs), 20 passes {after:.3f} ± 0.000 (2 runs)."]


@pytest.mark.parametrize(
    ("scs13", "bst14", "verdict"), [(0.2, 0.1, "holds"), (0.2, 0.4, "in part"), (0.5, 0.4, "fails")]
)
def test_up_to_must_be_reached_over_each_rival(tmp_path: Path, scs13: float, bst14: float, verdict: str) -> None:
    for way, accuracy in {"published": 0.6, "valid": 0.6, "scs13": scs13, "bst14": bst14}.items():
        record("huber", tmp_path, Cell("mnist", 2, way, 1.0, "huber", tuning="portions"), accuracy, accuracy)
    (claim,) = claims(tmp_path)
    assert (claim.figure, claim.paper, claim.verdict) == (6, "2.5X and 6X", verdict)
    assert claim.here.startswith(f"{0.6 / scs13:.1f}X and {0.6 / bst14:.1f}X")


def test_who_beats_whom_counts_cells_by_their_spread(tmp_path: Path) -> None:
    for epsilon, theirs in ((0.1, 0.3), (0.2, 0.59), (0.5, 0.9)):
        record("private-tuning", tmp_path, Cell("mnist", 1, "valid", epsilon, tuning="portions"), 0.58, 0.62)
        record("private-tuning", tmp_path, Cell("mnist", 1, "scs13", epsilon, tuning="portions"), theirs, theirs)
    assert duels(tmp_path) == [("2, private tuning", "valid", "1 / 1 / 1", "0 / 0 / 0", "0 / 0 / 0", "0 / 0 / 0")]


@pytest.mark.parametrize(("power", "verdict"), [(1, "holds"), (3, "in part")])
def test_each_algorithms_line_must_be_straight(tmp_path: Path, power: int, verdict: str) -> None:
    for way in timing.WAYS:
        for rows in (5, 10, 15, 20):
            taken = {"seconds": float(rows ** (power if way == "bst14" else 1)), "processor": 1.0}
            add_line(tmp_path / "scale.jsonl", Scale().record(("duckdb", rows * 10**6, way), 0, taken))
    (claim,) = claims(tmp_path)
    assert claim.verdict == verdict
    assert claim.here.startswith("R² ≥ 1.0000 for ours")
    assert ("Not linear: BST14." in claim.why) == (power == 3)


def test_what_was_not_measured_has_no_verdict(tmp_path: Path) -> None:
    assert claims(tmp_path) == []


# -- the command and the page


def test_figures_have_numbers_and_names_of_their_own() -> None:
    assert [figure.number for figure in FIGURES.values()] == list(range(1, 10))
    assert [one.name for one in chosen_figures("4")] == [one.name for one in chosen_figures("runtime")] == ["runtime"]
    assert len(chosen_figures("all")) == 9


def test_unknown_figures_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["10", "--results", str(tmp_path)])
    assert "no such figure: '10'" in capsys.readouterr().err


def test_no_two_colours_are_the_same_and_all_are_variables_of_the_page() -> None:
    listed = panels.colours()
    assert len(set(listed.values())) == len(listed)
    series = [panels.Series(style, (1.0, 2.0), (0.5, 0.6), (0.1, 0.1)) for style in panels.STYLES]
    drawn = panels.svg(panels.Panel("All", "x", "y", series), prefix="p")
    assert not [colour for colour in listed.values() if colour in drawn]
    assert all(f"var(--{name})" in drawn for name in listed)
    assert not re.search(r'id="(?!p-)', drawn)
    assert set(re.findall(r'href="#([^"]+)"', drawn)) == set(re.findall(r' id="([^"]+)"', drawn))


def test_a_smaller_picture_keeps_its_labels() -> None:
    series = [panels.Series("auto", (0.01, 0.05), (0.725, 0.775), (0.0, 0.0))]
    drawn = panels.svg(panels.Panel("A", "x", "y", series), prefix="p")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert {"0.01", "0.05"} <= set(labels)
    assert len(labels) == len(set(labels))


@pytest.fixture
def made_page(tmp_path: Path) -> Path:
    """A page of made-up results."""
    for test in (1, 2, 3, 4):
        for way in methods.WAYS:
            for epsilon in (0.1, 1.0, 4.0):
                cell = Cell("mnist", test, way, epsilon).normal()
                if cell.able:
                    more = {"spent": 18.0 * epsilon} if way == "published" and test > 2 else {}
                    record("public-tuning", tmp_path, cell, 0.6 + 0.02 * epsilon, 0.7, **more)
    main(["effort", "--results", str(tmp_path)])
    main(["report", "--results", str(tmp_path)])
    return tmp_path / report.PAGE


def test_the_page_needs_no_network_and_says_what_is_not_private(made_page: Path) -> None:
    text = made_page.read_text("utf-8")
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert "Test 3, is not private: by our proof its noise keeps 18.0 times" in text
    assert "<script" not in text
    assert (made_page.parent / "public-tuning.png").stat().st_size > 10_000
    assert (made_page.parent / "verdicts.md").read_text("utf-8").startswith("| | the paper's claim |")


def test_the_document_gets_the_verdicts_and_a_small_page(made_page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = made_page.parent / "docs"
    docs.mkdir()
    (docs / "reproduction.md").write_text(f"Before.\n{report.BEGIN}\nearlier verdicts\n{report.END}\nAfter.\n", "utf-8")
    report.publish(made_page.parent, docs)
    text = (docs / "reproduction.md").read_text("utf-8")
    assert text.startswith(f"Before.\n{report.BEGIN}\n\n| | the paper's claim")
    assert text.endswith(f"{report.END}\nAfter.\n")
    assert "earlier verdicts" not in text
    assert (docs / report.PAGE).read_bytes() == made_page.read_bytes()
    monkeypatch.setattr(report, "MAX_BYTES", 1000)
    report.publish(made_page.parent, docs)
    assert not (docs / report.PAGE).exists()


class Browser:
    """Chromium by its driver's HTTP interface: no package is needed for it."""

    def __init__(self, port: int) -> None:
        self._root = f"http://127.0.0.1:{port}"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        asked = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        self._session = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        encoded = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._root + path, encoded, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["value"]

    def open(self, page: Path, *, width: int, scheme: str) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for command, params in (("setDeviceMetricsOverride", metrics), ("setEmulatedMedia", media)):
            body = {"cmd": f"Emulation.{command}", "params": params}
            self._ask("POST", f"{self._session}/goog/cdp/execute", body)
        self._ask("POST", f"{self._session}/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[Any]:
        return list(self._ask("POST", f"{self._session}/se/log", {"type": "browser"}))

    def close(self) -> None:
        self._ask("DELETE", self._session)


@pytest.fixture
def browser() -> Iterator[Browser]:
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("chromium and chromedriver are not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL) as driver:
        try:
            for _ in range(100):
                with socket.socket() as tried:
                    if tried.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            opened = Browser(port)
            yield opened
            opened.close()
        finally:
            driver.terminate()


def test_a_browser_shows_all_figures_by_day_by_night_and_on_a_phone(made_page: Path, browser: Browser) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        for width in (400, 1200):
            browser.open(made_page, width=width, scheme=scheme)
            sizes = browser.run(
                "return [...document.querySelectorAll('.panels svg')].map(s => {"
                "const r = s.getBoundingClientRect(); return [r.width, r.height, r.right] })"
            )
            assert len(sizes) == 5
            assert all(wide > 250 and high > 150 and right <= width for wide, high, right in sizes)
            assert browser.run("return document.documentElement.scrollWidth") <= width
            seen[scheme] = browser.run(
                "const c = getComputedStyle(document.body); const t = document.querySelector('.panels text');"
                "return [c.backgroundColor, c.color, getComputedStyle(t).fill]"
            )
    assert browser.complaints() == []
    assert all(by_day != by_night for by_day, by_night in zip(seen["light"], seen["dark"], strict=True))


def test_results_that_are_torn_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    assert list(lines(path)) == []
    add_line(path, {"a": 1})
    path.write_text(path.read_text("utf-8") + '{"a": ', "utf-8")
    add_line(path, {"a": 2})
    assert list(lines(path)) == [{"a": 1}, {"a": 2}]
