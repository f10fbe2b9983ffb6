"""Training in partitions: what is planned from public numbers, and what comes of it on every way to the rows."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from boltdp import _interrupts
from boltdp.algorithms import Job, get_algorithm
from boltdp.engines import open_source
from boltdp.engines.base import Engine, encode_rows
from boltdp.engines.local_store import LocalRows
from boltdp.errors import ParameterError
from boltdp.kernel import sgd
from boltdp.kernel.row_permutation import compute_source_positions
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.events.sgd_sensitivity import compute_sgd_sensitivity
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.select import _plan_public_training
from boltdp.workflows.train import train
from boltdp.workflows.tune import Method, expand_grid, tune
from tests.algorithms.counted import CountedEngine
from tests.kernel.reference import reference_sgd
from tests.plans import plan_certificate

ROWS = 1501
COLUMNS = (Numeric("age", 0, 100), Categorical("sex", ("F", "M")))
SCHEMA = Schema(Classes("sick", (0, 1)), COLUMNS)
THREE = Schema(Classes("stage", (0, 1, 2)), COLUMNS)
SEEDED = Settings(epsilon=1.0, algorithm="bolton", seed=5, noise_seed=6, passes=3, batch_size=10)


def table(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(1)
    age = random.uniform(0, 100, rows)
    stage = np.digitize(age / 50 + random.standard_normal(rows), [0.8, 1.6])
    return pa.table({"age": age, "sex": random.choice(["F", "M"], rows), "sick": stage > 0, "stage": stage})


def recipe_of(certificate: Certificate) -> Recipe:
    assert isinstance(certificate.problem, Recipe)
    return certificate.problem


def planned(**chosen: Any) -> Recipe:
    settings = {"epsilon": 1.0, "algorithm": "bolton", **chosen}
    return recipe_of(plan_certificate(Settings(**settings), rows=10_001, dims=20, classes=2))


# ---- the bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permutation", ["once", "fresh"])
def test_one_partition_has_the_bits_of_none_asked_for(permutation: Any) -> None:
    settings = replace(SEEDED, permutation=permutation)
    unasked, asked = (train(open_source(table()), SCHEMA, one) for one in (settings, replace(settings, partitions=1)))
    assert asked.weights.tobytes() == unasked.weights.tobytes()
    assert asked.certificate == unasked.certificate
    assert "partitions" not in str(asked.certificate.to_dict())


@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
@pytest.mark.parametrize("partitions", [1, 2, 3, 8])
def test_a_model_is_the_average_of_the_references_of_its_partitions(partitions: int, multiclass: Any) -> None:
    settings = Settings(epsilon=None, multiclass=multiclass, passes=2, batch_size=7, seed=5, partitions=partitions)
    engine = open_source(table())
    model = train(engine, THREE, settings)
    rows = THREE.encoding.read_features(np.concatenate([*encode_rows(engine, THREE)]))[
        compute_source_positions(0, ROWS, rows=ROWS, seed=5)
    ]
    recipe = recipe_of(model.certificate)
    assert recipe.partitions == partitions
    edges = [ROWS * number // partitions for number in range(partitions + 1)]
    expected = np.zeros_like(model.weights)
    for part in np.split(rows, edges[1:-1]):
        own, twice = recipe.restrict_to_partition(len(part)), np.vstack([part, part])
        classes = [0] if multiclass == "multinomial" else [0, 1, 2]
        trained = np.vstack([reference_sgd(own, twice, positive=c, classes=3) for c in classes])
        expected += len(part) / ROWS * trained
    assert model.weights == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", ["robust", "quantile", "mean"])
def test_a_model_of_numbers_is_the_average_of_the_references_of_its_partitions(loss: str) -> None:
    settings = Settings(epsilon=None, loss=loss, passes=2, batch_size=7, seed=5, partitions=3)
    engine, schema = open_source(table()), Schema(Number("stage", -1, 3, typical=(0, 2)), COLUMNS)
    model = train(engine, schema, settings)
    packed = np.concatenate([*encode_rows(engine, schema)])
    rows = schema.encoding.read_features(packed)[compute_source_positions(0, ROWS, rows=ROWS, seed=5)]
    recipe = recipe_of(model.certificate)
    reading = (0.0, 1.0) if loss == "mean" else (0.0, 2.5631 / recipe.loss.label_unit)
    expected = np.zeros_like(model.weights)
    for part in np.split(rows, [ROWS // 3, 2 * ROWS // 3]):
        expected += len(part) / ROWS * reference_sgd(recipe.restrict_to_partition(len(part)), part, reading=reading)
    assert model.weights == pytest.approx(expected, rel=1e-9, abs=1e-12)


def engines(folder: Path) -> dict[str, Engine]:
    """The rows in memory, in a file that was spooled in many buckets, and in a database."""
    pq.write_table(table(), folder / "rows.parquet", row_group_size=200)
    with duckdb.connect(folder / "rows.duckdb") as database:
        database.execute("CREATE TABLE people AS FROM read_parquet(?)", [str(folder / "rows.parquet")])
    opened = {
        "arrays": open_source(table()),
        "parquet": open_source(folder / "rows.parquet"),
        "duckdb": open_source(folder / "rows.duckdb", table="people"),
    }
    for name in ("parquet", "duckdb"):
        opened[name].spool, opened[name].memory_bytes = folder, 1 << 11
    return opened


@pytest.mark.parametrize("schema", [SCHEMA, THREE], ids=["two classes", "three"])
@pytest.mark.parametrize("permutation", ["once", "fresh"])
@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_engines_and_threads_give_the_same_bits(
    partitions: int, permutation: Any, schema: Schema, tmp_path: Path
) -> None:
    settings = replace(SEEDED, partitions=partitions, permutation=permutation, averaging="all")
    found = {
        (name, threads): train(engine, schema, settings, context=settings.context(threads=threads)).weights.tobytes()
        for name, engine in engines(tmp_path).items()
        for threads in (1, 2, 8)
    }
    assert len(set(found.values())) == 1
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["rows.duckdb", "rows.parquet"]
    other = replace(settings, partitions=partitions + 1)
    assert train(open_source(table()), schema, other).weights.tobytes() not in found.values()


def test_fresh_permutations_are_of_one_partition_each_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    reshuffle = LocalRows.reshuffle

    def record(self: LocalRows, seed: int) -> None:
        told.append((self.rows, seed))
        reshuffle(self, seed)

    monkeypatch.setattr(LocalRows, "reshuffle", record)
    engine = CountedEngine(open_source(table()))
    train(engine, SCHEMA, replace(SEEDED, partitions=4, permutation="fresh"))
    assert engine.counts == {"run_pass": 4 * 3, "states": 4 * 3, "reshuffle": 4 * 2, "prepare": 1}
    assert [rows for rows, _ in told] == [375] * 6 + [376] * 2
    assert len({seed for _, seed in told}) == 8


def test_a_stop_ends_the_threads_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls, before = sgd.run, [0], threading.active_count()

    def run_and_ask(*arguments: Any, **named: Any) -> None:
        calls[0] += 1
        if calls[0] == 5:
            _interrupts.request_stop()
        run(*arguments, **named)

    monkeypatch.setattr(sgd, "run", run_and_ask)
    settings = replace(SEEDED, partitions=20, passes=10)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(open_source(table()), SCHEMA, settings, context=settings.context(threads=2))
    finally:
        _interrupts.clear_request()
    assert 5 <= calls[0] <= 5 + 2 * 2
    assert threading.active_count() <= before


# ---- the plan ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_the_default_way_is_as_long_as_without_partitions_and_needs_as_much_noise(partitions: int) -> None:
    """Each partition makes fewer updates, so that its steps are longer; the sensitivity is that of the way."""
    whole, parts = planned(), planned(partitions=partitions)
    assert parts.updates == pytest.approx(whole.updates / partitions, rel=0.05)
    way, other = (one.updates * one.schedule.largest for one in (whole, parts))
    assert other == pytest.approx(way, rel=1e-12)
    assert compute_sgd_sensitivity(parts).total == pytest.approx(compute_sgd_sensitivity(whole).total, rel=0.05)


def test_default_steps_are_never_longer_than_1_over_beta() -> None:
    """So the way is shorter, and needs less noise, where partitions have too few updates for it."""
    whole, parts = planned(), planned(partitions=32)
    assert parts.schedule.largest == 1 / parts.beta == 4.0
    assert compute_sgd_sensitivity(parts).total < 0.7 * compute_sgd_sensitivity(whole).total


def test_steps_that_depend_on_rows_take_those_of_a_partition() -> None:
    for schedule in ("decreasing", "square-root"):
        assert planned(schedule=schedule).schedule.offset == math.sqrt(10_001)
        assert planned(schedule=schedule, partitions=4).schedule.offset == math.sqrt(2501)


def test_the_strongly_convex_bound_stays_what_it_is() -> None:
    whole, parts = (planned(regularization=0.05, batch_size=1, partitions=one) for one in (1, 10))
    assert compute_sgd_sensitivity(parts).bound == pytest.approx(compute_sgd_sensitivity(whole).bound, rel=1e-6)
    assert compute_sgd_sensitivity(whole).bound == pytest.approx(2 / (0.05 * 10_001), rel=1e-6)


def test_batches_are_no_longer_than_the_smallest_partition() -> None:
    assert planned(partitions=300).batch_size == 33
    with pytest.raises(ParameterError, match=r"^batch_size must be at most the number of rows of a partition, 33, got"):
        planned(partitions=300, batch_size=34)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"partitions": 0}, "partitions must be >= 1, got 0"),
        ({"partitions": 2.5}, "partitions must be a whole number, got 2.5"),
        ({"partitions": True}, "partitions must be a whole number, got True"),
        ({"partitions": 5001}, "partitions must have at least 2 of the 10001 rows each, got 5001"),
        ({"partitions": 10**9}, "partitions must be at most 1,000,000, got 1000000000"),
        ({"partitions": 4, "analysis": "paper"}, "partitions must be 1 for the published bounds, got 4"),
        ({"partitions": 4, "algorithm": "scs13"}, "partitions must not be given for the algorithm scs13, .*"),
        ({"partitions": 4, "algorithm": "objective"}, "partitions must not be given for the algorithm objective, .*"),
    ],
)
def test_what_cannot_be_is_refused_before_a_row_is_read(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=f"^{message}$"):
        planned(**chosen)


def test_asking_for_partitions_asks_for_the_bolt_on() -> None:
    certificate = plan_certificate(Settings(epsilon=1.0, delta=1e-6, partitions=4), rows=10_000, dims=9, classes=3)
    assert certificate.algorithm == "bolton"


def test_the_plan_and_the_training_tell_of_partitions() -> None:
    settings = Settings(epsilon=1.0, algorithm="bolton", partitions=4)
    certificate = plan_certificate(settings, rows=10_001, dims=20, classes=2)
    algorithm = get_algorithm(certificate.algorithm)
    told = dict(algorithm.describe_choices(certificate, settings))
    assert told["partitions"] == "4 of 2,500 or 2,501 rows, each trained on alone; their weights are averaged"
    assert told["passes"] == "10 over 50 batches of about 50 rows"
    trained = "10 passes over 10,001 rows in 4 partitions, 500 updates in each, then averaged"
    assert algorithm.describe_run(certificate) == trained
    even = plan_certificate(replace(settings, partitions=73), rows=10_001, dims=20, classes=2)
    assert dict(algorithm.describe_choices(even, settings))["partitions"].startswith("73 of 137 rows, ")
    one = plan_certificate(replace(settings, partitions=1), rows=10_001, dims=20, classes=2)
    assert "partitions" not in dict(algorithm.describe_choices(one, settings))
    assert algorithm.describe_run(one) == "10 passes over 10,001 rows, 2,000 updates"


# ---- tuning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["trials", "portions", "public"])
def test_candidates_are_trained_in_partitions(method: Method) -> None:
    grid = expand_grid(replace(SEEDED, noise_seed=None, partitions=3), {"passes": [1, 2]})
    public = open_source(table(400)) if method == "public" else None
    certificate = tune(open_source(table()), SCHEMA, grid, method=method, public=public).certificate
    assert certificate.private
    assert recipe_of(certificate).partitions == 3


@pytest.mark.parametrize(("rows", "partitions", "batch_size"), [(600, 8, 10), (50, 8, 6), (9, 4, 2), (2, 1, 2)])
def test_a_rehearsal_on_few_rows_has_no_more_partitions_than_they_can_be_cut_into(
    rows: int, partitions: int, batch_size: int
) -> None:
    certificate = plan_certificate(replace(SEEDED, partitions=8), rows=ROWS, dims=4, classes=2)
    fewer = recipe_of(_plan_public_training(certificate, rows=rows))
    assert (fewer.rows, fewer.partitions, fewer.batch_size) == (rows, partitions, batch_size)
    assert isinstance(certificate.training, OutputPerturbation)


def test_candidates_that_share_scans_have_the_bits_of_each_alone() -> None:
    settings = Settings(epsilon=None, algorithm="bolton", seed=5, partitions=3, batch_size=10)
    grid, engine = expand_grid(settings, {"passes": [1, 3]}), open_source(table())
    certificates = [plan_certificate(one, rows=ROWS, dims=SCHEMA.dims, classes=2) for one in grid]
    jobs = [Job(certificate, Randomness()) for certificate in certificates]
    with engine.prepare(SCHEMA, Context(seed=5)) as prepared:
        together = get_algorithm(certificates[0].algorithm).run(prepared, jobs, classes=2, context=Context(seed=5))
    for one, weights in zip(grid, together, strict=True):
        assert train(engine, SCHEMA, one).weights.tobytes() == weights.tobytes()
