"""Objective perturbation: the minimiser is found, precisely; attacks find it private, and less noise not."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from scipy import optimize

from boltdp._files.sealed import add_digest
from boltdp.algorithms import ALGORITHMS, Job, _newton, objective
from boltdp.algorithms._newton import Solver, _Curvature, choose_sample_share, make_objective_solver, run_solvers
from boltdp.algorithms._sgd import PASSES
from boltdp.audit.statistical_tests import bound_rate
from boltdp.cli import main
from boltdp.engines import open_source
from boltdp.engines.local_store import LocalRows, store_rows
from boltdp.errors import ParameterError, SolverError
from boltdp.kernel.feature_map import FeatureMap, Segment
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.losses import HuberSVM, Logistic, Loss, Mean, MulticlassHuber, Multinomial, Quantile, Robust
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate, certify
from boltdp.privacy.events import objective_perturbation as objective_privacy
from boltdp.privacy.events.objective_perturbation import (
    ObjectivePerturbation,
    bound_gradient_rounding,
    calibrate_gaussian_term,
    calibrate_objective_noise,
    check_solvable,
    choose_gradient_tolerance,
    find_min_solvable_regularization,
    make_objective_perturbation,
    split_budget,
)
from boltdp.privacy.mechanisms import Mechanism, NoiseKind, calibrate
from boltdp.privacy.release_with_noise import Randomness, draw_linear_terms, release_weights
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.training_problem import Problem
from boltdp.run_context import Context
from boltdp.schema.schema import Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train
from boltdp.workflows.tune import Method, tune
from tests.algorithms.counted import CountedRows
from tests.plans import plan_certificate

Matrix = npt.NDArray[np.float64]
Rows = npt.NDArray[np.float32]


def problem_of(loss: Loss, rows: Rows, *, penalty: float) -> Problem:
    return Problem(loss=loss, dims=rows.shape[1] - 1, rows=len(rows), regularization=penalty)


def spooled(rows: Rows) -> LocalRows:
    return store_rows([rows], rows=len(rows), width=rows.shape[1], context=Context(seed=1), in_memory=True)


def solved(rows: Rows, *solvers: Solver) -> list[Matrix]:
    with spooled(rows) as prepared:
        return run_solvers(prepared, solvers)


def slope(loss: Loss, rows: Rows, weights: Matrix) -> Matrix:
    """The gradient of the loss, summed over the rows."""
    sums = DerivativeSums(loss, weights)
    sums.add(rows)
    return sums.value


def some_rows(classes: int, *, rows: int, dims: int, separable: bool = False) -> Rows:
    random = np.random.default_rng(rows + dims)
    x = random.standard_normal((rows, dims)) / math.sqrt(dims) * np.linspace(1, 0.01, dims)
    scores = x @ random.standard_normal((dims, classes)) * 5
    labels = (scores if separable else scores + random.gumbel(size=scores.shape)).argmax(axis=1)
    return np.hstack([labels[:, None], x]).astype(np.float32)


def some_numbers(*, rows: int, dims: int, separable: bool = False) -> Rows:
    """Labels from -1 to 1 that depend on the features, some of them far off or missing unless they are `separable`."""
    random = np.random.default_rng(rows + dims)
    x = random.standard_normal((rows, dims)) / math.sqrt(dims) * np.linspace(1, 0.01, dims)
    labels = x @ random.standard_normal(dims) / 4
    if not separable:
        labels += 0.1 * random.standard_normal(rows)
        labels[::10] = random.uniform(-1, 1, len(labels[::10]))
        labels[5::50] = np.nan
    return np.hstack([np.clip(labels, -1, 1)[:, None], x]).astype(np.float32)


NUMBER_LOSSES: list[Loss] = [Robust(), Quantile(0.9), Mean()]


def make_map(dims: int, reading: tuple[float, float]) -> FeatureMap:
    """A map that changes no feature."""
    return FeatureMap([Segment("numbers", np.zeros(dims), np.ones(dims))], label_reading=reading)


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(4), *NUMBER_LOSSES, HuberSVM(), MulticlassHuber(4, 0.01)])
@pytest.mark.parametrize("penalty", [1e-6, 1e-3, 10.0])
@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize(("noise", "sampled"), [(0.0, 0), (1.0, 1), (1.0, 20), (1000.0, 1000)])
def test_gradient_is_within_the_tolerance_at_the_weights_found(
    loss: Loss, penalty: float, separable: bool, noise: float, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_newton, "choose_sample_share", lambda *_: sampled / 2000)
    if loss.target == "number":
        rows = some_numbers(rows=2000, dims=7, separable=separable)
    else:
        classes = max(2, loss.vector_count)
        rows = some_rows(classes, rows=2000, dims=7, separable=separable)
    problem = problem_of(loss, rows, penalty=penalty)
    linear = noise * np.random.default_rng(1).standard_normal((loss.vector_count, 7))
    linear -= linear.mean(axis=0) if loss.vector_count > 1 else 0.0
    mechanism = Mechanism("gaussian", noise, problem.dimensions) if noise else None
    (weights,) = solved(rows, make_objective_solver(problem, linear, noise=mechanism))
    gradient = slope(loss, rows, weights) + len(rows) * penalty * weights + linear
    rounding = bound_gradient_rounding(
        problem, weights=float(np.linalg.norm(weights)), noise=float(np.linalg.norm(linear))
    )
    assert np.linalg.norm(gradient) + rounding <= choose_gradient_tolerance(problem, mechanism)
    assert np.abs(weights.sum(axis=0)).max() < 1e-6 * np.abs(weights).max() or loss.vector_count == 1


@pytest.mark.parametrize("reading", [(0.0, 1.0), (0.1, 6.0), (-0.5, 300.0)], ids=str)
@pytest.mark.parametrize("loss", NUMBER_LOSSES, ids=lambda loss: loss.name)
def test_the_weights_found_are_those_of_another_solver_for_numbers(loss: Loss, reading: tuple[float, float]) -> None:
    """By the values of the loss, from its definition, and not by its slopes; labels beyond 64 are clipped."""
    rows = some_numbers(rows=1000, dims=3)
    problem, linear = problem_of(loss, rows, penalty=0.01), np.array([[3.0, -2.0, 1.0]])
    solver = make_objective_solver(problem, linear, noise=None, feature_map=make_map(3, reading))
    (found,) = solved(rows, solver)
    known = rows[~np.isnan(rows[:, 0])].astype(np.float64)
    x = known[:, 1:] / np.maximum(1.0, np.linalg.norm(known[:, 1:], axis=1))[:, None]
    y = np.clip((known[:, 0] - reading[0]) * reading[1], -64, 64)

    def value(w: Matrix) -> float:
        z = x @ w
        if isinstance(loss, Robust):
            losses = np.logaddexp(z - y, y - z) - math.log(2)
        elif isinstance(loss, Quantile):
            losses = loss.tau * (y - z) + np.logaddexp(0, z - y)
        else:
            losses = np.logaddexp(0, z) - (1 + known[:, 0]) / 2 * z
        return float(losses.sum() + len(rows) * 0.005 * w @ w + linear[0] @ w)

    others = [
        optimize.minimize(value, start, method="BFGS", options={"gtol": 1e-3}).x for start in (np.zeros(3), y[:3])
    ]
    for other in others:
        assert value(found[0]) <= value(other) + 1e-9 * abs(value(other))
        assert found[0] == pytest.approx(other, rel=1e-3, abs=1e-3)


def scans(problem: Problem, rows: Rows) -> int:
    """How often all rows are read; driven by hand."""
    solver, count = make_objective_solver(problem, np.zeros((problem.loss.vector_count, problem.dims)), noise=None), 0
    for sums in solver:
        sums.add(rows)
        count += 1
    return count


def test_a_few_rows_make_the_scans_fewer_and_bad_ones_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(4, rows=5000, dims=20)
    rows[5, 3], rows[6, 0], rows[7, 1] = np.nan, -1, np.inf
    problem = problem_of(Multinomial(4), rows, penalty=1e-4)
    assert choose_sample_share(problem) == 0.36
    preconditioned = scans(problem, rows)
    monkeypatch.setattr(_newton, "choose_sample_share", lambda *_: 0.0)
    assert 2 * preconditioned < scans(problem, rows)


def test_a_shape_that_is_brought_up_to_date_makes_the_scans_fewer_than_that_of_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = some_rows(2, rows=5000, dims=20)
    problem = problem_of(Logistic(), rows, penalty=1e-5)
    up_to_date = scans(problem, rows)
    honest, first = _newton._approximate_inverse, list[Matrix]()

    def stale(strength: float, hessian: Matrix, *, unsure: float) -> _newton.Linear:
        first.append(hessian)
        return honest(strength, first[0], unsure=unsure)

    monkeypatch.setattr(_newton, "_approximate_inverse", stale)
    assert up_to_date < scans(problem, rows)
    assert len(first) > 1


@pytest.mark.parametrize("penalty", [1e-6, 1e-18])
def test_directions_that_no_row_has_are_no_obstacle(penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_newton, "check_solvable", lambda *_: None)
    rows = some_rows(2, rows=2000, dims=4)
    twice = np.hstack([rows, rows[:, 1:]])
    problem = problem_of(Logistic(), twice, penalty=penalty)
    (weights,) = solved(twice, make_objective_solver(problem, np.zeros((1, 8)), noise=None))
    assert np.linalg.norm(
        slope(Logistic(), twice, weights) + len(rows) * penalty * weights
    ) <= choose_gradient_tolerance(problem, None)


@pytest.mark.parametrize(
    ("loss", "dims", "sampled"),
    [(Logistic(), 1024, 41_960), (Logistic(), 1025, 0), (Multinomial(100), 200, 9000), (Multinomial(101), 200, 0)],
)
def test_a_hessian_that_is_too_large_is_not_asked_for(loss: Loss, dims: int, sampled: int) -> None:
    problem = Problem(loss=loss, dims=dims, rows=50_000, regularization=0.1)
    assert choose_sample_share(problem) == sampled / 50_000
    solver = make_objective_solver(problem, np.zeros((loss.vector_count, dims)), noise=None)
    next(solver).add(some_rows(loss.vector_count if loss.vector_count > 1 else 2, rows=100, dims=dims))
    assert (next(solver).value.ndim == 3) == (sampled > 0)


def test_a_search_that_makes_no_progress_is_an_error_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(DerivativeSums):
        """Its gradient is that of nothing."""

        def __init__(self, loss: Loss, weights: Matrix, *, direction: Matrix | None = None, **more: Any) -> None:
            super().__init__(loss, weights, direction=direction, **more)
            plain = direction is None and not more.get("hessian")
            self._wrong = 1.0 + np.abs(weights) if plain else 0.0

        @property
        def value(self) -> Matrix:
            found: Matrix = super().value + self._wrong
            return found

    monkeypatch.setattr(_newton, "DerivativeSums", Wrong)
    rows = some_rows(2, rows=100, dims=2)
    for sampled in (0, 100):
        monkeypatch.setattr(_newton, "choose_sample_share", lambda *_, sampled=sampled: sampled / 100)
        with pytest.raises(SolverError) as caught:
            solved(
                rows, make_objective_solver(problem_of(Logistic(), rows, penalty=0.01), np.zeros((1, 2)), noise=None)
            )
        assert str(caught.value) == "the minimum could not be found to the precision that the privacy proof needs"


@pytest.mark.parametrize("loss", [HuberSVM(), MulticlassHuber(3)])
def test_steps_along_the_gradient_end_where_newtons_do_not(loss: Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where rows have their kinks wherever a step leads."""
    monkeypatch.setattr(_newton, "MAX_FALLS", 0)
    monkeypatch.setattr(_newton, "MIN_KINKED_STEP", 1.0)
    rows = some_rows(max(2, loss.vector_count), rows=300, dims=3)
    problem = problem_of(loss, rows, penalty=0.05)
    (weights,) = solved(rows, make_objective_solver(problem, np.zeros((loss.vector_count, 3)), noise=None))
    gradient = slope(loss, rows, weights) + 300 * 0.05 * weights
    assert np.linalg.norm(gradient) <= choose_gradient_tolerance(problem, None)


def test_what_the_proof_does_not_cover_is_not_minimised() -> None:
    recipe = plan_certificate(Settings(epsilon=1.0, passes=1, regularization=0.1), rows=100, dims=2, classes=2).problem
    assert isinstance(recipe, Recipe)
    smooth = Problem(loss=Logistic(), dims=2, rows=100, regularization=0.1)
    for problem, message in [
        (replace(smooth, regularization=0.0), "regularization must be > 0"),
        (recipe, "a problem without passes"),
    ]:
        with pytest.raises(ParameterError, match=message):
            next(make_objective_solver(problem, np.zeros((1, 2)), noise=None))


# ---- shared scans -----------------------------------------------------------------------------------------------


def several(rows: Rows) -> list[Solver]:
    """Solvers that need different numbers of scans: of other penalties, noises and classes."""
    random = np.random.default_rng(5)
    return [
        make_objective_solver(
            problem_of(Logistic(), rows, penalty=penalty),
            random.standard_normal((1, rows.shape[1] - 1)) * scale,
            noise=Mechanism("gaussian", scale, rows.shape[1] - 1),
            positive=positive,
            classes=4,
        )
        for penalty, scale, positive in [
            (10.0, 1.0, 0),
            (1e-1, 5.0, 1),
            (1e-2, 1.0, 2),
            (1e-3, 5.0, 3),
            (1e-4, 1.0, 0),
            (1e-5, 1.0, 1),
        ]
    ]


@pytest.mark.parametrize("sampled", [True, False])
def test_solvers_share_their_scans_and_find_what_each_finds_alone(
    sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sampled:
        monkeypatch.setattr(_newton, "choose_sample_share", lambda *_: 0.0)
    rows = some_rows(4, rows=3000, dims=12)
    needed, alone = [], []
    with spooled(rows) as prepared:
        for number in range(6):
            counted = CountedRows(prepared)
            alone += run_solvers(counted, [several(rows)[number]])
            needed.append(counted.counts["sum"])
        counted = CountedRows(prepared)
        together = run_solvers(counted, several(rows))
    assert len(set(needed)) > 2
    # Where none waits for a sample, all wait for the same scans, and the slowest alone tells how many there are.
    if sampled:
        assert max(needed) <= counted.counts["sum"] <= 1.25 * max(needed)
    else:
        assert counted.counts["sum"] == max(needed)
    assert 2 * counted.counts["sum"] < sum(needed)
    for one, other in zip(together, alone, strict=True):
        assert one.tobytes() == other.tobytes()
    assert len({one.tobytes() for one in together}) == 6


def test_most_of_the_way_is_made_on_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some_rows(2, rows=100_000, dims=8)
    problem = problem_of(Logistic(), rows, penalty=1e-4)
    scans = []
    with spooled(rows) as prepared:
        for largest in (0.25, 0.0):
            monkeypatch.setattr(_newton, "MAX_SAMPLE", largest)
            counted = CountedRows(prepared)
            run_solvers(counted, [make_objective_solver(problem, np.zeros((1, 8)), noise=None)])
            assert counted.counts["sampled"] == 1  # for the Hessian it is always used
            scans.append(counted.counts["sum"])
    assert scans[0] <= scans[1] - 3


@pytest.mark.parametrize("label", [1, 7])
def test_a_sample_that_misleads_costs_scans_and_nothing_else(label: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the rows of one class alone, whose minimum is far from that of all, or of none."""
    monkeypatch.setattr(_newton, "choose_sample_share", lambda *_: 0.2)
    rows = some_rows(2, rows=2000, dims=3)
    problem = problem_of(Logistic(), rows, penalty=1e-3)
    expected = solved(rows, make_objective_solver(problem, np.zeros((1, 3)), noise=None))[0]
    samples = []

    @contextmanager
    def misleading(self: LocalRows, share: float) -> Iterator[LocalRows]:
        del share
        few = next(iter(self.read_blocks())).copy()
        few[few[:, 0] != label] = np.nan  # neutral rows
        samples.append(few)
        with spooled(few) as prepared:
            yield prepared

    monkeypatch.setattr(LocalRows, "open_sample", misleading)
    found = solved(rows, make_objective_solver(problem, np.zeros((1, 3)), noise=None))[0]
    assert len(samples) == 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_start_with_a_longer_gradient_than_the_origin_can_have_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_newton, "choose_sample_share", lambda *_: 0.2)
    rows = some_rows(2, rows=2000, dims=3)
    problem = problem_of(Logistic(), rows, penalty=1e-3)
    expected = solved(rows, make_objective_solver(problem, np.zeros((1, 3)), noise=None))[0]
    asked: list[Matrix] = []

    class Misleading(DerivativeSums):
        def __init__(self, loss: Loss, weights: Matrix, **what: Any) -> None:
            super().__init__(loss, weights, **what)
            if self.share == 1.0:
                asked.append(weights)

        @property
        def value(self) -> Matrix:
            return super().value if self.share == 1.0 or self._matrix else np.full((1, 3), 1e9)

    monkeypatch.setattr(_newton, "DerivativeSums", Misleading)
    found = solved(rows, make_objective_solver(problem, np.zeros((1, 3)), noise=None))[0]
    assert np.abs(asked[0]).min() > 1e6
    assert not asked[1].any()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_jobs_have_the_bits_of_jobs_alone_however_many_are_run_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objective, "MAX_AT_ONCE", at_once)
    rows, context = some_rows(4, rows=3000, dims=6), Context(seed=1)
    jobs = [
        Job(plan_certificate(settings, rows=3000, dims=6, classes=4), Randomness(seed))
        for settings in (
            Settings(epsilon=1.0, multiclass="one-vs-all", noise_seed=1),
            Settings(epsilon=1.0, multiclass="one-vs-all", noise_seed=1, regularization=0.1),
        )
        for seed in (1, 2)
    ]
    with spooled(rows) as prepared:
        counted = CountedRows(prepared)
        together = ALGORITHMS["objective"].run(counted, jobs, classes=4, context=context)
        needed, alone = [], []
        for job in jobs:
            by_itself = CountedRows(prepared)
            alone += ALGORITHMS["objective"].run(by_itself, [job], classes=4, context=context)
            needed.append(by_itself.counts["sum"])
    for one, other in zip(together, alone, strict=True):
        assert one.shape == (4, 1, 6)
        assert one.tobytes() == other.tobytes()
    assert len({one.tobytes() for one in together}) == 4
    if at_once == 1:
        assert counted.counts["sum"] == sum(needed)
    elif at_once == 64:
        assert counted.counts["sum"] <= 1.25 * max(needed)


def test_each_model_is_the_minimiser_with_its_own_linear_term() -> None:
    rows = some_rows(3, rows=500, dims=4)
    asked = Settings(epsilon=1.0, algorithm="objective", multiclass="one-vs-all", noise_seed=1)
    certificate = plan_certificate(asked, rows=500, dims=4, classes=3)
    problem, noise = certificate.problem, certificate.training_noise
    with spooled(rows) as prepared:
        job = Job(certificate, Randomness(1))
        (weights,) = ALGORITHMS["objective"].run(prepared, [job], classes=3, context=Context(seed=1))
    terms = draw_linear_terms(certificate, Randomness(1))
    assert len({term.tobytes() for term in terms}) == 3
    for positive, (found, term) in enumerate(zip(weights, terms, strict=True)):
        sums = DerivativeSums(problem.loss, found, positive=positive, classes=3)
        sums.add(rows)
        gradient = sums.value + problem.rows * problem.regularization * found + term
        assert np.linalg.norm(gradient) <= choose_gradient_tolerance(problem, noise)


# ---- training ---------------------------------------------------------------------------------------------------

TABLE = pa.table(
    {"age": np.arange(3000) % 100, "sick": np.arange(3000) % 100 > 60, "kind": np.arange(3000) % 100 // 34}
)
TWO = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100),))
THREE = Schema(Classes("kind", (0, 1, 2)), (Numeric("age", 0, 100),))


def trained(schema: Schema = TWO, source: Any = TABLE, **settings: Any) -> Model:
    return train(open_source(source), schema, Settings(**{"epsilon": 1.0, "algorithm": "objective", **settings}))


@pytest.mark.parametrize("loss", ["robust", "quantile", "mean"])
def test_a_model_of_numbers_is_the_minimiser_over_labels_as_they_are_read(loss: str) -> None:
    """Trained from a table, it predicts what a minimum of the same loss in the units of the column would."""
    age = np.arange(3000) % 100
    stay = np.where(age == 7, np.nan, 2.0 + age / 10 + (age % 7 - 3) / 2)
    schema = Schema(Number("stay", 0, 40, typical=(3, 11)), (Numeric("age", 0, 100),))
    table = pa.table({"age": age, "stay": stay})
    model = trained(schema, table, loss=loss, epsilon=None, regularization=1e-6, standardize="none")
    predicted, known = predict(model, open_source(table)), age != 7
    if loss == "mean":  # the slopes of all rows add up to zero, with a little penalty, as there is an intercept
        assert predicted[known].mean() == pytest.approx(stay[known].mean(), rel=1e-3)
    assert np.abs(predicted - (2.0 + age / 10))[known].max() < (1.5 if loss == "mean" else 0.4)
    assert model.schema.target == schema.target.adapt_to_loss(model.certificate.problem.loss)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(
    ("schema", "multiclass", "shape"),
    [(TWO, "multinomial", (1, 2)), (THREE, "multinomial", (3, 2)), (THREE, "one-vs-all", (3, 2))],
)
def test_models_are_private_and_of_use(schema: Schema, multiclass: str, shape: tuple[int, int], delta: float) -> None:
    model = trained(schema, delta=delta, multiclass=multiclass)
    assert model.certificate.private
    assert model.certificate.training_noise is not None
    assert model.weights.shape == shape
    assert np.abs(model.weights).max() < 1000


def test_a_weak_budget_moves_the_model_and_a_strong_one_gives_the_noiseless_minimum() -> None:
    settings: dict[str, Any] = {"regularization": 0.01}
    noiseless = trained(epsilon=None, **settings).weights
    assert np.abs(trained(epsilon=1e5, **settings).weights - noiseless).max() < 1e-3
    assert np.abs(trained(epsilon=0.05, **settings).weights - noiseless).max() > 1e-3


def test_verify_shows_the_noise_inside_and_catches_a_smaller_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    trained().save(path)
    shown = CliRunner().invoke(main, ["verify", str(path)])
    assert shown.exit_code == 0
    noise = Model.load(path).certificate.training_noise
    assert noise is not None
    assert f"noise before training  spherical, scale {noise.scale:.6g}, 2 dimensions\n" in shown.stdout
    assert "at epsilon = 1, delta = 0: recomputed\n" in shown.stdout
    record = json.loads(path.read_text())
    record["certificate"]["spent"]["linear"]["scale"] /= 2
    path.write_text(json.dumps(add_digest(record)))
    assert CliRunner().invoke(main, ["verify", str(path)]).exit_code == 1


def test_engines_agree(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(TABLE, path)
    seeds: dict[str, Any] = {"seed": 3, "noise_seed": 5}
    assert (trained(source=str(path), **seeds).weights == trained(**seeds).weights).all()


def test_a_noise_seed_is_reproducible_and_not_private() -> None:
    first, again, other = (trained(seed=1, noise_seed=number) for number in (5, 5, 6))
    assert (first.weights == again.weights).all()
    assert (first.weights != other.weights).all()
    assert not first.certificate.private


def test_progress_does_not_tell_how_many_scans_it_took() -> None:
    told: list[tuple[str, int, int]] = []
    settings = Settings(epsilon=1.0, algorithm="objective")
    context = settings.context(progress=lambda *report: told.append(report))
    train(open_source(TABLE), TWO, settings, context=context)
    assert [report for report in told if report[0] != "preparing"] == [
        ("minimising", 0, 3000),
        ("minimising", 3000, 3000),
    ]


@pytest.mark.parametrize("method", ["trials", "portions"])
def test_candidates_of_objective_perturbation_are_tuned(method: Method) -> None:
    candidates = [Settings(epsilon=1.0, algorithm="objective", regularization=value) for value in (0.01, 0.1)]
    model = tune(open_source(TABLE), TWO, candidates, method=method, trials=3)
    model.verify()
    assert model.certificate.private
    assert model.certificate.algorithm == "objective"


def test_a_candidate_that_asks_for_passes_makes_all_of_them_passes() -> None:
    for asked in ((5, PASSES), (5, None), (None, 5)):
        candidates = [Settings(epsilon=1.0, passes=passes) for passes in asked]
        certificate = tune(open_source(TABLE), TWO, candidates, method="portions").certificate
        assert certificate.algorithm == "bolton"
        assert certificate.selection is not None
        assert isinstance(certificate.problem, Recipe)
        assert certificate.problem.passes == (asked[certificate.selection.chosen] or PASSES)
    unasked = [Settings(epsilon=1.0, regularization=value) for value in (0.01, 0.1)]
    assert tune(open_source(TABLE), TWO, unasked, method="portions").certificate.algorithm == "objective"


# ---- attack -----------------------------------------------------------------------------------------------------

CONFIDENCE = 0.999
# The many rows drive the weights to where the two opposite rows are both misclassified, and pull with all force.
NEIGHBOURS = tuple(np.array([[0, 0, 1]] * 999 + [[1, side, 0.43588]], np.float32) for side in (0.9, -0.9))
PROBLEM = problem_of(Logistic(), NEIGHBOURS[0], penalty=0.01)


def evidence(certificate: Certificate, rows: Rows, *, trainings: int) -> Matrix:
    """How much likelier, in logarithms, each released model is with the first neighbour than with the second."""
    noise, random = certificate.training_noise, Randomness()
    assert noise is not None
    with spooled(rows) as prepared:
        jobs = [Job(certificate, random)] * trainings
        trained = ALGORITHMS["objective"].run(prepared, jobs, classes=2, context=Context())
    found = []
    for weights in trained:
        (seen,) = release_weights(weights, certificate, random)
        lengths = [
            np.linalg.norm(slope(Logistic(), data, seen) + PROBLEM.rows * PROBLEM.regularization * seen)
            for data in NEIGHBOURS
        ]
        if noise.kind == "gaussian":
            found.append((lengths[1] ** 2 - lengths[0] ** 2) / (2 * noise.scale**2))
        else:
            found.append((lengths[1] - lengths[0]) / noise.scale)
    return np.array(found)


def epsilon_found(certificate: Certificate, *, delta: float, trainings: int) -> float:
    """The epsilon that the trainings prove, with confidence: a threshold is chosen on one half, judged on the other."""
    first, second = (evidence(certificate, rows, trainings=trainings) for rows in NEIGHBOURS)
    half = trainings // 2

    def bounds(cut: float, part: slice) -> float:
        hits, alarms = (int(np.sum(found[part] > cut)) for found in (first, second))
        low, _ = bound_rate(hits, half, mistake=1 - CONFIDENCE)
        _, high = bound_rate(alarms, half, mistake=1 - CONFIDENCE)
        return math.log(max(low - delta, 1e-9) / high)

    best = max(np.quantile(first[:half], np.linspace(0.05, 0.95, 19)), key=lambda cut: bounds(cut, slice(half)))
    return bounds(best, slice(half, None))


def with_linear(event: ObjectivePerturbation, noise: Mechanism, budget: Budget) -> Certificate:
    """The same with another noise before training, and at the end as much as that one then needs."""
    distance = replace(event, linear=noise).sensitivity.total
    end = calibrate(distance, dimensions=noise.dimensions, budget=split_budget(budget)[1])
    return certify(replace(event, linear=noise, end=end), budget)


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "kind"), [(0.0, "spherical"), (0.1, "spherical"), (0.1, "gaussian")])
def test_attack_finds_no_violation_but_finds_half_the_noise(delta: float, kind: NoiseKind) -> None:
    budget = Budget(2.0, delta)
    event = make_objective_perturbation(PROBLEM, budget)
    noise = event.linear
    assert noise.kind == "spherical"
    if kind == "gaussian":  # longer in two dimensions, but valid too
        noise = Mechanism("gaussian", calibrate_gaussian_term(PROBLEM, split_budget(budget)[0]), 2)
    valid = with_linear(event, noise, budget)
    assert valid.private
    assert epsilon_found(valid, delta=delta, trainings=1000) <= budget.epsilon
    less = with_linear(event, replace(noise, scale=noise.scale / 2), budget)
    assert not less.private
    # Enough of them: 3,000 were at the limit of what proves it.
    assert epsilon_found(less, delta=delta, trainings=10_000) > budget.epsilon


# ---- whether the minimum is found must not depend on the rows ---------------------------------------------------


def neighbours() -> tuple[Rows, Rows]:
    """Ten rows, of which one is another: with a tiny Lambda the first ones' minimum is much harder to find."""
    random = np.random.default_rng(3)
    x = random.standard_normal((10, 2))
    rows = np.hstack([random.integers(0, 2, (10, 1)), x / np.linalg.norm(x, axis=1)[:, None]]).astype(np.float32)
    other = rows.copy()
    other[0] = (1 - rows[0, 0], *-rows[0, 1:])
    return rows, other


def smallest(budget: Budget) -> float:
    """The smallest Lambda for ten rows of two features; a smaller one needs more noise, which needs a larger one."""
    problem = Problem(loss=Logistic(), dims=2, rows=10, regularization=1e-6)
    for _ in range(10):
        noise = calibrate_objective_noise(problem, split_budget(budget)[0])
        problem = replace(problem, regularization=1.01 * find_min_solvable_regularization(problem, noise))
    with pytest.raises(ParameterError, match="regularization must be at least"):
        make_objective_perturbation(replace(problem, regularization=0.9 * problem.regularization), budget)
    return problem.regularization


def test_a_regularization_too_small_for_doubles_is_refused_by_the_plan_whatever_the_rows() -> None:
    settings = Settings(epsilon=25.0, algorithm="objective", regularization=4.7e-13, standardize="none")
    message = r"^regularization must be at least \S+ for objective perturbation, got 4\.7e-13$"
    with pytest.raises(ParameterError, match=message):
        plan_certificate(settings, rows=10, dims=2, classes=2)
    with pytest.raises(ParameterError, match=message):
        plan_certificate(replace(settings, epsilon=None), rows=10, dims=2, classes=2)
    plan_certificate(replace(settings, regularization=smallest(Budget(25.0))), rows=10, dims=2, classes=2)
    problem = problem_of(Logistic(), neighbours()[0], penalty=4.7e-13)
    with pytest.raises(ParameterError, match=message):
        next(make_objective_solver(problem, np.zeros((1, 2)), noise=None))


@pytest.mark.parametrize("which", [0, 1])
def test_the_smallest_regularization_finds_the_minimum_whatever_the_rows(which: int) -> None:
    rows = neighbours()[which]
    budget = Budget(25.0)
    problem = problem_of(Logistic(), rows, penalty=smallest(budget))
    certificate = certify(make_objective_perturbation(problem, budget), budget)
    for _ in range(50):
        (linear,) = draw_linear_terms(certificate, Randomness())
        solved(rows, make_objective_solver(problem, linear, noise=certificate.training_noise))


def test_short_steps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that the old limit, 2^-30, refused: with it, whether there was an error depended on the rows."""
    monkeypatch.setattr(_newton, "check_solvable", lambda *_: None)
    monkeypatch.setattr(objective_privacy, "check_solvable", lambda *_: None)
    rows, budget = neighbours()[0], Budget(25.0)
    problem = problem_of(Logistic(), rows, penalty=4.7e-13)
    certificate = certify(make_objective_perturbation(problem, budget), budget)
    for _ in range(50):
        (linear,) = draw_linear_terms(certificate, Randomness())
        solved(rows, make_objective_solver(problem, linear, noise=certificate.training_noise))


@pytest.mark.parametrize(("loss", "rows"), [(Logistic(), 2**33), (Logistic(), 10), (Multinomial(5), 2**33)])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 1e5])
def test_a_default_regularization_is_never_too_small(loss: Loss, rows: int, epsilon: float) -> None:
    problem = Problem(loss=loss, dims=9, rows=rows)
    for budget in (Budget(epsilon), Budget(epsilon, 1e-6)):
        chosen = objective.choose_regularization(problem, budget)
        make_objective_perturbation(replace(problem, regularization=chosen), budget)
    check_solvable(replace(problem, regularization=objective.choose_regularization(problem, None)), None)


def test_conjugate_gradients_go_on_until_the_step_is_precise_enough() -> None:
    """A matrix so ill-conditioned that the usual rounds do not solve it to the precision that the proof asks for."""
    size = 60
    random = np.random.default_rng(0)
    basis, _ = np.linalg.qr(random.standard_normal((size, size)))
    matrix = basis @ np.diag(np.geomspace(1e-9, 1.0, size)) @ basis.T
    slope = basis @ np.linspace(1.0, 2.0, size)
    rounds = 0

    def curvature(along: Matrix) -> Any:
        nonlocal rounds
        rounds += 1
        yield None
        return matrix @ along

    step = _newton._solve_newton_step(curvature, lambda vector: vector, slope, precision=1e-12)
    try:
        while True:
            next(step)
    except StopIteration as end:
        found = end.value
    left = float(np.linalg.norm(matrix @ found + slope))
    assert rounds > 2 * size + 10
    assert left <= 0.41 * float(np.linalg.norm(slope))


def test_the_approximate_inverse_maps_changes_of_the_gradient_to_steps() -> None:
    curvature = _Curvature(lambda vector: vector, 1.0)
    curvature.update(np.array([1.0, 0.0]), np.array([4.0, 0.0]))
    assert curvature.solve(np.array([4.0, 3.0])).tolist() == [1.0, 3.0]


def test_the_default_regularization_is_ample_for_narrow_kinks() -> None:
    """The noise that it follows from is planned for a Lambda that leaves room for their volume term."""
    problem = Problem(loss=HuberSVM(0.001), dims=3, rows=50)
    event = ALGORITHMS["objective"].plan(Settings(epsilon=1.0), problem, Budget(1.0))
    assert event.delta(1.0) == 0.0
