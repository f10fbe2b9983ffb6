"""The algorithms, one module each; modules with an underscore are shared by several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from boltdp.algorithms._base import Algorithm, Job
from boltdp.algorithms.bolton import BoltOn
from boltdp.algorithms.bst14 import BST14
from boltdp.algorithms.dpsgd import DPSGD
from boltdp.algorithms.noisy_gd import NoisyGD
from boltdp.algorithms.objective import Objective
from boltdp.algorithms.scs13 import SCS13
from boltdp.errors import ParameterError
from boltdp.losses import Loss
from boltdp.privacy.budget import Budget
from boltdp.settings import Settings

__all__ = ["ALGORITHMS", "AUTO", "Algorithm", "Job", "choose_algorithm", "get_algorithm"]

#: All algorithms by name: the one place where an algorithm is registered.
ALGORITHMS: Mapping[str, Algorithm] = {
    one.name: one for one in (Objective(), NoisyGD(), BoltOn(), SCS13(), BST14(), DPSGD())
}
#: The algorithms that "auto" tries, in this order.
AUTO = tuple(ALGORITHMS[kind.name] for kind in (NoisyGD, Objective, BoltOn))


def get_algorithm(name: str) -> Algorithm:
    """Return the algorithm with this name; raise ParameterError if there is none."""
    if name not in ALGORITHMS:
        raise ParameterError(f"algorithm must be one of auto, {', '.join(ALGORITHMS)}, got {name!r}")
    return ALGORITHMS[name]


def choose_algorithm(
    settings: Sequence[Settings], loss: Loss, budget: Budget | None, *, dims: int, rows: int
) -> Algorithm:
    """Return the algorithm that all of `settings` ask for; for "auto", the first of `AUTO` that fits all of them.

    Objective perturbation needs the least noise for the same guarantee, but has no passes. For many classes at once,
    and with much noise for a number with many features and for a loss with kinks, noisy gradient descent is more
    accurate; it needs a delta. docs/accuracy.md has the measurements.
    """
    chosen = AUTO[-1]
    if settings[0].algorithm != "auto":
        chosen = get_algorithm(settings[0].algorithm)
    else:
        for one in AUTO:
            if all(one.fits_auto(each, loss, budget, dims=dims, rows=rows) for each in settings):
                return one
    for each in settings:
        chosen.check(each, loss, budget)
    return chosen
