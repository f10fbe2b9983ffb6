"""`boltdp.train` and `boltdp.tune` in one call, and what a model predicts from whatever has the columns."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import boltdp
from boltdp import BoltdpError, Classes, Model, Number, PrivacyWarning, Schema, Settings
from boltdp.engines import use_source
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.schema.from_arguments import declare_schema
from boltdp.schema.schema import Categorical, Numeric, Vector
from boltdp.schema.source_columns import ColumnType

ROWS = 3000
CLASSES = ["well", "ill"]
BOUNDS = {"age": (0, 110)}
#: A label of a row: no message may contain it.
SECRET = "4711-secret"


def people() -> pd.DataFrame:
    """Ages, of which those above 50 are ill, and what has nothing to do with it."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, ROWS)
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["F", "M"], ROWS),
            "smokes": rng.random(ROWS) < 0.3,
            "outcome": np.where(age > 50, "ill", "well"),
        }
    )


PEOPLE = people()
X = np.random.default_rng(1).normal(size=(ROWS, 3))
Y = (X[:, 0] > 0).astype(int)


def accuracy(model: Model, rows: Any, labels: Any) -> float:
    return float((model.predict(rows) == np.asarray(labels)).mean())


def test_one_call_trains_a_private_model_on_a_data_frame() -> None:
    declared: Any = {"bounds": BOUNDS, "categories": {"sex": ["F", "M"]}, "classes": CLASSES}
    model = boltdp.train(PEOPLE, label="outcome", epsilon=5, delta=1e-6, **declared)
    assert model.certificate.private
    assert model.certificate.budget is not None
    assert (model.certificate.budget.epsilon, model.certificate.budget.delta) == (5.0, 1e-6)
    model.verify()
    assert [column.name for column in model.schema.columns] == ["age", "smokes", "sex"]
    assert model.classes == ("well", "ill")
    assert accuracy(model, PEOPLE, PEOPLE["outcome"]) > 0.9


def test_an_evaluation_warns_of_rows_that_it_leaves_out() -> None:
    declared: Any = {"bounds": BOUNDS, "categories": {"sex": ["F", "M"]}, "classes": CLASSES}
    model = boltdp.train(PEOPLE, label="outcome", epsilon=5, **declared)
    misspelt = PEOPLE.assign(outcome=np.where(np.arange(ROWS) % 3, PEOPLE["outcome"], "Ill"))
    with pytest.warns(UserWarning, match="^1,000 of 3,000 rows have no declared class in column 'outcome'") as caught:
        model.evaluate(misspelt)
    assert [one.filename for one in caught] == [__file__]
    nearly_all = PEOPLE.assign(outcome=PEOPLE["outcome"].str.upper())
    with pytest.warns(UserWarning, match="^about 3,000 of 3,000 rows have no declared class"):
        model.evaluate_privately(nearly_all, epsilon=1e4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(PEOPLE)
        model.evaluate_privately(PEOPLE, epsilon=1.0)


def sources(folder: Path) -> dict[str, Any]:
    table = pa.Table.from_pandas(PEOPLE)
    pq.write_table(table, folder / "people.parquet")
    return {
        "pandas": PEOPLE,
        "odd index": PEOPLE.set_index(np.arange(ROWS)[::-1] * 2),
        "arrow": table,
        "pair": (PEOPLE[["sex", "age", "smokes"]], PEOPLE["outcome"]),
        "parquet": str(folder / "people.parquet"),
        "path": folder / "people.parquet",
        "engine": ArrayEngine.from_arrow(table),
    }


def test_every_kind_of_source_gives_the_same_model(tmp_path: Path) -> None:
    settings = Settings(epsilon=1.0, seed=1, noise_seed=2)
    weights = {}
    for name, source in sources(tmp_path).items():
        with pytest.warns(PrivacyWarning, match="seed"):
            model = boltdp.train(
                source,
                label="outcome",
                bounds=BOUNDS,
                categories={"sex": ["F", "M"]},
                classes=CLASSES,
                settings=settings,
            )
        weights[name] = model.weights
    assert all(np.array_equal(one, weights["pandas"]) for one in weights.values()), weights


def test_a_csv_file_has_no_types_so_that_its_booleans_are_declared_too(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    bounds = {**BOUNDS, "smokes": (0, 1)}
    with pytest.warns(UserWarning, match=r"^not used, since neither bounds nor categories are declared: 'sex'"):
        model = boltdp.train(tmp_path / "people.csv", label="outcome", epsilon=5, bounds=bounds, classes=CLASSES)
    assert accuracy(model, tmp_path / "people.csv", PEOPLE["outcome"]) > 0.9


def test_a_pair_of_arrays_is_a_vector_whose_bounds_are_one_pair() -> None:
    model = boltdp.train((X, Y), epsilon=5, bounds=(-5, 5), classes=[0, 1])
    assert model.schema.columns == (Vector("x", 3, -5, 5),)
    assert accuracy(model, X, Y) > 0.85
    assert accuracy(model, X.tolist(), Y) > 0.85


@pytest.mark.parametrize("given", ["object", "dictionary", "path"])
def test_a_schema_may_be_given_in_three_forms(given: str, tmp_path: Path) -> None:
    schema = Schema(Classes("outcome", tuple(CLASSES)), (Numeric("age", 0, 110),))
    schema.save(tmp_path / "schema.toml")
    dictionary = {"label": "outcome", "classes": CLASSES, "numeric": BOUNDS}
    form: Any = {"object": schema, "dictionary": dictionary, "path": tmp_path / "schema.toml"}[given]
    model = boltdp.train(PEOPLE, schema=form, epsilon=1, curves=0, standardize="none")
    assert model.schema == schema


def test_engine_schema_and_settings_by_position_are_taken_as_before() -> None:
    schema = Schema(Classes("outcome", tuple(CLASSES)), (Numeric("age", 0, 110),))
    model = boltdp.train(boltdp.open_source(PEOPLE), schema, Settings(epsilon=1.0))
    assert model.certificate.private
    tried = [Settings(epsilon=1.0, regularization=one) for one in (1e-3, 1e-2)]
    tuned = boltdp.tune(boltdp.open_source(PEOPLE), schema, tried)
    assert tuned.certificate.selection is not None
    assert tuned.certificate.selection.candidates == 2


def test_settings_by_name_change_ready_ones() -> None:
    model = boltdp.train(
        (X, Y), bounds=(-5, 5), classes=[0, 1], settings=Settings(epsilon=1.0, delta=1e-6), epsilon=np.int64(3)
    )
    assert model.certificate.budget is not None
    assert (model.certificate.budget.epsilon, model.certificate.budget.delta) == (3.0, 1e-6)
    Model.from_dict(model.to_dict())


def test_a_threshold_is_kept_in_the_model() -> None:
    model = boltdp.train((X, Y), epsilon=5, bounds=(-5, 5), classes=[0, 1], threshold=0.3)
    assert model.threshold == 0.3
    assert (model.predict(X) == (model.predict_proba(X)[:, 1] > 0.3)).all()


@pytest.mark.parametrize("public", [False, True])
def test_tuning_in_one_call(public: bool) -> None:
    grid: Any = {"regularization": np.array([1e-3, 1e-2]), "passes": [1, 2]}
    rows: Any = {"public": PEOPLE[:200]} if public else {}
    columns = PEOPLE[["age", "outcome"]]
    model = boltdp.tune(columns, label="outcome", bounds=BOUNDS, classes=CLASSES, epsilon=5, grid=grid, **rows)
    assert model.certificate.private
    assert model.certificate.selection is not None
    assert model.certificate.selection.candidates == 4
    assert ("public" in model.certificate.selection.describe()) == public


def test_a_seed_of_the_noise_is_warned_of_at_the_line_of_the_call() -> None:
    with pytest.warns(PrivacyWarning, match="^the model is not private: the noise came from a seed") as caught:
        boltdp.train((X, Y), epsilon=1, bounds=(-5, 5), classes=[0, 1], noise_seed=1)
    assert [one.filename for one in caught] == [__file__]


class Conditional(ArrayEngine):
    """Rows whose guarantee has a condition."""

    guarantee_conditions = ("rows must be in a public order",)


@pytest.mark.parametrize("call", [boltdp.train, boltdp.tune])
def test_conditions_of_the_guarantee_are_warned_of_at_the_line_of_the_call(call: Any) -> None:
    rows = Conditional.from_pandas(PEOPLE[["age", "smokes"]])
    options: Any = {} if call is boltdp.train else {"grid": {"regularization": [0.1]}}
    with pytest.warns(UserWarning, match="^rows must be in a public order$") as caught:
        call(rows, label="smokes", epsilon=1, bounds=BOUNDS, **options)
    assert [one.filename for one in caught] == [__file__]


def test_columns_that_are_not_used_are_named_at_the_line_of_the_call() -> None:
    with pytest.warns(UserWarning, match="^not used, .*: 'sex'; drop them or give a schema") as caught:
        model = boltdp.train(PEOPLE, label="outcome", epsilon=1, bounds=BOUNDS, classes=CLASSES)
    assert [one.filename for one in caught] == [__file__]
    assert [column.name for column in model.schema.columns] == ["age", "smokes"]


def test_the_categories_that_a_column_knows_are_not_taken_for_public() -> None:
    known = PEOPLE.astype({"sex": "category", "outcome": "category"})[["sex", "outcome"]]
    with pytest.raises(BoltdpError, match=r"of 'sex' and the classes of 'outcome'"):
        boltdp.train(known, label="outcome", epsilon=1)
    table = pa.table({"sex": PEOPLE["sex"].to_numpy().astype(str), "ill": PEOPLE["age"] > 50})
    table = table.set_column(0, "sex", table["sex"].dictionary_encode())
    with pytest.raises(BoltdpError, match=r"is not: bounds or categories of 'sex'"):
        boltdp.train(table, label="ill", epsilon=1)


def test_what_a_database_declares_is_public_and_arguments_add_to_it() -> None:
    columns = {
        "id": ColumnType("number", key=True),
        "age": ColumnType("number", bounds=(0.0, 120.0)),
        "sex": ColumnType("text", values=("F", "M")),
        "weight": ColumnType("number"),
        "seen": ColumnType("other"),
        "ill": ColumnType("text", values=("no", "yes")),
    }
    schema, unused = declare_schema(columns, Classes, "ill", {}, bounds={"weight": [0, 250]})
    assert schema.columns == (Numeric("age", 0, 120), Numeric("weight", 0, 250), Categorical("sex", ("F", "M")))
    assert (schema.classes, unused) == (("no", "yes"), ("seen",))
    # What an argument declares is meant, whatever the source says.
    schema, _ = declare_schema(
        columns, Classes, "ill", {"classes": ["yes", "no"]}, bounds={"age": (18, 90)}, categories={"weight": [0, 1]}
    )
    assert schema.columns[0] == Numeric("age", 18, 90)
    assert Categorical("weight", (0, 1)) in schema.columns
    assert schema.classes == ("yes", "no")


def test_names_that_are_no_texts_are_written_out() -> None:
    frame = pd.DataFrame({0: PEOPLE["age"], 1: PEOPLE["age"] > 50, ("a", 2): PEOPLE["smokes"]})
    model = boltdp.train(frame, label=1, epsilon=5, bounds={0: (0, 110)})  # type: ignore[arg-type]
    assert [column.name for column in model.schema.columns] == ["0", "('a', 2)"]
    assert accuracy(model, frame, frame[1]) > 0.9


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "model.json"
    boltdp.train(PEOPLE.drop(columns="sex"), label="outcome", epsilon=5, bounds=BOUNDS, classes=CLASSES).save(path)
    return Model.load(path)


def test_columns_may_be_in_any_order_among_others_and_without_the_label(model: Model) -> None:
    expected = model.predict(boltdp.open_source(PEOPLE))
    assert set(expected) == {"ill", "well"}
    for rows in (PEOPLE, PEOPLE[["smokes", "age"]], PEOPLE[["sex", "smokes", "age"]], pa.table(PEOPLE)):
        assert model.predict(rows).tolist() == expected.tolist()
    assert model.predict(PEOPLE.set_index(np.arange(ROWS)[::-1])).tolist() == expected.tolist()


def test_an_array_has_the_columns_of_the_schema_in_its_order(model: Model) -> None:
    array = PEOPLE[["age", "smokes"]].to_numpy(float)
    assert model.predict(array).tolist() == model.predict(PEOPLE).tolist()
    with pytest.raises(BoltdpError, match="must be a data frame that has the columns") as caught:
        model.predict(array[:, :1])
    assert caught.value.hint == "they are 'age', 'smokes'"


def test_probabilities_are_in_the_order_of_the_classes(model: Model) -> None:
    shares = model.predict_proba(PEOPLE)
    assert shares.shape == (ROWS, 2)
    assert np.allclose(shares.sum(axis=1), 1)
    assert (np.array(CLASSES)[shares.argmax(axis=1)] == model.predict(PEOPLE)).all()


def test_names_of_columns_are_not_taken_for_what_the_rows_are(model: Model) -> None:
    """Attributes of a data frame are its columns."""
    named = PEOPLE.assign(tocsr=1, dialect="x")
    assert model.predict(named).tolist() == model.predict(PEOPLE).tolist()


def test_no_rows_give_no_predictions(model: Model) -> None:
    assert model.predict(PEOPLE[:0]).shape == (0,)
    assert model.predict_proba(PEOPLE[:0]).shape == (0, 2)


def test_a_column_that_is_missing_is_named_with_one_like_it(model: Model) -> None:
    with pytest.raises(BoltdpError, match=r"must have the column 'age', which the schema") as caught:
        model.predict(PEOPLE.rename(columns=str.upper))
    assert caught.value.hint == "did you mean 'AGE'?"


def test_a_file_is_closed_again_and_an_engine_left_open(model: Model, tmp_path: Path) -> None:
    pq.write_table(pa.table(PEOPLE), tmp_path / "people.parquet")
    expected = model.predict(PEOPLE).tolist()
    assert model.predict(tmp_path / "people.parquet").tolist() == expected
    closed: list[str] = []
    engine = ArrayEngine.from_pandas(PEOPLE)
    engine.close = lambda: closed.append("closed")  # type: ignore[method-assign]
    assert model.predict(engine).tolist() == expected
    with use_source(engine) as same:
        assert same is engine
    assert closed == []


def train(source: Any = PEOPLE, *positional: Any, **given: Any) -> Model:
    """A call that would be right, but for what is given; ... takes an argument away."""
    right: dict[str, Any] = {"label": "outcome", "bounds": BOUNDS, "classes": CLASSES, "epsilon": 1}
    named = {name: value for name, value in {**right, **given}.items() if value is not ...}
    return boltdp.train(source, *positional, **named)


NO_GRID: Any = {"passes": 3}
WRONG: list[tuple[Callable[[], Any], str, str | None]] = [
    (lambda: train(epsilon=...), "epsilon must be given, the privacy budget", "epsilon=1 is a usual one"),
    (lambda: train(epsilon="1"), "epsilon must be a number, got '1'", None),
    (lambda: train(epsilon=0), r"epsilon must be a finite number > 0, got 0\.0", None),
    (lambda: train(regularization="a"), "regularization must be a number, got 'a'", None),
    (lambda: train(passes=2.5), r"passes must be a whole number, got 2\.5", None),
    (lambda: train(seed="x"), "seed must be a whole number, got 'x'", None),
    (lambda: train(epsilom=1), "there is no argument 'epsilom'", "did you mean 'epsilon'?"),
    (lambda: train(random_state=1), "there is no argument 'random_state'", "did you mean 'noise_seed'?"),
    (lambda: train(hidden_layers=1), "there is no argument 'hidden_layers'", "there are epsilon, delta,"),
    (lambda: train(settings={"epsilon": 1}), "settings must be of boltdp.Settings, got .* 'dict'", None),
    (lambda: train(label=...), "label must be given, the name of the column to predict", "it has 'age', 'sex'"),
    (lambda: train(label="Outcome"), "must have the column 'Outcome' for the label", "did you mean 'outcome'?"),
    (
        lambda: train(bounds=..., classes=...),
        "must be declared, and is not: bounds or categories of 'age', 'sex' and the classes of 'outcome'",
        'add bounds={"age": (low, high)}, categories={"sex": ["value", ...]}, classes=[first, second] for the columns',
    ),
    (lambda: train(classes=...), "and is not: the classes of 'outcome'$", "add classes=[first, second]; from public"),
    (lambda: train(bounds={"Age": (0, 1)}), "bounds must be of columns of the data, got 'Age'", "did you mean 'age'?"),
    (lambda: train(bounds={"b": (0, 1)}), "bounds must be of columns of the data, got 'b'", "it has 'age', 'sex'"),
    (lambda: train(bounds={"outcome": (0, 1)}), "bounds must be of features, got the label 'outcome'", "its values"),
    (lambda: train(bounds={"age": 110}), r"the bounds of 'age' must be a pair \(low, high\), got 110", "such as"),
    (lambda: train(bounds={"age": (110, 0)}), r"the bounds of 'age' must be finite with low < high", None),
    (
        lambda: train(bounds=PEOPLE["age"]),
        r"bounds must be a pair \(low, high\), got an object of type 'Series'",
        "such as bounds=",
    ),
    (
        lambda: train(pa.table(PEOPLE), bounds={"sex": (0, 1)}),
        "bounds must be of columns of numbers",
        'categories={"sex"',
    ),
    (
        lambda: train(categories=["sex"]),
        "categories must be a dictionary by names of columns, got .* 'list'",
        "such as",
    ),
    (lambda: train(categories={"sex": "FM"}), "the categories of 'sex' must be a list of values, got 'FM'", None),
    (lambda: train(categories={"age": [1, 2]}), "bounds or categories, not both, got both for 'age'", None),
    (lambda: train(classes="ill"), "classes must be a list of values, got 'ill'", None),
    (lambda: train(classes=["ill"]), r"classes must be at least 2 values, got \['ill'\]", None),
    (
        lambda: train(PEOPLE, "outcome", label=...),
        "the schema 'outcome' cannot be read",
        "did you mean label='outcome'?",
    ),
    (lambda: train(X, Y), "a schema must be .* got an object of type 'ndarray'", "rows and labels go together: train"),
    (lambda: train(PEOPLE, Settings(epsilon=1.0)), "a schema must be .* of type 'Settings'", "settings=..."),
    (
        lambda: train(schema={"label": "outcome", "classes": [0, 1], "numeric": BOUNDS}),
        "must not be given beside",
        None,
    ),
    (lambda: train(PEOPLE["age"]), "the data must be a file name, .* got an object of type 'Series'", None),
    (lambda: train((X, Y), label=..., classes=[0, 1], bounds={"x0": (0, 1)}), "got 'x0'", "did you mean 'x'?"),
    (
        lambda: train(ArrayEngine.from_pandas(PEOPLE), table="t"),
        "table, query, spool and where must be given when",
        None,
    ),
    (lambda: train(threshold=2), "threshold must be between 0 and 1", None),
    (lambda: boltdp.tune(PEOPLE, label="outcome", epsilon=1), "either a grid or candidates must be given", "such as"),
    (
        lambda: boltdp.tune(PEOPLE, epsilon=1, grid=NO_GRID),
        "grid must be a dictionary of lists",
        "such as grid=",
    ),
    (lambda: boltdp.tune(PEOPLE, None, [], epsilon=1), "settings must not be given beside candidates", None),
]


@pytest.mark.filterwarnings("ignore:not used")
@pytest.mark.parametrize(("call", "message", "hint"), WRONG, ids=[message for _, message, _ in WRONG])
def test_a_wrong_call_is_told_in_a_sentence_with_what_to_do(
    call: Callable[[], Any], message: str, hint: str | None
) -> None:
    with pytest.raises(BoltdpError, match=f"(?m){message}") as caught:
        call()
    assert "\n" not in str(caught.value)
    assert (caught.value.hint or "").startswith(hint or "")
    assert (caught.value.hint is None) == (hint is None)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 shows no notes below an error")
def test_python_shows_the_hint_of_an_error() -> None:
    with pytest.raises(BoltdpError) as caught:
        train(label="Outcome")
    assert traceback.format_exception_only(caught.value)[-1] == "hint: did you mean 'outcome'?\n"


@pytest.mark.filterwarnings("ignore:not used")
@pytest.mark.parametrize("wrong", ["schema", "classes", "bounds", "categories", "label", "settings", "public"])
@pytest.mark.parametrize("rows", [pd.Series([SECRET] * 5), np.array([SECRET] * 5), [SECRET] * 5])
def test_rows_in_the_wrong_place_are_not_quoted(wrong: str, rows: Any) -> None:
    given: dict[str, Any] = {"label": "outcome", "bounds": BOUNDS, "epsilon": 1}
    if wrong == "public":
        given["classes"], given["grid"] = CLASSES, {"passes": [1, 2]}
    if wrong == "schema":
        given = {"epsilon": 1}
    call = boltdp.tune if wrong == "public" else boltdp.train
    with pytest.raises(BoltdpError) as caught:
        call(PEOPLE, **{**given, wrong: rows})
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))


def test_the_package_is_a_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "boltdp", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"boltdp {boltdp.__version__}\n"


def test_a_file_without_a_header_has_no_row_of_it_quoted(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f"{SECRET},1\n{SECRET},2\n")
    for given in ({}, {"label": "secret"}, {"label": "outcome", "bounds": BOUNDS, "classes": CLASSES}):
        with pytest.raises(BoltdpError) as caught:
            boltdp.train(tmp_path / "rows.csv", epsilon=1, **given)
        assert (
            caught.value.hint
            == "none of these columns is there: is there a header that spells them so, and is it the right file?"
        )
        assert SECRET not in "".join(traceback.format_exception_only(caught.value))


def test_timestamps_are_declared_in_one_call() -> None:
    admitted = pd.date_range("2024-01-01", periods=3000, freq="h")
    rows = pd.DataFrame({"admitted": admitted, "written": admitted.astype(str), "night": admitted.hour < 8})
    for name in ("admitted", "written"):
        with pytest.warns(UserWarning, match="not used"):
            model = boltdp.train(rows, label="night", epsilon=1, timestamps={name: ["hour", "weekday"]})
        assert [column.name for column in model.schema.columns] == [f"{name}.hour", f"{name}.weekday"]
        assert (model.predict(rows) == rows.night).mean() > 0.9
    with pytest.raises(ParameterError, match="'admitted' has timestamps") as caught:
        boltdp.train(rows, label="night", epsilon=1, bounds={"admitted": (0, 1)})
    assert caught.value.hint == 'timestamps={"admitted": ["hour", "weekday", "month"]}'
    with pytest.raises(ParameterError, match="not both, got both for 'written'"):
        boltdp.train(rows, label="night", epsilon=1, timestamps={"written": ["hour"]}, categories={"written": ["x"]})


def test_a_model_shows_itself_in_a_line() -> None:
    rows = pd.DataFrame({"age": range(100), "old": [age > 50 for age in range(100)]})
    model = boltdp.train(rows, label="old", epsilon=1, bounds={"age": (0, 100)}, anyway=True)
    assert repr(model).startswith("Model(label='old', classes=[False, True], features=")
    assert "epsilon = 1; rows with an unknown label are ignored" in repr(model)


# ---- numbers ----------------------------------------------------------------------------------------------------

WAGES = PEOPLE[["age", "smokes"]].assign(wage=1000 + 30.0 * PEOPLE["age"])
WAGE = {**BOUNDS, "wage": (0, 10_000)}


@pytest.mark.parametrize("call", [boltdp.train, boltdp.tune])
@pytest.mark.parametrize("typical", [None, (1500, 3700), np.array([1500, 3700])])
def test_a_number_is_predicted_by_its_name_as_target_and_its_bounds(call: Any, typical: Any) -> None:
    options: Any = {} if call is boltdp.train else {"grid": {"regularization": [0.01, 0.1]}, "trials": 5}
    model = call(WAGES, target="wage", bounds=WAGE, typical=typical, epsilon=10, **options)
    assert model.certificate.private
    target = model.schema.target
    assert isinstance(target, Number)
    assert (target.column, target.low, target.high) == ("wage", 0, 10_000)
    assert target.typical_source == ("private" if typical is None else "declared")
    errors = model.predict(WAGES) - WAGES["wage"]
    assert np.sqrt((errors**2).mean()) < 0.6 * WAGES["wage"].std()


@pytest.mark.parametrize("call", [boltdp.train, boltdp.tune])
def test_counts_and_weights_are_declared_by_arguments(call: Any) -> None:
    options: Any = {} if call is boltdp.train else {"grid": {"regularization": [0.01, 0.1]}, "trials": 5}
    rows = PEOPLE[["age", "smokes"]].assign(visits=PEOPLE["age"] // 20, exposure=1.0)
    weight, bounds = {"column": "exposure", "bounds": (0, 2)}, {**BOUNDS, "visits": (0, 20)}
    model = call(rows, target="visits", bounds=bounds, counts=True, weight=weight, epsilon=10, **options)
    assert model.schema.target == Number("visits", 0, 20, counts=True)
    assert model.schema.weight == Numeric("exposure", 0, 2)
    assert [column.name for column in model.schema.columns] == ["age", "smokes"]
    assert model.certificate.problem.loss.name == "mean"
    assert '"auto" predicts the mean' in dict(model.schema.target.list_facts(model.certificate.problem.loss))["counts"]


def test_a_pair_of_bounds_is_not_for_the_weight() -> None:
    columns = {name: ColumnType("number") for name in ("age", "pulse", "exposure", "ill")}
    weight = {"column": "exposure", "bounds": (0, 2)}
    schema, unused = declare_schema(columns, Classes, "ill", {"classes": (0, 1)}, bounds=(0, 200), weight=weight)
    assert [column.name for column in schema.columns] == ["age", "pulse"]
    assert (schema.weight, unused) == (Numeric("exposure", 0, 2), ())


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ({"column": "exposures", "bounds": (0, 2)}, "the weight must be a column of the data, got 'exposures'"),
        ({"column": "age", "bounds": (0, 2)}, "the weight must be a column of its own, got 'age'"),
        ({"column": "exposure", "bounds": (1, 2)}, "the bounds of the weight must be 0 and the largest weight, got 1"),
        ("exposure", "the weight must be a table with column, bounds"),
    ],
)
def test_a_weight_that_is_none_is_refused(weight: Any, message: str) -> None:
    rows = PEOPLE[["age", "smokes"]].assign(exposure=1.0)
    with pytest.raises(ParameterError, match=message):
        boltdp.train(rows, label="smokes", bounds=BOUNDS, weight=weight, epsilon=1)


def test_a_pair_of_arrays_has_a_number_by_the_name_of_its_labels() -> None:
    bounds = {"x": (-5, 5), "label": (-10, 10)}
    model = boltdp.train((X, 3 * X[:, 0]), target="label", bounds=bounds, typical=(-4, 4), epsilon=10)
    assert model.schema.columns == (Vector("x", 3, -5, 5),)
    assert model.predict(np.array([[1.0, 0, 0], [-1.0, 0, 0]])) == pytest.approx([3, -3], abs=1.5)


def test_bounds_that_the_source_declares_are_those_of_the_target() -> None:
    columns = {"age": ColumnType("number", bounds=(0.0, 120.0)), "stars": ColumnType("number", values=(1, 2, 5))}
    assert declare_schema(columns, Number, "age", {"typical": [20, 60]}, bounds={"stars": (1, 5)})[0].target == Number(
        "age", 0, 120, typical=(20, 60)
    )
    assert declare_schema(columns, Number, "stars", {})[0].target == Number("stars", 1, 5)
    assert declare_schema(columns, Classes, "stars", {})[0].target == Classes("stars", (1, 2, 5))


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            {"label": "wage", "bounds": BOUNDS},
            "and is not: the classes of 'wage'",
            'add classes=.*; to predict a number, give target="wage" with its bounds instead of label="wage"',
        ),
        ({"target": "wage", "bounds": BOUNDS}, "the bounds of 'wage'", r'add bounds={"wage": \(low, high\)}'),
        (
            {"target": "wage"},
            "of 'age' and the bounds of 'wage'",
            r'add bounds={"age": \(low, high\), "wage": \(low, high\)}',
        ),
        ({"target": "wage", "bounds": (0, 110)}, "and is not: the bounds of 'wage'", 'add bounds={"wage"'),
        (
            {"target": "wage", "bounds": WAGE, "classes": [1, 2]},
            "classes must not be given for target='wage', which has bounds",
            "label='wage' has classes, target='wage' predicts a number",
        ),
        (
            {"label": "smokes", "bounds": BOUNDS, "typical": (1, 2)},
            "typical must not be given for label='smokes', which has classes",
            "predicts a number",
        ),
        (
            {"label": "wage", "bounds": WAGE},
            "bounds must be of features, got the label 'wage'",
            "target='wage' predicts",
        ),
        ({"label": "smokes", "target": "wage", "bounds": WAGE}, "give either label or target", "a target is a number"),
        ({"target": "wages", "bounds": WAGE}, "the data must have the column 'wages'", "did you mean 'wage'"),
        (
            {"target": "wage", "bounds": WAGE, "typical": 7},
            r"typical must be a pair \(low, high\), got 7",
            "such as typical=",
        ),
        ({"target": "smokes", "bounds": BOUNDS}, "the bounds of 'smokes'", "add bounds="),
    ],
)
def test_a_number_that_is_half_declared_is_one_clear_question(given: Any, message: str, hint: str) -> None:
    with pytest.raises(BoltdpError, match=message) as caught:
        boltdp.train(WAGES, epsilon=1, **given)
    assert re.search(hint, caught.value.hint or "")


def test_a_schema_declares_the_target_alone() -> None:
    schema = {"target": "wage", "bounds": [0, 10_000], "numeric": {"age": [0, 110]}}
    assert boltdp.train(WAGES, schema, epsilon=1).schema.label == "wage"
    for beside in ({"target": "wage"}, {"typical": (1, 2)}):
        with pytest.raises(ParameterError, match="must not be given beside a schema"):
            boltdp.train(WAGES, schema, epsilon=1, **beside)


def test_wrong_rows_of_an_evaluation_are_told_with_a_hint(model: Model) -> None:
    with pytest.raises(BoltdpError) as caught:
        model.evaluate(PEOPLE.assign(outcome="ILL"))
    assert caught.value.hint is not None
    assert any(note.startswith("hint: ") for note in caught.value.__notes__)


def test_pairs_of_columns_are_declared_in_one_call() -> None:
    random = np.random.default_rng(3)
    rows = pd.DataFrame({"a": random.integers(0, 2, 20_000), "b": random.choice(["x", "y"], 20_000)})
    rows["label"] = (rows.a == 1) ^ (rows.b == "x")
    declared: dict[str, Any] = {"label": "label", "bounds": {"a": (0, 1)}, "categories": {"b": ["x", "y"]}}
    model = boltdp.train(rows, epsilon=2, pairs=[("a", "b")], **declared)
    assert model.schema.pairs == (("a", "b"),)
    assert (model.predict(rows) == rows.label).all()
    # Without the pair three of the four kinds of rows can be right at most.
    assert (boltdp.train(rows, epsilon=2, **declared).predict(rows) == rows.label).mean() < 0.8
    tuned = boltdp.tune(rows, epsilon=2, pairs=[("a", "b")], grid={"regularization": [1e-3, 1e-2]}, **declared)
    assert (tuned.predict(rows) == rows.label).all()
    with pytest.raises(ParameterError, match=r"^each of the pairs must be of declared columns, got 'c'$"):
        boltdp.train(rows, epsilon=2, pairs=[("a", "c")], **declared)
    with pytest.raises(ParameterError, match=r"^pairs must not be given beside a schema, which declares it$"):
        boltdp.train(rows, model.schema, epsilon=2, pairs=[("a", "b")])
