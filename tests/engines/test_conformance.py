"""What every engine must do alike: the same bits in the same order, whatever the rows come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp.encoding import python_to_arrow
from boltdp.encoding.encode import Encoder
from boltdp.engines.base import Engine, encode_rows, scan_rows, scan_rows_with_columns
from boltdp.engines.local_store import store_rows
from boltdp.engines.prepared_rows import Partition, PreparedRows
from boltdp.engines.sqlalchemy import SQLAlchemyEngine
from boltdp.errors import DataError, ParameterError
from boltdp.evaluation.evaluate import evaluate_privately
from boltdp.kernel import sgd
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.label_histogram import LabelHistogram
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.losses import HuberSVM, Logistic, Loss, MarginLogistic, Mean, Multinomial, Quantile, Robust
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_counts import make_noisy_counts
from boltdp.privacy.events.selection import PortionSelection, compute_portion_bounds
from boltdp.privacy.release_with_noise import Randomness, release_counts, release_label_count
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.run_context import Context
from boltdp.schema.check import check_source
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema, Standardization, TimePart, Vector
from boltdp.schema.source_columns import MAX_BATCH_ROWS
from boltdp.settings import Settings
from boltdp.workflows.label_check import count_labels
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.train import train_prepared
from boltdp.workflows.tune import expand_grid, tune
from tests.engines.sources import ROWS, Source, columns, features, in_order
from tests.export.test_sql import make_model


def content(prepared: PreparedRows) -> npt.NDArray[np.float32]:
    return np.concatenate([np.array(block) for block in prepared.read_blocks()])


def states(source: Source, rows: int, *, passes: int = 1, marked: bool = False) -> list[sgd.State]:
    made = []
    weights = (1.0, 0.5, 0.1)
    kinds = [(Logistic(), None), (MarginLogistic(), None), (HuberSVM(0.5), None), (Multinomial(3), None)]
    for loss, class_weights in (*kinds, (Logistic(), weights), (Multinomial(3), weights)):
        recipe = Recipe(
            loss=loss,
            dims=source.schema.dims,
            rows=rows,
            batch_size=10,
            passes=passes,
            schedule=make_constant_schedule(0.5),
            averaging="all",
            class_weights=class_weights,
        )
        made.append(sgd.State(recipe, classes=3, marked=marked, feature_map=source.feature_map))
    return made


def total(sums: Any) -> bytes:
    """What was summed, to the bit: how it is stored depends on who has joined sums, and what it is does not."""
    numbers = np.array(sums.counts) if isinstance(sums, ErrorCounts) else sums.value
    return numbers.tobytes() + getattr(sums, "rows", 0).to_bytes(8, "little")


def test_count_is_the_number_of_rows(source: Source) -> None:
    assert source.engine.count() == ROWS


def test_columns_tell_names_and_kinds(source: Source) -> None:
    columns = source.engine.columns()
    for column in source.schema.columns:
        expected = {Numeric: "number", Categorical: "text", Vector: "list"}.get(type(column))
        if isinstance(column, TimePart):
            expected = {"born": "date", "written": "text"}.get(column.source, "timestamp")
        assert columns[column.source].kind in (expected, "untyped")
    assert columns[source.schema.label].kind in ("number", "untyped")


def test_batches_are_short_and_in_order(source: Source) -> None:
    name = source.schema.label
    sizes = [batch.num_rows for batch in source.engine.batches([name])]
    assert max(sizes) <= MAX_BATCH_ROWS
    assert sum(sizes) == ROWS


def test_encoded_rows_are_those_of_plain_numpy(source: Source) -> None:
    np.testing.assert_array_equal(np.concatenate(list(encode_rows(source.engine, source.schema))), source.packed)


def test_a_check_counts_what_plain_python_counts(source: Source) -> None:
    report, cells = check_source(source.engine, source.schema), columns()
    label, *checked = report.columns
    assert (report.rows, report.ok) == (ROWS, True)
    if label.name != "sick":
        return  # other rows than these
    assert label.counts == tuple((f"{one}", cells["sick"].count(one)) for one in (0, 1, 2))
    assert [(odd.value, odd.count) for odd in label.undeclared_values] == [("3", cells["sick"].count(3))]
    places, at = {}, 1
    for one in source.schema.columns:
        places[one.name] = at
        at += one.length if isinstance(one, Vector) else 1
    for column in checked:
        if column.name not in cells:  # a part of a timestamp, whose codes are compared with plain Python's elsewhere
            codes = source.packed[:, places[column.name]]
            assert [count for _, count in column.counts] == [(codes == one).sum() for one in range(len(column.counts))]
            continue
        given = cells[column.name]
        if column.role == "vector":
            given = [number for cell in given for number in cell or (None, None)]
        there = [cell for cell in given if cell is not None and cell == cell]
        assert (column.cells, column.missing) == (len(given), len(given) - len(there))
        if column.role == "categorical":
            assert column.counts == tuple((name, there.count(name)) for name in "FM")
            assert column.undeclared == there.count("unknown")
            continue
        assert column.low is not None
        assert column.high is not None
        assert column.below == sum(cell < column.low for cell in there)
        assert column.above == sum(cell > column.high for cell in there)
        assert (column.smallest, column.largest) == (min(there), max(there))
        assert sum(column.bars) + column.below + column.above == len(there)


def test_kept_columns_come_beside_their_rows_and_as_they_are(source: Source) -> None:
    feature, label = source.schema.columns[0].name, source.schema.label
    found = [*scan_rows_with_columns(source.engine, source.schema, np.copy, [label, feature, feature])]
    rows = np.concatenate([packed for packed, _ in found])
    np.testing.assert_array_equal(rows[:, 1:], source.packed[:, 1:])
    assert {tuple(kept.schema.names) for _, kept in found} == {(label, feature, feature)}
    labels = np.array([python_to_arrow.to_float(cell) for _, kept in found for cell in kept.column(0).to_pylist()])
    declared = np.isin(labels, source.schema.classes)
    np.testing.assert_array_equal(np.where(declared, labels, np.nan), source.packed[:, 0])
    for _, kept in found:
        assert str(kept.column(1).to_pylist()) == str(kept.column(2).to_pylist())


@pytest.mark.parametrize("person_id", ["visits", "sex"])
@pytest.mark.parametrize("permuted", [True, False])
def test_of_each_persons_rows_the_first_ones_count_and_others_are_neutral(
    source: Source, person_id: str, permuted: bool
) -> None:
    """By numbers, or by texts of which some are missing: those count together."""
    if person_id not in source.schema.sources:
        return  # other rows than these
    others = tuple(column for column in source.schema.columns if column.name != person_id)
    pairs = tuple(pair for pair in source.schema.pairs if person_id not in pair)
    schema = replace(source.schema, columns=others, pairs=pairs, person_id=person_id, max_rows_per_person=40)
    met, counts = Counter[Any](), []
    for _, kept in scan_rows_with_columns(source.engine, schema, np.copy, [person_id]):
        for person in kept.column(0).to_pylist():
            met[person] += 1
            counts.append(met[person] <= 40)
    rows = np.vstack([*encode_rows(source.engine, schema.without_person_limit)])
    names = [*schema.sources, schema.label]
    neutral = Encoder(schema.encoding).encode(pa.RecordBatch.from_arrays([pa.nulls(1)] * len(names), names))
    expected = np.where(np.array(counts)[:, None], rows, neutral)
    assert np.isnan(expected[~np.array(counts), 0]).all()
    with source.engine.prepare(schema, Context(seed=4), permuted=permuted) as prepared:
        found = content(prepared)
    if permuted:
        np.testing.assert_array_equal(found, in_order(expected, seed=4))
        np.testing.assert_array_equal(np.vstack([*scan_rows(source.engine, schema, np.copy, limited=True)]), expected)
    else:
        one, other = (np.sort(some.view(np.uint32), axis=0) for some in (found, expected))
        np.testing.assert_array_equal(one, other)


def test_a_unit_that_the_data_does_not_have_is_told(source: Source) -> None:
    schema = replace(source.schema, person_id="nobody", max_rows_per_person=1)
    with pytest.raises(DataError, match="must have the column 'nobody', which the schema declares as its person_id"):
        source.engine.prepare(schema, Context())


def test_cells_are_read_as_the_features_of_plain_numpy(source: Source) -> None:
    if source.feature_map is None:
        return  # they are the features
    read = source.feature_map.compute_features(source.packed)
    np.testing.assert_array_equal(read, features(source.schema, source.packed))


def test_standardizing_changes_the_reading_of_rows_and_no_row(source: Source) -> None:
    n = source.schema.column_feature_count
    numbers = np.linspace(-0.9, 0.9, n).tolist()
    schema = replace(source.schema, standardization=Standardization(tuple(numbers), (0.3,) * n, 1.5, 0.7))
    with source.engine.prepare(schema, Context(seed=4)) as prepared:
        rows, read = content(prepared), prepared.feature_map
    np.testing.assert_array_equal(rows, in_order(np.vstack([*encode_rows(source.engine, schema)]), seed=4))
    if read is not None:
        np.testing.assert_array_equal(rows, in_order(source.packed, seed=4))
        # Undoing it gives the plain features back, but for what is missing, which is 0.
        standardized = read.compute_features(rows)[:, 1 : 1 + n]
        undone = standardized * (0.3 * 1.5) + np.array(numbers)
        x = features(source.schema, rows)[:, 1 : 1 + n] * source.schema.row_norm
        assert np.isclose(undone, x, atol=1e-6)[standardized != 0].all()


def test_rows_can_be_read_in_another_way_without_another_copy(source: Source) -> None:
    if source.feature_map is None:
        return
    plain = replace(source.schema, pairs=())
    other = replace(plain, clip_norm=0.25).encoding.feature_map
    sums = [FeatureSums(each, clip_norm=0.9) for each in (plain.encoding.feature_map, other)]
    expected = [each.copy_empty() for each in sums]
    with source.engine.prepare(plain, Context(seed=4), permuted=False) as prepared:
        view = prepared.with_feature_map(other)
        assert (view.feature_map, view.rows, view.cells, view.dims) == (other, ROWS, prepared.cells, prepared.dims)
        prepared.add_to_sums(sums[:1])
        view.add_to_sums(sums[1:])
        with pytest.raises(ParameterError, match=rf"^feature_map must be of {prepared.cells} cells, got 1$"):
            prepared.with_feature_map(FeatureMap([Segment("numbers", np.zeros(1), np.ones(1))]))
    for each, given in zip(sums, expected, strict=True):
        given.add(source.packed)
        np.testing.assert_array_equal(each.value, given.value)
    assert (sums[0].value != sums[1].value).any()


def test_rows_in_any_order_are_the_same_rows_and_good_for_sums_only(spooled: Source) -> None:
    def sums() -> list[Any]:
        weights = np.random.default_rng(2).standard_normal((1, spooled.schema.dims))
        return [
            DerivativeSums(Logistic(), weights, positive=2, classes=3, feature_map=spooled.feature_map),
            ErrorCounts(weights[None], classes=2, feature_map=spooled.feature_map),
        ]

    summed, expected = sums(), sums()
    for each in expected:
        each.add(spooled.packed)
    with spooled.engine.prepare(spooled.schema, Context(seed=9), permuted=False) as prepared:
        assert (prepared.rows, prepared.cells, prepared.dims) == (
            ROWS,
            spooled.packed.shape[1] - 1,
            spooled.schema.dims,
        )
        rows = content(prepared)
        prepared.add_to_sums(summed)
        trained = states(spooled, ROWS)
        for use in (
            lambda: prepared.run_pass(trained, Context()),
            lambda: prepared.run_sampled_batches(trained, [np.arange(3)]),
            lambda: prepared.reshuffle(1),
            lambda: prepared.slice(0, 1),
        ):
            with pytest.raises(ParameterError, match=r"^rows must be prepared in a permuted order for anything but"):
                use()
    assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in spooled.packed)
    assert [total(each) for each in summed] == [total(each) for each in expected]


def test_label_is_not_needed_for_prediction(source: Source) -> None:
    rows = np.concatenate(
        list(
            encode_rows(
                source.engine,
                replace(source.schema, target=replace(source.schema.target, column="no such column")),
                label=False,
            )
        )
    )
    assert np.isnan(rows[:, 0]).all()
    np.testing.assert_array_equal(rows[:, 1:], source.packed[:, 1:])


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_prepared_rows_are_in_the_reference_order(spooled: Source, seed: int) -> None:
    with spooled.engine.prepare(spooled.schema, Context(seed=seed)) as prepared:
        assert (prepared.rows, prepared.dims) == (ROWS, spooled.schema.dims)
        assert prepared.cells == spooled.packed.shape[1] - 1
        np.testing.assert_array_equal(content(prepared), in_order(spooled.packed, seed))


def test_reshuffle_permutes_the_current_order(spooled: Source) -> None:
    with spooled.engine.prepare(spooled.schema, Context(seed=3)) as prepared:
        prepared.reshuffle(4)
        prepared.reshuffle(5)
        expected = in_order(in_order(in_order(spooled.packed, 3), 4), 5)
        np.testing.assert_array_equal(content(prepared), expected)


def test_portions_are_cut_by_position(spooled: Source) -> None:
    expected = in_order(spooled.packed, 3)
    with spooled.engine.prepare(spooled.schema, Context(seed=3)) as prepared:
        part = prepared.slice(100, 400)
        assert (part.rows, part.dims) == (300, prepared.dims)
        np.testing.assert_array_equal(content(part), expected[100:400])
        np.testing.assert_array_equal(content(part.slice(50, 60)), expected[150:160])


def test_reshuffling_a_portion_leaves_the_others_alone(spooled: Source) -> None:
    expected = in_order(spooled.packed, 3)
    expected[100:400] = in_order(expected[100:400], 8)
    with spooled.engine.prepare(spooled.schema, Context(seed=3)) as prepared:
        prepared.slice(100, 400).reshuffle(8)
        np.testing.assert_array_equal(content(prepared), expected)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (0, ROWS + 1)])
def test_portion_outside_the_rows_is_refused(source: Source, start: int, stop: int) -> None:
    with (
        source.engine.prepare(source.schema, Context(seed=3)) as prepared,
        pytest.raises(ParameterError, match=f"got start={start} and stop={stop}$"),
    ):
        prepared.slice(start, stop)


def test_passes_of_several_models_give_the_bits_of_one_run_over_the_array(spooled: Source) -> None:
    expected, trained = states(spooled, ROWS, passes=2), states(spooled, ROWS, passes=2)
    for _ in range(2):
        sgd.run(expected, in_order(spooled.packed, 9))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_pass(trained, Context())
        prepared.run_pass(trained, Context())
    assert all(state.is_finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def cut(source: Source, count: int, *, fresh: bool) -> list[Partition]:
    """Parts of all rows, the last of them the largest, whose states have 4 passes or 2."""
    edges = [number * ROWS // count for number in range(count + 1)]
    return [
        Partition(
            start,
            stop,
            [*states(source, stop - start, passes=4), *states(source, stop - start, passes=2)],
            [None, 50 + start, None, 70 + start] if fresh else [None] * 4,
        )
        for start, stop in pairwise(edges)
    ]


@pytest.mark.parametrize(("count", "fresh"), [(1, True), (2, False), (3, True), (8, False)])
def test_partitions_give_the_bits_of_passes_over_parts_of_the_array(spooled: Source, count: int, fresh: bool) -> None:
    rows, expected = in_order(spooled.packed, 9), cut(spooled, count, fresh=fresh)
    for part in expected:
        own = rows[part.start : part.stop]
        for seed in part.seeds:
            own[:] = own if seed is None else in_order(own, seed)
            sgd.run([state for state in part.states if not state.is_finished], own)
    parts = cut(spooled, count, fresh=fresh)
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_partitions(parts, Context())
        np.testing.assert_array_equal(content(prepared), rows)
    for part, other in zip(parts, expected, strict=True):
        assert all(state.is_finished for state in part.states)
        assert [state.to_bytes() for state in part.states] == [state.to_bytes() for state in other.states]


def test_partitions_may_leave_rows_out_and_come_in_any_order(spooled: Source) -> None:
    rows, expected, parts = in_order(spooled.packed, 9), cut(spooled, 5, fresh=False), cut(spooled, 5, fresh=False)
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.slice(10, ROWS).run_partitions([], Context())
        prepared.slice(10, ROWS).run_partitions([replace(parts[0], start=700, stop=700 + parts[0].rows)], Context())
        prepared.run_partitions([parts[3], parts[1]], Context())
    for part, start in ((0, 710), (1, expected[1].start), (3, expected[3].start)):
        for state in expected[part].states:
            for _ in range(4):
                if not state.is_finished:
                    sgd.run([state], rows[start : start + expected[part].rows])
    assert [[state.to_bytes() for state in part.states] for part in parts] == [
        [state.to_bytes() for state in part.states] for part in expected
    ]


def test_bad_partitions_are_refused_before_they_are_fed(source: Source) -> None:
    parts = cut(source, 3, fresh=True)
    before = [state.to_bytes() for part in parts for state in part.states]
    other = sgd.State(
        Recipe(loss=Logistic(), dims=2, rows=332, batch_size=10, passes=4, schedule=make_constant_schedule(0.5)),
        classes=3,
    )
    bad = [
        (replace(parts[2], start=ROWS, stop=ROWS), f"a partition must have .* got start={ROWS} and stop={ROWS}$"),
        (replace(parts[2], stop=ROWS + 1), f"a partition must have .* got start={parts[2].start} and stop={ROWS + 1}$"),
        (replace(parts[2], start=parts[2].start - 1), r"^partitions must not share rows, got some that do$"),
        (replace(parts[2], states=[other]), r"^rows must have 1 \+ 2 columns, got "),
    ]
    with source.engine.prepare(source.schema, Context(seed=9)) as prepared:
        rows = content(prepared)
        for one, message in bad:
            with pytest.raises(ParameterError, match=message):
                prepared.run_partitions([*parts[:2], one], Context())
        np.testing.assert_array_equal(content(prepared), rows)
    assert [state.to_bytes() for part in parts for state in part.states] == before
    with (
        source.engine.prepare(source.schema, Context(seed=9), permuted=False) as unpermuted,
        pytest.raises(ParameterError, match="must be prepared in a permuted order"),
    ):
        unpermuted.run_partitions(parts, Context())


def test_progress_over_partitions_is_that_of_all_together(spooled: Source) -> None:
    reports: list[tuple[str, int, int]] = []
    context = Context(seed=9, progress=lambda *report: reports.append(report))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_partitions(cut(spooled, 3, fresh=False), context)
        assert [stage for stage, _, _ in reports] == ["4 passes over 3 partitions"] * 12
        assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
        assert reports[-1][1:] == (4 * ROWS, 4 * ROWS)
        reports.clear()
        prepared.run_partitions(cut(spooled, 1, fresh=False), context)
    assert list(dict.fromkeys(stage for stage, _, _ in reports)) == [f"pass {number} of 4" for number in (1, 2, 3, 4)]
    assert {(stage, done) for stage, done, _ in reports} >= {(f"pass {number} of 4", ROWS) for number in (1, 2, 3, 4)}
    assert {total for _, _, total in reports} == {ROWS}


@pytest.mark.parametrize(
    "loss", [Logistic(), MarginLogistic(), Multinomial(3)], ids=["logistic", "margin", "multinomial"]
)
def test_derivatives_have_the_bits_of_those_over_the_array(spooled: Source, loss: Loss) -> None:
    rows, random = in_order(spooled.packed, 9), np.random.default_rng(2)
    weights, direction = random.standard_normal((2, loss.vector_count, spooled.schema.dims))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        kinds: list[dict[str, Any]] = [{}, {"clip": 0.2}, {"direction": direction}, {"hessian": True}]
        kinds += [{**kind, "class_weights": (0.3, 1.0, 0.01)} for kind in kinds]
        for kind, part in product(kinds, (slice(0, ROWS), slice(5, 700))):
            expected, sums = (
                DerivativeSums(loss, weights, positive=2, classes=3, feature_map=spooled.feature_map, **kind)
                for _ in range(2)
            )
            expected.add(rows[part])
            prepared.slice(part.start, part.stop).add_to_sums([sums])
            assert sums.value.shape == expected.value.shape
            assert sums.value.tobytes() == expected.value.tobytes()
        with pytest.raises(ParameterError, match=r"^rows must have 1 \+ 2 columns, got "):
            prepared.add_to_sums([DerivativeSums(Logistic(), np.zeros((1, 2)))])


def replace_target(source: Source, label: str) -> Source | None:
    """The same rows, of which a column of whole numbers or of floats, infinite ones among them, is the target."""
    if label == "dose" and ("dose" in source.schema.sources or "dose" not in source.engine.columns()):
        return None
    low, high, typical = (-1, 1, (-0.5, 0.25)) if label == "dose" else (0, 2.5, (0.25, 1.5))
    target = Number(label if label == "dose" else source.schema.label, low, high, typical, unit=0.5)
    if isinstance(source.engine, SQLAlchemyEngine):  # which keeps no infinite numbers as texts
        read = source.engine.batches([target.column], parse={target.column: "number"})
        kept_columns = [batch.column(0) for batch in read]
    else:
        scanned = scan_rows_with_columns(source.engine, source.schema, np.copy, [target.column])
        kept_columns = [kept.column(0) for _, kept in scanned]
    cells = [python_to_arrow.to_float(cell) for column in kept_columns for cell in column.to_pylist()]
    packed = source.packed.copy()
    packed[:, 0] = (np.clip(cells, low, high) - (low + high) / 2) / ((high - low) / 2)
    return Source(source.engine, replace(source.schema, target=target), packed)


@pytest.mark.parametrize("label", ["sick", "dose"])
def test_numbers_as_targets_give_the_bits_of_those_over_the_array(source: Source, label: str) -> None:
    given = replace_target(source, label)
    if given is None:
        return
    assert len(np.unique(given.packed[:, 0])) > 2
    losses, dims = (Robust(), Quantile(0.9), Mean()), given.schema.dims
    weights = np.random.default_rng(2).standard_normal((1, dims))

    def sums() -> list[Any]:
        each = [DerivativeSums(loss, weights, feature_map=given.feature_map) for loss in losses]
        return [*each, DerivativeSums(Robust(), weights, hessian=True, feature_map=given.feature_map)]

    def passes() -> list[sgd.State]:
        recipe = Recipe(
            loss=Robust(), dims=dims, rows=ROWS, batch_size=10, passes=1, schedule=make_constant_schedule(0.5)
        )
        return [sgd.State(replace(recipe, loss=loss), feature_map=given.feature_map) for loss in losses]

    rows, (summed, trained), (expected, run) = in_order(given.packed, 9), (sums(), passes()), (sums(), passes())
    for each in expected:
        each.add(rows)
    sgd.run(run, rows)
    labels = UnusableLabelCount(cells=rows.shape[1] - 1, classes=0)
    with given.engine.prepare(given.schema, Context(seed=9)) as prepared:
        np.testing.assert_array_equal(content(prepared), rows)
        prepared.run_pass(trained, Context())
        prepared.add_to_sums([*summed, labels])
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in run]
    assert [total(each) for each in summed] == [total(each) for each in expected]
    assert labels.count == np.isnan(rows[:, 0]).sum()


def test_several_sums_are_made_in_one_scan_and_none_disturbs_another(spooled: Source) -> None:
    rows, random = in_order(spooled.packed, 9), np.random.default_rng(2)
    weights = random.standard_normal((3, 1, spooled.schema.dims))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        sums = [DerivativeSums(Logistic(), each, classes=3, feature_map=spooled.feature_map) for each in weights]
        sums.append(DerivativeSums(Logistic(), weights[0], hessian=True, classes=3, feature_map=spooled.feature_map))
        expected = [DerivativeSums(Logistic(), each, classes=3, feature_map=spooled.feature_map) for each in weights]
        expected.append(
            DerivativeSums(Logistic(), weights[0], hessian=True, classes=3, feature_map=spooled.feature_map)
        )
        # What is summed already stays.
        for part in (slice(0, ROWS), slice(100, 400)):
            prepared.slice(part.start, part.stop).add_to_sums(sums)
            for each in expected:
                each.add(rows[part])
        prepared.add_to_sums([])
        before = [each.to_bytes() for each in sums]
        assert [total(each) for each in sums] == [total(each) for each in expected]
        with pytest.raises(ParameterError, match=r"^rows must have 1 \+ 2 columns, got "):
            prepared.add_to_sums([*sums, DerivativeSums(Logistic(), np.zeros((1, 2)))])
        assert [each.to_bytes() for each in sums] == before


def test_a_sample_has_all_rows_that_sums_of_its_share_take(spooled: Source) -> None:
    weights = np.random.default_rng(2).standard_normal((1, spooled.schema.dims))

    def sums(share: float) -> DerivativeSums:
        return DerivativeSums(Logistic(), weights, positive=2, classes=3, feature_map=spooled.feature_map, share=share)

    rows = in_order(spooled.packed, 9)
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        for part in (slice(0, ROWS), slice(100, 400)):
            for share in (0.001, 0.3):
                of_sample, of_all = sums(share), sums(share)
                of_all.add(rows[part])
                with prepared.slice(part.start, part.stop).open_sample(share) as few:
                    few.add_to_sums([of_sample])
                assert total(of_sample) == total(of_all)
                assert of_all.rows < share * ROWS + 100
        # Its rows go, those that it is of stay.
        assert len(content(prepared)) == ROWS


def drawn(rows: npt.NDArray[np.float32], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The rows at these positions, and rows without a gradient where a batch ends."""
    taken = rows[positions]
    taken[positions == sgd.BATCH_END] = 0.0
    taken[positions == sgd.BATCH_END, 0] = np.nan
    return taken


@pytest.mark.parametrize("cuts", [[], [0, 1, 1, 2, 700]], ids=["at once", "in parts"])
def test_drawn_rows_give_the_bits_of_a_run_over_them(spooled: Source, cuts: list[int]) -> None:
    positions = np.random.default_rng(3).integers(-1, ROWS, ROWS)
    positions[:4] = [ROWS - 1, 0, 0, -1]
    expected, trained = states(spooled, ROWS), states(spooled, ROWS)
    sgd.run(expected, drawn(in_order(spooled.packed, 9), positions))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_sampled_batches(trained, np.split(positions, cuts))
    assert all(state.is_finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_batches_have_any_number_of_drawn_rows(spooled: Source) -> None:
    rng = np.random.default_rng(5)
    batches = [np.append(rng.integers(0, ROWS, size), sgd.BATCH_END) for size in rng.poisson(10, 100)]
    expected, trained = states(spooled, ROWS, marked=True), states(spooled, ROWS, marked=True)
    sgd.run(expected, in_order(spooled.packed, 9), positions=np.concatenate(batches))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_sampled_batches(trained, batches)
    assert all(state.is_finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawn_rows_of_a_portion_are_counted_from_its_start(spooled: Source) -> None:
    positions = np.random.default_rng(4).integers(-1, 300, 500)
    positions[:2] = [299, 0]
    expected, trained = states(spooled, 500), states(spooled, 500)
    sgd.run(expected, drawn(in_order(spooled.packed, 9)[100:400], positions))
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.slice(100, 400).run_sampled_batches(trained, [positions])
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawing_and_passes_may_alternate(spooled: Source) -> None:
    positions = np.arange(ROWS)[::-1].copy()
    expected, trained = states(spooled, ROWS, passes=3), states(spooled, ROWS, passes=3)
    rows = in_order(spooled.packed, 9)
    for part in (rows, np.ascontiguousarray(rows[::-1]), rows):
        sgd.run(expected, part)
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        prepared.run_pass(trained, Context())
        prepared.run_sampled_batches(trained, [positions])
        prepared.run_pass(trained, Context())
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawing_nothing_changes_nothing(spooled: Source) -> None:
    trained = states(spooled, ROWS)
    before = [state.to_bytes() for state in trained]
    nothing: list[list[npt.NDArray[np.int64]]] = [[], [np.empty(0, np.int64)]]
    with spooled.engine.prepare(spooled.schema, Context(seed=9)) as prepared:
        for positions in nothing:
            prepared.run_sampled_batches(trained, positions)
    assert [state.to_bytes() for state in trained] == before


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.array([0, 300]), "positions must be from -1 to 299, got one outside"),
        (np.array([5, -2]), "positions must be from -1 to 299, got one outside"),
        (np.array([5], np.int32), "positions must be 1-D arrays of int64, got 1-D int32"),
        (np.array([[5]]), "positions must be 1-D arrays of int64, got 2-D int64"),
    ],
)
def test_bad_positions_are_refused_before_they_are_fed(
    source: Source, positions: npt.NDArray[np.int64], message: str
) -> None:
    trained = states(source, ROWS)
    before = [state.to_bytes() for state in trained]
    with source.engine.prepare(source.schema, Context(seed=9)) as prepared:
        with pytest.raises(ParameterError) as caught:
            prepared.slice(100, 400).run_sampled_batches(trained, [np.array([3]), positions])
        assert str(caught.value) == message
        assert [state.to_bytes() for state in trained] == before
        prepared.run_sampled_batches(trained, [np.arange(ROWS)])
    assert all(state.is_finished for state in trained)


def test_tuning_gives_the_bits_of_tuning_over_the_array(spooled: Source) -> None:
    rows = len(spooled.packed)
    base = Settings(epsilon=5.0, algorithm="bolton", seed=9, noise_seed=4, passes=2, batch_size=10)
    grid = expand_grid(base, {"step_size": [0.1, 0.5], "passes": [1, 2]})
    model = tune(spooled.engine, spooled.schema, grid, method="portions")
    certificate = model.certificate
    assert isinstance(certificate.selection, PortionSelection)
    chosen = certificate.selection.chosen
    with store_rows(
        [spooled.packed],
        rows=rows,
        width=spooled.packed.shape[1],
        context=Context(seed=9),
        feature_map=spooled.feature_map,
        in_memory=True,
    ) as array:
        own = array.slice(*compute_portion_bounds(chosen, rows=rows, candidates=len(grid)))
        context = Context(seed=9, randomness=Randomness(4 + chosen))
        expected = train_prepared(own, spooled.schema, certificate, context)
    assert (model.weights == expected.weights).all()


def test_progress_tells_rows_and_ends_with_all_of_them(spooled: Source) -> None:
    reports: list[tuple[str, int, int]] = []
    context = Context(seed=9, progress=lambda *report: reports.append(report))
    with spooled.engine.prepare(spooled.schema, context.start_stage("preparing", ROWS)) as prepared:
        prepared.run_pass(states(spooled, ROWS), context.start_stage("passing", ROWS))
        before = list(reports)
        # How many rows are drawn, and how many sums are made, is secret: neither has anybody to tell.
        prepared.run_sampled_batches(states(spooled, ROWS), [np.arange(ROWS)])
        zeros = np.zeros((1, spooled.schema.dims))
        prepared.add_to_sums([DerivativeSums(Logistic(), zeros, feature_map=spooled.feature_map)])
    assert reports == before
    for stage in ("preparing", "passing"):
        done = [rows for reported, rows, total in reports if (reported, total) == (stage, ROWS)]
        assert done == sorted(done)
        assert done[-1] == ROWS


def test_missing_column_is_told_before_a_row_is_read(source: Source) -> None:
    schema = Schema(Classes("label", (0, 1)), (Numeric("height", 0, 1),))
    with pytest.raises(DataError, match=r"^the data must have the column 'height', which the schema declares$"):
        source.engine.prepare(schema, Context(seed=0))


def test_missing_label_is_told_before_a_row_is_read(source: Source) -> None:
    schema = Schema(Classes("outcome", (0, 1)), source.schema.columns)
    with pytest.raises(DataError, match=r"^the data must have the column 'outcome', which the schema declares$"):
        source.engine.prepare(schema, Context(seed=0))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Numeric("sex", 0, 1), "column 'sex' must have numbers, its type is 'text'"),
        (Numeric("scan", 0, 1), "column 'scan' must have numbers, its type is 'list'"),
        (Categorical("scan", (1,)), "column 'scan' must have texts, numbers or booleans, its type is 'list'"),
        (Vector("age", 2, 0, 1), "column 'age' must have lists of numbers, its type is 'number'"),
    ],
    ids=["sex as number", "scan as number", "scan as category", "age as vector"],
)
def test_wrong_type_is_told_before_a_row_is_read(source: Source, column: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        source.engine.prepare(Schema(Classes("sick", (0, 1)), (column,)), Context(seed=0))
    assert str(caught.value) == message


@pytest.mark.parametrize(("start", "stop"), [(0, ROWS), (3, 4), (100, 700), (ROWS - 1, ROWS)])
def test_slices_are_cut_by_position(source: Source, start: int, stop: int) -> None:
    part = source.engine.slice(start, stop)
    assert part.count() == stop - start
    assert part.columns() == source.engine.columns()
    np.testing.assert_array_equal(np.concatenate(list(encode_rows(part, source.schema))), source.packed[start:stop])
    with part.prepare(source.schema, Context(seed=6)) as prepared:
        np.testing.assert_array_equal(content(prepared), in_order(source.packed[start:stop], 6))


def moments(engine: Engine, schema: Schema) -> npt.NDArray[np.int64]:
    sums = FeatureSums(schema.unscaled.encoding.feature_map, clip_norm=0.9)
    with engine.prepare(schema.unscaled, Context(seed=2), permuted=False) as prepared:
        prepared.add_to_sums([sums])
    return sums.value


def test_moments_of_slices_add_up_to_those_of_all_rows(source: Source) -> None:
    parts = [source.engine.slice(0, 300), source.engine.slice(300, ROWS)]
    first, second = (moments(part, source.schema) for part in parts)
    np.testing.assert_array_equal(first + second, moments(source.engine, source.schema))
    assert np.abs(first).max() > 0


@pytest.mark.parametrize("limited", [False, True], ids=["all", "limited"])
def test_the_label_check_of_a_training_is_the_same_in_every_engine(source: Source, limited: bool) -> None:
    schema, unusable = source.schema, int(np.isnan(source.packed[:, 0]).sum())
    if limited:
        if "visits" not in schema.sources:
            return  # other rows than these
        others = tuple(column for column in schema.columns if column.name != "visits")
        schema = replace(schema, columns=others, person_id="visits", max_rows_per_person=40)
        met, within = Counter[Any](), []
        for _, kept in scan_rows_with_columns(source.engine, schema, np.copy, ["visits"]):
            for person in kept.column(0).to_pylist():
                met[person] += 1
                within.append(met[person] <= 40)
        rows = np.vstack([*encode_rows(source.engine, schema.without_person_limit)])
        unusable = int(np.isnan(rows[np.array(within), 0]).sum())
    certificate = make_plan(schema, ROWS, Settings(epsilon=200.0, algorithm="bolton", noise_seed=4)).certificate
    with source.engine.prepare(schema, Context(seed=4), permuted=False) as prepared:
        released = count_labels(prepared, schema, certificate.unusable_label_count, certificate, Randomness(4))
    assert released == release_label_count(unusable, certificate.unusable_label_count, certificate, Randomness(4))
    assert unusable > 0


def test_labels_are_in_the_same_bins_in_every_engine_in_the_scan_of_the_moments(source: Source) -> None:
    sums = FeatureSums(source.schema.unscaled.encoding.feature_map, clip_norm=0.9)
    with source.engine.prepare(source.schema.unscaled, Context(seed=2), permuted=False) as prepared:
        histogram = LabelHistogram(cells=prepared.cells, bins=4)
        prepared.add_to_sums([sums, histogram])
    labels = source.packed[:, 0]
    assert histogram.counts.tolist() == [0, 0, (labels == 0).sum(), (labels == 1).sum()]
    np.testing.assert_array_equal(sums.value, moments(source.engine, source.schema))
    assert histogram.counts.sum() < ROWS  # some labels are missing, or those of other classes


def test_slices_do_not_disturb_one_another(source: Source) -> None:
    """As in tuning on public rows: each is asked something while the other has begun, and one of them fails."""
    hidden, shown = source.engine.slice(300, source.engine.count()), source.engine.slice(0, 300)
    before = moments(hidden, source.schema)
    with pytest.raises(DataError, match=r"^the data must have the column 'outcome'"):
        shown.prepare(replace(source.schema, target=replace(source.schema.target, column="outcome")), Context(seed=1))
    next(iter(shown.batches([source.schema.label])))  # and no further
    with (
        shown.prepare(source.schema, Context(seed=1)) as first,
        hidden.prepare(source.schema, Context(seed=2)) as second,
    ):
        np.testing.assert_array_equal(content(first), in_order(source.packed[:300], 1))
        np.testing.assert_array_equal(content(second), in_order(source.packed[300:], 2))
    np.testing.assert_array_equal(moments(hidden, source.schema), before)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (0, ROWS + 1)])
def test_slice_outside_the_rows_is_refused(source: Source, start: int, stop: int) -> None:
    with pytest.raises(ParameterError, match=f"^a slice must have .* got start={start} and stop={stop}$"):
        source.engine.slice(start, stop)


def test_bad_row_is_an_error_when_asked_for_and_the_message_has_no_value(spooled: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^column '\w+' must be complete, got a missing value or [a-z ]+$"):
        spooled.engine.prepare(spooled.schema, Context(seed=0, on_bad_row="error"))
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_with_noise_counts_the_same_rows(source: Source) -> None:
    """Of the same seed, the released counts are the same wherever the rows are."""
    model = make_model(source.schema)
    schema = source.schema
    by = "sex" if schema.projection is None and any(column.name == "sex" for column in schema.columns) else None
    found = evaluate_privately(model, source.engine, Budget(1.0), by=by, context=Context(randomness=Randomness(3)))
    bins = found.bins
    place = None if by is None else source.schema.encoding.locate_cell(by)
    counts = bins.count_rows(model, source.packed, place)
    event = make_noisy_counts(Budget(1.0), releases=1, summed=True)
    expected = release_counts(counts.tolist(), event, Randomness(3).make_stream("evaluation"))
    assert [*found.counts] == expected
