"""A few bytes must not ask for all the memory there is, and no schema is an error of ours."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boltdp._files.sealed import add_digest
from boltdp.errors import ParameterError
from boltdp.schema.schema import MAX_BYTES, Categorical, Classes, Numeric, Projection, Schema, Vector
from boltdp.schema.target import MAX_CLASSES
from boltdp.settings import Settings
from tests.cli.conftest import Run
from tests.test_model import model as some_model

HEAD = 'label = "y"\nclasses = [0, 1]\n'
DIGITS = "9" * 400

TABLES: dict[str, str] = {
    "a range": '[numeric]\n"f{0..99999999999}" = [-1, 1]',
    "a range of ranges": '[numeric]\n"f{0..999}{0..999}{0..999}" = [-1, 1]',
    "two ranges": '[numeric]\n"f{1..60000}" = [-1, 1]\n"g{1..60000}" = [-1, 1]',
    "two kinds": '[numeric]\n"f{1..60000}" = [-1, 1]\n[categorical]\n"g{1..60000}" = ["a"]',
    "the same columns twice": '[numeric]\n"f{1..50000}" = [-1, 1]\n[categorical]\n"f{1..49000}" = ["a"]',
    "a range of many digits": f'[numeric]\n"f{{0..{DIGITS}}}" = [-1, 1]',
    "a range of thousands of digits": '[numeric]\n"f{0..' + "9" * 5000 + '}" = [-1, 1]',
    "wide digits": '[numeric]\n"f{' + "0" * 5000 + '1..2}" = [-1, 1]',
    "a vector": "[vector]\nv = { length = 99999999999, bounds = [-1, 1] }",
    "a vector of many digits": f"[vector]\nv = {{ length = {DIGITS}, bounds = [-1, 1] }}",
    "vectors": '[vector]\n"v{1..99}" = { length = 9999, bounds = [-1, 1] }',
    "a projection": "[numeric]\na = [0, 1]\n[projection]\nseed = 1\ndims = 99999999999",
    "a projection's matrix": '[numeric]\n"f{1..90000}" = [0, 1]\n[projection]\nseed = 1\ndims = 80000',
    "bounds of many digits": f"[numeric]\na = [0, {DIGITS}]",
    "bounds of thousands of digits": f"[numeric]\na = [0, {'9' * 5000}]",
    "a clip norm of many digits": f"clip_norm = {DIGITS}\n[numeric]\na = [0, 1]",
    "categories of many digits": f"[categorical]\na = [{DIGITS}]",
    "nested bounds": "[numeric]\na = " + "[" * 900 + "]" * 900,
    "nested deeper": "[numeric]\na = " + "[" * 100_000 + "]" * 100_000,
    "nested tables": "[numeric]\na = " + "{a=" * 3000 + "1" + "}" * 3000,
    "dotted keys": "[numeric]\n" + "a." * 3000 + "a = 1",
    "standardization of lists": "[numeric]\na = [0, 1]\n[standardization]\ncenters = [[]]\nscales = [[]]\n"
    "clip_norm = 1\nintercept = 1",
    "a source that is a list": "[numeric]\na = [0, 1]\n[standardization]\ncenters = [0]\nscales = [1]\nclip_norm = 1\n"
    "intercept = 1\nsource = [[]]",
    "a date": "[numeric]\na = 2020-01-01",
    "no such date": "[numeric]\na = 2020-99-99",
    "infinity": "[numeric]\na = [-inf, inf]",
    "half a character": '[numeric]\n"\\ud800" = [0, 1]',
}

WHOLE: dict[str, str] = {
    "classes": "label = 'y'\nclasses = [" + ",".join(map(str, range(50_000))) + "]\n[numeric]\na = [0, 1]",
    "weights": "label = 'y'\nclasses = [" + ",".join(map(str, range(9000))) + "]\n[numeric]\n'f{1..9000}' = [0, 1]",
    "classes of many digits": f"label = 'y'\nclasses = [0, {DIGITS}]\n[numeric]\na = [0, 1]",
    "classes of lists": "label = 'y'\nclasses = [[], []]\n[numeric]\na = [0, 1]",
    "classes that are a table": "label = 'y'\n[classes]\na = 1\n[numeric]\na = [0, 1]",
    "a label that is a list": "label = []\nclasses = [0, 1]\n[numeric]\na = [0, 1]",
    "a label that is a number": f"label = {DIGITS}\nclasses = [0, 1]\n[numeric]\na = [0, 1]",
    "tables that are numbers": "label = 'y'\nclasses = [0, 1]\nnumeric = 1",
    "a projection that is a list": "label = 'y'\nclasses = [0, 1]\nprojection = [[]]\n[numeric]\na = [0, 1]",
    "spaces": " " * (MAX_BYTES + 1),
    **{name: HEAD + table for name, table in TABLES.items()},
}


@pytest.fixture(autouse=True)
def little() -> Iterator[None]:
    """A bomb that goes off takes seconds or gigabytes."""
    before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.perf_counter() - before < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 1_000_000


@pytest.mark.parametrize("text", WHOLE.values(), ids=WHOLE)
def test_a_schema_that_asks_for_too_much_is_refused(run: Run, text: str) -> None:
    Path("schema.toml").write_text(text)
    result = run("plan", "--rows", 1000, "--schema", "schema.toml")
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr) < 1000


def test_a_file_without_an_end_is_no_schema(run: Run) -> None:
    result = run("plan", "--rows", 1000, "--schema", "/dev/zero")
    assert result.exit_code == 1
    assert "it is longer than 16,777,216 bytes" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--features", 10**11),
        ("--features", 100_001),
        ("--features", 5, "--classes", 10**11),
        ("--features", 9000, "--classes", 9000),
        ("--features", 5, "--passes", 2**53),
        ("--features", 5, "--batch-size", 2**63),
        ("--features", 10**400),
    ],
)
def test_a_plan_that_asks_for_too_much_is_refused(run: Run, arguments: tuple[object, ...]) -> None:
    result = run("plan", "--rows", 1000, *arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("error: ")


def put(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    place = record
    *way, last = path.split(".")
    for key in way:
        place = place[key]
    place[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema.numeric", {"f{0..99999999999}": [-1.0, 1.0]}),
        ("schema.vector", {"v": {"length": 99999999999, "bounds": [-1.0, 1.0]}}),
        ("schema.vector", {"v": {"length": int("9" * 90), "bounds": [-1.0, 1.0]}}),
        ("schema.numeric", {f"f{i}": [-1.0, 1.0] for i in range(200_000)}),
        ("schema.classes", list(range(100_000))),
        ("schema.classes", [[], []]),
        ("schema.projection", {"dims": 99999999999, "seed": 1}),
        ("schema.standardization", [[]]),
        ("schema", [[]]),
        ("weights", [[[]]]),
        ("certificate.reasons", [[]]),
        ("certificate.reasons", [[[]], {}]),
        ("certificate.spent.reasons", [[]]),
        ("certificate.model_count", 10**15),
        ("certificate.spent.problem.dims", 10**15),
        ("certificate.spent.problem.loss", {"name": "multinomial", "classes": 10**15}),
        ("certificate.spent.problem.loss.name", [[]]),
        ("certificate.spent.problem.rows", 2**62),
        ("certificate.spent.problem.batch_size", 2**53),
        ("certificate.spent.problem.passes", 2**53),
        ("certificate.adjacency", [[]]),
        ("certificate.version", "\x1b[2J"),
    ],
)
def test_a_model_that_asks_for_too_much_is_refused(run: Run, path: str, value: Any) -> None:
    record = some_model(2, Settings(epsilon=1.0, algorithm="bolton")).to_dict()
    Path("model.json").write_text(json.dumps(add_digest(put(record, path, value))))
    result = run("verify", "model.json", "--allow-not-private")
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


def test_the_same_limits_hold_in_python() -> None:
    one = (Numeric("a", 0, 1),)
    for make in (
        lambda: Vector("v", 100_001, 0, 1),
        lambda: Categorical("c", tuple(range(100_001))),
        lambda: Schema(Classes("y", tuple(range(MAX_CLASSES + 1))), one),
        lambda: Schema(Classes("y", (0, 1)), tuple(Vector(f"v{i}", 60_000, 0, 1) for i in range(2))),
        lambda: Schema(Classes("y", (0, 1)), tuple(Numeric(f"v{i}", 0, 1) for i in range(100_001))),
        lambda: Schema(Classes("y", (0, 1)), (Vector("v", 90_000, 0, 1),), projection=Projection(dims=80_000, seed=1)),
        lambda: Schema(Classes("y", tuple(range(9000))), (Vector("v", 9000, 0, 1),)),
        lambda: Schema.from_dict({"label": "y", "classes": [0, 1], "numeric": {7: [0, 1]}}),
    ):
        with pytest.raises(ParameterError, match=r"must be|must have"):
            make()
    assert Schema(Classes("y", tuple(range(MAX_CLASSES))), one).dims == 2
    assert Schema(Classes("y", (0, 1)), (Vector("v", 99_999, 0, 1),)).dims == 100_000


def test_a_duplicate_among_many_columns_is_found_soon() -> None:
    columns = tuple(Numeric(f"v{i % 99_999}", 0, 1) for i in range(99_999 + 1))
    with pytest.raises(ParameterError, match="each column must be declared once, got 'v0' more than once"):
        Schema(Classes("y", (0, 1)), columns)
