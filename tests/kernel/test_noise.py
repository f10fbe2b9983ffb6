"""Noise inside the updates: the distributions that it claims, from every key its own, and the same bits everywhere."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from boltdp.errors import ParameterError
from boltdp.kernel.sgd import State, list_builds, run
from boltdp.losses import Logistic, Loss, Multinomial
from boltdp.privacy.mechanisms import Mechanism, NoiseKind
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import (
    DIMS,
    ELEMENTS,
    Element,
    declared_classes,
    finished,
    noise_for,
    packed_rows,
    recipes,
    same_bits,
)
from tests.kernel.reference import reference_noise, reference_sgd, ziggurat

KEY = bytes(range(32))
KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)

#: The tests below have fixed keys: a p-value this small would be no accident.
RARE = 1e-3

seeds = st.integers(0, 2**32)
kinds = st.sampled_from(KINDS)


def update_recipe(loss: Loss, *, dims: int, updates: int) -> Recipe:
    """Steps and regularisation of 1: after each update the weights are minus the sum of its gradient and noise."""
    rows = max(2, updates)
    return Recipe(
        loss=loss,
        dims=dims,
        rows=rows,
        batch_size=1,
        passes=1,
        schedule=make_constant_schedule(1.0),
        regularization=1.0,
    )


def draws(loss: Loss, kind: NoiseKind, *, dims: int, updates: int, key: bytes = KEY) -> npt.NDArray[np.float64]:
    """The noise of many updates, of scale 1, (updates, vectors, dims): rows of zeros have no gradient."""
    recipe = update_recipe(loss, dims=dims, updates=updates)
    state = State(recipe, noise=noise_for(recipe, kind, scale=1.0), key=key)
    nothing = np.zeros((1, 1 + dims))
    out = np.empty((updates, recipe.loss.vector_count, dims))
    for i in range(updates):
        run([state], nothing)
        out[i] = -state.weights
    return out


def normals(count: int, *, key: bytes = KEY) -> npt.NDArray[np.float64]:
    """Many Gaussian numbers, of one update."""
    return draws(Logistic(), "gaussian", dims=count, updates=1, key=key).ravel()


@pytest.fixture(scope="module")
def million() -> npt.NDArray[np.float64]:
    return normals(8_000_000)


@pytest.fixture(scope="module", params=[1, 3, 50])
def spheres(request: pytest.FixtureRequest) -> npt.NDArray[np.float64]:
    return draws(Logistic(), "spherical", dims=request.param, updates=20_000)[:, 0, :]


def test_gaussian_numbers_are_normal(million: npt.NDArray[np.float64]) -> None:
    assert stats.kstest(million[:2_000_000], "norm").pvalue > RARE
    edges = stats.norm.ppf(np.linspace(0, 1, 2001))
    counts = np.histogram(million, bins=edges)[0]
    assert counts.sum() == million.size
    assert stats.chisquare(counts).pvalue > RARE


def test_gaussian_numbers_have_the_moments_of_the_normal(million: npt.NDArray[np.float64]) -> None:
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        assert abs(np.mean(million**power) - moment) < 4 * math.sqrt(variance / million.size)


def test_the_tail_beyond_the_layers_is_that_of_the_normal(million: npt.NDArray[np.float64]) -> None:
    start = ziggurat()[1]
    tail = np.abs(million[np.abs(million) > start])
    expected = 2 * stats.norm.sf(start)
    assert stats.binomtest(tail.size, million.size, expected).pvalue > RARE
    assert stats.binomtest(int(np.sum(million > start)), tail.size).pvalue > RARE
    assert stats.kstest(stats.norm.sf(tail) / stats.norm.sf(start), "uniform").pvalue > RARE
    assert tail.max() > 4.8


def test_numbers_around_every_edge_of_a_layer_are_as_many_as_they_should_be(
    million: npt.NDArray[np.float64],
) -> None:
    """A layer that is a little off would be seen next to its edge."""
    edges = np.array(ziggurat()[1:])[::-1]
    cuts = np.unique(np.concatenate([edges, edges * 0.995, edges * 1.005]))
    cuts = np.append(cuts, np.inf)
    counts = np.histogram(np.abs(million), bins=cuts)[0]
    expected = 2 * np.diff(stats.norm.cdf(cuts)) * million.size
    assert expected.sum() == pytest.approx(million.size)
    many = expected > 20
    merged = np.append(counts[many], counts[~many].sum()), np.append(expected[many], expected[~many].sum())
    assert stats.chisquare(*merged, sum_check=False).pvalue > RARE


def test_no_gaussian_number_comes_twice_and_none_is_zero(million: npt.NDArray[np.float64]) -> None:
    assert np.unique(million[:1_000_000]).size == 1_000_000
    assert np.abs(million).min() > 0


def test_coordinates_and_updates_are_independent() -> None:
    noise = draws(Logistic(), "gaussian", dims=24, updates=20_000)[:, 0, :]
    assert stats.kstest(noise.ravel(), "norm").pvalue > RARE
    assert stats.kstest(np.sum(noise * noise, axis=1), stats.chi2(24).cdf).pvalue > RARE
    for values in (noise, noise * noise):
        side_by_side = np.hstack([values[:-1], values[1:]])
        correlations = np.asarray(np.corrcoef(side_by_side.T))[np.triu_indices(48, 1)]
        assert np.abs(correlations).max() < 4.8 / math.sqrt(len(side_by_side))


def test_the_length_of_spherical_noise_is_gamma(spheres: npt.NDArray[np.float64]) -> None:
    lengths = np.linalg.norm(spheres, axis=1)
    assert stats.kstest(lengths, stats.gamma(spheres.shape[1]).cdf).pvalue > RARE
    assert np.abs(np.corrcoef(lengths[:-1], lengths[1:])[0, 1]) < 4 / math.sqrt(lengths.size)


def test_the_direction_of_spherical_noise_is_uniform_and_independent_of_its_length(
    spheres: npt.NDArray[np.float64],
) -> None:
    """The square of a coordinate of a uniform direction is Beta(1/2, (d-1)/2); its signs are fair and independent."""
    updates, dims = spheres.shape
    lengths = np.linalg.norm(spheres, axis=1)
    directions = spheres / lengths[:, None]
    for i in range(min(dims, 3)):
        assert stats.binomtest(int(np.sum(directions[:, i] > 0)), updates).pvalue > RARE
        if dims > 1:
            square = directions[:, i] ** 2
            assert stats.kstest(square, stats.beta(0.5, (dims - 1) / 2).cdf).pvalue > RARE
            assert abs(np.corrcoef(square, lengths)[0, 1]) < 4 / math.sqrt(updates)
    if dims > 1:
        axis = np.random.default_rng(1).standard_normal(dims)
        along = directions @ (axis / np.linalg.norm(axis))
        assert stats.kstest(along**2, stats.beta(0.5, (dims - 1) / 2).cdf).pvalue > RARE


@pytest.mark.parametrize("kind", KINDS)
def test_multinomial_noise_sums_to_zero_and_has_the_dimensions_of_the_subspace(kind: NoiseKind) -> None:
    noise = draws(Multinomial(4), kind, dims=5, updates=10_000)
    assert np.abs(noise.sum(axis=1)).max() < 1e-12 * np.abs(noise).max()
    squares = np.sum(noise * noise, axis=(1, 2))
    if kind == "spherical":
        assert stats.kstest(np.sqrt(squares), stats.gamma(15).cdf).pvalue > RARE
    else:
        assert stats.kstest(squares, stats.chi2(15).cdf).pvalue > RARE
        # one coordinate of the projection keeps (K-1)/K of the variance
        assert stats.kstest(noise[:, 2, 3], stats.norm(scale=math.sqrt(0.75)).cdf).pvalue > RARE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [1, 3, 4, 50, 64, 65, 700])
@pytest.mark.parametrize("loss", [Logistic(), Multinomial(2), Multinomial(5)], ids=str)
def test_noise_agrees_with_the_reference(loss: Loss, dims: int, kind: NoiseKind) -> None:
    noise = draws(loss, kind, dims=dims, updates=5)
    mechanism = noise_for(update_recipe(loss, dims=dims, updates=5), kind, scale=1.0)
    for update in range(5):
        expected = reference_noise(mechanism, KEY, update, vectors=loss.vector_count, dims=dims)
        assert np.abs(noise[update] - expected).max() <= 1e-12 * np.abs(expected).max()


@given(recipes(largest=30, dims=st.sampled_from([1, 3, 17])), seeds, kinds, st.binary(min_size=32, max_size=32))
def test_training_with_noise_agrees_with_the_reference(recipe: Recipe, seed: int, kind: NoiseKind, key: bytes) -> None:
    rows = packed_rows(recipe, seed=seed, bad=0.1)
    noise, classes = noise_for(recipe, kind), declared_classes(recipe.loss)
    ours = finished(recipe, rows, noise=noise, key=key).weights
    expected = reference_sgd(recipe, rows, classes=classes, noise=noise, key=key)
    assert np.linalg.norm(ours - expected) <= 1e-12 + 1e-9 * np.linalg.norm(expected)


@given(recipes(largest=100), seeds, kinds, st.sampled_from(ELEMENTS), st.data())
def test_noise_has_the_same_bits_from_every_build_cut_and_process(
    recipe: Recipe, seed: int, kind: NoiseKind, element: Element, data: st.DataObject
) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    noise, classes = noise_for(recipe, kind), declared_classes(recipe.loss)
    whole = finished(recipe, rows, noise=noise, key=KEY)
    fed = rows[np.arange(recipe.passes * len(rows)) % len(rows)]
    cuts = data.draw(st.lists(st.integers(0, len(fed)), max_size=6).map(sorted))
    for build in list_builds():
        state = State(recipe, classes=classes, noise=noise, key=KEY)
        for start, stop in itertools.pairwise([0, *cuts, len(fed)]):
            state = State.from_bytes(state.to_bytes())
            run([state], fed[start:stop], build=build)
        assert state.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [*DIMS, 64, 784, 1537])
def test_every_width_has_the_same_noise_from_every_build(dims: int, kind: NoiseKind) -> None:
    recipe = Recipe(
        loss=Multinomial(3), dims=dims, rows=8, batch_size=2, passes=1, schedule=make_constant_schedule(0.2)
    )
    rows = packed_rows(recipe, seed=dims, element=np.float32)
    made = [finished(recipe, rows, noise=noise_for(recipe, kind), key=KEY, build=build) for build in list_builds()]
    assert len({state.to_bytes() for state in made}) == 1


def test_models_in_one_scan_have_the_noise_that_they_have_alone() -> None:
    recipe = Recipe(loss=Logistic(), dims=9, rows=50, batch_size=5, passes=1, schedule=make_constant_schedule(0.2))
    rows = packed_rows(recipe, seed=1)
    noises = [None, noise_for(recipe, "gaussian"), noise_for(recipe, "spherical")]
    keys = [None, KEY, KEY[::-1]]
    together = [State(recipe, noise=noise, key=key, classes=3) for noise, key in zip(noises, keys, strict=True)]
    run(together, rows)
    alone = [finished(recipe, rows, noise=noise, key=key) for noise, key in zip(noises, keys, strict=True)]
    assert same_bits(together, alone)


def test_keys_that_differ_in_one_bit_have_independent_noise() -> None:
    ours = normals(100_000)
    for bit in (0, 100, 255):
        other = (int.from_bytes(KEY, "little") ^ 1 << bit).to_bytes(32, "little")
        theirs = normals(100_000, key=other)
        assert not np.any(ours == theirs)
        assert abs(np.corrcoef(ours, theirs)[0, 1]) < 4 / math.sqrt(ours.size)


def test_noise_is_multiplied_by_its_scale_and_the_step() -> None:
    recipe = Recipe(loss=Logistic(), dims=6, rows=2, batch_size=2, passes=1, schedule=make_constant_schedule(0.25))
    rows = np.zeros((2, 7))
    one, ten = (
        finished(recipe, rows, noise=noise_for(recipe, "gaussian", scale=scale), key=KEY) for scale in (1.0, 10.0)
    )
    unit = draws(Logistic(), "gaussian", dims=6, updates=1)[0]
    assert np.allclose(one.weights, -0.25 * unit, rtol=1e-14)
    assert np.allclose(ten.weights, -2.5 * unit, rtol=1e-14)


def test_noise_is_inside_the_projection() -> None:
    recipe = Recipe(
        loss=Logistic(), dims=6, rows=20, batch_size=2, passes=1, schedule=make_constant_schedule(0.25), radius=0.1
    )
    state = finished(recipe, np.zeros((20, 7)), noise=noise_for(recipe, "spherical", scale=100.0), key=KEY)
    assert np.linalg.norm(state.weights) == pytest.approx(0.1)


RECIPE = Recipe(loss=Logistic(), dims=3, rows=10, batch_size=2, passes=1, schedule=make_constant_schedule(0.1))


@pytest.mark.parametrize(
    ("noise", "key", "message"),
    [
        (None, KEY, "key must be None without noise, got one"),
        (Mechanism("gaussian", 1.0, 3), None, "key must have 32 bytes, got none"),
        (Mechanism("gaussian", 1.0, 3), KEY[:31], "key must have 32 bytes, got 31"),
        (Mechanism("gaussian", 1.0, 4), KEY, "noise must have 3 dimensions, got 4"),
        (Mechanism("gaussian", 1e-101, 3), KEY, "outside the kernel's range"),
        (Mechanism("gaussian", 1e100, 3), KEY, "outside the kernel's range"),
    ],
)
def test_noise_that_makes_no_sense_is_refused(noise: Mechanism | None, key: bytes | None, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        State(RECIPE, noise=noise, key=key)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("kind", ["gaussian", "spherical"])
def test_noise_of_no_scale_cannot_be_stated(kind: NoiseKind, scale: float) -> None:
    with pytest.raises(ParameterError, match=rf"^the scale of noise must be a finite number > 0, got {scale}$"):
        Mechanism(kind, scale, 3)


def test_errors_say_nothing_about_the_key() -> None:
    with pytest.raises(ParameterError) as caught:
        State(RECIPE, noise=Mechanism("gaussian", 1.0, 3), key=b"secret")
    assert "secret" not in str(caught.value)


def test_the_largest_noise_allowed_does_not_overflow() -> None:
    recipe = Recipe(loss=Logistic(), dims=4, rows=50, batch_size=1, passes=1, schedule=make_constant_schedule(1.0))
    noise = noise_for(recipe, "spherical", scale=1e100 / 50 / 4)
    assert np.isfinite(finished(recipe, packed_rows(recipe, seed=1), noise=noise, key=KEY).weights).all()
