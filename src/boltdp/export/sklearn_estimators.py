"""A model as scikit-learn estimators. Importing scikit-learn is slow, so this module is imported where it is used."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.export.original_units import compute_norms, convert_to_original_units
from boltdp.losses import Loss
from boltdp.model import Model
from boltdp.schema.target import Target


class LinkedLogisticRegression(LogisticRegression):  # type: ignore[misc]
    """A linear binary classifier whose probabilities follow from the link of its loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def predict_proba(self, X: Any) -> Doubles:
        """Compute the probabilities of both classes from the margins, by the link of the loss."""
        second = self.loss.compute_probabilities(self.decision_function(X)[:, np.newaxis])
        assert second is not None
        return np.hstack([1.0 - second, second])


class CorrectedLogisticRegression(LogisticRegression):  # type: ignore[misc]
    """A linear classifier whose scores are corrected for gradients that were clipped in training, by its model.

    Other than scikit-learn's, it shortens rows longer than the clip norm, as the model does: it knows their norms.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def decision_function(self, X: Any) -> Doubles:
        """Compute the corrected margins of each row."""
        plain = super().decision_function(X)
        norms = compute_norms(self.model.scoring[0], np.asarray(X, np.float64))
        scores = plain.reshape(len(plain), -1) / np.maximum(norms, 1.0)[:, np.newaxis]
        return self.model.correct_scores(scores, np.minimum(norms, 1.0)).reshape(plain.shape)


class LinkedRegression(LinearRegression):  # type: ignore[misc]
    """A linear model whose scores predict a number by the link of its loss, between the bounds of the target."""

    def __init__(self, target: Target, loss: Loss) -> None:
        super().__init__()
        self.target = target
        self.loss = loss

    def predict(self, X: Any) -> Doubles:
        """Compute the prediction of each row."""
        return self.target.predict(super().predict(X)[:, np.newaxis], 0.0, self.loss)


def to_sklearn(model: Model) -> Any:
    """Convert a model to a scikit-learn estimator; see `Model.to_sklearn`."""
    schema = model.schema
    if schema.pairs:
        raise ParameterError(
            "a scikit-learn estimator must be of a model without pairs of columns, whose features it does not have",
            hint="predict() and to_sql() have them",
        )
    coefficients, constants = convert_to_original_units(schema, model.weights)
    loss = model.certificate.problem.loss

    def set_weights(estimator: Any, rows: slice, classes: npt.NDArray[Any]) -> Any:
        estimator.coef_, estimator.intercept_, estimator.classes_ = coefficients[rows], constants[rows], classes
        return set_names(estimator)

    def set_names(estimator: Any) -> Any:
        estimator.n_features_in_ = coefficients.shape[1]
        # The entries of a vector have no names, so X must be an array.
        if not any(column.encoding_rule.reads_lists for column in schema.columns):
            names = replace(schema, projection=None, intercept=False).feature_names
            estimator.feature_names_in_ = np.array(names, dtype=object)
        return estimator

    if schema.target.class_count == 0:
        estimator = LinkedRegression(schema.target, loss)
        estimator.coef_, estimator.intercept_ = coefficients[0], float(constants[0])
        return set_names(estimator)
    every, classes = slice(None), np.array(model.classes)
    if not loss.probabilistic:
        return set_weights(LinearSVC(), every, classes)
    estimator = LogisticRegression() if loss.softmax else LinkedLogisticRegression(loss)
    if model.link is not None:
        estimator = CorrectedLogisticRegression(model)
    if loss.vector_count > 1 or model.schema.target.require_classes().is_binary:
        plain = set_weights(estimator, every, classes)
        if not model.margin_threshold:
            return plain
        # FixedThresholdClassifier predicts the second class at the threshold too, the model only above it.
        above = float(np.nextafter(model.margin_threshold, math.inf))
        decided = FixedThresholdClassifier(FrozenEstimator(plain), threshold=above, response_method="decision_function")
        decided.estimator_ = decided.estimator
        return decided
    # Fitted on dummy rows to set its classes, which it sorts; then its estimators are replaced.
    ensemble = OneVsRestClassifier(LogisticRegression()).fit(np.zeros((len(classes), coefficients.shape[1])), classes)
    ensemble.estimators_ = [
        set_weights(clone(estimator), slice(index, index + 1), np.array([0, 1])) for index in np.argsort(classes)
    ]
    return set_names(ensemble)
