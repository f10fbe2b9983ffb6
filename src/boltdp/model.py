"""A released model: weights, the schema that encodes rows for them, and the certificate. All of it is public."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from boltdp._array_types import Doubles, PackedRows
from boltdp._files.outputs import write_text
from boltdp._files.sealed import OUTSIDE, ModelFileError, add_digest, read_sealed_file
from boltdp.encoding.declared_values import Value
from boltdp.encoding.monotone import make_monotone, make_scoring_plan
from boltdp.encoding.plan import EncodingPlan
from boltdp.errors import ParameterError, show_value
from boltdp.kernel.feature_map import compute_scores, compute_scores_and_norms
from boltdp.privacy import certificate as certificates
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_counts import NoisyHistograms
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.events.objective_perturbation import MAX_CENTER
from boltdp.privacy.release_with_noise import is_on_grid, is_on_release_grid, round_to_release_grid
from boltdp.schema.schema import Schema
from boltdp.schema.target import Threshold

if TYPE_CHECKING:
    from typing_extensions import Self

    from boltdp.kernel.sparse_rows import SparseRows

__all__ = ["FORMAT", "FORMAT_VERSION", "Model", "ModelFileError", "Threshold"]

FORMAT = "boltdp-model"
FORMAT_VERSION = 4


#: The link of a model whose scores are corrected for clipped gradients.
CLIPPED_LINK = "clipped gradients"
#: The largest number of classes with which a trained model gets this link: docs/accuracy.md has the measurements.
MAX_LINKED_CLASSES = 3
#: The smallest and the largest share of a class that an intercept can start from.
CENTER_SHARES = (0.01, 0.99)


@dataclass(frozen=True, eq=False)
class Inference:
    """The matrices and the count released with the weights, from which coefficients get standard errors."""

    hessian: Doubles  #: the vector of `privacy.events.noisy_matrix.flatten_matrix`
    outer_products: Doubles | None = None  #: the same, of the gradients, for robust errors
    class_count: float | None = None  #: the noisy number of rows of the second class

    def to_dict(self) -> dict[str, Any]:
        outer = None if self.outer_products is None else self.outer_products.tolist()
        record = {"hessian": self.hessian.tolist(), "outer_products": outer, "class_count": self.class_count}
        return {name: value for name, value in record.items() if value is not None}

    @classmethod
    def from_dict(cls, record: Any) -> Inference:
        """Read the result of `to_dict`; raise a ModelFileError for anything else."""
        if not isinstance(record, dict) or not {"hessian"} <= record.keys() <= {f.name for f in fields(cls)}:
            raise ModelFileError("the inference must have a hessian, and at most outer_products and a class_count")
        vectors = {name: _read_weights([record[name]])[0] for name in record if name != "class_count"}
        count = record.get("class_count")
        if count is not None and (type(count) is not float or not math.isfinite(count)):
            raise ModelFileError("the class_count must be a number, written with a decimal point")
        return cls(**vectors, class_count=count)

    def get_vector(self, matrix: str) -> Doubles | None:
        """Return the vector of the matrix that a certificate names `matrix`; None if it was not released."""
        return self.hessian if matrix == "hessian" else self.outer_products


def compute_penalty_center(class_count: float | None, schema: Schema, *, rows: int) -> Doubles | None:
    """Return the weights that the penalty is centred at: an intercept by the share of the second class, if counted.

    Proof: objective_perturbation.md 8
    """
    if class_count is None:
        return None
    low, high = CENTER_SHARES
    share = min(max(class_count / rows, low), high)
    center = np.zeros((1, schema.dims))
    center[0, -1] = min(max(math.log(share / (1.0 - share)) / schema.intercept_value, -MAX_CENTER), MAX_CENTER)
    return center


def can_correct_clipping(certificate: Certificate) -> bool:
    """Return whether scores can be corrected for clipped gradients, by public numbers of the training.

    Only if there were any, and all rows with the same features and class have gradients of the same length: the rows
    of the other classes in a one-vs-all model, with weights, do not.

    Proof: noisy_gradient_descent.md 4
    """
    problem, training = certificate.problem, certificate.training
    weighted = problem.class_weights is not None and certificate.model_count > 1
    known = problem.loss.correct_clipping(np.zeros((1, problem.loss.vector_count)), np.ones((1, 1))) is not None
    return training.gradient_clip is not None and not weighted and known


@dataclass(frozen=True, eq=False)
class Model:
    """Released weights, one row per weight vector, with the schema that encodes rows for them and the certificate."""

    schema: Schema
    weights: Doubles
    certificate: Certificate
    trained_where: str | None = None  #: where the rows were during training, in words; not certified
    threshold: float | None = None  #: the second of two classes is predicted where its probability exceeds this
    unusable_labels: float | None = None  #: the noisy number of rows whose label was missing or not declared
    inference: Inference | None = None  #: what standard errors follow from, if it was asked for
    link: str | None = None  #: CLIPPED_LINK, if scores are corrected for clipped gradients

    def __repr__(self) -> str:
        budget, target = self.certificate.budget, self.schema.target
        guarantee = budget.describe() if budget is not None and self.certificate.private else "not private"
        declared = ", ".join(f"{name}={show_value(value)}" for name, value in target.to_dict().items())
        ignored = f"rows with an unknown {target.key} are ignored"
        return f"Model({declared}, features={self.schema.dims}, {guarantee}; {ignored})"

    def __post_init__(self) -> None:
        certificate, target, dims = self.certificate, self.schema.target, self.schema.dims
        loss, models = certificate.problem.loss, certificate.model_count
        if models * loss.vector_count != target.count_weight_vectors(loss):
            raise ParameterError(f"the certificate must be for {target.describe()}, got {models} models of {loss}")
        if self.weights.shape != (models * loss.vector_count, dims):
            raise ParameterError(
                f"weights must have shape {(models * loss.vector_count, dims)}, got {self.weights.shape}"
            )
        if certificate.problem.dims != dims:
            raise ParameterError(f"the certificate must be for {dims} features, got {certificate.problem.dims}")
        class_weights = certificate.problem.class_weights
        if class_weights is not None:
            target.resolve_class_weights(class_weights)  # raises an error if the classes differ
        moments, standardization = certificate.moments, self.schema.standardization
        paid = standardization is not None and standardization.source == "private"
        if paid != (moments is not None):
            raise ParameterError("the certificate must be about the standardization of the schema, if it was private")
        if isinstance(moments, NoisyMoments) and (moments.features, moments.numbers, moments.clip_norm) != (
            self.schema.column_feature_count,
            self.schema.numeric_feature_count,
            self.schema.feature_clip_norm,
        ):
            raise ParameterError("the standardization of the certificate must be that of the schema's features")
        if isinstance(moments, NoisyHistograms) and moments.releases != len(self.schema.columns):
            raise ParameterError("the certificate must be about a histogram of each column of the schema")
        if self.schema.has_private_curves and not isinstance(moments, NoisyHistograms):
            raise ParameterError("the certificate must be about the histograms that the curves were found from")
        if certificate.problem.person_rows != self.schema.max_rows_per_person:
            raise ParameterError(
                f"the certificate must be for max_rows_per_person {self.schema.max_rows_per_person} of the schema, "
                f"got {certificate.problem.person_rows}"
            )
        if certificate.draft != self.schema.spent:
            raise ParameterError("the certificate must have what the schema has spent, and no other draft of one")
        if certificate.budget is not None and (target == target.without_range()) != (
            certificate.label_quantiles is None
        ):
            raise ParameterError("the certificate must be about the range of the target, if it was found privately")
        if target != target.adapt_to_loss(loss):
            raise ParameterError(f"the target must be read as the loss {loss.name!r} reads it, and is not")
        if (self.unusable_labels is None) != (certificate.unusable_label_count is None):
            raise ParameterError("the model must have the count of unusable labels that its certificate states")
        if self.schema.downweights != certificate.problem.downweighted:
            raise ParameterError("the schema and the certificate must both downweight long rows, or neither")
        self._check_inference()
        # A row's weight is not known where it is scored, nor then how much its gradient was clipped.
        known = self.schema.weight is None and can_correct_clipping(certificate)
        if self.link is not None and (self.link != CLIPPED_LINK or not known):
            raise ParameterError(
                f"the link must be {CLIPPED_LINK!r}, of a model that can have it, got {show_value(self.link)}"
            )
        if self.threshold is not None:
            object.__setattr__(self, "threshold", target.resolve_threshold(self.threshold, loss))

    def _check_inference(self) -> None:
        """Raise a ParameterError unless the model has the matrices and the count that its certificate states."""
        stated, inference = {event.matrix: event for event in self.certificate.matrices}, self.inference
        for name in ("hessian", "outer products"):
            vector = None if inference is None else inference.get_vector(name)
            event = stated.get(name)
            if (None if vector is None else len(vector)) != (None if event is None else event.dimensions):
                raise ParameterError(f"the model must have the {name} that its certificate states, and no other")
        count = None if inference is None else inference.class_count
        if (count is None) != (self.certificate.class_count is None):
            raise ParameterError("the model must have the count of a class that its certificate states")

    @classmethod
    def from_release(
        cls,
        schema: Schema,
        released: Doubles,
        certificate: Certificate,
        unusable_labels: float | None = None,
        inference: Inference | None = None,
    ) -> Self:
        """Make a model from released weights, an array of shape (models, weight vectors per model, features).

        They are changed where the schema declares monotone columns: this is post-processing, and costs no privacy.
        """
        weights = released.reshape(-1, released.shape[-1])
        if schema.is_monotone:
            weights = round_to_release_grid(make_monotone(schema.encoding, weights[0]), certificate)[np.newaxis]
        few = schema.weight is None and schema.target.class_count <= MAX_LINKED_CLASSES
        link = CLIPPED_LINK if few and can_correct_clipping(certificate) else None
        return cls(schema, weights, certificate, unusable_labels=unusable_labels, inference=inference, link=link)

    @property
    def classes(self) -> tuple[Value, ...]:
        """The declared classes, in the order of the probabilities."""
        return self.schema.classes

    @property
    def margin_threshold(self) -> float:
        """The margin above which the second of two classes is predicted; 0 without a threshold."""
        return 0.0 if self.threshold is None else self.certificate.problem.loss.invert_link(self.threshold)

    @property
    def without_weight(self) -> Self:
        """The model without the weights of rows, which only training reads: evaluations count all rows alike."""
        return replace(self, schema=replace(self.schema, weight=None))

    def with_threshold(self, threshold: Threshold | None) -> Self:
        """Return a copy that predicts the second of two classes if its probability exceeds `threshold`; None: 0.5.

        "prior" is the share of that class in the schema. The weights do not change, so this costs no privacy; but
        no certificate covers a threshold that was chosen by looking at private rows.
        """
        return replace(self, threshold=threshold)  # type: ignore[arg-type]

    def margins(self, packed: PackedRows | SparseRows) -> Doubles:
        """Compute <w, x> for each packed row and weight vector; rows are clipped to norm 1 as in training.

        The features of monotone columns are left out of the norm: see `encoding.monotone.make_scoring_plan`. A link
        corrects these scores, so that those of `probabilities` and of thresholds follow from the loss alone.
        """
        plan, weights = self.scoring
        if self.link is None:
            return compute_scores(packed, weights, plan.feature_map)
        return self.correct_scores(*compute_scores_and_norms(packed, weights, plan.feature_map))

    def correct_scores(self, scores: Doubles, norms: Doubles) -> Doubles:
        """Return the margins of rows with these norms, at most 1, whose products with the weights are `scores`."""
        if self.link is None:
            return scores
        corrected = self.certificate.problem.loss.correct_clipping(scores, np.outer(norms, self.slope_norms))
        assert corrected is not None  # checked when the model was made
        return corrected

    @cached_property
    def slope_norms(self) -> tuple[float, ...]:
        """The norm in clip norms, for each class or all, of the gradient of a row of norm 1 with a slope of 1."""
        clip, weights = self.certificate.training.gradient_clip, self.certificate.problem.class_weights
        return () if self.link is None or clip is None else tuple(weight / clip for weight in weights or (1.0,))

    @cached_property
    def scoring(self) -> tuple[EncodingPlan, Doubles]:
        """The plan and the weights by which rows are scored."""
        return make_scoring_plan(self.schema.encoding, self.weights)

    def predict_margins(self, margins: Doubles) -> npt.NDArray[Any]:
        """Return the predicted class, or number, for each row of margins."""
        return self.schema.target.predict(margins, self.margin_threshold, self.certificate.problem.loss)

    def predict_indices(self, margins: Doubles) -> npt.NDArray[np.intp]:
        """Return the index of the predicted class for each row of margins."""
        return self.schema.target.require_classes().predict_indices(margins, self.margin_threshold)

    def probabilities(self, margins: Doubles) -> Doubles:
        """Compute the probability of each class; not all losses have probabilities."""
        return self.schema.target.probabilities(margins, self.certificate.problem.loss)

    def verify(self) -> None:
        """Recompute the certificate's claims and check that it is for these weights; raise on a mismatch."""
        certificates.verify(self.certificate)
        if not np.isfinite(self.weights).all():
            raise certificates.CertificateError("the weights must be finite numbers")
        problem = self.certificate.problem
        released = self.weights.reshape(self.certificate.model_count, problem.loss.vector_count, problem.dims)
        if not is_on_release_grid(released, self.certificate):
            raise certificates.CertificateError("the weights are not those that were released: they are off its grid")
        if self.schema.is_monotone and (make_monotone(self.schema.encoding, self.weights[0]) != self.weights[0]).any():
            raise certificates.CertificateError("the weights must follow monotone columns as declared, and do not")
        for event in self.certificate.matrices:
            vector = None if self.inference is None else self.inference.get_vector(event.matrix)
            if event.noise is not None and vector is not None and not is_on_grid(vector, event.noise):
                raise certificates.CertificateError(f"the {event.matrix} is not the released one: it is off its grid")
        quantiles = self.certificate.label_quantiles
        if quantiles is not None and not self.schema.target.is_range_on_bins(quantiles.bins):
            raise certificates.CertificateError("the range of the target is not one that was released")

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "private": self.certificate.private,
            "schema": self.schema.to_dict(),
            "weights": self.weights.tolist(),
            "certificate": self.certificate.to_dict(),
            "trained_where": self.trained_where,
            **{name: value for name in _OPTIONAL_KEYS if (value := getattr(self, name)) is not None},
            **({} if self.inference is None else {"inference": self.inference.to_dict()}),
            **({} if self.link is None else {"link": self.link}),
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """Make a model from the result of `to_dict`; raise a ModelFileError for anything else."""
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ModelFileError("this is not a boltdp model")
        version = record.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            raise ModelFileError(
                f"the model has format version {show_value(version)}, this boltdp reads {FORMAT_VERSION}",
                hint="models of other builds must be trained again",
            )
        for key in _REQUIRED_KEYS:
            if key not in record:
                raise ModelFileError(f"the model cannot be read: {key!r} is missing")
        for key in record:
            if key not in (*_REQUIRED_KEYS, *_OPTIONAL_KEYS, "inference", "link"):
                raise ModelFileError(f"the model has an entry {show_value(key)} that this boltdp does not know")
        private, certificate = record["private"], record["certificate"]
        if not isinstance(certificate, dict) or not isinstance(private, bool) or certificate.get("private") != private:
            raise certificates.CertificateError("the model states another privacy than its certificate")
        try:
            schema, weights = Schema.from_dict(record["schema"]), _read_weights(record["weights"])
            where = record["trained_where"]
            if where is not None and not isinstance(where, str):
                raise ValueError("the model must say in words where it was trained")
            for key, name in _OPTIONAL_KEYS.items():
                if key in record and (type(record[key]) is not float or not math.isfinite(record[key])):
                    raise ValueError(f"its {name} must be a number, written with a decimal point")
            given: dict[str, Any] = {key: record.get(key) for key in _OPTIONAL_KEYS}
            if "inference" in record:
                given["inference"] = Inference.from_dict(record["inference"])
            if "link" in record:
                if not isinstance(record["link"], str):
                    raise ValueError("its link must be a text")
                given["link"] = record["link"]
            return cls(schema, weights, Certificate.from_dict(certificate), where, **given)
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"the model cannot be read: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the model with its digest to `path`, atomically."""
        write_text(path, json.dumps(add_digest(self.to_dict()), indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model file; raise an error if it was changed after it was written."""
        return cls.from_file_record(read_sealed_file(path))

    @classmethod
    def from_file_record(cls, record: dict[str, Any]) -> Self:
        """Make a model from the JSON of a model file, whose digest was checked already."""
        model = cls.from_dict({key: value for key, value in record.items() if key not in OUTSIDE})
        # A schema can be declared in several ways; a file must have its canonical form.
        if json.dumps(record["schema"]) != json.dumps(model.schema.to_dict()):
            raise ModelFileError("the schema in the model must be written as boltdp writes it")
        return model


_REQUIRED_KEYS = ("format", "format_version", "private", "schema", "weights", "certificate", "trained_where")
_OPTIONAL_KEYS = {"threshold": "threshold", "unusable_labels": "count of unusable labels"}


def _read_weights(rows: Any) -> Doubles:
    """Convert the weights of a file, lists of floats of equal length, to an array; raise a ModelFileError otherwise."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise ModelFileError("the weights must be lists of numbers")
    if any(len(row) != len(rows[0]) for row in rows) or any(type(one) is not float for row in rows for one in row):
        raise ModelFileError("the weights must be lists of as many numbers each, written with a decimal point")
    weights: Doubles = np.array(rows, dtype=np.float64)
    if not np.isfinite(weights).all():
        raise ModelFileError("the weights must be finite numbers")
    return weights
