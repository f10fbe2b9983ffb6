"""The same bits however rows are cut into blocks, from every build, in one scan or many, and across processes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boltdp._array_types import Floats
from boltdp.kernel.sgd import State, list_builds, run
from boltdp.losses import Logistic, Loss
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import (
    DIMS,
    ELEMENTS,
    LOSSES,
    Element,
    declared_classes,
    finished,
    packed_rows,
    recipes,
    same_bits,
)

seeds = st.integers(0, 2**32)
elements = st.sampled_from(ELEMENTS)


def new_state(recipe: Recipe, *, positive: int = 1) -> State:
    return State(recipe, positive=positive, classes=declared_classes(recipe.loss))


def repeated(rows: Floats, times: int) -> Floats:
    return rows[np.arange(times * len(rows)) % len(rows)]


def all_passes(recipe: Recipe, rows: Floats) -> Floats:
    return repeated(rows, recipe.passes)


@given(recipes(largest=150), seeds, elements, st.data())
def test_any_cuts_give_the_same_bits(recipe: Recipe, seed: int, element: Element, data: st.DataObject) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    fed = all_passes(recipe, rows)
    cuts = data.draw(st.lists(st.integers(0, len(fed)), max_size=12).map(sorted))
    whole, cut = new_state(recipe), new_state(recipe)
    run([whole], fed)
    for start, stop in itertools.pairwise([0, *cuts, len(fed)]):
        run([cut], fed[start:stop])
    assert whole.is_finished
    assert same_bits([whole, whole], [cut, finished(recipe, rows)])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 65])
@pytest.mark.parametrize("batch_size", [1, 2, 6, 131])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_pieces_of_one_size_give_the_same_bits(loss: Loss, batch_size: int, size: int) -> None:
    recipe = Recipe(
        loss=loss,
        dims=11,
        rows=131,
        batch_size=batch_size,
        passes=3,
        schedule=make_constant_schedule(0.2),
        regularization=0.01,
        averaging="all",
    )
    fed = all_passes(recipe, packed_rows(recipe, seed=size, element=np.float32))
    whole, cut = new_state(recipe), new_state(recipe)
    run([whole], fed)
    for start in range(0, len(fed), size):
        run([cut], fed[start : start + size])
    assert same_bits([whole], [cut])


@given(recipes(largest=100), seeds, elements)
def test_every_build_gives_the_same_bits(recipe: Recipe, seed: int, element: Element) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    default = finished(recipe, rows)
    assert all(same_bits([default], [finished(recipe, rows, build=build)]) for build in list_builds())


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("dims", [*DIMS, 784, 1535, 1536, 1537])
@pytest.mark.parametrize("loss", every_loss(classes=7), ids=str)
def test_every_width_gives_the_same_bits_from_every_build_and_cut(loss: Loss, dims: int, batch_size: int) -> None:
    recipe = Recipe(
        loss=loss, dims=dims, rows=33, batch_size=batch_size, passes=1, schedule=make_constant_schedule(0.2)
    )
    rows = packed_rows(recipe, seed=dims, element=np.float32)
    default = finished(recipe, rows)
    for build in list_builds():
        state = new_state(recipe)
        for start, stop in ((0, 1), (1, 12), (12, 33)):
            run([state], rows[start:stop], build=build)
        assert same_bits([default], [state])


@given(recipes(largest=100), seeds, elements)
def test_weights_that_are_all_1_change_no_bit(recipe: Recipe, seed: int, element: Element) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    plain = replace(recipe, class_weights=None)
    assume(recipe.loss.target == "classes")
    ones = replace(recipe, class_weights=(1.0,) * declared_classes(recipe.loss))
    assert same_bits([finished(plain, rows)], [finished(ones, rows)])


@given(recipes(), seeds)
def test_the_same_numbers_as_float32_and_float64_give_the_same_bits(recipe: Recipe, seed: int) -> None:
    narrow = packed_rows(recipe, seed=seed, element=np.float32, bad=0.1)
    assert same_bits([finished(recipe, narrow)], [finished(recipe, narrow.astype(np.float64))])


@given(st.sampled_from(DIMS), seeds, elements, st.data())
def test_several_models_in_one_scan_get_the_bits_of_one_by_one(
    dims: int, seed: int, element: Element, data: st.DataObject
) -> None:
    """Models of different losses, batches and numbers of rows, some already on their way."""
    chosen = data.draw(st.lists(recipes(dims=st.just(dims), largest=90), min_size=2, max_size=5))
    longest = max(chosen, key=lambda recipe: recipe.rows * recipe.passes)
    stream = repeated(packed_rows(longest, seed=seed, element=element, bad=0.1), 2 * longest.passes)
    totals = [recipe.rows * recipe.passes for recipe in chosen]
    ahead = [data.draw(st.integers(0, total)) for total in totals]
    together = min(total - start for total, start in zip(totals, ahead, strict=True))

    def complete(states: list[State], *, one_by_one: bool) -> list[State]:
        for state, start in zip(states, ahead, strict=True):
            run([state], stream[:start])
        scans = [[state] for state in states] if one_by_one else [states]
        for scan in scans:
            run(scan, stream[:together])
        for state, start, total in zip(states, ahead, totals, strict=True):
            run([state], stream[: total - start - together])
        return states

    alone = complete([new_state(recipe) for recipe in chosen], one_by_one=True)
    shared = complete([new_state(recipe) for recipe in chosen], one_by_one=False)
    assert all(state.is_finished for state in alone)
    assert same_bits(alone, shared)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_one_against_all_in_one_scan_gets_the_bits_of_one_by_one(batch_size: int) -> None:
    recipe = Recipe(
        loss=Logistic(), dims=9, rows=200, batch_size=batch_size, passes=2, schedule=make_constant_schedule(0.2)
    )
    rows = packed_rows(recipe, seed=3)
    states = [new_state(recipe, positive=positive) for positive in range(3)]
    run(states, all_passes(recipe, rows))
    alone = [finished(recipe, rows, positive=positive) for positive in range(3)]
    assert same_bits(states, alone)
    assert len({state.weights.tobytes() for state in states}) == 3


@given(recipes(), seeds, elements, st.data())
def test_a_state_that_goes_through_bytes_anywhere_goes_on_to_the_same_bits(
    recipe: Recipe, seed: int, element: Element, data: st.DataObject
) -> None:
    rows = packed_rows(recipe, seed=seed, element=element, bad=0.1)
    fed = all_passes(recipe, rows)
    cuts = data.draw(st.lists(st.integers(0, len(fed)), min_size=1, max_size=6).map(sorted))
    moved = new_state(recipe)
    for start, stop in itertools.pairwise([0, *cuts, len(fed)]):
        elsewhere = State.from_bytes(moved.to_bytes())
        assert elsewhere.to_bytes() == moved.to_bytes()
        run([elsewhere], fed[start:stop])
        moved.update(elsewhere.to_bytes())
    assert same_bits([finished(recipe, rows)], [moved])


def test_a_copy_through_bytes_is_independent_of_its_origin() -> None:
    recipe = Recipe(loss=Logistic(), dims=2, rows=4, batch_size=1, passes=1, schedule=make_constant_schedule(0.5))
    rows = packed_rows(recipe, seed=0)
    state = new_state(recipe)
    copy = State.from_bytes(state.to_bytes())
    run([state], rows)
    assert copy.updates == 0
    assert not copy.weights.any()
