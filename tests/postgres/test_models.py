"""Released models in the database score as `Model.predict` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from boltdp.data.schema import Categorical, Numeric, Projection, Schema, Vector, array_schema
from boltdp.engines import open_source
from boltdp.model import Model
from boltdp.postgres.models import ModelStoreError, load_model, store_model
from boltdp.postgres.server import Server
from boltdp.settings import Settings
from boltdp.train import train

ROWS = 500
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two classes": ({"classes": (0, 1)}, {}),
    "multinomial": ({"classes": (0, 1, 2)}, {}),
    "one-vs-all": ({"classes": (0, 1, 2)}, {"multiclass": "one-vs-all"}),
    "Huber": ({"classes": (0, 1)}, {"loss": "huber"}),
    "Huber, three classes": ({"classes": (0, 1, 2)}, {"loss": "huber"}),
    "intercept": ({"classes": (0, 1), "intercept": True}, {}),
    "texts": ({"classes": ("no 'o'", "yes; -- ü")}, {}),
}


def trained(classes: tuple[Any, ...], settings: dict[str, Any], **schema: Any) -> tuple[Model, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    X = rng.normal(0, 0.6, (ROWS, 4))
    y = np.array(classes)[np.argmax(X[:, : len(classes)], axis=1)]
    declared = array_schema(dims=4, classes=classes, radius=1.5, **schema)
    return train(open_source((X, y)), declared, Settings(epsilon=100.0, seed=5, noise_seed=1, **settings)), X


def score(admin: psycopg.Connection, function: str, name: str, X: Any, kind: str = "float8") -> list[Any]:
    query = f"SELECT boltdp.{function}(%s, %s::{kind}[])"
    return [admin.execute(query, [name, row.tolist()]).fetchone()[0] for row in X]  # type: ignore[index]


@pytest.mark.parametrize("name", MODELS)
def test_predictions_in_sql_are_those_of_predict(server: Server, admin: psycopg.Connection, name: str) -> None:
    declared, settings = MODELS[name]
    model, X = trained(settings=settings, **declared)
    store_model(server.uri, name, model, replace=True)
    engine = open_source(pa.table({"x": list(X)}))
    expected = [str(value) for value in model.predict(engine)]
    assert score(admin, "predict", name, X) == expected
    assert len(set(expected)) == len(model.classes)
    if "Huber" in name:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="a Huber SVM gives no probabilities"):
            score(admin, "predict_proba", name, X)
        return
    margins = np.concatenate(list(model.score_batches(engine)))
    np.testing.assert_allclose(
        score(admin, "predict_proba", name, X), model.probabilities(margins), rtol=1e-12, atol=1e-15
    )


def test_reals_and_missing_numbers_are_scored_as_they_are_trained(server: Server, admin: psycopg.Connection) -> None:
    model, X = trained((0, 1), {})
    store_model(server.uri, "reals", model, replace=True)
    X = X.astype(np.float32)
    X[0, 0], X[1, 1], X[2, 2] = np.nan, np.inf, -np.inf
    expected = [str(value) for value in model.predict(open_source(pa.table({"x": list(X.astype(np.float64))})))]
    assert score(admin, "predict", "reals", X, "real") == expected
    nulls = admin.execute("SELECT boltdp.predict('reals', ARRAY[NULL, 1, 1, 1]::real[])").fetchone()
    nans = admin.execute("SELECT boltdp.predict('reals', ARRAY['NaN', 1, 1, 1]::real[])").fetchone()
    assert nulls == nans


def test_separate_columns_categories_and_projection_are_one_array(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(4)
    ages, sexes, scans = rng.uniform(0, 100, ROWS), rng.choice(["F", "M"], ROWS), rng.normal(0, 1, (ROWS, 2))
    schema = Schema(
        "sick",
        (False, True),
        (Numeric("age", 0, 90), Categorical("sex", ("F", "M")), Vector("scan", 2, -2, 2)),
        projection=Projection(dims=3, seed=1),
    )
    rows = pa.table({"age": ages, "sex": sexes, "scan": list(scans), "sick": ages + 20 * scans[:, 0] > 50})
    model = train(open_source(rows), schema, Settings(epsilon=None, seed=5))
    store_model(server.uri, "columns", model)
    X = np.column_stack([ages, sexes == "F", sexes == "M", scans])
    expected = ["true" if value else "false" for value in model.predict(open_source(rows))]
    assert score(admin, "predict", "columns", X) == expected
    assert set(expected) == {"true", "false"}


def test_stored_model_is_read_back_with_its_certificate(server: Server) -> None:
    model, _ = trained((0, 1), {})
    store_model(server.uri, "kept", model)
    back = load_model(server.uri, "kept")
    assert back.to_dict() == model.to_dict()
    back.verify()


def test_model_is_replaced_only_when_asked(server: Server) -> None:
    first, _ = trained((0, 1), {})
    second, _ = trained((0, 1), {"passes": 2})
    store_model(server.uri, "mine", first)
    with pytest.raises(ModelStoreError, match=r"^boltdp\.models has a model 'mine' already$"):
        store_model(server.uri, "mine", second)
    assert load_model(server.uri, "mine").to_dict() == first.to_dict()
    store_model(server.uri, "mine", second, replace=True)
    assert load_model(server.uri, "mine").to_dict() == second.to_dict()


def test_missing_model_is_named(server: Server) -> None:
    with pytest.raises(ModelStoreError, match=r"^boltdp\.models must have a model named 'no such'$"):
        load_model(server.uri, "no such")


def test_database_without_the_extension_is_told_what_makes_the_table(server: Server) -> None:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    with pytest.raises(ModelStoreError, match="cannot be read") as caught:
        load_model(server.uri.replace("/postgres?", "/bare?"), "any")
    assert caught.value.hint is not None
    assert "CREATE EXTENSION boltdp" in caught.value.hint
