"""The kernel's readable twin: one row at a time, straight from the equations. The tests' oracle, and slow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, Integers
from boltdp.kernel.sgd import BATCH_END
from boltdp.losses import MAX_ABS_LABEL, Loss
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.sgd_recipe import Recipe

Words = npt.NDArray[np.uint32]


def reference_sgd(
    recipe: Recipe,
    rows: npt.NDArray[np.floating],
    *,
    positive: int = 1,
    classes: int = 2,
    noise: Mechanism | None = None,
    key: bytes = b"",
    positions: Integers | None = None,
    reading: tuple[float, float] = (0.0, 1.0),
) -> Doubles:
    """Run all passes over the packed rows (the same m of them each pass) and return the weights, (vectors, dims).

    With `positions`, a pass is over the rows there, in batches that end at `BATCH_END`, the last one at the end.

    >>> from boltdp.losses import Logistic
    >>> from boltdp.privacy.step_schedules import make_constant_schedule
    >>> recipe = Recipe(loss=Logistic(), dims=1, rows=2, batch_size=1, passes=1, schedule=make_constant_schedule(1.0))
    >>> reference_sgd(recipe, np.array([[1, 0.5], [0, -0.5]])).round(4)
    array([[0.4844]])
    """
    if recipe.loss.vector_count > 1:
        classes = recipe.loss.vector_count
    m, n = recipe.rows, recipe.batches
    if positions is not None:
        drawn_batches = np.split(positions, np.flatnonzero(positions == BATCH_END))[:n]
        batches = [rows[batch[batch != BATCH_END]] for batch in drawn_batches]
        sizes = [m / n] * n
    else:
        batches = [rows[j * m // n : (j + 1) * m // n] for j in range(n)]
        sizes = [float(len(batch)) for batch in batches]
    steps = recipe.schedule.compute_steps(np.arange(1, recipe.updates + 1))
    w = np.zeros((recipe.loss.vector_count, recipe.dims))
    total = np.zeros_like(w)
    for update in range(recipe.updates):
        batch = batches[update % n].astype(np.float64)
        gradient = np.zeros_like(w)
        for row in batch:
            label, x = read_label(recipe.loss, row[0], classes=classes, reading=reading), guarded(row[1:])
            if x is not None and label is not None:
                weight = 1.0 if recipe.class_weights is None else recipe.class_weights[int(label)]
                gradient += weight * row_gradient(recipe.loss, w, x, label, positive=positive)
        eta = steps[update]
        drawn = 0.0 if noise is None else reference_noise(noise, key, update, vectors=len(w), dims=recipe.dims)
        w = (1.0 - eta * recipe.regularization) * w - (eta / sizes[update % n]) * gradient - eta * drawn
        norm = math.sqrt(np.sum(w * w))
        if norm > recipe.radius:
            w *= recipe.radius / norm
        if update >= recipe.updates - recipe.averaged:
            total += w
    return total / recipe.averaged


def read_label(loss: Loss, label: float, *, classes: int, reading: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """What the loss is told of a packed label: a class, or a number by its centre and factor; None if it is neither.

    >>> from boltdp.losses import Robust
    >>> [read_label(Robust(), label, classes=2, reading=(0.5, 100.0)) for label in (0.75, -1.0, 1.25)]
    [25.0, -64.0, None]
    """
    if loss.target == "classes":
        return label if label in range(classes) else None
    if not -1.0 <= label <= 1.0:
        return None
    center, factor = reading
    return min(max((label - center) * factor, -MAX_ABS_LABEL), MAX_ABS_LABEL)


def guarded(x: Doubles) -> Doubles | None:
    """The row inside the unit ball, or None if it must have no gradient.

    >>> guarded(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.sum(x * x))
    if not squares <= 1e300:  # no number, or so large that products of two rows could overflow
        return None
    # A margin that keeps the exact norm at most 1: the row guard of sgd.c has the reasoning.
    margin = (x.size + 16) * 2.0**-53
    return x if squares <= 1.0 - 4.0 * margin else x * ((1.0 - 2.0 * margin) / math.sqrt(squares))


def row_gradient(loss: Loss, w: Doubles, x: Doubles, label: float, *, positive: int) -> Doubles:
    """The gradient of the loss of one row, with the shape of the weights.

    >>> from boltdp.losses import Logistic
    >>> row_gradient(Logistic(), np.zeros((1, 2)), np.array([0.6, 0.8]), 1, positive=1)
    array([[-0.3, -0.4]])
    """
    return np.outer(loss.compute_slopes(w @ x, label, positive=positive), x)


def reference_noise(noise: Mechanism, key: bytes, update: int, *, vectors: int, dims: int) -> Doubles:
    """The noise of one update, counted from 0, of shape (vectors, dims).

    >>> reference_noise(Mechanism("gaussian", 1.0, 3), bytes(32), 0, vectors=1, dims=3).shape
    (1, 3)
    """
    stride = (dims + 3) // 4 * 4
    chunks = _chunks(key, update)
    spare: list[int] = []
    normals: list[float] = []
    for position in range(0, vectors * stride + (-vectors * stride) % 64, 64):
        words = next(chunks)
        if position == 0:  # what the numbers leave of a multiple of 64 is the first chunk's first words
            spare, words = words[: (-vectors * stride) % 64], words[(-vectors * stride) % 64 :]
        normals += [_normal(word, spare, chunks) for word in words]
    drawn = np.array(normals).reshape(vectors, stride)[:, :dims]
    if vectors > 1:
        drawn = drawn - drawn.mean(axis=0)
    if noise.kind == "spherical":
        drawn = drawn * (_gamma(noise.dimensions, spare, chunks) / math.sqrt(np.sum(drawn * drawn)))
    return noise.scale * drawn


def chacha20(start: Words, blocks: int) -> Words:
    """The blocks from this input on, (blocks, 16): RFC 8439, section 2.3, with a counter of two words.

    >>> chacha20(np.arange(16, dtype=np.uint32), 2).shape
    (2, 16)
    """
    counters = (int(start[12]) + (int(start[13]) << 32) + np.arange(blocks, dtype=np.uint64)).astype(np.uint64)
    state = np.repeat(start[:, None], blocks, axis=1)
    state[12], state[13] = counters & np.uint64(0xFFFFFFFF), counters >> np.uint64(32)
    x = state.copy()
    columns, diagonals = [0, 1, 2, 3], [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for _ in range(10):
        for a, b, c, d in [*((i, i + 4, i + 8, i + 12) for i in columns), *diagonals]:
            for target, other, mixed, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[target] += x[other]
                x[mixed] ^= x[target]
                x[mixed] = (x[mixed] << np.uint32(by)) | (x[mixed] >> np.uint32(32 - by))
    return (x + state).T


def _chunks(key: bytes, nonce: int) -> Iterator[list[int]]:
    """The 64-bit words of eight blocks at a time: word w of all blocks, then word w+1, and two neighbours are one."""
    constants = np.frombuffer(b"expand 32-byte k", dtype="<u4")
    counter = 0
    while True:
        end = np.array([counter, 0, nonce & 0xFFFFFFFF, nonce >> 32], dtype=np.uint32)
        blocks = chacha20(np.concatenate([constants, np.frombuffer(key, dtype="<u4"), end]).astype(np.uint32), 8)
        yield np.ascontiguousarray(blocks.T).view("<u8").ravel().tolist()
        counter += 8


def _next_word(spare: list[int], chunks: Iterator[list[int]]) -> int:
    if not spare:
        spare += next(chunks)
    return spare.pop()


def _uniform(spare: list[int], chunks: Iterator[list[int]]) -> float:
    return (_next_word(spare, chunks) + 0.5) / 2.0**64


@cache
def ziggurat() -> tuple[float, ...]:
    """The edges X_0 > X_1 > ... > X_256 = 0 of 256 layers of equal area under exp(-x*x/2): gaussian_noise.md.

    >>> round(ziggurat()[1], 6)
    3.654153
    """

    def edges(tail: float) -> list[float]:
        """X_0 .. X_256 of layers with this X_1; nothing if their area is so large that they pass the top."""
        f = math.exp(-tail * tail / 2)
        area = tail * f + math.sqrt(math.pi / 2) * math.erfc(tail / math.sqrt(2))
        edges_so_far = [area / f, tail]
        while len(edges_so_far) < 257:
            height = math.exp(-(edges_so_far[-1] ** 2) / 2) + area / edges_so_far[-1]
            if height >= 1.0:
                return []
            edges_so_far.append(math.sqrt(-2 * math.log(height)))
        return edges_so_far

    low, high = 3.6, 3.7
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if edges(middle) else (middle, high)
    return (*edges(high)[:256], 0.0)


def _candidate(word: int) -> float:
    return ((word >> 12) + 0.5) / 2.0**52 * ziggurat()[word & 255]


def _normal(word: int, spare: list[int], chunks: Iterator[list[int]]) -> float:
    """A standard normal variable, from this word and from spare ones."""
    edges = ziggurat()
    while True:
        x, layer = _candidate(word), word & 255
        if x < edges[layer + 1]:
            break
        if layer == 0:
            while True:
                beyond = -math.log(_uniform(spare, chunks)) / edges[1]
                if -2 * math.log(_uniform(spare, chunks)) >= beyond * beyond:
                    break
            x = edges[1] + beyond
            break
        low, high = (math.exp(-edge * edge / 2) for edge in edges[layer : layer + 2])
        if low + _uniform(spare, chunks) * (high - low) < math.exp(-x * x / 2):
            break
        word = _next_word(spare, chunks)
    return math.copysign(x, 0.5 - (word >> 8 & 1))


def _gamma(shape: int, spare: list[int], chunks: Iterator[list[int]]) -> float:
    """A Gamma variable of scale 1, by Marsaglia and Tsang's method without its short cut."""
    d = shape - 1 / 3
    while True:
        x = _normal(_next_word(spare, chunks), spare, chunks)
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(_uniform(spare, chunks)) < x * x / 2 + d * (1 - v + math.log(v)):
            return d * v


_WORD = 2**64 - 1


def reference_permuted_position(position: int, *, rows: int, seed: int) -> int:
    """Where one row goes: the Feistel network of row_permutation.c, in Python's integers.

    >>> sorted(reference_permuted_position(i, rows=4, seed=1) for i in range(4))
    [0, 1, 2, 3]
    """
    bits = (rows - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    keys = [_mix((seed + i * 0x9E3779B97F4A7C15) & _WORD) for i in range(1, 9)]
    while True:
        low, high = position & low_mask, position >> low_bits
        for i, key in enumerate(keys):
            if i % 2 == 0:
                low ^= _mix(high ^ key) & low_mask
            else:
                high ^= _mix(low ^ key) & high_mask
        position = high << low_bits | low
        if position < rows:
            return position


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
