"""Coefficients of a model that was trained for inference: estimates, standard errors, intervals and tests.

All of it follows from released numbers, and costs no privacy. `privacy/events/noisy_matrix.md`, section 4, derives the
estimate and its covariance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from flint import arb

from boltdp._array_types import Doubles
from boltdp.encoding.declared_values import format_value
from boltdp.errors import InferenceError, ParameterError, check_number, join_names
from boltdp.export.original_units import convert_to_original_units
from boltdp.model import Model, compute_penalty_center
from boltdp.privacy.events.noisy_matrix import unflatten_matrix
from boltdp.privacy.mechanisms import Mechanism
from boltdp.schema.columns import Categorical

#: The smallest eigenvalue of the Hessian, in units of the norm of its noise, below which intervals are refused,
MIN_SIGNAL = 0.0
#: and below which they may cover less than they say.
CLEAR_SIGNAL = 1.0
#: The largest root mean square of what correcting the weights for the penalty changes a score by.
MAX_CORRECTION = 0.3
#: Spherical noise has heavier tails than normal noise of its deviation, which is t times the root of D + 1: with this
#: instead of 1 the intervals of 95 % cover what they say.
HEAVY_TAIL = 1.43
#: Eigenvalues below this part of the norm of the noise are raised to it.
EIGENVALUE_FLOOR = 0.5

REFUSED = "the intervals are refused"
REFUSED_HINT = "more rows, fewer columns or a larger epsilon; `boltdp plan --inference` tells what to expect"


@dataclass(frozen=True)
class Coefficient:
    """A line of the table: the estimate of one coefficient, in the units of its column."""

    term: str
    coef: float
    std_err: float
    z: float
    p_value: float
    odds_ratio: float | None  #: exp(coef); None if a number is predicted
    low: float  #: the ends of the interval of the coefficient
    high: float
    noise_share: float  #: the share of the variance that the noise has, from 0 to 1


@dataclass(frozen=True)
class JointTest:
    """The Wald test that all coefficients of a categorical column are 0."""

    column: str
    statistic: float
    degrees: int
    p_value: float


class Coefficients:
    """The estimated coefficients of a model and their covariance, in the units of its columns; the intercept is last.

    Iterating yields a `Coefficient` for each.
    """

    def __init__(self, model: Model, *, level: float = 0.95) -> None:
        self.level = check_number(level, "level")
        if not 0 < self.level < 1:
            raise ParameterError(f"level must be between 0 and 1, got {level}")
        self.model = model
        self._solve()

    def _solve(self) -> None:
        """Correct the weights for the penalty, and find the covariance of the result.

        Proof: noisy_matrix.md 4
        """
        inference, certificate = self.model.inference, self.model.certificate
        if inference is None:
            raise InferenceError(
                "the model has no standard errors: it was not trained for inference",
                hint="train it with --inference, or inference=True",
            )
        problem, weights = certificate.problem, self.model.weights[0]
        hessian, error = unflatten_matrix(inference.hessian), _find_deviation(certificate.matrices[0].noise)
        unit, lowest = error * math.sqrt(2.0 * problem.dims), float(np.linalg.eigvalsh(hessian)[0])
        #: The smallest eigenvalue of the noisy Hessian in units of the norm of its noise.
        self.signal = lowest / unit if unit else math.inf
        if lowest <= 0 or self.signal < MIN_SIGNAL:
            raise InferenceError(f"{REFUSED}: the noisy Hessian is not above its noise", hint=REFUSED_HINT)
        values, vectors = np.linalg.eigh(_shrink_matrix(hessian, error))
        values = np.maximum(values, EIGENVALUE_FLOOR * unit)
        inverse, hessian = (vectors / values) @ vectors.T, (vectors * values) @ vectors.T
        clear = 1.0 / np.diag(inverse) >= CLEAR_SIGNAL * unit
        #: The terms of which the rows tell less than the norm of the noise: their intervals can be far too narrow.
        self.doubtful_terms = tuple(term for term, is_clear in zip(self.terms, clear, strict=True) if not is_clear)
        center = compute_penalty_center(inference.class_count, self.model.schema, rows=problem.rows)
        distance = weights if center is None else weights - center[0]
        moved = problem.rows * problem.regularization * (inverse @ distance)
        # The root mean square of what the correction changes a score by: its square is the order of what is left of it.
        rest = float(moved @ hessian @ moved) / (hessian[-1, -1] / self.model.schema.intercept_value**2)
        if math.sqrt(rest) > MAX_CORRECTION:
            raise InferenceError(f"{REFUSED}: the penalty changes the coefficients too much", hint=REFUSED_HINT)
        linear, end = (_find_deviation(one) for one in (certificate.training_noise, certificate.release_noise))
        if certificate.training_noise is not None and certificate.training_noise.kind == "spherical":
            linear *= math.sqrt((problem.dims + HEAVY_TAIL) / (problem.dims + 1.0))
        identity, outer = np.eye(problem.dims), np.outer(moved, moved)
        noise = linear**2 * identity + error**2 / 2.0 * (moved @ moved * identity + outer)
        meat = (
            hessian if inference.outer_products is None else _make_positive(unflatten_matrix(inference.outer_products))
        )
        rows, noise = (inverse @ each @ inverse for each in (meat, noise))
        self._convert(weights + moved, rows, noise + rest * outer + end**2 * identity)

    def _convert(self, estimate: Doubles, rows: Doubles, noise: Doubles) -> None:
        """Convert the estimate and the parts of its covariance that rows and noise cause to the columns' units."""
        schema, loss = self.model.schema, self.model.certificate.problem.loss
        slopes, constants = convert_to_original_units(schema, np.eye(len(estimate)))
        center, scale = schema.target.find_score_units(loss)
        units = scale * np.column_stack([slopes, constants]).T
        self.estimates: Doubles = units @ estimate
        self.estimates[-1] += center
        self.noise_covariance: Doubles = units @ noise @ units.T
        self.covariance: Doubles = units @ rows @ units.T + self.noise_covariance
        numbers = np.isfinite(self.estimates).all() and np.isfinite(self.covariance).all()
        if not numbers or not np.diag(self.covariance).min() > 0:
            raise InferenceError(
                f"{REFUSED}: a coefficient or its standard error is too small or large for a number",
                hint="declare bounds in another unit",
            )

    @property
    def terms(self) -> tuple[str, ...]:
        return self.model.schema.feature_names

    @property
    def has_odds(self) -> bool:
        """Whether the coefficients are log odds ratios: two classes are predicted."""
        return self.model.schema.target.class_count > 0

    @property
    def references(self) -> dict[str, str]:
        """The reference category of each categorical column, with which the others are compared."""
        columns = [
            one for one in self.model.schema.columns if isinstance(one, Categorical) and one.reference is not None
        ]
        return {one.name: format_value(one.reference) for one in columns if one.reference is not None}

    @cached_property
    def _lines(self) -> tuple[Coefficient, ...]:
        quantile = NormalDist().inv_cdf(0.5 + self.level / 2.0)
        lines = []
        noises = np.diag(self.noise_covariance)
        for term, coef, variance, noise in zip(
            self.terms, self.estimates.tolist(), np.diag(self.covariance).tolist(), noises.tolist(), strict=True
        ):
            deviation = math.sqrt(variance)
            z = coef / deviation
            odds = math.exp(min(coef, 700.0)) if self.has_odds else None
            low, high = coef - quantile * deviation, coef + quantile * deviation
            p_value, share = math.erfc(abs(z) / math.sqrt(2.0)), noise / variance
            lines.append(Coefficient(term, coef, deviation, z, p_value, odds, low, high, share))
        return tuple(lines)

    def __iter__(self) -> Iterator[Coefficient]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @cached_property
    def joint_tests(self) -> tuple[JointTest, ...]:
        """The Wald test of each categorical column with several coefficients."""
        tests, first = [], 0
        for column in self.model.schema.columns:
            count = column.encoding_rule.feature_count
            if isinstance(column, Categorical) and count > 1:
                part = slice(first, first + count)
                estimate, covariance = self.estimates[part], self.covariance[part, part]
                statistic = float(estimate @ np.linalg.solve(covariance, estimate))
                tests.append(JointTest(column.name, statistic, count, _compute_chi_squared_tail(statistic, count)))
            first += count
        return tuple(tests)

    @property
    def warning(self) -> str | None:
        """A warning if the Hessian is hardly above its noise, which names the lines not to use; None if it is above."""
        if self.doubtful_terms:
            terms = join_names(self.doubtful_terms)
            return (
                f"the noisy Hessian is hardly above its noise: do not use the lines of {terms}, whose intervals are "
                "often far too narrow"
            )
        if self.signal >= CLEAR_SIGNAL:
            return None
        return (
            "the noisy Hessian is hardly above its noise: intervals may cover less than they say, and depend on the "
            "columns' correlations, which are uncertain"
        )

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame, one row per term."""
        import pandas as pd  # only here: nothing else needs it

        return pd.DataFrame([asdict(line) for line in self]).set_index("term")

    def to_dict(self) -> dict[str, Any]:
        """Return the table as JSON values."""
        return {
            "level": self.level,
            "outcome": self.model.schema.target.describe_scores(self.model.certificate.problem.loss),
            "rows": self.model.certificate.rows,
            "references": self.references,
            "signal": None if math.isinf(self.signal) else self.signal,
            "warning": self.warning,
            "doubtful_terms": list(self.doubtful_terms),
            "coefficients": [asdict(line) for line in self],
            "joint_tests": [asdict(test) for test in self.joint_tests],
        }


def describe_intervals(model: Model) -> str | None:
    """Return why the intervals of a model are refused or in doubt; None if they hold, or if it has no inference."""
    try:
        return None if model.inference is None else Coefficients(model).warning
    except InferenceError as fault:
        return str(fault)


def _find_deviation(noise: Mechanism | None) -> float:
    return 0.0 if noise is None else noise.deviation


def _make_positive(matrix: Doubles) -> Doubles:
    """Return the nearest positive semidefinite matrix: noise can make a matrix indefinite."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _shrink_matrix(matrix: Doubles, deviation: float) -> Doubles:
    """Shrink a noisy Hessian towards one of equal features without correlations, by what of the difference is noise."""
    size = len(matrix)
    simple = np.diag(np.append(np.full(size - 1, np.diag(matrix)[:-1].mean()), matrix[-1, -1]))
    difference = float(np.sum((matrix - simple) ** 2))
    noise = deviation**2 * (size * (size + 1) / 2.0 - 2.0)
    kept = math.sqrt(max(0.0, 1.0 - noise / difference)) if difference > 0 else 1.0
    return np.asarray(simple + kept * (matrix - simple))


def _compute_chi_squared_tail(statistic: float, degrees: int) -> float:
    """Return the probability that a chi-squared variable exceeds the statistic."""
    return float((arb(statistic) / 2).gamma_upper(arb(degrees) / 2, regularized=1)) if statistic > 0 else 1.0
