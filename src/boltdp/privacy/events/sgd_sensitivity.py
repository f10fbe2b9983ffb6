"""The L2-sensitivity of SGD: an upper bound on the distance between two runs that differ in one replaced row.

`sgd_sensitivity.md` proves, in this order: the recursion (section 2), its closed forms (section 3), the bound on the
weights (section 4), the rounding margin (section 5) and the average of several partitions (section 8).
"""

from __future__ import annotations

import math
from ctypes import c_double, c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from boltdp._array_types import Doubles
from boltdp._native import load_library
from boltdp.errors import ParameterError
from boltdp.privacy.sgd_recipe import Recipe, check_undivided

UNIT = 2.0**-53  #: u, the relative error of one rounding

#: Above this many updates a looser bound without a loop over the updates replaces the recursion.
MAX_RECURSION = 50_000_000

#: Updates per chunk, chosen so that their arrays stay in the processor's cache.
_CHUNK = 1 << 16

_library = load_library({"recur_sensitivity": (None, [c_void_p, c_void_p, c_double, c_size_t, c_void_p])})


@dataclass(frozen=True)
class Sensitivity:
    """An L2-sensitivity: `bound` in real arithmetic, `margin` for the rounding of the two runs."""

    bound: float
    margin: float
    derivation: str  #: how the bound was found

    @property
    def total(self) -> float:
        """The sum of bound and margin, rounded up, to which noise is calibrated."""
        return math.nextafter(self.bound + self.margin, math.inf)


@lru_cache(maxsize=1024)
def compute_sgd_sensitivity(recipe: Recipe) -> Sensitivity:
    """Return the L2-sensitivity of the weights of an SGD run to the replacement of one row, or of one person.

    Proof: sgd_sensitivity.md 2, 3, 4, 5, 8
    Proof: adjacency.md 3
    """
    check_steps(recipe)
    if recipe.partitions > 1:
        return _bound_average_of_partitions(recipe)
    bound, derivation = _bound_distance(recipe)
    if 2.0 * bound_iterate_norm(recipe) < bound:
        bound, derivation = 2.0 * bound_iterate_norm(recipe), "diameter"
    return Sensitivity(bound, bound_rounding(recipe)[1], derivation)


def _bound_distance(recipe: Recipe) -> tuple[float, str]:
    """Return an upper bound on the distance between runs on neighbouring datasets, and the name of its derivation.

    Proof: sgd_sensitivity.md 2, 3
    Proof: adjacency.md 3
    """
    closed = _find_closed_form(recipe)
    if closed is not None:
        bound, derivation = closed, "closed form"
    elif recipe.updates <= MAX_RECURSION:
        bound, derivation = _run_recursion(recipe), "recursion"
    else:
        bound, derivation = _bound_by_first_steps(recipe), "first steps"
    # Computing the bound rounds too, and the rounded rho may exceed 1 where a closed form uses exactly 1.
    rounding = 1.0 + (8 * recipe.updates + 8 * recipe.passes + 16) * UNIT
    return bound * recipe.changed_rows * rounding, derivation


def _bound_average_of_partitions(recipe: Recipe) -> Sensitivity:
    """Return the sensitivity of the average of all partitions' runs; a person's rows may be in several partitions.

    Proof: sgd_sensitivity.md 8
    Proof: adjacency.md 3
    """
    bounds, margins = [], []
    longest = max(bound_rounding(run)[0] for run in recipe.partition_recipes)
    # Rounding of the average, and of the change of basis in the release: of the whole model, not of one partition.
    rounded = 2.0 * (recipe.partitions + recipe.weight_count + 9) * UNIT * longest * (1.0 + 2.0**-10)
    people = recipe.person_rows is not None
    for run in recipe.partition_recipes:
        alone, share = compute_sgd_sensitivity(run), run.rows / recipe.rows
        moved, derivation = _bound_distance(run) if people else (alone.bound, alone.derivation)
        bounds.append((moved * share * (1.0 + 4 * UNIT), derivation))
        # The rounding errors of at most as many partitions differ as there are removed and added rows.
        erring = min(1.0, 2.0 * recipe.changed_rows * share) if people else share
        margins.append(alone.margin * erring * (1.0 + 4 * UNIT) + rounded)
    bound, derivation = max(bounds)
    diameter = 2.0 * max(bound_iterate_norm(run) for run in recipe.partition_recipes)
    if people and diameter < bound:
        bound, derivation = diameter, "diameter"
    return Sensitivity(bound, max(margins), f"{derivation}, in each of {recipe.partitions} partitions")


def check_steps(recipe: Recipe) -> None:
    """Raise ParameterError if a step size exceeds 2/beta, where an update can increase distances.

    Proof: sgd_sensitivity.md 2
    """
    if recipe.schedule.largest > 2.0 / recipe.beta:
        raise ParameterError(
            f"the step size must be at most 2/beta = {2.0 / recipe.beta:.6g}, got {recipe.schedule.largest:.6g}",
            hint="the privacy analysis needs steps that do not expand distances; take a smaller step",
        )


def _run_recursion(recipe: Recipe) -> float:
    """Return the bound on the distance between two runs by one backward loop over the updates.

    A row in the batch of update t moves the result by at most (2*L*eta_t/|B_t|) * A_t, where A_t is the distance in the
    (averaged) result per unit of distance at update t: A_t = alpha_t + rho_{t+1} * A_{t+1}.

    Proof: sgd_sensitivity.md 2
    """
    n, last = recipe.batches, recipe.updates
    first_averaged = last - recipe.averaged + 1
    fresh = recipe.permutation == "fresh"
    summed = np.zeros(1 if fresh else n)
    rest, rho_next = 0.0, 1.0  # A_{t+1} and rho_{t+1}; A is 0 after the last update
    for p in reversed(range(recipe.passes)):
        worst_in_pass = 0.0
        for start in reversed(range(0, n, _CHUNK)):
            stop = min(start + _CHUNK, n)
            t = np.arange(p * n + start + 1, p * n + stop + 1)
            eta = recipe.schedule.compute_steps(t)
            rho = _compute_contraction(eta, recipe)
            alpha = np.where(t >= first_averaged, 1.0 / recipe.averaged, 0.0)
            remaining = _solve_recursion(alpha, np.append(rho[1:], rho_next), rest)
            rest, rho_next = float(remaining[0]), float(rho[0])
            reach = 2.0 * recipe.loss.lipschitz * eta / _compute_batch_sizes(recipe, start, stop) * remaining
            if fresh:
                worst_in_pass = max(worst_in_pass, float(reach.max()))
            else:
                summed[start:stop] += reach
        summed[0] += worst_in_pass
    return float(summed.max())


def _solve_recursion(alpha: Doubles, rho_next: Doubles, rest: float) -> Doubles:
    """Solve A_i = alpha_i + rho_next_i * A_{i+1} for all i, given A_{len} = rest."""
    if not alpha.any():
        products: Doubles = np.multiply.accumulate(rho_next[::-1])[::-1]
        return rest * products
    distance = np.empty_like(alpha)
    _library.recur_sensitivity(alpha.ctypes.data, rho_next.ctypes.data, rest, len(alpha), distance.ctypes.data)
    return distance


def _compute_contraction(eta: Doubles, recipe: Recipe) -> Doubles:
    """Return by how much each update scales distances at most: max(|1 - eta*gamma|, |1 - eta*beta|), rounded up.

    Proof: sgd_sensitivity.md 2
    """
    upward = 8.0 * UNIT
    rho = np.abs(1.0 - eta * recipe.beta) + upward
    return np.maximum(rho, np.abs(1.0 - eta * recipe.regularization) + upward if recipe.regularization else 1.0)


def _compute_batch_sizes(recipe: Recipe, start: int, stop: int) -> Doubles:
    """Return the sizes of batches start, ..., stop - 1; batch j ends before row floor((j+1)*m/n)."""
    size, extra = divmod(recipe.rows, recipe.batches)
    return size + np.diff(np.arange(start, stop + 1) * extra // recipe.batches).astype(np.float64)


def _find_closed_form(recipe: Recipe) -> float | None:
    """Return the sensitivity bound of `_run_recursion` for the last iterate in closed form; None if it has none.

    Proof: sgd_sensitivity.md 3
    """
    n, schedule, gamma = recipe.batches, recipe.schedule, recipe.regularization
    if recipe.averaging != "last":
        return None
    if gamma == 0:
        return _bound_by_first_steps(recipe)
    if schedule.growth == "none" and recipe.permutation == "once":
        return _bound_constant_step(recipe)
    harmonic = (
        schedule.growth == "linear"
        and schedule.offset == 0
        and math.isclose(schedule.scale * gamma, 1.0, rel_tol=4 * UNIT)
        and schedule.largest * recipe.beta <= 1.0 + 4 * UNIT
    )
    capped = schedule.scale / schedule.cap  # updates before the steps start to decrease
    if harmonic and n > capped + _compute_small_batch_spacing(recipe):
        return 2.0 * recipe.loss.lipschitz * schedule.scale / (float(n) * recipe.smallest_batch)
    return None


def _bound_by_first_steps(recipe: Recipe) -> float:
    """Return a bound on the sensitivity of the weights: for a row in the first batch of each pass, never contracted.

    Proof: sgd_sensitivity.md 3.1
    """
    first = recipe.schedule.compute_steps(np.arange(recipe.passes) * float(recipe.batches) + 1.0)
    return 2.0 * recipe.loss.lipschitz / recipe.smallest_batch * float(first.sum())


def _bound_constant_step(recipe: Recipe) -> float:
    """Return the bound for a constant step; the last batch of each size is the worst of its size.

    Proof: sgd_sensitivity.md 3.2
    """
    eta = recipe.schedule.compute_steps(1)
    rho = float(_compute_contraction(eta, recipe)[0])
    n = recipe.batches
    visits = sum(rho ** (p * n) for p in range(recipe.passes))
    latest = {recipe.smallest_batch: n + 1 - _compute_small_batch_spacing(recipe)}
    latest[recipe.largest_batch] = n  # the last batch is one of the largest
    reach = 2.0 * recipe.loss.lipschitz * float(eta[0]) * visits
    return max(reach / size * rho ** (n - j) for size, j in latest.items())


def _compute_small_batch_spacing(recipe: Recipe) -> int:
    """Return the number of consecutive batches that always contain a small one."""
    n = recipe.batches
    return -(-n // (n - recipe.rows % n))


def bound_iterate_norm(recipe: Recipe) -> float:
    """Return an upper bound on the norm of the weights after any update, in real arithmetic.

    Proof: sgd_sensitivity.md 4
    """
    total, squares = _bound_step_sums(recipe)
    lipschitz = recipe.loss.lipschitz
    bounds = [recipe.radius, lipschitz * total]
    if recipe.schedule.largest * recipe.regularization <= 1.0:
        bounds.append(math.sqrt(2.0 * recipe.loss.loss_at_zero * total + lipschitz**2 * squares))
    return min(bounds) * (1.0 + 2.0**-20)


def bound_rounding(recipe: Recipe) -> tuple[float, float]:
    """Return bounds on the norm of the computed weights, and on what rounding adds to the distance of two runs.

    Proof: sgd_sensitivity.md 5
    """
    # The rounding error of a run is at most `relative` times the largest norm of its weights, plus `absolute`.
    d, t = recipe.weight_count, recipe.updates + 1
    relative = t * UNIT * (3 * d + 24)
    absolute = t * UNIT * (3 * d + recipe.largest_batch + 32) * recipe.schedule.largest * recipe.loss.lipschitz
    if relative > 0.5:
        raise ParameterError(f"the run must be short enough for double precision, got {recipe.updates} updates")
    longest = (bound_iterate_norm(recipe) + absolute) / (1.0 - relative)
    return longest, 2.0 * (relative * longest + absolute) * (1.0 + 2.0**-10)


def _bound_step_sums(recipe: Recipe) -> tuple[float, float]:
    """Return upper bounds on the sums over all updates of the step sizes and of their squares."""
    updates = recipe.updates
    edges = np.unique(np.geomspace(1, updates + 1, num=4096).astype(np.int64))
    edges[-1] = updates + 1
    lengths = np.diff(edges)
    eta = recipe.schedule.compute_steps(edges[:-1])
    return float(eta @ lengths), float((eta * eta) @ lengths)


def compute_published_sensitivity(recipe: Recipe) -> Sensitivity:
    """Return the sensitivity as the paper prints it, for its figures. NOT a bound for batches of a strongly convex run.

    Proof: sgd_sensitivity.md 6
    """
    check_undivided(recipe, "the published bounds")
    m, k, gamma, schedule = recipe.rows, recipe.passes, recipe.regularization, recipe.schedule
    # The paper includes the regulariser in L, with its radius R = 1/lambda.
    lipschitz = recipe.loss.lipschitz
    if gamma:
        lipschitz += gamma * min(recipe.radius, 1.0 / gamma)
    if schedule.growth == "none" and gamma:
        shrunk = 1.0 - (1.0 - schedule.scale * gamma) ** m
        if shrunk == 0:
            raise ParameterError(f"regularization must be larger for the published bound, got {gamma:g}")
        bound = 2.0 * schedule.scale * lipschitz / shrunk
    elif schedule.growth == "none":
        bound = 2.0 * k * lipschitz * schedule.scale
    elif schedule.growth == "linear" and gamma and schedule.offset == 0:
        bound = 2.0 * lipschitz / (gamma * m)
    elif schedule.growth == "linear" and schedule.offset:
        bound = 2.0 * lipschitz * schedule.scale * (1.0 / schedule.offset + math.log(k) / m)
    else:
        bound = 2.0 * lipschitz * schedule.scale * sum(1.0 / (math.sqrt(j * m + 1) + schedule.offset) for j in range(k))
    return Sensitivity(bound / recipe.batch_size, 0.0, "as published")
