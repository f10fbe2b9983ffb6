"""The exact privacy loss of objective perturbation: the density of the minimiser.

objective_perturbation.md, sections 1 and 2, has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from boltdp._array_types import Doubles
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.training_problem import Problem

#: Maximum number of Newton steps where the method must converge, and in a search.
MAX_STEPS, SEARCH_STEPS = 200, 25
#: Iterations that align q with v, which depends on q.
ALIGNMENT_ROUNDS = 4
#: A row: its label, which is the index of a class or a number as the kernel reads it, and its features.
Row = tuple[float, Doubles]


@dataclass(frozen=True)
class Neighbours:
    """Two datasets: the row in which they differ, shared rows with their counts, and a linear pull on the weights.

    The row that differs occurs `times` times, as the rows of one person may. The pull is the gradient of rows that are
    misclassified by a wide margin, whose loss has no curvature. Weights are in the coordinates in which they can move,
    `Problem.dimensions` of them.
    """

    plan: Problem
    row: Row
    other: Row
    shared: tuple[tuple[Row, int], ...] = ()
    pull: tuple[float, ...] | None = None
    times: int = 1

    @cached_property
    def basis(self) -> Doubles:
        """The matrix from the coordinates in which weights can move to the weights."""
        classes = self.plan.loss.basis
        return np.asarray(np.kron(np.eye(1) if classes is None else classes, np.eye(self.plan.dims)))

    def compute_derivatives(self, row: Row, weights: Doubles) -> tuple[Doubles, Doubles]:
        """Return the gradient and the Hessian of a row's loss at each of the weights."""
        (label, x), loss, basis = row, self.plan.loss, self.basis
        weight = 1.0 if self.plan.class_weights is None else self.plan.class_weights[int(label)]
        scores = (weights @ basis).reshape(len(weights), loss.vector_count, -1) @ x
        slopes, bends = loss.compute_slopes(scores, label, positive=1), loss.compute_hessians(scores, label, positive=1)
        turned = (basis.reshape(len(basis), loss.vector_count, -1) @ x).T
        return weight * slopes @ turned, weight * turned.T @ bends @ turned

    def compute_shared_derivatives(self, weights: Doubles) -> tuple[Doubles, Doubles]:
        """Return the gradient and the Hessian of the penalty and the shared rows' losses at each of the weights."""
        free = weights.shape[1]
        strength = self.plan.rows * self.plan.regularization
        slope = strength * weights - (0.0 if self.pull is None else np.array(self.pull))
        bend = np.broadcast_to(strength * np.eye(free), (len(weights), free, free))
        for row, count in self.shared:
            gradient, hessian = self.compute_derivatives(row, weights)
            slope, bend = slope + count * gradient, bend + count * hessian
        return slope, bend

    def find_minimisers(self, noise: Doubles) -> Doubles:
        """Return the minimiser of the objective with each linear term q, by Newton's method."""
        weights, converged = self._run_newton(noise, steps=MAX_STEPS)
        assert converged, "Newton's method must converge"
        return weights

    def _run_newton(self, noise: Doubles, *, steps: int) -> tuple[Doubles, bool]:
        """Return the weights after at most `steps` Newton steps for each linear term q, and whether all converged."""
        strength = self.plan.rows * self.plan.regularization
        weights = np.zeros_like(noise) if self.pull is None else (np.array(self.pull) - noise) / strength
        tolerance = 1e-9 * max(1.0, 1e-3 * self.plan.rows)

        def compute_gradient_and_hessian(weights: Doubles) -> tuple[Doubles, Doubles]:
            (slope, bend), (gradient, hessian) = (
                self.compute_shared_derivatives(weights),
                self.compute_derivatives(self.row, weights),
            )
            return slope + self.times * gradient + noise, bend + self.times * hessian

        slope, bend = compute_gradient_and_hessian(weights)
        for _ in range(steps):
            left = np.linalg.norm(slope, axis=1)
            if left.max() < tolerance:
                break
            step, share = np.linalg.solve(bend, slope[:, :, None])[:, :, 0], np.ones(len(noise))
            for _ in range(50):
                ahead = weights - share[:, None] * step
                slope, bend = compute_gradient_and_hessian(ahead)
                worse = np.linalg.norm(slope, axis=1) > (1 - share / 4) * left + 0.1 * tolerance
                # Beyond a kink the gradient may be longer although the objective still falls.
                worse &= (slope * step).sum(axis=1) < 0
                if not worse.any():
                    break
                share[worse] /= 2
            weights = ahead
        return weights, bool(np.linalg.norm(slope, axis=1).max() < tolerance)

    def compute_moves(self, weights: Doubles) -> Doubles:
        """Return v, the change of the linear term q with which the other dataset has the same minimiser."""
        (gradient, _), (others, _) = (self.compute_derivatives(row, weights) for row in (self.row, self.other))
        return np.asarray(self.times * (gradient - others))

    def find_aligned_weights(self, lengths: Doubles) -> Doubles:
        """Return minimisers for linear terms q of about these norms along v, where the privacy loss is largest."""
        weights = np.zeros((len(lengths), self.plan.dimensions))
        for _ in range(ALIGNMENT_ROUNDS):
            moves = self.compute_moves(weights)
            far = np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-300)
            weights, _ = self._run_newton(lengths[:, None] * moves / far, steps=SEARCH_STEPS)
        return weights

    def compute_losses_at_weights(self, mechanism: Mechanism, weights: Doubles) -> Doubles:
        """Return the privacy loss at each of the weights: the log ratio of their densities on the two datasets."""
        slope, bend = self.compute_shared_derivatives(weights)
        (gradient, hessian), (others, other) = (
            self.compute_derivatives(row, weights) for row in (self.row, self.other)
        )
        moved = compute_log_ratio(mechanism, -slope - self.times * gradient, self.times * (gradient - others))
        before, after = bend + self.times * hessian, bend + self.times * other
        volumes: Doubles = np.linalg.slogdet(before)[1] - np.linalg.slogdet(after)[1]
        return moved + volumes

    def compute_losses_of_noise(self, mechanism: Mechanism, noise: Doubles) -> Doubles:
        """Return the privacy loss at the minimiser for each draw of the linear term q."""
        return self.compute_losses_at_weights(mechanism, self.find_minimisers(noise))


def compute_log_ratio(mechanism: Mechanism, noise: Doubles, move: Doubles) -> Doubles:
    """Return the log ratio of the density of each noise vector to that of the vector plus `move`."""
    before, after = np.linalg.norm(noise, axis=1), np.linalg.norm(noise + move, axis=1)
    if mechanism.kind == "gaussian":
        return np.asarray((after**2 - before**2) / (2 * mechanism.scale**2))
    return np.asarray((after - before) / mechanism.scale)


def make_quadrature(mechanism: Mechanism, *, fine: int) -> tuple[Doubles, Doubles]:
    """Return the nodes and weights of a quadrature over two-dimensional noise, finest along the first axis."""
    if mechanism.kind == "gaussian":
        first, parts = _compute_gauss_legendre_nodes(np.linspace(-9.0, 9.0, 4 * fine + 1))
        other, shares = np.polynomial.hermite_e.hermegauss(2 * fine)
        masses = np.outer(parts * np.exp(-(first**2) / 2) / np.sqrt(2 * np.pi), shares / shares.sum()).ravel()
        places = np.stack(np.meshgrid(first, other, indexing="ij"), axis=-1).reshape(-1, 2)
        return mechanism.scale * places, masses
    radii, parts = _compute_gauss_legendre_nodes(np.concatenate([[0.0], np.geomspace(0.05, 40.0, 2 * fine)]))
    angles, shares = _compute_gauss_legendre_nodes(np.concatenate([[0.0], np.geomspace(1e-4, np.pi / 2, 2 * fine)]))
    angles = np.concatenate([angles, -angles, np.pi - angles, np.pi + angles])
    masses = np.outer(parts * radii * np.exp(-radii), np.tile(shares, 4) / (2 * np.pi)).ravel()
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return mechanism.scale * (radii[:, None, None] * circle).reshape(-1, 2), masses


def draw_noise(mechanism: Mechanism, count: int, random: np.random.Generator) -> Doubles:
    """Draw `count` noise vectors in floating point, for estimates: never for a release."""
    normals = random.standard_normal((count, mechanism.dimensions))
    if mechanism.kind == "gaussian":
        return np.asarray(mechanism.scale * normals)
    lengths = random.gamma(mechanism.dimensions, mechanism.scale, (count, 1))
    return np.asarray(lengths * normals / np.linalg.norm(normals, axis=1, keepdims=True))


def _compute_gauss_legendre_nodes(ends: Doubles) -> tuple[Doubles, Doubles]:
    """Return nodes and weights of Gauss-Legendre quadrature on each interval between successive ends."""
    places, weights = np.polynomial.legendre.leggauss(8)
    middle, half = (ends[1:] + ends[:-1])[:, None] / 2, (ends[1:] - ends[:-1])[:, None] / 2
    return (middle + half * places).ravel(), (half * weights).ravel()
