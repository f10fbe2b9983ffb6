"""Outside auditors find nothing in what is sound, and each planted fault is found by one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from experiments.outside.claims import Claim, list_claims
from experiments.outside.faults import FAULTS
from experiments.outside.recorder import TRAININGS, audit_training
from experiments.outside.testers import TESTERS, Tester, bound_delta

from boltdp.audit.statistical_tests import compute_exact_delta
from boltdp.privacy import release_with_noise
from boltdp.privacy.mechanisms import Mechanism

#: Maximum probability that a tester refutes a claim that holds.
MISTAKE = 1e-9
CLAIMS = {claim.name: claim for claim in list_claims()}


def refuted(claim: Claim, tester: Tester, *, draws: int, mistake: float = MISTAKE) -> bool:
    first, second = claim.draw(0, draws), claim.draw(1, draws)
    return bound_delta(tester, first, second, epsilon=claim.epsilon, mistake=mistake) > claim.delta


# ---- the testers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tester", TESTERS.values(), ids=TESTERS)
@pytest.mark.parametrize("apart", [0.0, 0.5, 2.0, 6.0])
def test_a_tester_proves_at_most_the_true_delta(tester: Tester, apart: float) -> None:
    made = np.random.default_rng(3)
    first, second = made.standard_normal((20_000, 2)), made.standard_normal((20_000, 2))
    second[:, 0] += apart
    bound = bound_delta(tester, first, second, epsilon=0.5, mistake=1e-3)
    assert bound <= compute_exact_delta(Mechanism("gaussian", 1.0, 2), 0.5, distance=apart)
    if apart == 6.0:
        assert bound > 0.1
    if apart == 2.0 and tester is TESTERS["hockey stick"]:
        assert bound > 0.4


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_no_tester_refutes_what_is_released(claim: Claim) -> None:
    draws = 4_000 if claim.quick else 600
    first, second = claim.draw(0, draws), claim.draw(1, draws)
    for tester in TESTERS.values():
        assert bound_delta(tester, first, second, epsilon=claim.epsilon, mistake=MISTAKE) <= claim.delta


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_no_tester_refutes_what_is_released_in_many_draws(claim: Claim) -> None:
    draws = 200_000 if claim.quick else 20_000
    first, second = claim.draw(0, draws), claim.draw(1, draws)
    for tester in TESTERS.values():
        assert bound_delta(tester, first, second, epsilon=claim.epsilon, mistake=MISTAKE) <= claim.delta


def test_half_the_noise_is_refuted() -> None:
    """The bound is 0.05 with a standard error of 0.006, which is far above the claimed 0.01."""
    plant, _ = FAULTS["half the noise"]
    with plant():
        assert refuted(CLAIMS["Gaussian noise, 3 numbers"], TESTERS["hockey stick"], draws=40_000, mistake=1e-4)


@pytest.mark.parametrize("name", ["spherical noise, 3 numbers", "noisy counts", "bolton", "objective perturbation"])
def test_a_number_without_noise_is_refuted(name: str) -> None:
    plant, _ = FAULTS["a number without noise"]
    with plant():
        assert refuted(CLAIMS[name], TESTERS["hockey stick"], draws=1_000)


# ---- Re:cord-play -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAININGS)
def test_a_recorded_training_is_the_same_on_a_neighbour_but_for_the_inputs_of_mechanisms(name: str) -> None:
    found = audit_training(TRAININGS[name])
    assert found.faults == ()
    assert found.ratio <= 1.0 + 1e-9
    assert math.isfinite(found.ratio)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("a weight released beside the mechanism", "something is released that no mechanism gave"),
        ("a sensitivity understated", "an input differs by 2 declared sensitivities"),
        ("a number of draws that depends on rows", "the mechanisms that are called depend on the data"),
        ("a decision on sums before their noise", "something is released that no mechanism gave"),
    ],
)
def test_a_planted_fault_is_found_by_replay(fault: str, told: str) -> None:
    plant, training = FAULTS[fault]
    with plant():
        found = audit_training(TRAININGS[training])
    assert told in found.faults


def test_noise_and_random_bytes_are_as_before_after_a_recording() -> None:
    before = vars(release_with_noise)["add_noise"], vars(release_with_noise)["system_bytes"]
    audit_training(TRAININGS["bolton"])
    assert before == (vars(release_with_noise)["add_noise"], vars(release_with_noise)["system_bytes"])
