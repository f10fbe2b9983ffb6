"""scikit-learn estimators over `train` and `tune`."""

from boltdp.errors import require

require("sklearn", "an estimator")

from boltdp.estimators.classifiers import PrivateHuberSVM, PrivateLogisticRegression  # noqa: E402
from boltdp.estimators.regressors import PrivateRegressor  # noqa: E402
from boltdp.estimators.search import PrivateGridSearch  # noqa: E402

__all__ = ["PrivateGridSearch", "PrivateHuberSVM", "PrivateLogisticRegression", "PrivateRegressor"]
