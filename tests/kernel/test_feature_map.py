"""Readings: sums by slots are those by features, passes have the very bits, and order changes none of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boltdp.errors import DataError, ParameterError
from boltdp.kernel.feature_map import MAX_AXES, Axis, FeatureMap, PairSegment, Segment, compute_scores
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.sgd import State, _library, list_builds, run
from boltdp.losses import Logistic, Loss, Robust
from boltdp.privacy.events.objective_perturbation import SUM_GRID
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from tests.example_losses import every_loss
from tests.kernel.feature_maps import SHAPES, cells_for, random_feature_map
from tests.kernel.reference import guarded, read_label

Matrix = npt.NDArray[np.float64]

#: The words of the last shape's map that are kinds and cells of axes: they may be others.
_PLACES_OF_AXES = [14 + 14 + 5 * axis + word for axis in range(4) for word in (0, 1)]

LOSSES: tuple[Loss, ...] = every_loss()
NUMBERS = Segment("numbers", np.zeros(2), np.ones(2))


def classes_of(loss: Loss) -> int:
    return max(2, loss.vector_count)


def read_axis(axis: Axis, cell: float) -> list[float]:
    """The features of one side of a pair, all 0 where the cell is missing."""
    part = axis.segment
    if part.kind == "steps":
        return [
            0.0 if math.isnan(cell) else b if cell >= place else a
            for a, b, place in zip(part.a, part.b, part.places, strict=True)
        ]
    known = 0 <= cell < part.dims + axis.has_reference
    code = int(cell) if known else -1
    return [part.b[k] if k == code else part.a[k] if known else 0.0 for k in range(part.dims)]


def read_slowly(feature_map: FeatureMap, cells: npt.NDArray[np.float32]) -> Matrix:
    """The features as `feature_map.h` says it."""
    rows = []
    for _, *row in cells.astype(np.float64).tolist():
        at, features = 0, []
        for part in feature_map.segments:
            if part.kind == "constant":
                features += part.a.tolist()
                continue
            if part.kind == "numbers":
                some = zip(row[at : at + len(part.a)], part.a, part.b, strict=True)
                features += [0.0 if math.isnan(cell) else (cell - a) * b for cell, a, b in some]
                at += len(part.a)
                continue
            if isinstance(part, PairSegment):
                sides = [read_axis(axis, row[axis.cell]) for axis in (part.first, part.second)]
                features += [part.factor * one * other for one in sides[0] for other in sides[1]]
                continue
            count = len(part.a)
            if part.kind == "category":
                cell, at = row[at], at + 1
                code = int(cell) if 0 <= cell < count else -1
                features += [part.b[k] if k == code else part.a[k] for k in range(count)]
            else:
                cell = row[at - 1]
                features += [
                    0.0 if math.isnan(cell) else part.b[k] if cell >= part.places[k] else part.a[k]
                    for k in range(count)
                ]
        rows.append(features)
    return np.array(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_features_are_those_of_the_definition(shape: Any) -> None:
    feature_map = random_feature_map(shape, seed=1)
    cells = cells_for(feature_map, rows=200, seed=2)
    features = feature_map.compute_features(cells)
    np.testing.assert_array_equal(features[:, 1:], read_slowly(feature_map, cells))
    np.testing.assert_array_equal(features[:, 0], cells[:, 0])
    weights = np.random.default_rng(3).normal(size=(4, feature_map.dims))
    lengths = np.maximum(1.0, np.linalg.norm(features[:, 1:], axis=1))
    expected = features[:, 1:] @ weights.T / lengths[:, None]
    assert np.abs(compute_scores(cells, weights, feature_map) - expected).max() < 1e-13
    assert np.abs(compute_scores(features.astype(np.float32), weights) - expected).max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_of_slots_score_as_weights_of_features_and_sums_come_back(shape: Any) -> None:
    feature_map = random_feature_map(shape, seed=4)
    random = np.random.default_rng(5)
    weights, slots = random.normal(size=feature_map.dims), random.normal(size=feature_map.slots)
    # <spread(w), s> = <w, gather(s)> for every s, but that slots of groups count in their units.
    groups = [part for part in feature_map.segments if part.is_group]
    group_units = np.concatenate([np.empty(0), *(part.units for part in groups)])
    units = np.concatenate([np.ones(feature_map.dense), group_units])
    slots *= units > 0
    assert np.vdot(feature_map.spread_weights(weights), slots / np.where(units > 0, units, 1)) == pytest.approx(
        np.vdot(weights, feature_map.gather_sums(slots)), rel=1e-12, abs=1e-12
    )
    lengths = np.sqrt(np.concatenate([np.empty(0), *(part.squares for part in groups)]))
    assert ((group_units >= lengths * (1 - 1e-15)) & ((lengths == 0) | (group_units < 2 * lengths))).all()


@pytest.mark.parametrize("build", list_builds())
@pytest.mark.parametrize("loss", every_loss())
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch_size", [1, 7])
def test_a_pass_by_a_feature_map_has_the_bits_of_one_over_the_features(
    shape: Any, loss: Loss, batch_size: int, build: str
) -> None:
    feature_map = random_feature_map(shape, seed=6)
    cells = cells_for(feature_map, rows=101, seed=7, classes=classes_of(loss), loss=loss)
    recipe = Recipe(
        loss=loss,
        dims=feature_map.dims,
        rows=101,
        batch_size=batch_size,
        passes=2,
        schedule=make_constant_schedule(0.5),
    )
    by_map, by_features = State(recipe, classes=3, feature_map=feature_map), State(recipe, classes=3)
    assert (by_map.cells, by_features.cells) == (feature_map.cells, feature_map.dims)
    run([by_map], cells, build=build)
    order = np.random.default_rng(8).permutation(101)
    run([by_map], cells, positions=order, build=build)
    features = feature_map.compute_features(cells)
    run([by_features], features)
    run([by_features], features[order])
    assert by_map.weights.tobytes() == by_features.weights.tobytes()
    again = State.from_bytes(by_map.to_bytes())
    assert again.weights.tobytes() == by_map.weights.tobytes()


def kinds(direction: Matrix) -> list[dict[str, Any]]:
    return [{}, {"direction": direction}, {"hessian": True}, {"clip": 0.3}, {"hessian": True, "share": 0.3}]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_by_a_feature_map_are_those_of_the_features(shape: Any, loss: Loss, kind: int) -> None:
    feature_map = random_feature_map(shape, seed=9)
    random = np.random.default_rng(10)
    weights, direction = random.normal(size=(2, loss.vector_count, feature_map.dims))
    direction *= 10.0 ** random.integers(-200, 200)
    options = kinds(direction)[kind]
    cells = cells_for(feature_map, rows=300, seed=11, classes=classes_of(loss), loss=loss)
    by_weights = tuple(np.linspace(0.4, 1.0, classes_of(loss)).tolist()) if loss.target == "classes" else None
    options |= {"classes": classes_of(loss), "class_weights": by_weights}
    by_map = DerivativeSums(loss, weights, feature_map=feature_map, **options)
    by_map.add(cells)
    if "share" in options:
        assert 0 < by_map.rows < 200
        assert np.linalg.eigvalsh(by_map.value).min() > -1e-10
        return
    expected = np.zeros_like(by_map.value)
    for label, *features in feature_map.compute_features(cells).tolist():
        x = guarded(np.array(features))
        if read_label(loss, label, classes=classes_of(loss)) is None or x is None:
            continue
        alone = DerivativeSums(loss, weights, **options)
        row = np.array([[label, *x]])
        # Rows without a feature map are float32: weights take up the rest.
        factor = np.where(x == 0, 0, x / np.where(x == 0, 1, x.astype(np.float32)))
        scaled = {k: v * factor for k, v in options.items() if k == "direction"}
        alone = DerivativeSums(loss, weights * factor, **{**options, **scaled})
        alone.add(row.astype(np.float32))
        expected += alone.value * (factor if "hessian" not in options else np.outer(factor, factor))
    scale = 1.0 if kind != 1 else math.hypot(*direction.ravel())
    assert np.abs(by_map.value - expected).max() < 1e-6 * scale


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_order_parts_builds_and_joins_change_no_bit(shape: Any, kind: int) -> None:
    for loss in LOSSES:
        feature_map = random_feature_map(shape, seed=12)
        random = np.random.default_rng(13)
        weights, direction = random.normal(size=(2, loss.vector_count, feature_map.dims)) * 3
        cells = cells_for(feature_map, rows=700, seed=14, classes=classes_of(loss), loss=loss)
        whole = DerivativeSums(
            loss, weights, feature_map=feature_map, classes=classes_of(loss), **kinds(direction)[kind]
        )
        whole.add(cells)
        for seed in range(3):
            shuffled = np.random.default_rng(seed).permutation(cells)
            parts = [whole.copy_empty() for _ in range(4)]
            cuts = [0, *sorted(random.integers(0, 700, 3).tolist()), 700]
            for part, start, stop in zip(parts, cuts, cuts[1:], strict=False):
                part.add(shuffled[start:stop].copy(), build=random.choice(list_builds()))
            for part in parts[1:]:
                parts[0].join(part)
            assert parts[0].value.tobytes() == whole.value.tobytes()
            assert parts[0].rows == whole.rows


@given(seed=st.integers(0, 2**31), size=st.sampled_from([1e-12, 1e-3, 1.0, 1e6]))
def test_replacing_a_row_changes_its_own_terms_and_nothing_else(seed: int, size: float) -> None:
    """The difference of neighbours' sums of slots is that of the two rows alone, exactly; three rows fit a double."""
    feature_map = random_feature_map(SHAPES[4], seed=seed % 97, size=size)
    random = np.random.default_rng(seed)
    cells = cells_for(feature_map, rows=3, seed=seed)
    other = cells.copy()
    at = int(random.integers(3))
    other[at] = cells_for(feature_map, rows=1, seed=seed + 1)[0]
    sums = DerivativeSums(Logistic(), random.normal(size=(1, feature_map.dims)), feature_map=feature_map)

    def of(rows: npt.NDArray[np.float32]) -> Matrix:
        one = sums.copy_empty()
        one.add(np.ascontiguousarray(rows))
        out = np.empty((1, feature_map.slots))
        _library.derivatives_sum(one._block.ctypes.data, one._block.size, out.ctypes.data)
        return out

    difference = of(cells) - of(other)
    np.testing.assert_array_equal(difference, of(cells[at : at + 1]) - of(other[at : at + 1]))
    np.testing.assert_array_equal(difference / SUM_GRID, np.rint(difference / SUM_GRID))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("models", "vectors"), [(1, 1), (6, 1), (5, 3)])
def test_errors_by_a_feature_map_are_those_of_the_features(shape: Any, models: int, vectors: int) -> None:
    feature_map = random_feature_map(shape, seed=15)
    weights = np.random.default_rng(16).normal(size=(models, vectors, feature_map.dims))
    classes = max(2, vectors)
    cells = cells_for(feature_map, rows=333, seed=17, classes=classes)
    features = feature_map.compute_features(cells)
    margins = np.einsum("nd,mvd->mnv", features[:, 1:], weights)
    chosen = margins[:, :, 0] > 0 if vectors == 1 else margins.argmax(axis=2)
    expected = (chosen != features[:, 0]).sum(axis=1).tolist()
    for build in list_builds():
        errors = ErrorCounts(weights, classes=classes, feature_map=feature_map)
        other = errors.copy_empty()
        errors.add(cells[:100], build=build)
        other.add(cells[100:], build=build)
        errors.join(other)
        assert errors.counts == expected
    with pytest.raises(ParameterError, match="counts must stay those of the same models"):
        errors.join(ErrorCounts(weights + 1, classes=classes, feature_map=feature_map))


# The header but the label's centre and factor, and the kind and count of segments, the axes and the pairs; the numbers
# may be anything.
@pytest.mark.parametrize("at", [*range(7), *range(9, 14 + 14 + 20 + 4)])
def test_states_with_a_damaged_reading_are_refused(at: int) -> None:
    feature_map = random_feature_map(SHAPES[-1], seed=18)
    recipe = Recipe(
        loss=Logistic(), dims=feature_map.dims, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.5)
    )
    weights = np.zeros((1, feature_map.dims))
    makers: list[Any] = [
        State(recipe, feature_map=feature_map),
        DerivativeSums(Logistic(), weights, feature_map=feature_map),
        ErrorCounts(weights[None], classes=2, feature_map=feature_map),
    ]
    for made in makers:
        good = made.to_bytes()
        start = len(good) - feature_map.block.size + 8 * at
        for bad in (0, 7, 2**40, 2**63):
            if good[start : start + 8] == bad.to_bytes(8, "little"):
                continue
            damaged = good[:start] + bad.to_bytes(8, "little") + good[start + 8 :]
            if at in _PLACES_OF_AXES and bad == 0:  # another kind, or another cell of the row
                continue
            with pytest.raises(DataError):
                (State.from_bytes if isinstance(made, State) else made.update)(damaged)


def test_every_damaged_word_of_a_pair_is_refused_or_leaves_another_sound_map() -> None:
    """An axis may be of another cell or kind, if it has as many features and levels; nothing else may change."""
    feature_map = random_feature_map(SHAPES[-2], seed=26)
    good = np.frombuffer(feature_map.block, np.uint64).copy()
    assert _library.feature_map_check(good.ctypes.data, good.nbytes) == 0
    first = 14 + 2 * len(feature_map.segments)
    cells, kinds = [first + 1, first + 6], [first, first + 5]
    for at in range(first + 5 * 2 + 2):
        if at in (7, 8):  # the label's reading
            continue
        for bad in (0, 1, 2, 3, 4, 5, 255, 2**16, 2**32, 2**40, 2**63, 2**64 - 1):
            words = good.copy()
            words[at] = bad
            sound = _library.feature_map_check(words.ctypes.data, words.nbytes) == 0
            flag = at == 10 and bad == 1  # long rows are downweighted
            other = (at in cells and bad < feature_map.cells) or (at in kinds and bad < 2)
            assert sound == (bad == good[at] or flag or other), (at, bad)


def test_pairs_that_cannot_be_read_are_refused() -> None:
    one = np.ones(1)
    numbers, category = Segment("numbers", one, one), Segment("category", one, one)
    steps = Segment("steps", one, one, one)
    for segment in (numbers, steps):
        with pytest.raises(ParameterError, match=r"^an axis must be of steps or of a category, "):
            Axis(0, segment, has_reference=True)
    with pytest.raises(ParameterError, match=r"^the factor of a pair must be a finite number$"):
        PairSegment(Axis(0, steps), Axis(0, category), math.inf)
    for cell in (-1, 1):
        with pytest.raises(ParameterError, match=r"^the cell of an axis must be one of the 1 of a row$"):
            FeatureMap([numbers, PairSegment(Axis(cell, steps), Axis(0, category), 1.0)])
    many = [PairSegment(Axis(0, steps), Axis(0, steps), 1.0) for _ in range(MAX_AXES // 2 + 1)]
    with pytest.raises(ParameterError, match=r"^a feature map must have at most 256 axes of pairs, got 258$"):
        FeatureMap([numbers, *many])
    largest = FeatureMap([numbers, *many[:-1]])
    assert largest.compute_features(np.ones((1, 2), np.float32)).tolist() == [[1.0, 0.0, *[1.0] * 128]]


def test_sums_of_features_are_not_of_pairs() -> None:
    with pytest.raises(ParameterError, match="clip_norm must be > 0"):
        FeatureSums(random_feature_map(SHAPES[-1], seed=1), clip_norm=1.0)


def test_states_whose_steps_do_not_follow_a_number_are_refused() -> None:
    one = np.ones(1)
    numbers, constant = Segment("numbers", one, one), Segment("constant", one, one)
    sums = DerivativeSums(
        Logistic(), np.ones((1, 3)), feature_map=FeatureMap([numbers, Segment("steps", one, one, one), constant])
    )
    good = sums.to_bytes()
    words = np.frombuffer(good, np.uint64).copy()
    kinds = words[len(words) - sums._feature_map.block.size // 8 + 14 :][:6:2]  # type: ignore[union-attr]
    assert kinds.tolist() == [0, 2, 3]
    for wrong in ([0, 3, 2], [2, 0, 3], [3, 2, 0]):
        kinds[:] = wrong
        with pytest.raises(DataError):
            sums.update(words.tobytes())
    kinds[:] = [0, 2, 3]
    sums.update(words.tobytes())


@pytest.mark.parametrize(
    "reading", [(np.nan, 1.0), (np.inf, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, np.inf), (0.0, np.nan)]
)
def test_states_whose_labels_have_no_finite_centre_or_no_factor_are_refused(reading: tuple[float, float]) -> None:
    good = FeatureMap([NUMBERS], label_reading=(0.25, 3.0))
    recipe = Recipe(loss=Robust(), dims=2, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.5))
    makers: list[Any] = [State(recipe, feature_map=good), DerivativeSums(Robust(), np.zeros((1, 2)), feature_map=good)]
    for made in makers:
        data = made.to_bytes()
        start = len(data) - good.block.size + 8 * 7
        assert np.frombuffer(data, np.float64, 2, start).tolist() == [0.25, 3.0]
        with pytest.raises(DataError, match=r"the state is corrupt|must stay those of the same derivative"):
            (State.from_bytes if isinstance(made, State) else made.update)(
                data[:start] + np.array(reading).tobytes() + data[start + 16 :]
            )


def test_numbers_of_a_reading_that_are_not_finite_are_refused() -> None:
    feature_map = random_feature_map(SHAPES[1], seed=19)
    recipe = Recipe(
        loss=Logistic(), dims=feature_map.dims, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.5)
    )
    good = State(recipe, feature_map=feature_map).to_bytes()
    with pytest.raises(DataError, match="the state is corrupt"):
        State.from_bytes(good[:-8] + np.array([np.inf]).tobytes())
    with pytest.raises(ParameterError, match="a and b must be finite numbers"):
        Segment("numbers", np.array([np.nan]), np.ones(1))


def test_states_that_read_rows_differently_cannot_share_a_scan() -> None:
    one, other = (random_feature_map(SHAPES[1], seed=seed) for seed in (20, 21))
    recipe = Recipe(
        loss=Logistic(), dims=one.dims, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.5)
    )
    cells = cells_for(one, rows=3, seed=22)
    with pytest.raises(ParameterError, match="the models of one scan must read rows alike"):
        run([State(recipe, feature_map=one), State(recipe, feature_map=other)], cells)
    with pytest.raises(ParameterError, match="rows must be float32, or float64 where the model reads them as they are"):
        run([State(recipe, feature_map=one)], cells.astype(np.float64))
    weights = np.zeros((1, one.dims))
    with pytest.raises(ParameterError, match="sums must stay those of the same derivative"):
        DerivativeSums(Logistic(), weights, feature_map=one).join(
            DerivativeSums(Logistic(), weights, feature_map=other)
        )
    with pytest.raises(ParameterError, match="sums must stay those of the same derivative"):
        DerivativeSums(Logistic(), weights, feature_map=one).join(DerivativeSums(Logistic(), weights))
    # They may differ in nothing but how they read a label.
    near, far = (FeatureMap([NUMBERS], label_reading=reading) for reading in ((0.0, 1.0), (0.0, 2.0)))
    recipe = replace(recipe, loss=Robust(), dims=2)
    with pytest.raises(ParameterError, match="the models of one scan must read rows alike"):
        run([State(recipe, feature_map=near), State(recipe, feature_map=far)], np.zeros((1, 3), np.float32))
    here, there = (DerivativeSums(Robust(), np.zeros((1, 2)), feature_map=one) for one in (near, far))
    with pytest.raises(ParameterError, match="sums must stay those of the same derivative"):
        here.join(there)


def test_misuse_is_refused() -> None:
    feature_map = FeatureMap([NUMBERS, Segment("constant", np.ones(1), np.zeros(1))])
    recipe = Recipe(loss=Logistic(), dims=2, rows=9, batch_size=1, passes=1, schedule=make_constant_schedule(0.5))
    message = "feature_map must be of 2 features, got 3"
    makers: list[Any] = [
        lambda: State(recipe, feature_map=feature_map),
        lambda: DerivativeSums(Logistic(), np.zeros((1, 2)), feature_map=feature_map),
        lambda: ErrorCounts(np.zeros((1, 1, 2)), classes=2, feature_map=feature_map),
    ]
    for make in makers:
        with pytest.raises(ParameterError, match=message):
            make()
    one, two = np.ones(1), np.ones(2)
    for places in (np.zeros(2), np.zeros((1, 1))):
        with pytest.raises(ParameterError, match=r"^places must be one for each step, got shape "):
            Segment("steps", one, one, places)
    with pytest.raises(ParameterError, match=r"^places must be one for each step, got shape \(1,\)$"):
        Segment("numbers", one, one, one)
    for places in (np.array([0.5, 0.25]), np.array([0.5, np.inf]), np.array([np.nan, 0.5])):
        with pytest.raises(ParameterError, match=r"^places must be finite and increasing"):
            Segment("steps", two, two, places)
    steps = Segment("steps", one, one, one)
    for segments in ([steps], [NUMBERS, steps, steps], [NUMBERS, Segment("category", one, one), steps]):
        with pytest.raises(ParameterError, match=r"^steps must follow the number that they are of$"):
            FeatureMap(segments)
    with pytest.raises(ParameterError, match="a feature map must have cells, got none"):
        FeatureMap([Segment("constant", np.ones(1), np.zeros(1))])
    with pytest.raises(ParameterError, match="a and b must be as many numbers, one or more"):
        replace(NUMBERS, a=np.zeros(3))
    for bad in (np.zeros((2, 3)), np.zeros((2, 2), np.float32), np.zeros(3, np.float32)):
        with pytest.raises(ParameterError, match="rows must be a 2-D array of float32 with 1 \\+ 2 columns"):
            feature_map.compute_features(bad)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="rows must be float32 with 1 \\+ 2 columns, and weights of 3 features"):
        compute_scores(np.zeros((2, 3), np.float32), np.zeros((1, 2)), feature_map)
    state = State(replace(recipe, dims=3), feature_map=feature_map)
    with pytest.raises(ParameterError, match="rows must have 1 \\+ 2 columns, got 4"):
        run([state], np.zeros((1, 4), np.float32))
