"""The noise check: whether a model can be expected to be better than always answering the most common class.

Public numbers alone decide: rows, features, classes, epsilon and delta, by the noise that follows from them.
"""

from __future__ import annotations

import math

from boltdp.algorithms import get_algorithm
from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate
from boltdp.settings import Settings

#: The noise per row and weight above which models were no better than the most common class (docs/accuracy.md): of two
#: classes, and of several at once, of which the most common one is more often wrong.
MAX_USEFUL_NOISE, MAX_USEFUL_JOINT_NOISE = 0.015, 0.03


def compute_noise_per_row_and_weight(certificate: Certificate) -> float | None:
    """Return the noise of a training per row and weight; None for algorithms whose noise is not in gradients."""
    noise, problem = get_algorithm(certificate.algorithm).find_gradient_noise(certificate), certificate.problem
    return None if noise is None else noise / (problem.rows * math.sqrt(problem.dimensions))


def describe_drowning_noise(certificate: Certificate) -> str | None:
    """Return a warning if the noise drowns what the rows tell of their classes; None if not, or if it is not known.

    Of a training for inference, whose intervals say how large the noise is, and of numbers nothing is said.
    """
    problem, budget, noise = certificate.problem, certificate.budget, compute_noise_per_row_and_weight(certificate)
    if budget is None or noise is None or problem.loss.target != "classes" or certificate.matrices:
        return None
    limit = MAX_USEFUL_NOISE if problem.loss.directions == 1 else MAX_USEFUL_JOINT_NOISE
    if noise <= limit:
        return None
    return (
        "the expected model is no better than always answering the most common class: with "
        f"{problem.rows:,} rows, {problem.dims:,} features and {budget.describe()}, the noise per row and weight is "
        f"{noise:.2g}, and above {limit:g} it hides what the rows have to tell"
    )


def refuse_drowning_noise(certificate: Certificate, settings: Settings) -> None:
    """Raise a ParameterError, before anything is charged or read, if the planned model is expected to be useless.

    It is not raised for an algorithm that is named, or for noise from a seed, which protects nothing.
    """
    if settings.anyway or settings.algorithm != "auto" or settings.noise_seed is not None:
        return
    if (said := describe_drowning_noise(certificate)) is not None:
        raise ParameterError(
            f"{said}; nothing was charged",
            hint="more rows, fewer features, a larger epsilon or some delta make the noise smaller; --anyway "
            "(anyway=True) trains all the same",
        )
