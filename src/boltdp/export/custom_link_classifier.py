"""A scikit-learn classifier with a link function other than the logistic function."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from boltdp._arrays import Doubles
from boltdp.losses import Loss


class LinkedLogisticRegression(LogisticRegression):  # type: ignore[misc]
    """A linear binary classifier whose probabilities follow from the link of its loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def predict_proba(self, X: Any) -> Doubles:
        second = self.loss.probabilities(self.decision_function(X)[:, np.newaxis])
        assert second is not None
        return np.hstack([1.0 - second, second])
