"""The noise: its distribution, its calibration against independent implementations, and its exactness."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from flint import arb
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from boltdp._array_types import Doubles
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.exact_noise import (
    Uniforms,
    _add_noise_in_c,
    _round_to_grid,
    _transform_to_gaussian,
    _transform_to_spherical,
    add_noise,
    make_seeded_bytes,
    system_bytes,
)
from boltdp.privacy.mechanisms import (
    GRID_BITS,
    Mechanism,
    NoiseKind,
    calibrate,
    calibrate_unit_gaussian,
    calibrate_unit_spherical,
    round_up_delta,
    set_precision,
)

DRAWS = 3000


def draws(kind: NoiseKind, dimensions: int, *, scale: float = 1.0, seed: int = 11) -> Doubles:
    mechanism, source = Mechanism(kind, scale, dimensions), make_seeded_bytes(seed)
    return np.array([add_noise(mechanism, np.zeros(dimensions), source) for _ in range(DRAWS)])


def fits(sample: Doubles, distribution: object) -> bool:
    return bool(stats.kstest(sample, distribution.cdf).pvalue > 1e-3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_spherical_noise_has_a_gamma_length_and_a_uniform_direction(dimensions: int) -> None:
    noise = draws("spherical", dimensions, scale=0.25)
    lengths = np.linalg.norm(noise, axis=1)
    assert fits(lengths, stats.gamma(dimensions, scale=0.25))
    directions = noise / lengths[:, None]
    if dimensions > 1:
        # A coordinate of a uniform direction: (1 + u)/2 is Beta((n-1)/2, (n-1)/2) distributed.
        beta = stats.beta((dimensions - 1) / 2, (dimensions - 1) / 2)
        assert all(fits((1 + directions[:, j]) / 2, beta) for j in range(dimensions))
        assert abs(np.corrcoef(lengths, directions[:, 0])[0, 1]) < 4 / math.sqrt(DRAWS)
    signs = (directions > 0).mean(axis=0)
    assert np.abs(signs - 0.5).max() < 4 * 0.5 / math.sqrt(DRAWS)


@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_gaussian_noise_is_normal_in_every_coordinate_and_in_length(dimensions: int) -> None:
    noise = draws("gaussian", dimensions, scale=3.0)
    assert all(fits(noise[:, j], stats.norm(scale=3.0)) for j in range(dimensions))
    assert fits((noise**2).sum(axis=1) / 9.0, stats.chi2(dimensions))
    correlation = np.corrcoef(noise.T).reshape(dimensions, dimensions) - np.eye(dimensions)
    assert np.abs(correlation).max() < 4.5 / math.sqrt(DRAWS)


def test_a_wrong_distribution_would_be_noticed() -> None:
    noise = draws("spherical", 3)
    assert not fits(np.linalg.norm(noise, axis=1), stats.gamma(3, scale=1.1))


def test_noise_of_the_operating_system_never_repeats() -> None:
    mechanism = Mechanism("spherical", 1.0, 4)
    assert len({add_noise(mechanism, np.zeros(4), system_bytes).tobytes() for _ in range(50)}) == 50


@pytest.mark.parametrize("kind", ["spherical", "gaussian"])
def test_expected_norm_is_the_mean_length(kind: NoiseKind) -> None:
    lengths = np.linalg.norm(draws(kind, 3), axis=1)
    error = lengths.std() / math.sqrt(DRAWS)
    assert abs(lengths.mean() - Mechanism(kind, 1.0, 3).expected_norm) < 4 * error


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e3))
def test_result_is_on_the_public_grid(weight: float, scale: float) -> None:
    noisy = add_noise(Mechanism("gaussian", scale, 1), np.array([weight]), make_seeded_bytes(5))[0]
    steps = noisy * 2.0 ** (GRID_BITS - math.frexp(scale)[1])
    assert steps == round(steps)


def test_neighbouring_weights_share_the_output_grid() -> None:
    """Low bits of the weights do not survive: outputs of w and of w + tiny come from one set of points."""
    mechanism = Mechanism("gaussian", 1.0, 1)
    plain, shifted = (add_noise(mechanism, np.array([w]), make_seeded_bytes(9))[0] for w in (0.0, 2.0**-60))
    assert plain == shifted


def test_more_bits_are_read_until_the_rounding_is_certain() -> None:
    """A stream whose first bits are all zero leaves ln U unbounded; the sampler must ask again, not fail."""
    requests: list[int] = []
    good = make_seeded_bytes(3)

    def source(count: int) -> bytes:
        requests.append(count)
        return bytes(count) if len(requests) == 1 else good(count)

    noisy = add_noise(Mechanism("spherical", 1.0, 2), np.zeros(2), source)
    assert len(requests) > 1
    assert np.isfinite(noisy).all()


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"), [(0.1, 1e-8, 45.93736), (1.0, 1e-6, 4.224679), (4.0, 1e-10, 1.575316)]
)
def test_gaussian_matches_the_vectors_of_the_specification(epsilon: float, delta: float, expected: float) -> None:
    assert calibrate_unit_gaussian(Budget(epsilon, delta)) == pytest.approx(expected, rel=1e-6)


@given(st.floats(0.01, 20.0), st.floats(-14, -1))
def test_gaussian_matches_dp_accounting(epsilon: float, log_delta: float) -> None:
    delta = 10.0**log_delta
    expected = dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert calibrate_unit_gaussian(Budget(epsilon, delta)) == pytest.approx(expected, rel=1e-6)


def test_a_slightly_smaller_gaussian_is_not_private() -> None:
    budget = Budget(0.5, 1e-5)
    sigma = calibrate_unit_gaussian(budget)
    for factor, holds in ((1.0, True), (1 - 1e-6, False)):
        accountant = dp_accounting.get_epsilon_gaussian(sigma * factor, budget.delta)
        assert (accountant <= budget.epsilon * (1 + 1e-9)) is holds


def test_gaussian_needs_delta() -> None:
    with pytest.raises(ParameterError, match="delta must be > 0"):
        calibrate_unit_gaussian(Budget(1.0))


def test_the_shorter_noise_is_taken_when_delta_is_allowed() -> None:
    budget = Budget(1.0, 1e-6)
    for dimensions in range(1, 60):
        chosen = calibrate(2.0, dimensions=dimensions, budget=budget)
        other: NoiseKind = "gaussian" if chosen.kind == "spherical" else "spherical"
        scale = 2.0 * calibrate_unit_gaussian(budget) if other == "gaussian" else 2.0
        assert chosen.expected_norm <= Mechanism(other, scale, dimensions).expected_norm * (1 + 1e-12)
    assert calibrate(2.0, dimensions=60, budget=Budget(1.0)).kind == "spherical"


@pytest.mark.parametrize(("dimensions", "kind"), [(2, "spherical"), (50, "spherical"), (5000, "gaussian")])
@pytest.mark.parametrize("sensitivity", [0.3, 7.0])
def test_calibrated_noise_spends_its_budget_and_no_more(dimensions: int, kind: NoiseKind, sensitivity: float) -> None:
    budget = Budget(1.0, 1e-6)
    noise = calibrate(sensitivity, dimensions=dimensions, budget=budget)
    assert noise.kind == kind
    less = replace(noise, scale=0.999 * noise.scale)
    assert noise.delta(1.0, sensitivity=sensitivity) <= 1e-6 < less.delta(1.0, sensitivity=sensitivity)


def test_scale_is_never_rounded_down() -> None:
    from fractions import Fraction

    mechanism = calibrate(0.1, dimensions=3, budget=Budget(0.3))
    assert Fraction(mechanism.scale) * Fraction(0.3) >= Fraction(0.1)


@given(st.floats(1e-6, 1e3), st.just(0.0) | st.floats(1e-90, 0.5), st.integers(1, 100))
def test_shares_never_exceed_the_budget(epsilon: float, delta: float, parts: int) -> None:
    from fractions import Fraction

    share = Budget(epsilon, delta).split(parts)
    assert Fraction(share.epsilon) * parts <= Fraction(epsilon)
    assert Fraction(share.delta) * parts <= Fraction(delta)
    assert share.epsilon == pytest.approx(epsilon / parts, rel=1e-15)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ParameterError, match="epsilon must be a finite number > 0"):
        Budget(epsilon)


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_bad_delta_is_refused(delta: float) -> None:
    with pytest.raises(ParameterError, match=r"delta must be in \[0, 1\)"):
        Budget(1.0, delta)


@pytest.mark.parametrize(
    ("epsilon", "delta", "message"),
    [
        (1e-13, 0.0, "epsilon must be between"),
        (1e7, 0.0, "epsilon must be between"),
        (1.0, 1e-200, "delta must be 0 or"),
        ("1", 0.0, "epsilon must be a number, got '1'"),
        (True, 0.0, "epsilon must be a number, got True"),
    ],
)
def test_budgets_beyond_all_use_are_refused(epsilon: float, delta: float, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Budget(epsilon, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-12, 1e-100), (1e6, 1e-100), (1e-12, 0.9), (1e6, 0.9)])
@pytest.mark.parametrize("sensitivity", [1e-120, 1e120])
def test_the_furthest_budgets_still_give_noise(epsilon: float, delta: float, sensitivity: float) -> None:
    mechanism = calibrate(sensitivity, dimensions=40, budget=Budget(epsilon, delta))
    assert np.isfinite(add_noise(mechanism, np.full(40, 1e100), system_bytes)).all()


def test_numpy_numbers_do_not_lower_the_precision() -> None:
    budget = Budget(np.float32(0.3))  # type: ignore[arg-type]
    assert type(budget.epsilon) is float
    assert calibrate(0.1, dimensions=2, budget=budget).scale * budget.epsilon >= 0.1


def test_threads_do_not_disturb_each_other() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from flint import ctx

    before = ctx.prec
    with ThreadPoolExecutor(6) as pool:
        sigmas = list(pool.map(calibrate_unit_gaussian.__wrapped__, [Budget(1.0, 1e-6)] * 30))
    assert set(sigmas) == {calibrate_unit_gaussian(Budget(1.0, 1e-6))}
    assert ctx.prec == before


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan, math.inf])
def test_bad_sensitivity_is_refused(sensitivity: float) -> None:
    with pytest.raises(ParameterError, match="the sensitivity must be between"):
        calibrate(sensitivity, dimensions=1, budget=Budget(1.0))


def test_a_budget_is_split_into_whole_parts() -> None:
    with pytest.raises(ParameterError, match=r"parts must be a whole number, got 0\.5"):
        Budget(1.0).split(0.5)  # type: ignore[arg-type]


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(ParameterError, match="weights must be a vector of 3"):
        add_noise(Mechanism("gaussian", 1.0, 3), np.zeros(2), system_bytes)


@pytest.mark.parametrize("weight", [1e300, -1e308])
def test_weights_with_more_steps_of_the_grid_than_there_are_floats_are_drawn(weight: float) -> None:
    assert add_noise(Mechanism("gaussian", 1.0, 1), np.array([weight]), system_bytes).tolist() == [weight]


@pytest.mark.parametrize("kind", get_args(NoiseKind))
@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused_and_not_told(kind: NoiseKind, weight: float) -> None:
    with pytest.raises(ParameterError) as refusal:
        add_noise(Mechanism(kind, 1.0, 3), np.array([0.125, weight, 0.375]), system_bytes)
    assert str(refusal.value) == "weights must be finite, and one is not"


def exact(mechanism: Mechanism, weights: Doubles, uniforms: Uniforms) -> list[float] | None:
    """weights + noise on the grid, by interval arithmetic alone; None if the bits known don't tell."""
    draw = _transform_to_spherical if mechanism.kind == "spherical" else _transform_to_gaussian
    with set_precision(uniforms.bits_read + 200):
        noise = draw(uniforms.list_intervals(), mechanism.dimensions, arb(mechanism.scale))
        sums = [x + weight for x, weight in zip(noise, weights.tolist(), strict=True)]
        points = _round_to_grid(sums, mechanism.grid_exponent)
    return None if points is None else [math.ldexp(point, -mechanism.grid_exponent) for point in points]


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(get_args(NoiseKind)),
    dimensions=st.integers(1, 9) | st.sampled_from([31, 32, 33, 300]),
    scale=st.floats(1e-100, 1e100),
    size=st.floats(1e-30, 1e5),
    leading=st.sampled_from([0, 1, 20, 38]),
    flipped=st.booleans(),
)
def test_the_quick_way_gives_the_exact(
    seed: int, kind: NoiseKind, dimensions: int, scale: float, size: float, leading: int, flipped: bool
) -> None:
    """Uniforms near 0, 1 and each eighth of a turn among them, where the logarithm and the angle are at their ends."""
    random = np.random.default_rng(seed)
    count = (dimensions + dimensions % 2) * (2 if kind == "spherical" else 1)
    stream = random.integers(0, 2**64, (count, 2), dtype=np.uint64)
    stream[:, 0] = (stream[:, 0] | np.uint64(2**63)) >> np.uint64(leading)
    if flipped:
        stream[:, 0] = ~stream[:, 0]
    stream[1::2, 0] ^= random.integers(0, 8, len(stream) // 2, dtype=np.uint64) << np.uint64(61)
    uniforms = Uniforms(len(stream), lambda _: stream.astype(">u8").tobytes())
    mechanism = Mechanism(kind, scale, dimensions)
    weights = random.standard_normal(dimensions) * scale * size
    quick = _add_noise_in_c(mechanism, uniforms, weights)
    # A large quotient of length and norm, as with all of these extremes at once, puts more into doubt.
    assert quick is not None or (kind == "spherical" and leading > 1)
    if quick is None:
        return
    assert quick.tolist() == exact(mechanism, weights, uniforms)


@pytest.mark.parametrize("kind", get_args(NoiseKind))
@pytest.mark.parametrize(
    ("first", "weight"),
    [(0, 0.0), (2**20, 0.0), (2**64 - 2**20, 0.0), (2**63, 1e30), (2**63, -1e100)],
    ids=["0", "near 0", "near 1", "large weight", "huge weight"],
)
def test_what_the_quick_way_refuses_is_drawn_all_the_same(kind: NoiseKind, first: int, weight: float) -> None:
    count = 4 if kind == "spherical" else 2
    chunk = first.to_bytes(8, "big") + bytes(range(16 * count - 8))
    mechanism, weights = Mechanism(kind, 1.0, 1), np.array([weight])
    source, good = iter([chunk]), make_seeded_bytes(4)
    assert _add_noise_in_c(mechanism, Uniforms(count, lambda _: chunk), weights) is None
    noisy = add_noise(mechanism, weights, lambda count: next(source, b"") or good(count))
    expected = exact(mechanism, weights, Uniforms(count, lambda _: chunk))
    assert np.isfinite(noisy[0])
    assert expected is None or noisy.tolist() == expected


def test_a_sum_beside_a_boundary_is_refused() -> None:
    """Weights that put the sum in the middle between two points but for an offset: the quick way answers or refuses."""
    uniforms = Uniforms(2, make_seeded_bytes(6))
    mechanism = Mechanism("gaussian", 1.0, 1)
    with set_precision(300):
        (noise,) = _transform_to_gaussian(uniforms.list_intervals(), 1, arb(1))
        middle = (noise * arb((1, mechanism.grid_exponent))).floor() + arb(0.5)
        gap = middle * arb((1, -mechanism.grid_exponent)) - noise
    # The nearest double puts the sum within 2^-93 of the boundary; the steps of the grid are 2^-39.
    for offset, answers in ((0.0, False), (2.0**-90, False), (2.0**-60, True), (-(2.0**-60), True)):
        weights = np.array([float(gap) + offset])
        quick = _add_noise_in_c(mechanism, uniforms, weights)
        assert (quick is not None) is answers
        expected = exact(mechanism, weights, uniforms)
        assert expected is not None
        assert quick is None or quick.tolist() == expected
        assert add_noise(mechanism, weights, make_seeded_bytes(6)).tolist() == expected


def test_more_dimensions_than_the_quick_way_has_room_for_are_drawn_all_the_same() -> None:
    mechanism, weights = Mechanism("spherical", 1.0, 1 << 14), np.zeros(1 << 14)
    assert _add_noise_in_c(mechanism, Uniforms(2 << 14, make_seeded_bytes(2)), weights) is None
    length = np.linalg.norm(add_noise(mechanism, weights, make_seeded_bytes(2)))
    assert abs(length / mechanism.expected_norm - 1) < 0.05


def test_a_source_that_gives_too_few_bytes_is_refused() -> None:
    with pytest.raises(ParameterError, match="random_bytes must give 32 bytes when asked for, got 31"):
        add_noise(Mechanism("gaussian", 1.0, 2), np.zeros(2), lambda count: bytes(count - 1))


@given(
    kind=st.sampled_from(get_args(NoiseKind)),
    dimensions=st.sampled_from([1, 2, 7, 60]),
    budget=st.builds(Budget, st.floats(0.02, 12.0), st.just(0.0) | st.floats(1e-12, 0.1)),
    sensitivity=st.floats(1e-9, 1e9),
)
def test_what_noise_spends_is_what_it_was_made_for(
    kind: NoiseKind, dimensions: int, budget: Budget, sensitivity: float
) -> None:
    if kind == "gaussian" and budget.delta == 0:
        return
    scale = calibrate_unit_gaussian(budget) if kind == "gaussian" else spherical_scale_or_pure(budget, dimensions)
    noise = Mechanism(kind, math.nextafter(scale * sensitivity, math.inf), dimensions)
    spent = noise.delta(budget.epsilon, sensitivity=sensitivity)
    assert spent <= budget.delta * (1 + 1e-9)
    assert replace(noise, scale=0.9 * noise.scale).delta(budget.epsilon, sensitivity=sensitivity) > budget.delta
    curve = [noise.delta(factor * budget.epsilon, sensitivity=sensitivity) for factor in (0.1, 0.5, 0.9, 1.0, 1.1, 2.0)]
    assert curve == sorted(curve, reverse=True)
    assert all(0 <= one <= 1 for one in curve)


def spherical_scale_or_pure(budget: Budget, dimensions: int) -> float:
    return calibrate_unit_spherical(budget, dimensions=dimensions) if budget.delta else 1.0 / budget.epsilon


@given(st.floats(0.05, 8.0), st.floats(0.2, 20.0))
def test_what_gaussian_noise_spends_agrees_with_dp_accounting(epsilon: float, sigma: float) -> None:
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(sigma)
    ours = Mechanism("gaussian", 3.0 * sigma, 5).delta(epsilon, sensitivity=3.0)
    assert ours == pytest.approx(loss.get_delta_for_epsilon(epsilon), rel=1e-6, abs=1e-12)


def test_where_nothing_is_known_nothing_is_promised() -> None:
    assert Mechanism("spherical", 1.0, 5000).delta(1.0, sensitivity=2.0) == 1.0
    assert Mechanism("spherical", 1.0, 5).delta(1.0, sensitivity=1e6) == 1.0
    assert round_up_delta(arb.nan()) == round_up_delta(arb.pos_inf()) == 1.0


def test_what_is_spent_is_never_rounded_down() -> None:
    with set_precision(200):
        third = arb(1) / 3
        assert arb(round_up_delta(third)) >= third
        assert round_up_delta(third) == pytest.approx(1 / 3, rel=1e-15)
    assert round_up_delta(arb(-0.5)) == 0.0
    assert round_up_delta(arb(7)) == 1.0
