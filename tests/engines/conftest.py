"""The engines that the suite runs with: all that a file named `*_sources.py`, anywhere among the tests, registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.engines.sources import BUCKETS, MAKERS, Source

TESTS = Path(__file__).parents[1]
for _path in sorted(TESTS.rglob("*_sources.py")):
    import_module(".".join(("tests", *_path.relative_to(TESTS).with_suffix("").parts)))


@pytest.fixture(scope="session")
def source_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files of rows are written, once."""
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Source]]:
    """Makes sources that all tests share, when they are first asked for."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(MAKERS[name].make(request)))


def made(request: pytest.FixtureRequest, name: str) -> Iterator[Source]:
    maker = MAKERS[name]
    for pattern, reason in maker.cannot.items():
        if re.search(pattern, request.node.name):
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    if maker.shared:
        yield request.getfixturevalue("shared")(name)
        return
    with maker.make(request) as source:
        yield source


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow with some engine, before any test is chosen by its marks."""
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        name = given.get("source") or given.get("spooled", [None])[0]
        slow = MAKERS[name].slow if name in MAKERS else None
        if slow is not None and re.search(slow, item.name):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(params=MAKERS)
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    """The rows in each engine."""
    yield from made(request, request.param)


@pytest.fixture(
    params=[
        pytest.param((name, buckets), id=f"{name}, {buckets}")
        for name, maker in MAKERS.items()
        for buckets in maker.buckets
    ]
)
def spooled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """The rows in each engine, set to spool them in one way or another, where it spools them at all."""
    name, buckets = request.param
    for source in made(request, name):
        engine = source.engine
        before = engine.memory_bytes, engine.spool
        engine.memory_bytes, engine.spool = BUCKETS[buckets], tmp_path
        yield source
        engine.memory_bytes, engine.spool = before
