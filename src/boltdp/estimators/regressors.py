"""scikit-learn regressors over `train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import validation

from boltdp._array_types import Doubles
from boltdp.encoding import python_to_arrow
from boltdp.errors import DataError, ParameterError, check_number, show_value
from boltdp.estimators._base import PrivateEstimator, add_parameters
from boltdp.schema.schema import Number
from boltdp.schema.target import Target
from boltdp.settings import Settings

#: The reason why a model is not private if the bounds of its target were not declared.
BOUNDS_REASON = (
    "the bounds of the target were read from y, which tells something about single rows; declare target_bounds"
)

LOSSES = ("auto", "robust", "mean", "quantile")


@add_parameters(leave_out=("multiclass", "class_weight"))
class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """Linear regression with differential privacy: of the typical value, the mean or a quantile of a number.

    The bounds of the target, and the bounds of the features or a clip norm, must be declared from public knowledge.
    Values of y that are missing are neutral, those beyond the bounds are moved to them, and so are predictions.
    Parameters and attributes that are not listed here are those of PrivateLogisticRegression.

    Parameters
    ----------
    loss : {"auto", "robust", "mean", "quantile"}, default="auto"
        What is predicted. "robust", which "auto" chooses: the typical value, by a loss that is squared near it and
        absolute far from it; "mean": the mean between the bounds, for costs, counts and shares; "quantile": the number
        that a share `quantile` of the rows is below.
    quantile : float, default=0.5
        Of the loss "quantile", from 0.01 to 0.99.
    target_bounds : (low, high), optional
        What y can be. If they are not declared, they are read from y, and the model is not private.
    typical : (low, high), optional
        The range of most values of y, about from the 0.1- to the 0.9-quantile, if it is public. Without it, it is found
        within the budget, where the loss needs it.
    SETTINGS

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
        The model in the units of X and y: `X @ coef_ + intercept_` are the predictions, before they are clipped, of
        rows within the bounds and the clip norm. With the loss "mean" they are log odds between the bounds.
    certificate_ : Certificate
    model_ : Model

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> X, y = make_regression(20_000, n_features=5, noise=10, random_state=0)
    >>> regressor = PrivateRegressor(epsilon=1.0, bounds=(-5, 5), target_bounds=(-500, 500), typical=(-200, 200))
    >>> regressor = regressor.fit(X, y)
    >>> regressor.certificate_.private, regressor.coef_.shape, bool(regressor.score(X, y) > 0.8)
    (True, (5,), True)

    """

    _kind = Number
    _target_parameters = ("target_bounds", "typical")

    loss: str = "auto"
    quantile: float = 0.5
    target_bounds: Sequence[float] | None = None
    typical: Sequence[float] | None = None

    def predict(self, X: Any) -> Doubles:
        """Predict the number of each row."""
        margins = self._compute_margins(X)  # first, since it raises NotFittedError
        return self.model_.predict_margins(margins)

    def _make_settings(self, **fixed: Any) -> Settings:
        if self.loss not in LOSSES:
            raise ParameterError(f"loss must be one of {', '.join(LOSSES)}, got {show_value(self.loss)}")
        quantile = check_number(self.quantile, "quantile")
        parameter = quantile if self.loss == "quantile" else None
        return super()._make_settings(loss=self.loss, loss_parameter=parameter, **fixed)

    def _declare_target(self, y: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        if self.target_bounds is not None:
            return {"bounds": self.target_bounds, "typical": self.typical}, ()
        return {"bounds": _read_bounds(y), "typical": self.typical}, (BOUNDS_REASON,)

    def _adapt_target(self, target: Target) -> Number:
        if not isinstance(target, Number):
            raise ParameterError(
                f"the schema must declare a target, the number to predict, got {target.describe()}",
                hint="PrivateLogisticRegression predicts classes",
            )
        return target

    def _set_attributes(self, coefficients: Doubles, constants: Doubles) -> None:
        center, scale = self.model_.schema.target.find_score_units(self.certificate_.problem.loss)
        self.coef_, self.intercept_ = scale * coefficients[0], center + scale * float(constants[0])


def _read_bounds(y: Any) -> tuple[float, float]:
    """Read the bounds of the target from y, which no guarantee covers."""
    numbers = python_to_arrow.to_arrow_column(np.asarray(y).ravel(), "number").to_numpy(zero_copy_only=False)
    validation.assert_all_finite(numbers, input_name="y")
    if not len(numbers):
        raise DataError("y must have at least one number, got none")
    low, high = float(numbers.min()), float(numbers.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)
