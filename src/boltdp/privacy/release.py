"""The one module where randomness meets private numbers, and the only way for what was computed from rows to leave.

    `release_counts`, `release_values`     noisy counts, of which a schema is drafted or a model measured
    `release_moments`   noisy sums, which centre the rows
    `draw_linear_terms`      noise before training
    `release_gradient`    noise in the sum of a scan
    `draw_update_keys`       keys of the noise that the kernel adds to updates, and `draw_sample_key` of its samples
    `release_weights`   noise after training
    `choose`, `release_count`, `draw_trials`, `pick`     the choice among candidates

What is drawn, and how much of it, was decided from public numbers before a row was read: it stands in the events of a
certificate. A seed is accepted only where the certificate says so, which makes the result not private.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flint import arb

from boltdp._arrays import Booleans, Doubles, Integers
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_counts import NoisyCounts
from boltdp.privacy.events.noisy_moments import UNIT, NoisyMoments, ReleasedMoments, check_rows
from boltdp.privacy.exact_sampling import RandomBytes as RandomBytes
from boltdp.privacy.exact_sampling import Uniforms, add_noise, seeded_bytes, system_bytes
from boltdp.privacy.mechanisms import Mechanism, calibrate, precision

V = TypeVar("V", bound=Hashable)

#: Length of a key: of the noise inside training, and of a pass's samples.
KEY_BYTES = 32


class Randomness:
    """Where random bits come from: the operating system, or a seed, for tests and research.

    >>> Randomness(7).stream()(4) == Randomness(7).stream()(4)
    True
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.drawn = False  #: whether anybody ever asked for random bytes

    def stream(self, purpose: str = "") -> RandomBytes:
        """Random bytes for one purpose; of a seed, each purpose has its own, which begins again each time."""
        self.drawn = True
        if self.seed is None:
            return system_bytes
        return seeded_bytes(f"{purpose} {self.seed}" if purpose else self.seed)

    def spawn(self) -> Iterator[Randomness]:
        """As many as are wanted, each independent of the others; of a seed, those of the seeds that follow it."""
        number = 0
        while True:
            yield self if self.seed is None else Randomness(self.seed + number)
            number += 1


def release_weights(weights: Doubles, certificate: Certificate, randomness: Randomness) -> Doubles:
    """Add to `weights`, of shape (models, vectors, dims), the noise that `certificate` states.

    Proof: mechanisms.md 3, 5
    """
    noise = certificate.release_noise
    check_seed(certificate, randomness)
    if noise is None:
        return weights.copy()
    return _noisy(weights, noise, certificate, randomness.stream())


def draw_linear_terms(certificate: Certificate, randomness: Randomness) -> Doubles:
    """The linear terms q of objective perturbation, of shape (models, vectors, dims), drawn as `certificate` states.

    Proof: objective_perturbation.md 1, 4
    """
    problem, noise = certificate.problem, certificate.training_noise
    check_seed(certificate, randomness)
    if noise is None:
        return np.zeros((certificate.models, problem.loss.vectors, problem.dims))
    random_bytes, basis = randomness.stream("perturbation"), problem.loss.basis
    drawn = [add_noise(noise, np.zeros(noise.dimensions), random_bytes) for _ in range(certificate.models)]
    if basis is None:
        return np.stack(drawn)[:, np.newaxis, :]
    return np.stack([basis.T @ vector.reshape(-1, problem.dims) for vector in drawn])


def release_gradient(sums: Doubles, certificate: Certificate, randomness: Randomness, *, scan: int) -> Doubles:
    """Add to the sums of one scan, of shape (models, vectors, dims), the noise that `certificate` states.

    Each scan of a seed has its own noise.

    Proof: noisy_gradient_descent.md 2
    """
    noise = certificate.training_noise
    assert noise is not None
    check_seed(certificate, randomness)
    return _noisy(sums, noise, certificate, randomness.stream(f"scan {scan}"))


def _noisy(numbers: Doubles, noise: Mechanism, certificate: Certificate, random_bytes: RandomBytes) -> Doubles:
    """Numbers of shape (models, vectors, dims) with noise in each model."""
    problem = certificate.problem
    shape = (certificate.models, problem.loss.vectors, problem.dims)
    if numbers.shape != shape:
        raise ParameterError(f"weights must have shape {shape}, got {numbers.shape}")
    basis = problem.loss.basis
    if basis is None:
        return np.stack([add_noise(noise, model.ravel(), random_bytes).reshape(model.shape) for model in numbers])
    # Vectors that sum to zero: noise goes into the directions they can move in.
    turned = [add_noise(noise, (basis @ model).ravel(), random_bytes) for model in numbers]
    return np.stack([basis.T @ model.reshape(-1, problem.dims) for model in turned])


def draw_update_keys(certificate: Certificate, random_bytes: RandomBytes) -> list[bytes | None]:
    """A key for the noise inside the training of each model, all different; None where there is no such noise."""
    return [None if certificate.training_noise is None else random_bytes(KEY_BYTES) for _ in range(certificate.models)]


def draw_sample_key(random_bytes: RandomBytes) -> bytes:
    """The key of one pass's samples: as secret as the rows.

    >>> len(draw_sample_key(Randomness().stream()))
    32
    """
    return random_bytes(KEY_BYTES)


def release_moments(
    sums: Integers, event: NoisyMoments, randomness: Randomness, *, rows: int, numbers: Booleans
) -> ReleasedMoments:
    """Add to `sums`, the two lines of `boltdp.kernel.feature_sums`, the noise that `event` states.

    `numbers` says which features are numbers.

    >>> event = NoisyMoments(moments="mean", features=2, numbers=2, clip_norm=1.0, noise=None)
    >>> sums = np.array([[2**20, 0], [2**20, 0]])
    >>> release_moments(sums, event, Randomness(), rows=2, numbers=np.array([True, True])).means
    array([0.5, 0. ])
    """
    if sums.shape != (2, event.features) or numbers.shape != (event.features,) or numbers.sum() != event.numbers:
        raise ParameterError(f"sums must be of {event.features} features, {event.numbers} of them numbers")
    check_rows(rows, clip_norm=event.clip_norm)
    if event.moments == "squares":
        vector = np.concatenate([sums[0], sums[1][numbers]]) * UNIT
    else:
        vector = np.append(sums[0] * UNIT, float(sums[1].sum()) * UNIT * event.norm_weight)
    deviation = 0.0
    if event.noise is not None:
        vector = add_noise(event.noise, vector, randomness.stream("moments"))
        deviation = event.noise.deviation / rows
    means, rest = vector[: event.features] / rows, vector[event.features :] / rows
    if event.moments == "squares":
        return ReleasedMoments(means, rest, None, deviation)
    return ReleasedMoments(means, None, float(rest[0]) / event.norm_weight, deviation)


def release_counts(counts: Sequence[int], event: NoisyCounts, random_bytes: RandomBytes) -> list[float]:
    """The counts of public intervals, each with the noise that `event` states.

    Proof: noisy_counts.md 2

    >>> from boltdp.privacy.events.noisy_counts import make_noisy_counts
    >>> len(release_counts([900, 0, 100], make_noisy_counts(Budget(1.0), releases=1), Randomness().stream()))
    3
    """
    return [float(add_noise(event.noise, np.array([float(count)]), random_bytes)[0]) for count in counts]


def release_values(counts: Mapping[V, int], event: NoisyCounts, random_bytes: RandomBytes) -> dict[V, float]:
    """Values that only rows know, with noisy counts: those above the threshold of `event`, the most frequent first.

    Proof: noisy_counts.md 3

    >>> from boltdp.privacy.events.noisy_counts import make_noisy_counts
    >>> event = make_noisy_counts(Budget(1.0, 1e-6), releases=1, unknown=1)
    >>> [*release_values({"a name": 1, "no": 5000, "yes": 9000}, event, Randomness().stream())]
    ['yes', 'no']
    """
    if event.threshold is None:
        raise ParameterError("the event must have a threshold for values that only rows know")
    present = [value for value, count in counts.items() if count > 0]
    noisy = release_counts([counts[value] for value in present], event, random_bytes)
    # In an order that what is released has, not that in which the rows have the values.
    above = [(count, value) for value, count in zip(present, noisy, strict=True) if count > event.threshold]
    return {value: count for count, value in sorted(above, key=lambda pair: (-pair[0], str(pair[1])))}


def choose(errors: Sequence[int], *, epsilon: float, random_bytes: RandomBytes) -> int:
    """The exponential mechanism: position i with probability ~ exp(-epsilon * errors[i] / 2).

    Exact: the smallest of ln(-ln U_i) + epsilon*errors[i]/2 has this distribution, and more bits of the uniforms are
    read until one of them is the smallest for certain.

    Proof: selection.md 1.1, 1.2

    >>> choose([900, 10, 800], epsilon=1.0, random_bytes=Randomness(1).stream())
    1
    """
    Budget(epsilon)  # refuses what is no epsilon
    if not errors:
        raise ParameterError("errors must have at least one count, got none")
    uniforms = Uniforms(len(errors), random_bytes)
    while True:
        with precision(uniforms.bits + 64):
            penalties = [arb(epsilon) * int(count) / 2 for count in errors]
            keys = [(-u.log()).log() + penalty for u, penalty in zip(uniforms.intervals(), penalties, strict=True)]
            for i, key in enumerate(keys):
                if all(bool(key < other) for j, other in enumerate(keys) if j != i):
                    return i
        uniforms.refine()


def release_count(count: int, *, epsilon: float, random_bytes: RandomBytes, changes: int = 1) -> float:
    """A count that neighbours can change by so much, with Laplace noise of this over epsilon.

    Proof: mechanisms.md 1
    Proof: adjacency.md 5

    >>> abs(release_count(1000, epsilon=1.0, random_bytes=Randomness(1).stream()) - 1000) < 30
    True
    """
    # In one dimension the spherical mechanism is Laplace's.
    mechanism = calibrate(float(changes), dimensions=1, budget=Budget(epsilon))
    return float(add_noise(mechanism, np.array([float(count)]), random_bytes)[0])


def draw_trials(mean: float, random_bytes: RandomBytes) -> int:
    """How many trials to make: geometric with this mean. It must stay secret.

    Proof: selection.md 2.3, 2.4

    >>> draw_trials(100.0, Randomness(1).stream()) >= 1
    True
    """
    uniforms = Uniforms(1, random_bytes)
    while True:
        with precision(uniforms.bits + 64):
            (u,) = uniforms.intervals()
            more = (u.log() / (1 - 1 / arb(mean)).log()).floor().unique_fmpz()
        if more is not None:
            return 1 + int(more)
        uniforms.refine()


def draw_index(count: int, random_bytes: RandomBytes) -> int:
    """A number from 0 to count - 1, each equally likely.

    >>> draw_index(3, Randomness(1).stream()) in (0, 1, 2)
    True
    """
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(random_bytes(8), "big") >> (64 - bits)
        if drawn < count:
            return drawn


def is_on_release_grid(weights: Doubles, certificate: Certificate) -> bool:
    """Whether weights of shape (models, vectors, dims) lie on the grid that a release of this certificate rounds to.

    It finds weights that replaced released ones, such as those from before the noise.
    """
    noise, basis = certificate.release_noise, certificate.problem.loss.basis
    if noise is None:
        return True
    tolerance = np.float64(0.0)
    # Weights too large to be counted in steps of the grid become infinite, and their differences no numbers.
    with np.errstate(over="ignore", invalid="ignore"):
        if basis is not None:
            # Turning into the vectors and back rounds: that much is forgiven.
            tolerance = 8.0 * basis.shape[1] * np.finfo(float).eps * np.abs(weights).max()
            if not np.abs(weights.sum(axis=1)).max() <= tolerance:
                return False
            weights = basis @ weights
        steps = np.ldexp(weights, noise.grid)
        return bool((np.abs(steps - np.rint(steps)) <= np.ldexp(tolerance, noise.grid)).all())


def check_seed(certificate: Certificate, randomness: Randomness) -> None:
    """Refuse a seed that the certificate does not speak of, and the lack of one that it does."""
    if (randomness.seed is not None) != certificate.seeded:
        said = "seeded" if certificate.seeded else "not seeded"
        raise ParameterError(f"a certificate that says the noise is {said} must match the use of a seed")
