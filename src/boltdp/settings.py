"""The settings of a training. Those that are None are chosen from public numbers before any row is read."""

# ruff: noqa: RUF009 (`option` makes a field)

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, get_args, get_origin, get_type_hints

from boltdp.errors import ParameterError, check_number, check_whole_number, show_value
from boltdp.losses import LOSSES, Loss
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Analysis
from boltdp.privacy.release_with_noise import Randomness
from boltdp.privacy.sgd_recipe import Averaging, Permutation
from boltdp.run_context import Context
from boltdp.schema.target import ClassWeights, Target, Threshold

Multiclass = Literal["multinomial", "one-vs-all"]
ScheduleName = Literal["auto", "constant", "decreasing", "square-root", "strongly-convex", "strongly-convex-constant"]
Standardize = Literal["auto", "none", "private"]
StandardizeMoments = Literal["auto", "mean", "squares", "histograms"]
Interactions = Literal["auto", "none", "numbers"]
Group = Literal["Privacy", "Model", "Algorithm", "Standardizing", "Research and tests"]


_BINARY_LOSSES = tuple(name for name, kind in LOSSES.items() if getattr(kind, "vector_count", None) == 1)


@dataclass(frozen=True, kw_only=True)
class Option:
    """The metadata of a setting that the command line, the estimators and grids use."""

    help: str
    group: Group
    usual: bool = False  #: whether `--help` shows it; `--help-all` shows all
    default_text: str | None = None  #: describes how a default of None is resolved
    metavar: str | None = None
    some_algorithms: bool = False  #: whether only algorithms that list it in `takes` have it
    tunable: bool = False  #: whether a grid may vary it
    parameter: str = "*"  #: its name in the estimators; "*": the same; "": none
    words: tuple[str, ...] = ()  #: the allowed values; filled in from a Literal
    kind: Literal["number", "whole number", "word", "flag", "other"] = "other"  #: filled in from the field's type
    nullable: bool = False  #: filled in from the field's type
    default: Any = None  #: filled in from the field

    def convert(self, value: Any, name: str) -> Any:
        """Convert the value of a setting to a plain Python value; raise a ParameterError if it is invalid."""
        if self.kind == "other" or (value is None and self.nullable):
            return value
        if self.kind == "whole number":
            return check_whole_number(value, name, least=0)
        if self.kind == "number":
            return check_number(value, name)
        if self.kind == "flag":
            if not isinstance(value, bool):
                raise ParameterError(f"{name} must be True or False, got {show_value(value)}")
            return value
        if not isinstance(value, str) or (self.words and value not in self.words):
            what = f"one of {', '.join(self.words)}" if self.words else "a word"
            raise ParameterError(f"{name} must be {what}, got {show_value(value)}")
        return str(value)

    def parse(self, text: str, name: str) -> Any:
        """Parse the value of a setting from text; raise a ParameterError about `name` if it is invalid."""
        read: Any = {"number": float, "whole number": int}.get(self.kind, str.strip)
        try:
            value = read(text)
        except ValueError:
            raise ParameterError(f"{name} must be a {self.kind}, got {text!r}") from None
        return self.convert(value, name)


def declare_option(help: str, *, default: Any = None, **facts: Any) -> Any:  # noqa: A002
    """Declare a field of Settings: make a dataclass field with its Option as metadata."""
    return field(default=default, metadata={"option": Option(help=help, **facts)})


_privacy = partial(declare_option, group="Privacy", usual=True)
_model = partial(declare_option, group="Model")
_algorithm = partial(declare_option, group="Algorithm", some_algorithms=True)
_standardizing = partial(declare_option, group="Standardizing")
_research = partial(declare_option, group="Research and tests")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a training. Options are declared here and nowhere else.

    >>> Settings(epsilon=1.0, passes=10).given_names
    ('passes',)
    """

    epsilon: float | None = _privacy("The privacy budget: smaller is more private.", default=MISSING)
    delta: float = _privacy("0 is pure differential privacy.", default=0.0)
    label_check: float = _privacy(
        "The share of epsilon that pays for a noisy count of rows whose label is missing or not declared, to warn of "
        "many; 0: none. Where rows are too few for it, nothing is spent.",
        default=0.01,
        metavar="SHARE",
        usual=False,
    )
    algorithm: str = _algorithm("Where noise is added.", default="auto", some_algorithms=False)
    loss: str = _model(
        "auto: margin, if the algorithm is auto, which does not take noisy-gd, and there is noise, else logistic; of a "
        "number: robust, which predicts a typical value, or, of declared counts with little noise, mean. mean predicts "
        "the mean between the bounds, quantile a quantile.",
        default="auto",
        words=("auto", *_BINARY_LOSSES),
        parameter="",
    )
    loss_parameter: float | None = _model(
        "; ".join(f"Of {name}: {kind.shape}" for name, kind in LOSSES.items() if kind.shape) + ".", parameter=""
    )
    multiclass: Multiclass = _model(
        "One model of all classes, by the loss's form for all of them, or one for each, which share the budget.",
        default="multinomial",
    )
    regularization: float | None = _model(
        "lambda of the term (lambda/2) ||w||^2, for encoded rows.", default_text="the algorithm's", tunable=True
    )
    class_weights: ClassWeights | None = _model(
        "For a rare class: the weight of the rows of each class, such as no=1,yes=8; balanced: 1 over its share in the "
        "schema's prior. Only the ratios matter. It costs no privacy.",
        usual=True,
        default_text="1 each",
        metavar="WEIGHTS",
        parameter="class_weight",
    )
    passes: int | None = _algorithm(
        "Passes over the rows.", default_text="10; noisy-gd: 40, or 26 to 200 for several classes at once", tunable=True
    )
    batch_size: int | None = _algorithm("Rows of an update.", default_text="50", tunable=True)
    schedule: ScheduleName = _algorithm(
        "How step sizes change; auto: strongly-convex with regularization, else constant.", default="auto", tunable=True
    )
    step_size: float | None = _algorithm(
        "Step of the constant schedules.", default_text="from rows, features and budget", tunable=True
    )
    gradient_clip: float | None = _algorithm(
        "Clip norm of the gradients of noisy-gd.",
        default_text="0.5; 0.4 for several classes at once, 0.7 where there is little noise",
        tunable=True,
    )
    exponent: float | None = _algorithm("c of decreasing and square-root steps.", default_text="0.5", tunable=True)
    radius: float | None = _model(
        "Maximum norm of the weights during training.",
        default_text="any",
        some_algorithms=True,
        tunable=True,
        parameter="max_norm",
    )
    averaging: Averaging | None = _algorithm(
        "Release the last weights, the average of all, or of the last ceil(ln T) of T updates.",
        default_text="last",
        tunable=True,
    )
    permutation: Permutation | None = _algorithm("Shuffle the rows once, or again for each pass.", default_text="once")
    partitions: int | None = _algorithm(
        "Of bolton: parts of the rows that are trained on separately, in parallel; their weights are averaged.",
        default_text="1",
    )
    analysis: Analysis = _research(
        "paper: the published sensitivities, for its figures; not private.", default="proved", some_algorithms=True
    )
    curves: int | None = _model(
        "Steps of each number's curve, where the schema declares none; 0: no curves.",
        default_text="as many as public numbers allow, if the algorithm is auto",
        metavar="STEPS",
        parameter="",
    )
    interactions: Interactions = _model(
        "Pairs of columns beside those of the schema. numbers: each two numbers with curves; auto: these, if they are "
        "few and there is little noise.",
        default="auto",
    )
    standardize: Standardize = _standardizing(
        "private: centre the features by noisy moments of all rows; auto: where that pays.", default="auto"
    )
    standardize_share: float | None = _standardizing(
        "The share of the budget that pays for it.", default_text="from rows, features and budget"
    )
    standardize_moments: StandardizeMoments = _standardizing(
        "mean: centre only; squares: centre and scale, with more noise; histograms: centre, and put the steps of "
        "curves at quantiles; auto: histograms where that pays, else mean.",
        default="auto",
    )
    anyway: bool = _model(
        "Train even if the noise is so large that the expected model is no better than always answering the most "
        "common class.",
        default=False,
    )
    inference: bool = _model(
        "Release what `boltdp coefficients` needs: coefficients with standard errors, intervals and p-values, for two "
        "classes (logistic regression) or a number.",
        default=False,
        usual=True,
    )
    robust_errors: bool = _model(
        "With --inference: standard errors that hold where the model does not (the sandwich estimator); of a number "
        "they are always so.",
        default=False,
    )
    seed: int | None = _research(
        "Seed of the shuffle. It may be public, if the places of rows do not depend on their values.", parameter=""
    )
    noise_seed: int | None = _research("Seed of the noise, for tests: the model is then not private.", parameter="")

    @property
    def budget(self) -> Budget | None:
        """The budget of epsilon and delta; None for a noiseless training."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)

    @property
    def given_names(self) -> tuple[str, ...]:
        """The names of the algorithm-specific settings that differ from their defaults."""
        return tuple(name for name in OPTIONAL if getattr(self, name) not in (None, OPTIONS[name].default))

    def reset(self, *names: str) -> Settings:
        """Return a copy in which the settings of these names have their defaults."""
        changes: dict[str, Any] = {name: OPTIONS[name].default for name in names}
        return replace(self, **changes)

    def context(self, **options: Any) -> Context:
        """Make the Context of a run with the seeds of these settings; `options` are its other fields."""
        seed: dict[str, Any] = {} if self.seed is None else {"seed": self.seed}
        return Context(randomness=Randomness(self.noise_seed), **seed, **options)

    def choose_loss(self, target: Target) -> tuple[Loss, int]:
        """Return the loss of one model that predicts `target`, and the number of models: 1 unless one-vs-all."""
        OPTIONS["loss"].convert(self.loss, "loss")
        plain = self.algorithm != "auto" or self.epsilon is None or self.inference
        default, _ = target.choose_default_loss(plain=plain)
        kind: Any = LOSSES[default if self.loss == "auto" else self.loss]
        try:
            loss: Loss = kind() if self.loss_parameter is None else kind(self.loss_parameter)
        except TypeError:
            raise ParameterError(
                f"loss_parameter must not be given for the loss {self.loss!r}, which has none"
            ) from None
        loss = target.adapt_loss(loss, joint=self.multiclass == "multinomial")
        return loss, target.count_models(loss)

    def check_threshold(self, threshold: Threshold | None, target: Target) -> None:
        """Raise a ParameterError if models with these settings cannot have `threshold`, before a budget is spent."""
        if threshold is not None:
            target.resolve_threshold(threshold, self.choose_loss(target)[0])

    def resolve_class_weights(self, target: Target) -> Settings:
        """Return a copy with class weights as numbers in the order of the classes, scaled to a maximum of 1."""
        if self.class_weights is None:
            return self
        return replace(self, class_weights=target.resolve_class_weights(self.class_weights))

    def check(self) -> None:
        """Raise a ParameterError if a setting has the wrong type or is not one of its allowed values."""
        for name, one in OPTIONS.items():
            one.convert(getattr(self, name), name)


def _fill_option(name: str, stated: Option, hint: Any, default: Any) -> Option:
    """Return the option with its kind, allowed words and default, which follow from the field of Settings."""
    types = get_args(hint) if type(None) in get_args(hint) else (hint,)
    words = stated.words or tuple(word for kind in types for word in get_args(kind) if isinstance(word, str))
    kind: Any = (
        "flag" if types == (bool,) else "whole number" if int in types else "number" if float in types else "other"
    )
    if all(one in (str, type(None)) or get_origin(one) is Literal for one in types):
        kind = "word"
    return replace(
        stated,
        words=words,
        kind=kind,
        nullable=type(None) in types,
        default=None if default is MISSING else default,
        parameter=name if stated.parameter == "*" else stated.parameter,
    )


_HINTS = get_type_hints(Settings)
#: The options by the names of their fields.
OPTIONS = {
    one.name: _fill_option(one.name, one.metadata["option"], _HINTS[one.name], one.default) for one in fields(Settings)
}
#: The settings that only some algorithms have; an algorithm raises an error for those it does not take.
OPTIONAL = tuple(name for name, one in OPTIONS.items() if one.some_algorithms)
#: The settings that a grid may vary; the schema, the budget and the shape of the weights do not depend on them.
TUNABLE = tuple(name for name, one in OPTIONS.items() if one.tunable)
