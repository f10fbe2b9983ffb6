"""Files that people hand to boltdp: models, certificates, schemas, CSV and Parquet."""

from __future__ import annotations

import io
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from boltdp._files.sealed import add_digest
from boltdp.engines import open_source
from boltdp.engines.base import encode_rows
from boltdp.model import Model
from boltdp.privacy.certificate import Certificate, verify
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Projection, Schema, Vector
from boltdp.settings import Settings
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from fuzz.target import SECRET, Target, damaged, scrambled

COLUMNS = (Numeric("age", 0, 100, curve=(18, 65.5)), Categorical("sex", ("F", "M")), Vector("scan", 2, -3, 3))


#: A schema as people write it: with ranges and with places that are counted.
DECLARED: dict[str, Any] = {
    "label": "sick",
    "classes": ["no", "yes"],
    "numeric": {"f{0..2}": {"bounds": [-5, 5], "curve": 3, "spacing": "log"}, "age": {"bounds": [0, 99], "curve": 2}},
}


@cache
def _models() -> tuple[dict[str, Any], ...]:
    """A model of each shape of certificate, as it is kept."""
    dice = np.random.default_rng(1)
    rows = pa.table(
        {
            "age": dice.uniform(0, 100, 400),
            "sex": dice.choice(["F", "M"], 400),
            "scan": list(dice.normal(size=(400, 2))),
            "sick": dice.integers(0, 3, 400),
            "cost": dice.uniform(-5, 55, 400),
        }
    )
    two, three = (Schema(Classes("sick", classes), COLUMNS) for classes in ((0, 1), (0, 1, 2)))
    asked = [
        (two, Settings(epsilon=1.0)),
        (three, Settings(epsilon=2.0, delta=1e-6)),
        (three, Settings(epsilon=2.0, loss="huber", noise_seed=1, seed=1)),
        (two, Settings(epsilon=2.0, delta=1e-6, algorithm="dpsgd", passes=1)),
        (Schema(Number("cost", 0, 50, typical=(5, 40)), COLUMNS), Settings(epsilon=1.0, algorithm="bolton")),
        (two, Settings(epsilon=1.0, algorithm="scs13", passes=2)),
        (Schema(Classes("sick", (0, 1)), COLUMNS, projection=Projection(2, 7)), Settings(epsilon=None)),
    ]
    made = [train(open_source(rows), schema, settings) for schema, settings in asked]
    grid = expand_grid(Settings(epsilon=4.0, algorithm="bolton"), {"passes": [1, 2]})
    made += [tune(open_source(rows), two, grid, method=method, trials=2.0) for method in ("portions", "trials")]
    return tuple(model.to_dict() for model in made)


def _read_model(record: Any) -> None:
    model = Model.from_dict(record)
    model.verify()
    model.certificate.guarantee()


def feed_model(dice: random.Random) -> None:
    """A model file whose JSON is sound and whose values are not."""
    _read_model(damaged(dice.choice(_models()), dice))


def feed_model_bytes(dice: random.Random) -> None:
    """A model file with bytes that are not; half of them by a forger, who computes the digest again."""
    record = dice.choice(_models())
    text = json.dumps(_sealed(damaged(record, dice) if dice.random() < 0.5 else record), indent=1).encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        path.write_bytes(scrambled(text, dice) if dice.random() < 0.5 else text)
        Model.load(path).verify()


def _sealed(record: Any) -> Any:
    """With the digest that a forger would write, if what was made of the record can have one."""
    try:
        return add_digest(record)
    except (AttributeError, ValueError):  # a half character is one, too
        return record


def feed_certificate(dice: random.Random) -> None:
    """A certificate by itself."""
    verify(Certificate.from_dict(damaged(dice.choice(_models())["certificate"], dice)))


def feed_schema(dice: random.Random) -> None:
    """A schema, from JSON as in a model and from TOML."""
    declared = dice.choice([*(model["schema"] for model in _models()), DECLARED])
    if dice.random() < 0.5:
        Schema.from_dict(damaged(declared, dice))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.toml"
        Schema.from_dict(declared).save(path)
        path.write_bytes(scrambled(path.read_bytes(), dice))
        Schema.load(path)


SCHEMA = Schema(
    Classes("sick", ("no", "yes")), (Numeric("age", 0, 100, curve=(18, 65.5)), Categorical("sex", ("F", "M")))
)


def _cell(dice: random.Random) -> str:
    plain = [str(dice.uniform(-10, 110)), "F", "M", "yes", "no", "", "NULL", "nan", SECRET, f"9{SECRET}"]
    odd = ["1e999", "0x1f", '"', '""', "a,b", "\n", "\r", "\0", "é", "x" * 500, "-", "1_000", "\u0661"]
    return dice.choice(plain if dice.random() < 0.9 else odd)


def feed_csv(dice: random.Random) -> None:
    """A CSV file with odd cells, lines and bytes."""
    lines = ["age,sex,sick", *(",".join(_cell(dice) for _ in range(3)) for _ in range(dice.randrange(30)))]
    data = dice.choice(("\n", "\r\n", "\n\n")).join(lines).encode()
    if dice.random() < 0.5:
        data = scrambled(data, dice)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(data)
        _read_rows(path)


def feed_parquet(dice: random.Random) -> None:
    """A Parquet file with odd types, or damaged."""
    kinds: list[Any] = [
        pa.float64(),
        pa.int8(),
        pa.string(),
        pa.bool_(),
        pa.date32(),
        pa.list_(pa.float32()),
        pa.null(),
    ]
    columns = {}
    for name in ("age", "sex", "sick"):
        kind = dice.choice(kinds)
        values = pa.array([SECRET, "F", None, "9"], pa.string())
        columns[name] = values if pa.types.is_string(kind) else pa.nulls(4, kind)
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    data = file.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        path.write_bytes(scrambled(data, dice) if dice.random() < 0.7 else data)
        _read_rows(path)


def _read_rows(path: Path) -> None:
    with open_source(path) as engine:
        engine.count()
        for block in encode_rows(engine, SCHEMA):
            assert np.isfinite(block[:, 1:]).all()


TARGETS = (
    Target("model", feed_model),
    Target("model bytes", feed_model_bytes),
    Target("certificate", feed_certificate),
    Target("schema", feed_schema),
    Target("csv", feed_csv, weight=4),
    Target("parquet", feed_parquet, weight=4),
)
