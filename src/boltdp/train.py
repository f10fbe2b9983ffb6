"""The one way to train: plan, standardize, prepare, passes, release. Estimators and commands are layers over it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from boltdp.algorithms.newton import minimise, sample_rows
from boltdp.algorithms.sampling import fixed_size_batches, poisson_batches
from boltdp.algorithms.standardize import standardize
from boltdp.arraytypes import Doubles, Integers
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Schema
from boltdp.engines.base import Engine, Prepared
from boltdp.errors import DataError, ParameterError
from boltdp.kernel import KEY_BYTES, State
from boltdp.model import Model
from boltdp.privacy.algorithms import Algorithm
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.noise import seeded_bytes, system_bytes
from boltdp.privacy.release import perturbation, release
from boltdp.privacy.selection import Selection
from boltdp.settings import Settings

#: How the rows of a pass are sampled, where they are not all fed in order.
SAMPLERS: Mapping[Algorithm, Callable[..., Iterator[Integers]]] = {
    "bst14": fixed_size_batches,
    "dpsgd": poisson_batches,
}

#: Why a model trained with `on_bad_row="error"` has no guarantee.
BAD_ROWS_SHOWN = "bad rows were reported, which tells something about single rows"


class Progress(Protocol):
    """Told how far a training is: rows and passes only, never anything computed from the rows."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` rows of `stage`."""
        ...


def train(
    engine: Engine,
    schema: Schema,
    settings: Settings,
    *,
    on_bad_row: OnBadRow = "neutral",
    reasons: tuple[str, ...] = (),
    selection: Selection | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train a model on the rows of `engine` and release it.

    `reasons` are why the caller knows the result not to be private, such as classes that were read from the data;
    `selection` is how the settings were chosen, for the certificate.

    >>> import numpy as np
    >>> from boltdp.data.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> import pyarrow as pa
    >>> rows = pa.table({"age": np.arange(1000) % 100, "sick": np.arange(1000) % 100 > 60})
    >>> schema = Schema("sick", (False, True), (Numeric("age", 0, 100),))
    >>> model = train(open_source(rows), schema, Settings(epsilon=1.0))
    >>> model.certificate.private, model.weights.shape
    (True, (1, 2))
    """
    if on_bad_row == "error":
        reasons = (*reasons, BAD_ROWS_SHOWN)
    rows = engine.count()
    record = settings.standardization(schema, rows=rows)
    certificate = settings.plan(
        rows=rows,
        dims=schema.dims,
        classes=len(schema.classes),
        reasons=reasons,
        standardization=record,
        selection=selection,
    )
    told = told_rows(progress, "standardizing", rows)
    schema = standardize(engine, schema, record, on_bad_row=on_bad_row, noise_seed=settings.noise_seed, progress=told)
    seed = permutation_seed(settings)
    told = told_rows(progress, "preparing", rows)
    with engine.prepare(schema, seed=seed, on_bad_row=on_bad_row, progress=told) as prepared:
        return train_prepared(
            prepared, schema, certificate, seed=seed, noise_seed=settings.noise_seed, progress=progress
        )


def permutation_seed(settings: Settings) -> int:
    """The seed of the shuffle: as asked for, else any.

    >>> permutation_seed(Settings(epsilon=1.0, seed=7))
    7
    """
    return secrets.randbits(63) if settings.seed is None else settings.seed


def train_prepared(
    prepared: Prepared,
    schema: Schema,
    certificate: Certificate,
    *,
    seed: int,
    noise_seed: int | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train as `certificate` plans on rows that are prepared already, and release the result."""
    if certificate.algorithm == "objective":
        weights = find_minimisers(prepared, schema, certificate, noise_seed=noise_seed, progress=progress)
        return release_weights(weights, schema, certificate, noise_seed=noise_seed)
    states = run_passes(prepared, schema, certificate, seed=seed, noise_seed=noise_seed, progress=progress)
    return release_model(states, schema, certificate, noise_seed=noise_seed)


def find_minimisers(
    prepared: Prepared,
    schema: Schema,
    certificate: Certificate,
    *,
    noise_seed: int | None = None,
    progress: Progress | None = None,
) -> Doubles:
    """Weights of shape (models, vectors, dims) that minimise the perturbed objectives: as private as the rows."""
    recipe, classes = certificate.recipe, len(schema.classes)
    _check_rows(prepared, certificate)
    count = sample_rows(recipe)

    def found(positive: int, linear: Doubles) -> Doubles:
        def derivative(weights: Doubles, direction: Doubles | None) -> Doubles:
            return prepared.derivative(recipe.loss, weights, direction=direction, positive=positive, classes=classes)

        def shape(weights: Doubles) -> Doubles:
            few = prepared.portion(0, count)
            hessian = few.derivative(recipe.loss, weights, hessian=True, positive=positive, classes=classes)
            return recipe.rows / count * hessian

        # Matrices this small are factored sooner than several threads have found a processor each.
        with threadpool_limits(1, user_api="blas"):
            noise = certificate.training_noise
            return minimise(recipe, derivative, linear, noise=noise, shape=shape if count else None)

    # How many scans it takes depends on the rows: only the beginning and the end are told.
    told = told_rows(progress, "minimising", recipe.rows)
    if told is not None:
        told(0)
    linear_terms = perturbation(certificate, seed=noise_seed)
    weights = np.stack([found(*model) for model in zip(_positives(certificate), linear_terms, strict=True)])
    if told is not None:
        told(recipe.rows)
    return weights


def run_passes(
    prepared: Prepared,
    schema: Schema,
    certificate: Certificate,
    *,
    seed: int,
    noise_seed: int | None = None,
    progress: Progress | None = None,
) -> list[State]:
    """The states after all passes: as private as the rows until `release_model` makes a model of them.

    `noise_seed` is for noise and samples inside training, and as in `release` taken only where the certificate says so.
    """
    recipe, classes = certificate.recipe, len(schema.classes)
    _check_rows(prepared, certificate)
    noise = certificate.training_noise
    if noise is not None and (noise_seed is not None) != (certificate.randomness == "seeded"):
        raise ParameterError(f"a certificate with randomness {certificate.randomness!r} must match the use of a seed")
    random_bytes = system_bytes if noise_seed is None else seeded_bytes(noise_seed)
    states = [
        State(
            recipe,
            positive=positive,
            classes=classes,
            noise=noise,
            key=None if noise is None else random_bytes(KEY_BYTES),
            marked=certificate.algorithm == "dpsgd",
        )
        for positive in _positives(certificate)
    ]
    for number in range(1, recipe.passes + 1):
        told = told_rows(progress, f"pass {number} of {recipe.passes}", recipe.rows)
        draw = SAMPLERS.get(certificate.algorithm)
        if draw is None:
            if number > 1 and recipe.permutation == "fresh":
                prepared.reshuffle(seed + number - 1)
            prepared.run_pass(states, progress=told)
            continue
        # A sample for each model: budgets add up only if their randomness is independent.
        for state in states:
            prepared.run_drawn([state], draw(rows=recipe.rows, batches=recipe.batches, random_bytes=random_bytes))
        # How many rows random batches have is secret: only the end of a pass is told.
        if told is not None:
            told(recipe.rows)
    return states


def release_model(
    states: Sequence[State], schema: Schema, certificate: Certificate, *, noise_seed: int | None = None
) -> Model:
    """The model of finished states, with the noise that `certificate` states."""
    if any(state.noise != certificate.training_noise for state in states):
        raise ParameterError("the states must have been trained with the noise that the certificate states")
    weights = np.stack([state.weights for state in states])
    return release_weights(weights, schema, certificate, noise_seed=noise_seed)


def release_weights(
    weights: Doubles, schema: Schema, certificate: Certificate, *, noise_seed: int | None = None
) -> Model:
    """The model of finished weights, of shape (models, vectors, dims), with the noise that `certificate` states."""
    released = release(weights, certificate, seed=noise_seed)
    return Model(schema=schema, weights=released.reshape(-1, certificate.recipe.dims), certificate=certificate)


def told_rows(progress: Progress | None, stage: str, total: int) -> Callable[[int], None] | None:
    """What an engine calls with the rows done so far.

    >>> told_rows(print, "preparing", 100)(40)
    preparing 40 100
    """
    return None if progress is None else lambda done: progress(stage, done, total)


def _check_rows(prepared: Prepared, certificate: Certificate) -> None:
    if prepared.rows != certificate.recipe.rows:
        raise DataError("the data changed while it was read: its number of rows is not what it was")


def _positives(certificate: Certificate) -> Sequence[int]:
    """A single model of two classes takes the second one as positive, one-vs-all models each their own."""
    return [1] if certificate.models == 1 else range(certificate.models)
