"""What the kernel's tests share: recipes of every kind, packed rows with bad ones among them, and a finished run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from boltdp._array_types import Doubles, Floats, Integers
from boltdp.kernel.sgd import BATCH_END, State, run
from boltdp.losses import HuberSVM, Loss, Multinomial, Quantile
from boltdp.privacy.mechanisms import Mechanism, NoiseKind
from boltdp.privacy.sgd_recipe import Averaging, Recipe
from boltdp.privacy.step_schedules import (
    Schedule,
    make_constant_schedule,
    make_decreasing_schedule,
    make_square_root_schedule,
    make_strongly_convex_constant_schedule,
    make_strongly_convex_schedule,
)
from tests.example_losses import every_loss
from tests.kernel.reference import guarded

Element: TypeAlias = type[np.float32] | type[np.float64]
ELEMENTS: tuple[Element, ...] = (np.float32, np.float64)

ScheduleKind = Literal["constant", "decreasing", "square root", "strongly convex", "strongly convex constant"]

LOSSES: tuple[Loss, ...] = (*every_loss(classes=5), HuberSVM(2.0), Multinomial(2), Quantile(0.9))

# Widths around those at which the loops change: groups of four, of eight and of sixteen numbers.
DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 24, 29, 32, 33, 50)


def schedule(kind: ScheduleKind, *, beta: float, gamma: float, rows: int, share: float = 0.8) -> Schedule:
    """A schedule of the kind; `share` is how much of the largest step allowed a constant one takes."""
    if kind == "constant":
        return make_constant_schedule(share * 2.0 / beta)
    if kind == "decreasing":
        return make_decreasing_schedule(beta=beta, rows=rows)
    if kind == "square root":
        return make_square_root_schedule(beta=beta, rows=rows)
    if kind == "strongly convex":
        return make_strongly_convex_schedule(beta=beta, gamma=gamma)
    return make_strongly_convex_constant_schedule(share / beta, beta=beta)


def declared_classes(loss: Loss) -> int:
    return loss.vector_count if loss.vector_count > 1 else 3


def undeclared_labels(loss: Loss, classes: int) -> list[float]:
    """Labels that are no class, or no number between the bounds."""
    return [-1.5, 1.0 + 2.0**-20, 1e30] if loss.target == "number" else [-1.0, 0.5, classes, 1e30]


def draw_labels(loss: Loss, random: np.random.Generator, count: int, *, classes: int) -> Doubles:
    """Indices of classes, or numbers as they are packed, the two bounds and zero among them."""
    if loss.target == "number":
        return np.asarray(np.clip(np.round(random.uniform(-1.2, 1.2, count), 2), -1, 1))
    return random.integers(0, classes, count).astype(np.float64)


def packed_rows(recipe: Recipe, *, seed: int, element: Element = np.float64, bad: float = 0.0) -> Floats:
    """Rows inside and outside the unit ball; a share of `bad` ones has a NaN, an infinity or an undeclared label."""
    random = np.random.default_rng(seed)
    m, classes = recipe.rows, declared_classes(recipe.loss)
    lengths = random.uniform(0.2, 3.0, (m, 1)) / math.sqrt(recipe.dims)
    labels = draw_labels(recipe.loss, random, m, classes=classes)[:, None]
    rows = np.hstack([labels, lengths * random.standard_normal((m, recipe.dims))])
    for i in np.flatnonzero(random.random(m) < bad):
        column = random.integers(0, 1 + recipe.dims)
        rows[i, column] = random.choice([np.nan, np.inf, -np.inf])
        if random.random() < 0.5:
            rows[i, 0] = random.choice(undeclared_labels(recipe.loss, classes))
    packed: Floats = np.ascontiguousarray(rows, dtype=np.dtype(element))
    return packed


def weights_for(loss: Loss, *, seed: int) -> tuple[float, ...] | None:
    """A weight for each declared class, from 1 down to a thousandth; none for a number."""
    if loss.target != "classes":
        return None
    classes = declared_classes(loss)
    spread = 10.0 ** np.random.default_rng(seed).uniform(-3, 0, classes)
    spread[seed % classes] = 1.0
    return tuple(spread.tolist())


def noise_for(recipe: Recipe, kind: NoiseKind, *, scale: float = 0.5) -> Mechanism:
    """Noise of the dimensions that the recipe's gradients have."""
    vectors = recipe.loss.directions
    return Mechanism(kind, scale, vectors * recipe.dims)


def random_batches(recipe: Recipe, *, seed: int) -> Integers:
    """Positions of all rows in order, cut into the recipe's number of batches, of random sizes, some of them empty."""
    ends = np.sort(np.random.default_rng(seed).integers(0, recipe.rows + 1, recipe.batches))
    ends[-1] = recipe.rows
    return np.insert(np.arange(recipe.rows), ends, BATCH_END)


def finished(
    recipe: Recipe,
    rows: Floats,
    *,
    positive: int = 1,
    build: str | None = None,
    noise: Mechanism | None = None,
    key: bytes | None = None,
    positions: Integers | None = None,
) -> State:
    """The state after all passes, each fed in one call; with positions, which end batches too, the rows there."""
    classes = declared_classes(recipe.loss)
    state = State(recipe, positive=positive, classes=classes, noise=noise, key=key, marked=positions is not None)
    for _ in range(recipe.passes):
        run([state], rows, positions=positions, build=build)
    return state


def same_bits(states: Iterable[State], others: Iterable[State]) -> bool:
    """Whether the weights are equal to the bit (not just equal: -0.0 is not 0.0) and so is the position."""
    return all(
        state.weights.tobytes() == other.weights.tobytes()
        and (state.updates, state.rows_done) == (other.updates, other.rows_done)
        for state, other in zip(states, others, strict=True)
    )


@st.composite
def recipes(
    draw: st.DrawFn, *, dims: st.SearchStrategy[int] | None = None, largest: int = 40, passes: int = 3
) -> Recipe:
    """Every loss, schedule, batch size, averaging, regularisation and radius; `largest` is the most rows.

    Half of them weigh their classes.
    """
    loss = draw(st.sampled_from(LOSSES))
    rows = draw(st.integers(2, largest))
    kind = draw(st.sampled_from(get_args(ScheduleKind)))
    regularization = draw(st.sampled_from([0.01, 0.5] if kind == "strongly convex" else [0.0, 0.01, 0.5]))
    return Recipe(
        loss=loss,
        dims=draw(st.sampled_from(DIMS) if dims is None else dims),
        rows=rows,
        # One-row batches are a path of their own in the kernel: half of the examples.
        batch_size=draw(st.one_of(st.just(1), st.integers(1, rows))),
        passes=draw(st.integers(1, passes)),
        schedule=schedule(
            kind,
            beta=loss.smoothness + regularization,
            gamma=regularization,
            rows=rows,
            share=draw(st.floats(0.01, 0.99)),
        ),
        regularization=regularization,
        radius=draw(st.sampled_from([math.inf, 0.3])),
        averaging=draw(st.sampled_from(get_args(Averaging))),
        class_weights=draw(st.none() | st.integers(0, 99).map(lambda seed: weights_for(loss, seed=seed))),
    )


def inside(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """A row that is not neutral, as the guard lets it in."""
    row = guarded(x)
    assert row is not None
    return row


def exact_square(vector: npt.ArrayLike) -> Fraction:
    """The sum of squares in rational numbers, where nothing is rounded."""
    return sum((Fraction(number) ** 2 for number in np.ravel(vector).astype(float).tolist()), Fraction(0))
