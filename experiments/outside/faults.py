"""Faults that are planted into boltdp, to see which outside auditor finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from boltdp._array_types import Doubles
from boltdp.algorithms import _sgd, noisy_gd
from boltdp.privacy import release_with_noise
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.privacy.mechanisms import Mechanism
from boltdp.privacy.release_with_noise import RandomBytes, Randomness
from boltdp.workflows import train as train_workflow


@contextmanager
def put_in_place(owner: object, name: str, planted: Callable[[Any], Any]) -> Iterator[None]:
    """Replace an attribute by what `planted` makes of it."""
    honest = vars(owner)[name]
    setattr(owner, name, planted(honest))
    try:
        yield
    finally:
        setattr(owner, name, honest)


def _halve(honest: Any) -> Any:
    def add_noise(mechanism: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Any:
        return honest(replace(mechanism, scale=mechanism.scale / 2), vector, random_bytes)

    return add_noise


def _leave_one_without(honest: Any) -> Any:
    def add_noise(mechanism: Mechanism, vector: Doubles, random_bytes: RandomBytes) -> Any:
        return np.append(vector[:1], honest(mechanism, vector, random_bytes)[1:])

    return add_noise


def _release_the_last_weight(honest: Any) -> Any:
    def release_weights(weights: Doubles, certificate: Certificate, randomness: Randomness) -> Any:
        released = honest(weights, certificate, randomness)
        released[..., -1] = weights[..., -1]
        return released

    return release_weights


def _understate(honest: Any) -> Any:
    return property(lambda event: honest.fget(event) / 2.0)


def _draw_by_the_sums(honest: Any) -> Any:
    def release_gradient(sums: Doubles, *given: Any, scan: int) -> Any:
        for _ in range(int(100.0 * np.abs(sums).sum()) % 3):
            honest(sums, *given, scan=scan)
        return honest(sums, *given, scan=scan)

    return release_gradient


def _decide_by_the_sums(honest: Any) -> Any:
    def release_gradient(sums: Doubles, *given: Any, scan: int) -> Any:
        noisy = honest(sums, *given, scan=scan)
        return noisy if int(100.0 * np.abs(sums).sum()) % 2 else np.zeros_like(noisy)

    return release_gradient


def _halve_in_the_kernel(honest: Any) -> Any:
    def state(*given: Any, noise: Mechanism | None, **others: Any) -> Any:
        return honest(*given, noise=noise and replace(noise, scale=noise.scale / 2), **others)

    return state


@contextmanager
def halve_the_noise() -> Iterator[None]:
    """Draw noise of half the scale, in the mechanism and in the updates of SGD."""
    with put_in_place(release_with_noise, "add_noise", _halve), put_in_place(_sgd, "State", _halve_in_the_kernel):
        yield


#: The name of each fault: what is replaced, and the training in which the recorder looks for it.
FAULTS: Mapping[str, tuple[Callable[[], Any], str]] = {
    "half the noise": (halve_the_noise, "bolton"),
    "a number without noise": (lambda: put_in_place(release_with_noise, "add_noise", _leave_one_without), "bolton"),
    "a weight released beside the mechanism": (
        lambda: put_in_place(train_workflow, "release_weights", _release_the_last_weight),
        "bolton",
    ),
    "a sensitivity understated": (
        lambda: put_in_place(NoisyMoments, "sensitivity", _understate),
        "bolton, standardized",
    ),
    "a number of draws that depends on rows": (
        lambda: put_in_place(noisy_gd, "release_gradient", _draw_by_the_sums),
        "noisy-gd",
    ),
    "a decision on sums before their noise": (
        lambda: put_in_place(noisy_gd, "release_gradient", _decide_by_the_sums),
        "noisy-gd",
    ),
}
