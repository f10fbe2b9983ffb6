"""Batches that end at markers, as Poisson sampling needs: any number of rows, divided by the expected one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp._arrays import Floats
from boltdp.errors import ParameterError
from boltdp.kernel import State, builds, run
from boltdp.losses import Logistic
from boltdp.privacy.mechanisms import Kind, Mechanism
from boltdp.privacy.step_schedules import constant
from boltdp.privacy.training_problem import Recipe
from tests.kernel.cases import (
    ELEMENTS,
    Element,
    declared_classes,
    finished,
    noise_for,
    packed_rows,
    recipes,
    with_markers,
)
from tests.kernel.reference import reference_sgd

KEY = bytes(range(32))
RECIPE = Recipe(loss=Logistic(), dims=2, rows=10, batch_size=4, passes=2, schedule=constant(0.5))
MARKER = [-1.0, 0.0, 0.0]

seeds = st.integers(0, 2**32)
mechanisms: st.SearchStrategy[Kind | None] = st.sampled_from([None, "gaussian", "spherical"])


def packed(rows: list[list[float]], element: Element) -> Floats:
    made: Floats = np.array(rows, dtype=np.dtype(element))
    return made


def secret(recipe: Recipe, kind: Kind | None) -> tuple[Mechanism | None, bytes | None]:
    return (None, None) if kind is None else (noise_for(recipe, kind), KEY)


@given(recipes(largest=40, dims=st.sampled_from([1, 3, 17])), seeds, mechanisms)
def test_marked_batches_agree_with_the_reference(recipe: Recipe, seed: int, kind: Kind | None) -> None:
    rows = with_markers(recipe, packed_rows(recipe, seed=seed, bad=0.1), seed=seed)
    noise, key = secret(recipe, kind)
    ours = finished(recipe, rows, noise=noise, key=key, marked=True)
    classes = declared_classes(recipe.loss)
    expected = reference_sgd(recipe, rows, classes=classes, noise=noise, key=key or b"", marked=True)
    assert ours.finished
    # Rows may cancel: then the weights are rounding.
    assert np.linalg.norm(ours.weights - expected) <= 1e-12 + 1e-9 * np.linalg.norm(expected)


@given(recipes(largest=90), seeds, mechanisms, st.sampled_from(ELEMENTS), st.data())
def test_marked_batches_have_the_same_bits_from_every_build_cut_and_process(
    recipe: Recipe, seed: int, kind: Kind | None, element: Element, data: st.DataObject
) -> None:
    rows = with_markers(recipe, packed_rows(recipe, seed=seed, element=element, bad=0.1), seed=seed)
    noise, key = secret(recipe, kind)
    whole = finished(recipe, rows, noise=noise, key=key, marked=True)
    fed = rows[np.arange(recipe.passes * len(rows)) % len(rows)]
    cuts = data.draw(st.lists(st.integers(0, len(fed)), max_size=6).map(sorted))
    for build in builds():
        state = State(recipe, classes=declared_classes(recipe.loss), noise=noise, key=key, marked=True)
        for start, stop in itertools.pairwise([0, *cuts, len(fed)]):
            state = State.from_bytes(state.to_bytes())
            run([state], fed[start:stop], build=build)
        assert state.to_bytes() == whole.to_bytes()


def test_markers_at_the_usual_ends_of_equal_batches_change_nothing() -> None:
    recipe = Recipe(loss=Logistic(), dims=5, rows=40, batch_size=4, passes=2, schedule=constant(0.5))
    rows = packed_rows(recipe, seed=1)
    marked = np.insert(rows, range(4, 41, 4), -1.0, axis=0)
    assert (finished(recipe, rows).weights == finished(recipe, marked, marked=True).weights).all()


def test_the_sum_is_divided_by_the_expected_size_of_a_batch() -> None:
    """10 rows in 3 batches: a lone row counts 3/10, an empty batch moves nothing, two rows count twice."""
    row = [1.0, 0.5, 0.0]
    state = State(RECIPE, marked=True)
    run([state], np.array([row, MARKER]))
    assert state.weights[0, 0] == pytest.approx(0.5 * 0.3 * 0.5 * 0.5, rel=1e-14)
    before = state.weights
    run([state], np.array([MARKER]))
    assert (state.weights == before).all()
    twice = State(RECIPE, marked=True)
    run([twice], np.array([row, row, MARKER]))
    assert twice.weights[0, 0] == pytest.approx(2 * before[0, 0], rel=1e-14)


def test_an_empty_batch_still_shrinks_the_weights_and_has_noise() -> None:
    recipe = Recipe(
        loss=Logistic(), dims=2, rows=10, batch_size=5, passes=1, schedule=constant(1.0), regularization=0.5
    )
    plain = State(recipe, marked=True)
    noisy = State(recipe, marked=True, noise=noise_for(recipe, "gaussian"), key=KEY)
    run([plain, noisy], np.array([[1.0, 0.5, 0.0], MARKER]))
    first = plain.weights, noisy.weights
    run([plain, noisy], np.array([MARKER]))
    assert (plain.weights == 0.5 * first[0]).all()
    assert (noisy.weights != 0.5 * first[1]).all()


def test_the_features_of_a_marker_are_ignored() -> None:
    rows = np.array([[1.0, 0.5, 0.0], MARKER, [0.0, 0.1, 0.2], MARKER, MARKER])
    others = rows.copy()
    others[[1, 3, 4], 1:] = [[np.nan, 1.0], [1e300, np.inf], [0.3, 0.4]]
    assert finished(RECIPE, rows, marked=True).to_bytes() == finished(RECIPE, others, marked=True).to_bytes()


def test_a_pass_is_over_after_its_markers() -> None:
    state = State(RECIPE, marked=True)
    run([state], np.array([[1.0, 0.5, 0.0]] * 25 + [MARKER] * 2))
    assert (state.updates, state.row, state.passes_done) == (2, 25, 0)
    run([state], np.array([MARKER]))
    assert (state.updates, state.row, state.passes_done) == (3, 0, 1)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("after", [[MARKER], [[1.0, 0.5, 0.0]]], ids=["marker", "row"])
def test_what_follows_the_last_marker_is_refused_and_changes_nothing(
    after: list[list[float]], element: Element
) -> None:
    state = State(RECIPE, marked=True)
    run([state], packed([[0.0, 0.5, 0.0], MARKER], element))
    before = state.to_bytes()
    rest = [[1.0, 0.5, 0.0], MARKER, MARKER, MARKER, [1.0, 0.5, 0.0], MARKER, MARKER]
    with pytest.raises(ParameterError, match="more rows were fed than the passes have left"):
        run([state], packed(rest + after, element))
    assert state.to_bytes() == before
    run([state], packed(rest, element))
    assert state.finished
    with pytest.raises(ParameterError, match="more rows were fed"):
        run([state], packed(after, element))


def test_without_marks_the_label_minus_one_is_a_row_without_a_gradient() -> None:
    rows = packed_rows(RECIPE, seed=1)
    rows[3, 0] = -1.0
    neutral = rows.copy()
    neutral[3] = [0.0, 0.0, 0.0]
    assert (finished(RECIPE, rows).weights == finished(RECIPE, neutral).weights).all()


def test_marked_and_other_models_share_a_scan() -> None:
    rows = np.array([[1.0, 0.5, 0.0], MARKER, [0.0, 0.1, 0.2]])
    marked, other = State(RECIPE, marked=True), State(RECIPE)
    run([other, marked], rows)
    assert (marked.updates, marked.row, other.updates, other.row) == (1, 2, 1, 3)
