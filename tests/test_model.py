"""The model file: what it keeps, how it is written, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from boltdp._files.sealed import MAX_BYTES, MAX_DIGITS, add_digest
from boltdp.cli import main
from boltdp.engines.in_memory import ArrayEngine
from boltdp.errors import BoltdpError, ParameterError
from boltdp.model import Model, ModelFileError
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.output_perturbation import OutputPerturbation
from boltdp.privacy.release_with_noise import Randomness, release_weights
from boltdp.schema.schema import Classes, Number, Numeric, Schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan
from boltdp.workflows.predict import predict, predict_proba, score_batches
from boltdp.workflows.train import train
from tests.plans import plan_certificate


def model_of(certificate: Certificate, classes: int = 2) -> Model:
    schema = Schema(Classes("y", tuple(range(classes))), (Numeric("a", 0, 1), Numeric("b", -1, 1)))
    shape = (certificate.model_count, certificate.problem.loss.vector_count, schema.dims)
    return Model.from_release(schema, release_weights(np.zeros(shape), certificate, Randomness()), certificate)


def model(classes: int = 2, settings: Settings = Settings(epsilon=1.0)) -> Model:  # noqa: B008
    return model_of(plan_certificate(settings, rows=1000, dims=3, classes=classes), classes)


NUMBER = Number("y", 0, 50, typical=(5, 20))


def number_model(settings: Settings = Settings(epsilon=1.0)) -> Model:  # noqa: B008
    """A model of nothing but noise that predicts a number."""
    schema = Schema(NUMBER, (Numeric("a", 0, 1), Numeric("b", -1, 1)))
    plan = make_plan(schema, 1000, replace(settings, standardize="none", label_check=0.0, curves=0))
    weights = release_weights(np.zeros((1, 1, schema.dims)), plan.certificate, Randomness())
    return Model.from_release(plan.schema, weights, plan.certificate)


NUMBER_MODELS = [
    number_model(),
    number_model(Settings(epsilon=1.0, algorithm="bolton", loss="quantile", loss_parameter=0.9)),
    number_model(Settings(epsilon=1.0, delta=1e-6, algorithm="noisy-gd", loss="mean")),
    number_model(Settings(epsilon=None, loss="robust")),
]


@pytest.mark.parametrize(
    "made",
    [
        *NUMBER_MODELS,
        model(),
        model(4),
        model(4, Settings(epsilon=1.0, multiclass="one-vs-all")),
        model(2, Settings(epsilon=0.5, delta=1e-6, loss="huber", regularization=0.1, radius=3.0)),
        model(3, Settings(epsilon=None)),
        model(2, Settings(epsilon=1.0, class_weights=(1.0, 0.25))),
        model(3, Settings(epsilon=1.0, class_weights=(1.0, 0.25, 0.1))),
        model(3, Settings(epsilon=1.0, class_weights=(1.0, 0.25, 0.1), multiclass="one-vs-all", passes=2)),
    ],
)
def test_a_model_survives_the_disk_to_the_bit(made: Model, tmp_path: Path) -> None:
    made.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert (again.weights == made.weights).all()
    assert again.schema == made.schema
    assert again.certificate == made.certificate
    again.verify()


def test_predictions_follow_the_weights() -> None:
    made = model()
    rows = pa.table({"a": [0.0, 1.0, 0.5], "b": [-1.0, 1.0, None]})
    encoded = np.array([[-1, -1, 1], [1, 1, 1], [0, 0, 1]]) / np.sqrt(3)
    margins = np.concatenate(list(score_batches(made, ArrayEngine.from_arrow(rows))))
    assert margins == pytest.approx(encoded @ made.weights.T, rel=1e-6)
    assert predict(made, ArrayEngine.from_arrow(rows)).tolist() == (margins[:, 0] > 0).astype(int).tolist()


@pytest.mark.parametrize("made", NUMBER_MODELS)
def test_predicted_numbers_follow_the_weights(made: Model) -> None:
    made = replace(made, weights=np.array([[0.5, -0.25, 0.125]]))
    rows = pa.table({"a": [0.0, 1.0, 0.5], "b": [-1.0, 1.0, None]})
    scores = np.array([[-1, -1, 1], [1, 1, 1], [0, 0, 1]]) / np.sqrt(3) @ made.weights[0]
    target, loss = made.schema.target, made.certificate.problem.loss
    assert isinstance(target, Number)
    read = 12.5 + scores * target.unit * 15 / 2.5631
    expected = 50 / (1 + np.exp(-scores)) if loss.name == "mean" else read
    assert predict(made, ArrayEngine.from_arrow(rows)) == pytest.approx(expected, rel=1e-6)
    far = replace(made, weights=1e6 * made.weights)
    clipped = predict(far, ArrayEngine.from_arrow(rows))
    assert clipped == pytest.approx(np.where(scores > 0, 50.0, 0.0), abs=1e-9)


def test_what_only_classes_have_is_refused_of_a_model_of_numbers() -> None:
    made = number_model()
    rows = ArrayEngine.from_arrow(pa.table({"a": [0.5], "b": [0.5]}))
    for use in (
        lambda: made.classes,
        lambda: made.predict_indices(np.zeros((1, 1))),
        lambda: predict_proba(made, rows),
        lambda: made.with_threshold(0.5),
    ):
        with pytest.raises(
            ParameterError, match="must be for a label with classes, got the target 'y' with numbers from 0 to"
        ):
            use()


def test_a_certificate_for_another_kind_of_target_is_refused() -> None:
    numbers, classes = number_model(), model()
    for one, other in ((numbers, classes), (classes, numbers)):
        with pytest.raises(BoltdpError, match="must be used for"):
            replace(one, certificate=other.certificate).verify()


@pytest.mark.parametrize(
    "changed",
    [
        {"bounds": [0, 0]},
        {"bounds": [50, 0]},
        {"bounds": None},
        {"typical": [5, 60]},
        {"typical": [5, 5]},
        {"unit": 3.0},
        {"typical_source": "rumour"},
        {"classes": [0, 1]},
        {"label": "z"},
    ],
    ids=str,
)
def test_a_file_with_a_target_that_is_none_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    number_model().save(path)
    schema = json.loads(path.read_text())["schema"]
    assert {"target", "bounds", "typical"} <= set(schema)
    with pytest.raises(ModelFileError):
        Model.load(tampered(path, schema={**schema, **changed}))


def test_no_rows_give_no_predictions() -> None:
    rows = pa.table({"a": pa.array([], pa.float64()), "b": pa.array([], pa.float64())})
    for made in (model(), number_model()):
        assert predict(made, ArrayEngine.from_arrow(rows)).tolist() == []


@pytest.mark.parametrize("settings", [Settings(epsilon=1.0), Settings(epsilon=1.0, multiclass="one-vs-all")])
@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_shares_and_favour_the_choice(classes: int, settings: Settings) -> None:
    made = model(classes, settings)
    margins = np.random.default_rng(0).standard_normal((50, len(made.weights)))
    shares = made.probabilities(margins)
    assert shares.shape == (50, classes)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert (shares.argmax(axis=1) == made.predict_indices(margins)).all()


def test_probabilities_of_a_row_that_every_model_denies_are_even() -> None:
    made = model(4, Settings(epsilon=1.0, multiclass="one-vs-all"))
    assert made.probabilities(np.full((1, 4), -1e4)) == pytest.approx(0.25)


def test_a_huber_svm_has_no_probabilities() -> None:
    message = "^a model with the loss 'huber' gives no probabilities; use its margins$"
    with pytest.raises(ParameterError, match=message):
        model(2, Settings(epsilon=1.0, loss="huber")).probabilities(np.zeros((1, 1)))


def test_the_second_class_is_predicted_where_its_probability_exceeds_the_threshold() -> None:
    made = model()
    margins = np.random.default_rng(0).normal(0, 3, (500, 1))
    likely = made.probabilities(margins)[:, 1]
    for threshold in (0.01, 0.11, 0.5, 0.9):
        decided = made.with_threshold(threshold)
        assert (decided.predict_indices(margins) == (likely > threshold)).all()
        assert (decided.probabilities(margins) == made.probabilities(margins)).all()
    at = np.full((1, 1), made.with_threshold(0.11).margin_threshold)
    assert made.with_threshold(0.11).predict_indices(at).tolist() == [0], "at the threshold it is not exceeded"
    assert (
        made.with_threshold(0.11).with_threshold(None).predict_indices(margins).tolist()
        == made.predict_indices(margins).tolist()
    )


def test_the_threshold_of_the_prior_is_the_share_of_the_second_class() -> None:
    made = model()
    with pytest.raises(ParameterError, match=r"^the threshold 'prior' must be declared in the schema"):
        made.with_threshold("prior")
    known = replace(made, schema=replace(made.schema, target=Classes("sick", made.classes, prior=(0.89, 0.11))))
    assert known.with_threshold("prior").threshold == 0.11


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.1, 1.5, np.nan, np.inf])
def test_a_threshold_is_a_probability_between_none_and_all(threshold: float) -> None:
    with pytest.raises(ParameterError, match=r"^threshold must be between 0 and 1, without these, got "):
        model().with_threshold(threshold)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (model(3), "^a threshold must be for a model of 2 classes, got 3$"),
        (
            model(2, Settings(epsilon=1.0, loss="huber")),
            "^a threshold must be for a model that gives probabilities, got the loss 'huber'$",
        ),
    ],
)
def test_a_model_that_cannot_decide_by_a_threshold_refuses_it(made: Model, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        made.with_threshold(0.3)


def test_a_threshold_survives_the_disk_and_a_model_without_one_is_written_as_ever(tmp_path: Path) -> None:
    made = model()
    assert list(made.to_dict()) == [
        "format",
        "format_version",
        "private",
        "schema",
        "weights",
        "certificate",
        "trained_where",
    ]
    made.with_threshold(0.11).save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    assert again.threshold == 0.11
    again.verify()
    again.with_threshold(None).save(tmp_path / "again.json")
    made.save(tmp_path / "plain.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plain.json").read_bytes()


def test_a_certificate_has_weights_of_the_classes_or_none() -> None:
    weighted = plan_certificate(Settings(epsilon=1.0, class_weights=(1.0, 0.5)), rows=1000, dims=3, classes=2)
    assert '"class_weights": [1.0, 0.5]' in json.dumps(model_of(weighted).to_dict())
    assert "class_weights" not in json.dumps(model().to_dict())
    assert isinstance(weighted.spent, Training)
    spent: Any = weighted.spent
    three = replace(weighted, spent=replace(spent, problem=replace(spent.problem, class_weights=(1.0, 0.5, 0.5))))
    with pytest.raises(ParameterError, match="class_weights must be one for each of the 2 classes, got 3"):
        model_of(three)


def test_a_file_that_states_no_weights_where_none_are_written_is_refused(tmp_path: Path) -> None:
    record = model().to_dict()
    record["certificate"]["spent"]["problem"]["class_weights"] = None
    (tmp_path / "model.json").write_text(json.dumps(add_digest(record)))
    with pytest.raises(BoltdpError, match="has an entry 'class_weights' that this boltdp does not know"):
        Model.load(tmp_path / "model.json")


@pytest.mark.parametrize("threshold", [None, 1, True, "prior", "0.5", 0.0, 1.5, [0.5], {}])
def test_a_file_with_a_threshold_that_is_none_is_refused(tmp_path: Path, threshold: Any) -> None:
    record = {**model().to_dict(), "threshold": threshold}
    (tmp_path / "model.json").write_text(json.dumps(add_digest(record)))
    with pytest.raises(BoltdpError, match=r"^the model cannot be read: "):
        Model.load(tmp_path / "model.json")


def test_rows_outside_the_ball_are_shortened_as_in_training() -> None:
    made = model()
    packed = np.array([[np.nan, 40.0, 0.5], [np.nan, 0.25, -0.5]], dtype=np.float32)
    rows = made.schema.encoding.read_features(packed)[:, 1:]
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths[0] > 1 > lengths[1]
    expected = rows @ made.weights.T / np.maximum(1.0, lengths)[:, None]
    assert made.margins(packed) == pytest.approx(expected, rel=1e-12)


def test_an_existing_model_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model().save(path)
    before = path.read_bytes()
    broken = model()
    broken.weights[0, 0] = np.nan
    with pytest.raises(ValueError, match="Out of range float"):
        broken.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["model.json"]


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BoltdpError, match="cannot be written"):
        model().save(tmp_path / "missing" / "model.json")


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model().save(path)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def tampered(path: Path, **changes: Any) -> Path:
    """By someone who computes the digest again."""
    path.write_text(json.dumps(add_digest({**json.loads(path.read_text()), **changes})))
    return path


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": "other"}, ModelFileError),
        ({"format_version": 3}, ModelFileError),
        ({"format_version": 99}, ModelFileError),
        ({"weights": "none"}, ModelFileError),
        ({"weights": [[1.0]]}, ModelFileError),
        ({"weights": [["1.0", "2.0", "3.0"]]}, ModelFileError),
        ({"weights": [[True, False, 1.0]]}, ModelFileError),
        ({"weights": [[1, 2, 3]]}, ModelFileError),
        ({"weights": [[1.0, 2.0], 3.0]}, ModelFileError),
        ({"weights": [[1.0, 2.0, 3.0], [1.0]]}, ModelFileError),
        ({"weights": []}, ModelFileError),
        ({"private": 1}, CertificateError),
        ({"private": "true"}, CertificateError),
        ({"luck": 7}, ModelFileError),
        ({"format_version": 4.0}, ModelFileError),
        ({"format_version": True}, ModelFileError),
        ({"schema": {}}, ModelFileError),
        ({"private": False}, CertificateError),
        ({"certificate": None}, CertificateError),
    ],
)
def test_a_file_that_does_not_add_up_is_refused(
    changes: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    model().save(path)
    with pytest.raises(error):
        Model.load(tampered(path, **changes))


BOLTON = Settings(epsilon=1.0, algorithm="bolton")
PARTITIONED = replace(BOLTON, partitions=4)


@pytest.mark.parametrize("settings", [BOLTON, Settings(epsilon=1.0)])
def test_what_is_written_has_the_format_of_this_version(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, settings).save(path)
    record = json.loads(path.read_text())
    assert (record["format"], record["format_version"], record["private"]) == ("boltdp-model", 4, True)


def forged(record: Any, place: tuple[str, ...], value: Any) -> Any:
    """The record with another value at this place; of a number, a factor is enough."""
    if not place:
        return value(record) if callable(value) else value
    return {**record, place[0]: forged(record.get(place[0]), place[1:], value)}


@pytest.mark.parametrize(
    ("settings", "place", "value"),
    [
        (BOLTON, ("noise", "scale"), lambda scale: scale / 2),
        (BOLTON, ("noise", "scale"), lambda scale: scale * (1 - 1e-6)),
        (BOLTON, ("noise", "dimensions"), 2),
        (BOLTON, ("problem", "rows"), 2000),
        (BOLTON, ("problem", "passes"), 1),
        (BOLTON, ("problem", "loss", "derived", "lipschitz"), 0.5),
        (BOLTON, ("problem", "partitions"), 2),
        (PARTITIONED, ("noise", "scale"), lambda scale: scale / 2),
        (PARTITIONED, ("problem", "partitions"), 5),
        (PARTITIONED, ("problem", "partitions"), 1),
        (PARTITIONED, ("derived", "sensitivity"), lambda distance: distance / 2),
        (BOLTON, ("derived", "sensitivity"), lambda distance: distance / 2),
        (BOLTON, ("derived", "noise_multiplier"), lambda factor: factor * 2),
        (BOLTON, ("derived", "luck"), 7),
        (BOLTON, ("problem", "luck"), 7),
        (BOLTON, ("luck",), 7),
        (BOLTON, ("kind",), "magic"),
        (Settings(epsilon=1.0), ("linear", "scale"), lambda scale: scale / 2),
        (Settings(epsilon=1.0), ("end", "scale"), lambda scale: scale / 2),
        (Settings(epsilon=1.0), ("problem", "regularization"), 10.0),
        (Settings(epsilon=1.0), ("derived", "volume_term"), 0.0),
        (Settings(epsilon=1.0), ("problem", "luck"), 7),
    ],
)
def test_what_was_spent_cannot_be_forged(
    settings: Settings, place: tuple[str, ...], value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    model(2, settings).save(path)
    record = json.loads(path.read_text())
    path.write_text(json.dumps(add_digest(forged(record, ("certificate", "spent", *place), value))))
    with pytest.raises(CertificateError):
        Model.load(path).verify()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.9),
        ("epsilon", None),
        ("delta", 1.0),
        ("rows", 2000),
        ("models", 2),
        ("luck", 7),
        ("private", False),
        ("reasons", ["none"]),
        ("adjacency", "add or remove one"),
        ("algorithm", 7),
        ("algorithm", "magic"),
        ("algorithm", "objective"),
    ],
)
def test_a_claim_that_does_not_follow_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, BOLTON).save(path)
    path.write_text(json.dumps(add_digest(forged(json.loads(path.read_text()), ("certificate", name), value))))
    with pytest.raises(BoltdpError):
        Model.load(path).verify()


@pytest.mark.parametrize(("name", "value"), [("epsilon", 1.5), ("delta", 1e-6)])
def test_a_claim_of_less_than_is_true_holds(name: str, value: float) -> None:
    record = model(2, BOLTON).to_dict()
    Model.from_dict(forged(record, ("certificate", name), value)).verify()


@pytest.mark.parametrize(("factor", "enough"), [(1.0, True), (3.0, True), (0.5, False)])
def test_more_noise_than_is_needed_verifies_and_less_does_not(factor: float, enough: bool, tmp_path: Path) -> None:
    """A certificate that is written by its own rules throughout: only the noise itself can tell."""
    honest = plan_certificate(BOLTON, rows=1000, dims=3, classes=2)
    event = honest.spent
    assert isinstance(event, OutputPerturbation)
    changed = replace(event, noise=replace(event.noise, scale=factor * event.noise.scale))
    certificate = certify(changed, honest.budget)
    assert certificate.private == enough
    made = model_of(certificate)
    made.save(tmp_path / "model.json")
    again = Model.load(tmp_path / "model.json")
    if enough:
        again.verify()
        return
    assert certificate.reasons == (OVERSPENT,)
    with pytest.raises(CertificateError, match="follows from its events"):
        again.verify()
    with pytest.raises(CertificateError, match="follows from its events"):
        verify(certificate)


def test_a_certificate_for_other_weights_is_refused() -> None:
    made = model()
    schema = Schema(Classes("y", (0, 1)), (Numeric("a", 0, 1),))
    with pytest.raises(ParameterError, match="the certificate must be for 2 features, got 3"):
        Model(schema, made.weights[:, :2], made.certificate)


def test_weights_put_in_the_place_of_the_released_ones_do_not_verify() -> None:
    made = model()
    made.weights[:] = 0.1
    with pytest.raises(CertificateError, match="not those that were released"):
        made.verify()


@pytest.mark.parametrize("classes", [2, 3])
def test_a_certificate_for_other_classes_is_refused(classes: int) -> None:
    made = model(5 - classes)
    schema = Schema(Classes("y", tuple(range(classes))), made.schema.columns)
    with pytest.raises(ParameterError, match=f"the certificate must be for the label 'y' with {classes} classes"):
        Model(schema, made.weights, made.certificate)


def test_weights_that_are_no_numbers_do_not_verify() -> None:
    made = model()
    made.weights[0, 0] = np.inf
    with pytest.raises(CertificateError, match="finite"):
        made.verify()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": NaN}'])
def test_a_file_that_is_no_model_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ModelFileError):
        Model.load(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        Model.load(tmp_path / "none.json")


@pytest.mark.parametrize("settings", [Settings(epsilon=1.0), BOLTON], ids=["objective", "bolton"])
def test_a_model_is_read_where_nothing_else_of_boltdp_was_imported(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, settings).save(path)
    program = "import sys; from boltdp import Model; Model.load(sys.argv[1]).verify()"
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- a file that was damaged, or changed by hand ----------------------------------------------------------------


def places(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """Everything in a JSON value, with the way to it."""
    inside = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    return [(path, record), *(found for key, value in inside for found in places(value, (*path, key)))]


def edits(record: Any) -> list[Any]:
    """The record with each leaf changed in several ways, each entry dropped, and one added to each object."""
    made = []

    def edit(path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
        copy = json.loads(json.dumps(record))
        place = copy
        for key in path[:-1]:
            place = place[key]
        change(place, path[-1])
        made.append(copy)

    def put(value: Any) -> Callable[[Any, Any], None]:
        return lambda place, key: place.__setitem__(key, value)

    for path, value in places(record)[1:]:
        others: list[Any] = [None, True, "text", [], {}, 0]
        if isinstance(value, bool):
            others += [not value, int(value)]
        elif isinstance(value, (int, float)):
            others += [value + 1, value * 2, -value, str(value), float(value), value * (1 + 1e-12)]
        elif isinstance(value, str):
            others += [value + "x", value.upper(), value[:-1]]
        for other in others:
            if json.dumps(other) != json.dumps(value):
                edit(path, put(other))
        edit(path, lambda place, key: place.pop(key))
        if isinstance(value, dict):
            edit((*path, "luck"), put(7))
        if isinstance(value, list):
            edit(path, lambda place, key: place[key].append(place[key][-1] if place[key] else 7))
            edit(path, lambda place, key: place[key].reverse())
    return [{**record, "luck": 7}, *(one for one in made if json.dumps(one) != json.dumps(record))]


def refused(path: Path) -> bool:
    result = CliRunner().invoke(main, ["verify", str(path), "--allow-not-private"])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code == 1 and result.stderr.startswith("error: ") and not result.stdout


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        (partial(model, 3), Settings(epsilon=1.0, delta=1e-6)),
        (partial(model, 3), BOLTON),
        (partial(model, 3), Settings(epsilon=None)),
        (number_model, BOLTON),
    ],
)
def test_every_edit_of_a_single_field_is_refused(
    made: Callable[[Settings], Model], settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "model.json"
    made(settings).save(path)
    assert not refused(path)
    changed = edits(json.loads(path.read_text()))
    assert len(changed) > 400
    for record in changed:
        path.write_text(json.dumps(record))
        assert refused(path), record


def test_every_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, BOLTON).save(path)
    text = path.read_text()
    keys = list(re.finditer(r'^ *("\w+"): ', text, re.MULTILINE))
    assert len(keys) > 40
    for key in keys:
        for other in ("100", "null", '"text"'):
            path.write_text(f"{text[: key.start()]}{key[1]}: {other},{text[key.start() :]}")
            assert refused(path), key[1]
    path.write_text(text)
    assert not refused(path)


def test_columns_in_another_order_are_another_model(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model().save(path)
    record = json.loads(path.read_text())
    record["schema"]["numeric"] = dict(reversed(record["schema"]["numeric"].items()))
    path.write_text(json.dumps(record))
    with pytest.raises(ModelFileError, match="the model was changed after it was written"):
        Model.load(path)


def test_a_schema_that_is_not_spelled_out_is_not_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model().save(path)
    schema = json.loads(path.read_text())["schema"]
    with pytest.raises(ModelFileError, match="must be written as boltdp writes it"):
        Model.load(tampered(path, schema={**schema, "numeric": {"f{0..1}": [0, 1]}}))


DAMAGES = {
    "nothing": "",
    "a list": "[]",
    "a number": "7",
    "no end": '{"format": "boltdp-model"',
    "NaN": '{"format": NaN}',
    "infinity": '{"format": -Infinity}',
    "a large number": '{"format": 1e999}',
    "many digits": '{"format": ' + "9" * 400 + "}",
    "as many as are read": json.dumps(add_digest({"format": "boltdp-model", "format_version": int("9" * MAX_DIGITS)})),
    "thousands of digits": '{"format": ' + "9" * 5000 + "}",
    "deep lists": '{"format": ' + "[" * 70 + "]" * 70 + "}",
    "deeper lists": "[" * 200_000 + "]" * 200_000,
    "deep objects": '{"a":' * 200_000 + "1" + "}" * 200_000,
    "half a character": json.dumps({"format": "\ud800", "digest": "sha256:"}),
    "half a character in a key": json.dumps({"\udfff": 1, "digest": "sha256:"}),
    "a digest of another kind": json.dumps({"format": "boltdp-model", "digest": ["sha256"]}),
    "NUL": "\0",
}


@pytest.mark.parametrize("text", DAMAGES.values(), ids=DAMAGES)
def test_no_damage_is_an_error_of_ours(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    assert refused(path)
    with pytest.raises(ModelFileError):
        Model.load(path)


EXTREMES: list[Any] = [None, True, "text", [], [[]], {}, 0, -1, 2**53, 10**18, 10**99, 0.0, 1e-300, 5e-324, 1e300, -1.5]


@pytest.mark.parametrize("settings", [Settings(epsilon=1.0), BOLTON], ids=["objective", "bolton"])
def test_a_forger_who_computes_the_digest_gets_no_error_of_ours(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, settings).save(path)
    record = json.loads(path.read_text())
    for way, _ in places(record)[1:]:
        for value in EXTREMES:
            copy = json.loads(json.dumps(record))
            place = copy
            for key in way[:-1]:
                place = place[key]
            place[way[-1]] = value
            path.write_text(json.dumps(add_digest(copy)))
            refused(path)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_too_large_for_the_grid_do_not_verify(classes: int, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    made = model(classes)
    made.weights[:] = 0.0
    made.weights[0], made.weights[-1] = 1.6e308, -1.6e308
    made.save(path)
    assert refused(path)


def test_bytes_that_are_no_text_and_files_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"\xff\xfe")
    assert refused(path)
    with open(path, "wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ModelFileError, match="longer than 268,435,456 bytes"):
        Model.load(path)
    assert refused(tmp_path)
    with pytest.raises(ModelFileError):
        Model.load("a\0b")


@pytest.mark.parametrize("version", ["", "0.2.0\x1b[2J", "0.2.0 of mine", 7])
def test_a_version_that_is_none_is_refused(version: Any) -> None:
    record = model().to_dict()
    with pytest.raises(CertificateError):
        Model.from_dict(forged(record, ("certificate", "version"), version))


def test_a_certificate_for_other_persons_than_the_schema_declares_is_refused() -> None:
    made = model()
    with pytest.raises(ParameterError, match="must be for max_rows_per_person 2"):
        replace(made, schema=replace(made.schema, person_id="patient", max_rows_per_person=2))


@pytest.mark.parametrize("changes", [{"typical": (2.0123, 31.0)}, {"unit": 0.5}], ids=str)
def test_a_range_that_cannot_have_been_released_is_refused(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    a = rng.uniform(-1, 1, 4000)
    table = pa.table({"a": a, "y": 20 + 8 * a + rng.standard_normal(4000)})
    schema = Schema(Number("y", 0, 50), (Numeric("a", -1, 1),))
    made = train(ArrayEngine.from_arrow(table), schema, Settings(epsilon=1.0))
    made.verify()
    with pytest.raises(BoltdpError, match=r"the range of the target is not|the target must be read as"):
        replace(made, schema=replace(made.schema, target=replace(made.schema.target, **changes))).verify()


@pytest.mark.parametrize("bounds", [(0, 1e-320), (1e308, 1.5e308), (-1e300, 1e300), (1e9, 1e9 + 1e-3)])
def test_bounds_that_are_not_distinct_in_doubles_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ParameterError, match="must be distinct in double precision"):
        Number("y", *bounds)
