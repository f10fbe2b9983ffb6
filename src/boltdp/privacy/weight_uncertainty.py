"""The standard deviation that noise causes in released weights, for reports; no guarantee depends on it.

It is computed from public numbers only. `weight_uncertainty.md` has the definitions and proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from boltdp.privacy.events.event import Training
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.mechanisms import Mechanism


@dataclass(frozen=True)
class WeightDeviation:
    """The standard deviation, over the noise, of a linear combination <c, w> of the weights of one vector."""

    deviation: float  #: per unit of the L2 norm of c
    exact: bool  #: whether the deviation is exact or an upper bound


def compute_weight_deviation(training: Training) -> WeightDeviation | None:
    """Return the standard deviation of a training's weights due to its noise; None where it depends on the rows.

    Proof: weight_uncertainty.md 1, 2, 3
    """
    # Several vectors sum to zero, so that each has its share of the free directions of the noise.
    part = math.sqrt(training.problem.loss.directions / training.problem.loss.vector_count)
    if training.training_noise is None:
        noise = training.release_noise
        return WeightDeviation(0.0 if noise is None else part * noise.deviation, exact=True)
    if isinstance(training, ObjectivePerturbation):
        strength = training.problem.rows * training.problem.regularization
        stopped = training.sensitivity.total  # at least the distance from the exact minimiser to the computed weights
        moved = bound_deviation(training.linear) / strength + stopped
        return WeightDeviation(part * math.hypot(moved, training.end.deviation), exact=False)
    return None


def bound_deviation(noise: Mechanism) -> float:
    """Return the largest standard deviation of any 1-Lipschitz function of the noise.

    Proof: weight_uncertainty.md 2
    """
    if noise.kind == "gaussian":
        return noise.scale
    dimensions = noise.dimensions
    return 2.0 * noise.scale if dimensions == 1 else noise.deviation * math.sqrt(dimensions / (dimensions - 1))
