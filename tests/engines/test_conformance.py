"""What every engine must do alike: the same bits in the same order, whatever the rows come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from boltdp import kernel
from boltdp.data.schema import Categorical, Numeric, Schema, Standardization, Vector
from boltdp.data.source import BATCH_ROWS
from boltdp.engines import DuckDBEngine, Prepared
from boltdp.engines.base import encoded, plain
from boltdp.engines.spool import spool
from boltdp.errors import DataError, ParameterError
from boltdp.kernel.objective import Sums
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import constant
from boltdp.privacy.selection import Portions
from boltdp.settings import Settings
from boltdp.train import train_prepared
from boltdp.tune import candidates, tune
from tests.engines.sources import ROWS, SOURCES, Source, in_order

#: Prepared rows in memory, in a file of few buckets, and in one of many, the last of them short.
BUCKETS = {"memory": 64 << 20, "few buckets": 4 * 4 * (ROWS - 1), "many buckets": 4 * 4 * 100}
IN_MEMORY = ("numpy", "pandas", "arrow")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Source]]:
    made = {name: make(tmp_path_factory.mktemp("rows")) for name, make in SOURCES.items()}
    yield made
    for source in made.values():
        if isinstance(source.engine, DuckDBEngine):
            source.engine.close()


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, sources: dict[str, Source]) -> Source:
    return sources[request.param]


@pytest.fixture(
    params=[(name, buckets) for name in SOURCES for buckets in (["memory"] if name in IN_MEMORY else BUCKETS)],
    ids=lambda parameters: ", ".join(parameters),
)
def spooled(request: pytest.FixtureRequest, sources: dict[str, Source], tmp_path: Path) -> Source:
    """A source, set to spool its rows in one way or another; rows that are in memory stay there."""
    name, buckets = request.param
    source = sources[name]
    if isinstance(source.engine, DuckDBEngine):
        source.engine.bucket_bytes = BUCKETS[buckets]
        source.engine.spool = tmp_path
    return source


def content(prepared: Prepared) -> npt.NDArray[np.float32]:
    return np.concatenate([np.array(block) for block in prepared.blocks()])


def states(dims: int, rows: int, *, passes: int = 1, marked: bool = False) -> list[kernel.State]:
    made = []
    for loss in (Logistic(), HuberSVM(0.5), Multinomial(3)):
        recipe = Recipe(
            loss=loss, dims=dims, rows=rows, batch_size=10, passes=passes, schedule=constant(0.5), averaging="all"
        )
        made.append(kernel.State(recipe, classes=3, marked=marked))
    return made


def test_count_is_the_number_of_rows(source: Source) -> None:
    assert source.engine.count() == ROWS


def test_columns_tell_names_and_kinds(source: Source) -> None:
    columns = source.engine.columns()
    for column in source.schema.columns:
        expected = {Numeric: "number", Categorical: "text", Vector: "list"}[type(column)]
        assert columns[column.name].kind in (expected, "untyped")
    assert columns[source.schema.label].kind in ("number", "untyped")


def test_batches_are_short_and_in_order(source: Source) -> None:
    name = source.schema.label
    sizes = [batch.num_rows for batch in source.engine.batches([name])]
    assert max(sizes) <= BATCH_ROWS
    assert sum(sizes) == ROWS


def test_encoded_rows_are_those_of_plain_numpy(source: Source) -> None:
    np.testing.assert_array_equal(np.concatenate(list(encoded(source.engine, source.schema))), source.packed)


def test_standardized_rows_are_those_of_the_arrays(source: Source) -> None:
    n = source.schema.encoded_dims - source.schema.intercept
    numbers = np.linspace(-0.9, 0.9, n).tolist()
    schema = replace(source.schema, standardization=Standardization(tuple(numbers), (0.3,) * n, 1.5, 0.7))
    with source.engine.prepare(schema, seed=4) as prepared:
        found = np.vstack([*prepared.blocks()])
    np.testing.assert_array_equal(found, in_order(np.vstack([*encoded(source.engine, schema)]), seed=4))
    if schema.projection is None:
        # Undoing it gives the plain rows back, but for what is missing, which is 0.
        center, factor = np.array(numbers), 1 / (0.3 * 1.5)
        undone = found[:, 1 : 1 + n] / factor + center
        x = in_order(source.packed, seed=4)[:, 1 : 1 + n] * source.schema.row_radius
        assert np.isclose(undone, x, atol=1e-6)[found[:, 1 : 1 + n] != 0].all()


def test_moments_are_those_of_the_encoded_rows(source: Source) -> None:
    declared = plain(source.schema)
    expected = np.zeros((2, declared.encoded_dims), np.int64)
    for block in encoded(source.engine, declared):
        kernel.moments(block, expected, radius=0.9)
    told: list[int] = []
    found = source.engine.moments(source.schema, radius=0.9, progress=told.append)
    np.testing.assert_array_equal(found, expected)
    assert told[-1] == ROWS
    assert np.abs(found).max() > 0


def test_label_is_not_needed_for_prediction(source: Source) -> None:
    rows = np.concatenate(list(encoded(source.engine, replace(source.schema, label="no such column"), label=False)))
    assert np.isnan(rows[:, 0]).all()
    np.testing.assert_array_equal(rows[:, 1:], source.packed[:, 1:])


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_prepared_rows_are_in_the_reference_order(spooled: Source, seed: int) -> None:
    with spooled.engine.prepare(spooled.schema, seed=seed) as prepared:
        assert (prepared.rows, prepared.dims) == (ROWS, spooled.schema.dims)
        np.testing.assert_array_equal(content(prepared), in_order(spooled.packed, seed))


def test_reshuffle_permutes_the_current_order(spooled: Source) -> None:
    with spooled.engine.prepare(spooled.schema, seed=3) as prepared:
        prepared.reshuffle(4)
        prepared.reshuffle(5)
        expected = in_order(in_order(in_order(spooled.packed, 3), 4), 5)
        np.testing.assert_array_equal(content(prepared), expected)


def test_portions_are_cut_by_position(spooled: Source) -> None:
    expected = in_order(spooled.packed, 3)
    with spooled.engine.prepare(spooled.schema, seed=3) as prepared:
        part = prepared.portion(100, 400)
        assert (part.rows, part.dims) == (300, prepared.dims)
        np.testing.assert_array_equal(content(part), expected[100:400])
        np.testing.assert_array_equal(content(part.portion(50, 60)), expected[150:160])


def test_reshuffling_a_portion_leaves_the_others_alone(spooled: Source) -> None:
    expected = in_order(spooled.packed, 3)
    expected[100:400] = in_order(expected[100:400], 8)
    with spooled.engine.prepare(spooled.schema, seed=3) as prepared:
        prepared.portion(100, 400).reshuffle(8)
        np.testing.assert_array_equal(content(prepared), expected)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (6, 5), (0, ROWS + 1)])
def test_portion_outside_the_rows_is_refused(source: Source, start: int, stop: int) -> None:
    with (
        source.engine.prepare(source.schema, seed=3) as prepared,
        pytest.raises(ParameterError, match=f"got start={start} and stop={stop}$"),
    ):
        prepared.portion(start, stop)


def test_passes_of_several_models_give_the_bits_of_one_run_over_the_array(spooled: Source) -> None:
    dims = spooled.schema.dims
    expected, trained = states(dims, ROWS, passes=2), states(dims, ROWS, passes=2)
    for _ in range(2):
        kernel.run(expected, in_order(spooled.packed, 9))
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        prepared.run_pass(trained)
        prepared.run_pass(trained)
    assert all(state.finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(3)], ids=["logistic", "multinomial"])
def test_derivatives_have_the_bits_of_those_over_the_array(spooled: Source, loss: Loss) -> None:
    rows, random = in_order(spooled.packed, 9), np.random.default_rng(2)
    weights, direction = random.standard_normal((2, loss.vectors, spooled.schema.dims))
    told: list[int] = []
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        kinds: list[dict[str, Any]] = [{}, {"direction": direction}, {"hessian": True}]
        for kind, part in product(kinds, (slice(0, ROWS), slice(5, 700))):
            sums = Sums(loss, weights, positive=2, classes=3, **kind)
            sums.add(rows[part])
            found = prepared.portion(part.start, part.stop).derivative(
                loss, weights, positive=2, classes=3, progress=told.append, **kind
            )
            assert found.shape == sums.value.shape
            assert found.tobytes() == sums.value.tobytes()
            assert told[-1] == part.stop - part.start
        with pytest.raises(ParameterError, match=r"^rows must have 1 \+ 2 columns, got "):
            prepared.derivative(Logistic(), np.zeros((1, 2)))


def drawn(rows: npt.NDArray[np.float32], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The rows at these positions, and markers for -1."""
    taken = rows[positions]
    taken[positions < 0] = 0.0
    taken[positions < 0, 0] = -1.0
    return taken


@pytest.mark.parametrize("cuts", [[], [0, 1, 1, 2, 700]], ids=["at once", "in parts"])
def test_drawn_rows_give_the_bits_of_a_run_over_them(spooled: Source, cuts: list[int]) -> None:
    dims = spooled.schema.dims
    positions = np.random.default_rng(3).integers(-1, ROWS, ROWS)
    positions[:4] = [ROWS - 1, 0, 0, -1]
    expected, trained = states(dims, ROWS), states(dims, ROWS)
    kernel.run(expected, drawn(in_order(spooled.packed, 9), positions))
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        prepared.run_drawn(trained, np.split(positions, cuts))
    assert all(state.finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_markers_end_batches_of_any_length(spooled: Source) -> None:
    dims = spooled.schema.dims
    rng = np.random.default_rng(5)
    batches = [np.append(rng.integers(0, ROWS, size), -1) for size in rng.poisson(10, 100)]
    expected, trained = states(dims, ROWS, marked=True), states(dims, ROWS, marked=True)
    kernel.run(expected, drawn(in_order(spooled.packed, 9), np.concatenate(batches)))
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        prepared.run_drawn(trained, batches)
    assert all(state.finished for state in trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawn_rows_of_a_portion_are_counted_from_its_start(spooled: Source) -> None:
    dims = spooled.schema.dims
    positions = np.random.default_rng(4).integers(-1, 300, 500)
    positions[:2] = [299, 0]
    expected, trained = states(dims, 500), states(dims, 500)
    kernel.run(expected, drawn(in_order(spooled.packed, 9)[100:400], positions))
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        prepared.portion(100, 400).run_drawn(trained, [positions])
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawing_and_passes_may_alternate(spooled: Source) -> None:
    dims = spooled.schema.dims
    positions = np.arange(ROWS)[::-1].copy()
    expected, trained = states(dims, ROWS, passes=3), states(dims, ROWS, passes=3)
    rows = in_order(spooled.packed, 9)
    for part in (rows, np.ascontiguousarray(rows[::-1]), rows):
        kernel.run(expected, part)
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        prepared.run_pass(trained)
        prepared.run_drawn(trained, [positions])
        prepared.run_pass(trained)
    assert [state.to_bytes() for state in trained] == [state.to_bytes() for state in expected]


def test_drawing_nothing_changes_nothing(spooled: Source) -> None:
    trained = states(spooled.schema.dims, ROWS)
    before = [state.to_bytes() for state in trained]
    nothing: list[list[npt.NDArray[np.int64]]] = [[], [np.empty(0, np.int64)]]
    with spooled.engine.prepare(spooled.schema, seed=9) as prepared:
        for positions in nothing:
            prepared.run_drawn(trained, positions)
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
    trained = states(source.schema.dims, ROWS)
    before = [state.to_bytes() for state in trained]
    with source.engine.prepare(source.schema, seed=9) as prepared:
        with pytest.raises(ParameterError) as caught:
            prepared.portion(100, 400).run_drawn(trained, [np.array([3]), positions])
        assert str(caught.value) == message
        assert [state.to_bytes() for state in trained] == before
        prepared.run_drawn(trained, [np.arange(ROWS)])
    assert all(state.finished for state in trained)


def test_tuning_gives_the_bits_of_tuning_over_the_array(spooled: Source) -> None:
    rows = len(spooled.packed)
    base = Settings(epsilon=5.0, algorithm="bolton", seed=9, noise_seed=4, passes=2, batch_size=10)
    grid = candidates(base, {"step_size": [0.1, 0.5], "passes": [1, 2]})
    model = tune(spooled.engine, spooled.schema, grid, method="portions")
    certificate = model.certificate
    assert isinstance(certificate.selection, Portions)
    chosen = certificate.selection.chosen
    with spool([spooled.packed], rows=rows, width=spooled.packed.shape[1], seed=9, in_memory=True) as array:
        own = array.portion(*certificate.selection.bounds(chosen))
        expected = train_prepared(own, spooled.schema, certificate, seed=9, noise_seed=4 + chosen)
    assert (model.weights == expected.weights).all()


def test_progress_tells_rows_and_ends_with_all_of_them(spooled: Source) -> None:
    preparing: list[int] = []
    passing: list[int] = []
    drawing: list[int] = []
    with spooled.engine.prepare(spooled.schema, seed=9, progress=preparing.append) as prepared:
        prepared.run_pass(states(spooled.schema.dims, ROWS), progress=passing.append)
        prepared.run_drawn(states(spooled.schema.dims, ROWS), [np.arange(ROWS)], progress=drawing.append)
    for told in (preparing, passing, drawing):
        assert told == sorted(told)
        assert told[-1] == ROWS


def test_missing_column_is_told_before_a_row_is_read(source: Source) -> None:
    schema = Schema("label", (0, 1), (Numeric("height", 0, 1),))
    with pytest.raises(DataError, match=r"^the data must have the column 'height', which the schema declares$"):
        source.engine.prepare(schema, seed=0)


def test_missing_label_is_told_before_a_row_is_read(source: Source) -> None:
    schema = Schema("outcome", (0, 1), source.schema.columns)
    with pytest.raises(DataError, match=r"^the data must have the column 'outcome', which the schema declares$"):
        source.engine.prepare(schema, seed=0)


@pytest.mark.parametrize("name", ["arrow", "parquet", "duckdb query"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Numeric("sex", 0, 1), "column 'sex' must have numbers, its type is 'text'"),
        (Numeric("scan", 0, 1), "column 'scan' must have numbers, its type is 'list'"),
        (Categorical("scan", (1,)), "column 'scan' must have texts, numbers or booleans, its type is 'list'"),
        (Vector("age", 2, 0, 1), "column 'age' must have lists of numbers, its type is 'number'"),
    ],
)
def test_wrong_type_is_told_before_a_row_is_read(
    sources: dict[str, Source], name: str, column: Any, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        sources[name].engine.prepare(Schema("sick", (0, 1), (column,)), seed=0)
    assert str(caught.value) == message


def test_bad_row_is_an_error_when_asked_for_and_the_message_has_no_value(spooled: Source, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^column '\w+' must be complete, got a missing value or [a-z ]+$"):
        spooled.engine.prepare(spooled.schema, seed=0, on_bad_row="error")
    assert list(tmp_path.iterdir()) == []
