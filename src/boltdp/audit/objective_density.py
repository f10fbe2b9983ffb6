"""The exact privacy loss of objective perturbation: the density of the minimiser.

objective_perturbation.md, sections 1 and 2, has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from boltdp._arrays import Doubles
from boltdp.errors import ParameterError
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

if TYPE_CHECKING:
    from typing_extensions import Self

#: Of Newton's method: until it converges, and where it need not.
MAX_STEPS, SEARCH_STEPS = 200, 25
#: How often q is turned to where v is, which turns with it.
TURNS = 4
#: A row: the index of its class, and its features.
Row = tuple[int, Doubles]


@dataclass(frozen=True)
class Neighbours:
    """Two datasets: their different rows, rows that they share with how often, and a linear pull on the weights.

    A person may have the same row several `times`.

    The pull is what rows do that are wrong by far, however the weights are: they have a slope and no curvature.
    Weights are in the coordinates in which they can move, `Problem.dimensions` of them.
    """

    plan: Problem
    row: Row
    other: Row
    shared: tuple[tuple[Row, int], ...] = ()
    pull: tuple[float, ...] | None = None
    times: int = 1

    @cached_property
    def basis(self) -> Doubles:
        """From these coordinates to the weights."""
        classes = self.plan.loss.basis
        return np.asarray(np.kron(np.eye(1) if classes is None else classes, np.eye(self.plan.dims)))

    def derivatives(self, row: Row, weights: Doubles) -> tuple[Doubles, Doubles]:
        """Gradient and Hessian of a row's loss, at each of the weights."""
        (label, x), loss, basis = row, self.plan.loss, self.basis
        weight = 1.0 if self.plan.class_weights is None else self.plan.class_weights[label]
        scores = (weights @ basis).reshape(len(weights), loss.vectors, -1) @ x
        slopes, bends = loss.slopes(scores, label, positive=1), loss.hessians(scores, label, positive=1)
        if bends is None:
            raise ParameterError(f"the density of the minimiser needs a loss with a Hessian, got {loss.name!r}")
        turned = (basis.reshape(len(basis), loss.vectors, -1) @ x).T
        return weight * slopes @ turned, weight * turned.T @ bends @ turned

    def rest(self, weights: Doubles) -> tuple[Doubles, Doubles]:
        """The same of all that both datasets have, the penalty included."""
        free = weights.shape[1]
        strength = self.plan.rows * self.plan.regularization
        slope = strength * weights - (0.0 if self.pull is None else np.array(self.pull))
        bend = np.broadcast_to(strength * np.eye(free), (len(weights), free, free))
        for row, count in self.shared:
            gradient, hessian = self.derivatives(row, weights)
            slope, bend = slope + count * gradient, bend + count * hessian
        return slope, bend

    def minimisers(self, noise: Doubles) -> Doubles:
        """For each q, by Newton's method."""
        weights, left = self._descended(noise, steps=MAX_STEPS)
        assert left.max() < self._enough, "Newton's method must converge"
        return weights

    @property
    def _enough(self) -> float:
        """Of a gradient that is as good as 0."""
        return 1e-9 * max(1.0, 1e-3 * self.plan.rows)

    def _descended(self, noise: Doubles, *, steps: int) -> tuple[Doubles, Doubles]:
        """Weights for each q, by steps that are halved until the gradient gets shorter, and how long it is there."""
        strength = self.plan.rows * self.plan.regularization
        weights = np.zeros_like(noise) if self.pull is None else (np.array(self.pull) - noise) / strength
        enough = self._enough

        def slope_and_bend(weights: Doubles) -> tuple[Doubles, Doubles]:
            (slope, bend), (gradient, hessian) = self.rest(weights), self.derivatives(self.row, weights)
            return slope + self.times * gradient + noise, bend + self.times * hessian

        slope, bend = slope_and_bend(weights)
        for _ in range(steps):
            left = np.linalg.norm(slope, axis=1)
            if left.max() < enough:
                break
            step, share = np.linalg.solve(bend, slope[:, :, None])[:, :, 0], np.ones(len(noise))
            for _ in range(50):
                ahead = weights - share[:, None] * step
                slope, bend = slope_and_bend(ahead)
                worse = np.linalg.norm(slope, axis=1) > (1 - share / 4) * left + 0.1 * enough
                if not worse.any():
                    break
                share[worse] /= 2
            weights = ahead
        return weights, np.linalg.norm(slope, axis=1)

    def moves(self, weights: Doubles) -> Doubles:
        """V: what is to be added to q for the other dataset to have the same weights."""
        (gradient, _), (others, _) = (self.derivatives(row, weights) for row in (self.row, self.other))
        return np.asarray(self.times * (gradient - others))

    def aligned(self, lengths: Doubles) -> Doubles:
        """Weights for q of about these lengths that point where v does: no others make the move likelier.

        What the loss is at weights does not depend on how they were found.
        """
        weights = np.zeros((len(lengths), self.plan.dimensions))
        for _ in range(TURNS):
            moves = self.moves(weights)
            far = np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-300)
            weights, _ = self._descended(lengths[:, None] * moves / far, steps=SEARCH_STEPS)
        return weights

    def losses_at(self, mechanism: Mechanism, weights: Doubles) -> Doubles:
        """The logarithm of how much likelier each of the weights are than with the other row."""
        slope, bend = self.rest(weights)
        (gradient, hessian), (others, other) = (self.derivatives(row, weights) for row in (self.row, self.other))
        moved = log_ratio(mechanism, -slope - self.times * gradient, self.times * (gradient - others))
        before, after = bend + self.times * hessian, bend + self.times * other
        volumes: Doubles = np.linalg.slogdet(before)[1] - np.linalg.slogdet(after)[1]
        return moved + volumes

    def losses(self, mechanism: Mechanism, noise: Doubles) -> Doubles:
        return self.losses_at(mechanism, self.minimisers(noise))

    @property
    def swapped(self) -> Self:
        return replace(self, row=self.other, other=self.row)


def log_ratio(mechanism: Mechanism, noise: Doubles, move: Doubles) -> Doubles:
    """Ln nu(q)/nu(q + v).

    >>> log_ratio(Mechanism("spherical", 2.0, 1), np.array([[3.0]]), np.array([[1.0]]))
    array([0.5])
    """
    before, after = np.linalg.norm(noise, axis=1), np.linalg.norm(noise + move, axis=1)
    if mechanism.kind == "gaussian":
        return np.asarray((after**2 - before**2) / (2 * mechanism.scale**2))
    return np.asarray((after - before) / mechanism.scale)


def quadrature(mechanism: Mechanism, *, fine: int) -> tuple[Doubles, Doubles]:
    """Places of q in two dimensions and what they weigh; finest along the first axis, to both sides.

    >>> for kind in ("gaussian", "spherical"):
    ...     places, masses = quadrature(Mechanism(kind, 3.0, 2), fine=6)
    ...     bool(abs(masses.sum() - 1.0) < 1e-6)
    True
    True
    """
    if mechanism.kind == "gaussian":
        first, parts = _pieces(np.linspace(-9.0, 9.0, 4 * fine + 1))
        other, shares = np.polynomial.hermite_e.hermegauss(2 * fine)
        masses = np.outer(parts * np.exp(-(first**2) / 2) / np.sqrt(2 * np.pi), shares / shares.sum()).ravel()
        places = np.stack(np.meshgrid(first, other, indexing="ij"), axis=-1).reshape(-1, 2)
        return mechanism.scale * places, masses
    radii, parts = _pieces(np.concatenate([[0.0], np.geomspace(0.05, 40.0, 2 * fine)]))
    angles, shares = _pieces(np.concatenate([[0.0], np.geomspace(1e-4, np.pi / 2, 2 * fine)]))
    angles = np.concatenate([angles, -angles, np.pi - angles, np.pi + angles])
    masses = np.outer(parts * radii * np.exp(-radii), np.tile(shares, 4) / (2 * np.pi)).ravel()
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return mechanism.scale * (radii[:, None, None] * circle).reshape(-1, 2), masses


def sample(mechanism: Mechanism, count: int, random: np.random.Generator) -> Doubles:
    """Draws of q for an estimate, in doubles.

    >>> lengths = np.linalg.norm(sample(Mechanism("spherical", 1.0, 3), 9999, np.random.default_rng(1)), axis=1)
    >>> bool(abs(lengths.mean() - 3.0) < 0.1)
    True
    """
    normals = random.standard_normal((count, mechanism.dimensions))
    if mechanism.kind == "gaussian":
        return np.asarray(mechanism.scale * normals)
    lengths = random.gamma(mechanism.dimensions, mechanism.scale, (count, 1))
    return np.asarray(lengths * normals / np.linalg.norm(normals, axis=1, keepdims=True))


def _pieces(ends: Doubles) -> tuple[Doubles, Doubles]:
    """Nodes and weights of Gauss and Legendre between each two of the ends."""
    places, weights = np.polynomial.legendre.leggauss(8)
    middle, half = (ends[1:] + ends[:-1])[:, None] / 2, (ends[1:] - ends[:-1])[:, None] / 2
    return (middle + half * places).ravel(), (half * weights).ravel()
