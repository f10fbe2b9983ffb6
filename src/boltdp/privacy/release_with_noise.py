"""The only module that adds noise to private numbers: every result computed from rows is released here.

    `release_counts`, `release_values`    noisy counts, to draft a schema or to evaluate a model
    `release_label_count`    noisy counts of rows without a usable label, or of a class
    `release_label_quantiles`    quantiles of a label that is a number
    `release_moments`     noisy sums, to centre the features
    `draw_linear_terms`   noise before training
    `release_gradient`    noise in the sum of a scan
    `draw_update_keys`, `draw_sample_key`    keys of the kernel's noise in updates, and of its samples
    `release_weights`     noise after training
    `release_matrix`      a noisy Hessian, for inference
    `choose_by_errors`, `release_count`, `draw_trial_count`, `draw_index`    selection among candidates

The events of a certificate state the noise, which was calibrated from public numbers before any row was read. A seed is
accepted only if the certificate states it, which makes the result non-private.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flint import arb

from boltdp._array_types import Booleans, Doubles, Integers
from boltdp.errors import ParameterError
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.label_quantiles import LabelQuantiles, compute_bin_end, score_bins
from boltdp.privacy.events.noisy_counts import NoisyClassCount, NoisyCounts, NoisyUnusableLabelCount
from boltdp.privacy.events.noisy_matrix import NoisyMatrix, flatten_matrix
from boltdp.privacy.events.noisy_moments import UNIT, NoisyMoments, ReleasedMoments, check_moment_rows
from boltdp.privacy.exact_noise import RandomBytes as RandomBytes
from boltdp.privacy.exact_noise import Uniforms, add_noise, make_seeded_bytes, system_bytes
from boltdp.privacy.mechanisms import Mechanism, calibrate, set_precision

V = TypeVar("V", bound=Hashable)

#: The length of the keys of the noise inside training and of the samples of a pass.
KEY_BYTES = 32


class Randomness:
    """A source of random bytes: the operating system, or a seed for tests and research."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.drawn = False  #: whether `make_stream` was ever called

    def make_stream(self, purpose: str = "") -> RandomBytes:
        """Return a source of random bytes for one purpose; with a seed, each call restarts the purpose's own source."""
        self.drawn = True
        if self.seed is None:
            return system_bytes
        return make_seeded_bytes(f"{purpose} {self.seed}" if purpose else self.seed)

    def spawn(self) -> Iterator[Randomness]:
        """Yield independent sources of randomness without end; with a seed, those of this and the following seeds."""
        number = 0
        while True:
            yield self if self.seed is None else Randomness(self.seed + number)
            number += 1


def release_weights(weights: Doubles, certificate: Certificate, randomness: Randomness) -> Doubles:
    """Return `weights`, of shape (models, vectors, dims), with the release noise that `certificate` states.

    Proof: mechanisms.md 3, 5
    """
    check_seed(certificate, randomness)
    noise = certificate.release_noise
    if noise is None:
        return weights.copy()
    return _add_noise_per_model(weights, noise, certificate, randomness.make_stream())


def draw_linear_terms(certificate: Certificate, randomness: Randomness) -> Doubles:
    """Draw the linear terms q of objective perturbation, of shape (models, vectors, dims), as `certificate` states.

    Proof: objective_perturbation.md 1, 4
    """
    problem, noise = certificate.problem, certificate.training_noise
    check_seed(certificate, randomness)
    zeros = np.zeros((certificate.model_count, problem.loss.vector_count, problem.dims))
    if noise is None:
        return zeros
    return _add_noise_per_model(zeros, noise, certificate, randomness.make_stream("perturbation"))


def release_matrix(matrix: Doubles, event: NoisyMatrix, certificate: Certificate, randomness: Randomness) -> Doubles:
    """Return a matrix summed over all rows as a vector with the noise that `event` of the certificate states.

    Proof: noisy_matrix.md 1, 2
    """
    check_seed(certificate, randomness)
    if event not in certificate.matrices or matrix.shape != (event.problem.dims,) * 2:
        raise ParameterError("a matrix must be one that the certificate states, of as many features")
    vector = flatten_matrix(matrix)
    return vector if event.noise is None else add_noise(event.noise, vector, randomness.make_stream(event.matrix))


def release_gradient(sums: Doubles, certificate: Certificate, randomness: Randomness, *, scan: int) -> Doubles:
    """Add the noise that `certificate` states to the gradient sums of one scan, of shape (models, vectors, dims).

    Proof: noisy_gradient_descent.md 2
    """
    noise = certificate.training_noise
    assert noise is not None
    check_seed(certificate, randomness)
    return _add_noise_per_model(sums, noise, certificate, randomness.make_stream(f"scan {scan}"))


def _add_noise_per_model(
    numbers: Doubles, noise: Mechanism, certificate: Certificate, random_bytes: RandomBytes
) -> Doubles:
    """Add independent noise to the numbers of each model, of shape (models, vectors, dims)."""
    problem = certificate.problem
    shape = (certificate.model_count, problem.loss.vector_count, problem.dims)
    if numbers.shape != shape:
        raise ParameterError(f"weights must have shape {shape}, got {numbers.shape}")
    # Several vectors sum to zero, so the noise is added in the basis of their free directions.
    noisy = [add_noise(noise, problem.loss.to_basis(model).ravel(), random_bytes) for model in numbers]
    return np.stack([problem.loss.from_basis(free.reshape(-1, problem.dims)) for free in noisy])


def draw_update_keys(certificate: Certificate, random_bytes: RandomBytes) -> list[bytes | None]:
    """Draw a key for the noise inside the training of each model; None where there is no such noise."""
    return [
        None if certificate.training_noise is None else random_bytes(KEY_BYTES) for _ in range(certificate.model_count)
    ]


def draw_sample_key(random_bytes: RandomBytes) -> bytes:
    """Draw the key of the row samples of one pass of SGD, which must stay as secret as the rows."""
    return random_bytes(KEY_BYTES)


def release_moments(
    sums: Integers, event: NoisyMoments, randomness: Randomness, *, rows: int, numbers: Booleans
) -> ReleasedMoments:
    """Return noisy moments from the `sums` of `kernel.feature_sums`; `numbers` is the mask of numeric features."""
    if sums.shape != (2, event.features) or numbers.shape != (event.features,) or numbers.sum() != event.numbers:
        raise ParameterError(f"sums must be of {event.features} features, {event.numbers} of them numbers")
    check_moment_rows(rows, clip_norm=event.clip_norm)
    if event.moments == "squares":
        vector = np.concatenate([sums[0], sums[1][numbers]]) * UNIT
    else:
        vector = np.append(sums[0] * UNIT, float(sums[1].sum()) * UNIT * event.norm_weight)
    deviation = 0.0
    if event.noise is not None:
        vector = add_noise(event.noise, vector, randomness.make_stream("moments"))
        deviation = event.noise.deviation / rows
    means, rest = vector[: event.features] / rows, vector[event.features :] / rows
    if event.moments == "squares":
        return ReleasedMoments(means, rest, None, deviation)
    return ReleasedMoments(means, None, float(rest[0]) / event.norm_weight, deviation)


def release_counts(counts: Sequence[int], event: NoisyCounts, random_bytes: RandomBytes) -> list[float]:
    """Return the counts of public intervals, each with the noise that `event` states.

    Proof: noisy_counts.md 2
    """
    return [float(add_noise(event.noise, np.array([float(count)]), random_bytes)[0]) for count in counts]


def release_values(counts: Mapping[V, int], event: NoisyCounts, random_bytes: RandomBytes) -> dict[V, float]:
    """Return the private values whose noisy counts exceed the threshold of `event`, the most frequent first.

    Proof: noisy_counts.md 3
    """
    if event.threshold is None:
        raise ParameterError("the event must have a threshold for values that only rows know")
    present = [value for value, count in counts.items() if count > 0]
    noisy = release_counts([counts[value] for value in present], event, random_bytes)
    # The order depends only on released numbers, not on the order of the rows.
    above = [(count, value) for value, count in zip(present, noisy, strict=True) if count > event.threshold]
    return {value: count for count, value in sorted(above, key=lambda pair: (-pair[0], str(pair[1])))}


def release_label_count(
    count: int, event: NoisyUnusableLabelCount | None, certificate: Certificate, randomness: Randomness
) -> float:
    """Return a number of rows, selected by their labels, with the noise that `event` of the certificate states.

    Proof: noisy_counts.md 7
    """
    check_seed(certificate, randomness)
    if event is None or event not in (certificate.unusable_label_count, certificate.class_count):
        raise ParameterError("labels must be counted only if the certificate states it, and it does not")
    purpose = "class" if isinstance(event, NoisyClassCount) else "labels"
    return float(add_noise(event.noise, np.array([float(count)]), randomness.make_stream(purpose))[0])


def release_label_quantiles(counts: Integers, event: LabelQuantiles, randomness: Randomness) -> tuple[float, ...]:
    """Return an end of a bin, from -1 to 1, for each percentile of `event`; `counts` are of `kernel.label_histogram`.

    Proof: label_quantiles.md 1, 2
    """
    if counts.shape != (event.bins,):
        raise ParameterError(f"counts must be of {event.bins} bins, got shape {counts.shape}")
    stream, chosen = randomness.make_stream("label quantiles"), []
    for percentile in event.percentiles:
        scores = score_bins(counts, percentile)
        chosen.append(choose_by_errors(scores, epsilon=event.epsilon, changes=event.sensitivity, random_bytes=stream))
    ends = zip(chosen, event.percentiles, strict=True)
    return tuple(compute_bin_end(number, percentile, bins=event.bins) for number, percentile in ends)


def choose_by_errors(errors: Sequence[float], *, epsilon: float, random_bytes: RandomBytes, changes: int = 1) -> int:
    """Draw index i with probability proportional to exp(-epsilon * errors[i] / 2): the exponential mechanism.

    Errors of sensitivity `changes` are divided by it. The draw is exact: the index of the smallest ln(-ln U_i) +
    epsilon*errors[i]/2 has this distribution, and more bits of the uniforms are read until the smallest is certain.

    Proof: selection.md 1.1, 1.2
    """
    Budget(epsilon)  # raises for an invalid epsilon
    if not errors:
        raise ParameterError("errors must have at least one count, got none")
    uniforms = Uniforms(len(errors), random_bytes)
    while True:
        with set_precision(uniforms.bits_read + 64):
            penalties = [arb(epsilon) * arb(float(count)) / (2 * changes) for count in errors]
            keys = [(-u.log()).log() + penalty for u, penalty in zip(uniforms.list_intervals(), penalties, strict=True)]
            i = min(range(len(keys)), key=lambda number: keys[number].mid())
            if all(bool(keys[i] < other) for j, other in enumerate(keys) if j != i):
                return i
        uniforms.refine()


def release_count(count: float, *, epsilon: float, random_bytes: RandomBytes, changes: int = 1) -> float:
    """Return a count of sensitivity `changes` with Laplace noise of scale `changes` / epsilon.

    Proof: mechanisms.md 1
    Proof: adjacency.md 5
    """
    # In one dimension the spherical mechanism is the Laplace mechanism.
    mechanism = calibrate(float(changes), dimensions=1, budget=Budget(epsilon))
    return float(add_noise(mechanism, np.array([float(count)]), random_bytes)[0])


def draw_trial_count(mean: float, random_bytes: RandomBytes) -> int:
    """Draw the number of trials of a tuning, which must stay secret, from the geometric distribution with this mean.

    Proof: selection.md 2.3, 2.4
    """
    uniforms = Uniforms(1, random_bytes)
    while True:
        with set_precision(uniforms.bits_read + 64):
            (u,) = uniforms.list_intervals()
            more = (u.log() / (1 - 1 / arb(mean)).log()).floor().unique_fmpz()
        if more is not None:
            return 1 + int(more)
        uniforms.refine()


def draw_index(count: int, random_bytes: RandomBytes) -> int:
    """Draw a uniform integer from 0 to count - 1, such as the candidate of a trial."""
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(random_bytes(8), "big") >> (64 - bits)
        if drawn < count:
            return drawn


def is_on_release_grid(weights: Doubles, certificate: Certificate) -> bool:
    """Return whether weights of shape (models, vectors, dims) are on the grid to which `release_weights` rounds.

    This detects weights that replaced the released ones, such as those before the noise was added.
    """
    noise, basis = certificate.release_noise, certificate.problem.loss.basis
    if noise is None:
        return True
    tolerance = 0.0
    # Weights too large for the grid overflow to infinity, and their differences to NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        if basis is not None:
            # The change of basis and back rounds by at most this.
            tolerance = 8.0 * basis.shape[1] * np.finfo(float).eps * np.abs(weights).max()
            if not np.abs(weights.sum(axis=1)).max() <= tolerance:
                return False
            weights = basis @ weights
        return is_on_grid(weights, noise, tolerance)


def round_to_release_grid(weights: Doubles, certificate: Certificate) -> Doubles:
    """Return weights of one vector on the grid to which `release_weights` rounds; what is on it stays as it is."""
    noise = certificate.release_noise
    if noise is None:
        return weights
    return np.ldexp(np.rint(np.ldexp(weights, noise.grid_exponent)), -noise.grid_exponent)


def is_on_grid(numbers: Doubles, noise: Mechanism, tolerance: float = 0.0) -> bool:
    """Return whether numbers are on the grid to which noise rounds what it is added to, up to a tolerance."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.ldexp(numbers, noise.grid_exponent)
        return bool((np.abs(steps - np.rint(steps)) <= np.ldexp(tolerance, noise.grid_exponent)).all())


def check_seed(certificate: Certificate, randomness: Randomness) -> None:
    """Raise ParameterError unless a seed is used exactly if the certificate states one."""
    if (randomness.seed is not None) != certificate.seeded:
        said = "seeded" if certificate.seeded else "not seeded"
        raise ParameterError(f"a certificate that says the noise is {said} must match the use of a seed")
