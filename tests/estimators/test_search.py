"""The scikit-learn search over private classifiers."""

from __future__ import annotations

import doctest
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.utils.estimator_checks import parametrize_with_checks

from boltdp import PrivacyWarning, PrivateGridSearch, PrivateHuberSVM, PrivateLogisticRegression
from boltdp.errors import ParameterError
from boltdp.estimators.classifiers import CLASSES_REASON
from boltdp.workflows.tune import Method

GRID = {"regularization": [1e-3, 1e-2], "passes": [2, 5]}


def blobs(seed: int = 0, rows: int = 3000) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, rows)
    return random.standard_normal((rows, 3)) + 2.0 * (2 * y[:, None] - 1), y


def classifier(**parameters: Any) -> PrivateLogisticRegression:
    return PrivateLogisticRegression(**{"epsilon": 20.0, "classes": [0, 1], "bounds": (-5, 5), **parameters})


# As for the classifiers: the checks train on few rows, set random_state and declare no classes.
@pytest.mark.filterwarnings("ignore::boltdp.errors.PrivacyWarning")
@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [
        PrivateGridSearch(PrivateLogisticRegression(epsilon=1e5, clip_norm=3.0), {"regularization": [1e-4, 1e-3]}),
        PrivateGridSearch(PrivateHuberSVM(epsilon=1e5, clip_norm=3.0), {"regularization": [1e-4, 1e-3]}, trials=4),
    ]
)
def test_scikit_learn_accepts_it(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_random_state_of_the_search_makes_it_repeatable_and_not_private() -> None:
    X, y = blobs(rows=500)
    search = PrivateGridSearch(classifier(), {"regularization": [1e-3, 1e-2]}, trials=3, random_state=0)
    with pytest.warns(PrivacyWarning, match="seed"):
        first, second = (clone(search).fit(X, y).best_estimator_.coef_ for _ in range(2))
    assert np.array_equal(first, second)


def test_a_class_in_the_place_of_an_estimator_is_told() -> None:
    search = PrivateGridSearch(PrivateLogisticRegression, {"regularization": [1e-3]})
    with pytest.raises(ParameterError, match=r"got the class itself: PrivateLogisticRegression\(\.\.\.\)"):
        search.fit(*blobs(rows=50))


@pytest.mark.parametrize("method", ["portions", "trials", "public"])
def test_a_search_is_private_and_predicts(method: Method) -> None:
    X, y = blobs()
    public = blobs(1, 300) if method == "public" else None
    search = PrivateGridSearch(classifier(), GRID, method=method, public_rows=public).fit(X, y)
    assert search.certificate_.private
    search.best_estimator_.model_.verify()
    assert search.score(*blobs(2)) > 0.9
    assert search.best_params_ == {
        "regularization": search.certificate_.problem.regularization,
        "passes": search.certificate_.problem.passes,
    }
    assert search.best_estimator_.get_params()["passes"] == search.best_params_["passes"]
    assert search.predict_proba(X).shape == (3000, 2)
    assert (search.predict(X) == (search.decision_function(X) > 0)).all()


def test_what_a_search_finds_decides_by_the_threshold_of_its_classifier() -> None:
    X, y = blobs()
    search = PrivateGridSearch(classifier(threshold=0.2), {"regularization": [1e-2, 1e-1]}, trials=2).fit(X, y)
    assert search.best_estimator_.model_.threshold == 0.2
    assert (search.predict(X) == (search.predict_proba(X)[:, 1] > 0.2)).all()


def test_an_svm_can_be_searched_and_has_no_probabilities() -> None:
    X, y = blobs()
    svm = PrivateHuberSVM(epsilon=20.0, classes=[0, 1], bounds=(-5, 5))
    search = PrivateGridSearch(svm, {"regularization": [1e-2, 1e-1], "max_norm": [5.0]}).fit(X, y)
    assert search.score(X, y) > 0.9
    assert not hasattr(search, "predict_proba")


def test_a_search_can_be_cloned_pickled_and_put_in_a_pipeline() -> None:
    X, y = blobs()
    search = PrivateGridSearch(classifier(bounds=None, clip_norm=1.0), GRID)
    pipeline = make_pipeline(Normalizer(), clone(search)).fit(X, y)
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(X) == pipeline.predict(X)).all()
    assert search.get_params()["estimator__epsilon"] == 20.0
    with pytest.raises(NotFittedError):
        search.predict(X)


def test_a_seeded_search_is_repeatable_and_says_that_it_is_not_private() -> None:
    X, y = blobs()
    weights = []
    for state in (7, np.random.RandomState(7), 8):
        with pytest.warns(PrivacyWarning, match="the noise came from a seed"):
            search = PrivateGridSearch(classifier(random_state=state), GRID).fit(X, y)
        weights.append(search.best_estimator_.coef_)
    assert (weights[0] == weights[1]).all()
    assert (weights[0] != weights[2]).any()


def test_undeclared_classes_cost_the_claim() -> None:
    X, y = blobs()
    with pytest.warns(PrivacyWarning, match="the classes were read from the labels"):
        search = PrivateGridSearch(classifier(classes=None), GRID).fit(X, y)
    assert search.certificate_.reasons == (CLASSES_REASON,)


def test_a_search_inside_a_search_has_no_guarantee() -> None:
    X, y = blobs()
    with pytest.warns(PrivacyWarning, match="fitted inside a search"):
        assert cross_val_score(PrivateGridSearch(classifier(), GRID), X, y, cv=2).mean() > 0.9


def test_what_cannot_be_searched_is_refused() -> None:
    X, y = blobs()
    with pytest.raises(ParameterError, match="estimator must be a PrivateLogisticRegression, a PrivateHuberSVM or"):
        PrivateGridSearch(LogisticRegression(), {"C": [1.0]}).fit(X, y)
    with pytest.raises(ParameterError, match=r"param_grid must be over some of regularization, .* got 'epsilon'"):
        PrivateGridSearch(classifier(), {"epsilon": [1.0, 2.0]}).fit(X, y)


def test_the_documentation_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "tuning.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 0
    assert failed == 0
