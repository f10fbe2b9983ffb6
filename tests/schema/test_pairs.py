"""Pairs of columns: their features, what is refused, and models trained with them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import boltdp
from boltdp.encoding.plan import PAIR_STEPS, PAIR_WEIGHT, STEP_HEIGHT
from boltdp.engines.base import encode_rows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.kernel.feature_map import MAX_AXES
from boltdp.schema.columns import Categorical, Column, Numeric, TimePart, Vector
from boltdp.schema.pairs import add_pair_curves, add_pairs
from boltdp.schema.schema import Projection, Schema, Standardization
from boltdp.schema.target import Classes
from boltdp.settings import Settings
from boltdp.workflows.inference import add_references
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train
from tests.export.test_sql import make_model

AGE, HOURS, SMOKES = Numeric("age", 0, 100, curve=(25, 50, 75)), Numeric("hours", 0, 80), Numeric("smokes", 0, 1)
SEX = Categorical("sex", ("F", "M"))
SCHEMA = Schema(Classes("sick", (0, 1)), (AGE, HOURS, SMOKES, SEX), pairs=(("age", "sex"), ("smokes", "hours")))


def make_table(rows: int = 2_000, seed: int = 1) -> pa.Table:
    """Rows whose label depends on whether either of two things holds, but not both, which no column alone tells."""
    random = np.random.default_rng(seed)
    age, hours, sex = random.uniform(0, 100, rows), random.uniform(0, 80, rows), random.choice(["F", "M", "?"], rows)
    score = 3.0 * ((age > 50) ^ (sex == "F")) - 1.5
    return pa.table(
        {
            "age": pa.array(age, mask=random.random(rows) < 0.05),
            "hours": hours,
            "smokes": random.integers(0, 2, rows),
            "sex": sex,
            "sick": (random.random(rows) < 1 / (1 + np.exp(-score))).astype(int),
        }
    )


def read_features(schema: Schema, table: pa.Table) -> npt.NDArray[np.float64]:
    return schema.encoding.read_features(np.concatenate([*encode_rows(ArrayEngine.from_arrow(table), schema)]))


def read_side(schema: Schema, column: Column, value: Any) -> list[float] | None:
    """The features of one side of a pair, as docs/schema.md says; None for a missing value."""
    names = [name for one in schema.columns for name in one.feature_names]
    centers = dict.fromkeys(names, 0.0)
    if schema.standardization is not None:
        centers = dict(zip(names, schema.standardization.centers, strict=True))
    if not isinstance(column, Numeric):
        values = column.encoding_rule.values
        if value not in column.encoding_rule.known_values:
            return None
        of_values = [name for name in column.feature_names if "=" in name]
        return [(value == one) - centers[name] for one, name in zip(values, of_values, strict=True)]
    if value is None or math.isnan(value):
        return None
    curve, count = column.curve, min(PAIR_STEPS, len(column.curve))
    chosen = [((2 * part + 1) * len(curve)) // (2 * count) for part in range(count)]
    places = [curve[step] for step in chosen] or [(column.low + column.high) / 2]
    named = [column.feature_names[1 + step] for step in chosen]
    means = [centers[name] / (STEP_HEIGHT / 2) for name in named] or [centers[column.name]]
    value = min(max(value, column.low), column.high)
    return [(1.0 if value >= place else -1.0) - mean for place, mean in zip(places, means, strict=True)]


def read_pairs(schema: Schema, row: dict[str, Any]) -> list[float]:
    """The features of the pairs of a row before they are divided by the clip norm."""
    columns, features = {column.name: column for column in schema.columns}, []
    for one, other in schema.pairs:
        sides = [read_side(schema, columns[name], row[columns[name].source]) for name in (one, other)]
        lengths = [columns[name].encoding_rule.pair_feature_count for name in (one, other)]
        first, second = (side or [0.0] * length for side, length in zip(sides, lengths, strict=True))
        if None in sides:
            first = [0.0] * lengths[0]
        features += [PAIR_WEIGHT * a * b for a in first for b in second]
    return features


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    columns: list[Column] = []
    for number in range(draw(st.integers(2, 5))):
        kind, name = draw(st.sampled_from(["curve", "plain", "indicator", "categories", "reference"])), f"c{number}"
        if kind in ("curve", "plain"):
            curve = draw(st.sets(st.integers(-99, 99), min_size=1, max_size=9)) if kind == "curve" else ()
            columns.append(Numeric(name, -100, 100, curve=tuple(sorted(curve))))
        elif kind == "indicator":
            columns.append(Numeric(name, 0, 1))
        else:
            categories = ("a", "b", "c")[: draw(st.integers(2, 3))]
            columns.append(Categorical(name, categories, reference="b" if kind == "reference" else None))
    names = [column.name for column in columns]
    possible = [(one, other) for place, one in enumerate(names) for other in names[:place]]
    pairs = draw(st.lists(st.sampled_from(possible), min_size=1, unique=True))
    plain = Schema(Classes("label", (0, 1)), tuple(columns), pairs=tuple(pairs), intercept=draw(st.booleans()))
    if not draw(st.booleans()):
        return plain
    random = np.random.default_rng(draw(st.integers(0, 99)))
    count = plain.column_feature_count
    centers, scales = random.uniform(-0.2, 0.2, count), random.uniform(0.5, 2, count)
    return replace(plain, standardization=Standardization((*centers.tolist(),), (*scales.tolist(),), 1.7, 0.5))


@given(schema=schemas(), seed=st.integers(0, 99))
def test_features_of_pairs_are_products_of_centred_features(schema: Schema, seed: int) -> None:
    random, rows, cells = np.random.default_rng(seed), 40, {}
    for column in schema.columns:
        if isinstance(column, Numeric):
            chosen = random.choice([*column.curve, column.low, column.high, 0.25, -1e9, math.nan], rows)
            cells[column.name] = [None if math.isnan(one) and random.random() < 0.5 else one for one in chosen.tolist()]
        else:
            cells[column.name] = random.choice(["a", "b", "c", "undeclared"], rows).tolist()
    table = pa.table({**cells, "label": [0] * rows})
    features = read_features(schema, table)
    first = 1 + schema.column_feature_count
    expected = np.array([read_pairs(schema, row) for row in table.to_pylist()]) / schema.row_norm
    found = features[:, first : first + expected.shape[1]]
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-15)
    assert (
        features.shape[1] - 1
        == schema.dims
        == len(schema.feature_names)
        == first - 1 + expected.shape[1] + (schema.intercept)
    )
    if schema.standardization is None:  # nothing is centred, and rows are divided by the largest norm
        assert (np.linalg.norm(features[:, 1:], axis=1) <= 1 + 1e-12).all()
    assert Schema.from_toml(schema.to_toml()) == schema


def test_names_of_features_are_those_of_both_columns() -> None:
    assert SCHEMA.feature_names[-8:] == (
        "age>=25 & sex=F",
        "age>=25 & sex=M",
        "age>=50 & sex=F",
        "age>=50 & sex=M",
        "age>=75 & sex=F",
        "age>=75 & sex=M",
        "smokes>=0.5 & hours>=40",
        "intercept",
    )
    hour = Schema(Classes("y", (0, 1)), (TimePart("at", "weekday"), SMOKES), pairs=(("smokes", "at.weekday"),))
    assert "smokes>=0.5 & at.weekday=Mon" in hour.feature_names


def test_a_schema_without_pairs_is_written_as_before() -> None:
    plain = replace(SCHEMA, pairs=())
    assert "pairs" not in plain.to_toml()
    assert SCHEMA.to_dict()["pairs"] == [["age", "sex"], ["smokes", "hours"]]
    assert json.loads(json.dumps(SCHEMA.to_dict())) == SCHEMA.to_dict()
    assert add_pairs(plain, SCHEMA.pairs) == SCHEMA
    assert add_pairs(SCHEMA, [("sex", "age"), ("age", "smokes")]).pairs == (*SCHEMA.pairs, ("age", "smokes"))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("age", r"^pairs must be a list of pairs of columns, got 'age'$"),
        (["age"], r"^each of the pairs must be the names of two columns, got 'age'$"),
        ([["age"]], r"^each of the pairs must be the names of two columns, got \['age'\]$"),
        ([["age", 3]], r"^each of the pairs must be the names of two columns, got \['age', 3\]$"),
        ([["age", "sexe"]], r"^each of the pairs must be of declared columns, got 'sexe'$"),
        ([["age", "sick"]], r"^each of the pairs must be of declared columns, got 'sick'$"),
        ([["age", "age"]], r"^each of the pairs must be of two different columns, got 'age' twice$"),
        ([["age", "sex"], ["sex", "age"]], r"^each pair must be declared once, got \['sex', 'age'\] more than once$"),
    ],
)
def test_pairs_that_cannot_be_are_refused(pairs: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        Schema.from_dict({**SCHEMA.to_dict(), "pairs": pairs})
    if "sexe" in message:
        assert caught.value.hint == "did you mean 'sex'?"


def test_schemas_that_cannot_have_pairs_are_refused() -> None:
    vector = Vector("v", 2, -1, 1)
    with pytest.raises(
        ParameterError, match=r"^each of the pairs must be of numbers or categories, got the vector 'v'$"
    ):
        Schema(Classes("y", (0, 1)), (AGE, vector), pairs=(("v", "age"),))
    assert Schema(Classes("y", (0, 1)), (AGE, SEX, vector), pairs=(("sex", "age"),)).dims == 4 + 2 + 2 + 6 + 1
    with pytest.raises(ParameterError, match=r"^a schema with pairs of columns must have no projection, got both$"):
        replace(SCHEMA, projection=Projection(3, 1))
    with pytest.raises(ParameterError, match=r"^a schema with pairs of columns must have no monotone column, "):
        replace(SCHEMA, columns=(replace(AGE, monotone="increasing"), HOURS, SMOKES, SEX))
    features = SCHEMA.column_feature_count
    inferred = Standardization((0.0,) * features, (1.0,) * features, 2.0, 1.0, downweights=True)
    with pytest.raises(ParameterError, match=r"^a schema with pairs of columns must not downweight long rows, "):
        replace(SCHEMA, standardization=inferred)
    many = tuple(Numeric(f"f{number}", 0, 9) for number in range(MAX_AXES + 2))
    pairs = tuple((f"f{number}", f"f{number + 1}") for number in range(0, MAX_AXES + 2, 2))
    with pytest.raises(ParameterError, match=r"^the pairs must be of at most 256 columns, got 258$"):
        Schema(Classes("y", (0, 1)), many, pairs=pairs)
    large = tuple(Categorical(name, tuple(range(400))) for name in ("a", "b"))
    with pytest.raises(ParameterError, match=r"^the features must be at most 100,000, got 160801 with the intercept$"):
        Schema(Classes("y", (0, 1)), large, pairs=(("a", "b"),))


def test_inference_and_other_exports_refuse_pairs_before_rows_are_read() -> None:
    schema = add_references(Schema(Classes("sick", (0, 1)), (HOURS, SMOKES, SEX), pairs=(("hours", "sex"),)))
    with pytest.raises(ParameterError, match=r"^inference must be of a schema without pairs of columns: "):
        make_plan(schema, 10_000, Settings(epsilon=2.0, delta=1e-6, inference=True))
    with pytest.raises(ParameterError, match=r"^a scikit-learn estimator must be of a model without pairs of columns"):
        boltdp.Model.from_released(make_model(SCHEMA)).to_sklearn()


def test_numbers_of_pairs_get_a_curve_by_their_bounds() -> None:
    columns = {column.name: column for column in add_pair_curves(SCHEMA).columns}
    assert columns["age"] == AGE  # its own
    assert columns["hours"].encoding_rule.thresholds == HOURS.add_curve(PAIR_STEPS).curve
    assert columns["smokes"] == SMOKES  # it is split in the middle
    plain = replace(SCHEMA, pairs=())
    assert add_pair_curves(plain) == plain
    for settings in (Settings(epsilon=1.0), Settings(epsilon=1.0, curves=0), Settings(epsilon=None)):
        planned = make_plan(SCHEMA, 10_000, settings).schema
        assert len(next(one for one in planned.columns if one.name == "hours").encoding_rule.thresholds) >= PAIR_STEPS


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"standardize_moments": "histograms"},
        {"standardize": "private", "standardize_moments": "squares"},
        {"algorithm": "noisy-gd", "delta": 1e-6},
        {"algorithm": "bolton"},
        {"algorithm": "objective", "standardize": "none"},
        {"loss": "margin"},
        {"epsilon": None, "noise_seed": None, "curves": 0},
    ],
)
def test_models_with_a_pair_learn_what_no_column_tells(changes: dict[str, Any]) -> None:
    table = make_table(20_000)
    ages, sexes = table["age"].to_pylist(), table["sex"].to_pylist()
    known = np.array([one is not None and other != "?" for one, other in zip(ages, sexes, strict=True)])
    settings = Settings(**{"epsilon": 5.0, "seed": 2, "noise_seed": 2, **changes})
    accuracies = []
    for schema in (SCHEMA, replace(SCHEMA, pairs=())):
        model = train(ArrayEngine.from_arrow(table), schema, settings)
        model.verify()
        read = boltdp.Model.from_dict(json.loads(json.dumps(model.to_dict())))
        assert (read.schema, read.weights.tolist()) == (model.schema, model.weights.tolist())
        predicted = boltdp.Model.from_released(model).predict(table)
        accuracies.append((predicted == table["sick"].to_numpy())[known].mean())
    assert accuracies[0] > accuracies[1] + 0.1, accuracies


def test_the_clip_norm_has_room_for_pairs() -> None:
    """The root mean square norm of independent columns is what is expected of the released means."""
    table = make_table(50_000)
    schema = replace(SCHEMA, columns=(AGE, replace(HOURS, curve=(20, 40)), SMOKES, SEX))
    for pairs in (SCHEMA.pairs, ()):
        settings = Settings(epsilon=1e4, standardize="private", noise_seed=1)
        model = train(ArrayEngine.from_arrow(table), replace(schema, pairs=pairs), settings)
        rows = read_features(model.schema, table)[:, 1:-1]
        assert np.sqrt((rows**2).sum(axis=1).mean()) == pytest.approx(1.0, abs=0.02)
