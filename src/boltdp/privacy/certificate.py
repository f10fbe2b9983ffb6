"""What was promised and how it was computed: public numbers only, enough to recompute the sensitivity and the noise."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from boltdp import __version__
from boltdp.errors import BoltdpError, ParameterError, whole_number
from boltdp.privacy.algorithms import ACCOUNTANTS, FAULTS, RIVALS, Account, Algorithm, Analysis
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.noise import Budget, Mechanism
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.schedules import Schedule
from boltdp.privacy.selection import Selection, read_selection, selection_record
from boltdp.privacy.sensitivity import Sensitivity, check_steps
from boltdp.privacy.standardization import Standardized, read_standardized, standardized

Randomness = Literal["operating system", "seeded", "none"]

#: Why a model made in a certain way has no privacy guarantee.
SEEDED = "the noise came from a seed, so that whoever knows it can take the noise away"
NOISELESS = "no noise was added"


class CertificateError(BoltdpError):
    """A certificate does not add up."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The record of one release of `models` models that were trained on the same rows with the same recipe."""

    recipe: Recipe
    budget: Budget | None  #: of all models together; None: noiseless
    models: int
    analysis: Analysis
    sensitivity: Sensitivity | None
    mechanism: Mechanism | None  #: of each model, added to its weights at the end
    randomness: Randomness
    reasons: tuple[str, ...]  #: why the result is not private; empty for a private one
    algorithm: Algorithm = "bolton"
    training_noise: Mechanism | None = None  #: of each model, inside its training
    standardization: Standardized | None = None  #: what was released before training to centre the rows, if it was
    selection: Selection | None = None  #: how it was chosen among candidates, if it was
    neighbours: str = "replace one row at its position; the number of rows is public, and no position depends on values"
    version: str = __version__

    def __post_init__(self) -> None:
        whole_number(self.models, "models", least=1)
        if self.algorithm not in ACCOUNTANTS:
            raise ParameterError(f"algorithm must be one of {', '.join(ACCOUNTANTS)}, got {self.algorithm!r}")
        if self.selection is not None and self.selection.training_rows != self.recipe.rows:
            raise ParameterError(
                f"a model chosen so must be trained on {self.selection.training_rows} rows, got {self.recipe.rows}"
            )

    @property
    def training_budget(self) -> Budget | None:
        """What is left of the budget for training and for choosing; None: noiseless."""
        return _left(self.budget, self.standardization)

    @property
    def private(self) -> bool:
        """Whether the privacy claim holds."""
        return not self.reasons

    def promise(self, *, planned: bool = False) -> str:
        """The claim in plain words, or what it will be of a model that is only planned."""
        if not self.private or self.budget is None:
            return f"NOT PRIVATE: {'; '.join(self.reasons)}."
        epsilon, delta = self.budget.epsilon, self.budget.delta
        rows = self.recipe.rows if self.selection is None else self.selection.rows
        kind = f"(epsilon = {epsilon:g}, delta = {delta:g})" if delta else f"epsilon = {epsilon:g}"
        likelier = math.exp(epsilon) if epsilon < 700 else math.inf
        seen = "would be seen of the model is" if planned else "is seen of this model was"
        claim = (
            f"Differentially private with {kind}: whatever {seen} at most {likelier:.3g} times as likely"
            f"{f', plus {delta:g},' if delta else ''} as if any one of the {rows:,} rows were another."
        )
        if self.algorithm in RIVALS:
            claim += " It holds for real-valued noise in the updates, which is drawn in floating point."
        if epsilon > 10:
            claim += " Caution: an epsilon above 10 promises little."
        if delta * rows >= 1:
            claim += (
                f" Caution: a delta of 1/rows or more allows to publish a whole row; keep it far below {1 / rows:.1g}."
            )
        return claim

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values; floats keep every bit."""
        loss, recipe = self.recipe.loss, self.recipe
        return {
            "private": self.private,
            "reasons": list(self.reasons),
            "neighbours": self.neighbours,
            "epsilon": self.budget.epsilon if self.budget else None,
            "delta": self.budget.delta if self.budget else None,
            "models": self.models,
            "algorithm": self.algorithm,
            "loss": {
                "name": loss.name,
                **dataclasses.asdict(loss),  # type: ignore[call-overload]
                "lipschitz": loss.lipschitz,
                "smoothness": loss.smoothness,
            },
            "rows": recipe.rows,
            "dims": recipe.dims,
            "batch_size": recipe.batch_size,
            "batches": recipe.batches,
            "passes": recipe.passes,
            "schedule": {**dataclasses.asdict(recipe.schedule), "cap": _finite(recipe.schedule.cap)},
            "regularization": recipe.regularization,
            "radius": _finite(recipe.radius),
            "averaging": recipe.averaging,
            "permutation": recipe.permutation,
            "analysis": self.analysis,
            "sensitivity": dataclasses.asdict(self.sensitivity) if self.sensitivity else None,
            "mechanism": dataclasses.asdict(self.mechanism) if self.mechanism else None,
            "training_noise": dataclasses.asdict(self.training_noise) if self.training_noise else None,
            "randomness": self.randomness,
            "standardization": dataclasses.asdict(self.standardization) if self.standardization else None,
            "selection": selection_record(self.selection) if self.selection else None,
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Certificate:
        """Read what `to_dict` wrote; derived numbers that don't follow from the rest are refused."""
        try:
            certificate = cls._read(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CertificateError(f"the certificate cannot be read: {_describe(error)}") from error
        expected = certificate.to_dict()
        unknown = [key for key in record if key not in expected]
        if unknown:
            raise CertificateError(f"the certificate has an entry {unknown[0]!r} that this boltdp does not know")
        for key, value in expected.items():
            if key not in record:
                raise CertificateError(f"the certificate cannot be read: {key!r} is missing")
            if record[key] != value:
                raise CertificateError(f"the certificate says {key} = {record[key]!r}, where {value!r} follows from it")
        return certificate

    @classmethod
    def _read(cls, record: dict[str, Any]) -> Certificate:
        recipe = Recipe(
            loss=_read_loss(record["loss"]),
            dims=record["dims"],
            rows=record["rows"],
            batch_size=record["batch_size"],
            passes=record["passes"],
            schedule=Schedule(**{**record["schedule"], "cap": _infinite(record["schedule"]["cap"])}),
            regularization=record["regularization"],
            radius=_infinite(record["radius"]),
            averaging=record["averaging"],
            permutation=record["permutation"],
        )
        noise, inside, distance = record["mechanism"], record["training_noise"], record["sensitivity"]
        return cls(
            recipe=recipe,
            budget=None if record["epsilon"] is None else Budget(record["epsilon"], record["delta"]),
            models=record["models"],
            analysis=record["analysis"],
            sensitivity=Sensitivity(**distance) if distance else None,
            mechanism=Mechanism(**noise) if noise else None,
            algorithm=record["algorithm"],
            training_noise=Mechanism(**inside) if inside else None,
            randomness=record["randomness"],
            reasons=tuple(record["reasons"]),
            standardization=read_standardized(record["standardization"]) if record["standardization"] else None,
            selection=read_selection(record["selection"]) if record["selection"] else None,
            neighbours=record["neighbours"],
            version=record["version"],
        )


def certify(
    recipe: Recipe,
    budget: Budget | None,
    *,
    algorithm: Algorithm = "bolton",
    models: int = 1,
    analysis: Analysis = "proved",
    randomness: Randomness = "operating system",
    reasons: tuple[str, ...] = (),
    standardization: Standardized | None = None,
    selection: Selection | None = None,
    stated: Mechanism | None = None,
) -> Certificate:
    """Compute the noise of a release from public numbers.

    `reasons` are faults of the claim that lie outside the privacy core, such as classes read from the data. `stated`
    is the noise of an existing certificate: it stays if it is one of those that are enough.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> certify(recipe, Budget(1.0)).mechanism.kind
    'spherical'
    """
    if budget is None:
        check_steps(recipe)
        account, randomness = Account(reasons=(NOISELESS,)), "none"
    else:
        account = ACCOUNTANTS[algorithm](
            recipe, model_budget(budget, standardization, selection).split(models), analysis, stated
        )
    seeded = () if budget is None or randomness == "operating system" else (SEEDED,)
    return Certificate(
        recipe=recipe,
        budget=budget,
        models=models,
        analysis=analysis,
        sensitivity=account.sensitivity,
        mechanism=account.mechanism,
        randomness=randomness,
        reasons=(*reasons, *seeded, *account.reasons),
        algorithm=algorithm,
        training_noise=account.training_noise,
        standardization=standardization,
        selection=selection,
    )


def model_budget(whole: Budget, standardization: Standardized | None, selection: Selection | None) -> Budget:
    """What all models may spend together: standardization takes its share first, then comes what choosing costs.

    >>> model_budget(Budget(1.0), None, None)
    Budget(epsilon=1.0, delta=0.0)
    """
    left = _left(whole, standardization)
    assert left is not None
    return left if selection is None else selection.model_budget(left)


def verify(certificate: Certificate) -> None:
    """Recompute everything the certificate claims from its public numbers; raise CertificateError on a mismatch.

    Noise that is enough, but longer than what would be chosen today, is none.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> verify(certify(recipe, Budget(1.0)))
    """
    known = {SEEDED, NOISELESS, *FAULTS}
    moments = certificate.standardization
    if moments is not None:
        moments = standardized(
            share=moments.share,
            moments=moments.moments,
            features=moments.features,
            squared=moments.squared,
            radius=moments.radius,
            whole=certificate.budget,
            stated=moments.mechanism,
        )
    expected = certify(
        certificate.recipe,
        certificate.budget,
        algorithm=certificate.algorithm,
        models=certificate.models,
        analysis=certificate.analysis,
        randomness=certificate.randomness,
        reasons=tuple(reason for reason in certificate.reasons if reason not in known),
        standardization=moments,
        selection=certificate.selection,
        stated=certificate.training_noise or certificate.mechanism,
    )
    for field in (
        "standardization",
        "sensitivity",
        "mechanism",
        "training_noise",
        "reasons",
        "randomness",
        "neighbours",
    ):
        claimed, recomputed = getattr(certificate, field), getattr(expected, field)
        if not _agree(claimed, recomputed):
            raise CertificateError(
                f"the certificate claims {field} {claimed}, but {recomputed} follows from its numbers"
            )


def _left(whole: Budget | None, standardization: Standardized | None) -> Budget | None:
    return whole if whole is None or standardization is None else standardization.left(whole)


def _agree(claimed: object, recomputed: object) -> bool:
    """Equal, floats up to the last digits, in which mathematical libraries differ between machines."""
    if dataclasses.is_dataclass(claimed) and type(claimed) is type(recomputed):
        names = [field.name for field in dataclasses.fields(claimed)]
        return all(_agree(getattr(claimed, name), getattr(recomputed, name)) for name in names)
    if isinstance(claimed, float) and isinstance(recomputed, float):
        return math.isclose(claimed, recomputed, rel_tol=1e-9)
    return claimed == recomputed


def _read_loss(record: dict[str, Any]) -> Loss:
    match record["name"]:
        case "logistic":
            return Logistic()
        case "huber":
            return HuberSVM(width=record["width"])
        case "multinomial":
            return Multinomial(classes=record["classes"])
        case name:
            raise ValueError(f"unknown loss {name!r}")


def _finite(value: float) -> float | None:
    """JSON has no infinity: it is written as null."""
    return None if value == math.inf else value


def _infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _describe(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
