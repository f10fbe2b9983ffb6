"""scikit-learn classifiers over `train`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, clone
from sklearn.utils import validation
from sklearn.utils.multiclass import check_classification_targets

from boltdp._array_types import Doubles
from boltdp.errors import DataError, ParameterError, check_number, describe_argument
from boltdp.estimators._base import PrivateEstimator, add_parameters
from boltdp.schema.schema import Classes, Schema
from boltdp.schema.target import Target, Threshold
from boltdp.settings import Settings

#: The reason why a model is not private if its classes were not declared.
CLASSES_REASON = "the classes were read from the labels, which tells something about single rows; declare classes"


class _PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """The base of the classifiers."""

    _kind = Classes
    _target_parameters = ("classes",)

    classes: Sequence[Any] | npt.NDArray[Any] | None = None
    threshold: Threshold | None = None

    def _declare_target(self, y: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        if self.classes is None:
            return {"classes": list(_read_classes(y))}, (CLASSES_REASON,)
        return {"classes": list(_sort_classes(self.classes))}, ()

    def _adapt_target(self, target: Target) -> Classes:
        return target.require_classes().sort_classes()

    def _check_schema(self, schema: Schema) -> None:
        if self.threshold is not None:
            # Without the random state, so that nothing is drawn from it.
            settings = clone(self).set_params(random_state=None)._make_settings()
            settings.check_threshold(self.threshold, schema.target)

    def _set_attributes(self, coefficients: Doubles, constants: Doubles) -> None:
        self.model_ = self.model_.with_threshold(self.threshold)
        self.classes_ = np.array(self.model_.classes)
        self.coef_, self.intercept_ = coefficients, constants

    def decision_function(self, X: Any) -> Doubles:
        """Compute the margin of each row: one number for two classes, otherwise one per class.

        The second of two classes is predicted above `model_.margin_threshold`, which is 0 without a threshold.
        """
        margins = self._compute_margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict the class of each row."""
        margins = self._compute_margins(X)  # first, since it raises NotFittedError
        predicted: npt.NDArray[Any] = self.classes_[self.model_.predict_indices(margins)]
        return predicted


@add_parameters()
class PrivateLogisticRegression(_PrivateClassifier):
    """Logistic regression with differential privacy; multinomial for more than two classes.

    The classes, and the bounds of the features or a clip norm, must be declared from public knowledge.
    `certificate_` states the guarantee, which protects each row; the number of rows is public.
    Missing and infinite values, and labels outside the declared classes, are neutral and never an error.
    X may be a data frame of pandas or Polars or an Arrow table, whose columns are known by name, an array, or a sparse
    matrix of SciPy, which is converted to dense rows in batches; these are written to a file if they are large.

    Parameters
    ----------
    epsilon : float or None, default=1.0
        The privacy budget. None trains without noise and without privacy.
    classes : sequence, optional
        All possible labels. If they are not declared, they are read from y, and the model is not private.
    bounds : (low, high) or dict, optional
        Numbers, or one for each feature; or a pair for each column of a data frame, by name, or its entry in a schema
        file, such as {"bounds": (0, 110), "monotone": "increasing"}. Features are clipped to them and scaled to
        [-1, 1].
    categories : dict, optional
        All possible values of each categorical column of a data frame, by name. With bounds by name or categories,
        the features are the columns that they name and booleans; a warning lists the other columns.
    timestamps : dict, optional
        The parts of timestamp columns to use as categories, by name: "hour", "weekday", "month", "day".
    curves : int or dict, optional
        The number of step functions to add for each feature, evenly spaced between its bounds; or, by column name
        (`"x0"`, `"x1"`, ... in an array), the number or the places of the steps. A step is 1 from its place on, and 0
        below.
    pairs : sequence of pairs of str, optional
        Names of two columns each (`"x0"`, `"x1"`, ... in an array): what one does may depend on the other.
    clip_norm : float, optional
        Rows are clipped to this L2 norm: those of X, or, with bounds, the scaled features and steps. Without bounds
        each feature is clipped to [-clip_norm, clip_norm] first. With neither, it is 1, with a warning.
    schema : Schema, path of a TOML file or dict with the same entries, optional
        Declares classes, columns and their bounds or categories, instead of the parameters above and
        `fit_intercept`; X must then be a data frame. A label column in X is not used.
    fit_intercept : bool, default=True
        Whether to add a constant feature. Its weight gets noise like every other.
    threshold : float, "prior" or None, default=None
        Predict the second of two classes if its probability exceeds this; None is 0.5, and "prior" is the share of that
        class in the schema. It costs no privacy, unless it was chosen by looking at private rows.
    ledger : path, URI or Ledger, optional
        The ledger to charge for each fit, before a row is read: a file, or a PostgreSQL database. See `boltdp ledger`.
    dataset : str, optional
        The name of the dataset in the ledger.
    blocks : sequence of str, optional
        The blocks of the dataset that the rows belong to; by default, all.
    random_state : int, RandomState or None, default=None
        None uses the random numbers of the operating system. Anything else makes order and noise reproducible, for
        tests: the model is then not private.
    SETTINGS

    Attributes
    ----------
    classes_ : ndarray
        The classes, sorted.
    coef_, intercept_ : ndarrays
        The model in the units of X, with 0 or 1 for each category and each step. `X @ coef_.T + intercept_` are the
        margins of rows within the bounds and the clip norm; margins of rows that are clipped have the same sign. Pairs
        of columns have no coefficients in these units, and are left out.
    certificate_ : Certificate
        The guarantee, and the numbers that verify it. If epsilon is given and the model is not private, a
        PrivacyWarning is issued too.
    model_ : Model
        The released model, which can be saved and used without scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(20_000, n_features=5, random_state=0)
    >>> classifier = PrivateLogisticRegression(epsilon=1.0, classes=[0, 1], bounds=(-5, 5)).fit(X, y)
    >>> classifier.certificate_.private, classifier.coef_.shape
    (True, (1, 5))

    """

    def predict_proba(self, X: Any) -> Doubles:
        """Compute the probability of each class for each row."""
        margins = self._compute_margins(X)  # first, since it raises NotFittedError
        return self.model_.probabilities(margins)

    def predict_log_proba(self, X: Any) -> Doubles:
        """Compute the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            logarithms: Doubles = np.log(self.predict_proba(X))
        return logarithms


@add_parameters()
class PrivateHuberSVM(_PrivateClassifier):
    """Linear support vector machine with a Huber loss and differential privacy, of all classes at once.

    Parameters and attributes are those of PrivateLogisticRegression. There are no probabilities, so `threshold` raises
    an error.

    Parameters
    ----------
    width : float, default=0.1
        Margins within this distance of 1 get the smooth part of the loss.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(20_000, n_features=5, random_state=0)
    >>> classifier = PrivateHuberSVM(epsilon=1.0, regularization=1e-3, classes=[0, 1], bounds=(-5, 5)).fit(X, y)
    >>> classifier.certificate_.problem.loss
    HuberSVM(width=0.1)

    """

    width: float = 0.1

    def _make_settings(self, **fixed: Any) -> Settings:
        return super()._make_settings(loss="huber", loss_parameter=check_number(self.width, "width"), **fixed)


def _sort_classes(classes: Any) -> npt.NDArray[Any]:
    """Sort the declared classes, as scikit-learn does: its metrics treat the last class as positive."""
    try:
        distinct: npt.NDArray[Any] = np.unique(np.asarray(classes))
    except (TypeError, ValueError):
        # No value is quoted: they may be the labels of all rows, by mistake.
        raise ParameterError(f"classes must be texts, numbers or booleans, got {describe_argument(classes)}") from None
    return distinct


def _read_classes(y: Any) -> npt.NDArray[Any]:
    """Read the classes from y, which no guarantee covers."""
    y = np.asarray(y)
    if y.dtype.kind not in "fiubOU":
        raise DataError(f"y must have texts, numbers or booleans, its type is {str(y.dtype)!r}")
    if y.dtype.kind == "f":
        validation.assert_all_finite(y, input_name="y")
    try:
        check_classification_targets(y)
        distinct: npt.NDArray[Any] = np.unique(y)
    except TypeError:
        raise DataError("y must have labels of one type and none missing, unless classes are declared") from None
    if len(distinct) < 2:
        raise DataError(f"y must have at least 2 classes, got {len(distinct)} class")
    return distinct
