"""The callers of `fit`: pipelines, searches and other estimators around a private one, which may see private rows.

The rule: the guarantee holds for a fit by scikit-learn's Pipeline whose earlier steps learn nothing from rows
(`STATELESS_TRANSFORMERS`), and by FixedThresholdClassifier, which only fits once on all rows. Any other estimator or
function of scikit-learn around a fit, and any step that is not known, makes the model non-private.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import FeatureUnion, Pipeline

#: The reason why a model is not private if `GridSearchCV`, `CalibratedClassifierCV` or the like fitted it.
SEARCH_REASON = (
    "it was fitted inside a search or a cross-validation (calibration is one), and the guarantee covers neither "
    "scores of private rows nor a choice by them; use PrivateGridSearch, or search on public rows"
)
#: The reason if another estimator fitted it, such as BaggingClassifier or OneVsRestClassifier.
WRAPPER_REASON = (
    "it was fitted by another estimator, {}, and the guarantee does not cover what that does with the rows; "
    "fit it by itself"
)
#: The reason if it was fitted in a pipeline after steps that learn from rows, such as StandardScaler.
TRANSFORMER_REASON = (
    "it was fitted in a pipeline after {}, and the guarantee does not cover what that learned from the rows; declare "
    "bounds and categories instead, by which the estimator scales and encodes rows itself"
)
#: Transformers of scikit-learn whose `fit` learns nothing from rows. The function of a FunctionTransformer must compute
#: each row from itself alone; a FrozenEstimator must have been fitted on public rows.
STATELESS_TRANSFORMERS = frozenset(
    {
        "Binarizer",
        "FeatureHasher",
        "FrozenEstimator",
        "FunctionTransformer",
        "GaussianRandomProjection",
        "HashingVectorizer",
        "Normalizer",
        "PolynomialFeatures",
        "SparseRandomProjection",
    }
)
#: Modules of scikit-learn whose functions may be around a fit.
_NEUTRAL = ("sklearn.base", "sklearn.callback", "sklearn.pipeline", "sklearn.utils")
_SEARCHES = ("sklearn.model_selection", "sklearn.calibration")
#: Names that transformers which learn from rows, or a ColumnTransformer of them, give to columns.
_MADE_NAME = re.compile(
    r"((standard|minmax|maxabs|robust)scaler|(quantile|power|spline)transformer|(onehot|ordinal|target)encoder"
    r"|kbinsdiscretizer|(simple|knn|iterative)imputer|(count|tfidf)vectorizer)__.|(\w*pca|truncatedsvd|nmf|fastica)\d+$"
)


def list_outside_reasons() -> tuple[str, ...]:
    """Return the reasons, if any, why callers of the present `fit` make the model non-private."""
    reasons: list[str] = []
    frame = sys._getframe().f_back
    while frame is not None:
        reasons += _explain_caller(frame)
        frame = frame.f_back
    return tuple(dict.fromkeys(reasons))


def find_transformer_name(names: Iterable[str]) -> str | None:
    """Return the first column name that a transformer of scikit-learn made, which may have learned from rows, or None.

    A ColumnTransformer or FeatureUnion puts the name of a step, which may be any, before the name of every column.
    """
    listed = [*names]
    made = next((name for name in listed if _MADE_NAME.match(name)), None)
    prefixed = all(re.match(r"[^_].*?__.", name) for name in listed)
    return listed[0] if made is None and listed and prefixed else made


def _explain_caller(frame: FrameType) -> Iterator[str]:
    """Yield the reasons why an estimator or a search around `fit` makes the model non-private."""
    module: str = frame.f_globals.get("__name__") or ""
    around: Any = frame.f_locals.get("self")
    ours = any(cls.__module__.startswith("boltdp.estimators.") for cls in type(around).__mro__)
    if ours or type(around) is FixedThresholdClassifier:
        return
    if type(around) is Pipeline:
        learning = [*dict.fromkeys(_list_learning_steps(step for _, step in around.steps[:-1]))]
        if learning:
            yield TRANSFORMER_REASON.format(", ".join(learning))
    elif module.startswith(_SEARCHES):
        yield SEARCH_REASON
    elif isinstance(around, BaseEstimator):
        yield WRAPPER_REASON.format(type(around).__name__)
    elif module.startswith("sklearn.") and not module.startswith(_NEUTRAL):
        yield WRAPPER_REASON.format(f"one of {'.'.join(module.split('.')[:2])}")  # in a process of its own


def _list_learning_steps(steps: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the pipeline steps that may learn from rows, also of those inside others."""
    for step in steps:
        kind = type(step)
        if kind is Pipeline:
            yield from _list_learning_steps(one for _, one in step.steps)
        elif kind is FeatureUnion:
            yield from _list_learning_steps(one for _, one in step.transformer_list)
        elif kind is ColumnTransformer:
            yield from _list_learning_steps(one for _, one, _ in step.transformers)
            yield from _list_learning_steps([step.remainder])
            if any(callable(of) and type(of) is not make_column_selector for _, _, of in step.transformers):
                yield "ColumnTransformer with columns by a function"
        elif kind.__module__.startswith("sklearn.") and kind.__name__ in STATELESS_TRANSFORMERS:
            continue
        elif step is not None and not isinstance(step, str):
            yield kind.__name__
