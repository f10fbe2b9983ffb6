"""What the weights of a model say about the columns themselves: for SQL and for scikit-learn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from boltdp._arrays import Doubles
from boltdp.errors import require
from boltdp.schema.schema import Schema

if TYPE_CHECKING:
    from boltdp.model import Model


def encoded_weights(schema: Schema, weights: Doubles) -> Doubles:
    """Weights for the encoded row before its projection: <w, P'x> = <Pw, x>.

    >>> from boltdp.schema.schema import Classes, Numeric, Projection
    >>> columns = (Numeric("a", 0, 1), Numeric("b", 0, 1))
    >>> schema = Schema(Classes("y", (0, 1)), columns, projection=Projection(dims=2, seed=1))
    >>> encoded_weights(schema, np.ones((1, 2))).shape
    (1, 3)
    """
    matrix = schema.encoding.matrix
    return weights if matrix is None else weights @ matrix.T


def raw_weights(schema: Schema, weights: Doubles) -> tuple[Doubles, Doubles]:
    """Coefficients of the columns in their own units, and the constant, one for each weight vector.

    The columns are those of `schema.feature_names` without the projection and the intercept: numbers as they are,
    and 0 or 1 for each category.

    >>> from boltdp.schema.schema import Classes, Numeric
    >>> schema = Schema(Classes("y", (0, 1)), (Numeric("age", 0, 100),), intercept=False, clip_norm=1.0)
    >>> raw_weights(schema, np.array([[5.0]]))
    (array([[0.1]]), array([-5.]))
    """
    encoded = encoded_weights(schema, weights)
    units = [scaled.original_units for scaled in schema.encoding.scaled]
    middles, factors = (np.concatenate(parts) for parts in zip(*units, strict=True))
    coefficients = encoded[:, : len(factors)] * factors
    constants = -coefficients @ middles
    if schema.intercept:
        constants += encoded[:, -1] * schema.constant
    return coefficients, constants


def to_sklearn(model: Model) -> Any:
    """The estimator of `Model.to_sklearn`."""
    require("sklearn", "a model of scikit-learn")
    # Only here: importing scikit-learn takes longer than most commands.
    from sklearn.base import clone
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import FixedThresholdClassifier
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    from boltdp.export.custom_link_classifier import LinkedLogisticRegression

    schema, classes = model.schema, np.array(model.classes)
    coefficients, constants = raw_weights(schema, model.weights)
    loss = model.certificate.problem.loss

    def fitted(estimator: Any, rows: slice, classes: npt.NDArray[Any]) -> Any:
        estimator.coef_, estimator.intercept_, estimator.classes_ = coefficients[rows], constants[rows], classes
        return name(estimator)

    def name(estimator: Any) -> Any:
        estimator.n_features_in_ = coefficients.shape[1]
        # The entries of a vector have no names of their own: an array is what fits them.
        if not any(column.rule.reads_lists for column in schema.columns):
            names = replace(schema, projection=None, intercept=False).feature_names
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return estimator

    every = slice(None)
    if not loss.probabilistic:
        return fitted(LinearSVC(), every, classes)
    estimator = LogisticRegression() if loss.softmax else LinkedLogisticRegression(loss)
    if loss.vectors > 1 or model.schema.target.as_classes().is_binary:
        plain = fitted(estimator, every, classes)
        if not model.cut:
            return plain
        # It takes the second class from the threshold on, and the model takes it above.
        above = float(np.nextafter(model.cut, math.inf))
        decided = FixedThresholdClassifier(FrozenEstimator(plain), threshold=above, response_method="decision_function")
        decided.estimator_ = decided.estimator
        return decided
    # Fitted on anything for what the ensemble keeps about its classes, which it sorts; then given the real estimators.
    ensemble = OneVsRestClassifier(LogisticRegression()).fit(np.zeros((len(classes), coefficients.shape[1])), classes)
    ensemble.estimators_ = [
        fitted(clone(estimator), slice(index, index + 1), np.array([0, 1])) for index in np.argsort(classes)
    ]
    return name(ensemble)
