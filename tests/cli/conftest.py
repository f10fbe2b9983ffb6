from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from boltdp.cli import main

#: A value that stands in the private rows and must stand in nothing else.
SECRET = "Zaphod-4711"

SCHEMA = """\
label = "sick"
classes = ["no", "yes"]

[numeric]
age = [0, 100]
pulse = [30, 200]

[categorical]
ward = ["A", "B", "C"]
"""

Run = Callable[..., Result]


def find_events(record: Any, kind: str) -> list[dict[str, Any]]:
    """All events of a kind in the JSON of a certificate, whatever is around them."""
    if isinstance(record, list):
        return [event for one in record for event in find_events(one, kind)]
    if not isinstance(record, dict):
        return []
    inside = [event for one in record.values() for event in find_events(one, kind)]
    return [record, *inside] if record.get("kind") == kind else inside


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in a directory of its own, with a terminal that wraps nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="boltdp")

    return run


@pytest.fixture
def table() -> pa.Table:
    """Rows of patients, with missing and undeclared values among them."""
    generator = np.random.default_rng(0)
    age = generator.uniform(0, 100, 2000)
    ward = np.array(["A", "B", "C", SECRET, None], dtype=object)[generator.integers(5, size=2000)]
    sick = np.where(age + generator.normal(0, 10, 2000) > 60, "yes", "no").astype(object)
    sick[::50] = SECRET
    return pa.table(
        {
            "age": pa.array(age, mask=generator.random(2000) < 0.05),
            "pulse": generator.normal(80, 20, 2000),
            "ward": pa.array(ward, pa.string()),
            "sick": pa.array(sick, pa.string()),
        }
    )


@pytest.fixture
def rows(tmp_path: Path, table: pa.Table) -> Path:
    """The rows in a Parquet file, with a schema beside it."""
    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(table, path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return path


@pytest.fixture
def model(run: Run, rows: Path) -> Path:
    """A model trained on the rows."""
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--noise-seed", 1, "-o", "model.json")
    assert result.exit_code == 0, result.output
    return rows.with_name("model.json")
