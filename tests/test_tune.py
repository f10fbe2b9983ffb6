"""Tuning from candidates to the released model, on data in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from boltdp.data.schema import Numeric, Schema
from boltdp.engines import ArrayEngine
from boltdp.engines.slice import Slice
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import source_position
from boltdp.model import Model
from boltdp.privacy.certificate import SEEDED
from boltdp.privacy.selection import Portions, PublicRows, Trials
from boltdp.settings import LossName, Settings
from boltdp.train import BAD_ROWS_SHOWN, run_passes, train_prepared
from boltdp.tune import Method, candidates, error_counts, tune
from tests.privacy.test_selection import proven_epsilon

ROWS = 2000
SCHEMA = Schema("sick", (0, 1), (Numeric("age", 0, 100), Numeric("dose", -1, 1)))

BASE = Settings(algorithm="bolton", epsilon=4.0, passes=2, batch_size=10)
#: The first takes such steps that noise is all that is left; the others learn.
GRID = (
    replace(BASE, step_size=4.0, batch_size=1),
    replace(BASE, step_size=0.5),
    replace(BASE, step_size=1.0),
)


def patients(seed: int = 0, rows: int = ROWS) -> ArrayEngine:
    random = np.random.default_rng(seed)
    age, dose = random.integers(0, 100, rows), random.uniform(-1, 1, rows)
    sick = age / 50 - 1 + dose + 0.2 * random.standard_normal(rows) > 0
    return ArrayEngine.from_arrow(pa.table({"age": age, "dose": dose, "sick": sick.astype(int)}))


def accuracy(model: Model, engine: ArrayEngine) -> float:
    with engine.prepare(SCHEMA, seed=0) as rows:
        return 1 - error_counts([model], rows)[0] / rows.rows


def tuned(method: Method, *, seed: int | None = None, grid: tuple[Settings, ...] = GRID) -> Model:
    grid = tuple(replace(one, noise_seed=seed, seed=seed) for one in grid)
    return tune(patients(), SCHEMA, grid, method=method, public=patients(1, 400) if method == "public" else None)


def test_a_grid_is_every_combination() -> None:
    grid: dict[str, Sequence[Any]] = {"passes": [1, 2], "batch_size": [10, 20], "regularization": [0.0, 0.1]}
    made = candidates(Settings(algorithm="bolton", epsilon=1.0), grid, inverse_radius=True)
    assert len({(one.passes, one.batch_size, one.regularization) for one in made}) == 8
    assert {(one.regularization, one.radius) for one in made} == {(0.0, math.inf), (0.1, 10.0)}
    assert all(one.epsilon == 1.0 for one in made)


@pytest.mark.parametrize("method", ["portions", "trials", "public"])
def test_a_tuned_model_is_private_and_verifies(method: Method) -> None:
    model = tuned(method)
    selection = model.certificate.selection
    assert selection is not None
    assert selection.method == method
    assert selection.candidates == 3
    assert model.certificate.private
    assert model.certificate.budget is not None
    assert model.certificate.budget.epsilon == 4.0
    Model.from_dict(model.to_dict()).verify()


@pytest.mark.parametrize("method", ["portions", "trials", "public"])
def test_the_candidate_that_learns_nothing_is_not_chosen(method: Method) -> None:
    model = tuned(method, seed=7)
    assert model.certificate.selection is not None
    assert model.certificate.selection.chosen in (1, 2)
    assert model.certificate.recipe.schedule.scale == GRID[model.certificate.selection.chosen].step_size
    assert accuracy(model, patients(2)) > 0.9


@pytest.mark.parametrize("method", ["portions", "trials", "public"])
def test_seeds_repeat_a_tuning_and_cost_the_claim(method: Method) -> None:
    first, second, other = tuned(method, seed=3), tuned(method, seed=3), tuned(method, seed=4)
    assert (first.weights == second.weights).all()
    assert (first.weights != other.weights).any()
    assert first.certificate.reasons == (SEEDED,)


@pytest.mark.parametrize("loss", ["logistic", "huber"])
@pytest.mark.parametrize("method", ["portions", "trials"])
def test_several_classes_and_delta_are_tuned_and_verify(method: Method, loss: LossName) -> None:
    """One release of all classes, or one model a class that shares what choosing left of the budget."""
    random = np.random.default_rng(9)
    age = random.integers(0, 90, 3000)
    table = pa.table({"age": age, "dose": random.uniform(-1, 1, 3000), "sick": age // 30})
    schema = replace(SCHEMA, classes=(0, 1, 2))
    grid = candidates(Settings(algorithm="bolton", epsilon=50.0, delta=1e-6, loss=loss), {"passes": [5, 10]})
    model = tune(ArrayEngine.from_arrow(table), schema, grid, method=method)
    assert model.weights.shape == (3, 3)
    assert model.certificate.models == (3 if loss == "huber" else 1)
    assert model.certificate.private
    Model.from_dict(model.to_dict()).verify()


def test_portions_train_each_candidate_on_its_own_rows() -> None:
    """The released model is the one that its portion alone gives."""
    grid = candidates(
        Settings(algorithm="bolton", epsilon=1e6, seed=5, noise_seed=5, batch_size=10), {"passes": [1, 3]}
    )
    model = tune(patients(), SCHEMA, grid, method="portions")
    selection = model.certificate.selection
    assert isinstance(selection, Portions)
    with patients().prepare(SCHEMA, seed=5) as prepared:
        portion = prepared.portion(*selection.bounds(selection.chosen))
        states = run_passes(portion, SCHEMA, model.certificate, seed=5)
    assert model.weights == pytest.approx(states[0].weights, abs=1e-4)


def test_a_row_of_one_portion_changes_no_other_candidate() -> None:
    grid = candidates(Settings(algorithm="bolton", epsilon=None, seed=6, batch_size=10), {"passes": [1, 2, 3]})
    selections = [Portions(candidates=3, chosen=i, rows=ROWS) for i in range(3)]
    table = pa.table({"age": np.zeros(ROWS), "dose": np.zeros(ROWS), "sick": np.zeros(ROWS)})
    place = int(source_position(selections[1].bounds(1)[0] + 7, 1, rows=ROWS, seed=6)[0])
    sick = np.zeros(ROWS)
    sick[place] = 1
    weights = []
    for rows in (table, table.set_column(2, "sick", pa.array(sick))):
        with ArrayEngine.from_arrow(rows).prepare(SCHEMA, seed=6) as prepared:
            weights.append(
                [
                    train_prepared(
                        prepared.portion(*selection.bounds(i)),
                        SCHEMA,
                        one.plan(rows=selection.training_rows, dims=SCHEMA.dims, classes=2, selection=selection),
                        seed=6,
                    ).weights
                    for i, (one, selection) in enumerate(zip(grid, selections, strict=True))
                ]
            )
    changed = [bool((one != other).any()) for one, other in zip(*weights, strict=True)]
    assert changed == [False, True, False]


def test_errors_are_those_of_predict_and_bad_rows_are_errors() -> None:
    model = tuned("portions")
    engine = patients(3)
    with engine.prepare(SCHEMA, seed=0) as prepared:
        counted = error_counts([model, model], prepared)
    labels = next(engine.batches(["sick"])).column(0).to_numpy()
    assert counted == [int((model.predict(engine) != labels).sum())] * 2
    unlabelled = ArrayEngine.from_arrow(pa.table({"age": [1.0, 2.0], "dose": [0.0, 0.0], "sick": [7, None]}))
    with unlabelled.prepare(SCHEMA, seed=0) as prepared:
        assert error_counts([model], prepared) == [2]


def test_noiseless_candidates_are_compared_without_noise() -> None:
    grid = candidates(Settings(algorithm="bolton", epsilon=None), {"passes": [1, 5]})
    assert not tune(patients(), SCHEMA, grid, method="portions").certificate.private
    with pytest.raises(ParameterError, match="epsilon must be given for trials, got None"):
        tune(patients(), SCHEMA, grid, method="trials")


def test_more_trials_cost_delta_and_no_epsilon() -> None:
    def scale(mean: float, *, delta: float) -> float:
        grid = candidates(Settings(algorithm="bolton", epsilon=1.0, delta=delta, step_size=0.1), {"passes": [1]})
        wide = Schema("sick", (0, 1), tuple(Numeric(f"x{i}", -1, 1) for i in range(60)))
        selection = Trials(candidates=1, chosen=0, rows=ROWS, mean=mean)
        mechanism = grid[0].plan(rows=ROWS, dims=wide.dims, classes=2, selection=selection).mechanism
        assert mechanism is not None
        return mechanism.scale

    assert scale(10, delta=0.0) == scale(1000, delta=0.0)
    assert scale(10, delta=1e-6) < scale(1000, delta=1e-6) < 1.3 * scale(10, delta=1e-6)


def test_progress_never_tells_the_number_of_trials() -> None:
    told: list[tuple[str, int, int]] = []
    tune(patients(), SCHEMA, GRID, method="trials", progress=lambda *report: told.append(report))
    assert {stage for stage, _, _ in told} == {
        "preparing",
        *(f"candidate {i} of 3, pass {p} of 2" for i in (1, 2, 3) for p in (1, 2)),
    }
    assert {total for _, _, total in told} == {ROWS}


def test_a_public_share_and_the_private_rest_have_no_row_in_common() -> None:
    whole = patients()
    shown, hidden = Slice(whole, 0, 500), Slice(whole, 500, ROWS)
    ages = [np.concatenate([b.column(0).to_numpy() for b in part.batches(["age"])]) for part in (shown, hidden)]
    everything = np.concatenate([b.column(0).to_numpy() for b in whole.batches(["age"])])
    assert (np.concatenate(ages) == everything).all()
    selection = tune(hidden, SCHEMA, GRID, method="public", public=shown).certificate.selection
    assert isinstance(selection, PublicRows)
    assert (selection.rows, selection.public_rows) == (ROWS - 500, 500)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 5), (0, ROWS + 1)])
def test_a_slice_outside_the_rows_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ParameterError, match="a slice must have"):
        Slice(patients(), start, stop)


def test_showing_bad_rows_costs_the_claim() -> None:
    assert tune(patients(), SCHEMA, GRID, on_bad_row="error").certificate.reasons == (BAD_ROWS_SHOWN,)
    bad = ArrayEngine.from_arrow(pa.table({"age": [1.0] * 90, "dose": [None] * 90, "sick": [1] * 90}))
    with pytest.raises(DataError):
        tune(bad, SCHEMA, GRID, on_bad_row="error")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": {"epsilon": [1.0]}}, "a grid must be over some of"),
        ({"grid": {"passes": []}}, "the grid must have values for passes, got none"),
        ({"grid": {"radius": [1.0]}, "inverse_radius": True}, "must not have a radius"),
    ],
)
def test_bad_grids_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        candidates(Settings(algorithm="bolton", epsilon=1.0), **arguments)  # type: ignore[arg-type]


def test_bad_requests_are_refused_before_a_row_is_read() -> None:
    two = Settings(algorithm="bolton", epsilon=1.0), Settings(algorithm="bolton", epsilon=2.0)
    with pytest.raises(ParameterError, match="candidates must differ in nothing but"):
        tune(patients(), SCHEMA, two)
    with pytest.raises(ParameterError, match="at least one candidate"):
        tune(patients(), SCHEMA, [])
    with pytest.raises(ParameterError, match="method must be one of"):
        tune(patients(), SCHEMA, GRID, method="luck")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="public rows must be given for the method 'public'"):
        tune(patients(), SCHEMA, GRID, method="public")
    with pytest.raises(ParameterError, match="public rows must be given for the method 'public'"):
        tune(patients(), SCHEMA, GRID, method="portions", public=patients())
    with pytest.raises(ParameterError, match="the public data must have at least 4 rows, got 2"):
        tune(patients(), SCHEMA, GRID, method="public", public=patients(1, 2))
    with pytest.raises(ParameterError, match="2 rows for each of 3 candidates"):
        tune(patients(0, 7), SCHEMA, GRID, method="portions")


LINE = Schema("y", (0, 1), (Numeric("x", -1, 1),), intercept=False)


def in_prepared_order(packed: npt.NDArray[np.float64], *, seed: int) -> ArrayEngine:
    """An engine whose prepared rows, with this seed, are these (y, x)."""
    rows = np.empty_like(packed)
    rows[source_position(0, len(packed), rows=len(packed), seed=seed)] = packed
    return ArrayEngine.from_arrow(pa.table({"y": rows[:, 0], "x": rows[:, 1]}))


def chosen_first(epsilon: float, label: int, *, runs: int) -> int:
    """How often Algorithm 3 chooses the first of 12 candidates, where one row of the last portion has this label.

    The first portion teaches the opposite of the others, so that this row decides between the first and all others.
    """
    count, size, seed = 12, 30, 1
    packed = np.zeros(((count + 1) * size, 2))
    packed[: count * size, 1] = 1.0
    packed[:size, 0] = 1.0
    packed[-1] = label, 1.0
    engine = in_prepared_order(packed, seed=seed)
    grid = candidates(
        Settings(algorithm="bolton", epsilon=epsilon, seed=seed, batch_size=1, passes=1), {"step_size": [0.01] * count}
    )
    picked = 0
    for _ in range(runs):
        selection = tune(engine, LINE, grid, method="portions").certificate.selection
        picked += selection is not None and selection.chosen == 0
    return picked


@pytest.mark.slow
def test_algorithm_3_withstands_an_attack_and_twice_the_epsilon_does_not() -> None:
    claimed, runs = 2.0, 1000
    assert proven_epsilon(chosen_first(claimed, 1, runs=runs), chosen_first(claimed, 0, runs=runs), runs) <= claimed
    doubled = chosen_first(2 * claimed, 1, runs=runs), chosen_first(2 * claimed, 0, runs=runs)
    assert proven_epsilon(*doubled, runs) > claimed


def released_negative(epsilon: float, label: int, *, runs: int) -> int:
    """How often the model chosen by trials has a negative weight, where one row is all that moves the weight.

    The other rows are too short to teach anything, but all of them are right where the weight is positive.
    """
    packed = np.zeros((60, 2))
    packed[:] = 1.0, 1e-6
    packed[0] = label, 1.0
    engine = in_prepared_order(packed, seed=1)
    grid = candidates(
        Settings(algorithm="bolton", epsilon=epsilon, seed=1, batch_size=1, loss="huber"),
        {"passes": [1, 2], "step_size": [0.01]},
    )
    return sum(bool(tune(engine, LINE, grid, method="trials", trials=10).weights[0, 0] < 0) for _ in range(runs))


@pytest.mark.slow
def test_trials_withstand_an_attack_and_four_times_the_epsilon_does_not() -> None:
    claimed, runs = 2.0, 1500
    valid = released_negative(claimed, 0, runs=runs), released_negative(claimed, 1, runs=runs)
    assert proven_epsilon(*valid, runs) <= claimed
    broken = released_negative(4 * claimed, 0, runs=runs), released_negative(4 * claimed, 1, runs=runs)
    assert proven_epsilon(*broken, runs) > claimed
