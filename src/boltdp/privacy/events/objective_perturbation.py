"""Objective perturbation: the noise added before training that makes the minimiser of the objective private.

The engine minimises F(w) = sum of phi(w; z_i) + (m*Lambda/2)*||w||^2 + <q, w> with q drawn once.
`objective_perturbation.md` proves, in this order: how one row changes the density of the minimiser (section 2) and
the noise that follows (section 3), both computed in `objective_corners.py`; why an approximate minimiser with a little
more noise is private too (section 4); the error of a computed gradient (section 5); and for which Lambda the solver
finds the minimum for any rows (section 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flint import arb

from boltdp.errors import ParameterError
from boltdp.losses import Simplex
from boltdp.privacy.budget import Budget
from boltdp.privacy.events.event import Event, Training
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.objective_corners import bound_corner_deltas, bound_privacy_loss, list_corners
from boltdp.privacy.events.output_perturbation import check_dimensions
from boltdp.privacy.events.sgd_sensitivity import UNIT, Sensitivity
from boltdp.privacy.mechanisms import (
    Mechanism,
    calibrate,
    choose_smallest_noise,
    find_smallest_number,
    round_up_delta,
    set_precision,
)
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.spherical_delta import find_spherical_scale
from boltdp.privacy.training_problem import Problem

#: The share of epsilon for stopping before the exact minimum; all of delta is for q.
STOPPING_SHARE = 0.01
#: The largest norm of the gradient at the end, in units of L: the noise that hides it is then 10^-4 of that of q.
STOPPING_GRADIENT = 2.0**-20
#: The kernel rounds every term of a sum over rows to a multiple of this, which makes the sums exact.
SUM_GRID = 2.0**-50
#: The maximum number of rows: sums of more rows would not be exact.
MAX_SUMMED = 2**33
#: The logarithm of the inverse of a probability below 10^-20, with which q may be longer than is assumed.
RARE = 46.1
#: The largest norm of a row that is downweighted, not shortened; that of standardized rows is smaller.
MAX_DOWNWEIGHTED_NORM = 256.0
#: The largest norm of the released weights that the penalty may be centred at, and the largest loss of a row there.
MAX_CENTER, MAX_CENTER_LOSS = 16.0, 5.0
#: No deviation of q above this is tried where other releases may leave nothing to it.
MAX_DEVIATION = 2.0**64
#: The largest share of epsilon for the volume term where slopes have kinks, if Lambda is not given.
KINK_SHARE = 0.25
#: The line search stops below this fraction of Newton's step; a quarter of it is the spacing of doubles near 1.
MIN_STEP = 2.0**-50
#: The same where slopes have kinks: below it, steps along the gradient are made instead.
MIN_KINKED_STEP = 2.0**-40
#: The smallest Lambda over beta where slopes have kinks, for one feature.
MIN_KINK_RATIO = 2.0**-46


@dataclass(frozen=True)
class ObjectivePerturbation(Training):
    """The approximate minimiser of an objective with a random linear term, with noise that hides its error."""

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
        """Return the delta of the linear term q at the epsilon that remains after the release noise.

        Proof: objective_perturbation.md 4
        """
        return self.compute_composed_delta(0.0, epsilon)

    def knows_composed_delta(self, others: Sequence[Event]) -> bool:
        # A matrix is released after the training; other events may be before it.
        ordered = allows_releases_before(self.problem) or all(isinstance(one, NoisyMatrix) for one in others)
        return self.linear.kind == "gaussian" and ordered

    def compute_composed_delta(self, mu: float, epsilon: float) -> float:
        """Return the delta of the training, whose q is Gaussian, composed with Gaussian mechanisms of this mu.

        Proof: noisy_matrix.md 3
        """
        spent = math.nextafter(self.sensitivity.total / self.end.scale, math.inf)
        left = math.nextafter(epsilon - spent, 0.0)
        return bound_minimiser_delta(self.problem, self.linear, left, other_mu=mu) if left > 0 else 1.0

    @property
    def training_noise(self) -> Mechanism:
        return self.linear

    @property
    def release_noise(self) -> Mechanism:
        """Noise added to the weights where the solver stopped, which hides how far they are from the minimiser."""
        return self.end

    @property
    def sensitivity(self) -> Sensitivity:
        """The sensitivity of the weights where the solver stopped, given the exact minimiser."""
        return bound_stopping_sensitivity(self.problem, self.linear)

    @property
    def noisy_vectors(self) -> tuple[tuple[str, Mechanism, float, int], ...]:
        simplex, _, changed = _get_noise_inputs(self.problem)
        return (("linear term", self.linear, 2.0 * changed * simplex.max_slope, 1), *super().noisy_vectors)

    @property
    def derived_numbers(self) -> dict[str, Any]:
        return {"sensitivity_at_the_end": self.sensitivity.total, "volume_term": bound_volume_term(self.problem)}


def make_objective_perturbation(problem: Problem, budget: Budget, *, other_mu: float = 0.0) -> ObjectivePerturbation:
    """Return the event of objective perturbation with noise calibrated to a budget.

    If Gaussian mechanisms of mu `other_mu` share the budget, it has a delta, and the noise is Gaussian. They must be
    released after the training unless `allows_releases_before`.
    """
    for_noise, for_stopping = split_budget(budget)
    if other_mu:
        deviation = calibrate_gaussian_term(problem, for_noise, other_mu=other_mu)
        noise = Mechanism("gaussian", deviation, problem.dimensions)
    else:
        noise = calibrate_objective_noise(problem, for_noise)
    distance = bound_stopping_sensitivity(problem, noise)
    end = calibrate(distance.total, dimensions=problem.dimensions, budget=for_stopping)
    return ObjectivePerturbation(problem, noise, end)


def allows_releases_before(problem: Problem) -> bool:
    """Return whether what is composed beside a training may be released before it, and so decide its features.

    Where features decide in which of several cases two rows are, it may not: it must be released after the training.

    Proof: noisy_matrix.md 3
    """
    simplex, _, _ = _get_noise_inputs(problem)
    return len(list_corners(simplex)) == 1


def split_budget(budget: Budget) -> tuple[Budget, Budget]:
    """Return the budgets of the linear term q and of stopping before the exact minimum; their sum is within the whole.

    Proof: objective_perturbation.md 4
    """
    stopping = STOPPING_SHARE * budget.epsilon
    return (Budget(math.nextafter(budget.epsilon - stopping, 0.0), budget.delta), Budget(stopping))


def check_objective(problem: Problem) -> None:
    """Raise ParameterError for a problem that the proof of objective perturbation does not cover.

    Proof: objective_perturbation.md 1
    """
    loss = problem.loss
    if loss.simplex.max_slope < loss.lipschitz * (1.0 - 4 * UNIT):
        raise ParameterError(f"the simplex of the loss {loss.name!r} must have edges of L, as one row's slopes can")
    if not problem.regularization > 0:
        raise ParameterError(f"regularization must be > 0 for objective perturbation, got {problem.regularization}")
    if isinstance(problem, Recipe):
        raise ParameterError("objective perturbation must be of a problem without passes, got a recipe of SGD")
    check_summable(problem)


def check_summable(problem: Problem) -> None:
    """Raise ParameterError for a problem with more rows than the kernel sums exactly.

    Proof: objective_perturbation.md 5
    """
    if problem.rows > MAX_SUMMED:
        raise ParameterError(f"the data must have at most {MAX_SUMMED:,} rows to be summed, got {problem.rows:,}")


def check_solvable(problem: Problem, noise: Mechanism | None) -> None:
    """Raise ParameterError if the regularization is so small that the solver might not find the minimum on some rows.

    An error of the solver would reveal something about the rows; this error depends on public numbers only.

    Proof: objective_perturbation.md 6
    """
    least = find_min_solvable_regularization(problem, noise)
    if problem.regularization < least:
        # Rounded up, so that the number in the message is large enough.
        enough = float(f"{1.005 * least:.2e}")
        raise ParameterError(
            f"regularization must be at least {enough:g} for objective perturbation, got {problem.regularization:g}",
            hint="below it, double precision may not find the minimum, and an error then would depend on the rows",
        )


def find_min_solvable_regularization(problem: Problem, noise: Mechanism | None) -> float:
    """Return the smallest Lambda for which the solver finds the minimum for any rows, by steps above `MIN_STEP`.

    Proof: objective_perturbation.md 6
    """
    loss, simplex = problem.loss, problem.loss.simplex
    if simplex.kink_curvature is not None:
        return loss.smoothness * MIN_KINK_RATIO * (problem.dims + 6.0 + 6.0 * math.sqrt(loss.vector_count))
    longest = bound_noise_norm(noise)
    # How fast the curvature along a row changes, relative to itself, grows with the norm of the row.
    change = math.sqrt(simplex.edge_squared) * (MAX_DOWNWEIGHTED_NORM if problem.downweighted else 1.0)
    center = problem.regularization * MAX_CENTER if problem.downweighted else 0.0
    bound = 20.0 * math.sqrt(2.0) * MIN_STEP * change * (loss.lipschitz + longest / problem.rows + center)
    return max(bound, math.pow(bound * math.sqrt(loss.smoothness), 2.0 / 3.0))


def calibrate_objective_noise(problem: Problem, budget: Budget) -> Mechanism:
    """Return the noise of the linear term q, of smallest expected L2 norm, that makes the exact minimiser private.

    Proof: objective_perturbation.md 2, 3
    """
    check_objective(problem)
    spherical = Mechanism("spherical", calibrate_spherical_term(problem, budget), problem.dimensions)
    if budget.delta == 0:
        return spherical
    # Where Gaussian noise of the same norm is not enough, only more is, and how much need not be searched.
    deviation = spherical.expected_norm / Mechanism("gaussian", 1.0, problem.dimensions).expected_norm
    if not _is_enough(problem, deviation, budget):
        return spherical
    gaussian = Mechanism("gaussian", calibrate_gaussian_term(problem, budget), problem.dimensions)
    return choose_smallest_noise(gaussian, spherical)


def bound_minimiser_delta(problem: Problem, noise: Mechanism, epsilon: float, *, other_mu: float = 0.0) -> float:
    """Return an upper bound on the delta of the exact minimiser at an epsilon, if the linear term q has this noise.

    Gaussian mechanisms of mu `other_mu` are composed with it; q is Gaussian then.

    Proof: objective_perturbation.md 2, 3
    Proof: noisy_matrix.md 3
    """
    if noise.kind == "spherical" and _is_purely_private(problem, noise.scale, epsilon):
        return 0.0
    return round_up_delta(_bound_delta(problem, noise, epsilon, other_mu))


@lru_cache(maxsize=1024)
def calibrate_spherical_term(problem: Problem, budget: Budget) -> float:
    """Return the smallest certified scale of a spherical linear term q: 2*L/epsilon if delta is 0 and Lambda is large.

    Proof: objective_perturbation.md 3
    """
    check_volume_term(problem, budget.epsilon)
    if budget.delta == 0:
        simplex, _, changed = _get_noise_inputs(problem)
        # 2gL/epsilon, rounded up, is a lower bound for any strength.
        least = math.nextafter(2.0 * changed * simplex.max_slope / budget.epsilon, math.inf)
        if _is_purely_private(problem, least, budget.epsilon):
            return least
        return find_smallest_number(lambda scale: _is_purely_private(problem, scale, budget.epsilon))

    def compute_delta(scale: float) -> arb:
        return _bound_delta(problem, Mechanism("spherical", scale, problem.dimensions), budget.epsilon)

    pure = calibrate_spherical_term(problem, Budget(budget.epsilon))
    return find_spherical_scale(compute_delta, delta=budget.delta, pure=pure)


@lru_cache(maxsize=1024)
def calibrate_gaussian_term(problem: Problem, budget: Budget, *, other_mu: float = 0.0) -> float:
    """Return the smallest standard deviation of a Gaussian linear term q, to 12 digits, certified by intervals.

    Gaussian mechanisms of mu `other_mu` are composed with it.

    Proof: objective_perturbation.md 3
    Proof: noisy_matrix.md 3
    """
    check_volume_term(problem, budget.epsilon)

    if other_mu and not _is_enough(problem, MAX_DEVIATION, budget, other_mu):
        raise ParameterError(
            f"what is released beside the weights must leave a part of epsilon = {budget.epsilon:g} and delta = "
            f"{budget.delta:g} to them, and does not",
            hint="a larger regularization spends less of it",
        )
    return find_smallest_number(lambda deviation: _is_enough(problem, deviation, budget, other_mu))


def check_volume_term(problem: Problem, epsilon: float) -> None:
    """Raise ParameterError if the volume term of the privacy loss (`bound_volume_term`) alone can use up epsilon.

    Proof: objective_perturbation.md 3
    """
    # A difference below this is dominated by cancellation.
    if not epsilon - bound_volume_term(problem) > 1e-6 * epsilon:
        raise ParameterError(
            f"regularization must be above {find_min_regularization(problem, epsilon):.3g} for epsilon ="
            f" {epsilon:g} and {problem.rows} rows, got {problem.regularization:g}"
        )


def bound_volume_term(problem: Problem) -> float:
    """Return an upper bound on the volume term: how one row, or person, changes the log volume of the minimiser map.

    Proof: objective_perturbation.md 2
    Proof: adjacency.md 4
    """
    simplex, (rows, regularization), changed = _get_noise_inputs(problem)
    share = simplex.mean_curvature / (rows * regularization)
    return changed * simplex.directions * math.log1p(share) * (1.0 + 16.0 * UNIT)


def find_min_regularization(problem: Problem, volume: float) -> float:
    """Return the Lambda at which `bound_volume_term` equals `volume`; only above it can noise achieve this epsilon.

    Proof: objective_perturbation.md 2
    """
    simplex, (rows, _), changed = _get_noise_inputs(problem)
    share = volume / (changed * simplex.directions)
    return simplex.mean_curvature / (rows * math.expm1(share)) if share < 700 else 0.0


def find_ample_regularization(problem: Problem, epsilon: float) -> float:
    """Return the Lambda above which the noise for pure privacy gets no smaller, as the volume term costs nothing.

    Where slopes have kinks it always costs something, and at this Lambda `KINK_SHARE` of epsilon.

    Proof: objective_perturbation.md 3
    """
    simplex, (rows, _), changed = _get_noise_inputs(problem)
    if simplex.kink_curvature is not None:
        return find_min_regularization(problem, KINK_SHARE * epsilon)
    factor = changed * (2.0 if simplex.vertices == 2 else 4.0) * simplex.reach
    return factor * simplex.edge_squared / (epsilon * rows) * (1.0 + 8 * UNIT)


def bound_gradient_rounding(problem: Problem, *, weights: float, noise: float) -> float:
    """Return an upper bound on the error of the computed gradient of F, given the norms of the weights and of q.

    Proof: objective_perturbation.md 5
    """
    loss, root = problem.loss, math.sqrt(problem.loss.vector_count)
    scores = (problem.dims + 6.0 + 6.0 * root) * weights + 4.0 * (root + loss.max_abs_label)
    # A weight of the row is one rounding more, for which losses of classes have room.
    slopes = loss.vector_count + (6.0 if loss.target == "classes" else 7.0)
    row = loss.smoothness * scores + slopes + loss.lipschitz * bound_gathering_error(problem.dims)
    row += bound_term_rounding(problem) / UNIT
    # The release maps the weights to the basis of free directions, which rounds too.
    turned = 8.0 * loss.vector_count**2
    whole = (4.0 + turned) * problem.rows * problem.regularization * weights + turned * noise
    return 1.01 * UNIT * (problem.rows * row + whole)


def bound_term_rounding(problem: Problem) -> float:
    """Return an upper bound on the L2 norm by which rounding to the grid changes one row's gradient.

    Proof: objective_perturbation.md 5
    """
    return math.sqrt(problem.dims * problem.loss.vector_count) * SUM_GRID / 2.0


def bound_gathering_error(dims: int) -> float:
    """Return a bound on the error of `FeatureMap.gather_sums`, in units of u times the sum of the row norms.

    Proof: objective_perturbation.md 5
    """
    return dims + 8.0


def bound_grid_error(noise: Mechanism | None) -> float:
    """Return an upper bound on the L2 distance between noise that is rounded to its grid and the real-valued noise.

    Proof: objective_perturbation.md 4
    """
    if noise is None:
        return 0.0
    return math.sqrt(noise.dimensions) * math.ldexp(1.0, -noise.grid_exponent - 1) * (1.0 + 8 * UNIT)


def bound_noise_norm(noise: Mechanism | None) -> float:
    """Return a norm that the noise exceeds with a probability below 10^-20; 0 without noise.

    Proof: objective_perturbation.md 6
    """
    if noise is None:
        return 0.0
    share = RARE / noise.dimensions
    return (1.0 + math.sqrt(2.0 * share) + share) * noise.expected_norm


def choose_gradient_tolerance(problem: Problem, noise: Mechanism | None) -> float:
    """Return tau, the norm of the gradient of the noisy objective F at which the solver stops.

    It is far above the rounding error of the gradient at any possible minimiser, so that the solver reaches it.

    Proof: objective_perturbation.md 4, 5
    """
    longest = bound_noise_norm(noise)
    strength = problem.rows * problem.regularization
    # The penalty of a downweighted problem may be centred at other weights than 0.
    center, loss = 0.0, problem.loss.loss_at_zero
    if problem.downweighted:
        center, loss = MAX_CENTER, max(loss, MAX_CENTER_LOSS)
    weights = center + math.sqrt(2.0 * loss / problem.regularization) + 2.0 * longest / strength
    linear = longest + strength * center
    unsure = bound_gradient_rounding(problem, weights=weights, noise=linear) + bound_grid_error(noise)
    return STOPPING_GRADIENT * problem.loss.lipschitz + 4.0 * unsure


def bound_stopping_sensitivity(problem: Problem, noise: Mechanism) -> Sensitivity:
    """Return the sensitivity of the computed weights, given that the exact minimisers of neighbours agree.

    Proof: objective_perturbation.md 4
    """
    bound = 2.0 * choose_gradient_tolerance(problem, noise) / (problem.rows * problem.regularization)
    return Sensitivity(bound, 8.0 * UNIT * bound, "gradient at the end")


def _get_noise_inputs(problem: Problem) -> tuple[Simplex, tuple[int, float], int]:
    """Return the simplex of the loss, the pair of m and Lambda, and the number of replaced rows."""
    return problem.loss.simplex, (problem.rows, problem.regularization), problem.changed_rows


def _is_purely_private(problem: Problem, scale: float, epsilon: float) -> bool:
    """Return whether spherical noise of this scale certainly makes the exact minimiser (epsilon, 0)-private.

    Proof: objective_perturbation.md 3
    Proof: adjacency.md 4
    """
    simplex, (rows, regularization), changed = _get_noise_inputs(problem)
    with set_precision(128):
        return bool(changed * bound_privacy_loss(simplex, arb(rows) * arb(regularization), arb(scale)) <= arb(epsilon))


def _is_enough(problem: Problem, deviation: float, budget: Budget, other_mu: float = 0.0) -> bool:
    """Return whether Gaussian noise of this standard deviation certainly makes the exact minimiser private."""
    # Its delta does not depend on the number of dimensions.
    noise = Mechanism("gaussian", deviation, 1)
    return bool(_bound_delta(problem, noise, budget.epsilon, other_mu) <= arb(budget.delta))


def _bound_delta(problem: Problem, noise: Mechanism, epsilon: float, other_mu: float = 0.0) -> arb:
    """Return an interval around the smaller of two bounds on delta: for all replaced rows at once, or by group privacy.

    With `other_mu`, the mu of composed Gaussian releases when all these rows change, only the first is known.

    Proof: adjacency.md 4
    Proof: noisy_matrix.md 3
    """
    simplex, strength, changed = _get_noise_inputs(problem)
    together = bound_corner_deltas(simplex, strength, noise, epsilon, changed, other_mu)
    if changed == 1 or other_mu:
        return together
    share = math.nextafter(epsilon / changed, 0.0)
    each = bound_corner_deltas(simplex, strength, noise, share)
    with set_precision(256):
        # Group privacy: the deltas of g rows add up with the factors 1, e^share, ..., e^((g-1)*share).
        growth = arb(share).exp()
        return together.min(each * (growth**changed - 1) / (growth - 1))
