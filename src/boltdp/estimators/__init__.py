"""scikit-learn's idiom, over `train` and `tune`."""

from boltdp.estimators.classifiers import PrivateHuberSVM, PrivateLogisticRegression
from boltdp.estimators.search import PrivateGridSearch

__all__ = ["PrivateGridSearch", "PrivateHuberSVM", "PrivateLogisticRegression"]
