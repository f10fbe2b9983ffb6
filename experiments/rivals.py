"""Other people's ways to a private classifier, each at its best: from rows and a budget to answers for testing rows.

A row more or less (add/remove) is half of what boltdp guarantees about, a row replaced by any other. Each rival below
says which of the two it is calibrated for. Those that are linear get the private centring that "auto" does, for the
same share of the budget. Settings were chosen on training rows of Adult (and of Covertype, where said) and on nothing
else: `python -m experiments.rivals_tuning` repeats that.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from boltdp._array_types import Doubles, Integers
from boltdp.privacy.budget import Budget
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.standardize import plan_standardization
from boltdp.workflows.train import train
from experiments.tasks import Answer, Task

Rng: TypeAlias = np.random.Generator
Rival: TypeAlias = Callable[..., Answer]

#: From this size on, the numbers of a column are cut at even places of their logarithms.
WIDE = 10_000.0


def gaussian_deviation(epsilon: float, delta: float) -> float:
    """The deviation of Gaussian noise for an L2 sensitivity of 1, by the exact formula of Balle and Wang (2018).

    >>> round(gaussian_deviation(1.0, 1e-5), 2)
    3.73
    """

    def excess(log_deviation: float) -> float:
        deviation = math.exp(log_deviation)
        shift, slope = 0.5 / deviation, epsilon * deviation
        return float(ndtr(shift - slope) - math.exp(epsilon + log_ndtr(-shift - slope)) - delta)

    return math.exp(brentq(excess, math.log(1e-3), math.log(1e7), xtol=1e-12))


def clipped_gradient_descent(
    task: Task, budget: Budget, rng: Rng, *, clip: float, length: float, scans: int = 100, momentum: float = 0.9
) -> Answer:
    """Full gradients of clipped rows, with Gaussian noise in each; for delta > 0 and one row replaced.

    Replacing a row moves a sum of gradients of length at most C by 2C, so that T sums with noise of deviation
    2*C*sigma*sqrt(T), together with the means that rows are centred by, are one Gaussian release of the whole budget.
    The steps along gradients in units of C add up to length/nu, where nu = 2*sigma*sqrt((K-1)d)/m is the noise per row.
    """
    schema, sigma = task.gaussian_centring(budget)
    trained, labels, tested = task.unit_parts(schema)
    rows, dims = trained.shape
    noise_a_row = 2.0 * sigma * math.sqrt((task.classes - 1) * dims) / rows
    step = length / noise_a_row / scans / clip
    deviation = 2.0 * clip * sigma * math.sqrt(scans) / rows
    single = trained.astype(np.float32)
    gradient = _two_classes(single, labels, clip) if task.classes == 2 else _many_classes(single, labels, clip)
    weights = np.zeros((1 if task.classes == 2 else task.classes, dims))
    weights = descend(gradient, weights, rng, step=step, deviation=deviation, scans=scans, momentum=momentum)
    scores = tested @ weights.T
    return Answer.of_scores(scores[:, 0] if task.classes == 2 else scores)


def descend(
    gradient: Callable[[Doubles], Doubles],
    weights: Doubles,
    rng: Rng,
    *,
    step: float,
    deviation: float,
    scans: int,
    momentum: float,
) -> Doubles:
    """The weights after steps along noisy gradients."""
    velocity = np.zeros_like(weights)
    for _ in range(scans):
        noise = rng.normal(0.0, deviation, weights.shape)
        if weights.ndim == 2 and len(weights) > 1:
            # Gradients of all classes add up to 0: noise in that direction can be left out.
            noise -= noise.mean(axis=0)
        velocity = momentum * velocity + (1.0 - momentum) * (gradient(weights) + noise)
        weights = weights - step * velocity
    return weights


def _two_classes(rows: Any, labels: Integers, clip: float) -> Callable[[Doubles], Doubles]:
    """The mean of the clipped gradients of the logistic loss."""
    signs = np.where(labels == 1, 1.0, -1.0).astype(np.float32)
    most = np.float32(clip) / np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), np.float32(1e-9))

    def gradient(weights: Doubles) -> Doubles:
        margins = signs * (rows @ weights[0].astype(np.float32))
        slopes = np.minimum(1.0 / (1.0 + np.exp(np.clip(margins, -80.0, 80.0))), most)
        mean: Doubles = (-(signs * slopes) @ rows).astype(np.float64)[None, :] / len(rows)
        return mean

    return gradient


def _many_classes(rows: Any, labels: Integers, clip: float) -> Callable[[Doubles], Doubles]:
    """The mean of the clipped gradients of the multinomial loss."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    truth = np.arange(len(rows)), labels

    def gradient(weights: Doubles) -> Doubles:
        scores = rows @ weights.T.astype(np.float32)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        odds[truth] -= 1.0
        lengths = norms * np.sqrt(np.einsum("ij,ij->i", odds, odds))
        odds *= np.minimum(1.0, np.float32(clip) / np.maximum(lengths, np.float32(1e-9)))[:, None]
        mean: Doubles = (odds.T @ rows).astype(np.float64) / len(rows)
        return mean

    return gradient


def naive_bayes(task: Task, budget: Budget, rng: Rng, *, bins: int, floor: float, wide: float = WIDE) -> Answer:
    """Naive Bayes from noisy counts of each class in each bin of each column; for one row replaced.

    Replacing a row takes 1 from one count of each of p columns and adds 1 to another: an L1 distance of 2p, an L2
    distance of sqrt(2p). All counts are one release with Laplace noise of scale 2p/epsilon or, with a delta, Gaussian
    noise of deviation sigma*sqrt(2p). Counts below `floor` deviations of the noise, and below 1, are raised to that.
    """
    trained, tested = (list(cut(task, part, bins, wide)) for part in (0, 1))
    columns, classes = len(trained), task.classes
    if budget.delta == 0:
        scale = 2.0 * columns / budget.epsilon
        deviation, draw = math.sqrt(2.0) * scale, rng.laplace
    else:
        deviation = scale = gaussian_deviation(budget.epsilon, budget.delta) * math.sqrt(2.0 * columns)
        draw = rng.normal
    labels = task.parts[0].labels
    totals = np.zeros(classes)
    evidence = np.zeros((len(tested[0][0]), classes))
    for (places, width), (seen, _) in zip(trained, tested, strict=True):
        counts = counts_of(labels, places, classes=classes, bins=width)
        noisy = counts + draw(0.0, scale, counts.shape)
        totals += noisy.sum(axis=1) / columns
        kept = np.maximum(noisy, max(1.0, floor * deviation))
        evidence += np.log(kept / kept.sum(axis=1, keepdims=True)).T[seen]
    evidence += np.log(np.maximum(totals, 1.0))
    return Answer.of_scores(evidence[:, 1] - evidence[:, 0] if classes == 2 else evidence)


def counts_of(labels: Integers, places: Integers, *, classes: int, bins: int) -> Integers:
    """How many rows of each class are in each bin.

    >>> counts_of(np.array([0, 1, 1]), np.array([2, 0, 0]), classes=2, bins=3).tolist()
    [[0, 0, 1], [2, 0, 0]]
    """
    counts: Integers = np.bincount(labels * bins + places, minlength=classes * bins).reshape(classes, bins)
    return counts


def cut(task: Task, part: int, bins: int, wide: float) -> Iterator[tuple[Integers, int]]:
    """For each column of the rows of a part, the bin of each row and the number of bins: all from public bounds.

    A category is a bin, and all that is none of them one more. The entries of a vector are columns. They are as long
    as sqrt(d) times a row's length at most, and hardly ever outside of 3/sqrt(d): the outermost bins begin there.
    """
    features = task.parts[part].features
    for span, categories, low, high in task.spans():
        block = features[:, span]
        if categories:
            places = np.where(block.any(axis=1), np.argmax(block, axis=1), block.shape[1])
            yield places.astype(np.int64), block.shape[1] + 1
            continue
        for entry in block.T:
            if block.shape[1] > 1:
                numbers, (first, last) = entry.astype(np.float64), np.array([-3.0, 3.0]) / math.sqrt(block.shape[1])
            else:
                numbers, (first, last) = widened(raw(entry, low, high), low, high, wide=wide)
            places = np.floor((numbers - first) / (last - first) * bins)
            yield np.clip(places, 0, bins - 1).astype(np.int64), bins


def raw(entry: Any, low: float, high: float) -> Doubles:
    """Numbers in their own unit, from features between -1 and 1; what single precision took is rounded away."""
    grain = (high - low) * 1e-6
    numbers: Doubles = np.round(((low + high) / 2.0 + entry.astype(np.float64) * (high - low) / 2.0) / grain) * grain
    return numbers


def widened(numbers: Doubles, low: float, high: float, *, wide: float) -> tuple[Doubles, tuple[float, float]]:
    """Numbers of a wide range by their logarithms, of both signs, and the bounds of these; others as they are.

    >>> widened(np.array([0.0, 999.0]), 0, 9999, wide=1000.0)[0].round(2)
    array([0.  , 6.91])
    """
    if max(abs(low), abs(high)) < wide:
        return numbers, (low, high)

    def stretched(values: Any) -> Any:
        return np.sign(values) * np.log1p(np.abs(values))

    return stretched(numbers), (float(stretched(low)), float(stretched(high)))


def explainable_boosting(task: Task, budget: Budget, rng: Rng, *, wide: float = math.inf, **settings: Any) -> Answer:
    """DP-EBM of the package `interpret`, for delta > 0 and two classes.

    It does not say which neighbours it protects; its noise is for sums that one row changes by 1, which is a row more
    or less. So at the same epsilon it guarantees less than the others here: replacing a row can change a sum by 2.
    """
    import pandas as pd
    from interpret.privacy import DPExplainableBoostingClassifier

    del rng  # it draws its noise itself
    bounds: dict[str, tuple[float, float]] = {}

    def frame(part: int) -> pd.DataFrame:
        columns: dict[str, Any] = {}
        for column, (span, categories, low, high) in zip(task.schema.columns, task.spans(), strict=True):
            block = task.parts[part].features[:, span]
            if categories:
                places = np.where(block.any(axis=1), np.argmax(block, axis=1), block.shape[1])
                columns[column.name] = places.astype(str).astype(object)
            else:
                columns[column.name], bounds[column.name] = widened(raw(block[:, 0], low, high), low, high, wide=wide)
        return pd.DataFrame(columns)

    types = ["nominal" if categories else "continuous" for _, categories, _, _ in task.spans()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = DPExplainableBoostingClassifier(
            feature_types=types,
            privacy_bounds=bounds,
            epsilon=budget.epsilon,
            delta=budget.delta,
            n_jobs=1,
            **settings,
        )
        trained = frame(0)
        model.fit(trained, task.parts[0].labels)
        return Answer.of_probabilities(np.asarray(model.predict_proba(frame(1)), np.float64))


def diffprivlib_regression(task: Task, budget: Budget, rng: Rng, *, strength: float | None = None) -> Answer:
    """The logistic regression of diffprivlib (Chaudhuri, Monteleoni and Sarwate 2011), pure, for one row replaced.

    Many classes are one-vs-all, with an equal share of epsilon each. C, the inverse of the regularization, is its
    default of 1, or epsilon/strength.
    """
    fit = diffprivlib("logistic_regression")._logistic_regression_path
    schema, left = task.centring(budget)
    trained, labels, tested = task.unit_parts(schema)
    targets = [1] if task.classes == 2 else list(range(task.classes))
    epsilon = left.epsilon / len(targets)
    inverse = 1.0 if strength is None else epsilon / strength
    margins = []
    for target in targets:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (weights,), _, _ = fit(
                trained,
                labels,
                epsilon=epsilon,
                data_norm=1.0,
                pos_class=target,
                Cs=[inverse],
                fit_intercept=False,
                max_iter=200,
                random_state=int(rng.integers(2**31)),
                check_input=False,
            )
        margins.append(tested @ weights)
    if task.classes == 2:
        return Answer.of_scores(margins[0])
    # As scikit-learn does for one-vs-rest.
    odds = 1.0 / (1.0 + np.exp(-np.clip(np.stack(margins, axis=1), -700.0, 700.0)))
    odds[odds.sum(axis=1) == 0] = 1.0
    return Answer.of_probabilities(odds / odds.sum(axis=1, keepdims=True))


def diffprivlib_bayes(task: Task, budget: Budget, rng: Rng, *, centred: bool) -> Answer:
    """The Gaussian naive Bayes of diffprivlib, pure. Its counts and sums are calibrated for a row more or less."""
    model_of = diffprivlib("naive_bayes").GaussianNB
    schema, left = task.centring(budget) if centred else (task.schema, budget)
    trained, labels, tested = task.unit_parts(schema)
    if schema.intercept:
        trained, tested = trained[:, :-1], tested[:, :-1]
    lows, highs = feature_bounds(schema)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_of(epsilon=left.epsilon, bounds=(lows, highs), random_state=int(rng.integers(2**31)))
        model.fit(trained, labels)
        likelihoods = np.asarray(model.predict_joint_log_proba(tested), np.float64)
    return Answer.of_scores(likelihoods[:, 1] - likelihoods[:, 0] if task.classes == 2 else likelihoods)


def feature_bounds(schema: Any) -> tuple[Doubles, Doubles]:
    """Between which numbers the features of a row of length at most 1 are, the intercept left out."""
    ends = []
    for scaled in schema.encoding.scaled_rules:
        column, (middles, factors) = scaled.rule, scaled.original_units
        low, high = getattr(column, "low", 0.0), getattr(column, "high", 1.0)
        ends.append(np.clip([(low - middles) * factors, (high - middles) * factors], -1.0, 1.0))
    lows, highs = np.concatenate(ends, axis=1)
    return lows, highs


def diffprivlib(module: str) -> Any:
    """A module of diffprivlib's models.

    Version 0.6.6 cannot be imported beside recent versions of scikit-learn, because of its trees, and its logistic
    regression cannot be constructed; what these two models compute works.
    """
    from importlib import import_module

    trees = "diffprivlib.models.forest"
    if trees not in sys.modules:
        absent = ModuleType(trees)
        vars(absent).update(RandomForestClassifier=None, DecisionTreeClassifier=None)
        sys.modules[trees] = absent
    return import_module(f"diffprivlib.models.{module}")


def installed(package: str | None) -> bool:
    """Whether a rival's package is there.

    >>> installed(None), installed("no_such_package")
    (True, False)
    """
    return package is None or find_spec(package) is not None


def centred_settings(task: Task, budget: Budget, **settings: Any) -> Settings:
    """Settings of an algorithm of boltdp with the private centring that "auto" would do for this budget, if any."""
    common = Settings(epsilon=budget.epsilon, delta=budget.delta)
    centred = plan_standardization(common, task.schema, rows=task.rows) is not None
    return replace(common, standardize="private" if centred else "none", **settings)


def white_box(
    task: Task,
    budget: Budget,
    rng: Rng,
    *,
    algorithm: str,
    batches: int | None,
    passes: int,
    stretch: float,
    radius: float | None = None,
    loss: str = "auto",
) -> Answer:
    """SCS13, BST14 or DP-SGD as boltdp has them, for one row replaced: as many batches a pass, or batches of 50 rows.

    The step is constant: the one that boltdp would choose by public numbers, times `stretch`.
    """
    del rng  # boltdp draws its noise itself
    size = 50 if batches is None else max(1, round(task.rows / batches))
    settings = centred_settings(
        task,
        budget,
        algorithm=algorithm,
        passes=passes,
        batch_size=size,
        schedule="constant",
        radius=radius,
        loss=loss,
    )
    planned = make_plan(task.schema, task.rows, settings).certificate.problem
    assert isinstance(planned, Recipe)
    step = min(stretch * float(planned.schedule.compute_steps([1])[0]), 1.0 / planned.beta)
    model = train(task.training, task.schema, replace(settings, step_size=step))
    return Answer.of_model(model, task.testing)
