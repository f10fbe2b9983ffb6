"""What the user asks for, and the plan made of it from public numbers alone, before any row is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias, get_args

from boltdp.data.schema import Schema
from boltdp.errors import ParameterError
from boltdp.privacy.algorithms import ACCOUNTANTS, RIVALS, Algorithm, Analysis
from boltdp.privacy.certificate import Certificate, certify, model_budget
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.noise import Budget, Mechanism, calibrate
from boltdp.privacy.objective import least_regularization, objective_noise
from boltdp.privacy.recipe import Averaging, Permutation, Recipe
from boltdp.privacy.schedules import (
    Schedule,
    constant,
    decreasing,
    square_root,
    strongly_convex,
    strongly_convex_constant,
)
from boltdp.privacy.selection import Selection
from boltdp.privacy.standardization import Moments, Standardized, standardized

LossName = Literal["logistic", "huber"]
Multiclass = Literal["multinomial", "one-vs-all"]
ScheduleName = Literal["auto", "constant", "decreasing", "square-root", "strongly-convex", "strongly-convex-constant"]

AlgorithmName: TypeAlias = Algorithm | Literal["auto"]
Standardize = Literal["auto", "none", "private"]

PASSES = 10
BATCH_SIZE = 50
#: Settings of an algorithm that makes passes over the rows.
ONLY_PASSES = ("passes", "batch_size", "schedule", "step_size", "averaging", "permutation", "radius", "analysis")

#: Lambda of objective perturbation is this times a power of the noise a row; see `default_regularization`.
REGULARIZATION, REGULARIZATION_POWER = 0.5, 1.6
#: Accuracy lost, at least and at most, in units of the noise a row; see `accuracy_lost`.
ACCURACY_LOST = (0.1, 3.2)
#: Of the budget, at least and at most, for centring; and its noise, wanted and tolerated, in lengths of a row.
SHARES = (0.05, 0.25)
CENTRE_NOISE, LARGEST_CENTRE_NOISE = 0.35, 0.7

#: A guess at the length of good weights for rows in the unit ball; `step_length` says what it is for.
TYPICAL_NORM = 5.0
#: A guess at the mean of phi'' * ||x||^2, the curvature that the noise meets.
TYPICAL_CURVATURE = 0.2


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that may be chosen about a training; None means: chosen from public numbers.

    >>> Settings(epsilon=1.0).plan(rows=60_000, dims=50, classes=10).recipe.loss
    Multinomial(classes=10)
    """

    epsilon: float | None  #: None: noiseless
    delta: float = 0.0
    algorithm: AlgorithmName = "auto"  #: `method` says which one it is
    loss: LossName = "logistic"
    multiclass: Multiclass = "multinomial"  #: the Huber SVM has no multinomial form and is always one-vs-all
    huber_width: float = 0.1
    passes: int = PASSES
    batch_size: int | None = None
    schedule: ScheduleName = "auto"
    step_size: float | None = None  #: eta of the constant schedules
    exponent: float = 0.5  #: c of the decreasing and square-root schedules
    regularization: float = 0.0  #: lambda; objective perturbation needs one, and takes a default for 0
    radius: float = math.inf  #: R
    averaging: Averaging = "last"
    permutation: Permutation = "once"
    analysis: Analysis = "proved"
    standardize: Standardize = "auto"  #: "private" centres the features by noisy means of all rows
    standardize_share: float | None = None  #: the part of the budget that pays for it
    standardize_moments: Moments = "mean"  #: "squares" scales the features too, "mean" only centres them
    seed: int | None = None  #: of the permutation, which is public
    noise_seed: int | None = None  #: for tests and research: the model is then not private

    def plan(
        self,
        *,
        rows: int,
        dims: int,
        classes: int,
        reasons: tuple[str, ...] = (),
        standardization: Standardized | None = None,
        selection: Selection | None = None,
    ) -> Certificate:
        """The recipe, its sensitivity and its noise.

        `classes` is how many are declared; `reasons` why the result will not be private, if the caller knows any;
        `standardization` is that of the schema, which costs its share of the budget; `selection` how the model will be
        chosen among others, which may cost a part of the budget.
        """
        budget = None if self.epsilon is None else Budget(self.epsilon, self.delta)
        named = {
            "algorithm": AlgorithmName,
            "loss": LossName,
            "multiclass": Multiclass,
            "analysis": Analysis,
            "standardize": Standardize,
        }
        for name, allowed in named.items():
            if getattr(self, name) not in _names(allowed):
                raise ParameterError(f"{name} must be one of {', '.join(_names(allowed))}, got {getattr(self, name)!r}")
        if standardization is None and self.standardize == "private":
            raise ParameterError("a plan must have the standardization that is asked for, got none")
        if budget is None and self.algorithm in RIVALS:
            raise ParameterError(f"epsilon must be given for the algorithm {self.algorithm}, got None")
        loss = self._loss(classes)
        models = classes if classes > 2 and not isinstance(loss, Multinomial) else 1
        recipe = Recipe(
            loss=loss,
            dims=dims,
            rows=rows,
            batch_size=min(BATCH_SIZE, max(rows, 1)) if self.batch_size is None else self.batch_size,
            passes=self.passes,
            # Until the schedule is chosen, which needs the rest of the recipe, a step that is always allowed.
            schedule=constant(1.0 / (loss.smoothness + max(self.regularization, 0.0))),
            regularization=self.regularization,
            radius=self._radius(loss),
            averaging=self.averaging,
            permutation=self.permutation,
        )
        share = None if budget is None else model_budget(budget, standardization, selection).split(models)
        if self.method == "objective" and self.regularization == 0:
            recipe = replace(recipe, regularization=default_regularization(recipe, share))
        return certify(
            replace(recipe, schedule=self._schedule(recipe, share)),
            budget,
            algorithm=self.method,
            models=models,
            analysis=self.analysis,
            randomness="operating system" if self.noise_seed is None else "seeded",
            reasons=reasons,
            standardization=standardization,
            selection=selection,
        )

    @property
    def method(self) -> Algorithm:
        """The algorithm; "auto" is objective perturbation, unless something is asked for that only passes have.

        Objective perturbation needs the least noise for the same promise wherever its proof holds. It has no passes,
        and the Huber loss is not smooth enough for it.

        >>> Settings(epsilon=1.0).method, Settings(epsilon=1.0, loss="huber").method
        ('objective', 'bolton')
        """
        if self.algorithm != "auto":
            return self.algorithm
        if self.epsilon is None or self.loss != "logistic":
            return "bolton"
        defaults = {field.name: field.default for field in fields(self)}
        return "objective" if all(getattr(self, name) == defaults[name] for name in ONLY_PASSES) else "bolton"

    def standardization(self, schema: Schema, *, rows: int) -> Standardized | None:
        """What standardizing the features of `schema` takes of the budget, or None if it is not done.

        "auto" does it for algorithm "auto" where it pays: where the noise of the means is small beside a row.

        >>> from boltdp.data.schema import Numeric
        >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100),))
        >>> Settings(epsilon=1.0).standardization(schema, rows=10_000).budget
        Budget(epsilon=0.05, delta=0.0)
        >>> Settings(epsilon=1.0).standardization(schema, rows=10) is None
        True
        """
        if schema.standardization is not None and schema.standardization.source == "private":
            raise ParameterError(
                "the schema must not have a standardization that was found privately: it was paid for by another model",
                hint='remove it, or write source = "declared" if the rows of this training had no part in it',
            )
        budget = None if self.epsilon is None else Budget(self.epsilon, self.delta)
        features = schema.encoded_dims - schema.intercept
        rows = max(rows, 1)  # none at all are refused by the plan
        share = SHARES[0] if budget is None else standardization_share(budget, features=features, rows=rows)
        if self.standardize == "none":
            return None
        if self.standardize == "auto":
            if self.algorithm != "auto" or budget is None or share is None or schema.standardization is not None:
                return None
        elif schema.standardization is not None:
            raise ParameterError("standardize must be 'none' for a schema that has a standardization already")
        if self.standardize_share is not None:
            share = self.standardize_share
        return standardized(
            share=SHARES[1] if share is None else share,
            moments=self.standardize_moments,
            features=features,
            squared=schema.numbers,
            radius=schema.feature_radius,
            whole=budget,
        )

    def _loss(self, classes: int) -> Loss:
        if self.loss == "huber":
            return HuberSVM(self.huber_width)
        if classes > 2 and self.multiclass == "multinomial":
            return Multinomial(classes)
        return Logistic()

    def _radius(self, loss: Loss) -> float:
        """As asked for; else BST14 needs some ball, and SCS13 with regularization has the one of its optimum."""
        if self.radius == math.inf and self.algorithm in ("scs13", "bst14") and self.regularization > 0:
            return loss.lipschitz / self.regularization
        return TYPICAL_NORM if self.radius == math.inf and self.algorithm == "bst14" else self.radius

    def _schedule(self, recipe: Recipe, share: Budget | None) -> Schedule:
        beta, name = recipe.beta, self.schedule
        noise = None
        if share is not None and self.algorithm in RIVALS:
            # The noise inside training does not depend on the steps, but good steps on the noise.
            noise = ACCOUNTANTS[self.method](recipe, share, self.analysis, None).training_noise
            if name == "auto" and self.step_size is None:
                return rival_schedule(self.method, recipe, noise)
        if name == "auto" and self.step_size is None and recipe.regularization > 0:
            name = "strongly-convex"
        if self.step_size is not None and name not in ("auto", "constant", "strongly-convex-constant"):
            raise ParameterError(f"step_size is for the constant schedules, got schedule {name!r}")
        match name:
            case "auto" | "constant":
                return constant(self._constant_step(recipe, share, noise))
            case "decreasing":
                return decreasing(beta=beta, rows=recipe.rows, exponent=self.exponent)
            case "square-root":
                return square_root(beta=beta, rows=recipe.rows, exponent=self.exponent)
            case "strongly-convex":
                return strongly_convex(beta=beta, gamma=recipe.gamma)
            case "strongly-convex-constant":
                return strongly_convex_constant(self._constant_step(recipe, share, noise), beta=beta)
        raise ParameterError(f"schedule must be one of {', '.join(get_args(ScheduleName))}, got {name!r}")

    def _constant_step(self, recipe: Recipe, share: Budget | None, noise: Mechanism | None) -> float:
        if self.step_size is not None:
            return self.step_size
        return default_step(recipe, share) if noise is None else noisy_step(recipe, noise)


def default_step(recipe: Recipe, share: Budget | None) -> float:
    """A constant step such that the steps of all updates add up to a good length.

    For a constant step the sensitivity is 2*L*tau/m, tau the sum of all steps, whatever the batches and passes.
    A longer way gets closer to the optimum w*, as ||w*||^2 / (2*tau), and needs more noise, whose loss is about
    curvature/2 * E||noise||^2 / D. The tau that minimises the sum of the two is returned, divided by the updates.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=constant(1.0))
    >>> default_step(recipe, Budget(1.0)) < default_step(recipe, Budget(10.0)) <= 1 / recipe.beta
    True
    """
    longest = recipe.updates / recipe.beta
    if share is None:
        # No noise to pay for: long enough to converge, short enough for the steps to average out.
        length = 100.0 * math.sqrt(recipe.updates)
    else:
        per_unit = 2.0 * recipe.loss.lipschitz / recipe.rows  # the sensitivity of a way of length 1
        noise = per_unit * calibrate(1.0, dimensions=recipe.freedom, budget=share).expected_norm
        length = (TYPICAL_NORM**2 * recipe.freedom / (2.0 * TYPICAL_CURVATURE * noise**2)) ** (1 / 3)
    return min(length, longest) / recipe.updates


def default_regularization(recipe: Recipe, share: Budget | None) -> float:
    """A Lambda for objective perturbation, from the mean length of its noise q for each row.

    A larger one costs Lambda/2 * ||w*||^2, a smaller one lets q move the weights further. What is best between
    the two follows a power of ||q||/m; docs/accuracy.md says on which data it was fitted and on which it was checked.
    At least so much that no more than an eighth of epsilon goes into the volume term of the proof.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=constant(1.0))
    >>> default_regularization(recipe, Budget(10.0)) < default_regularization(recipe, Budget(1.0))
    True
    """
    if share is None:
        return 1.0 / recipe.rows
    noise = objective_noise(replace(recipe, regularization=1.0 + 4.0 / share.epsilon), share)
    fitted: float = REGULARIZATION * (noise.expected_norm / recipe.rows) ** REGULARIZATION_POWER
    return max(fitted, least_regularization(recipe, share.epsilon / 8.0))


def standardization_share(budget: Budget, *, features: int, rows: int) -> float | None:
    """The part of a budget that buys centring: as much as leaves the noise of the means a third of a row's length.

    None where even a quarter of the budget would leave too much.

    >>> standardization_share(Budget(1.0), features=50, rows=60_000)
    0.05
    >>> standardization_share(Budget(0.01), features=784, rows=10_000) is None
    True
    """
    noise = calibrate(2.0 / rows, dimensions=features + 1, budget=budget).expected_norm
    least, most = SHARES
    if noise / most > LARGEST_CENTRE_NOISE:
        return None
    return min(max(noise / CENTRE_NOISE, least), most)


def accuracy_lost(certificate: Certificate) -> tuple[float, float]:
    """What objective perturbation may cost in accuracy, at least and at most, by the noise a row.

    Measured, not proved: nine of ten measurements on public data sets lie between the two; docs/accuracy.md.

    >>> low, high = accuracy_lost(Settings(epsilon=1.0).plan(rows=60_000, dims=51, classes=2))
    >>> 0 <= low < high < 0.05
    True
    """
    assert certificate.training_noise is not None
    noise = certificate.training_noise.expected_norm / certificate.recipe.rows
    low, high = ACCURACY_LOST
    return min(low * noise, 0.5), min(high * noise, 0.5)


def _names(kind: object) -> tuple[str, ...]:
    """The names that a literal type, or a union of them, allows."""
    return tuple(name for part in get_args(kind) for name in (get_args(part) or (part,)))


def noisy_step(recipe: Recipe, noise: Mechanism) -> float:
    """A constant step for updates with this noise: R / (G*sqrt(T)), the best for a way of length R by the usual bound.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=constant(1.0))
    >>> round(noisy_step(recipe, Mechanism("gaussian", 0.1, 50)), 4)
    0.0091
    """
    step = min(recipe.radius, TYPICAL_NORM) / (_gradient_norm(recipe, noise) * math.sqrt(recipe.updates))
    return min(step, 1.0 / recipe.beta)


def rival_schedule(algorithm: Algorithm, recipe: Recipe, noise: Mechanism | None) -> Schedule:
    """The steps of the white-box algorithms: as published for SCS13 and BST14.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=constant(1.0))
    >>> rival_schedule("scs13", recipe, Mechanism("gaussian", 0.1, 50)).steps(1, 5)
    array([1.        , 0.70710678, 0.57735027, 0.5       ])
    """
    assert noise is not None
    if algorithm == "scs13":
        return Schedule("sqrt", scale=1.0)
    if algorithm == "bst14" and recipe.gamma > 0:
        return Schedule("linear", scale=1.0 / recipe.gamma)
    if algorithm == "bst14":
        return Schedule("sqrt", scale=2.0 * recipe.radius / _gradient_norm(recipe, noise))
    if recipe.gamma > 0:
        return strongly_convex(beta=recipe.beta, gamma=recipe.gamma)
    return constant(noisy_step(recipe, noise))


def _gradient_norm(recipe: Recipe, noise: Mechanism) -> float:
    """G: the root of the mean square length of a gradient with its noise, at most."""
    spread = noise.dimensions * (noise.dimensions + 1 if noise.kind == "spherical" else 1)
    return math.sqrt(recipe.loss.lipschitz**2 + spread * noise.scale**2)
