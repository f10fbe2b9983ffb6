"""Models with pairs of columns are stored, requested and predicted from in the database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.engines.postgres.local_server import Server
from boltdp.export.postgres_models import make_model_row, store_model
from boltdp.model import Model
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema, Vector
from boltdp.schema.target import Target
from boltdp.settings import Settings
from boltdp.workflows.predict import predict, score_batches
from boltdp.workflows.train import train
from tests.export.test_sql import make_model, make_paired_rows, make_paired_schema, standardize_paired
from tests.postgres.desk import Desk, opened_desk
from tests.postgres.statements import recorded

WEEKDAYS = {f"2024-01-{day:02}": (day - 1) % 7 for day in range(1, 32)}  # that year began on a Monday


def choose_indicators(value: Any, values: tuple[Any, ...], reference: Any = None) -> list[int | None]:
    """What `x` has of a category: 1 for its own number, 0 for the others; NULL for one that is missing."""
    known = value in values or value == reference
    return [int(value == one) if known else None for one in values]


def make_inputs(rows: pa.Table) -> list[list[float | None]]:
    """The arrays `x` of the rows of `make_paired_rows`."""
    return [
        [
            *(row["sides"], row["number"], row["x"]),
            *choose_indicators(row["cell"], ("a'b", 'c"d', "")),
            *choose_indicators(row["kind"], (2.5, 4), reference=1),
            *choose_indicators(WEEKDAYS.get(row["moment"]), tuple(range(7))),
        ]
        for row in rows.to_pylist()
    ]


def score(admin: psycopg.Connection, function: str, name: str, inputs: list[Any]) -> list[Any]:
    """Score all inputs in one statement, and so by a model that is read once."""
    texts = ["{" + ",".join("NULL" if one is None else repr(float(one)) for one in row) + "}" for row in inputs]
    query = f"SELECT boltdp.{function}(%s, x::float8[]) FROM unnest(%s::text[]) AS given (x)"
    return [one for (one,) in admin.execute(query, [name, texts]).fetchall()]


def assert_same(server: Server, admin: psycopg.Connection, model: Model, rows: pa.Table, inputs: list[Any]) -> None:
    """Compare `boltdp.predict` and `boltdp.predict_proba` with the model's own predictions."""
    store_model(server.uri, "paired", model, replace=True)
    expected = [str(value) for value in predict(model, open_source(rows))]
    assert score(admin, "predict", "paired", inputs) == expected
    assert len(set(expected)) > 1
    margins = np.concatenate([*score_batches(model, open_source(rows))])
    probabilities = model.probabilities(margins)
    np.testing.assert_allclose(score(admin, "predict_proba", "paired", inputs), probabilities, rtol=1e-12, atol=1e-15)
    weights = model.weights.copy()
    weights[:, model.schema.column_feature_count : -1] = 0.0  # of the pairs
    without = np.concatenate([*score_batches(replace(model, weights=weights), open_source(rows))])
    assert np.abs(model.probabilities(without) - probabilities).max() > 0.01


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_columns_of_every_kind_are_in_pairs(
    server: Server, admin: psycopg.Connection, classes: tuple[Any, ...], count: int
) -> None:
    """Also missing, undeclared and infinite cells, and the reference of a category."""
    rows, schema = make_paired_rows(), make_paired_schema(classes, count)
    for seed, paired in enumerate((schema, standardize_paired(schema))):
        assert_same(server, admin, make_model(paired, seed=seed), rows, make_inputs(rows))


def test_a_category_without_a_one_is_missing_unless_it_has_a_reference(
    server: Server, admin: psycopg.Connection
) -> None:
    columns = (Numeric("age", 0, 90), Categorical("sex", ("F", "M")), Categorical("kind", (1, 2), reference=1))
    pairs = (("age", "sex"), ("kind", "age"))
    model = make_model(standardize_paired(Schema(Classes("sick", (0, 1)), columns, pairs=pairs)), seed=1)
    rows = pa.table({"age": [70.0] * 3, "sex": ["F", None, "F"], "kind": [1, 1, None]})
    store_model(server.uri, "without", model, replace=True)
    margins = np.concatenate([*score_batches(model, open_source(rows))])
    expected = model.probabilities(margins)
    assert len({*expected[:, 0]}) == 3
    # The second in two ways: of columns without a reference it is the same whether a category is missing or undeclared.
    inputs = [[70, 1, 0, 0], [70, 0, 0, 0], [70, None, None, 0], [70, 1, 0, None]]
    found = score(admin, "predict_proba", "without", inputs)
    np.testing.assert_allclose(found, expected[[0, 1, 1, 2]], rtol=1e-12)


CLIPPED = {"algorithm": "noisy-gd", "delta": 1e-6, "gradient_clip": 0.5}
TRAINED: dict[str, tuple[tuple[Any, ...], float | None, dict[str, Any]]] = {
    "two classes": ((0, 1), None, {}),
    "three classes": ((0, 1, 2), None, {"standardize": "private"}),
    "one-vs-all": ((0, 1, 2), None, {"multiclass": "one-vs-all"}),
    "threshold": ((0, 1), 0.4, {"standardize": "private"}),
    "clipped gradients": ((0, 1), 0.4, CLIPPED),
    "clipped gradients, three classes": ((0, 1, 2), None, CLIPPED),
    "clipped gradients, weights": ((0, 1, 2), None, {**CLIPPED, "class_weights": (1.0, 0.3, 0.5)}),
}


def make_trained_rows(seed: int = 4, count: int = 2_000) -> tuple[pa.Table, list[Any]]:
    """Rows in which the two sexes are ill in opposite ages, and their arrays `x`."""
    rng = np.random.default_rng(seed)
    ages, sexes, scans = rng.uniform(0, 90, count), rng.choice(["F", "M"], count), rng.normal(0, 1, (count, 2))
    sick = np.where(sexes == "F", ages > 45, ages < 45).astype(int) + (scans[:, 0] > 1)
    rows = pa.table({"age": ages, "sex": sexes, "scan": [*scans], "weight": rng.uniform(0, 2, count), "sick": sick})
    return rows, np.column_stack([ages, sexes == "F", sexes == "M", scans]).tolist()


def make_trained_schema(target: Target, weight: Numeric | None = None) -> Schema:
    columns = (Numeric("age", 0, 90), Categorical("sex", ("F", "M")), Vector("scan", 2, -2, 2))
    return Schema(target, columns, pairs=(("sex", "age"),), weight=weight)


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_predict_as_they_do_outside(server: Server, admin: psycopg.Connection, name: str) -> None:
    """Clipped gradients correct the scores, unless rows have weights, which are no features."""
    classes, threshold, settings = TRAINED[name]
    rows, inputs = make_trained_rows()
    schema = make_trained_schema(Classes("sick", classes), None if "clipped" in name else Numeric("weight", 0, 2))
    model = train(open_source(rows), schema, Settings(epsilon=100.0, seed=5, noise_seed=1, **settings))
    assert bool(model.slope_norms) == ("clipped" in name)
    assert_same(server, admin, model.with_threshold(threshold), rows, inputs)


def test_numbers_are_predicted_by_pairs(server: Server, admin: psycopg.Connection) -> None:
    rows, inputs = make_trained_rows()
    schema = make_trained_schema(Number("sick", 0, 3))
    model = train(open_source(rows), schema, Settings(epsilon=100.0, seed=5, noise_seed=1))
    store_model(server.uri, "paired number", model, replace=True)
    expected = predict(model, open_source(rows))
    np.testing.assert_allclose(
        score(admin, "predict_number", "paired number", inputs), expected, rtol=1e-12, atol=1e-15
    )
    assert np.ptp(expected) > 0.5


def test_coefficients_have_no_rows_for_pairs(server: Server, admin: psycopg.Connection) -> None:
    store_model(server.uri, "paired", make_model(make_paired_schema((0, 1), 3)), replace=True)
    assert admin.execute("SELECT * FROM boltdp.coefficients('paired')").fetchall() == []
    assert admin.execute("SELECT * FROM boltdp.coefficients WHERE model = 'paired'").fetchall() == []


@pytest.fixture
def hostile(server: Server) -> Iterator[psycopg.Connection]:
    """A connection to a table with a model named `sound`, whose two columns are in a pair, that is rolled back."""
    columns = (Numeric("age", 0, 90, curve=(18, 65)), Categorical("sex", ("F", "M")))
    model = make_model(Schema(Classes("sick", (0, 1)), columns, pairs=(("age", "sex"),)))
    store_model(server.uri, "sound", model, replace=True)
    with psycopg.connect(server.uri) as connection:
        yield connection
        connection.rollback()


def predict_from(connection: psycopg.Connection, change: str, value: Any = None) -> str | None:
    """Change the model and predict from it; None if it is refused as damaged."""
    with connection.transaction(force_rollback=True):
        connection.execute(f"UPDATE boltdp.models SET {change} WHERE name = 'sound'", [value] * change.count("%s"))
        query = "SELECT boltdp.predict('sound', x) FROM (VALUES ('{70,1,0}'::float8[]), ('{NULL,NULL,0}')) AS s (x)"
        with suppress(psycopg.errors.InvalidParameterValue):
            return "".join(one for (one,) in connection.execute(query).fetchall())
    return None


def get_map(connection: psycopg.Connection) -> bytes:
    (row,) = connection.execute("SELECT feature_map FROM boltdp.models WHERE name = 'sound'").fetchall()
    return bytes(row[0])


def test_a_map_that_does_not_fit_is_refused(hostile: psycopg.Connection) -> None:
    sound = get_map(hostile)
    assert predict_from(hostile, "feature_map = %s", sound) is not None
    for wrong in (b"", b"\0", sound[:-8], sound[:-1], sound + b"\0", sound + bytes(8), bytes(len(sound)), sound[::-1]):
        assert predict_from(hostile, "feature_map = %s", wrong) is None
    other = make_model(make_paired_schema((0, 1), 3))
    assert predict_from(hostile, "feature_map = %s", make_model_row("other", other)["feature_map"]) is None
    assert predict_from(hostile, "feature_map = NULL") is None  # its weights are too many
    assert predict_from(hostile, "weights = '{{1,2}}'") is None
    assert predict_from(hostile, "projection = '{{1},{0}}'") is None
    assert predict_from(hostile, "low = '{0,-1}', high = '{90,1}', middle = '{0,0}', factor = '{1,1}'") is None


def test_no_word_of_a_map_is_followed_out_of_bounds(hostile: psycopg.Connection) -> None:
    """Each word in turn becomes what it should not be: it is refused, or only moves the scores; the server lives on."""
    sound = np.frombuffer(get_map(hostile), np.uint64)
    (session,) = hostile.execute("SELECT pg_backend_pid()").fetchone()  # type: ignore[misc]
    refused: dict[int, int] = {}
    values = [0, 1, 2, 3, 255, 257, 2**31, 2**32 - 1, 2**61, 2**63, 2**64 - 1]
    values += np.array([np.nan, -np.inf]).view(np.uint64).tolist()
    for place in range(len(sound)):
        for value in values:
            changed = sound.copy()
            changed[place] = value
            said = predict_from(hostile, "feature_map = %s", changed.tobytes())
            assert said is None or set(said) <= {"0", "1"}
            refused[place] = refused.get(place, 0) + (said is None)
    assert hostile.execute("SELECT pg_backend_pid()").fetchone() == (session,)
    # No sizes but the right ones; of numbers, all but NaN and infinity may be.
    assert all(refused[place] >= len(values) - 1 for place in range(7))
    assert min(refused.values()) >= 2


def test_a_column_of_another_type_is_refused(hostile: psycopg.Connection) -> None:
    with hostile.transaction(force_rollback=True):
        hostile.execute("ALTER TABLE boltdp.models ALTER feature_map TYPE text USING feature_map::text")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="its parts do not fit"):
            hostile.execute("SELECT boltdp.predict('sound', '{70,1,0}'::float8[])")


@pytest.fixture
def desk(server: Server) -> Iterator[Desk]:
    with opened_desk(server, epsilon=100.0) as opened:
        # The two sexes have the outcome in opposite ages.
        opened.ask("hospital", "UPDATE patients SET outcome = (age > 60) = (sex = 'F')")
        opened.ask("hospital", ALLOW, [json.dumps(DECLARED)])
        yield opened


ALLOW = (
    "SELECT boltdp.allow_training('patients', 'ann', 'outcome', '{age,sex,amount}', 100, 1e-5, 'ward',"
    " '{south,north}', schema => %s)"
)
DECLARED: dict[str, Any] = {
    "label": "outcome",
    "classes": [False, True],
    "numeric": {"age": [0, 120], "amount": [0, 1e6]},
    "categorical": {"sex": ["F", "M"]},
    "pairs": [["age", "sex"], ["sex", "amount"]],
}


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("groups", [None, "ward"])
def test_requests_train_the_pairs_that_an_owner_declares(desk: Desk, delta: float, groups: str | None) -> None:
    number = desk.request(epsilon=20.0, delta=delta, groups=groups)
    assert desk.serve() == [f"ann/{number}: done"]
    desk.publish()
    names = ["ann/1"] if groups is None else ["ann/1:south", "ann/1:north"]
    assert desk.status(number)["models"] == names
    for name in names:
        (model,) = desk.ask("ann", "SELECT private, schema FROM boltdp.models WHERE name = %s", [name])
        assert model["private"]
        assert model["schema"]["pairs"] == DECLARED["pairs"]
        query = "SELECT boltdp.predict(%s, ARRAY[age, 5e5, (sex = 'F')::int, (sex = 'M')::int]::float8[]) AS said"
        query += " FROM (VALUES (100, 'F'), (100, 'M'), (20, 'F'), (20, 'M'), (20, NULL)) AS one (age, sex)"
        said = [one["said"] for one in desk.ask("ann", query, [name])]
        assert said[:4] == ["true", "false", "false", "true"]
    assert desk.spent() == pytest.approx(20.0)


def test_requests_of_some_columns_have_the_pairs_of_these_alone(desk: Desk) -> None:
    for columns, pairs in ((["age", "sex"], [["age", "sex"]]), (["age", "amount"], None)):
        number = desk.request(columns=columns, epsilon=5.0)
        assert desk.serve() == [f"ann/{number}: done"]
        (model,) = desk.ask("postgres", "SELECT schema FROM boltdp.models WHERE name = %s", [f"ann/{number}"])
        assert model["schema"].get("pairs") == pairs


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_which_statements_train_pairs_does_not_depend_on_the_rows(desk: Desk, delta: float) -> None:
    sent = []
    for change in ("amount = amount", "amount = 0, sex = NULL, age = 7, outcome = false"):
        desk.ask("hospital", f"UPDATE patients SET {change}")
        desk.request(epsilon=20.0, delta=delta)
        with recorded() as statements:
            assert desk.serve()[0].split(",")[0].endswith(": done")
        sent.append([re.sub("boltdp_[0-9a-f]+|[0-9]+", "", text) for text in statements])
    assert sent[0] == sent[1]
    assert len(sent[0]) > 50
