"""The model file: what it keeps, how it is written, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.data.schema import Numeric, Schema
from boltdp.engines import ArrayEngine
from boltdp.errors import BoltdpError, ParameterError
from boltdp.model import Model, ModelFileError
from boltdp.planning import plan
from boltdp.privacy.certificate import OVERSPENT, Certificate, CertificateError, certify, verify
from boltdp.privacy.output import OutputPerturbation
from boltdp.privacy.release import Randomness, release_weights
from boltdp.settings import Settings


def model_of(certificate: Certificate, classes: int = 2) -> Model:
    schema = Schema("y", tuple(range(classes)), (Numeric("a", 0, 1), Numeric("b", -1, 1)))
    shape = (certificate.models, certificate.problem.loss.vectors, schema.dims)
    return Model.of_release(schema, release_weights(np.zeros(shape), certificate, Randomness()), certificate)


def model(classes: int = 2, settings: Settings = Settings(epsilon=1.0)) -> Model:  # noqa: B008
    return model_of(plan(settings, rows=1000, dims=3, classes=classes), classes)


@pytest.mark.parametrize(
    "made",
    [
        model(),
        model(4),
        model(4, Settings(epsilon=1.0, multiclass="one-vs-all")),
        model(2, Settings(epsilon=0.5, delta=1e-6, loss="huber", regularization=0.1, radius=3.0)),
        model(3, Settings(epsilon=None)),
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
    margins = np.concatenate(list(made.score_batches(ArrayEngine.from_arrow(rows))))
    assert margins == pytest.approx(encoded @ made.weights.T, rel=1e-6)
    assert made.predict(ArrayEngine.from_arrow(rows)).tolist() == (margins[:, 0] > 0).astype(int).tolist()


def test_no_rows_give_no_predictions() -> None:
    rows = pa.table({"a": pa.array([], pa.float64()), "b": pa.array([], pa.float64())})
    assert model().predict(ArrayEngine.from_arrow(rows)).tolist() == []


@pytest.mark.parametrize("settings", [Settings(epsilon=1.0), Settings(epsilon=1.0, multiclass="one-vs-all")])
@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_shares_and_favour_the_choice(classes: int, settings: Settings) -> None:
    made = model(classes, settings)
    margins = np.random.default_rng(0).standard_normal((50, len(made.weights)))
    shares = made.probabilities(margins)
    assert shares.shape == (50, classes)
    assert shares.sum(axis=1) == pytest.approx(1.0)
    assert (shares.argmax(axis=1) == made.choices(margins)).all()


def test_probabilities_of_a_row_that_every_model_denies_are_even() -> None:
    made = model(4, Settings(epsilon=1.0, multiclass="one-vs-all"))
    assert made.probabilities(np.full((1, 4), -1e4)) == pytest.approx(0.25)


def test_a_huber_svm_has_no_probabilities() -> None:
    message = "^a model with the loss 'huber' gives no probabilities; use its margins$"
    with pytest.raises(ParameterError, match=message):
        model(2, Settings(epsilon=1.0, loss="huber")).probabilities(np.zeros((1, 1)))


def test_rows_outside_the_ball_are_shortened_as_in_training() -> None:
    made = model()
    packed = np.array([[np.nan, 30.0, 0.0, 40.0], [np.nan, 0.6, 0.0, 0.8]], dtype=np.float32)
    margins = made.margins(packed)
    assert margins[0] == pytest.approx(margins[1], rel=1e-6)


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
    record = json.loads(path.read_text())
    record.update(changes)
    path.write_text(json.dumps(record))
    return path


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"format": "other"}, ModelFileError),
        ({"format_version": 1}, ModelFileError),
        ({"format_version": 99}, ModelFileError),
        ({"weights": "none"}, ModelFileError),
        ({"weights": [[1.0]]}, ParameterError),
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


@pytest.mark.parametrize("settings", [BOLTON, Settings(epsilon=1.0)])
def test_what_is_written_has_the_format_of_this_version(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model(2, settings).save(path)
    record = json.loads(path.read_text())
    assert (record["format"], record["format_version"], record["private"]) == ("boltdp-model", 2, True)


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
    path.write_text(json.dumps(forged(record, ("certificate", "spent", *place), value)))
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
    path.write_text(json.dumps(forged(json.loads(path.read_text()), ("certificate", name), value)))
    with pytest.raises(BoltdpError):
        Model.load(path).verify()


@pytest.mark.parametrize(("name", "value"), [("epsilon", 1.5), ("delta", 1e-6)])
def test_a_claim_of_less_than_is_true_holds(name: str, value: float) -> None:
    record = model(2, BOLTON).to_dict()
    Model.from_dict(forged(record, ("certificate", name), value)).verify()


@pytest.mark.parametrize(("factor", "enough"), [(1.0, True), (3.0, True), (0.5, False)])
def test_more_noise_than_is_needed_verifies_and_less_does_not(factor: float, enough: bool, tmp_path: Path) -> None:
    """A certificate that is written by its own rules throughout: only the noise itself can tell."""
    honest = plan(BOLTON, rows=1000, dims=3, classes=2)
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
    schema = Schema("y", (0, 1), (Numeric("a", 0, 1),))
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
    schema = Schema("y", tuple(range(classes)), made.schema.columns)
    with pytest.raises(ParameterError, match=f"the certificate must be for {classes} classes"):
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
