"""What the user asks for, and the plan made of it from public numbers alone, before any row is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from boltdp.data.schema import Categorical, Schema
from boltdp.errors import ParameterError
from boltdp.privacy.algorithms import ACCOUNTANTS, RIVALS, Algorithm, Analysis
from boltdp.privacy.certificate import Certificate, certify, model_budget
from boltdp.privacy.losses import HuberSVM, Logistic, Loss, Multinomial
from boltdp.privacy.noise import Budget, Mechanism, calibrate
from boltdp.privacy.objective import objective_noise
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

Standardize = Literal["none", "private"]

PASSES = 10
BATCH_SIZE = 50
#: Of the budget: a mean over all rows needs little noise.
STANDARDIZE_SHARE = 0.1

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
    algorithm: Algorithm = "bolton"
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
    standardize: Standardize = "none"  #: "private" centres the features by noisy moments of all rows
    standardize_share: float = STANDARDIZE_SHARE  #: the part of the budget that pays for it
    standardize_moments: Moments = "squares"  #: "squares" scales the features too, "mean" only centres them
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
            "algorithm": Algorithm,
            "loss": LossName,
            "multiclass": Multiclass,
            "analysis": Analysis,
            "standardize": Standardize,
        }
        for name, allowed in named.items():
            if getattr(self, name) not in get_args(allowed):
                raise ParameterError(
                    f"{name} must be one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}"
                )
        if (standardization is None) != (self.standardize == "none"):
            raise ParameterError(f"a plan must have a standardization if one is asked for, got {self.standardize!r}")
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
        if self.algorithm == "objective" and self.regularization == 0:
            recipe = replace(recipe, regularization=default_regularization(recipe, share))
        return certify(
            replace(recipe, schedule=self._schedule(recipe, share)),
            budget,
            algorithm=self.algorithm,
            models=models,
            analysis=self.analysis,
            randomness="operating system" if self.noise_seed is None else "seeded",
            reasons=reasons,
            standardization=standardization,
            selection=selection,
        )

    def standardization(self, schema: Schema) -> Standardized | None:
        """What standardizing the features of `schema` takes of the budget, or None if it is not asked for.

        >>> from boltdp.data.schema import Numeric
        >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100),))
        >>> Settings(epsilon=1.0, standardize="private").standardization(schema).budget
        Budget(epsilon=0.1, delta=0.0)
        """
        if self.standardize == "none":
            return None
        if schema.standardization is not None:
            raise ParameterError("standardize must be 'none' for a schema that has a standardization already")
        return standardized(
            share=self.standardize_share,
            moments=self.standardize_moments,
            features=schema.encoded_dims - schema.intercept,
            squared=sum(len(column.names) for column in schema.columns if not isinstance(column, Categorical)),
            radius=schema.feature_radius,
            whole=None if self.epsilon is None else Budget(self.epsilon, self.delta),
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
            noise = ACCOUNTANTS[self.algorithm](recipe, share, self.analysis).training_noise
            if name == "auto" and self.step_size is None:
                return rival_schedule(self.algorithm, recipe, noise)
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
    """A Lambda for objective perturbation at which its two faults are about equal.

    The penalty costs Lambda/2 * ||w*||^2, and q moves the weights by at most ||q|| / (m*Lambda), which costs about
    ||q||^2 / (2*m^2*Lambda). At least 4/epsilon in all, so that no more than a quarter of epsilon goes into volumes.

    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=50, passes=10, schedule=constant(1.0))
    >>> default_regularization(recipe, Budget(10.0)) < default_regularization(recipe, Budget(1.0))
    True
    """
    if share is None:
        return 1.0 / recipe.rows
    noise = objective_noise(replace(recipe, regularization=1.0 + 4.0 / share.epsilon), share)
    return max(noise.expected_norm / TYPICAL_NORM, 4.0 / share.epsilon) / recipe.rows


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
