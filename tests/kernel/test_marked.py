"""Batches that end at `BATCH_END`, as Poisson sampling needs: any number of rows, divided by the expected one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.errors import ParameterError
from boltdp.kernel.sgd import BATCH_END, State, list_builds, run
from boltdp.losses import Logistic
from boltdp.privacy.mechanisms import Mechanism, NoiseKind
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import (
    ELEMENTS,
    Element,
    declared_classes,
    finished,
    noise_for,
    packed_rows,
    random_batches,
    recipes,
)
from tests.kernel.reference import reference_sgd

KEY = bytes(range(32))
RECIPE = Recipe(loss=Logistic(), dims=2, rows=10, batch_size=4, passes=2, schedule=make_constant_schedule(0.5))
ROWS = np.array([[1.0, 0.5, 0.0], [0.0, 0.1, 0.2]])
END = BATCH_END

seeds = st.integers(0, 2**32)
mechanisms: st.SearchStrategy[NoiseKind | None] = st.sampled_from([None, "gaussian", "spherical"])


def feed(states: list[State], *positions: int, rows: Floats = ROWS) -> None:
    run(states, rows, positions=np.array(positions, np.int64))


def secret(recipe: Recipe, kind: NoiseKind | None) -> tuple[Mechanism | None, bytes | None]:
    return (None, None) if kind is None else (noise_for(recipe, kind), KEY)


@given(recipes(largest=40, dims=st.sampled_from([1, 3, 17])), seeds, mechanisms)
def test_marked_batches_agree_with_the_reference(recipe: Recipe, seed: int, kind: NoiseKind | None) -> None:
    rows, positions = packed_rows(recipe, seed=seed, bad=0.1), random_batches(recipe, seed=seed)
    noise, key = secret(recipe, kind)
    ours = finished(recipe, rows, noise=noise, key=key, positions=positions)
    classes = declared_classes(recipe.loss)
    expected = reference_sgd(recipe, rows, classes=classes, noise=noise, key=key or b"", positions=positions)
    assert ours.is_finished
    # Rows may cancel: then the weights are rounding.
    assert np.linalg.norm(ours.weights - expected) <= 1e-12 + 1e-9 * np.linalg.norm(expected)


@given(recipes(largest=90), seeds, mechanisms, st.sampled_from(ELEMENTS), st.data())
def test_marked_batches_have_the_same_bits_from_every_build_cut_and_process(
    recipe: Recipe, seed: int, kind: NoiseKind | None, element: Element, data: st.DataObject
) -> None:
    rows, positions = packed_rows(recipe, seed=seed, element=element, bad=0.1), random_batches(recipe, seed=seed)
    noise, key = secret(recipe, kind)
    whole = finished(recipe, rows, noise=noise, key=key, positions=positions)
    fed = np.tile(positions, recipe.passes)
    cuts = data.draw(st.lists(st.integers(0, len(fed)), max_size=6).map(sorted))
    for build in list_builds():
        state = State(recipe, classes=declared_classes(recipe.loss), noise=noise, key=key, marked=True)
        for start, stop in itertools.pairwise([0, *cuts, len(fed)]):
            state = State.from_bytes(state.to_bytes())
            run([state], rows, positions=fed[start:stop], build=build)
        assert state.to_bytes() == whole.to_bytes()


def test_the_usual_ends_of_equal_batches_change_nothing() -> None:
    recipe = Recipe(loss=Logistic(), dims=5, rows=40, batch_size=4, passes=2, schedule=make_constant_schedule(0.5))
    rows = packed_rows(recipe, seed=1)
    positions = np.insert(np.arange(40), range(4, 41, 4), END)
    assert (finished(recipe, rows).weights == finished(recipe, rows, positions=positions).weights).all()


def test_the_sum_is_divided_by_the_expected_size_of_a_batch() -> None:
    """10 rows in 3 batches: a lone row counts 3/10, an empty batch moves nothing, two rows count twice."""
    state = State(RECIPE, marked=True)
    feed([state], 0, END)
    assert state.weights[0, 0] == pytest.approx(0.5 * 0.3 * 0.5 * 0.5, rel=1e-14)
    before = state.weights
    feed([state], END)
    assert (state.weights == before).all()
    twice = State(RECIPE, marked=True)
    feed([twice], 0, 0, END)
    assert twice.weights[0, 0] == pytest.approx(2 * before[0, 0], rel=1e-14)


def test_an_empty_batch_still_shrinks_the_weights_and_has_noise() -> None:
    recipe = Recipe(
        loss=Logistic(),
        dims=2,
        rows=10,
        batch_size=5,
        passes=1,
        schedule=make_constant_schedule(1.0),
        regularization=0.5,
    )
    plain = State(recipe, marked=True)
    noisy = State(recipe, marked=True, noise=noise_for(recipe, "gaussian"), key=KEY)
    feed([plain, noisy], 0, END)
    first = plain.weights, noisy.weights
    feed([plain, noisy], END)
    assert (plain.weights == 0.5 * first[0]).all()
    assert (noisy.weights != 0.5 * first[1]).all()


def test_a_pass_is_over_after_its_batches() -> None:
    state = State(RECIPE, marked=True)
    feed([state], *[0] * 25, END, END)
    assert (state.updates, state.rows_done, state.passes_done) == (2, 25, 0)
    feed([state], END)
    assert (state.updates, state.rows_done, state.passes_done) == (3, 0, 1)


@pytest.mark.parametrize("after", [END, 0], ids=["end", "row"])
def test_what_follows_the_last_batch_is_refused_and_changes_nothing(after: int) -> None:
    state = State(RECIPE, marked=True)
    feed([state], 1, END)
    before = state.to_bytes()
    rest = [0, END, END, END, 0, END, END]
    with pytest.raises(ParameterError, match="more rows were fed than the passes have left"):
        feed([state], *rest, after)
    assert state.to_bytes() == before
    feed([state], *rest)
    assert state.is_finished
    with pytest.raises(ParameterError, match="more rows were fed"):
        feed([state], after)
    with pytest.raises(ParameterError, match="more rows were fed"):
        run([state], ROWS)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("label", [-1.0, 0.5, 1.0, -np.inf, np.inf, np.nan])
def test_no_label_ends_a_batch(label: float, element: Element) -> None:
    rows: Floats = np.array([[label, 0.5, 0.0]] * 5, np.dtype(element))
    state = State(RECIPE, marked=True)
    run([state], rows)
    run([state], rows, positions=np.array([0, 0]))
    assert (state.updates, state.rows_done) == (0, 7)


def test_in_other_recipes_the_end_of_a_batch_is_a_row_without_a_gradient() -> None:
    neutral, drawn = np.vstack([ROWS, np.zeros((1, 3))]), State(RECIPE)
    expected = State(RECIPE)
    feed([drawn], 0, END, 1)
    feed([expected], 0, 2, 1, rows=neutral)
    assert drawn.to_bytes() == expected.to_bytes()


def test_marked_and_other_models_share_a_scan() -> None:
    marked, other = State(RECIPE, marked=True), State(RECIPE)
    feed([other, marked], 0, END, 1)
    assert (marked.updates, marked.rows_done, other.updates, other.rows_done) == (1, 2, 1, 3)
