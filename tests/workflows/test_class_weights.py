"""Class weights, from what is asked for to the released model: every algorithm, and every layer over them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from boltdp import PrivateHuberSVM, PrivateLogisticRegression
from boltdp._array_types import Doubles
from boltdp.algorithms import ALGORITHMS
from boltdp.cli import main
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import ParameterError
from boltdp.estimators.search import PrivateGridSearch
from boltdp.model import Model
from boltdp.schema.schema import Classes, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.compare import Comparison, ComparisonFileError, compare
from boltdp.workflows.predict import predict
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from tests.plans import plan_certificate

COLUMNS = (Numeric("age", 0, 100), Numeric("dose", -1, 1))
#: One in ten is ill.
PRIOR = Schema(Classes("ill", ("no", "yes"), prior=(0.9, 0.1)), COLUMNS)
PLAIN = Schema(Classes("ill", ("no", "yes")), COLUMNS)
BALANCED = (1 / 9, 1.0)


def patients(rows: int = 10_000, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    ill = random.random(rows) < 0.1
    age = np.clip(random.normal(45 + 15 * ill, 15), 0, 100)
    return pa.table({"age": age, "dose": random.uniform(-1, 1, rows), "ill": np.where(ill, "yes", "no")})


def recalls(model: Model, seed: int = 1) -> tuple[float, float]:
    """The parts of the healthy and of the ill that are recognized."""
    table = patients(seed=seed)
    predicted, truth = predict(model, ArrayEngine.from_arrow(table)), np.array(table["ill"])
    healthy, ill = (float(np.mean(predicted[truth == one] == one)) for one in ("no", "yes"))
    return healthy, ill


# ---- what may be asked for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "weights"),
    [
        (None, None),
        ("balanced", BALANCED),
        ({"no": 1, "yes": 9}, BALANCED),
        ({"yes": 9}, BALANCED),
        ({"yes": 2.0, "no": 8.0}, (1.0, 0.25)),
        ({np.str_("no"): np.int64(4)}, (1.0, 0.25)),
        ((2, 8), (0.25, 1.0)),
        ([0.25, 1.0], (0.25, 1.0)),
        ({"no": 1e-300, "yes": 1e-297}, (1e-3, 1.0)),
        ({"no": 1, "yes": 10_000}, (1e-4, 1.0)),
    ],
)
def test_weights_are_numbers_in_the_order_of_the_classes_and_the_largest_is_1(asked: Any, weights: Any) -> None:
    weighed = Settings(epsilon=1.0, class_weights=asked).resolve_class_weights(PRIOR.target)
    assert weighed.class_weights == (weights if weights is None else pytest.approx(weights, rel=1e-12))
    assert weighed.resolve_class_weights(PRIOR.target).class_weights == weighed.class_weights
    if weights is not None:
        assert max(weighed.class_weights) == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "asked"),
    [((False, True), {"true": 4}), ((0, 1), {"1": 4}), ((0, 1), {1.0: 4}), (("0", "1"), {1: 4}), ((0, 1), {True: 4})],
)
def test_a_class_is_named_as_a_cell_would_name_it(classes: Any, asked: Any) -> None:
    schema = Schema(Classes("ill", classes), COLUMNS)
    assert Settings(epsilon=1.0, class_weights=asked).resolve_class_weights(schema.target).class_weights == (0.25, 1.0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("balanced", "class_weights 'balanced' must follow from the schema's prior, which it does not declare"),
        ("auto", "class_weights must be 'balanced' or a weight for each class, got 'auto'"),
        ({"maybe": 2}, "class_weights must be of declared classes, got 'maybe'"),
        ({"no": 0}, "class_weights must be finite numbers > 0"),
        ({"no": -1, "yes": -2}, "class_weights must be finite numbers > 0"),
        ({"no": float("nan")}, "class_weights must be finite numbers > 0"),
        ({"no": float("inf")}, "class_weights must be finite numbers > 0"),
        ({"no": 1, "yes": 10_001}, "class_weights must be within a factor of 10,000"),
        ({"no": "1"}, "each of the class_weights must be a number, got '1'"),
        ({("no",): 1}, "class_weights must be texts, numbers or booleans"),
        ((1.0, 2.0, 3.0), "class_weights must be one for each of the 2 classes, got 3"),
    ],
)
def test_what_makes_no_weights_is_refused_before_a_row_is_read(asked: Any, message: str) -> None:
    settings = Settings(epsilon=1.0, class_weights=asked)
    unreadable: Any = None
    with pytest.raises(ParameterError, match=message):
        train(unreadable, PLAIN, settings)
    with pytest.raises(ParameterError, match=message):
        tune(unreadable, PLAIN, expand_grid(settings, {"passes": [1, 2]}))
    with pytest.raises(ParameterError, match=message):
        compare(unreadable, PLAIN, settings, names=["bolton"], epsilons=[1.0], repeats=1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("balanced", "class_weights 'balanced' must follow from the schema's prior"),
        ({"no": 1, "yes": 9}, "class_weights must be of declared classes, got 'no'"),
        ((1.0, 0.5, 0.5), "class_weights must be one for each of the 2 classes, got 3"),
    ],
)
def test_a_plan_of_numbers_alone_knows_no_prior_and_no_class(asked: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        plan_certificate(Settings(epsilon=1.0, class_weights=asked), rows=100, dims=3, classes=2)


# ---- training ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_a_rare_class_is_recognized_more_often_and_the_noise_is_the_same(algorithm: str) -> None:
    settings = Settings(epsilon=4.0, delta=1e-6, algorithm=algorithm, seed=1, noise_seed=2)
    engine = ArrayEngine.from_arrow(patients())
    plain, weighted = (train(engine, PRIOR, replace(settings, class_weights=asked)) for asked in (None, "balanced"))
    assert weighted.certificate.problem.class_weights == pytest.approx(BALANCED)
    assert weighted.certificate.training_noise == plain.certificate.training_noise
    assert weighted.certificate.release_noise == plain.certificate.release_noise
    weighted.verify()
    healthy, ill = recalls(weighted)
    assert recalls(plain)[1] < 0.15 < 0.3 < ill
    assert healthy > 0.5


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_that_are_all_the_same_give_the_bits_of_none(algorithm: str) -> None:
    settings = Settings(epsilon=1.0, delta=1e-6, algorithm=algorithm, seed=1, noise_seed=2)
    engine = ArrayEngine.from_arrow(patients(2000))
    plain, weighted = (
        train(engine, PLAIN, replace(settings, class_weights=asked)) for asked in (None, {"no": 3, "yes": 3})
    )
    assert weighted.weights.tobytes() == plain.weights.tobytes()
    assert weighted.certificate.problem.class_weights == (1.0, 1.0)


@pytest.mark.parametrize("multiclass", ["multinomial", "one-vs-all"])
@pytest.mark.parametrize("algorithm", ["objective", "bolton", "noisy-gd"])
def test_the_weight_is_that_of_the_rows_own_class(algorithm: str, multiclass: Any) -> None:
    """A class of hardly any weight is hardly learned, in one model of all classes and in one for each."""
    random = np.random.default_rng(0)
    label = random.integers(0, 3, 6000)
    centres = np.array([[-0.7, 0.0], [0.7, 0.0], [0.0, 0.7]])
    features = np.clip(centres[label] + 0.25 * random.standard_normal((6000, 2)), -1, 1)
    table = pa.table({"a": features[:, 0], "b": features[:, 1], "label": label})
    schema = Schema(Classes("label", (0, 1, 2)), (Numeric("a", -1, 1), Numeric("b", -1, 1)))
    settings = Settings(epsilon=50.0, delta=1e-6, algorithm=algorithm, multiclass=multiclass, seed=1, noise_seed=2)

    def chosen(asked: Any) -> Doubles:
        model = train(ArrayEngine.from_arrow(table), schema, replace(settings, class_weights=asked))
        return np.bincount(predict(model, ArrayEngine.from_arrow(table)), minlength=3) / 6000

    plain, light = chosen(None), chosen({1: 0.001})
    assert plain.min() > 0.25
    assert light[1] < 0.7 * plain[1]
    assert min(light[0], light[2]) > 0.25


# ---- the layers over it --------------------------------------------------------------------------------------------


def test_tuning_weighs_every_candidate() -> None:
    settings = Settings(epsilon=4.0, algorithm="bolton", class_weights="balanced")
    model = tune(ArrayEngine.from_arrow(patients(3000)), PRIOR, expand_grid(settings, {"passes": [1, 5]}))
    assert model.certificate.problem.class_weights == pytest.approx(BALANCED)
    assert model.certificate.private


def test_results_of_a_comparison_are_kept_apart_by_their_weights(tmp_path: Path) -> None:
    engine, common = ArrayEngine.from_arrow(patients(2000)), Settings(epsilon=None, class_weights="balanced", passes=1)
    wanted: dict[str, Any] = {"names": ["bolton"], "epsilons": [1.0], "repeats": 1}
    made = compare(engine, PRIOR, common, **wanted)
    assert made.about["settings"]["class_weights"] == pytest.approx(BALANCED)
    made.save(tmp_path / "comparison.json")
    before = Comparison.load(tmp_path / "comparison.json")
    same = replace(common, class_weights=made.about["settings"]["class_weights"])
    again = compare(engine, PRIOR, same, resume_from=before, **wanted)
    assert again.runs == made.runs
    with pytest.raises(ComparisonFileError, match="of other data or settings"):
        compare(engine, PRIOR, replace(common, class_weights=None), resume_from=before, **wanted)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pa.parquet.write_table(patients(2000), "rows.parquet")
    PRIOR.save("schema.toml")
    PLAIN.save("plain.toml")


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("asked", ["balanced", "no=1,yes=9", "yes=9"])
def test_commands_take_weights(asked: str) -> None:
    given = ("--epsilon", 1, "--class-weights", asked)
    result = run("train", "rows.parquet", "--schema", "schema.toml", *given, "-o", "model.json")
    assert result.exit_code == 0, result.output
    assert Model.load("model.json").certificate.problem.class_weights == pytest.approx(BALANCED)
    planned = run("plan", "--rows", 2000, "--schema", "schema.toml", *given)
    assert "class weights from 0.111 to 1" in planned.stdout
    told = json.loads(run("plan", "--rows", 2000, "--schema", "schema.toml", *given, "--json").stdout)
    assert '"class_weights": [0.11' in json.dumps(told)
    grid = ("--grid", "regularization=0.01,0.1")
    result = run("tune", "rows.parquet", "--schema", "schema.toml", *given, *grid, "-o", "tuned.json")
    assert result.exit_code == 0, result.output
    assert Model.load("tuned.json").certificate.problem.class_weights == pytest.approx(BALANCED)
    result = run("compare", "rows.parquet", "--schema", "schema.toml", *given, "--repeats", 1, "--passes", 1)
    assert result.exit_code == 0, result.output
    assert Comparison.load("comparison.json").about["settings"]["class_weights"] == pytest.approx(BALANCED)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("balanced", "rows are never counted"),
        ("no", "--class-weights must be 'balanced' or such as no=1,yes=8, each class once, got 'no'"),
        ("no=1,yes=much", "--class-weights must be 'balanced' or such as no=1,yes=8"),
        ("no=1,no=2", "each class once"),
        ("=1", "--class-weights must be"),
        ("maybe=1", "class_weights must be of declared classes, got 'maybe'"),
    ],
)
def test_weights_that_are_none_are_refused_by_commands(asked: str, said: str) -> None:
    for command in (("train", "rows.parquet", "-o", "model.json"), ("plan", "--rows", 2000)):
        result = run(*command, "--schema", "plain.toml", "--epsilon", 1, "--class-weights", asked)
        assert result.exit_code == 1
        assert said in result.stderr
    assert not Path("model.json").exists()


@pytest.mark.parametrize("estimator", [PrivateLogisticRegression, PrivateHuberSVM])
def test_estimators_take_weights_as_scikit_learn_does(estimator: Any) -> None:
    frame = patients().to_pandas()
    X, y = frame[["age", "dose"]], frame["ill"] == "yes"
    declared = {"classes": [False, True], "bounds": ([0, -1], [100, 1]), "epsilon": 4.0}
    plain, weighted = (estimator(class_weight=asked, **declared).fit(X, y) for asked in (None, {True: 9}))
    assert weighted.certificate_.problem.class_weights == pytest.approx(BALANCED)
    assert plain.predict(X)[y].mean() < 0.3 < 0.5 < weighted.predict(X)[y].mean()
    search = PrivateGridSearch(weighted, {"regularization": [0.01, 0.1]}).fit(X, y)
    assert search.certificate_.problem.class_weights == pytest.approx(BALANCED)
    balanced = estimator(class_weight="balanced", schema=PRIOR, epsilon=4.0).fit(X, frame["ill"])
    assert balanced.certificate_.problem.class_weights == pytest.approx(BALANCED)
    with pytest.raises(ParameterError, match="must follow from the schema's prior"):
        estimator(class_weight="balanced", **declared).fit(X, y)


def test_classes_in_the_order_of_scikit_learn_keep_their_weights() -> None:
    frame = patients(2000).to_pandas()
    turned = Schema(Classes("ill", ("yes", "no"), prior=(0.1, 0.9)), COLUMNS)
    fitted = PrivateLogisticRegression(class_weight="balanced", schema=turned).fit(frame[["age", "dose"]], frame["ill"])
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert fitted.certificate_.problem.class_weights == pytest.approx(BALANCED)
