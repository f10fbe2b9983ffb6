"""Released models in the database score as `Model.predict` does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner

from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.postgres import PostgresEngine
from boltdp.engines.postgres.local_server import Server
from boltdp.export.coefficients import Coefficients
from boltdp.export.postgres_models import ModelStoreError, store_model
from boltdp.export.sql import write_probability_expression, write_scoring_expression
from boltdp.model import FORMAT, FORMAT_VERSION, Model
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, TimePart, Vector, make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict, score_batches
from boltdp.workflows.train import train
from tests.export.test_sql import (
    make_adjacent_rows,
    make_adjacent_schema,
    make_model,
    make_paired_rows,
    make_paired_schema,
    rows_of_texts,
    standardize_paired,
    texts_schema,
)
from tests.plans import plan_certificate

ROWS = 500
CLIPPED = {"algorithm": "noisy-gd", "delta": 1e-6, "gradient_clip": 0.5}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two classes": ({"classes": (0, 1)}, {}),
    "multinomial": ({"classes": (0, 1, 2)}, {}),
    "one-vs-all": ({"classes": (0, 1, 2)}, {"multiclass": "one-vs-all"}),
    "margin": ({"classes": (0, 1)}, {"loss": "margin", "loss_parameter": 3.0}),
    "margin, three classes": ({"classes": (0, 1, 2)}, {"loss": "margin", "multiclass": "one-vs-all"}),
    "Huber": ({"classes": (0, 1)}, {"loss": "huber"}),
    "Huber, three classes": ({"classes": (0, 1, 2)}, {"loss": "huber"}),
    "intercept": ({"classes": (0, 1), "intercept": True}, {}),
    "standardized": ({"classes": (0, 1, 2), "intercept": True}, {"standardize": "private"}),
    "threshold": ({"classes": (0, 1), "intercept": True, "threshold": 0.2}, {}),
    "inference": ({"classes": (0, 1), "intercept": True}, {"inference": True}),
    "clipped gradients": ({"classes": (0, 1), "intercept": True, "threshold": 0.2}, CLIPPED),
    "clipped gradients, three classes": ({"classes": (0, 1, 2)}, CLIPPED),
    "clipped gradients, weights": ({"classes": (0, 1, 2)}, {**CLIPPED, "class_weights": (1.0, 0.1, 0.5)}),
    "clipped gradients, one-vs-all": ({"classes": (0, 1, 2)}, {**CLIPPED, "multiclass": "one-vs-all"}),
    "texts": ({"classes": ("no 'o'", "yes; -- ü")}, {}),
}


def trained(
    classes: tuple[Any, ...], settings: dict[str, Any], threshold: float | None = None, **schema: Any
) -> tuple[Model, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    X = rng.normal(0, 0.6, (ROWS, 4))
    y = np.array(classes)[np.argmax(X[:, : len(classes)], axis=1)]
    declared = make_array_schema(dims=4, classes=classes, clip_norm=1.5, **schema)
    model = train(open_source((X, y)), declared, Settings(epsilon=100.0, seed=5, noise_seed=1, **settings))
    return model.with_threshold(threshold), X


def score(admin: psycopg.Connection, function: str, name: str, X: Any, kind: str = "float8") -> list[Any]:
    query = f"SELECT boltdp.{function}(%s, %s::{kind}[])"
    return [admin.execute(query, [name, row.tolist()]).fetchone()[0] for row in X]  # type: ignore[index]


@pytest.mark.parametrize("name", MODELS)
def test_predictions_in_sql_are_those_of_predict(server: Server, admin: psycopg.Connection, name: str) -> None:
    declared, settings = MODELS[name]
    model, X = trained(settings=settings, **declared)
    store_model(server.uri, name, model, replace=True)
    engine = open_source(pa.table({"x": list(X)}))
    expected = [str(value) for value in predict(model, engine)]
    assert score(admin, "predict", name, X) == expected
    assert len(set(expected)) == len(model.classes)
    assert (expected == [str(value) for value in predict(model.with_threshold(None), engine)]) == (
        not model.margin_threshold
    )
    if "Huber" in name:
        with pytest.raises(
            psycopg.errors.FeatureNotSupported, match=r"gives no probabilities: its loss is (multiclass_)?huber"
        ):
            score(admin, "predict_proba", name, X)
        return
    margins = np.concatenate(list(score_batches(model, engine)))
    np.testing.assert_allclose(
        score(admin, "predict_proba", name, X), model.probabilities(margins), rtol=1e-12, atol=1e-15
    )


def test_coefficients_of_a_stored_model_are_those_of_the_model(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(0, 0.6, (2_000, 2))
    y = (rng.random(2_000) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    declared = make_array_schema(dims=2, classes=(0, 1), clip_norm=1.5, intercept=True)
    model = train(open_source((X, y)), declared, Settings(epsilon=5.0, inference=True, noise_seed=1))
    store_model(server.uri, "coefficients", model, replace=True)
    found = admin.execute("SELECT * FROM boltdp.coefficients('coefficients')").fetchall()
    expected = [
        (one.term, one.coef, one.std_err, one.z, one.p_value, one.odds_ratio, one.low, one.high)
        for one in Coefficients(model)
    ]
    assert [tuple(line) for line in found] == expected
    plain, _ = trained((0, 1), {})
    store_model(server.uri, "plain", plain, replace=True)
    assert admin.execute("SELECT * FROM boltdp.coefficients('plain')").fetchall() == []


def test_reals_and_missing_numbers_are_scored_as_they_are_trained(server: Server, admin: psycopg.Connection) -> None:
    model, X = trained((0, 1), {})
    store_model(server.uri, "reals", model, replace=True)
    X = X.astype(np.float32)
    X[0, 0], X[1, 1], X[2, 2] = np.nan, np.inf, -np.inf
    expected = [str(value) for value in predict(model, open_source(pa.table({"x": list(X.astype(np.float64))})))]
    assert score(admin, "predict", "reals", X, "real") == expected
    nulls = admin.execute("SELECT boltdp.predict('reals', ARRAY[NULL, 1, 1, 1]::real[])").fetchone()
    nans = admin.execute("SELECT boltdp.predict('reals', ARRAY['NaN', 1, 1, 1]::real[])").fetchone()
    assert nulls == nans


def test_separate_columns_categories_and_projection_are_one_array(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(4)
    ages, sexes, scans = rng.uniform(0, 100, ROWS), rng.choice(["F", "M"], ROWS), rng.normal(0, 1, (ROWS, 2))
    schema = Schema(
        Classes("sick", (False, True)),
        (Numeric("age", 0, 90), Categorical("sex", ("F", "M")), Vector("scan", 2, -2, 2)),
        projection=Projection(dims=3, seed=1),
    )
    rows = pa.table({"age": ages, "sex": sexes, "scan": list(scans), "sick": ages + 20 * scans[:, 0] > 50})
    model = train(open_source(rows), schema, Settings(epsilon=None, seed=5))
    store_model(server.uri, "columns", model)
    X = np.column_stack([ages, sexes == "F", sexes == "M", scans])
    expected = ["true" if value else "false" for value in predict(model, open_source(rows))]
    assert score(admin, "predict", "columns", X) == expected
    assert set(expected) == {"true", "false"}


def test_parts_of_timestamps_are_given_as_categories_are(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(5)
    ages, minutes = rng.uniform(0, 100, ROWS), rng.integers(0, 525_600, ROWS)
    rows = pa.table(
        {"age": ages, "at": np.datetime64("2024-01-01", "s") + 60 * minutes, "sick": minutes // 60 % 24 < 9}
    )
    schema = Schema(
        Classes("sick", (False, True)), (Numeric("age", 0, 100), TimePart("at", "hour"), TimePart("at", "weekday"))
    )
    model = train(open_source(rows), schema, Settings(epsilon=None, seed=5))
    store_model(server.uri, "timed", model)
    hours = (minutes // 60 % 24)[:, None] == np.arange(24)
    weekdays = (minutes // 1440 % 7)[:, None] == np.arange(7)  # that year began on a Monday
    expected = ["true" if value else "false" for value in predict(model, open_source(rows))]
    assert score(admin, "predict", "timed", np.column_stack([ages, hours, weekdays])) == expected
    assert set(expected) == {"true", "false"}
    assert stored(admin, "timed").schema == model.schema


def test_curves_are_made_of_the_numbers_that_are_given(server: Server, admin: psycopg.Connection) -> None:
    rng = np.random.default_rng(4)
    ages, doses = rng.uniform(0, 100, ROWS), rng.normal(0, 1, ROWS).astype(np.float32)
    ages[:4], doses[4:6] = [18, 65, np.nan, 17.999], [np.nan, np.inf]
    columns = (
        Numeric("age", 0, 90, curve=(1e-12, 18, 65)),  # the cell of the first is that of the bound
        Numeric("plain", 0, 1),
        Numeric("dose", -1, 1, curve=(float(doses[7]), 0.99)),
        Categorical("sex", ("F", "M")),
        Vector("scan", 2, -2, 2),
    )
    sexes, scans = rng.choice(["F", "M"], ROWS), rng.normal(0, 1, (ROWS, 2))
    rows = pa.table(
        {
            "age": ages,
            "plain": rng.uniform(0, 1, ROWS),
            "dose": doses,
            "sex": sexes,
            "scan": list(scans),
            "sick": (ages > 18) & (ages < 65),
        }
    )
    X = np.column_stack([ages, rows["plain"], doses, sexes == "F", sexes == "M", scans])
    for projection in (None, Projection(dims=6, seed=1)):
        schema = Schema(Classes("sick", (False, True)), columns, projection=projection)
        settings = Settings(epsilon=100.0, seed=5, noise_seed=1, standardize="private")
        model = train(open_source(rows), schema, settings)
        store_model(server.uri, "curved", model, replace=True)
        expected = ["true" if value else "false" for value in predict(model, open_source(rows))]
        assert score(admin, "predict", "curved", X) == expected
        assert set(expected) == {"true", "false"}
        margins = np.concatenate(list(score_batches(model, open_source(rows))))
        np.testing.assert_allclose(
            score(admin, "predict_proba", "curved", X), model.probabilities(margins), rtol=1e-12, atol=1e-15
        )
        assert stored(admin, "curved").schema == model.schema


def stored(admin: psycopg.Connection, name: str) -> Model:
    """What the table has of a model, as it would be read from a file."""
    query = "SELECT private, weights, schema, certificate, unusable_labels FROM boltdp.models WHERE name = %s"
    row = admin.execute(query, [name]).fetchone()
    assert row is not None
    private, weights, schema, certificate, unusable_labels = row
    return Model.from_dict(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "private": private,
            "schema": schema,
            "weights": weights,
            "certificate": certificate,
            "trained_where": None,
        }
        | ({} if unusable_labels is None else {"unusable_labels": unusable_labels})
    )


def test_a_model_that_is_replaced_within_a_transaction_is_seen_by_the_next_call(
    server: Server, admin: psycopg.Connection
) -> None:
    """Also where PL/pgSQL evaluates the same expression again, without a new query."""
    model, X = trained((0, 1), {})
    store_model(server.uri, "turned", model, replace=True)
    admin.execute(
        "CREATE FUNCTION pg_temp.turned(x float8[]) RETURNS text[] LANGUAGE plpgsql AS $$"
        " DECLARE said text[]; one text; BEGIN FOR i IN 1..4 LOOP one := boltdp.predict('turned', x);"
        " said := said || one; UPDATE boltdp.models SET classes = ARRAY[classes[2], classes[1]] WHERE name = 'turned';"
        " END LOOP; RETURN said; END $$"
    )
    try:
        (said,) = admin.execute("SELECT pg_temp.turned(%s::float8[])", [X[0].tolist()]).fetchone()  # type: ignore[misc]
    finally:
        admin.execute("DELETE FROM boltdp.models WHERE name = 'turned'")
    assert said in (["0", "1"] * 2, ["1", "0"] * 2)


def test_stored_model_has_its_certificate(server: Server, admin: psycopg.Connection) -> None:
    model, _ = trained((0, 1), {})
    store_model(server.uri, "kept", model)
    back = stored(admin, "kept")
    assert back.to_dict() == replace(model, trained_where=None).to_dict()
    back.verify()


def test_model_is_replaced_only_when_asked(server: Server, admin: psycopg.Connection) -> None:
    first, _ = trained((0, 1), {})
    second, _ = trained((0, 1), {"passes": 2})
    store_model(server.uri, "mine", first)
    with pytest.raises(ModelStoreError, match=r"^boltdp\.models has a model 'mine' already$"):
        store_model(server.uri, "mine", second)
    assert stored(admin, "mine").to_dict() == replace(first, trained_where=None).to_dict()
    store_model(server.uri, "mine", second, replace=True)
    assert stored(admin, "mine").to_dict() == replace(second, trained_where=None).to_dict()


def test_database_without_the_extension_is_told_what_makes_the_table(server: Server) -> None:
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
    model, _ = trained((0, 1), {})
    with pytest.raises(ModelStoreError, match="cannot be stored") as caught:
        store_model(server.uri.replace("/postgres?", "/bare?"), "any", model)
    assert caught.value.hint is not None
    assert "CREATE EXTENSION boltdp" in caught.value.hint


@pytest.mark.parametrize(
    "change",
    ["places TYPE text", "steps TYPE bigint[]", "low TYPE real[]", "loss TYPE bytea USING NULL", "cut TYPE real"],
)
def test_a_column_of_another_type_is_refused_and_not_read(server: Server, change: str) -> None:
    """Its owner may alter the table; bytes must not be taken for what they are not."""
    model, X = trained((0, 1), {})
    store_model(server.uri, "altered", model, replace=True)
    with psycopg.connect(server.uri) as connection:
        connection.execute("ALTER TABLE boltdp.models ALTER loss DROP NOT NULL")
        connection.execute(f"ALTER TABLE boltdp.models ALTER {change}")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="its parts do not fit"):
            score(connection, "predict", "altered", X[:1])
        connection.rollback()


HOSTILE = "a{0}?%s'\"; --"
#: Steps at cells of each type, and at the doubles beside the real nearest to 0.7.
CURVED = (
    Numeric("a", -2, 2, curve=(-1.1, 0, 0.3, 1.5)),
    Numeric("small", -2, 2, curve=(0.1, *(math.nextafter(float(np.float32(0.7)), end) for end in (0.0, 1.0)))),
    Numeric("n", 0, 9, curve=(2.5, 3, 8.999)),
    Numeric("i", 0, 2, curve=(1, 1.5)),
    Numeric("flag", 0, 1, curve=(0.5,)),
)
#: Schemas over the columns of the table `cells`, each with classes.
SCORED: dict[str, Schema] = {
    "numbers and booleans": Schema(
        Classes("y", (0, 1)), (Numeric("a", -2, 2), Numeric("flag", 0, 1), Numeric("small", 0, 1), Numeric("n", 0, 9))
    ),
    "categories": Schema(
        Classes("y", ("it's", "a\\b")),
        (
            Categorical("mood", ("good", "bad")),
            Categorical("t", ("1", "x'y\\z")),
            Categorical("flag", (True,)),
            Categorical("i", (1, 2, 2.5)),
            Categorical("small", (0.1, 1)),
            Categorical("n", (2.5, 3)),
        ),
    ),
    "three classes": Schema(
        Classes("y", ("a", "b", "c")),
        (Numeric("flag", 0, 1), Numeric("i", 0, 1), Numeric("a", -2, 2), Vector("v", 3, -1, 1)),
    ),
    "projection": Schema(
        Classes("y", (0, 1, 2)), (Numeric("a", -2, 2), Vector("v", 3, -1, 1)), projection=Projection(dims=3, seed=1)
    ),
    "curves": Schema(Classes("y", (0, 1)), CURVED),
    "curves, three classes": Schema(Classes("y", ("a", "b", "c")), CURVED),
    "curves, many terms": Schema(Classes("y", (0, 1)), (*CURVED, Categorical("t", tuple(map(str, range(100)))))),
    "hostile name": Schema(Classes("y", (0, 1)), (Numeric(HOSTILE, -2, 2),), intercept=False, clip_norm=0.5),
}


#: Cells of each column: missing, at the ends of the type, undeclared, of wrong lengths.
CELLS: dict[str, list[Any]] = {
    "a": [None, "NaN", "Infinity", "-Infinity", 1e300, 1e-300, 0.3, -1.1, 1.7],
    "flag": [True, False, None],
    "small": [0.1, 0.7, 1.0, None],
    "n": [Decimal("2.5"), Decimal("3.0"), Decimal(3), Decimal("8.999"), None],
    "mood": ["good", "bad", "odd", None],
    "t": ["1", "1.0", "x'y\\z", None],
    "i": [0, 1, 2, None],
    "v": [None, [1.0, 2.0], [1.0, None, 0.0], [0.25, -0.5, 0.75], [-0.3, 0.1, 0.9]],
    HOSTILE: [0.5, -0.5, 3.0, None],
}


@pytest.fixture(scope="module")
def cells(server: Server) -> Iterator[str]:
    rng = np.random.default_rng(8)
    name = '"' + HOSTILE.replace('"', '""') + '"'
    with psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("CREATE TYPE scored_mood AS ENUM ('good', 'bad', 'odd')")
        connection.execute(
            "CREATE TABLE cells (a float8, flag bool, small real, n numeric, mood scored_mood, t text, i int, v real[],"
            f" {name} float8)".encode()
        )
        with connection.cursor().copy("COPY cells FROM STDIN") as copy:
            for _ in range(500):
                copy.write_row([some[rng.integers(len(some))] for some in CELLS.values()])
        yield "cells"
        connection.execute("DROP TABLE cells")
        connection.execute("DROP TYPE scored_mood")


@pytest.mark.parametrize("name", SCORED)
def test_expression_of_boltdp_sql_gives_what_predict_gives(
    server: Server, admin: psycopg.Connection, cells: str, name: str, tmp_path: Path
) -> None:
    schema = SCORED[name]
    certificate = plan_certificate(Settings(epsilon=None), rows=100, dims=schema.dims, classes=len(schema.classes))
    vectors = certificate.problem.loss.vector_count
    weights = np.random.default_rng(len(name)).standard_normal((vectors, schema.dims))
    model = Model(schema=schema, weights=weights, certificate=certificate)
    model.save(tmp_path / "model.json")
    printed = CliRunner().invoke(main, ["sql", str(tmp_path / "model.json"), "--dialect", "postgres"])
    assert printed.exit_code == 0, printed.output
    with PostgresEngine(server.uri, table=cells) as engine:
        expected = predict(model, engine).tolist()
    assert len(set(expected)) > 1
    rows = admin.execute(f"SELECT {printed.stdout} FROM {cells}".encode()).fetchall()
    assert [row[0] for row in rows] == expected
    # Weights that are so long that exp would underflow, too.
    for longer in (1.0, 1e4):
        likely = Model(schema=schema, weights=longer * weights, certificate=certificate)
        with PostgresEngine(server.uri, table=cells) as engine:
            odds = np.concatenate([likely.probabilities(margins) for margins in score_batches(likely, engine)])
        expression = write_probability_expression(likely, "postgres")
        found = [row[0] for row in admin.execute(f"SELECT {expression} FROM {cells}".encode()).fetchall()]
        # A projected row is rounded to float32 in training.
        near = 1e-12 if schema.projection is None else 1e-7 * longer
        np.testing.assert_allclose(found, odds[:, 1] if len(model.classes) == 2 else odds, rtol=0, atol=near)
        first = write_probability_expression(likely, "postgres", of=model.classes[0])
        found = [row[0] for row in admin.execute(f"SELECT {first} FROM {cells}".encode()).fetchall()]
        np.testing.assert_allclose(found, odds[:, 0], rtol=0, atol=near)
    if len(model.classes) == 2:
        decided = ["sql", str(tmp_path / "model.json"), "--dialect", "postgres", "--threshold", "0.4"]
        expression = CliRunner().invoke(main, decided).stdout
        with PostgresEngine(server.uri, table=cells) as engine:
            expected = predict(model.with_threshold(0.4), engine).tolist()
        rows = admin.execute(f"SELECT {expression} FROM {cells}".encode()).fetchall()
        assert [row[0] for row in rows] == expected


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_adjacent_numbers_of_any_bounds_are_scored_as_predict_does(
    admin: psycopg.Connection, classes: tuple[Any, ...], centred: bool
) -> None:
    rows = make_adjacent_rows()
    admin.execute(f"CREATE TEMP TABLE adjacent (id int, {' float8, '.join(rows.column_names)} float8)".encode())
    with admin.cursor().copy("COPY adjacent FROM STDIN") as copy:
        for place, row in enumerate(rows.to_pylist()):
            copy.write_row([place, *row.values()])
    model = make_model(make_adjacent_schema(classes, centred=centred), seed=3)
    expression = write_scoring_expression(model, "postgres")
    found = admin.execute(f"SELECT {expression} FROM adjacent ORDER BY id".encode()).fetchall()
    assert [one for (one,) in found] == model.predict(open_source(rows)).tolist()
    expression = write_probability_expression(model, "postgres")
    found = admin.execute(f"SELECT {expression} FROM adjacent ORDER BY id".encode()).fetchall()
    odds = model.predict_proba(rows)
    np.testing.assert_allclose([one for (one,) in found], odds[:, 1] if len(classes) == 2 else odds, rtol=1e-12)


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("classes", [(0, 1), ("a", "b", "c")])
def test_pairs_of_columns_are_in_the_sql(admin: psycopg.Connection, classes: tuple[Any, ...], count: int) -> None:
    rows, schema = make_paired_rows(), make_paired_schema(classes, count)
    admin.execute(
        "CREATE TEMP TABLE paired (id int, sides float8, number real, x int, cell text, kind float8, moment text)"
    )
    with admin.cursor().copy("COPY paired FROM STDIN") as copy:
        for place, row in enumerate(rows.to_pylist()):
            copy.write_row([place, *row.values()])
    for seed, paired in enumerate((schema, standardize_paired(schema))):
        model = make_model(paired, seed=seed)
        expected = model.predict(open_source(rows)).tolist()
        found = admin.execute(f"SELECT {write_scoring_expression(model, 'postgres')} FROM paired ORDER BY id".encode())
        assert [one for (one,) in found.fetchall()] == expected
        assert len(set(expected)) == len(classes)


def test_texts_that_are_declared_numbers_are_scored_as_predict_reads_them(admin: psycopg.Connection) -> None:
    rows = rows_of_texts()
    admin.execute("CREATE TEMP TABLE told (id int, a text, flag varchar, b text)")
    with admin.cursor().copy("COPY told FROM STDIN") as copy:
        for place, row in enumerate(rows.to_pylist()):
            copy.write_row([place, *row.values()])
    for classes in [(0, 1), ("a", "b", "c")]:
        model = make_model(replace(texts_schema(), target=Classes(texts_schema().label, classes)), seed=2)
        expected = model.predict(open_source(rows)).tolist()
        found = admin.execute(f"SELECT {write_scoring_expression(model, 'postgres')} FROM told ORDER BY id".encode())
        assert [(row, one) for row, (one,) in zip(rows.to_pylist(), found.fetchall(), strict=True)] == [
            *zip(rows.to_pylist(), expected, strict=True)
        ]
