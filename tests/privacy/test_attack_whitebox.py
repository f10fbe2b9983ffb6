"""Trains many times on two neighbouring datasets and looks for an event that is too likely on one of them.

Everything is chosen to leave the bound as little slack as can be: all rows but one have no gradient, and that one pulls
with full force (the Huber loss at small margins), either way. The event is chosen on one half of the runs and judged
on the other, with confidence 99.9 %. With half of its noise each algorithm must be caught, else the attack is blunt.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from boltdp.audit.statistical_tests import bound_rate
from boltdp.engines.base import PreparedRows
from boltdp.engines.in_memory import ArrayEngine
from boltdp.losses import HuberSVM
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.noisy_sgd import NoisyUpdates, calibrate_bst14, calibrate_dpsgd, calibrate_scs13
from boltdp.privacy.events.output_perturbation import OutputPerturbation, make_output_perturbation
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Schema, Vector
from boltdp.workflows.train import train_prepared

Sample = npt.NDArray[np.float64]

SCHEMA = Schema(Classes("label", (0, 1)), (Vector("x", 1, -1.0, 1.0),), intercept=False)
MISTAKE = 0.001


def prepared_rows(rows: int, label: int) -> PreparedRows:
    """All rows zero but the first."""
    features = np.zeros((rows, 1))
    features[0] = 1.0
    return ArrayEngine.from_numpy(features, np.full(rows, label)).prepare(SCHEMA, Context(seed=1))


def trained(certificate: Certificate, label: int, count: int) -> Sample:
    """The one weight of so many independent trainings; seeded, so that no luck is in the test."""
    rows = prepared_rows(certificate.problem.rows, label)
    seeds = range(label * count, (label + 1) * count)
    contexts = (Context(randomness=Randomness(seed), seed=1) for seed in seeds)
    models = (train_prepared(rows, SCHEMA, certificate, context) for context in contexts)
    return np.array([model.weights[0, 0] for model in models])


def caught(ours: Sample, theirs: Sample, budget: Budget) -> bool:
    """Whether some half-line is likelier than e^epsilon times its likelihood under the neighbour, plus delta."""
    half = len(ours) // 2
    growth = math.exp(budget.epsilon)
    cuts = np.quantile(np.concatenate([ours[:half], theirs[:half]]), np.linspace(0.002, 0.998, 499))
    gains = [
        (np.mean(sign * ours[:half] > sign * cut) - growth * np.mean(sign * theirs[:half] > sign * cut), sign, cut)
        for sign in (1.0, -1.0)
        for cut in cuts
    ]
    _, sign, cut = max(gains)
    hits, misses = (int(np.count_nonzero(sign * sample[half:] > sign * cut)) for sample in (ours, theirs))
    count = len(ours) - half
    least, _ = bound_rate(hits, count, mistake=MISTAKE / 2)
    _, most = bound_rate(misses, count, mistake=MISTAKE / 2)
    return bool(least > growth * most + budget.delta)


def weakened(certificate: Certificate) -> Certificate:
    """The same with half of the noise."""
    event = certificate.training
    assert isinstance(event, (OutputPerturbation, NoisyUpdates))
    less: Training = replace(event, noise=replace(event.noise, scale=event.noise.scale / 2))
    return certify(less, certificate.budget, seeded=True)


def case(algorithm: str, budget: Budget, *, rows: int, batch_size: int, passes: int) -> Certificate:
    recipe = Recipe(
        loss=HuberSVM(0.1),
        dims=1,
        rows=rows,
        batch_size=batch_size,
        passes=passes,
        schedule=make_constant_schedule(0.01),
    )
    event: Training
    if algorithm == "bolton":
        event = make_output_perturbation(recipe, budget)
    elif algorithm == "scs13":
        event = NoisyUpdates(recipe, calibrate_scs13(recipe, budget), "permutation")
    elif algorithm == "bst14":
        event = NoisyUpdates(recipe, calibrate_bst14(recipe, budget), "fixed size")
    else:
        event = NoisyUpdates(recipe, calibrate_dpsgd(recipe, budget), "poisson")
    return certify(event, budget, seeded=True)


CASES = {
    "bolton, pure": case("bolton", Budget(1.0), rows=4, batch_size=4, passes=2),
    "bolton": case("bolton", Budget(1.0, 0.05), rows=4, batch_size=4, passes=2),
    "scs13, pure": case("scs13", Budget(1.0), rows=4, batch_size=4, passes=1),
    "scs13": case("scs13", Budget(1.0, 0.05), rows=4, batch_size=4, passes=3),
    "bst14": case("bst14", Budget(1.0, 0.05), rows=2, batch_size=1, passes=2),
    "dpsgd": case("dpsgd", Budget(1.0, 0.05), rows=2, batch_size=1, passes=2),
}


@pytest.mark.parametrize("certificate", CASES.values(), ids=CASES)
def test_an_attack_finds_no_violation_and_finds_half_of_the_noise(certificate: Certificate) -> None:
    assert certificate.budget is not None
    # Where the row is not in every batch, half of the noise shows less.
    assert isinstance(certificate.problem, Recipe)
    count = 1200 if certificate.problem.batches == 1 else 3000
    ours, theirs = (trained(certificate, label, count) for label in (1, 0))
    assert not caught(ours, theirs, certificate.budget)
    assert not caught(theirs, ours, certificate.budget)
    weak = weakened(certificate)
    ours, theirs = (trained(weak, label, count) for label in (1, 0))
    assert caught(ours, theirs, certificate.budget)
