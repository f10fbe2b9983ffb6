"""What each training algorithm must add where, to keep a budget: computed from public numbers, before a row is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from boltdp.errors import ParameterError
from boltdp.privacy.noise import Budget, Mechanism, calibrate
from boltdp.privacy.objective import objective_noise, shares, stopping_sensitivity
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.sensitivity import Sensitivity, check_steps, published_sensitivity, sensitivity
from boltdp.privacy.whitebox import bst14_noise, bst14_published, dpsgd_noise, scs13_noise, scs13_published

Algorithm = Literal["bolton", "objective", "scs13", "bst14", "dpsgd"]
Analysis = Literal["proved", "paper"]

#: The white-box algorithms, with noise in every update and none at the release.
RIVALS: tuple[Algorithm, ...] = ("scs13", "bst14", "dpsgd")

#: Why the paper's own bounds give no guarantee.
PUBLISHED = "the sensitivity is the paper's published one, which is too small for some settings"
SCS13_PUBLISHED = "the classical Gaussian bound is used as published, which does not hold for epsilon/passes >= 1"
BST14_PUBLISHED = "its published argument takes sums of gradients to differ by 1, where they can differ by twice L"
#: All that an accountant can say against its own account.
FAULTS = frozenset({PUBLISHED, SCS13_PUBLISHED, BST14_PUBLISHED})


@dataclass(frozen=True, kw_only=True)
class Account:
    """Noise that makes one model keep its budget, and why it does not, if it is known not to."""

    sensitivity: Sensitivity | None = None  #: of the weights that training ends with
    mechanism: Mechanism | None = None  #: the noise added to them
    training_noise: Mechanism | None = None  #: the noise inside training
    reasons: tuple[str, ...] = ()


#: From the recipe, the budget of one model, the analysis asked for and the noise that an existing certificate states,
#: which stays if it is one of those that are enough.
Accountant: TypeAlias = Callable[[Recipe, Budget, Analysis, Mechanism | None], Account]


def bolton(recipe: Recipe, budget: Budget, analysis: Analysis, stated: Mechanism | None = None) -> Account:
    """Train as without privacy, then add noise once.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> bolton(recipe, Budget(1.0), "proved").training_noise is None
    True
    """
    check_steps(recipe)
    distance = sensitivity(recipe) if analysis == "proved" else published_sensitivity(recipe)
    return Account(
        sensitivity=distance,
        mechanism=calibrate(distance.total, dimensions=recipe.freedom, budget=budget, stated=stated),
        reasons=() if analysis == "proved" else (PUBLISHED,),
    )


def objective(recipe: Recipe, budget: Budget, analysis: Analysis, stated: Mechanism | None = None) -> Account:
    """Add a random linear term to the objective, minimise it, and hide with a little noise that this is not exact.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1),
    ...                 regularization=0.01)
    >>> objective(recipe, Budget(1.0), "proved").training_noise.kind
    'spherical'
    """
    if analysis != "proved":
        raise ParameterError(f"analysis must be 'proved' for objective perturbation, got {analysis!r}")
    parts = shares(budget)
    noise = objective_noise(recipe, parts.noise, stated)
    distance = stopping_sensitivity(recipe, noise)
    return Account(
        sensitivity=distance,
        mechanism=calibrate(distance.total, dimensions=recipe.freedom, budget=parts.stopping),
        training_noise=noise,
    )


def scs13(recipe: Recipe, budget: Budget, analysis: Analysis, _stated: Mechanism | None = None) -> Account:
    """Song, Chaudhuri and Sarwate (2013), in several passes: noise in every update.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> scs13(recipe, Budget(1.0), "proved").training_noise.kind
    'spherical'
    """
    if analysis == "proved":
        return Account(training_noise=scs13_noise(recipe, budget))
    valid = budget.delta == 0 or budget.epsilon / recipe.passes < 1
    return Account(training_noise=scs13_published(recipe, budget), reasons=() if valid else (SCS13_PUBLISHED,))


def bst14(recipe: Recipe, budget: Budget, analysis: Analysis, _stated: Mechanism | None = None) -> Account:
    """Bassily, Smith and Thakurta (2014), with a constant number of passes: noise in every update, on uniform samples.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> bst14(recipe, Budget(1.0, 1e-6), "paper").reasons == (BST14_PUBLISHED,)
    True
    """
    if analysis == "proved":
        return Account(training_noise=bst14_noise(recipe, budget))
    return Account(training_noise=bst14_published(recipe, budget), reasons=(BST14_PUBLISHED,))


def dpsgd(recipe: Recipe, budget: Budget, analysis: Analysis, _stated: Mechanism | None = None) -> Account:
    """DP-SGD as it is used today: noise in every update, on Poisson samples.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> dpsgd(recipe, Budget(1.0, 1e-6), "proved").mechanism is None
    True
    """
    if analysis != "proved":
        raise ParameterError(f"analysis must be proved for dpsgd, which the paper does not have, got {analysis}")
    return Account(training_noise=dpsgd_noise(recipe, budget))


ACCOUNTANTS: Mapping[Algorithm, Accountant] = {
    "bolton": bolton,
    "objective": objective,
    "scs13": scs13,
    "bst14": bst14,
    "dpsgd": dpsgd,
}
