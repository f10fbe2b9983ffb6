"""The algorithms, one file each; what they share is in `shared/`.

`standardize.py` comes before any of them, and `select.py` chooses among several trainings of one.
"""

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
from boltdp.privacy.certificate import Certificate
from boltdp.settings import Settings

__all__ = ["ALGORITHMS", "AUTO", "NOISELESS", "Algorithm", "Job", "algorithm_of", "chosen_algorithm", "named_algorithm"]

#: By name. An algorithm is registered here, and nowhere else.
ALGORITHMS: Mapping[str, Algorithm] = {
    one.name: one for one in (Objective(), NoisyGD(), BoltOn(), SCS13(), BST14(), DPSGD())
}
#: What "auto" tries, in this order: the first that can do what is asked for.
AUTO = ("objective", "bolton")
#: And what it tries before for several classes at once, where nothing is said about how to train.
AUTO_JOINT = "noisy-gd"
#: What "auto" is without noise, where there is nothing to gain by the others.
NOISELESS = "bolton"


def named_algorithm(name: str) -> Algorithm:
    """The algorithm of a name.

    >>> named_algorithm("bolton").noise_place
    'noise'
    """
    if name not in ALGORITHMS:
        raise ParameterError(f"algorithm must be one of auto, {', '.join(ALGORITHMS)}, got {name!r}")
    return ALGORITHMS[name]


def algorithm_of(certificate: Certificate) -> Algorithm:
    """The algorithm that trained what a certificate is about.

    >>> from boltdp.privacy.certificate import certify
    >>> from boltdp.privacy.events.objective_perturbation import make_objective_perturbation
    >>> from boltdp.losses import Logistic
    >>> from boltdp.privacy.training_problem import Problem
    >>> problem = Problem(loss=Logistic(), dims=9, rows=1000, regularization=0.01)
    >>> algorithm_of(certify(make_objective_perturbation(problem, Budget(1.0)), Budget(1.0))).name
    'objective'
    """
    return ALGORITHMS[certificate.algorithm]


def chosen_algorithm(settings: Sequence[Settings], loss: Loss, budget: Budget | None) -> Algorithm:
    """The algorithm that several settings ask for, or that "auto" is: the first that can do what all of them ask for.

    Objective perturbation needs the least noise for the same promise wherever its proof holds. It has no passes, and
    some losses are not smooth enough for it. For many classes at once, clipped gradients tell more than the noise of
    the objective leaves; that needs a delta. Which is better where was measured: docs/accuracy.md.

    >>> from boltdp.losses import HuberSVM, Logistic
    >>> settings, budget = [Settings(epsilon=1.0)], Budget(1.0)
    >>> chosen_algorithm(settings, Logistic(), budget).name, chosen_algorithm(settings, HuberSVM(), budget).name
    ('objective', 'bolton')
    """
    asked = settings[0].algorithm
    names: tuple[str, ...] = (asked,) if asked != "auto" else AUTO if budget is not None else (NOISELESS,)
    free = all(not each.given and each.regularization is None for each in settings)
    if asked == "auto" and budget is not None and loss.vectors > 1 and free:
        names = (AUTO_JOINT, *AUTO)
    tried = [named_algorithm(name) for name in names]
    fitting = next((one for one in tried if all(one.suits(each, loss, budget) for each in settings)), tried[-1])
    for each in settings:
        fitting.refuse(each, loss, budget)
    return fitting
