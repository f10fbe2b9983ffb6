"""Noise before training: how much of it makes the minimiser of a perturbed objective private.

The engine minimises  F(w) = sum of phi(w; z_i) + (m*Lambda/2)*||w||^2 + <q, w>  with q drawn once. `objective.md`
proves, in this order: what one row can do to the density of the minimiser (section 2), the noise that follows
(section 3), why an approximate minimiser with a little more noise will do (section 4), and how precise a computed
gradient is (section 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from flint import arb

from boltdp.errors import ParameterError
from boltdp.privacy.losses import HuberSVM, Multinomial
from boltdp.privacy.noise import Budget, Mechanism, gaussian_delta, precision, shortest, smallest_scale
from boltdp.privacy.recipe import Recipe
from boltdp.privacy.sensitivity import UNIT, Sensitivity
from boltdp.privacy.spherical import shortest_scale, spherical_bits, spherical_delta

#: The part of epsilon that pays for stopping before the exact minimum; all of delta stays with q.
STOPPING_SHARE = 0.01
#: How far from zero the gradient may stay, in units of L: the noise that hides it is then 10^-4 of that of q.
STOPPING_GRADIENT = 2.0**-20
#: Rows that the kernel adds up before their sum joins the compensated total.
SUMMED_ROWS = 256
#: q is longer than so many times its mean with a probability below 10^-20, in any number of dimensions.
LONGEST_NOISE = 64.0


@dataclass(frozen=True)
class Shares:
    """How one model's budget is divided."""

    noise: Budget  #: for q
    stopping: Budget  #: for the distance between the weights found and the exact minimiser


def shares(budget: Budget) -> Shares:
    """Divide a budget; the parts together never exceed it.

    >>> shares(Budget(1.0, 1e-6)).stopping
    Budget(epsilon=0.01, delta=0.0)
    """
    stopping = STOPPING_SHARE * budget.epsilon
    return Shares(Budget(math.nextafter(budget.epsilon - stopping, 0.0), budget.delta), Budget(stopping))


def check_objective(recipe: Recipe) -> None:
    """Refuse what the proof does not cover.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> check_objective(Recipe(loss=Logistic(), dims=9, rows=9, batch_size=1, passes=1, schedule=constant(1.0)))
    Traceback (most recent call last):
    boltdp.errors.ParameterError: regularization must be > 0 for objective perturbation, got 0.0
    """
    if isinstance(recipe.loss, HuberSVM):
        raise ParameterError(
            "loss must be logistic or multinomial for objective perturbation, got 'huber'",
            hint="the Huber loss has kinks in its slope, where the proof does not hold",
        )
    if not recipe.regularization > 0:
        raise ParameterError(f"regularization must be > 0 for objective perturbation, got {recipe.regularization}")
    if recipe.radius != math.inf:
        raise ParameterError(f"radius must be infinite for objective perturbation, got {recipe.radius}")


def objective_noise(recipe: Recipe, budget: Budget, stated: Mechanism | None = None) -> Mechanism:
    """The noise q of smallest expected length that makes the exact minimiser private; `stated` is as for `shortest`.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=1e-4)
    >>> noise = objective_noise(recipe, Budget(1.0, 1e-6))
    >>> noise.kind, round(noise.scale, 3)
    ('spherical', 1.102)
    """
    check_objective(recipe)
    spherical = Mechanism("spherical", spherical_scale(recipe, budget), recipe.freedom)
    if budget.delta == 0:
        return spherical
    gaussian = Mechanism("gaussian", gaussian_scale(recipe, budget), recipe.freedom)
    pure = Mechanism("spherical", spherical_scale(recipe, Budget(budget.epsilon)), recipe.freedom)
    return shortest(gaussian, spherical, pure, stated=stated)


def spherical_scale(recipe: Recipe, budget: Budget) -> float:
    """Of spherical q: 2*L / (epsilon - a) for pure privacy, and the smallest that can be certified if delta > 0.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=0.01)
    >>> round(spherical_scale(recipe, Budget(1.0)), 4)
    2.0506
    >>> round(spherical_scale(recipe, Budget(1.0, 1e-6)), 4)
    1.911
    """
    epsilon = _left_by_volume(recipe, budget)
    pure = math.nextafter(2.0 * recipe.loss.lipschitz / epsilon, math.inf)
    if budget.delta == 0:
        return pure
    return _shortest_spherical(corners(recipe), epsilon, budget.delta, recipe.freedom, pure)


def gaussian_scale(recipe: Recipe, budget: Budget) -> float:
    """The smallest standard deviation of Gaussian q, to 12 digits, certified by interval arithmetic.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=1.0)
    >>> round(gaussian_scale(recipe, Budget(1.0, 1e-6)), 3)
    8.449
    """
    epsilon = _left_by_volume(recipe, budget)
    return smallest_scale(lambda sigma: _is_private(recipe, sigma, epsilon=epsilon, delta=budget.delta))


def volume_bound(recipe: Recipe) -> float:
    """a, the logarithm of how much one row can stretch the map from minimisers to noise: section 2.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=0.01)
    >>> round(volume_bound(recipe), 6)
    0.024693
    """
    directions, curvature = _curvature(recipe)
    bound = directions * math.log1p(curvature / (recipe.rows * recipe.regularization))
    return bound * (1.0 + 16.0 * UNIT)


def least_regularization(recipe: Recipe, volume: float) -> float:
    """The Lambda at which `volume_bound` is `volume`.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=1, passes=1, schedule=constant(1.0))
    >>> round(least_regularization(recipe, 0.024693), 6)
    0.01
    """
    directions, curvature = _curvature(recipe)
    share = volume / directions
    return curvature / (recipe.rows * math.expm1(share)) if share < 700 else 0.0


def corners(recipe: Recipe) -> tuple[tuple[float, int], ...]:
    """Of the polytope that holds the difference of two rows' gradients: squared length, and how many there are.

    The corner 0 needs no noise and is left out. Section 3.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> corners(Recipe(loss=Logistic(), dims=9, rows=9, batch_size=1, passes=1, schedule=constant(1.0)))
    ((4.0, 1), (1.0, 2))
    """
    if not isinstance(recipe.loss, Multinomial):
        return (4.0, 1), (1.0, 2)
    others = recipe.loss.classes - 1
    return (8.0, others), (6.0, others * (others - 1)), (2.0, 2 * others)


def gradient_rounding(recipe: Recipe, *, weights: float, noise: float) -> float:
    """A bound on the error of the computed gradient of F at weights of this norm, with q of this norm: section 5.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=1e-4)
    >>> gradient_rounding(recipe, weights=10.0, noise=100.0) < 1e-7
    True
    """
    loss, root = recipe.loss, math.sqrt(recipe.loss.vectors)
    scores = (recipe.dims + 4.0 + 6.0 * root) * weights + 3.0 * root
    # The totals' compensations are themselves added up: a hair, until there are 2^34 rows.
    added = SUMMED_ROWS + 8.0 + UNIT * (recipe.rows / SUMMED_ROWS) ** 2
    row = loss.smoothness * scores + loss.vectors + 6.0 + loss.lipschitz * added
    # The release turns the weights into the directions they can move in, which rounds too.
    turned = 8.0 * loss.vectors**2
    whole = (4.0 + turned) * recipe.rows * recipe.regularization * weights + turned * noise
    return 1.01 * UNIT * (recipe.rows * row + whole)


def drawing_error(noise: Mechanism | None) -> float:
    """How far the drawn q, which lies on a grid, can be from the real-valued one.

    >>> round(math.log2(drawing_error(Mechanism("gaussian", scale=1.0, dimensions=4))), 9)
    -39.0
    """
    return 0.0 if noise is None else math.sqrt(noise.dimensions) * math.ldexp(1.0, -noise.grid - 1) * (1.0 + 8 * UNIT)


def tolerance(recipe: Recipe, noise: Mechanism | None) -> float:
    """tau: training ends when the gradient of F is certainly no longer than this.

    It is far above what rounding can do to the gradient at any weights that can be the minimiser, so that it is
    always reached.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=1e-4)
    >>> tolerance(recipe, None) < 3e-6
    True
    """
    longest = 0.0 if noise is None else LONGEST_NOISE * noise.expected_norm
    strength = recipe.rows * recipe.regularization
    weights = math.sqrt(2.0 * recipe.loss.at_zero / recipe.regularization) + 2.0 * longest / strength
    unsure = gradient_rounding(recipe, weights=weights, noise=longest) + drawing_error(noise)
    return STOPPING_GRADIENT * recipe.loss.lipschitz + 4.0 * unsure


def stopping_sensitivity(recipe: Recipe, noise: Mechanism) -> Sensitivity:
    """How far apart neighbours' weights can be found when their exact minimisers agree: section 4.

    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=50, rows=10**6, batch_size=1, passes=1, schedule=constant(1.0),
    ...                 regularization=1e-4)
    >>> stopping_sensitivity(recipe, Mechanism("gaussian", 8.0, 50)).total < 1e-7
    True
    """
    bound = 2.0 * tolerance(recipe, noise) / (recipe.rows * recipe.regularization)
    return Sensitivity(bound, 8.0 * UNIT * bound, "gradient at the end")


def _left_by_volume(recipe: Recipe, budget: Budget) -> float:
    """What is left of epsilon: epsilon - a, rounded down."""
    left = math.nextafter(budget.epsilon - volume_bound(recipe), 0.0)
    # A difference that has lost its leading digits is of no use.
    if not left > 1e-6 * budget.epsilon:
        raise ParameterError(
            f"regularization must be above {least_regularization(recipe, budget.epsilon):.3g} for epsilon ="
            f" {budget.epsilon:g} and {recipe.rows} rows, got {recipe.regularization:g}"
        )
    return left


def _curvature(recipe: Recipe) -> tuple[int, float]:
    """In how many directions one row bends the objective, and by how much in their mean at most."""
    if isinstance(recipe.loss, Multinomial):
        return recipe.loss.classes - 1, 1.0 / recipe.loss.classes
    return 1, recipe.loss.smoothness


@lru_cache(maxsize=1024)
def _shortest_spherical(
    corners: tuple[tuple[float, int], ...], epsilon: float, delta: float, dimensions: int, pure: float
) -> float:
    """Of spherical q, such that the deltas of all corners together stay within `delta`, for certain."""
    longest = math.sqrt(max(square for square, _ in corners))

    def spent(scale: float) -> arb:
        with precision(spherical_bits(longest / scale)):
            total = arb(0)
            for square, count in corners:
                total += count * spherical_delta(arb(square).sqrt() / arb(scale), arb(epsilon), dimensions)
            return total

    return shortest_scale(spent, delta=delta, pure=pure)


def _is_private(recipe: Recipe, sigma: float, *, epsilon: float, delta: float) -> bool:
    """Whether the deltas of all corners together stay within `delta`, for certain."""
    with precision(256):
        total = arb(0)
        for square, count in corners(recipe):
            total += count * gaussian_delta(arb(square).sqrt() / arb(sigma), arb(epsilon))
        return bool(total <= arb(delta))
