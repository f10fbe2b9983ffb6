"""The scikit-learn regressor, and the search over it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from sklearn.base import clone, is_regressor
from sklearn.metrics import r2_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from boltdp import Number, Numeric, PrivacyWarning, PrivateGridSearch, PrivateRegressor, Schema
from boltdp.errors import ParameterError
from boltdp.estimators.regressors import BOUNDS_REASON
from boltdp.losses import Mean, Quantile, Robust
from boltdp.workflows.tune import Method

ROWS = 4000
Floats = npt.NDArray[np.float64]


def line(seed: int = 0) -> tuple[Floats, Floats]:
    random = np.random.default_rng(seed)
    X = random.uniform(-1, 1, (ROWS, 2))
    return X, 50 + 20 * X[:, 0] - 10 * X[:, 1] + random.normal(0, 2, ROWS)


def regressor(**parameters: Any) -> PrivateRegressor:
    return PrivateRegressor(**{"epsilon": 5.0, "bounds": (-1, 1), "target_bounds": (0, 100), **parameters})


# As for the classifiers: the checks train on few rows, set random_state and declare no bounds of y.
@pytest.mark.filterwarnings("ignore::boltdp.errors.PrivacyWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        PrivateRegressor(epsilon=1e5, clip_norm=3.0),
        PrivateRegressor(epsilon=1e5, delta=1e-6, clip_norm=3.0, loss="quantile"),
        PrivateRegressor(epsilon=None, clip_norm=3.0, loss="mean"),
        PrivateGridSearch(PrivateRegressor(epsilon=1e5, clip_norm=3.0), {"regularization": [1e-4, 1e-3]}, trials=4),
    ]
)
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    ("asked", "loss"),
    [
        ({}, Robust()),
        ({"loss": "robust"}, Robust()),
        ({"loss": "mean"}, Mean()),
        ({"loss": "quantile", "quantile": 0.9}, Quantile(0.9)),
    ],
)
def test_it_is_private_once_bounds_are_declared_and_predicts(asked: dict[str, Any], loss: Any) -> None:
    X, y = line()
    fitted = regressor(**asked).fit(X, y)
    assert fitted.certificate_.private
    assert fitted.certificate_.problem.loss == loss
    predicted = fitted.predict(X)
    assert fitted.score(X, y) == r2_score(y, predicted)
    if loss == Quantile(0.9):
        assert (y < predicted).mean() > 0.85
    else:
        assert fitted.score(X, y) > 0.8
    assert is_regressor(fitted)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), predicted)


def test_coefficients_are_in_the_units_of_the_rows_and_the_target() -> None:
    X, y = line()
    fitted = regressor(epsilon=100.0, typical=(30, 70)).fit(X, y)
    assert fitted.coef_ == pytest.approx([20, -10], abs=4)
    assert fitted.intercept_ == pytest.approx(50, abs=2)
    short = X[np.linalg.norm(X, axis=1) < 0.3]
    assert fitted.predict(short) == pytest.approx(short @ fitted.coef_ + fitted.intercept_, abs=1e-3)


def test_bounds_read_from_y_are_not_private_and_say_so() -> None:
    X, y = line()
    with pytest.warns(PrivacyWarning, match="target were read from y") as caught:
        fitted = regressor(target_bounds=None).fit(X, y)
    assert [one.filename for one in caught] == [__file__]
    assert fitted.certificate_.reasons == (BOUNDS_REASON,)
    target = fitted.model_.schema.target
    assert isinstance(target, Number)
    assert (target.low, target.high) == (y.min(), y.max())


def test_missing_numbers_are_neutral_where_bounds_are_declared() -> None:
    X, y = line()
    fitted = regressor().fit(X, np.where(np.arange(ROWS) % 50, y, np.nan))
    assert fitted.certificate_.private
    assert fitted.score(X, y) > 0.8


def test_a_frame_has_bounds_by_name_and_a_schema_declares_all() -> None:
    X, y = line()
    frame = pd.DataFrame(X, columns=["left", "right"])
    named = regressor(bounds={"left": (-1, 1), "right": (-1, 1)}).fit(frame, pd.Series(y, name="height"))
    assert named.model_.schema.label == "height"
    schema = Schema(Number("height", 0, 100, typical=(30, 70)), (Numeric("left", -1, 1), Numeric("right", -1, 1)))
    given = PrivateRegressor(epsilon=5.0, schema=schema).fit(frame, y)
    assert given.score(frame, y) > 0.8
    with pytest.raises(ParameterError, match="target_bounds must not be given beside a schema"):
        PrivateRegressor(schema=schema, target_bounds=(0, 1)).fit(frame, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "squared"}, "loss must be one of auto, robust, mean, quantile, got 'squared'"),
        ({"loss": "logistic"}, "loss must be one of"),
        ({"loss": "quantile", "quantile": 1.5}, "tau must be from"),
        ({"quantile": "half"}, "quantile must be a number, got 'half'"),
        ({"target_bounds": 5}, r"bounds must be a pair \(low, high\), got 5"),
        ({"target_bounds": (1, 0)}, "must be finite with low < high"),
        ({"typical": (50, 200)}, "typical must be two increasing numbers within the bounds"),
        (
            {"schema": {"label": "y", "classes": [0, 1], "numeric": {"x0": [0, 1]}}, "bounds": None},
            "target_bounds must not be given beside a schema",
        ),
        (
            {
                "schema": {"label": "y", "classes": [0, 1], "numeric": {"x0": [0, 1]}},
                "bounds": None,
                "target_bounds": None,
            },
            "the schema must declare a target, the number to predict, got the label 'y' with 2 classes",
        ),
    ],
)
def test_wrong_parameters_are_refused_by_fit(parameters: dict[str, Any], message: str) -> None:
    X, y = line()
    wrong = regressor(**parameters)
    with pytest.raises(ParameterError, match=message):
        wrong.fit(pd.DataFrame(X, columns=["x0", "x1"]) if "schema" in parameters else X, y)


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_a_search_chooses_among_settings_of_a_regressor(method: Method) -> None:
    X, y = line()
    public = line(1) if method == "public" else None
    grid = {"regularization": [0.03, 30.0]}
    search = PrivateGridSearch(regressor(typical=(30, 70)), grid, method=method, trials=20, public_rows=public)
    fitted = clone(search).fit(X, y)
    assert fitted.certificate_.private
    assert fitted.best_params_ == {"regularization": 0.03}
    assert fitted.score(X, y) == r2_score(y, fitted.predict(X)) > 0.5
    assert is_regressor(fitted)
    assert not hasattr(fitted, "decision_function")
    assert not hasattr(fitted, "classes_")


def test_parameters_of_classes_are_none_of_a_regressor() -> None:
    names = PrivateRegressor().get_params()
    assert not {"classes", "threshold", "multiclass", "class_weight"} & names.keys()
    assert {"loss", "quantile", "target_bounds", "typical", "regularization", "bounds"} <= names.keys()
