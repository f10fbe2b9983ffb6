"""Noisy gradient descent: how far a row moves a computed sum, and what all scans together spend."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from flint import arb
from scipy import integrate, optimize, stats

from boltdp._array_types import Doubles
from boltdp.errors import BoltdpError, ParameterError
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.sgd import list_builds
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Multinomial
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, CertificateError, certify, subtract_spent, verify
from boltdp.privacy.events.event import BudgetedEvent, Composition
from boltdp.privacy.events.noisy_gradient_descent import (
    NoisyGradients,
    bound_gradient_sensitivity,
    calibrate_gradient_noise,
    compute_diverging_step,
    make_noisy_gradients,
)
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import bound_term_rounding
from boltdp.privacy.mechanisms import Mechanism, compute_gaussian_delta, set_precision
from boltdp.privacy.serialization import from_record, to_record
from boltdp.privacy.training_problem import Problem
from tests.example_losses import every_loss

LOSSES = every_loss()
BUDGET = Budget(1.0, 1e-6)


def event(problem: Problem, **changes: Any) -> NoisyGradients:
    asked: dict[str, Any] = {"clip": 0.5, "scans": 7, "step": 1.0, "momentum": 0.8, **changes}
    return make_noisy_gradients(problem, BUDGET, **asked)


def summed(loss: Loss, rows: Any, weights: Doubles, clip: float) -> Doubles:
    sums = DerivativeSums(loss, weights, clip=clip, classes=3)
    sums.add(np.ascontiguousarray(rows, np.float32))
    return sums.value


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("clip", [0.2, 0.7])
def test_two_rows_found_by_an_optimiser_reach_the_sensitivity_and_no_more(loss: Loss, clip: float) -> None:
    """But for slopes that are shorter than the clip, which reach as far as they can."""
    random, dims, numbers = np.random.default_rng(3), 2, loss.target == "number"
    others = np.hstack([random.integers(0, 3, (400, 1)), random.standard_normal((400, dims))])
    bound = bound_gradient_sensitivity(Problem(loss=loss, dims=dims, rows=401), clip).total

    def moved(point: Doubles, labels: tuple[int, int]) -> float:
        weights = point[: loss.vector_count * dims].reshape(loss.vector_count, dims)
        rows = point[loss.vector_count * dims :].reshape(2, dims)
        one, two = (np.vstack([others, [label, *row]]) for label, row in zip(labels, rows, strict=True))
        return float(np.linalg.norm(summed(loss, one, weights, clip) - summed(loss, two, weights, clip)))

    farthest = 0.0
    for labels in ((1, 1), (1, -1), (-1, -1)) if numbers else ((0, 0), (0, 1), (1, 2)):
        starts = [3 * random.standard_normal(loss.vector_count * dims + 2 * dims) for _ in range(2)]
        if loss.vector_count == 3:
            # Two classes are as likely as each other, and the third is out of question.
            starts.append(np.array([0.1, 0.0, 0.1, 0.0, -9.0, 0.0, 1.0, 0.1, 1.0, 0.1]))
        for start in starts:
            found = optimize.minimize(
                lambda p, labels=labels: -moved(p, labels), start, method="Nelder-Mead", options={"maxiter": 300}
            )
            farthest = max(farthest, -found.fun)
    assert 1.99 * min(clip, loss.lipschitz) < farthest <= bound
    assert bound < 2 * clip * (1 + 1e-9)


def length_squared(vector: Doubles) -> Fraction:
    return sum((Fraction(number) ** 2 for number in vector.ravel().tolist()), Fraction(0))


@pytest.mark.parametrize(
    "loss", [*LOSSES, MarginLogistic(16.0), HuberSVM(1e-300), HuberSVM(1e300), Multinomial(40)], ids=str
)
def test_no_row_and_no_weights_whatever_give_a_longer_gradient_than_the_clip(loss: Loss) -> None:
    """Cells and weights at the ends of their types, rows at the edge of the ball, labels that are none."""
    random = np.random.default_rng(5)
    clips = (1e-9, 0.2, 0.5, 1.0, math.nextafter(1.0, 0.0), math.sqrt(2.0), 1e9)
    reached = 0
    for _ in range(300):
        dims, clip = int(random.choice([1, 2, 5, 17, 300])), float(random.choice(clips))
        weights = random.choice([0.0, 5e-324, 1.0, 100.0, 1e150, 1.7e308]) * random.uniform(
            -1, 1, (loss.vector_count, dims)
        )
        row = random.standard_normal(dims)
        row *= random.choice([1e-44, 1e-20, 0.5, 1.0, 1 + 1e-7, 1e10, 3e37]) / np.linalg.norm(row)
        if random.random() < 0.2:
            row[0] = random.choice([math.nan, math.inf, -math.inf, 1e-45, 3.4028234e38])
        labels = [0.0, 1.0, 2.0, float(loss.vector_count), -1.0, 0.5]
        rows = np.array([[random.choice(labels), *row]], np.float32)
        found = []
        for build in list_builds():
            sums = DerivativeSums(loss, weights, clip=clip, classes=3)
            sums.add(rows, build=build)
            found.append(sums.value)
        assert all(value.tobytes() == found[0].tobytes() for value in found)
        assert np.isfinite(found[0]).all()
        on_grid = bound_term_rounding(Problem(loss=loss, dims=dims, rows=2))
        most = Fraction(clip) * (1 + Fraction(dims + loss.vector_count + 32, 2**53)) + Fraction(on_grid)
        assert length_squared(found[0]) <= most**2
        reached += length_squared(found[0]) > Fraction(clip) ** 2 * Fraction(999, 1000)
    assert reached > 20, "many are clipped"


def adaptive_delta(shift: Callable[[float], float], first: float, sigma: float, epsilon: float) -> float:
    """Of two scans in one dimension: the second's sums differ by a function of what the first released."""

    def at(noise: float) -> float:
        loss = noise * first / sigma + first**2 / (2 * sigma**2)  # noise in units of sigma
        distance, left = shift(first + sigma * noise) / sigma, epsilon - loss
        rest = max(0.0, 1 - math.exp(left)) if distance == 0 else float(gaussian_profile(distance, left))
        return rest * float(stats.norm.pdf(noise))

    return float(integrate.quad(at, -12, 12, limit=400, epsabs=1e-13)[0])


def gaussian_profile(distance: float, epsilon: float) -> float:
    return float(
        stats.norm.cdf(distance / 2 - epsilon / distance)
        - math.exp(epsilon) * stats.norm.cdf(-distance / 2 - epsilon / distance)
    )


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
@pytest.mark.parametrize(
    "shift",
    [lambda _: 1.0, lambda _: 0.0, lambda o: min(1.0, abs(o)), lambda o: float(o > 0), lambda o: float(o < 0.3)],
    ids=["always", "never", "growing", "after a large one", "after a small one"],
)
def test_adaptive_scans_spend_no_more_than_one_gaussian(shift: Callable[[float], float], epsilon: float) -> None:
    """The exact divergence, integrated, of scans whose second sum depends on the first release."""
    sigma, delta = 2.0, adaptive_delta(shift, 1.0, 2.0, epsilon)
    together = gaussian_profile(math.sqrt(2.0) / sigma, epsilon)
    assert delta <= together * (1 + 1e-9)
    if shift(0.0) == shift(1.0) == shift(-1.0) == 1.0:
        assert delta == pytest.approx(together, rel=1e-9), "two scans that always differ are exactly one Gaussian"
    assert adaptive_delta(shift, 1.0, sigma / 2, epsilon) > together, "half of the noise must be caught"


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize(("scans", "clip"), [(1, 0.5), (40, 0.5), (1000, 3.0)])
def test_the_noise_keeps_the_budget_and_little_less_would_not(loss: Loss, scans: int, clip: float) -> None:
    problem = Problem(loss=loss, dims=20, rows=5000)
    spent = event(problem, scans=scans, clip=clip)
    assert 0.999 * BUDGET.delta < spent.delta(BUDGET.epsilon) <= BUDGET.delta
    ratio = math.sqrt(scans) * bound_gradient_sensitivity(problem, clip).total / spent.noise.scale
    assert spent.delta(0.7) == pytest.approx(float(compute_gaussian_delta(arb(ratio), arb(0.7))), rel=1e-9)
    less = Mechanism("gaussian", 0.999 * spent.noise.scale, problem.dimensions)
    changed = NoisyGradients(problem=problem, clip=clip, scans=scans, noise=less, step=1.0, momentum=0.5)
    assert changed.delta(BUDGET.epsilon) > BUDGET.delta


def test_rounding_is_next_to_nothing_but_for_very_many_rows() -> None:
    few, many = (
        bound_gradient_sensitivity(Problem(loss=Multinomial(10), dims=50, rows=rows), 0.5) for rows in (10**6, 10**10)
    )
    assert few.margin < 2e-7
    assert 1e-4 < many.margin < 2e-2


def test_it_is_read_as_it_was_written() -> None:
    spent = event(Problem(loss=Logistic(), dims=3, rows=100))
    assert from_record(NoisyGradients, to_record(spent)) == spent
    assert spent.derived_numbers["sensitivity_of_a_sum"] >= 1.0
    assert spent.training_noise is spent.noise
    assert spent.release_noise is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scans": 0}, "scans must be"),
        ({"scans": 10**8}, "scans must be at most"),
        ({"clip": 0.0}, "clip must be between"),
        ({"step": math.inf}, "step must be between"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"step": 6.93e3}, "step must be below 6.92e.03 for regularization 0.001"),
        ({"noise": Mechanism("spherical", 1.0, 3)}, "the noise of gradients must be gaussian"),
        ({"noise": Mechanism("gaussian", 1.0, 4)}, "dimensions"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"clip": 0.5, "scans": 7, "step": 1.0, "momentum": 0.8}
    problem = Problem(loss=Logistic(), dims=3, rows=100, regularization=0.001)
    with pytest.raises(ParameterError, match=message):
        NoisyGradients(**{"problem": problem, "noise": Mechanism("gaussian", 1.0, 3), **sound, **changes})


def test_pure_privacy_has_no_gaussian() -> None:
    with pytest.raises(ParameterError, match="delta must be > 0 for noisy gradient descent"):
        calibrate_gradient_noise(Problem(loss=Logistic(), dims=3, rows=100), Budget(1.0), clip=0.5, scans=2)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("regularization", [1e-6, 0.01, 3.0])
def test_weights_vanish_with_shorter_steps_and_grow_with_longer_ones(momentum: float, regularization: float) -> None:
    least = compute_diverging_step(regularization, momentum)

    def spread(step: float) -> float:
        """The larger of what a scan without gradients multiplies weights and direction by."""
        kept, pull = momentum, (1 - momentum) * regularization
        # With w and d before it: v = w - step*kept*d, then d' = kept*d + pull*v and w' = w - step*d'.
        turned = np.array([pull, kept - pull * step * kept])
        return float(np.abs(np.linalg.eigvals([np.array([1, 0]) - step * turned, turned])).max())

    assert spread(0.999 * least) < 1 < spread(1.001 * least)
    assert math.isinf(compute_diverging_step(0.0, momentum))


ABSURD: list[Any] = [
    *(math.nan, math.inf, -math.inf, 1e308, -1.0, 0, -0.0, 10**9, 10**400, 5e-324, 1e-300, 2**63 - 1, -1, 0.5),
    *(True, None, "1", [1], {}),
]


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize(
    "place",
    [
        *("clip", "scans", "step", "momentum", "noise scale", "noise dimensions", "noise kind"),
        *("problem rows", "problem dims", "problem regularization", "problem loss", "noise", "problem"),
    ],
)
def test_a_forged_record_is_refused_or_promises_what_its_numbers_keep(place: str, momentum: float) -> None:
    """The forger lets all derived numbers follow, and claims that it is private."""
    sound = event(Problem(loss=Logistic(), dims=3, rows=100), momentum=momentum)
    written = certify(sound, BUDGET).to_dict()
    *outer, name = place.split()
    for value in ABSURD:
        record = copy.deepcopy(written)
        (record["spent"][outer[0]] if outer else record["spent"])[name] = value
        try:
            forged = from_record(NoisyGradients, record["spent"])
            record |= {"spent": to_record(forged), "rows": forged.problem.rows}
        except (BoltdpError, ValueError, TypeError, ArithmeticError):
            pass  # it is left as it is
        try:
            found = Certificate.from_dict(json.loads(json.dumps(record)))
            verify(found)
        except (CertificateError, ParameterError):
            continue
        assert found.private
        spent = found.training
        assert isinstance(spent, NoisyGradients)
        assert spent.clip <= sound.clip
        assert spent.scans <= sound.scans
        assert spent.noise.scale >= sound.noise.scale
        assert 0 <= spent.momentum < 1
        assert 0 < spent.step < compute_diverging_step(spent.problem.regularization, spent.momentum)


def test_no_more_rows_are_summed_than_sums_are_exact_for() -> None:
    event(Problem(loss=Logistic(), dims=3, rows=2**33))
    with pytest.raises(ParameterError, match="the data must have at most 8,589,934,592 rows to be summed"):
        event(Problem(loss=Logistic(), dims=3, rows=2**33 + 1))


# ---- after moments with Gaussian noise --------------------------------------------------------------------------


def centred(budget: Budget, share: float, *, gaussian: bool = True, scans: int = 7) -> Certificate:
    """As it is planned: moments with a share of the budget, and scans with what is left beside them."""
    taken = budget.take_share(share)[0]
    moments = NoisyMoments(moments="mean", features=3, numbers=3, clip_norm=1.0).calibrate_noise(
        taken, gaussian=gaussian
    )
    problem, before = Problem(loss=Logistic(), dims=4, rows=1000), BudgetedEvent(taken, moments)
    asked: dict[str, Any] = {"clip": 0.4, "scans": scans, "step": 1.0, "momentum": 0.5}
    training = make_noisy_gradients(problem, subtract_spent(budget, before), **asked)
    return certify(
        make_noisy_gradients(problem, subtract_spent(budget, before, training), **asked), budget, standardization=before
    )


@pytest.mark.parametrize("budget", [Budget(0.1, 1e-9), BUDGET, Budget(8.0, 1e-3)], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_moments_and_scans_are_one_gaussian(budget: Budget, share: float) -> None:
    certificate = centred(budget, share)
    verify(certificate)
    moments, training = (part.event for part in certificate.parts)
    assert isinstance(moments, NoisyMoments)
    assert isinstance(training, NoisyGradients)
    assert moments.noise is not None
    squares = (moments.sensitivity / moments.noise.scale) ** 2
    squares += 7 * (bound_gradient_sensitivity(training.problem, 0.4).total / training.noise.scale) ** 2
    with set_precision(256):
        exact = float(compute_gaussian_delta(arb(math.sqrt(squares)), arb(budget.epsilon)))
    assert exact <= certificate.delta(budget.epsilon) <= budget.delta
    # Nothing is given away, and less noise in either of them would be too little.
    assert exact == pytest.approx(budget.delta, rel=1e-5)
    for less in (
        Composition(
            (certificate.parts[0], BudgetedEvent(budget, replace(training, noise=_scaled(training.noise, 0.99))))
        ),
        Composition((BudgetedEvent(budget, replace(moments, noise=_scaled(moments.noise, 0.9))), certificate.parts[1])),
    ):
        assert less.delta(budget.epsilon) > budget.delta * (1 + 1e-6)
        with pytest.raises(CertificateError, match="follows from its events"):
            verify(Certificate(budget=budget, spent=less))
    assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (Budget(1e-3, BUDGET.delta), "says that a part spends epsilon = 0.001"),
        (Budget(100.0, BUDGET.delta), "budgets of the parts of a release must be within"),
        (Budget(BUDGET.epsilon / 2, 0.1), "budgets of the parts of a release must be within"),
    ],
)
def test_the_stated_budgets_of_gaussian_parts_are_verified(place: int, stated: Budget, message: str) -> None:
    certificate = centred(BUDGET, 0.5)
    parts = [*certificate.parts]
    parts[place] = replace(parts[place], budget=stated)
    forged = Certificate(budget=BUDGET, spent=Composition((*parts,)))
    assert forged.private
    with pytest.raises(CertificateError, match=message):
        verify(forged)


def test_parts_of_a_gaussian_composition_need_not_state_budgets() -> None:
    certificate = centred(BUDGET, 0.5)
    unstated = (*(replace(part, budget=None) for part in certificate.parts),)
    verify(Certificate(budget=BUDGET, spent=Composition(unstated)))


def _scaled(noise: Mechanism, factor: float) -> Mechanism:
    return Mechanism(noise.kind, factor * noise.scale, noise.dimensions)


def test_moments_and_scans_agree_with_dp_accounting() -> None:
    """The library composes the distributions of losses on a grid, and knows nothing of one Gaussian."""
    certificate = centred(BUDGET, 0.5, scans=3)
    moments, training = (part.event for part in certificate.parts)
    assert moments.mu is not None
    assert training.mu is not None

    def losses(distance: float) -> Any:
        return pld.from_gaussian_mechanism(1.0 / distance, value_discretization_interval=1e-3)

    together = losses(moments.mu).compose(losses(training.mu / math.sqrt(3)).self_compose(3))
    assert together.get_delta_for_epsilon(1.0) == pytest.approx(certificate.delta(1.0), rel=0.02)


def test_one_gaussian_takes_much_less_than_two_budgets() -> None:
    joint, apart = centred(BUDGET, 0.2), centred(BUDGET, 0.2, gaussian=False)
    verify(apart)
    noises = [one.training_noise for one in (joint, apart)]
    assert noises[0] is not None
    assert noises[1] is not None
    assert noises[0].scale < 0.85 * noises[1].scale
    assert apart.parts[1].budget == BUDGET.take_share(0.2)[1]


def test_where_hardly_anything_is_left_the_rest_is_what_basic_composition_leaves() -> None:
    taken = BUDGET.take_share(1.0 - 1e-11)[0]
    moments = NoisyMoments(moments="mean", features=3, numbers=3, clip_norm=1.0).calibrate_noise(taken, gaussian=True)
    before, training = BudgetedEvent(taken, moments), event(Problem(loss=Logistic(), dims=4, rows=1000))
    assert subtract_spent(BUDGET, before, training) == BUDGET.subtract(taken)


@pytest.mark.parametrize(("budget", "share"), [(Budget(1e-4, 0.01), 0.25), (Budget(1.0, 0.5), 0.9)])
def test_where_delta_alone_pays_for_the_scans_the_rest_is_what_basic_composition_leaves(
    budget: Budget, share: float
) -> None:
    certificate = centred(budget, share)
    verify(certificate)
    assert certificate.parts[1].budget == budget.subtract(budget.take_share(share)[0])
    assert certificate.delta(budget.epsilon) < budget.delta


def test_only_gaussians_are_one_gaussian() -> None:
    problem = Problem(loss=Logistic(), dims=4, rows=1000)
    spherical = NoisyMoments(moments="mean", features=3, numbers=3, clip_norm=1.0).calibrate_noise(Budget(0.5))
    noiseless = NoisyMoments(moments="mean", features=3, numbers=3, clip_norm=1.0).calibrate_noise(None)
    assert spherical.mu is noiseless.mu is None
    training = event(problem)
    mixed = Composition((BudgetedEvent(Budget(0.5), spherical), BudgetedEvent(BUDGET, training)))
    assert mixed.mu is None
    assert mixed.delta(1.5) == pytest.approx(training.delta(1.0), rel=1e-9)
