"""The scikit-learn estimators: scikit-learn's own checks, and what they guarantee beyond those."""

from __future__ import annotations

import doctest
import itertools
import pickle
import subprocess
import sys
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_array, csr_array, csr_matrix, lil_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris, make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    train_test_split,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import boltdp
from boltdp import (
    BoltdpError,
    Classes,
    Model,
    PrivacyWarning,
    PrivateHuberSVM,
    PrivateLogisticRegression,
    Schema,
    Settings,
)
from boltdp.encoding import python_to_arrow
from boltdp.engines.in_memory import ArrayEngine, wrap_rows
from boltdp.errors import DataError, ParameterError
from boltdp.estimators._base import LENGTH_REASON
from boltdp.estimators.callers import SEARCH_REASON
from boltdp.estimators.classifiers import CLASSES_REASON
from boltdp.losses import MulticlassHuber
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import SEEDED
from boltdp.schema.schema import Categorical, Numeric, Projection, TimePart, Vector, make_array_schema
from boltdp.schema.source_columns import BATCH_CELLS
from boltdp.workflows.train import train

DOCS = Path(__file__).parents[2] / "docs"
BOTH = pytest.mark.parametrize("estimator", [PrivateLogisticRegression, PrivateHuberSVM])
Floats = npt.NDArray[np.float64]

#: Cells that may be private: no message may contain it.
SECRET = "4711.25"


def blobs(rows: int = 400, classes: int = 2, seed: int = 0) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Rows within [-5, 5]^4 around one centre a class."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    centres = rng.uniform(-3, 3, (classes, 4))
    return np.clip(centres[y] + rng.normal(0, 0.7, (rows, 4)), -5, 5), y


def halved(X: Floats) -> Floats:
    return X / 2


def noiseless(**parameters: Any) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**{"epsilon": None, "clip_norm": 8.0, "random_state": 0, **parameters})


# The checks train on few rows, for which the noise of a strict epsilon drowns any model: a large one stands in for many
# rows. They set random_state and declare no classes, which is what the PrivacyWarnings are about.
@pytest.mark.filterwarnings("ignore::boltdp.errors.PrivacyWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        PrivateLogisticRegression(epsilon=1e5, clip_norm=3.0),
        PrivateLogisticRegression(epsilon=1e5, delta=1e-6, clip_norm=3.0, multiclass="one-vs-all"),
        PrivateHuberSVM(epsilon=1e5, clip_norm=3.0),
        PrivateLogisticRegression(epsilon=None, clip_norm=3.0, passes=20),
        PrivateHuberSVM(epsilon=None, clip_norm=3.0),
    ],
    expected_failed_checks=lambda _: {
        "check_class_weight_classifiers": "its weights are ten million times apart, and we take at most ten thousand"
    },
)
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


@BOTH
def test_private_by_default_once_classes_and_bounds_are_declared(estimator: Any) -> None:
    X, y = blobs()
    fitted = estimator(classes=[0, 1], bounds=(-5, 5), anyway=True).fit(X, y)
    assert fitted.certificate_.private
    assert fitted.certificate_.budget == Budget(1.0, 0.0)
    assert fitted.certificate_.problem.rows == fitted.certificate_.rows == 400
    assert not np.array_equal(fitted.coef_, clone(fitted).fit(X, y).coef_)


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        ({}, "objective"),
        ({"regularization": 0.01}, "objective"),
        ({"passes": 10}, "bolton"),
        ({"averaging": "last"}, "bolton"),
        ({"permutation": "once"}, "bolton"),
        ({"partitions": 1}, "bolton"),
        ({"exponent": 0.5}, "bolton"),
    ],
)
def test_what_only_passes_have_is_asked_for_even_as_it_would_be_anyway(asked: dict[str, Any], algorithm: str) -> None:
    X, y = blobs()
    unset = PrivateLogisticRegression(classes=[0, 1], bounds=(-5, 5))
    names = ("passes", "exponent", "averaging", "permutation", "partitions", "regularization")
    assert {name: unset.get_params()[name] for name in names} == dict.fromkeys(names)
    assert unset.set_params(**asked).fit(X, y).certificate_.algorithm == algorithm


def test_classes_read_from_the_labels_are_not_private_and_say_so() -> None:
    X, y = blobs()
    with pytest.warns(PrivacyWarning, match="not private: the classes were read"):
        fitted = PrivateLogisticRegression(bounds=(-5, 5)).fit(X, y)
    assert fitted.certificate_.reasons == (CLASSES_REASON,)
    assert not fitted.certificate_.private


def test_a_random_state_repeats_the_model_and_says_that_it_is_not_private() -> None:
    X, y = blobs()
    classifier = PrivateLogisticRegression(classes=[0, 1], bounds=(-5, 5), random_state=3)
    with pytest.warns(PrivacyWarning, match="seed"):
        first = clone(classifier).fit(X, y)
    with pytest.warns(PrivacyWarning, match="seed"):
        second = clone(classifier).set_params(random_state=np.random.RandomState(3)).fit(X, y)
    assert first.certificate_.reasons == (SEEDED,)
    assert np.array_equal(first.coef_, second.coef_)


def test_no_warning_where_no_privacy_was_asked_for() -> None:
    X, y = blobs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = noiseless().fit(X, y)
    assert not fitted.certificate_.private


def test_unscaled_features_with_nothing_declared_get_a_hint_whatever_the_rows() -> None:
    X, y = blobs()
    for rows in (X, X * 1e-9):
        with pytest.warns(UserWarning, match="neither bounds nor clip_norm is declared"):
            PrivateLogisticRegression(classes=[0, 1]).fit(rows, y)


@BOTH
@pytest.mark.parametrize("epsilon", [None, 0.5])
@pytest.mark.filterwarnings("ignore::boltdp.errors.PrivacyWarning")
def test_same_bits_as_train_on_the_same_rows(estimator: Any, epsilon: float | None) -> None:
    X, y = blobs(classes=3)
    seed = int(np.random.RandomState(7).randint(2**31 - 1))
    settings = Settings(
        epsilon=epsilon,
        loss="huber" if estimator is PrivateHuberSVM else "logistic",
        standardize="none",
        passes=3,
        batch_size=7,
        regularization=0.01,
        radius=5.0,
        averaging="all",
        permutation="fresh",
        partitions=2,
        seed=seed,
        noise_seed=None if epsilon is None else seed,
    )
    schema = make_array_schema(dims=4, classes=(0, 1, 2), clip_norm=6.0, intercept=True)
    trained = train(ArrayEngine.from_numpy(X, y), schema, settings)
    fitted = estimator(
        epsilon=epsilon,
        classes=[0, 1, 2],
        clip_norm=6.0,
        standardize="none",
        passes=3,
        batch_size=7,
        regularization=0.01,
        max_norm=5.0,
        averaging="all",
        permutation="fresh",
        partitions=2,
        random_state=7,
    ).fit(X, y)
    assert fitted.model_.schema == schema
    assert np.array_equal(fitted.model_.weights, trained.weights)
    assert fitted.certificate_ == trained.certificate


@pytest.mark.parametrize(
    "change",
    [
        lambda X: np.asfortranarray(X),
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        lambda X: X.tolist(),
        lambda X: X.astype(object),
        lambda X: X.astype(np.float32),
        lambda X: X.astype(np.int64),
        lambda X: X.astype(np.int8),
        lambda X: pd.DataFrame(X),
        lambda X: pd.DataFrame(X, columns=list("abcd")),
        lambda X: pd.DataFrame(X, columns=list("abcd")).astype("Int64"),
    ],
    ids=["fortran", "strided", "lists", "object", "float32", "int64", "int8", "frame", "named", "nullable"],
)
def test_the_form_of_the_rows_does_not_matter(change: Any) -> None:
    X, y = blobs()
    X = np.round(X)
    plain, changed = noiseless().fit(X, y), noiseless().fit(change(X), y)
    assert np.array_equal(plain.model_.weights, changed.model_.weights)
    assert np.array_equal(plain.predict(X), changed.predict(change(X)))


def test_named_columns_of_many_blocks_give_the_same_bits_as_an_array() -> None:
    X, y = blobs(20_001)
    named = pd.DataFrame(X, columns=list("abcd"))
    assert np.array_equal(noiseless().fit(X, y).coef_, noiseless().fit(named, y).coef_)


@pytest.mark.parametrize("bounds", [(-5, 5), ([-5] * 4, 5), (np.full(4, -5.0), np.full(4, 5.0)), np.array([-5, 5])])
def test_bounds_are_numbers_or_arrays(bounds: Any) -> None:
    X, y = blobs()
    expected = noiseless(clip_norm=None, bounds=(-5.0, 5.0)).fit(X, y)
    assert np.array_equal(expected.coef_, noiseless(clip_norm=None, bounds=bounds).fit(X, y).coef_)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((5, -5), r"the bounds of 'x' must be finite with low < high, got \[5, -5\]"),
        (([-5, -5, 9, -5], 5), r"the bounds of 'x2' must be finite with low < high, got \[9, 5\]"),
        ((-5, [5, 5, 5, np.inf]), r"the bounds of 'x3' must be finite"),
        ((-5, [5, 5]), r"bounds must be .* one number for each of the 4 features, got shape \(2,\)"),
        ((-5, "5"), "each bound of 'x' must be a number, got '5'"),
        (5, r"bounds must be a pair \(low, high\), got 5"),
        ((1, 2, 3), "bounds must be a pair"),
    ],
)
def test_wrong_bounds_are_refused_by_name(bounds: Any, message: str) -> None:
    X, y = blobs()
    with pytest.raises(ParameterError, match=message):
        PrivateLogisticRegression(classes=[0, 1], bounds=bounds).fit(X, y)


def test_wrong_bounds_of_a_frame_name_its_column() -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=["age", "weight", "height", "pulse"])
    with pytest.raises(ParameterError, match="the bounds of 'height'"):
        PrivateLogisticRegression(classes=[0, 1], bounds=(0, [1, 1, 0, 1])).fit(frame, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a finite number > 0, got 0"),
        ({"epsilon": "1"}, "epsilon must be a number, got '1'"),
        ({"epsilon": True}, "epsilon must be a number, got True"),
        ({"delta": 1.0}, r"delta must be in \[0, 1\), got 1"),
        ({"passes": 2.5}, "passes must be a whole number, got 2.5"),
        ({"batch_size": 401}, "batch_size must be at most the number of rows, 400, got 401"),
        ({"step_size": 100.0}, "the step size must be at most 2/beta"),
        ({"regularization": "1"}, "regularization must be a number, got '1'"),
        ({"passes": 10, "algorithm": "objective"}, "passes must not be given for the algorithm objective"),
        ({"algorithm": "magic"}, "algorithm must be one of auto, .*, got 'magic'"),
        ({"clip_norm": -1}, "clip_norm must be a finite number > 0, got -1"),
        ({"schedule": "never"}, "schedule must be one of .*, got 'never'"),
        ({"classes": [0]}, r"classes must be at least 2 values, got \[0\]"),
        ({"classes": [0, None]}, "classes must be texts, numbers or booleans, got an object of type 'list'"),
        ({"multiclass": "both"}, "multiclass must be one of .*, got 'both'"),
        ({"schema": "nowhere.toml", "classes": None}, "the schema 'nowhere.toml' cannot be read"),
        ({"schema": "nowhere.toml"}, "classes must not be given beside a schema"),
        ({"schema": "nowhere.toml", "classes": None, "fit_intercept": False}, "fit_intercept must not be given"),
    ],
)
def test_wrong_parameters_are_refused_by_fit_not_by_init(parameters: dict[str, Any], message: str) -> None:
    X, y = blobs()
    given = {"classes": [0, 1], "clip_norm": None if "schema" in parameters else 8.0, **parameters}
    classifier = PrivateLogisticRegression(**given)
    with pytest.raises(ParameterError, match=message):
        classifier.fit(X, y)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@BOTH
def test_bad_cells_and_labels_do_not_raise_and_move_the_model_within_its_sensitivity(
    estimator: Any, bad: float
) -> None:
    X, y = blobs()
    common = {"classes": [0, 1], "clip_norm": 8.0, "step_size": 0.1, "passes": 2, "random_state": 0}
    with pytest.warns(PrivacyWarning):
        delta = estimator(epsilon=1.0, **common).fit(X, y).certificate_.training.sensitivity.total
    weights = estimator(epsilon=None, **common).fit(X, y).model_.weights
    cell, row, label = X.copy(), X.copy(), y.astype(float)
    cell[17, 2], row[17], label[17] = bad, bad, bad
    for features, labels in ((cell, y), (row, y), (X, label), (row, label)):
        moved = estimator(epsilon=None, **common).fit(features, labels)
        assert 0 < np.linalg.norm(moved.model_.weights - weights) <= delta
    assert np.isfinite(moved.decision_function(row)).all()


@given(value=st.floats(width=64), feature=st.integers(0, 3), label=st.sampled_from([0, 1, 2, -1]))
def test_any_replaced_row_moves_the_model_within_its_sensitivity(value: float, feature: int, label: int) -> None:
    X, y = blobs(60)
    common: dict[str, Any] = {"classes": [0, 1], "bounds": (-5, 5), "step_size": 0.2, "batch_size": 7, "clip_norm": 1.0}
    plan = PrivateLogisticRegression(epsilon=1.0, **common).fit(X, y).certificate_
    weights = noiseless(**common).fit(X, y).model_.weights
    X[11, feature], y[11] = value, label
    moved = noiseless(**common).fit(X, y).model_.weights
    assert plan.training.sensitivity is not None
    assert np.linalg.norm(moved - weights) <= plan.training.sensitivity.total


def test_an_undeclared_label_is_a_neutral_row() -> None:
    X, y = blobs()
    odd, missing = np.where(y == 1, "ill", "well").astype(object), np.where(y == 1, "ill", "well").astype(object)
    odd[3], missing[3] = "dead", np.nan
    mixed = odd.copy()
    mixed[3] = 7
    weights = [noiseless(classes=["ill", "well"]).fit(X, labels).model_.weights for labels in (odd, missing, mixed)]
    assert np.array_equal(weights[0], weights[1])
    assert np.array_equal(weights[0], weights[2])
    assert list(noiseless(classes=["well", "ill"]).fit(X, odd).classes_) == ["ill", "well"]


@pytest.mark.parametrize("labels", [["b", "a"], [1, 0], [True, False], [2.0, 1.0], ["yes", "no"]])
def test_labels_come_back_as_they_were_and_the_last_sorted_one_is_positive(labels: list[Any]) -> None:
    X, y = blobs()
    names = np.sort(np.array(labels))
    fitted = noiseless(classes=labels, passes=30).fit(X, names[y])
    assert np.array_equal(fitted.classes_, names)
    assert fitted.predict(X).dtype == names.dtype
    assert fitted.score(X, names[y]) > 0.95
    assert roc_auc_score(names[y], fitted.decision_function(X)) > 0.95
    assert np.array_equal(fitted.decision_function(X) > 0, fitted.predict(X) == names[1])


@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
def test_several_classes_both_ways(multiclass: Any) -> None:
    X, y = blobs(900, classes=4)
    fitted = PrivateLogisticRegression(
        epsilon=100.0, classes=range(4), bounds=(-5, 5), multiclass=multiclass, passes=30
    ).fit(X, y)
    assert fitted.certificate_.model_count == (4 if multiclass == "one-vs-all" else 1)
    assert fitted.decision_function(X).shape == (900, 4)
    assert fitted.coef_.shape == (4, 4)
    assert fitted.intercept_.shape == (4,)
    assert np.allclose(fitted.predict_proba(X).sum(axis=1), 1.0)
    assert np.allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    assert fitted.score(X, y) > 0.9


def test_a_huber_svm_has_no_probabilities() -> None:
    assert not hasattr(PrivateHuberSVM(), "predict_proba")
    X, y = blobs(classes=3)
    fitted = PrivateHuberSVM(epsilon=50.0, width=0.5, classes=[0, 1, 2], bounds=(-5, 5)).fit(X, y)
    assert fitted.certificate_.problem.loss == MulticlassHuber(3, 0.5)
    assert fitted.certificate_.model_count == 1


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("declared", [{"bounds": (-5, 7)}, {"bounds": ([-9, -5, -6, -5], 5)}, {"clip_norm": 9.0}])
@pytest.mark.parametrize("classes", [2, 3])
def test_coefficients_are_in_the_units_of_the_data(intercept: bool, declared: Any, classes: int) -> None:
    X, y = blobs(classes=classes)
    fitted = noiseless(clip_norm=None, fit_intercept=intercept).set_params(**declared).fit(X, y)
    margins = X @ fitted.coef_.T + fitted.intercept_
    assert np.allclose(fitted.decision_function(X), margins[:, 0] if classes == 2 else margins, atol=1e-5)
    assert intercept or "bounds" in declared or not fitted.intercept_.any()


def test_coefficients_of_shortened_rows_give_the_same_predictions() -> None:
    X, y = blobs()
    fitted = noiseless(clip_norm=1.0, bounds=(-5, 5)).fit(X, y)
    assert np.array_equal((X @ fitted.coef_[0] + fitted.intercept_) > 0, fitted.predict(X) == 1)


def frame(rows: int = 600) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(1)
    people = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "sex": rng.choice(["F", "M"], rows),
            "unused": "text",
            "smoker": rng.choice([True, False], rows),
        }
    )
    sick = pd.Series(
        np.where(people.age + 20 * people.smoker + 10 * (people.sex == "M") > 70, "yes", "no"), name="sick"
    )
    return people, sick


SCHEMA = Schema(
    Classes("sick", ("yes", "no")),
    (Numeric("age", 0, 100), Categorical("sex", ("F", "M")), Categorical("smoker", (False, True))),
)


def test_a_schema_brings_categories_and_classes(tmp_path: Path) -> None:
    X, y = frame()
    SCHEMA.save(tmp_path / "schema.toml")
    for schema in (SCHEMA, tmp_path / "schema.toml", str(tmp_path / "schema.toml")):
        fitted = PrivateLogisticRegression(epsilon=200.0, schema=schema, standardize="none").fit(X, y)
        assert fitted.certificate_.private
        assert list(fitted.classes_) == ["no", "yes"]
        assert list(fitted.feature_names_in_) == ["age", "sex", "unused", "smoker"]
        assert fitted.score(X, y) > 0.9
    one_hot = np.column_stack([X.age, X.sex == "F", X.sex == "M", ~X.smoker, X.smoker]).astype(float)
    margins = one_hot @ fitted.coef_[0] + fitted.intercept_
    assert np.allclose(fitted.decision_function(X), margins, atol=1e-5)


def test_a_schema_takes_timestamps_of_every_type_of_pandas() -> None:
    minutes = np.random.default_rng(0).integers(0, 525_600, 2000)
    at = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(minutes, unit="m"))
    X, y = pd.DataFrame({"at": at}), (at.dt.hour < 6).astype(int)
    fitted = PrivateLogisticRegression(
        epsilon=20.0, schema=Schema(Classes("y", (0, 1)), (TimePart("at", "hour"),))
    ).fit(X, y)
    assert fitted.score(X, y) == 1
    in_tokyo = at.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    for same in (in_tokyo, in_tokyo.astype(object), at.astype(object), at.astype(str), at.astype("datetime64[s]")):
        assert np.array_equal(fitted.predict(pd.DataFrame({"at": same})), fitted.predict(X))


def test_a_schema_with_a_projection_predicts_by_its_coefficients() -> None:
    X, y = blobs()
    schema = Schema(
        Classes("y", (0, 1)),
        make_array_schema(dims=4, classes=(0, 1), clip_norm=5.0).columns,
        projection=Projection(3, 1),
    )
    fitted = PrivateLogisticRegression(epsilon=None, schema=schema).fit(X, y)
    margins = X @ fitted.coef_[0] + fitted.intercept_
    clear = np.abs(margins) > 1e-5
    assert fitted.model_.weights.shape == (1, 3)
    assert np.array_equal((margins > 0)[clear], (fitted.predict(X) == 1)[clear])


def test_a_label_column_among_the_features_is_not_used() -> None:
    X, y = frame()
    common: dict[str, Any] = {"epsilon": None, "schema": SCHEMA, "random_state": 0}
    apart = PrivateLogisticRegression(**common).fit(X, y)
    beside = PrivateLogisticRegression(**common).fit(X.assign(sick="yes"), y)
    assert np.array_equal(apart.coef_, beside.coef_)


def test_rows_that_do_not_fit_the_schema_are_refused_without_a_value() -> None:
    X, y = frame()
    classifier = PrivateLogisticRegression(schema=SCHEMA)
    with pytest.raises(DataError, match="must have the column 'smoker'"):
        classifier.fit(X.drop(columns="smoker"), y)
    with pytest.raises(DataError, match="column 'age' must have numbers, its type is 'timestamp'"):
        classifier.fit(X.assign(age=pd.Timestamp("1947-11-25")), y)
    with pytest.raises(DataError, match="must be a data frame"):
        classifier.fit(np.zeros((600, 3)), y)


def test_names_of_a_frame_are_kept_and_checked() -> None:
    X, y = blobs()
    named = pd.DataFrame(X, columns=list("abcd"))
    fitted = PrivateLogisticRegression(classes=[0, 1], bounds=(-5, 5)).fit(named, pd.Series(y, name="outcome"))
    assert [column.name for column in fitted.model_.schema.columns] == list("abcd")
    assert fitted.model_.schema.label == "outcome"
    with pytest.raises(ValueError, match="same order"):
        fitted.predict(named[list("bacd")])
    with pytest.raises(ValueError, match="missing"):
        fitted.predict(named[list("abc")])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.predict(X)
    own = fitted.model_.predict(ArrayEngine.from_pandas(named[list("dcba")]))
    assert np.array_equal(fitted.predict(named), own)


def test_a_feature_called_label_does_no_harm() -> None:
    X, y = blobs()
    fitted = noiseless().fit(pd.DataFrame(X, columns=["label", "label_", "c", "d"]), y)
    assert fitted.model_.schema.label == "label__"


@pytest.mark.parametrize(
    "X",
    [
        np.array([["1", SECRET + "x"]] * 4),
        np.array([[b"1", b"4711"]] * 4),
        np.full((4, 2), float(SECRET) + 1j),
        np.full((4, 2), np.datetime64("1947-11-25")),
        pd.DataFrame({"a": [1.0] * 4, "b": [pd.Timestamp("1947-11-25")] * 4}),
        pd.DataFrame({"a": [1.0] * 4, "b": pd.Series([SECRET] * 4, dtype="category")}),
        csr_array(np.full((4, 2), float(SECRET) + 1j)),
        np.full((4, 2, 2), float(SECRET)),
        np.full(4, float(SECRET)),
        [float(SECRET)] * 4,
        [SECRET] * 4,
    ],
    ids=["text", "bytes", "complex", "date", "frame", "category", "sparse", "3d", "1d", "list", "list of texts"],
)
def test_what_is_no_table_of_numbers_is_refused_without_a_value(X: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        PrivateLogisticRegression(classes=[0, 1], clip_norm=1.0).fit(X, [0, 1, 0, 1])
    fault: BaseException | None = caught.value
    while fault is not None:
        assert not any(word in str(fault) for word in ("4711", "1947"))
        fault = fault.__context__


#: Cells that are no number, in the ways that libraries stumble over.
ODD_CELLS = [SECRET + "x", None, 1j, b"4711", 2**70, 10**400, pd.Timestamp("1947-11-25"), [1.0], {"a": 1}, object()]


@pytest.mark.parametrize("odd", ODD_CELLS, ids=lambda cell: type(cell).__name__)
@pytest.mark.parametrize("form", ["list", "objects", "frame", "schema"])
@pytest.mark.filterwarnings("ignore:column 'b' has the type:UserWarning")
def test_one_odd_cell_or_label_is_missing_and_changes_nothing_else(odd: Any, form: str) -> None:
    X, y = blobs()
    rows = X.astype(object)
    rows[17, 1] = odd
    labels = [bool(label) for label in y]
    parameters: dict[str, Any] = {"classes": [0, 1], "bounds": (-5, 5), "clip_norm": None}
    if form == "schema":
        schema = Schema(Classes("y", (0, 1)), tuple(Numeric(name, -5, 5) for name in "abcd"))
        parameters = {"schema": schema, "clip_norm": None}
    given: Any = {
        "list": rows.tolist(),
        "objects": rows,
        "frame": pd.DataFrame(rows, columns=list("abcd")).astype({"a": float, "c": float, "d": float}),
        "schema": pd.DataFrame(rows, columns=list("abcd")),
    }[form]
    neutral = X.copy()
    neutral[17, 1] = 5.0 if odd in (2**70,) else np.nan
    fitted = noiseless(**parameters).fit(given, labels)
    expected = noiseless(classes=[0, 1], bounds=(-5, 5), clip_norm=None).fit(neutral, y)
    assert np.array_equal(fitted.model_.weights, expected.model_.weights)
    assert np.array_equal(fitted.predict(given), expected.predict(neutral))
    odd_label: list[Any] = [*labels]
    odd_label[17] = odd
    unknown = y.astype(float)
    unknown[17] = np.nan
    assert np.array_equal(
        noiseless(**parameters).fit(given, odd_label).model_.weights,
        noiseless(classes=[0, 1], bounds=(-5, 5), clip_norm=None).fit(neutral, unknown).model_.weights,
    )


def test_a_ragged_row_is_a_missing_row() -> None:
    X, y = blobs()
    rows, neutral = X.tolist(), X.copy()
    rows[17], neutral[17] = rows[17][:2], np.nan
    assert np.array_equal(noiseless().fit(rows, y).coef_, noiseless().fit(neutral, y).coef_)


@pytest.mark.parametrize("make", [list, tuple, deque, python_to_arrow.to_object_array])
def test_rows_of_a_list_do_not_decide_the_number_of_features(make: Any) -> None:
    rows = make([[0.5, 0.5]] * 100 + [[0.5]] * 99 + [[0.5]])
    other = make([[0.5, 0.5]] * 100 + [[0.5]] * 99 + [[0.5, 0.5, 0.5]])
    labels = [0, 1] * 100
    bounds = ([-1.0, -1.0, -1.0], 1.0)
    for listed in (rows, other):
        fitted = PrivateLogisticRegression(classes=[0, 1], bounds=bounds, anyway=True).fit(listed, labels)
        assert fitted.certificate_.private
        assert fitted.coef_.shape == (1, 3)
        assert len(fitted.predict(listed)) == 200
        with pytest.warns(PrivacyWarning, match="the number of features was read from a list of rows"):
            fitted = PrivateLogisticRegression(classes=[0, 1], bounds=(-1, 1), anyway=True).fit(listed, labels)
        assert fitted.certificate_.reasons == (LENGTH_REASON,)


def test_a_list_of_rows_has_the_number_of_features_of_a_schema() -> None:
    rows, labels = [[0.5, 0.5]] * 199 + [[0.5]], [0, 1] * 100
    vector = Schema(Classes("y", (0, 1)), (Vector("x", 3, -1, 1),))
    for schema in (vector, Schema(Classes("y", (0, 1)), tuple(Numeric(name, -1, 1) for name in "abc"))):
        fitted = PrivateLogisticRegression(schema=schema, anyway=True).fit(rows, labels)
        assert fitted.certificate_.private
        assert fitted.n_features_in_ == 3


def test_a_column_of_texts_is_warned_of_by_its_type() -> None:
    X, y = frame()
    with pytest.warns(UserWarning, match=r"^column 'sex' has the type '(str|object)'.*declare them: categories="):
        noiseless(classes=["yes", "no"]).fit(X[["age", "sex"]], y)


def test_numbers_too_large_for_a_double_raise_no_warning() -> None:
    X, y = blobs()
    huge = X.astype(np.longdouble)
    huge[3, 1] = np.longdouble("1e400")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(noiseless().fit(huge, y).coef_).all()


@pytest.mark.parametrize(
    "y",
    [
        np.full(6, np.datetime64("1947-11-25")),
        np.full(6, 1947j),
        [b"1947"] * 6,
        [1947.5, 2, 3, 4, 5, 6],
        pd.Series(["1947", None] * 3),
        pd.Series(["1947", None] * 3, dtype="string"),
    ],
    ids=["date", "complex", "bytes", "continuous", "missing", "missing text"],
)
def test_labels_that_cannot_be_classes_are_refused_without_a_value(y: Any) -> None:
    with pytest.raises(ValueError, match=r"y must have|label type") as caught:
        PrivateLogisticRegression(clip_norm=1.0).fit(np.zeros((6, 2)), y)
    assert "1947" not in str(caught.value)


@pytest.mark.parametrize(
    "form", [csr_array, csc_array, coo_array, csr_matrix, lil_array], ids=lambda form: form.__name__
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_sparse_rows_give_the_model_of_dense_ones(form: Any, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    # So few cells at a time that there are many batches.
    monkeypatch.setattr("boltdp.schema.source_columns.BATCH_CELLS", 500)
    rng = np.random.default_rng(0)
    X: npt.NDArray[Any] = (rng.integers(-2, 3, (900, 7)) * (rng.random((900, 7)) < 0.3)).astype(dtype)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    for declared in ({"clip_norm": 3.0}, {"bounds": (-2, 2)}, {"bounds": ([-2] * 7, [2] * 7)}, {"curves": 3}):
        given = {"bounds": (-2, 2), **declared} if "curves" in declared else declared
        plain = PrivateLogisticRegression(epsilon=None, classes=[0, 1], random_state=3, **given)
        dense, sparse = (clone(plain).fit(rows, y) for rows in (X, form(X)))
        np.testing.assert_array_equal(sparse.coef_, dense.coef_)
        np.testing.assert_array_equal(sparse.decision_function(form(X)), dense.decision_function(X))


def test_sparse_rows_are_never_dense_all_at_once() -> None:
    """Their product would take 16 GB; a hundred features of few rows are read at a time."""
    X = csr_array((np.ones(3), ([0, 5, 19_999], [0, 99_999, 7])), shape=(20_000, 100_000))
    engine = wrap_rows(make_array_schema(dims=100_000, classes=(0, 1)), X)
    sizes = [batch.num_rows for batch in itertools.islice(engine.batches(["x"]), 5)]
    assert max(sizes) * 100_000 <= BATCH_CELLS


def test_sparse_numbers_that_stand_twice_are_added() -> None:
    twice = coo_array(([0.5, 0.25, 1.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    for names in ("x", ["a", "b"]):
        engine = ArrayEngine.from_sparse(twice, names=names)
        (batch,) = engine.batches([names] if names == "x" else names)
        found = np.array([*batch.to_pydict().values()]).reshape(2, 2)
        np.testing.assert_array_equal(found if names == "x" else found.T, twice.toarray())


@pytest.mark.parametrize("X", [csr_array(np.eye(2, dtype=int)), csr_array((0, 3)), coo_array(np.ones(3))])
def test_sparse_rows_of_another_form_are_refused(X: Any) -> None:
    with pytest.raises(DataError, match=r"^X must be a sparse array of floats, rows by features and not empty, got"):
        ArrayEngine.from_sparse(X)


def test_it_works_in_a_pipeline_and_survives_clone_and_pickle() -> None:
    X, y = blobs()
    pipeline = make_pipeline(
        FunctionTransformer(halved), PrivateLogisticRegression(epsilon=50.0, classes=[0, 1], bounds=(-3, 3))
    )
    pipeline.fit(X, y)
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.predict_proba(X), pipeline.predict_proba(X))
    assert again[-1].certificate_ == pipeline[-1].certificate_
    assert clone(pipeline)[-1].get_params() == pipeline[-1].get_params()
    assert not hasattr(clone(pipeline)[-1], "model_")


def test_it_works_in_cross_validation_and_searches_but_has_no_guarantee_there() -> None:
    X, y = blobs()
    classifier = PrivateLogisticRegression(epsilon=50.0, classes=[1, 0], bounds=(-5, 5))
    with pytest.warns(PrivacyWarning, match="fitted inside a search or a cross-validation"):
        assert cross_val_score(classifier, X, y, cv=3).mean() > 0.9
    with pytest.warns(PrivacyWarning, match="fitted inside a search or a cross-validation"):
        chosen = cross_val_predict(classifier, X, y, cv=3, method="predict_proba")
    assert np.mean(np.argmax(chosen, axis=1) == y) > 0.9
    grid = {
        "passes": np.array([2, 5]),
        "epsilon": np.array([20, 50], np.float32),
        "fit_intercept": np.array([True, False]),
    }
    with pytest.warns(PrivacyWarning, match="fitted inside a search or a cross-validation"):
        search = GridSearchCV(classifier, grid, cv=2).fit(X, y)
    assert search.score(X, y) > 0.9
    assert search.best_estimator_.certificate_.reasons == (SEARCH_REASON,)


def test_a_noiseless_search_and_a_fit_after_a_split_warn_of_nothing() -> None:
    X, y = blobs()
    plain = PrivateLogisticRegression(epsilon=None, classes=[0, 1], bounds=(-5, 5))
    assert GridSearchCV(plain, {"passes": [1, 5]}, cv=2, scoring="roc_auc").fit(X, y).best_score_ > 0.9
    X_train, _, y_train, _ = train_test_split(X, y)
    private = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), anyway=True).fit(X_train, y_train)
    assert private.certificate_.private


def test_a_threshold_is_a_parameter_and_costs_nothing() -> None:
    X = np.random.default_rng(5).uniform(-5, 5, (2000, 4))
    y = (X[:, 0] > 0).astype(int)
    threshold: Any = np.float32(0.25)
    private = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), threshold=threshold).fit(X, y)
    assert private.certificate_.private
    assert private.model_.threshold == 0.25
    likely = private.predict_proba(X)[:, 1]
    assert np.array_equal(private.predict(X), (likely > 0.25).astype(int))
    assert (likely > 0.25).sum() > (likely > 0.5).sum()
    assert np.array_equal(
        private.predict(X), (private.decision_function(X) > private.model_.margin_threshold).astype(int)
    )


def test_the_prior_follows_its_class_where_classes_are_sorted() -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=[*"abcd"])
    columns = tuple(Numeric(name, -5, 5) for name in "abcd")
    schema = Schema(Classes("label", ("yes", "no"), prior=(0.3, 0.7)), columns)
    private = PrivateLogisticRegression(schema=schema, threshold="prior").fit(frame, np.where(y == 1, "yes", "no"))
    assert private.model_.schema.target.require_classes().prior == (0.7, 0.3)
    assert private.model_.classes == ("no", "yes")
    assert private.model_.threshold == 0.3


@pytest.mark.parametrize(
    ("estimator", "classes", "threshold", "said"),
    [
        (PrivateLogisticRegression, 3, 0.3, "a threshold must be for a model of 2 classes, got 3"),
        (PrivateLogisticRegression, 2, 1.5, "threshold must be between 0 and 1"),
        (PrivateLogisticRegression, 2, "prior", "the threshold 'prior' must be declared in the schema"),
        (PrivateLogisticRegression, 2, "most", "threshold must be a number, got 'most'"),
        (PrivateHuberSVM, 2, 0.3, "a threshold must be for a model that gives probabilities, got the loss 'huber'"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch, estimator: Any, classes: int, threshold: Any, said: str
) -> None:
    X, y = blobs(classes=classes)
    monkeypatch.delattr("boltdp.estimators._base.train")
    with pytest.raises(ParameterError, match=said):
        estimator(classes=[*range(classes)], bounds=(-5, 5), threshold=threshold).fit(X, y)


def test_a_threshold_leaves_a_random_state_as_it_was() -> None:
    X, y = blobs()
    weights = []
    for threshold in (None, 0.3):
        with pytest.warns(PrivacyWarning):
            fitted = PrivateLogisticRegression(
                classes=[0, 1], bounds=(-5, 5), threshold=threshold, random_state=np.random.RandomState(3)
            ).fit(X, y)
        weights.append(fitted.model_.weights)
    assert np.array_equal(*weights)


def test_a_fixed_threshold_changes_nothing_of_the_promise() -> None:
    X, y = blobs()
    private = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), anyway=True)
    fixed = FixedThresholdClassifier(private, threshold=0.3).fit(X, y)
    assert fixed.estimator_.certificate_.private
    with pytest.warns(PrivacyWarning, match="fitted inside a search"):
        cross_val_score(fixed, X, y, cv=2)


@pytest.mark.parametrize("ensemble", [True, False])
def test_calibration_on_private_rows_has_no_guarantee(ensemble: bool) -> None:
    X, y = blobs()
    private = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), anyway=True)
    with pytest.warns(PrivacyWarning, match="calibration"):
        calibrated = CalibratedClassifierCV(private, cv=2, ensemble=ensemble).fit(X, y)
    for one in calibrated.calibrated_classifiers_:
        assert one.estimator.certificate_.reasons == (SEARCH_REASON,)


@pytest.mark.parametrize("refit", [True, False])
def test_a_threshold_tuned_on_private_rows_has_no_guarantee(refit: bool) -> None:
    X, y = blobs()
    private = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), anyway=True)
    with pytest.warns(PrivacyWarning, match="fitted inside a search"):
        tuned = TunedThresholdClassifierCV(private, cv=2 if refit else 0.5, refit=refit).fit(X, y)
    assert tuned.estimator_.certificate_.reasons == (SEARCH_REASON,)


def test_the_model_can_be_saved_and_verified_whatever_number_types_were_given(tmp_path: Path) -> None:
    X, y = blobs()
    given: dict[str, Any] = {"epsilon": np.float32(2), "passes": np.int64(3), "batch_size": np.int32(9)}
    fitted = PrivateLogisticRegression(**given, classes=np.array([0, 1]), bounds=np.array([-5, 5], np.int8)).fit(X, y)
    fitted.model_.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    loaded.verify()
    assert np.array_equal(loaded.weights, fitted.model_.weights)
    assert np.array_equal(loaded.predict(ArrayEngine.from_numpy(X)), fitted.predict(X))


def test_a_model_that_is_not_private_says_so_after_it_was_saved_too(tmp_path: Path) -> None:
    X, y = blobs()
    with pytest.warns(PrivacyWarning):
        fitted = PrivateLogisticRegression(bounds=(-5, 5), random_state=3).fit(X, y)
    fitted.model_.save(tmp_path / "model.json")
    loaded = Model.load(tmp_path / "model.json")
    loaded.verify()
    assert loaded.certificate == fitted.certificate_
    assert loaded.certificate.reasons == (CLASSES_REASON, SEEDED)


def test_accuracy_on_real_data_with_a_large_epsilon() -> None:
    X, y = load_iris(return_X_y=True)
    iris = PrivateLogisticRegression(
        epsilon=1e4, classes=[0, 1, 2], bounds=([4, 2, 1, 0], [8, 4.5, 7, 2.5]), passes=50, batch_size=5
    )
    assert iris.fit(X, y).score(X, y) > 0.93
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for cancer in (PrivateLogisticRegression, PrivateHuberSVM):
        assert cancer(epsilon=1e4, classes=[0, 1], clip_norm=3.0).fit(X, y).score(X, y) > 0.95


def test_accuracy_at_a_real_epsilon_with_enough_rows() -> None:
    X, y = make_classification(20_000, n_features=5, random_state=0)
    fitted = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5)).fit(X[:15_000], y[:15_000])
    assert fitted.score(X[15_000:], y[15_000:]) > 0.8


def test_importing_the_package_alone_is_light() -> None:
    code = "import sys, boltdp; print(*(name for name in ('sklearn', 'pyarrow', 'duckdb') if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""


def test_every_exported_name_is_there() -> None:
    for name in boltdp.__all__:
        assert getattr(boltdp, name).__name__ == name
        assert name in dir(boltdp)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = boltdp.nothing  # type: ignore[attr-defined]


def test_the_examples_of_the_documentation_run() -> None:
    failed, tried = doctest.testfile(str(DOCS / "estimators.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 10
    assert failed == 0


@pytest.mark.parametrize("estimator", [PrivateLogisticRegression, PrivateHuberSVM])
@pytest.mark.parametrize("moments", ["squares", "mean"])
def test_standardized_classifiers_keep_their_coefficients_in_the_units_of_x(estimator: Any, moments: Any) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 20_000)
    X = 70 + 2 * rng.normal(size=(20_000, 3)) + 3 * y[:, None]
    given = {"epsilon": 1.0, "classes": [0, 1], "bounds": (0, 100), "random_state": 3, "label_check": 0.0}
    classifier = estimator(standardize="private", standardize_share=0.25, standardize_moments=moments, **given)
    with pytest.warns(PrivacyWarning, match="the noise came from a seed"):
        classifier.fit(X, y)
    spent, left = classifier.certificate_.parts
    assert (spent.budget, left.budget) == (Budget(0.25), Budget(0.75))
    assert spent.event is classifier.certificate_.moments
    assert classifier.certificate_.moments.moments == moments
    assert classifier.score(X, y) > 0.8
    margins = X @ classifier.coef_[0] + classifier.intercept_[0]
    assert np.mean((margins > 0) == (classifier.predict(X) == 1)) == 1.0
    with pytest.raises(ParameterError, match="standardize must be one of auto, none, private"):
        estimator(standardize="yes", **given).fit(X, y)


# ---- curves -----------------------------------------------------------------------------------------------------


def bumps(rows: int = 4000) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Two features, of which the first decides by a curve that no straight line follows."""
    X = np.random.default_rng(4).uniform(0, 10, (rows, 2))
    return X, ((X[:, 0] > 3) & (X[:, 0] < 7)).astype(int)


def test_curves_follow_what_a_line_cannot() -> None:
    X, y = bumps()
    parameters: dict[str, Any] = {"epsilon": 5.0, "classes": [0, 1], "bounds": (0, 10)}
    line = PrivateLogisticRegression(**parameters).fit(X, y)
    curve = PrivateLogisticRegression(**parameters, curves=9).fit(X, y)
    assert line.score(X, y) < 0.7
    assert curve.score(X, y) > 0.95
    assert curve.certificate_.private
    assert curve.n_features_in_ == 2
    assert curve.coef_.shape == (1, 2 * 10)
    assert curve.model_.schema.feature_names[:4] == ("x0", "x0>=1", "x0>=2", "x0>=3")
    steps = np.hstack([np.column_stack([x, *(x >= place for place in range(1, 10))]) for x in X.T])
    inside = steps @ curve.coef_.T + curve.intercept_
    assert ((inside[:, 0] > 0) == curve.predict(X)).all()


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        (np.int64(3), {"a": (2.5, 5, 7.5), "b": (5, 10, 15)}),
        ({"a": 1}, {"a": (5,), "b": ()}),
        ({"a": [2, 3.5], "b": np.array([7.0])}, {"a": (2, 3.5), "b": (7,)}),
        ({}, {"a": (), "b": ()}),
        (None, {"a": (), "b": ()}),
    ],
)
def test_curves_of_a_data_frame_are_declared_by_name(curves: Any, expected: dict[str, tuple[float, ...]]) -> None:
    X, y = bumps(200)
    frame = pd.DataFrame(X * [1, 2], columns=["a", "b"])
    classifier = PrivateLogisticRegression(epsilon=None, classes=[0, 1], bounds=([0, 0], [10, 20]), curves=curves)
    fitted = clone(classifier).fit(frame, y)
    assert {column.name: column.curve for column in fitted.model_.schema.columns} == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"curves": 3, "bounds": None}, "curves must be given beside bounds, which their places lie between"),
        ({"curves": {"x9": 3}}, "curves must be of columns of X, got 'x9'"),
        ({"curves": {"x0": "3"}}, "the curve of 'x0' must be a whole number >= 1, got '3'"),
        ({"curves": 0}, "the curve of 'x0' must be a whole number >= 1, got 0"),
        ({"curves": True}, "the curve of 'x0' must be a whole number >= 1, got True"),
        ({"curves": {"x1": [3, 2]}}, "the curve of 'x1' must have increasing places between the bounds 0 and 10, got"),
        ({"curves": 3, "schema": "s.toml"}, "curves must not be given beside a schema, which declares it"),
    ],
)
def test_curves_that_cannot_be_are_refused(parameters: dict[str, Any], message: str) -> None:
    X, y = bumps(50)
    given = {"classes": [0, 1], "bounds": (0, 10), **parameters}
    if "schema" in given:
        given |= {"classes": None, "bounds": None}
    with pytest.raises(ParameterError) as caught:
        PrivateLogisticRegression(**given).fit(X, y)
    assert str(caught.value).startswith(message)


def patients(rows: int = 600) -> tuple[pd.DataFrame, pd.Series]:
    """Ages, of which those above 50 are ill, with a category and a boolean."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, rows)
    X = pd.DataFrame({"age": age, "sex": rng.choice(["F", "M"], rows), "smokes": rng.random(rows) < 0.3})
    return X, pd.Series(np.where(age > 50, "ill", "well"), name="outcome")


BY_NAME: dict[str, Any] = {"bounds": {"age": (0, 110)}, "categories": {"sex": ["F", "M"]}, "classes": ["well", "ill"]}


@BOTH
def test_bounds_and_categories_by_name_declare_the_columns_of_a_data_patients(estimator: Any) -> None:
    X, y = patients()
    fitted = estimator(epsilon=10.0, **BY_NAME).fit(X, y.set_axis(np.arange(len(y))[::-1]))
    assert fitted.certificate_.private
    assert fitted.model_.schema.label == "outcome"
    assert [column.name for column in fitted.model_.schema.columns] == ["age", "smokes", "sex"]
    assert fitted.classes_.tolist() == ["ill", "well"]
    assert fitted.score(X, y) > 0.8
    assert clone(fitted).get_params()["categories"] == BY_NAME["categories"]


def test_columns_by_name_have_the_clip_norm_the_curves_and_the_intercept_that_are_asked_for() -> None:
    X, y = patients()
    asked: dict[str, Any] = {**BY_NAME, "clip_norm": 2.0, "curves": {"age": [50]}, "fit_intercept": False}
    fitted = PrivateLogisticRegression(epsilon=None, **asked).fit(X, y)
    schema = fitted.model_.schema
    assert (schema.clip_norm, schema.intercept) == (2.0, False)
    assert schema.columns[0] == Numeric("age", 0, 110, curve=(50.0,))
    with pytest.raises(ParameterError, match="curves must be of columns of X, got 'sex'"):
        PrivateLogisticRegression(**{**BY_NAME, "curves": {"sex": 3}}).fit(X, y)


def test_columns_that_are_not_declared_are_not_used_and_named_at_the_line_of_the_call() -> None:
    X, y = patients()
    with pytest.warns(UserWarning, match="^not used, .*: 'sex'; drop them or give a schema") as caught:
        fitted = PrivateLogisticRegression(bounds={"age": (0, 110)}, classes=["well", "ill"]).fit(X, y)
    assert [one.filename for one in caught] == [__file__]
    assert [column.name for column in fitted.model_.schema.columns] == ["age", "smokes"]
    assert len(fitted.predict(X)) == len(X)


def test_a_label_among_the_columns_by_name_is_not_a_feature() -> None:
    X, y = patients()
    fitted = PrivateLogisticRegression(epsilon=None, **BY_NAME).fit(X.assign(outcome=y), y)
    assert "outcome" not in [column.name for column in fitted.model_.schema.columns]


def test_a_schema_may_be_a_dictionary() -> None:
    X, y = patients()
    declared = {"label": "outcome", "classes": ["well", "ill"], "numeric": {"age": (0, 110)}}
    fitted = PrivateLogisticRegression(epsilon=10.0, schema=declared).fit(X, y)
    assert [column.name for column in fitted.model_.schema.columns] == ["age"]
    assert clone(fitted).schema == declared


@pytest.mark.parametrize(
    ("parameters", "X", "y", "message"),
    [
        ({"bounds": {"x0": (0, 1), "x1": (0, 1)}}, blobs()[0], blobs()[1], "by name must be of a data frame's columns"),
        ({"bounds": {"Age": (0, 1)}}, *patients(), "bounds must be of columns of the data, got 'Age'"),
        ({"bounds": {"age": 110}}, *patients(), r"the bounds of 'age' must be a pair \(low, high\), got 110"),
        ({"categories": ["sex"]}, *patients(), "categories must be a dictionary by names of columns"),
        ({"bounds": [(0, 1)] * 4}, *blobs(), r"bounds must be a pair \(low, high\), got an object of type 'list'"),
        ({"schema": 5}, *patients(), "a schema must be .* got 5"),
        ({"schema": {"label": "outcome"}}, *patients(), "the schema must declare 'classes'"),
        ({"bounds": (0, 1)}, blobs()[0], "outcome", "y must be the labels themselves, one for each row"),
        (
            {"bounds": (0, 1)},
            pd.concat([patients()[0]] * 2, axis=1),
            patients()[1],
            "must have different names, got 'age'",
        ),
    ],
)
def test_wrong_declarations_are_told_in_a_sentence(parameters: Any, X: Any, y: Any, message: str) -> None:
    classes: Any = {} if "schema" in parameters else {"classes": [0, 1]}
    with pytest.raises(BoltdpError, match=message) as caught:
        PrivateLogisticRegression(**classes, **parameters).fit(X, y)
    assert "\n" not in str(caught.value)


def test_pairs_of_features_are_named_in_arrays_and_frames() -> None:
    random = np.random.default_rng(4)
    X = random.integers(0, 2, (20_000, 3)).astype(float)
    y = (X[:, 0] != X[:, 2]).astype(int)
    classifier = PrivateLogisticRegression(classes=[0, 1], bounds=(0, 1), pairs=[("x0", "x2")], epsilon=2.0)
    assert clone(classifier).fit(X, y).score(X, y) == 1.0
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    bounds = dict.fromkeys(frame, (0, 1))
    named = PrivateLogisticRegression(classes=[0, 1], bounds=bounds, pairs=[("c", "a")], epsilon=2.0).fit(frame, y)
    assert named.score(frame, y) == 1.0
    assert named.coef_.shape == (1, 3)  # pairs have none in the units of X
    for wrong in ({"pairs": [("x0", "x9")]}, {"pairs": "x0"}, {"pairs": [("x0", "x2")], "bounds": None}):
        with pytest.raises(ParameterError, match=r"pairs must be "):
            clone(classifier).set_params(**{"clip_norm": 1.0, **wrong}).fit(X, y)
