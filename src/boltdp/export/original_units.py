"""The weights of a model in the original units of its columns, and as scikit-learn estimators."""

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
    """Return the weights for the encoded row before its projection: <w, P'x> = <Pw, x>."""
    matrix = schema.encoding.matrix
    return weights if matrix is None else weights @ matrix.T


def raw_weights(schema: Schema, weights: Doubles) -> tuple[Doubles, Doubles]:
    """Return the coefficients in the original units of the columns, and the intercept, for each weight vector.

    The features are those of `schema.feature_names` without the projection and the intercept: numbers in original
    units, and 0 or 1 for each category.
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
    """Convert a model to a scikit-learn estimator; see `Model.to_sklearn`."""
    require("sklearn", "a model of scikit-learn")
    # Imported here because importing scikit-learn is slow.
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

    def set_weights(estimator: Any, rows: slice, classes: npt.NDArray[Any]) -> Any:
        estimator.coef_, estimator.intercept_, estimator.classes_ = coefficients[rows], constants[rows], classes
        return set_names(estimator)

    def set_names(estimator: Any) -> Any:
        estimator.n_features_in_ = coefficients.shape[1]
        # The entries of a vector have no names, so X must be an array.
        if not any(column.rule.reads_lists for column in schema.columns):
            names = replace(schema, projection=None, intercept=False).feature_names
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return estimator

    every = slice(None)
    if not loss.probabilistic:
        return set_weights(LinearSVC(), every, classes)
    estimator = LogisticRegression() if loss.softmax else LinkedLogisticRegression(loss)
    if loss.vectors > 1 or model.schema.target.as_classes().is_binary:
        plain = set_weights(estimator, every, classes)
        if not model.cut:
            return plain
        # FixedThresholdClassifier predicts the second class at the threshold too, the model only above it.
        above = float(np.nextafter(model.cut, math.inf))
        decided = FixedThresholdClassifier(FrozenEstimator(plain), threshold=above, response_method="decision_function")
        decided.estimator_ = decided.estimator
        return decided
    # Fitted on dummy rows to set its classes, which it sorts; then its estimators are replaced.
    ensemble = OneVsRestClassifier(LogisticRegression()).fit(np.zeros((len(classes), coefficients.shape[1])), classes)
    ensemble.estimators_ = [
        set_weights(clone(estimator), slice(index, index + 1), np.array([0, 1])) for index in np.argsort(classes)
    ]
    return set_names(ensemble)
