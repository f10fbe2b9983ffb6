"""The release: the only place where noise meets weights, and the only way for weights to leave."""

from __future__ import annotations

import numpy as np

from boltdp.arraytypes import Doubles
from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.losses import Multinomial, contrasts
from boltdp.privacy.noise import RandomBytes, seeded_bytes, system_bytes


class Randomness:
    """Where random bits come from: the operating system, or a seed, for tests and research."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def stream(self, purpose: str = "") -> RandomBytes:
        """Random bytes for one purpose; of a seed, each purpose has its own."""
        if self.seed is None:
            return system_bytes
        return seeded_bytes(f"{purpose} {self.seed}" if purpose else self.seed)


def release(weights: Doubles, certificate: Certificate, *, seed: int | None = None) -> Doubles:
    """Add to `weights`, of shape (models, vectors, dims), the noise that `certificate` states.

    The certificate was made by `certify` before any row was read. A seed is accepted only where the certificate
    says so, which makes the result not private.

    >>> from boltdp.privacy.certificate import certify
    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.noise import Budget
    >>> from boltdp.privacy.recipe import Recipe
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> release(np.zeros((1, 1, 9)), certify(recipe, Budget(1.0))).shape
    (1, 1, 9)
    """
    recipe, mechanism = certificate.recipe, certificate.mechanism
    shape = (certificate.models, recipe.loss.vectors, recipe.dims)
    if weights.shape != shape:
        raise ParameterError(f"weights must have shape {shape}, got {weights.shape}")
    _check_seed(certificate, seed)
    if mechanism is None:
        return weights.copy()
    random_bytes = system_bytes if seed is None else seeded_bytes(seed)
    if not isinstance(recipe.loss, Multinomial):
        return np.stack([mechanism.add(model.ravel(), random_bytes).reshape(model.shape) for model in weights])
    # The K vectors of a multinomial model sum to zero: noise goes into the K - 1 directions they can move in.
    basis = contrasts(recipe.loss.classes)
    return np.stack(
        [basis.T @ mechanism.add((basis @ model).ravel(), random_bytes).reshape(-1, recipe.dims) for model in weights]
    )


def perturbation(certificate: Certificate, *, seed: int | None = None) -> Doubles:
    """The linear terms q of objective perturbation, of shape (models, vectors, dims), drawn as `certificate` states.

    A seed is accepted as in `release`, whose noise is another stream of it.

    >>> from boltdp.privacy.certificate import certify
    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.noise import Budget
    >>> from boltdp.privacy.recipe import Recipe
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1),
    ...                 regularization=0.01)
    >>> perturbation(certify(recipe, Budget(1.0), algorithm="objective")).shape
    (1, 1, 9)
    """
    recipe, noise = certificate.recipe, certificate.training_noise
    _check_seed(certificate, seed)
    if noise is None:
        return np.zeros((certificate.models, recipe.loss.vectors, recipe.dims))
    random_bytes = system_bytes if seed is None else seeded_bytes(f"perturbation {seed}")
    drawn = [noise.add(np.zeros(noise.dimensions), random_bytes) for _ in range(certificate.models)]
    if isinstance(recipe.loss, Multinomial):
        basis = contrasts(recipe.loss.classes)
        return np.stack([basis.T @ vector.reshape(-1, recipe.dims) for vector in drawn])
    return np.stack(drawn)[:, np.newaxis, :]


def could_be_released(weights: Doubles, certificate: Certificate) -> bool:
    """Whether weights of shape (models, vectors, dims) lie on the grid that a release of this certificate rounds to.

    It finds weights that were put in the place of released ones, such as those from before the noise.

    >>> from boltdp.privacy.certificate import certify
    >>> from boltdp.privacy.losses import Logistic
    >>> from boltdp.privacy.noise import Budget
    >>> from boltdp.privacy.recipe import Recipe
    >>> from boltdp.privacy.schedules import constant
    >>> recipe = Recipe(loss=Logistic(), dims=9, rows=1000, batch_size=10, passes=2, schedule=constant(0.1))
    >>> could_be_released(np.full((1, 1, 9), 0.1), certify(recipe, Budget(1.0)))
    False
    """
    if certificate.mechanism is None:
        return True
    tolerance = 0.0
    if isinstance(certificate.recipe.loss, Multinomial):
        classes = certificate.recipe.loss.classes
        # Turning into the K classes and back rounds: that much is forgiven.
        tolerance = 8.0 * classes * np.finfo(float).eps * float(np.abs(weights).max())
        if np.abs(weights.sum(axis=1)).max() > tolerance:
            return False
        weights = contrasts(classes) @ weights
    steps = np.ldexp(weights, certificate.mechanism.grid)
    return bool((np.abs(steps - np.rint(steps)) <= np.ldexp(tolerance, certificate.mechanism.grid)).all())


def _check_seed(certificate: Certificate, seed: int | None) -> None:
    if (seed is not None) != (certificate.randomness == "seeded"):
        raise ParameterError(f"a certificate with randomness {certificate.randomness!r} must match the use of a seed")
