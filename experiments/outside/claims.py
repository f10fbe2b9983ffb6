"""What boltdp releases, as an outside auditor sees it: draws on each of two neighbouring datasets, and a claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.plans import plan_certificate

from boltdp._array_types import Doubles
from boltdp.audit.worst_neighbours import make_opposed_pair, run_training
from boltdp.privacy import release_with_noise
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.mechanisms import Mechanism, calibrate, calibrate_unit_gaussian
from boltdp.privacy.release_with_noise import Randomness, choose_by_errors, release_counts, release_weights
from boltdp.settings import Settings

EPSILON, DELTA = 0.5, 0.01
#: Trainings that run together.
TOGETHER = 500

#: Draws of one of the two datasets, 0 or 1, and how many: an array with a row for each.
Draw = Callable[[int, int], Doubles]


@dataclass(frozen=True)
class Claim:
    """A release that is claimed to be (epsilon, delta)-differentially private."""

    name: str
    draw: Draw
    epsilon: float = EPSILON
    delta: float = 0.0
    quick: bool = True  #: whether a hundred thousand draws take seconds


def _choose(errors: Sequence[int]) -> float:
    return float(choose_by_errors(errors, epsilon=EPSILON, random_bytes=Randomness().make_stream()))


def list_claims() -> list[Claim]:
    """List what is released by mechanisms, selections and whole trainings of few rows and one feature."""
    pure, some = Budget(EPSILON), Budget(EPSILON, DELTA)
    spherical = calibrate(1.0, dimensions=3, budget=pure)
    gaussian = Mechanism("gaussian", calibrate_unit_gaussian(some), 3)
    counts = make_noisy_counts(pure, releases=1)

    def training(algorithm: Any, *, rows: int, delta: float = 0.0, passes: int | None = None) -> Draw:
        settings = Settings(epsilon=EPSILON, delta=delta, algorithm=algorithm, loss="logistic", passes=passes)
        return draw_training(settings, rows=rows)

    return [
        Claim("spherical noise, 3 numbers", lambda which, count: draw_noise(spherical, which, count)),
        Claim("Gaussian noise, 3 numbers", lambda which, count: draw_noise(gaussian, which, count), delta=DELTA),
        Claim(
            "noisy counts",
            lambda which, count: np.array(
                [release_counts([[20, 31], [21, 30]][which], counts, Randomness().make_stream()) for _ in range(count)]
            ),
        ),
        Claim(
            "selection among 3",
            lambda which, count: np.array([[_choose([[4, 5, 6], [5, 4, 5]][which])] for _ in range(count)]),
        ),
        Claim("bolton", training("bolton", rows=20)),
        Claim("objective perturbation", training("objective", rows=10), quick=False),
        Claim("noisy-gd", training("noisy-gd", rows=10, delta=DELTA, passes=3), delta=DELTA, quick=False),
        Claim("scs13", training("scs13", rows=4, passes=1), quick=False),
        Claim("dpsgd", training("dpsgd", rows=4, delta=DELTA, passes=1), delta=DELTA, quick=False),
    ]


def draw_noise(mechanism: Mechanism, which: int, count: int) -> Doubles:
    """Add noise to a vector of zeros, or to one at distance 1 from it."""
    vector, stream = np.zeros(mechanism.dimensions), Randomness().make_stream()
    vector[0] = which
    return np.array([vars(release_with_noise)["add_noise"](mechanism, vector, stream) for _ in range(count)])


def draw_training(settings: Settings, *, rows: int) -> Draw:
    """Return draws of the weights of a training with one feature, on rows that pull against each other."""
    certificate = plan_certificate(settings, rows=rows, dims=1, classes=2)
    event, budget = certificate.training, certificate.budget
    assert budget is not None
    datasets = make_opposed_pair(event.problem).make_datasets(event.problem)

    def draw(which: int, count: int) -> Doubles:
        found: list[Doubles] = []
        while len(found) < count:
            together = 1 if isinstance(event, OutputPerturbation) else min(TOGETHER, count - len(found))
            trained = run_training(event, budget, datasets[which], count=together)
            if together == 1:  # the same weights each time: only their noise is random
                trained *= count - len(found)
            found += [release_weights(weights, certificate, Randomness()).ravel() for weights in trained]
        return np.array(found)

    return draw
