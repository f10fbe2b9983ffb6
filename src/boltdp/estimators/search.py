"""A grid search over the settings of a private estimator within one budget: scikit-learn's interface to `tune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.estimators._base import PrivateEstimator
from boltdp.settings import OPTIONS, TUNABLE
from boltdp.workflows.tune import TRIALS, Method, tune

#: The parameters of the estimators that a grid may be over.
NAMES = tuple(OPTIONS[name].parameter for name in TUNABLE)


@dataclass(eq=False, repr=False)
class PrivateGridSearch(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a private estimator with the best of several settings, within the estimator's epsilon and delta.

    GridSearchCV chooses by scores of private rows, which no guarantee covers. Here the guarantee covers the choice.
    The scores are private, and are not released.

    Parameters
    ----------
    estimator : PrivateLogisticRegression, PrivateHuberSVM or PrivateRegressor
    param_grid : dict or list of dicts
        Values to try of passes, batch_size, regularization, schedule, step_size, exponent, max_norm, averaging.
    method : {"trials", "portions", "public"}, default="trials"
        "trials" trains each candidate on all rows, with a part of epsilon; "portions" trains each on disjoint rows,
        which takes no longer than one training and needs many rows; "public" compares them on `public_rows`.
    public_rows : (X, y), optional
        Rows of public data, for "public".
    trials : float, default=100
        The expected number of trials of the method "trials".
    random_state : int, RandomState or None, default=None
        Overrides that of the estimator, if it is not None: the model is then reproducible, and not private.

    Attributes
    ----------
    best_estimator_ : the fitted estimator
    best_params_ : dict
    best_index_ : int
        Its position among the candidates.
    certificate_ : Certificate
        The guarantee, and how the model was chosen.

    Examples
    --------
    >>> from boltdp import PrivateLogisticRegression
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(20_000, n_features=5, random_state=0)
    >>> classifier = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5))
    >>> search = PrivateGridSearch(classifier, {"regularization": [1e-3, 1e-2]}).fit(X, y)
    >>> search.certificate_.private, sorted(search.best_params_)
    (True, ['regularization'])

    """

    estimator: Any
    param_grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]]
    method: Method = "trials"
    public_rows: tuple[Any, Any] | None = None
    trials: float = TRIALS
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: Any, y: Any) -> PrivateGridSearch:
        """Train the candidates, choose one and release it."""
        if isinstance(self.estimator, type):
            raise ParameterError(f"estimator must be an object, got the class itself: {self.estimator.__name__}(...)")
        if not isinstance(self.estimator, PrivateEstimator):
            raise ParameterError(
                "estimator must be a PrivateLogisticRegression, a PrivateHuberSVM or a PrivateRegressor, "
                f"got an object of type {type(self.estimator).__name__!r}"
            )
        grid = list(ParameterGrid(self.param_grid))
        for name in sorted({name for one in grid for name in one}):
            if name not in NAMES:
                raise ParameterError(f"param_grid must be over some of {', '.join(NAMES)}, got {name!r}")
        best = clone(self.estimator)
        if self.random_state is not None:
            best.set_params(random_state=self.random_state)
        settings = [clone(best).set_params(**one)._make_settings() for one in grid]
        # A random state gives each candidate other seeds; all candidates must share those of the first.
        settings = [replace(one, seed=settings[0].seed, noise_seed=settings[0].noise_seed) for one in settings]
        engine, schema, reasons = best._prepare_rows(X, y)
        public = None if self.public_rows is None else best._prepare_rows(*self.public_rows, schema=schema)[0]
        model = tune(
            engine,
            schema,
            settings,
            method=self.method,
            public=public,
            trials=self.trials,
            reasons=reasons,
            account=best._find_account(),
        )
        assert model.certificate.selection is not None
        self.best_index_ = model.certificate.selection.chosen
        self.best_params_ = grid[self.best_index_]
        self.best_estimator_ = best.set_params(**self.best_params_)._set_model(model)
        for name in ("certificate_", "n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(best, name):
                setattr(self, name, getattr(best, name))
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the class, or the number, of each row."""
        return self._get_fitted_estimator().predict(X)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the score of the chosen estimator: the accuracy of a classifier, R2 of a regressor."""
        return self._get_fitted_estimator().score(X, y, sample_weight)  # type: ignore[no-any-return]

    @available_if(lambda search: hasattr(search.estimator, "decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Doubles:
        """Compute the margin of each row."""
        return self._get_fitted_estimator().decision_function(X)  # type: ignore[no-any-return]

    @available_if(lambda search: hasattr(search.estimator, "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Doubles:
        """Compute the probability of each class for each row."""
        return self._get_fitted_estimator().predict_proba(X)  # type: ignore[no-any-return]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        for name in ("estimator_type", "classifier_tags", "regressor_tags", "target_tags", "input_tags"):
            setattr(tags, name, getattr(get_tags(self.estimator), name))
        return tags

    def _get_fitted_estimator(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_
