"""The state as a block of bytes: it goes on where it was, and a corrupt one is refused, never followed."""

from __future__ import annotations

import copy
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel import sgd
from boltdp.kernel.sgd import BATCH_END, State, run
from boltdp.losses import LOSSES, HuberSVM, Logistic, Multinomial
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.kernel.cases import declared_classes, finished, noise_for, packed_rows, recipes

RECIPE = Recipe(loss=Logistic(), dims=5, rows=10, batch_size=3, passes=2, schedule=make_constant_schedule(0.5))
HEADER_BYTES = 256
#: Where each slot of `struct sgd_state` is, in 8-byte words.
SLOTS = {
    name: i
    for i, name in enumerate(
        [
            *("magic", "version", "bytes"),
            *("loss", "dims", "classes", "positive", "rows", "batches", "passes", "averaged", "growth"),
            *("scale", "offset", "cap", "parameter", "lambda", "radius"),
            *("marked", "noise", "deviation", "weighted"),
            *("updates", "row", "left", "carry", "drawn"),
            *("key_1", "key_2", "key_3", "key_4", "feature map"),
        ]
    )
}


def test_class_weights_stand_at_the_end_and_are_refused_outside_their_range() -> None:
    block = bytearray(State(replace(RECIPE, class_weights=(1.0, 0.25))).to_bytes())
    assert struct.unpack_from("<2d", block, len(block) - 16) == (1.0, 0.25)
    assert not refused(block)
    for bad in (0.0, -0.25, 1.0 + 2.0**-52, math.nan):
        for at in (len(block) - 16, len(block) - 8):
            damaged = bytearray(block)
            struct.pack_into("<d", damaged, at, bad)
            assert refused(damaged)
    struct.pack_into("<Q", block, 8 * SLOTS["weighted"], 0)
    assert refused(block)


def test_class_weights_must_be_of_the_classes() -> None:
    for weights, classes in (((1.0, 0.5), 3), ((1.0, 0.5, 0.5), 2)):
        with pytest.raises(ParameterError, match=f"one for each of the {classes} classes, got {len(weights)}"):
            State(replace(RECIPE, class_weights=weights), classes=classes)


def in_mid_batch() -> bytearray:
    state = State(RECIPE)
    run([state], packed_rows(RECIPE, seed=1)[:5])
    assert (state.updates, state.rows_done) == (1, 5)
    return bytearray(state.to_bytes())


def refused(block: bytes | bytearray) -> bool:
    try:
        State.from_bytes(block)
    except DataError:
        return True
    return False


def test_a_sound_block_is_taken() -> None:
    assert not refused(in_mid_batch())


def test_update_takes_what_another_process_has_done() -> None:
    state, other = State(RECIPE), State(RECIPE)
    run([other], packed_rows(RECIPE, seed=1))
    state.update(other.to_bytes())
    assert state.to_bytes() == other.to_bytes()


@pytest.mark.parametrize("size", [0, 1, 8, HEADER_BYTES - 8, HEADER_BYTES, HEADER_BYTES + 8])
def test_a_truncated_block_is_refused(size: int) -> None:
    assert refused(in_mid_batch()[:size])


@pytest.mark.parametrize("extra", [1, 8, 4096])
def test_a_longer_block_is_refused(extra: int) -> None:
    assert refused(in_mid_batch() + bytes(extra))


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("magic", 1),
        ("version", 1),
        ("version", 3),
        ("version", 5),
        ("bytes", 8),
        ("loss", len(LOSSES)),
        ("loss", 2),
        ("dims", 0),
        ("dims", 9),
        ("dims", 2**63),
        ("classes", 1),
        ("classes", 2**63),
        ("positive", 2),
        ("rows", 0),
        ("rows", 11),
        ("rows", 2**49),
        ("batches", 0),
        ("batches", 4),
        ("batches", 11),
        ("passes", 0),
        ("passes", 2**62),
        ("averaged", 0),
        ("averaged", 7),
        ("growth", 3),
        ("updates", 2),
        ("updates", 7),
        ("row", 4),
        ("row", 10),
        ("left", 0),
        ("left", 5),
        ("left", 2**64 - 1),
        ("carry", 0),
        ("carry", 3),
        ("marked", 1),
        ("marked", 2),
        ("noise", 1),
        ("noise", 3),
        ("deviation", 1.0),
        ("deviation", math.nan),
        ("drawn", 1),
        ("key_1", 1),
        ("key_4", 1),
        ("feature map", 1),
        ("feature map", 8),
        ("weighted", 1),
        ("weighted", 2),
        *((slot, math.nan) for slot in ("scale", "offset", "cap", "parameter", "lambda", "radius")),
        *((slot, -1.0) for slot in ("scale", "offset", "cap", "parameter", "lambda", "radius")),
        *((slot, math.inf) for slot in ("scale", "offset", "parameter", "lambda")),
        ("scale", 1e101),
        ("lambda", 4.1),
    ],
)
def test_a_slot_that_contradicts_the_others_is_refused(slot: str, value: float) -> None:
    block = in_mid_batch()
    struct.pack_into("<d" if isinstance(value, float) else "<Q", block, 8 * SLOTS[slot], value)
    assert refused(block)


NOISE = Mechanism("gaussian", 0.5, 5)


def noisy_in_mid_batch(*, marked: bool) -> bytearray:
    state = State(RECIPE, noise=NOISE, key=bytes(32), marked=marked)
    run([state], packed_rows(RECIPE, seed=1)[:5], positions=np.array([0, 1, 2, BATCH_END, 3, 4]) if marked else None)
    assert (state.updates, state.rows_done) == (1, 5)
    return bytearray(state.to_bytes())


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("slot", "value"),
    [
        ("marked", 2),
        ("noise", 0),
        ("noise", 3),
        *(("deviation", value) for value in (0.0, -1.0, 1e-101, 1e100, math.inf, math.nan)),
        ("drawn", 2),
        ("left", 5),
        ("carry", 2),
        ("updates", 7),
    ],
)
def test_a_slot_of_a_noisy_state_that_contradicts_the_others_is_refused(
    slot: str, value: float, *, marked: bool
) -> None:
    block = noisy_in_mid_batch(marked=marked)
    assert not refused(block)
    struct.pack_into("<d" if isinstance(value, float) else "<Q", block, 8 * SLOTS[slot], value)
    assert refused(block)


def test_a_batch_in_progress_without_its_noise_is_refused() -> None:
    block = noisy_in_mid_batch(marked=False)
    struct.pack_into("<Q", block, 8 * SLOTS["drawn"], 0)
    assert refused(block)


@pytest.mark.parametrize(("updates", "row"), [(6, 1), (1, 0), (1, 2**62 + 1)])
def test_a_marked_state_at_an_impossible_position_is_refused(updates: int, row: int) -> None:
    block = noisy_in_mid_batch(marked=True)
    struct.pack_into("<Q", block, 8 * SLOTS["updates"], updates)
    struct.pack_into("<Q", block, 8 * SLOTS["row"], row)
    assert refused(block)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    for position in (HEADER_BYTES, len(in_mid_batch()) - 8):
        block = in_mid_batch()
        struct.pack_into("<d", block, position, value)
        assert refused(block)


@given(
    recipe=recipes(),
    noisy=st.booleans(),
    marked=st.booleans(),
    words=st.lists(
        st.tuples(
            st.integers(0, HEADER_BYTES // 8 - 1),
            st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1), st.floats().map(lambda x: struct.pack("<d", x))),
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=400)
def test_no_corrupt_header_is_followed(
    recipe: Recipe, *, noisy: bool, marked: bool, words: list[tuple[int, int | bytes]]
) -> None:
    noise, key = (noise_for(recipe, "spherical"), bytes(32)) if noisy else (None, None)
    classes = declared_classes(recipe.loss)
    block = bytearray(State(recipe, classes=classes, marked=marked, noise=noise, key=key).to_bytes())
    for position, word in words:
        block[8 * position : 8 * position + 8] = word if isinstance(word, bytes) else struct.pack("<Q", word)
    try:
        state = State.from_bytes(block)
    except DataError:
        return
    # What passes the check is a state: it can be run to the end of its rows, whatever they now are.
    for _ in range(100):
        if state.is_finished:
            break
        run([state], np.zeros((1, 1 + state.cells)), positions=np.array([BATCH_END]))
    assert np.isfinite(state.weights).all()


@given(block=st.binary(max_size=600))
@settings(max_examples=200)
def test_random_bytes_are_refused(block: bytes) -> None:
    assert refused(block)


def test_a_state_spoiled_in_memory_is_refused_by_every_call() -> None:
    state = State(RECIPE)
    state._header.batches = 0
    state._header.recipe.batches = 0
    with pytest.raises(ParameterError, match="corrupt"):
        run([state], np.ones((1, 6)))
    with pytest.raises(DataError, match="corrupt"):
        _ = state.weights


def test_unaligned_memory_is_refused() -> None:
    size = len(State(RECIPE).to_bytes())
    block = np.zeros(size + 64, dtype=np.uint8)
    block[4 : 4 + size] = np.frombuffer(State(RECIPE).to_bytes(), dtype=np.uint8)
    code = sgd._library.sgd_check(block.ctypes.data + 4, size)
    assert sgd._get_error_text(code) == "the memory of the state or of the rows is not aligned"


@pytest.mark.parametrize("code", range(10))
def test_every_error_has_a_text(code: int) -> None:
    assert sgd._get_error_text(code)


@pytest.mark.parametrize(
    ("positive", "classes", "message"),
    [
        (1, 1, "classes must be >= 2, got 1"),
        (2, 2, "positive must be a class index from 0 to 1, got 2"),
        (-1, 2, "positive must be a class index from 0 to 1, got -1"),
    ],
)
def test_labels_that_make_no_model_are_refused(positive: int, classes: int, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        State(RECIPE, positive=positive, classes=classes)


def test_a_multinomial_loss_says_how_many_classes_there_are() -> None:
    recipe = replace(RECIPE, loss=Multinomial(classes=4))
    assert State(recipe, classes=2).weights.shape == (4, 5)


@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, dims=2**24 + 1),
        replace(RECIPE, rows=2**49, batch_size=2**40),
        replace(RECIPE, rows=2**40, batch_size=1, passes=10**7),
        replace(RECIPE, loss=HuberSVM(width=1e300), schedule=make_constant_schedule(1e299)),
    ],
    ids=["dims", "rows", "passes", "steps"],
)
def test_a_recipe_beyond_the_kernels_range_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ParameterError, match="outside the kernel's range"):
        State(recipe)


def test_weights_are_a_copy() -> None:
    state = finished(RECIPE, packed_rows(RECIPE, seed=2))
    before = state.to_bytes()
    state.weights[:] = 7.0
    assert state.to_bytes() == before


def test_a_state_can_be_copied() -> None:
    state = State(RECIPE)
    other = copy.deepcopy(state)
    run([other], packed_rows(RECIPE, seed=1))
    assert state.updates == 0
    assert other.passes_done == 1


def test_row_positions_far_beyond_32_bits_are_exact() -> None:
    # Batches of a pass over 2^47 rows, started in the middle: start * n needs more than 64 bits.
    recipe = Recipe(
        loss=Logistic(), dims=1, rows=2**47 - 1, batch_size=3, passes=1, schedule=make_constant_schedule(0.1)
    )
    n, m = recipe.batches, recipe.rows
    j = n - 2
    start, end = j * m // n, (j + 1) * m // n
    block = bytearray(State(recipe).to_bytes())
    for slot, value in (("updates", j), ("row", start), ("left", end - start), ("carry", j * m % n)):
        struct.pack_into("<Q", block, 8 * SLOTS[slot], value)
    state = State.from_bytes(block)
    run([state], np.zeros((end - start, 2)))
    assert (state.updates, state.rows_done) == (n - 1, end)
    run([state], np.zeros((m - end, 2)))
    assert state.is_finished
    struct.pack_into("<Q", block, 8 * SLOTS["row"], start + 1)
    assert refused(block)
