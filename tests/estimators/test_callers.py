"""A model that was fitted by something that sees private rows itself says that it is not private."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.feature_selection import SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.random_projection import GaussianRandomProjection

from boltdp import PrivacyWarning, PrivateGridSearch, PrivateLogisticRegression
from boltdp.estimators.callers import SEARCH_REASON, TRANSFORMER_REASON, WRAPPER_REASON
from tests.estimators.test_classifiers import blobs

X, Y = blobs()
FRAME = pd.DataFrame(X, columns=[f"f{i}" for i in range(X.shape[1])])


def private(**parameters: Any) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), passes=1, **parameters)


class Centering(Normalizer):  # type: ignore[misc]
    """It has the name of nothing that is known, and learns."""

    def fit(self, X: Any, y: Any = None) -> Centering:
        self.mean_ = X.mean()
        return super().fit(X, y)  # type: ignore[no-any-return]


class Subsampling(Pipeline):  # type: ignore[misc]
    def fit(self, X: Any, y: Any = None, **params: Any) -> Any:
        return super().fit(X[Y == 1], y[Y == 1], **params)


class Own(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    def fit(self, X: Any, y: Any = None) -> Own:
        private().fit(X, y)
        return self


LEARNING = {
    "StandardScaler": [StandardScaler()],
    "StandardScaler, PCA": [StandardScaler(), Normalizer(), PCA(2)],
    "OneHotEncoder": [ColumnTransformer([("kinds", OneHotEncoder(), ["f0"])], remainder="passthrough")],
    "MinMaxScaler": [ColumnTransformer([("same", "passthrough", ["f0"])], remainder=MinMaxScaler())],
    "ColumnTransformer with columns by a function": [
        ColumnTransformer([("large", "passthrough", lambda frame: [frame.columns[frame.max().argmax()]])])
    ],
    "PCA": [FeatureUnion([("same", FunctionTransformer()), ("pca", make_pipeline(Normalizer(), PCA(1)))])],
    "Centering": [Centering()],
}
LEARNING_NOTHING = [
    [],
    ["passthrough", None],
    [Normalizer(), PolynomialFeatures(2), FunctionTransformer(np.tanh)],
    [GaussianRandomProjection(2, random_state=0)],
    [ColumnTransformer([("some", Normalizer(), make_column_selector(pattern="f0")), ("none", "drop", ["f1"])])],
    [make_pipeline(FeatureUnion([("same", FunctionTransformer()), ("unit", Normalizer())]))],
    [FrozenEstimator(StandardScaler().fit(np.eye(X.shape[1])))],
]


def make(steps: list[Any], last: Any) -> Pipeline:
    return Pipeline([*((str(number), step) for number, step in enumerate(steps)), ("model", last)])


@pytest.mark.parametrize("named", LEARNING)
def test_a_model_after_a_step_that_learns_from_rows_is_not_private(named: str) -> None:
    pipeline = make(LEARNING[named], private())
    with pytest.warns(PrivacyWarning, match=r"fitted in a pipeline after .* learned from the rows; declare bounds"):
        pipeline.fit(FRAME, Y)
    assert pipeline[-1].certificate_.reasons == (TRANSFORMER_REASON.format(named),)
    assert not pipeline[-1].certificate_.private


@pytest.mark.parametrize("steps", LEARNING_NOTHING, ids=range(len(LEARNING_NOTHING)))
@pytest.mark.filterwarnings("ignore:X has feature names")
def test_a_model_after_steps_that_learn_nothing_is_private(steps: list[Any]) -> None:
    assert make(steps, private()).fit(FRAME, Y)[-1].certificate_.private


def test_an_outer_pipeline_counts_and_a_private_search_is_inside_too() -> None:
    inner = make([Normalizer()], PrivateGridSearch(private(), {"regularization": [1e-2, 1e-1]}, trials=2))
    with pytest.warns(PrivacyWarning, match="after StandardScaler,"):
        fitted = make([StandardScaler()], inner).fit(X, Y)
    assert fitted[-1][-1].certificate_.reasons == (TRANSFORMER_REASON.format("StandardScaler"),)
    assert make([Normalizer()], inner).fit(X, Y)[-1][-1].certificate_.private


def test_a_search_around_a_pipeline_is_told_too() -> None:
    search = GridSearchCV(make([StandardScaler()], private()), {"model__passes": [1]}, cv=2)
    with pytest.warns(PrivacyWarning):
        search.fit(X, Y)
    assert search.best_estimator_[-1].certificate_.reasons == (
        TRANSFORMER_REASON.format("StandardScaler"),
        SEARCH_REASON,
    )


@pytest.mark.parametrize(
    "around",
    [
        BaggingClassifier(private(), n_estimators=1),
        OneVsRestClassifier(private()),
        VotingClassifier([("one", private())]),
        SelectFromModel(private()),
        Own(),
        Subsampling([("one", private())]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_model_that_another_estimator_fits_is_not_private(around: Any) -> None:
    with pytest.warns(PrivacyWarning) as caught:
        around.fit(X, Y)
    assert any(WRAPPER_REASON.format(type(around).__name__) in str(one.message) for one in caught)


def test_an_estimator_of_another_process_is_known_by_its_functions() -> None:
    """As `_fit_single_estimator` of sklearn.ensemble, which joblib calls there."""
    from sklearn.ensemble._base import _fit_single_estimator

    with pytest.warns(PrivacyWarning, match="by another estimator, one of sklearn.ensemble, "):
        _fit_single_estimator(private(), X, Y, fit_params={})


def test_a_derived_class_fits_as_ours_do() -> None:
    class Derived(PrivateLogisticRegression):
        def fit(self, X: Any, y: Any) -> Any:
            return super().fit(X, y)

    assert Derived(epsilon=1.0, classes=[0, 1], bounds=(-5, 5)).fit(X, Y).certificate_.private


def test_columns_with_names_of_transformers_are_warned_of() -> None:
    scaler = ColumnTransformer([("standardscaler", StandardScaler(), ["f0", "f1"])]).set_output(transform="pandas")
    with pytest.warns(PrivacyWarning, match=r"the column 'standardscaler__f0' has the name of one that") as caught:
        private().fit(scaler.fit_transform(FRAME), Y)
    assert caught[0].filename == __file__
    steps = [("num", StandardScaler(), ["f0"]), ("rest", "passthrough", ["f1"])]
    with pytest.warns(PrivacyWarning, match="the column 'num__f0' has"):
        private().fit(ColumnTransformer(steps).set_output(transform="pandas").fit_transform(FRAME), Y)
    with pytest.warns(PrivacyWarning, match="the column 'pca0' has"):
        private().fit(PCA(2).set_output(transform="pandas").fit_transform(FRAME), Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private().fit(FRAME, Y)


def test_without_epsilon_nothing_is_claimed_and_nothing_is_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make([StandardScaler()], private().set_params(epsilon=None)).fit(X, Y)
