"""Regressions without privacy, whose intervals those of private ones are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from boltdp._array_types import Doubles

#: Newton's method ends with a step below this.
TOLERANCE = 1e-8


@dataclass(frozen=True)
class Fit:
    """Estimates and their standard errors; the intercept is last."""

    estimates: Doubles
    errors: Doubles


def fit_logistic(design: Doubles, labels: Doubles, *, robust: bool = False) -> Fit:
    """Fit a logistic regression of labels 0 and 1 by maximum likelihood; `robust`: with the sandwich's errors (HC0)."""
    weights = np.zeros(design.shape[1] + 1)
    for _ in range(50):
        gradient, hessian = sum_newton(weights, [(design, labels)])
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if np.abs(step).max() < TOLERANCE:
            break
    inverse = np.linalg.inv(hessian)
    if robust:
        factors = _add_constant(design)
        slopes = factors * (_predict(factors @ weights) - labels)[:, None]
        inverse = inverse @ (slopes.T @ slopes) @ inverse
    return Fit(weights, np.sqrt(np.diag(inverse)))


def sum_newton(weights: Doubles, chunks: Iterable[tuple[Doubles, Doubles]]) -> tuple[Doubles, Doubles]:
    """Sum the gradients and the Hessians of the logistic loss over rows that come in chunks."""
    gradient, hessian = np.zeros(len(weights)), np.zeros((len(weights), len(weights)))
    for design, labels in chunks:
        factors = _add_constant(design)
        odds = _predict(factors @ weights)
        gradient += factors.T @ (odds - labels)
        hessian += (factors * (odds * (1.0 - odds))[:, None]).T @ factors
    return gradient, hessian


def fit_least_squares(design: Doubles, target: Doubles, *, robust: bool = False) -> Fit:
    """Fit a linear regression by least squares; `robust`: with White's errors (HC0)."""
    factors = _add_constant(design)
    inverse = np.linalg.inv(factors.T @ factors)
    estimates = inverse @ (factors.T @ target)
    residuals = target - factors @ estimates
    if robust:
        slopes = factors * residuals[:, None]
        covariance = inverse @ (slopes.T @ slopes) @ inverse
    else:
        covariance = inverse * (residuals @ residuals) / (len(target) - len(estimates))
    return Fit(estimates, np.sqrt(np.diag(covariance)))


def _add_constant(design: Doubles) -> Doubles:
    return np.column_stack([design, np.ones(len(design))])


def _predict(scores: Doubles) -> Doubles:
    return np.asarray(1.0 / (1.0 + np.exp(-scores)))
