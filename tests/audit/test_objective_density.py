"""The density of the minimiser is that of the loss that is audited, whatever the loss is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from boltdp._array_types import Doubles
from boltdp.audit.objective_density import Neighbours
from boltdp.losses import Logistic, Loss
from boltdp.privacy.training_problem import Problem
from tests.example_losses import every_loss


@dataclass(frozen=True)
class MadeUp(Logistic):
    """A loss that no module but this one knows: the logistic loss of half the score."""

    name = "made up"

    def compute_slopes(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return super().compute_slopes(scores / 2, label, positive=positive) / 2

    def compute_hessians(self, scores: Doubles, label: float, *, positive: int) -> Doubles:
        return super().compute_hessians(scores / 2, label, positive=positive) / 4


def neighbours(loss: Loss) -> Neighbours:
    plan = Problem(loss=loss, dims=2, rows=10, regularization=0.1)
    return Neighbours(plan, (1, np.array([0.6, 0.8])), (0, np.array([1.0, 0.0])))


@pytest.mark.parametrize("loss", [*every_loss(), MadeUp()], ids=str)
def test_derivatives_are_those_of_the_loss(loss: Loss) -> None:
    pair, step = neighbours(loss), 1e-6
    weights = np.random.default_rng(3).standard_normal((4, pair.plan.dimensions))
    for row in (pair.row, pair.other):
        label, x = row
        gradient, hessian = pair.compute_derivatives(row, weights)
        scores = (weights @ pair.basis).reshape(4, loss.vector_count, 2) @ x
        by_hand = (
            np.einsum("nv,d->nvd", loss.compute_slopes(scores, label, positive=1), x).reshape(4, -1) @ pair.basis.T
        )
        assert gradient == pytest.approx(by_hand, abs=1e-12)
        moved = step * np.eye(pair.plan.dimensions)
        for k, by in enumerate(moved):
            ahead, behind = (pair.compute_derivatives(row, weights + sign * by)[0] for sign in (1, -1))
            assert hessian[:, k] == pytest.approx((ahead - behind) / (2 * step), abs=1e-8)


def test_a_made_up_loss_is_not_taken_for_another() -> None:
    weights = np.ones((1, 2))
    (made_up, _), (logistic, _) = (
        neighbours(loss).compute_derivatives((1, np.eye(2)[0]), weights) for loss in (MadeUp(), Logistic())
    )
    assert abs(made_up - logistic).max() > 0.05
