"""Damaged blocks: whatever bytes are wrong, a state is refused or harmless, and what is refused changes nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boltdp.errors import BoltdpError, DataError, ParameterError
from boltdp.kernel.sgd import State, _Header, run
from boltdp.losses import Logistic, Loss, Multinomial
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.cases import noise_for, packed_rows

M = 10


def small_recipe(
    loss: Loss | None = None, *, dims: int = 5, batch_size: int = 3, passes: int = 2, rows: int = M
) -> Recipe:
    """Ten rows in batches of 3, 3 and 4, unless asked otherwise."""
    return Recipe(
        loss=loss or Logistic(),
        dims=dims,
        rows=rows,
        batch_size=batch_size,
        passes=passes,
        schedule=make_constant_schedule(0.25),
        regularization=0.01,
    )


def small_rows() -> npt.NDArray[np.float64]:
    rows = packed_rows(small_recipe(), seed=2).astype(np.float64)
    rows[:, 0] %= 2
    return rows


def on_its_way(fed: int = 4, **kind: Any) -> State:
    """A state that has seen some rows: by default it is inside its second batch."""
    noisy, marked = kind.pop("noisy", False), kind.pop("marked", False)
    recipe = small_recipe(**kind)
    secret: dict[str, Any] = {"noise": noise_for(recipe, "spherical"), "key": bytes(32)} if noisy else {}
    state = State(recipe, marked=marked, **secret)
    run([state], small_rows()[:fed])
    return state


def unaligned(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The same rows, at an address that is no multiple of the size of a number."""
    room = np.zeros(rows.nbytes + 1, dtype=np.uint8)
    moved = room[1:].view(np.float64).reshape(rows.shape)
    moved[:] = rows
    return moved


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.astype(np.float16), "2-D float16"),
        (lambda rows: rows.astype(np.int64), "2-D int64"),
        (lambda rows: rows.astype(">f8"), "2-D >f8"),
        (lambda rows: rows[0], "1-D float64"),
        (lambda rows: rows[None], "3-D float64"),
        (np.asfortranarray, "must be a C-contiguous 2-D array of float32 or float64"),
        (lambda rows: rows[::2], "must be a C-contiguous"),
        (lambda rows: rows[:, :-1], "must be a C-contiguous"),
        (lambda rows: rows[:, :-1].copy(), r"rows must have 1 \+ 5 columns, got 5"),
        (lambda rows: np.hstack([rows, rows]), r"rows must have 1 \+ 5 columns, got 12"),
        (unaligned, "not aligned"),
    ],
)
def test_rows_of_the_wrong_kind_are_refused_and_change_nothing(change: Callable[[Any], Any], message: str) -> None:
    state = on_its_way()
    before = state.to_bytes()
    with pytest.raises(ParameterError, match=message):
        run([state], change(small_rows()))
    assert state.to_bytes() == before


def test_errors_say_nothing_about_the_rows() -> None:
    """Errors are for everyone to see; a number of a row must not be in one."""
    rows = np.full((2 * M + 1, 6), 0.8675309)
    for bad in (rows, rows[:, :-1].copy(), rows[0], unaligned(rows)):
        with pytest.raises(BoltdpError) as caught:
            run([State(small_recipe())], bad)
        assert "867" not in str(caught.value)


def refused(data: bytes) -> bool:
    try:
        State.from_bytes(data)
    except DataError:
        return True
    return False


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(2)], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_block_with_a_number_that_is_none_in_its_arrays_is_refused(loss: Loss, number: float) -> None:
    data = on_its_way(loss=loss).to_bytes()
    for at in range(ctypes.sizeof(_Header), len(data), 8):
        assert refused(data[:at] + np.float64(number).tobytes() + data[at + 8 :])


def test_a_block_of_the_wrong_length_is_refused() -> None:
    data = on_its_way().to_bytes()
    assert all(refused(data[:length]) for length in range(len(data)))
    assert all(refused(data + bytes(extra)) for extra in (1, 8, 64, len(data)))
    assert not refused(data)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_block_may_come_in_any_kind_of_bytes_and_stays_separate(kind: Callable[[bytearray], Any]) -> None:
    state = on_its_way()
    data = bytearray(state.to_bytes())
    restored = State.from_bytes(kind(data))
    data[:] = bytes(len(data))
    assert restored.to_bytes() == state.to_bytes()


def test_an_update_from_a_corrupt_block_changes_nothing() -> None:
    state = on_its_way()
    before = state.to_bytes()
    with pytest.raises(DataError, match="corrupt"):
        state.update(before[:-8])
    assert state.to_bytes() == before


def test_a_state_that_is_corrupted_in_memory_is_refused_by_every_use() -> None:
    state, sound = on_its_way(), on_its_way()
    state._header.row = 10**6
    before = [state.to_bytes(), sound.to_bytes()]
    with pytest.raises(ParameterError, match="the state is corrupt"):
        run([sound, state], small_rows()[:1])
    with pytest.raises(DataError, match="the state is corrupt"):
        _ = state.weights
    assert [state.to_bytes(), sound.to_bytes()] == before


def use_or_refuse(data: bytes) -> None:
    """A block is refused, or it can be read, fed and read again: no crash, and never a state that is unsound."""
    if refused(data):
        return
    state = State.from_bytes(data)
    rows = np.resize(small_rows(), (3 * M, 1 + state.cells))
    rows[:, 0] = [1, -1] * (3 * M // 2)
    for block in (rows[:1], rows[1:4], rows[4:]):
        position = (state.updates, state.rows_done)
        try:
            run([state], block)
        except ParameterError:  # the damage has left it fewer rows than these
            assert (state.updates, state.rows_done) == position
    try:
        finite = np.isfinite(state.weights).all()
    except DataError:  # it was given numbers so large that the weights overflowed, and says so
        assert refused(state.to_bytes())
    else:
        assert finite
        assert not refused(state.to_bytes())


def damaged(data: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, mask in flips:
        changed[at % len(data)] ^= mask
    return bytes(changed)


kinds = st.fixed_dictionaries(
    {
        "loss": st.sampled_from(every_loss(classes=2)),
        "batch_size": st.sampled_from([1, 3]),
        "noisy": st.booleans(),
        "marked": st.booleans(),
    }
)
header_bytes = st.integers(0, ctypes.sizeof(_Header) - 1)
any_bytes = st.integers(0, 2**16)
masks = st.integers(1, 255)


@settings(max_examples=500)
@given(kinds, st.integers(0, M), st.lists(st.tuples(header_bytes, masks), min_size=1, max_size=3))
def test_a_block_with_random_damage_to_its_header_is_refused_or_harmless(
    kind: dict[str, Any], fed: int, flips: list[tuple[int, int]]
) -> None:
    use_or_refuse(damaged(on_its_way(fed, **kind).to_bytes(), flips))


@settings(max_examples=200)
@given(kinds, st.integers(0, M), st.lists(st.tuples(any_bytes, masks), min_size=1, max_size=20))
def test_a_block_with_random_damage_anywhere_is_refused_or_harmless(
    kind: dict[str, Any], fed: int, flips: list[tuple[int, int]]
) -> None:
    use_or_refuse(damaged(on_its_way(fed, **kind).to_bytes(), flips))
