"""A released model: weights, the schema that encodes rows for them, and the certificate. All of it may be shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from boltdp.arraytypes import Doubles, PackedRows
from boltdp.data.schema import Schema
from boltdp.data.values import Value
from boltdp.engines.base import Engine, encoded
from boltdp.errors import BoltdpError, ParameterError
from boltdp.export import linear
from boltdp.files import replacing
from boltdp.privacy import certificate as certificates
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.release import could_be_released

FORMAT = "boltdp-model"
FORMAT_VERSION = 2


class ModelFileError(BoltdpError):
    """A model file that cannot be read."""


@dataclass(frozen=True, eq=False)
class Model:
    """One weight vector for two classes, one a class for more. Made by `train`, kept as JSON."""

    schema: Schema
    weights: Doubles
    certificate: Certificate
    trained_where: str | None = None  #: where the rows were while it was trained, in words; certified by nobody

    def __post_init__(self) -> None:
        certificate, classes, dims = self.certificate, len(self.schema.classes), self.schema.dims
        loss, models = certificate.problem.loss, certificate.models
        if models * loss.vectors != (1 if classes == 2 and loss.vectors == 1 else classes):
            raise ParameterError(f"the certificate must be for {classes} classes, got {models} models of {loss}")
        if self.weights.shape != (models * loss.vectors, dims):
            raise ParameterError(f"weights must have shape {(models * loss.vectors, dims)}, got {self.weights.shape}")
        if certificate.problem.dims != dims:
            raise ParameterError(f"the certificate must be for {dims} features, got {certificate.problem.dims}")
        moments, standardization = certificate.moments, self.schema.standardization
        paid = standardization is not None and standardization.source == "private"
        if paid != (moments is not None):
            raise ParameterError("the certificate must be about the standardization of the schema, if it was private")
        if moments is not None and (moments.features, moments.numbers, moments.clip_norm) != (
            self.schema.encoded_dims - self.schema.intercept,
            self.schema.numbers,
            self.schema.feature_clip_norm,
        ):
            raise ParameterError("the standardization of the certificate must be that of the schema's features")

    @classmethod
    def of_release(cls, schema: Schema, released: Doubles, certificate: Certificate) -> Model:
        """The model of released weights, of shape (models, vectors, dims)."""
        return cls(schema, released.reshape(-1, released.shape[-1]), certificate)

    @property
    def classes(self) -> tuple[Value, ...]:
        """The declared classes, in the order of the probabilities."""
        return self.schema.classes

    def margins(self, packed: PackedRows) -> Doubles:
        """<w, x> for each packed row and weight vector; rows longer than 1 are shortened as in training."""
        return unit_rows(packed) @ self.weights.T

    def choices(self, margins: Doubles) -> npt.NDArray[np.intp]:
        """The class index that wins for each row of margins."""
        chosen: npt.NDArray[np.intp] = np.argmax(margins, axis=1)
        return chosen if len(self.weights) > 1 else (margins[:, 0] > 0).astype(np.intp)

    def probabilities(self, margins: Doubles) -> Doubles:
        """The probability of each class; some losses tell none."""
        loss = self.certificate.problem.loss
        odds = loss.probabilities(margins)
        if odds is None:
            raise ParameterError(f"a model with the loss {loss.name!r} gives no probabilities; use its margins")
        if len(self.weights) == 1:
            odds = np.hstack([1.0 - odds, odds])
        # Where every one-vs-all model is sure of "no", all classes are equally likely.
        odds[odds.sum(axis=1) == 0] = 1.0
        shares: Doubles = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def score_batches(self, engine: Engine) -> Iterator[Doubles]:
        """Margins of the rows of `engine`, in their own order; the label need not be there."""
        return (self.margins(packed) for packed in encoded(engine, self.schema, label=False))

    def predict(self, engine: Engine) -> npt.NDArray[Any]:
        """The predicted class of each row, in order."""
        names = np.array(self.classes)
        chosen = [names[self.choices(margins)] for margins in self.score_batches(engine)]
        return np.concatenate(chosen) if chosen else names[:0]

    def to_sklearn(self) -> Any:
        """A plain LogisticRegression (one-vs-rest of them, for one-vs-all) or LinearSVC that needs no boltdp.

        It takes the columns in their own units: numbers, 0 or 1 for each category, the entries of a vector, in the
        order of the schema's feature names. It predicts what `predict` does for rows whose values are within the
        bounds; its probabilities are more extreme for the rows that are longer than the clip norm.
        """
        return linear.to_sklearn(self)

    def verify(self) -> None:
        """Recompute the certificate's claims and check that it is for these weights; raise on a mismatch."""
        certificates.verify(self.certificate)
        if not np.isfinite(self.weights).all():
            raise certificates.CertificateError("the weights must be finite numbers")
        problem = self.certificate.problem
        released = self.weights.reshape(self.certificate.models, problem.loss.vectors, problem.dims)
        if not could_be_released(released, self.certificate):
            raise certificates.CertificateError("the weights are not those that were released: they are off its grid")

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "private": self.certificate.private,
            "schema": self.schema.to_dict(),
            "weights": self.weights.tolist(),
            "certificate": self.certificate.to_dict(),
            "trained_where": self.trained_where,
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Model:
        """Read what `to_dict` wrote."""
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ModelFileError("this is not a boltdp model")
        if record.get("format_version") != FORMAT_VERSION:
            raise ModelFileError(
                f"the model has format version {record.get('format_version')}, this boltdp reads {FORMAT_VERSION}"
            )
        try:
            schema, weights = Schema.from_dict(record["schema"]), np.array(record["weights"], dtype=np.float64)
            certificate, private = record["certificate"], record["private"]
            where = None if record.get("trained_where") is None else str(record["trained_where"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the model cannot be read: {error}") from error
        if not isinstance(certificate, dict) or certificate.get("private") != private:
            raise certificates.CertificateError("the model says of its privacy what its certificate does not")
        return cls(schema, weights, Certificate.from_dict(certificate), trained_where=where)

    def save(self, path: str | Path) -> None:
        """Write the model aside, then rename it: an existing file is replaced whole or not at all."""
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        with replacing(path) as aside:
            aside.write_text(text, "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model file."""
        try:
            record = json.loads(Path(path).read_text("utf-8"), parse_constant=_refuse_constant)
        except OSError as error:
            raise ModelFileError(f"the model {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ModelFileError(f"the model {path} is not JSON") from error
        return cls.from_dict(record)


def unit_rows(packed: PackedRows) -> Doubles:
    """The features of packed rows, shortened to length 1 where they are longer.

    >>> unit_rows(np.array([[0, 3, 4], [1, 0.5, 0]], np.float32))
    array([[0.6, 0.8],
           [0.5, 0. ]])
    """
    rows = packed[:, 1:].astype(np.float64)
    rows /= np.maximum(1.0, np.sqrt(np.einsum("ij,ij->i", rows, rows)))[:, None]
    return rows


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
