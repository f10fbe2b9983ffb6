"""Noise before training: how much of it makes the minimiser of a perturbed objective private.

The engine minimises F(w) = sum of phi(w; z_i) + (m*Lambda/2)*||w||^2 + <q, w> with q drawn once.
`objective_perturbation.md` proves, in this order: what one row can do to the density of the minimiser (section 2) and
the noise that follows (section 3), both computed in `objective_corners.py`; why an approximate minimiser with a
little more noise will do (section 4); how precise a computed gradient is (section 5); and for which Lambda the
minimum is found whatever the rows are (section 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from flint import arb

from boltdp.errors import ParameterError
from boltdp.losses import Simplex
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Training
from boltdp.privacy.events.objective_corners import best_tilt, corners_delta, most_loss
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.events.sgd_sensitivity import UNIT, Sensitivity
from boltdp.privacy.mechanisms import Mechanism, calibrate, precision, smallest_noise, smallest_scale, upper
from boltdp.privacy.spherical_delta import find_spherical_scale
from boltdp.privacy.training_problem import Problem, Recipe

#: The part of epsilon that pays for stopping before the exact minimum; all of delta stays with q.
STOPPING_SHARE = 0.01
#: How far from zero the gradient may stay, in units of L: the noise that hides it is then 10^-4 of that of q.
STOPPING_GRADIENT = 2.0**-20
#: The kernel rounds every number that a row adds to a sum to a multiple of this; such sums are exact.
SUM_GRID = 2.0**-50
#: Sums of up to this many rows are exact, and no more are taken.
MAX_SUMMED = 2**33
#: The norm of q exceeds this many times its mean with a probability below 10^-20, in any number of dimensions.
MAX_NOISE = 64.0
#: The share of Newton's step below which the solver gives up: a quarter of it is what doubles near 1 differ by.
MIN_STEP = 2.0**-50


@dataclass(frozen=True)
class Shares:
    """How one model's budget is divided."""

    noise: Budget  #: for q
    stopping: Budget  #: for the distance between the weights found and the exact minimiser


@dataclass(frozen=True)
class ObjectivePerturbation(Training):
    """The minimiser of an objective with a random linear term, hidden by a little noise as it is not exact.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> event = make_objective_perturbation(problem, Budget(1.0))
    >>> event.linear.kind, event.delta(1.0), event.delta(0.5) > 0
    ('spherical', 0.0, True)
    """

    kind = "objective perturbation"
    algorithm = "objective"
    problem: Problem
    linear: Mechanism  #: the noise q of the linear term
    end: Mechanism  #: the noise added to the weights where the solver stopped

    def __post_init__(self) -> None:
        check_objective(self.problem)
        for noise in (self.linear, self.end):
            check_dimensions(noise, self.problem.dimensions)
        check_solvable(self.problem, self.linear)
        if self.end.kind != "spherical":
            raise ParameterError(f"the noise at the end must be spherical, got {self.end.kind!r}")

    def delta(self, epsilon: float, *, target: float = 1e-9) -> float:
        """What q spends of what the end leaves, which is pure.

        Proof: objective_perturbation.md 4
        """
        spent = math.nextafter(self.sensitivity.total / self.end.scale, math.inf)
        left = math.nextafter(epsilon - spent, 0.0)
        return minimiser_delta(self.problem, self.linear, left) if left > 0 else 1.0

    @property
    def training_noise(self) -> Mechanism:
        return self.linear

    @property
    def release_noise(self) -> Mechanism:
        return self.end

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the weights where the solver stopped, given the exact minimiser."""
        return stopping_sensitivity(self.problem, self.linear)

    @property
    def derived(self) -> dict[str, Any]:
        return {"sensitivity_at_the_end": self.sensitivity.total, "volume_term": volume_bound(self.problem)}


def make_objective_perturbation(problem: Problem, budget: Budget) -> ObjectivePerturbation:
    """The event of a training whose noise keeps a budget.

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> make_objective_perturbation(problem, Budget(1.0)).end.kind
    'spherical'
    """
    parts = shares(budget)
    noise = objective_noise(problem, parts.noise)
    distance = stopping_sensitivity(problem, noise)
    end = calibrate(distance.total, dimensions=problem.dimensions, budget=parts.stopping)
    return ObjectivePerturbation(problem, noise, end)


def shares(budget: Budget) -> Shares:
    """Divide a budget; the parts together never exceed it.

    Proof: objective_perturbation.md 4

    >>> shares(Budget(1.0, 1e-6)).stopping
    Budget(epsilon=0.01, delta=0.0)
    """
    stopping = STOPPING_SHARE * budget.epsilon
    return Shares(Budget(math.nextafter(budget.epsilon - stopping, 0.0), budget.delta), Budget(stopping))


def check_objective(problem: Problem) -> None:
    """Refuse what the proof does not cover.

    Proof: objective_perturbation.md 1

    >>> from boltdp.losses import Logistic
    >>> check_objective(Problem(loss=Logistic(), dims=9, rows=9))
    Traceback (most recent call last):
    boltdp.errors.ParameterError: regularization must be > 0 for objective perturbation, got 0.0
    """
    loss = problem.loss
    if loss.simplex is None:
        raise ParameterError(
            f"loss must have a smooth slope for objective perturbation, got {loss.name!r}",
            hint="where the slope has kinks the proof does not hold; logistic and multinomial have none",
        )
    if loss.simplex.edge_squared < loss.lipschitz**2 * (1.0 - 8 * UNIT):
        raise ParameterError(f"the simplex of the loss {loss.name!r} must have edges of L, as one row's slopes can")
    if not problem.regularization > 0:
        raise ParameterError(f"regularization must be > 0 for objective perturbation, got {problem.regularization}")
    if isinstance(problem, Recipe):
        raise ParameterError("objective perturbation must be of a problem without passes, got a recipe of SGD")
    check_summable(problem)


def check_summable(problem: Problem) -> None:
    """Refuse more rows than sums are exact for: how many of them are neutral, and not summed, must not matter.

    Proof: objective_perturbation.md 5

    >>> from boltdp.losses import Logistic
    >>> check_summable(Problem(loss=Logistic(), dims=9, rows=10**9))
    """
    if problem.rows > MAX_SUMMED:
        raise ParameterError(f"the data must have at most {MAX_SUMMED:,} rows to be summed, got {problem.rows:,}")


def check_solvable(problem: Problem, noise: Mechanism | None) -> None:
    """Refuse a Lambda so small that whether the minimum is found in double precision could depend on the rows.

    An error would then tell something about them; this one depends on public numbers only.

    Proof: objective_perturbation.md 6

    >>> from boltdp.losses import Logistic
    >>> check_solvable(Problem(loss=Logistic(), dims=9, rows=10, regularization=4.7e-13), None)
    Traceback (most recent call last):
    boltdp.errors.ParameterError: regularization must be at least 5.43e-10 for objective perturbation, got 4.7e-13
    """
    least = least_solvable(problem, noise)
    if problem.regularization < least:
        # Rounded up, so that the number in the message is enough.
        enough = float(f"{1.005 * least:.2e}")
        raise ParameterError(
            f"regularization must be at least {enough:g} for objective perturbation, got {problem.regularization:g}",
            hint="below it, double precision may not find the minimum, and an error then would depend on the rows",
        )


def least_solvable(problem: Problem, noise: Mechanism | None) -> float:
    """The smallest Lambda for which the solver needs no step shorter than `MIN_STEP`, whatever the rows are.

    The problem's own Lambda has no part in it.

    Proof: objective_perturbation.md 6

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=10)
    >>> least_solvable(problem, Mechanism("gaussian", 100.0, 9)) > least_solvable(problem, None)
    True
    """
    loss = problem.loss
    longest = 0.0 if noise is None else MAX_NOISE * noise.expected_norm
    bound = 20.0 * math.sqrt(2.0) * MIN_STEP * loss.lipschitz * (loss.lipschitz + longest / problem.rows)
    return max(bound, math.pow(bound * math.sqrt(loss.smoothness), 2.0 / 3.0))


def objective_noise(problem: Problem, budget: Budget) -> Mechanism:
    """The noise q of smallest expected length that makes the exact minimiser private.

    Proof: objective_perturbation.md 2, 3

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**6, regularization=1e-4)
    >>> noise = objective_noise(problem, Budget(1.0, 1e-6))
    >>> noise.kind, round(noise.scale, 3)
    ('spherical', 1.1)
    """
    check_objective(problem)
    spherical = Mechanism("spherical", spherical_scale(problem, budget), problem.dimensions)
    if budget.delta == 0:
        return spherical
    gaussian = Mechanism("gaussian", gaussian_scale(problem, budget), problem.dimensions)
    return smallest_noise(gaussian, spherical)


def minimiser_delta(problem: Problem, noise: Mechanism, epsilon: float) -> float:
    """What the exact minimiser spends of delta at an epsilon, if q has this noise; rounded up.

    Proof: objective_perturbation.md 2, 3

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> minimiser_delta(problem, objective_noise(problem, Budget(1.0)), 1.0)
    0.0
    """
    proved = _proved(problem)
    if noise.kind == "spherical" and _keeps(proved, noise.scale, epsilon):
        return 0.0
    return upper(_spent(proved, noise, epsilon))


def spherical_scale(problem: Problem, budget: Budget) -> float:
    """Of spherical q, the smallest that can be certified: for pure privacy 2*L/epsilon, if Lambda is ample.

    Proof: objective_perturbation.md 3

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> round(spherical_scale(problem, Budget(1.0)), 4)
    2.0
    >>> round(spherical_scale(problem, Budget(1.0, 1e-6)), 4)
    1.8648
    """
    check_volume(problem, budget.epsilon)
    return _spherical_scale(_proved(problem), budget, problem.dimensions)


def gaussian_scale(problem: Problem, budget: Budget) -> float:
    """The smallest standard deviation of Gaussian q, to 12 digits, certified by interval arithmetic.

    Proof: objective_perturbation.md 3

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=10**6, regularization=1.0)
    >>> round(gaussian_scale(problem, Budget(1.0, 1e-6)), 3)
    8.449
    """
    check_volume(problem, budget.epsilon)
    return _gaussian_scale(_proved(problem), budget)


def check_volume(problem: Problem, epsilon: float) -> None:
    """Refuse an epsilon that the volumes alone can spend.

    Proof: objective_perturbation.md 3
    """
    # A difference that has lost its leading digits is of no use.
    if not epsilon - volume_bound(problem) > 1e-6 * epsilon:
        raise ParameterError(
            f"regularization must be above {least_regularization(problem, epsilon):.3g} for epsilon ="
            f" {epsilon:g} and {problem.rows} rows, got {problem.regularization:g}"
        )


def volume_bound(problem: Problem) -> float:
    """a: the logarithm of how much one row, or one person, can stretch the map from minimisers to noise, at most.

    Proof: objective_perturbation.md 2
    Proof: adjacency.md 4

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> round(volume_bound(problem), 6)
    0.024693
    """
    simplex, (rows, regularization), changed = _proved(problem)
    mean = simplex.max_trace / simplex.directions
    return changed * simplex.directions * math.log1p(mean / (rows * regularization)) * (1.0 + 16.0 * UNIT)


def least_regularization(problem: Problem, volume: float) -> float:
    """The Lambda at which `volume_bound` is `volume`: above it there is noise that keeps an epsilon of this.

    Proof: objective_perturbation.md 2

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000)
    >>> round(least_regularization(problem, 0.024693), 6)
    0.01
    """
    simplex, (rows, _), changed = _proved(problem)
    share = volume / (changed * simplex.directions)
    return simplex.max_trace / simplex.directions / (rows * math.expm1(share)) if share < 700 else 0.0


def ample_regularization(problem: Problem, epsilon: float) -> float:
    """The Lambda from which on pure noise is as short as with any larger one: the volumes then cost it nothing.

    Proof: objective_perturbation.md 3

    >>> from boltdp.losses import Logistic
    >>> round(ample_regularization(Problem(loss=Logistic(), dims=9, rows=1000), 0.5), 9)
    0.004
    """
    simplex, (rows, _), changed = _proved(problem)
    factor = changed * (2.0 if simplex.vertices == 2 else 4.0)
    return factor * simplex.edge_squared / (epsilon * rows) * (1.0 + 8 * UNIT)


def gradient_rounding(problem: Problem, *, weights: float, noise: float) -> float:
    """A bound on the error of the computed gradient of F at weights of this norm, with q of this norm: section 5.

    Proof: objective_perturbation.md 5

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**6, regularization=1e-4)
    >>> gradient_rounding(problem, weights=10.0, noise=100.0) < 1e-7
    True
    """
    loss, root = problem.loss, math.sqrt(problem.loss.vectors)
    scores = (problem.dims + 6.0 + 6.0 * root) * weights + 4.0 * root
    row = loss.smoothness * scores + loss.vectors + 6.0 + loss.lipschitz * gathering(problem.dims)
    row += term_rounding(problem) / UNIT
    # The release turns the weights into the directions they can move in, which rounds too.
    turned = 8.0 * loss.vectors**2
    whole = (4.0 + turned) * problem.rows * problem.regularization * weights + turned * noise
    return 1.01 * UNIT * (problem.rows * row + whole)


def term_rounding(problem: Problem) -> float:
    """How far all that one row adds to a sum is moved, at most, by being rounded to the grid.

    Proof: objective_perturbation.md 5

    >>> from boltdp.losses import Logistic
    >>> term_rounding(Problem(loss=Logistic(), dims=16, rows=10)) == 2 * SUM_GRID
    True
    """
    return math.sqrt(problem.dims * problem.loss.vectors) * SUM_GRID / 2.0


def gathering(dims: int) -> float:
    """What making features of the sums of slots errs by, at most, in units of u times the rows' lengths together.

    Proof: objective_perturbation.md 5

    >>> gathering(50)
    58.0
    """
    return dims + 8.0


def drawing_error(noise: Mechanism | None) -> float:
    """How far the drawn q, which lies on a grid, can be from the real-valued one.

    Proof: objective_perturbation.md 4

    >>> round(math.log2(drawing_error(Mechanism("gaussian", scale=1.0, dimensions=4))), 9)
    -39.0
    """
    return 0.0 if noise is None else math.sqrt(noise.dimensions) * math.ldexp(1.0, -noise.grid - 1) * (1.0 + 8 * UNIT)


def tolerance(problem: Problem, noise: Mechanism | None) -> float:
    """tau: training ends when the gradient of F is certainly no longer than this.

    It is far above what rounding can do to the gradient at any weights that can be the minimiser, so that it is
    always reached.

    Proof: objective_perturbation.md 4, 5

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**6, regularization=1e-4)
    >>> tolerance(problem, None) < 3e-6
    True
    """
    longest = 0.0 if noise is None else MAX_NOISE * noise.expected_norm
    strength = problem.rows * problem.regularization
    weights = math.sqrt(2.0 * problem.loss.at_zero / problem.regularization) + 2.0 * longest / strength
    unsure = gradient_rounding(problem, weights=weights, noise=longest) + drawing_error(noise)
    return STOPPING_GRADIENT * problem.loss.lipschitz + 4.0 * unsure


def stopping_sensitivity(problem: Problem, noise: Mechanism) -> Sensitivity:
    """How far apart neighbours' weights can be found when their exact minimisers agree: section 4.

    Proof: objective_perturbation.md 4

    >>> from boltdp.losses import Logistic
    >>> problem = Problem(loss=Logistic(), dims=50, rows=10**6, regularization=1e-4)
    >>> stopping_sensitivity(problem, Mechanism("gaussian", 8.0, 50)).total < 1e-7
    True
    """
    bound = 2.0 * tolerance(problem, noise) / (problem.rows * problem.regularization)
    return Sensitivity(bound, 8.0 * UNIT * bound, "gradient at the end")


class _Proved(NamedTuple):
    """What the noise depends on."""

    simplex: Simplex  #: of the loss
    strength: tuple[int, float]  #: m and Lambda
    changed: int  #: how many rows leave and come in


def _proved(problem: Problem) -> _Proved:
    assert problem.loss.simplex is not None
    return _Proved(problem.loss.simplex, (problem.rows, problem.regularization), problem.changed_rows)


def _keeps(proved: _Proved, scale: float, epsilon: float) -> bool:
    """Whether spherical noise of this scale is pure at an epsilon, for certain.

    Proof: objective_perturbation.md 3
    Proof: adjacency.md 4
    """
    simplex, strength, changed = proved
    with precision(128):
        return bool(changed * most_loss(simplex, arb(strength[0]) * arb(strength[1]), arb(scale)) <= arb(epsilon))


def _spent(proved: _Proved, noise: Mechanism, epsilon: float) -> arb:
    """By the corners of all rows that leave and come in, or by those of one after another, whichever is less.

    Proof: adjacency.md 4
    """
    simplex, strength, changed = proved
    tilt = best_tilt(simplex, strength, noise, epsilon, changed)
    together = corners_delta(simplex, strength, noise, epsilon, tilt, changed)
    if changed == 1:
        return together
    share = math.nextafter(epsilon / changed, 0.0)
    each = corners_delta(simplex, strength, noise, share, best_tilt(simplex, strength, noise, share))
    with precision(256):
        # 1 + e^share + ... + e^((g-1)*share), each share that comes later counted by those before it.
        growth = arb(share).exp()
        return together.min(each * (growth**changed - 1) / (growth - 1))


@lru_cache(maxsize=1024)
def _spherical_scale(proved: _Proved, budget: Budget, dimensions: int) -> float:
    if budget.delta == 0:
        # 2gL/epsilon, rounded up, is the least for any strength.
        longest = 2.0 * proved.changed * math.sqrt(proved.simplex.edge_squared)
        least = math.nextafter(longest / budget.epsilon, math.inf)
        if _keeps(proved, least, budget.epsilon):
            return least
        return smallest_scale(lambda scale: _keeps(proved, scale, budget.epsilon))

    def spent(scale: float) -> arb:
        return _spent(proved, Mechanism("spherical", scale, dimensions), budget.epsilon)

    pure = _spherical_scale(proved, Budget(budget.epsilon), dimensions)
    return find_spherical_scale(spent, delta=budget.delta, pure=pure)


@lru_cache(maxsize=1024)
def _gaussian_scale(proved: _Proved, budget: Budget) -> float:
    def is_enough(sigma: float) -> bool:
        # The number of dimensions has no part in what Gaussian noise spends.
        return bool(_spent(proved, Mechanism("gaussian", sigma, 1), budget.epsilon) <= arb(budget.delta))

    return smallest_scale(is_enough)
