"""What a user may ask for. What is not asked for is None, and chosen from public numbers before any row is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from boltdp.context import Context, OnBadRow, Progress
from boltdp.errors import ParameterError, real_number, whole_number
from boltdp.losses import LOSSES, Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.noisy_moments import Moments
from boltdp.privacy.events.output_perturbation import Analysis, check_analysis
from boltdp.privacy.release import Randomness
from boltdp.privacy.training_problem import Averaging, Permutation
from boltdp.schema.target import ClassWeights, Target

Multiclass = Literal["multinomial", "one-vs-all"]
ScheduleName = Literal["auto", "constant", "decreasing", "square-root", "strongly-convex", "strongly-convex-constant"]
Standardize = Literal["auto", "none", "private"]

#: What only some algorithms have. Each says which of these it takes, and the others are refused.
OPTIONAL = (
    "passes",
    "batch_size",
    "schedule",
    "step_size",
    "gradient_clip",
    "exponent",
    "radius",
    "averaging",
    "permutation",
    "partitions",
    "analysis",
)
#: Of these, what is as good as not asked for: the word leaves the choice to the algorithm, or all of them do so anyway.
NEUTRAL = {"schedule": "auto", "analysis": "proved"}

_NUMBERS = (
    "epsilon",
    "delta",
    "loss_parameter",
    "regularization",
    "step_size",
    "gradient_clip",
    "exponent",
    "radius",
    "standardize_share",
)
_WHOLE_NUMBERS = ("passes", "batch_size", "partitions", "curves", "seed", "noise_seed")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that may be chosen about a training.

    >>> Settings(epsilon=1.0, passes=10).given
    ('passes',)
    """

    epsilon: float | None  #: None: noiseless
    delta: float = 0.0
    algorithm: str = "auto"
    loss: str = "auto"  #: the logistic loss, with a margin if the algorithm is left to choose too and there is noise
    loss_parameter: float | None = None  #: of a loss that has one
    multiclass: Multiclass = "multinomial"  #: a loss without a multinomial form is always one-vs-all
    regularization: float | None = None  #: lambda
    class_weights: ClassWeights | None = None  #: what the losses of each class's rows are multiplied by
    passes: int | None = None
    batch_size: int | None = None
    schedule: ScheduleName = "auto"
    step_size: float | None = None  #: eta of the constant schedules
    gradient_clip: float | None = None  #: C of noisy gradient descent
    exponent: float | None = None  #: c of the decreasing and square-root schedules
    radius: float | None = None  #: R of the ball in which the weights are kept
    averaging: Averaging | None = None
    permutation: Permutation | None = None
    partitions: int | None = None  #: P: parts of the rows that are trained on apart, and averaged
    analysis: Analysis = "proved"
    curves: int | None = None  #: steps of each number's curve, where the schema declares none
    standardize: Standardize = "auto"  #: "private" centres the features by noisy means of all rows
    standardize_share: float | None = None  #: the part of the budget that pays for it
    standardize_moments: Moments = "mean"  #: "squares" scales the features too, "mean" only centres them
    seed: int | None = None  #: of the permutation, which is public
    noise_seed: int | None = None  #: for tests and research: the model is then not private

    @property
    def budget(self) -> Budget | None:
        """Epsilon and delta; None: noiseless."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)

    @property
    def given(self) -> tuple[str, ...]:
        """What was asked for of that which only some algorithms have."""
        return tuple(name for name in OPTIONAL if getattr(self, name) not in (None, NEUTRAL.get(name)))

    def without(self, *names: str) -> Settings:
        """The same, but not asking for some of what only some algorithms have.

        >>> Settings(epsilon=1.0, passes=5, schedule="constant").without("passes", "schedule").given
        ()
        """
        changes: dict[str, Any] = {name: NEUTRAL.get(name) for name in names}
        return replace(self, **changes)

    def context(
        self,
        *,
        on_bad_row: OnBadRow = "neutral",
        progress: Progress | None = None,
        threads: int | None = None,
    ) -> Context:
        """The context of a run with these seeds, or with the randomness of the operating system.

        Threads are as many as there are processors, unless a number is given.

        >>> Settings(epsilon=1.0, seed=7).context().seed
        7
        """
        context = Context(randomness=Randomness(self.noise_seed), on_bad_row=on_bad_row, progress=progress)
        given: dict[str, Any] = {"seed": self.seed, "threads": threads}
        return replace(context, **{name: value for name, value in given.items() if value is not None})

    def choose_loss(self, target: Target) -> tuple[Loss, int]:
        """The loss of one model that predicts `target`, and the number of models.

        >>> from boltdp.schema.target import Classes
        >>> digits = Classes("digit", tuple(range(10)))
        >>> Settings(epsilon=1.0).choose_loss(digits), Settings(epsilon=1.0, loss="huber").choose_loss(digits)
        ((Multinomial(classes=10), 1), (HuberSVM(width=0.1), 10))
        """
        if self.loss not in ("auto", *loss_names()):
            raise ParameterError(f"loss must be one of auto, {', '.join(loss_names())}, got {self.loss!r}")
        default = target.default_loss(plain=self.algorithm != "auto" or self.epsilon is None)
        kind: Any = LOSSES[default if self.loss == "auto" else self.loss]
        try:
            loss: Loss = kind() if self.loss_parameter is None else kind(self.loss_parameter)
        except TypeError:
            raise ParameterError(
                f"loss_parameter must not be given for the loss {self.loss!r}, which has none"
            ) from None
        loss = target.adapt_loss(loss, joint=self.multiclass == "multinomial")
        return loss, target.count_models(loss)

    def resolve_class_weights(self, target: Target) -> Settings:
        """The same with class weights as numbers, in the order of the classes, the largest of them 1.

        >>> from boltdp.schema.target import Classes
        >>> target = Classes("sick", ("no", "yes"), prior=(0.8, 0.2))
        >>> Settings(epsilon=1.0, class_weights="balanced").resolve_class_weights(target).class_weights
        (0.25, 1.0)
        """
        if self.class_weights is None:
            return self
        return replace(self, class_weights=target.resolve_class_weights(self.class_weights))

    def check(self) -> None:
        """Refuse words that are none of those which a setting allows, and what is no number where one must be.

        >>> Settings(epsilon=1.0, multiclass="both").check()
        Traceback (most recent call last):
        boltdp.errors.ParameterError: multiclass must be one of multinomial, one-vs-all, got 'both'
        """
        named = {"multiclass": Multiclass, "standardize": Standardize, "schedule": ScheduleName}
        for name, allowed in named.items():
            if getattr(self, name) not in get_args(allowed):
                words = ", ".join(get_args(allowed))
                raise ParameterError(f"{name} must be one of {words}, got {getattr(self, name)!r}")
        check_analysis(self.analysis)
        for name in _NUMBERS:
            if getattr(self, name) is not None:
                real_number(getattr(self, name), name)
        for name in _WHOLE_NUMBERS:
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name, least=0)


def loss_names() -> tuple[str, ...]:
    """The losses that tell two classes apart, by which they are asked for.

    >>> "logistic" in loss_names()
    True
    """
    return tuple(name for name, kind in LOSSES.items() if getattr(kind, "vectors", None) == 1)
