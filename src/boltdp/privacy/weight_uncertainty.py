"""What the noise does to released weights, in public numbers: for whoever looks at a model, and for no guarantee.

Nothing here is computed from rows. `weight_uncertainty.md` says what is meant, and proves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from boltdp.privacy.events.event import Noiseless, Training
from boltdp.privacy.events.objective_perturbation import ObjectivePerturbation
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.mechanisms import Mechanism


@dataclass(frozen=True)
class WeightDeviation:
    """How far noise spreads a combination <c, w> of the weights of one vector, over all its draws.

    >>> WeightDeviation(0.25, exact=True).deviation
    0.25
    """

    deviation: float  #: the standard deviation, for each unit of the length of c
    exact: bool  #: whether it is that, or only never more


def weight_deviation(training: Training) -> WeightDeviation | None:
    """What the noise of a training does to its weights; None where only the rows could tell.

    Proof: weight_uncertainty.md 1, 2, 3
    """
    # Of several vectors, which sum to zero, each has its part of the directions that the noise is drawn in.
    part = math.sqrt(training.problem.loss.directions / training.problem.loss.vectors)
    if isinstance(training, Noiseless):
        return WeightDeviation(0.0, exact=True)
    if isinstance(training, OutputPerturbation):
        return WeightDeviation(part * training.noise.deviation, exact=True)
    if isinstance(training, ObjectivePerturbation):
        strength = training.problem.rows * training.problem.regularization
        stopped = training.sensitivity.total  # at least the way from the exact minimiser to where the solver stopped
        moved = largest_deviation(training.linear) / strength + stopped
        return WeightDeviation(part * math.hypot(moved, training.end.deviation), exact=False)
    return None


def largest_deviation(noise: Mechanism) -> float:
    """The largest standard deviation of any function of the noise that nowhere changes faster than its argument.

    Proof: weight_uncertainty.md 2

    >>> largest_deviation(Mechanism("gaussian", 0.5, 9)), largest_deviation(Mechanism("spherical", 0.5, 1))
    (0.5, 1.0)
    """
    if noise.kind == "gaussian":
        return noise.scale
    dimensions = noise.dimensions
    return 2.0 * noise.scale if dimensions == 1 else noise.deviation * math.sqrt(dimensions / (dimensions - 1))
