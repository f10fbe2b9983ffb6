"""Choosing among candidate settings without spending privacy that the certificate does not show.

Three ways, with the accounting of `privacy/selection.md`:

`trials`    every candidate is trained on all rows; a random number of trials adds noise to a random one (or trains it
            anew, if its noise is inside training) and measures it with noise; the best trial is released
`portions`  the paper's Algorithm 3. Each candidate is trained on rows of its own, so that all of them together read
            the rows as often as one candidate alone would; other rows choose, by the exponential mechanism
`public`    candidates are compared in the open on rows declared public, and the best is trained on the private rows
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from boltdp.algorithms.standardize import standardize
from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Schema
from boltdp.data.source import BATCH_ROWS
from boltdp.engines.base import Engine, Prepared
from boltdp.errors import ParameterError
from boltdp.model import Model, unit_rows
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.noise import RandomBytes, seeded_bytes, system_bytes
from boltdp.privacy.selection import Portions, PublicRows, Selection, Trials, choose, noisy_count
from boltdp.settings import Settings
from boltdp.train import (
    BAD_ROWS_SHOWN,
    Progress,
    permutation_seed,
    release_model,
    run_passes,
    told_rows,
    train_prepared,
)

Method = Literal["trials", "portions", "public"]

#: What candidates may differ in: nothing that the schema, the budget or the form of the weights depends on.
TUNABLE = (
    "passes",
    "batch_size",
    "regularization",
    "schedule",
    "step_size",
    "exponent",
    "radius",
    "averaging",
)
#: Trials in the mean. More cost no epsilon, only time and a little of delta.
TRIALS = 100.0
#: Weight vectors that are scored in one scan of the rows.
VECTORS_AT_ONCE = 512
#: The part of the public rows that candidates are trained on; the rest compares them.
PUBLIC_TRAINING = 0.75
#: How often a candidate's noise is drawn in the open, so that its luck averages out.
REHEARSALS = 5


def candidates(
    settings: Settings, grid: Mapping[str, Sequence[Any]], *, inverse_radius: bool = False
) -> tuple[Settings, ...]:
    """The settings of every combination of the values in `grid`, in order, the last name changing fastest.

    `inverse_radius` keeps weights in the ball of radius 1/regularization, as the paper does.

    >>> grid = {"passes": [5, 10], "regularization": [0.0, 0.01]}
    >>> [(c.passes, c.radius) for c in candidates(Settings(epsilon=1.0), grid, inverse_radius=True)]
    [(5, inf), (5, 100.0), (10, inf), (10, 100.0)]
    """
    for name, values in grid.items():
        if name not in TUNABLE:
            raise ParameterError(f"a grid must be over some of {', '.join(TUNABLE)}, got {name!r}")
        if not values:
            raise ParameterError(f"the grid must have values for {name}, got none")
    if inverse_radius and "radius" in grid:
        raise ParameterError("the grid must not have a radius if it is 1/regularization")
    combined = [
        replace(settings, **dict(zip(grid, values, strict=True))) for values in itertools.product(*grid.values())
    ]
    if inverse_radius:
        combined = [replace(one, radius=1 / one.regularization) if one.regularization > 0 else one for one in combined]
    return tuple(combined)


def tune(
    engine: Engine,
    schema: Schema,
    candidates: Sequence[Settings],
    *,
    method: Method = "trials",
    public: Engine | None = None,
    trials: float = TRIALS,
    on_bad_row: OnBadRow = "neutral",
    reasons: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Model:
    """Train candidates, choose one and release it; all within the epsilon and delta that they share.

    `certificate.selection` of the result says which one was chosen, and how. `public` has the rows for "public";
    `trials` is the mean number for "trials".

    >>> import numpy as np, pyarrow as pa
    >>> from boltdp.data.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> rows = pa.table({"age": np.arange(3000) % 100, "sick": np.arange(3000) % 100 > 60})
    >>> schema = Schema("sick", (False, True), (Numeric("age", 0, 100),))
    >>> grid = candidates(Settings(epsilon=1.0), {"passes": [1, 10]})
    >>> model = tune(open_source(rows), schema, grid)
    >>> model.certificate.private, model.certificate.selection.candidates
    (True, 2)
    """
    if method not in get_args(Method):
        raise ParameterError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if (public is not None) != (method == "public"):
        raise ParameterError(f"public rows must be given for the method 'public' and no other, got method {method!r}")
    _check_candidates(candidates)
    if method == "trials" and candidates[0].epsilon is None:
        raise ParameterError(
            "epsilon must be given for trials, got None", hint="compare noiseless candidates by portions"
        )
    known = (*reasons, BAD_ROWS_SHOWN) if on_bad_row == "error" else reasons
    rows, seeds = engine.count(), _seeds(candidates[0].noise_seed)
    record, seed = candidates[0].standardization(schema, rows=rows), permutation_seed(candidates[0])
    if len({one.method for one in candidates}) > 1:
        # What asks for passes in one candidate may be the default in another: the same algorithm for all.
        candidates = [replace(one, algorithm="bolton") for one in candidates]

    def planned(selections: Sequence[Selection]) -> list[Certificate]:
        """A certificate for each candidate, as it will be if it is chosen: faults show before a row is read."""
        return [
            one.plan(
                rows=selection.training_rows,
                dims=schema.dims,
                classes=len(schema.classes),
                reasons=known,
                standardization=record,
                selection=selection,
            )
            for one, selection in zip(candidates, selections, strict=True)
        ]

    def selection(chosen: int) -> Selection:
        if public is not None:
            return PublicRows(candidates=len(candidates), chosen=chosen, rows=rows, public_rows=public.count())
        if method == "portions":
            return Portions(candidates=len(candidates), chosen=chosen, rows=rows)
        return Trials(candidates=len(candidates), chosen=chosen, rows=rows, mean=trials)

    certificates = planned([selection(i) for i in range(len(candidates))])
    # Once, on all rows, for all candidates: its share of the budget is spent before any of them is trained.
    told = told_rows(progress, "standardizing", rows)
    noise_seed = candidates[0].noise_seed
    schema = standardize(engine, schema, record, on_bad_row=on_bad_row, noise_seed=noise_seed, progress=told)
    if public is not None:
        certificates = [certificates[_rehearse(public, schema, certificates, seeds, progress=progress)]]
    told = told_rows(progress, "preparing", rows)
    with engine.prepare(schema, seed=seed, on_bad_row=on_bad_row, progress=told) as prepared:
        if public is not None:
            return train_prepared(
                prepared, schema, certificates[0], seed=seed, noise_seed=next(seeds), progress=progress
            )
        search = _by_portions if method == "portions" else _by_trials
        return search(prepared, schema, certificates, seeds, seed=seed, progress=progress)


def error_counts(models: Sequence[Model], prepared: Prepared) -> list[int]:
    """How many rows each model gets wrong, in one scan; rows without a declared class count as wrong for all.

    One row changes each count by at most 1. The counts are as private as the rows.
    """
    weights = np.vstack([model.weights for model in models])
    counts = np.zeros(len(models), np.int64)
    for block in prepared.blocks():
        for start in range(0, len(block), BATCH_ROWS):
            packed = block[start : start + BATCH_ROWS]
            margins = (unit_rows(packed) @ weights.T).reshape(len(packed), len(models), -1)
            for i, model in enumerate(models):
                counts[i] += np.count_nonzero(model.choices(margins[:, i]) != packed[:, 0])
    return counts.tolist()


def _by_portions(
    prepared: Prepared,
    schema: Schema,
    certificates: Sequence[Certificate],
    seeds: Iterator[int | None],
    *,
    seed: int,
    progress: Progress | None,
) -> Model:
    """Algorithm 3: the portions of all candidates together are one scan a pass."""
    portions = Portions(candidates=len(certificates), chosen=0, rows=prepared.rows)
    models = [
        train_prepared(
            prepared.portion(*portions.bounds(i)),
            schema,
            certificate,
            seed=seed,
            noise_seed=next(seeds),
            progress=_named(progress, f"candidate {i + 1} of {len(certificates)}, "),
        )
        for i, certificate in enumerate(certificates)
    ]
    errors = error_counts(models, prepared.portion(*portions.bounds(len(models))))
    budget = certificates[0].training_budget
    if budget is None:
        return models[int(np.argmin(errors))]
    return models[choose(errors, epsilon=budget.epsilon, random_bytes=_random_bytes(next(seeds)))]


def _by_trials(
    prepared: Prepared,
    schema: Schema,
    certificates: Sequence[Certificate],
    seeds: Iterator[int | None],
    *,
    seed: int,
    progress: Progress | None,
) -> Model:
    """A trial makes a model of one of the candidates. How many trials were made is told nobody."""
    count, selection, budget = len(certificates), certificates[0].selection, certificates[0].training_budget
    assert isinstance(selection, Trials)
    assert budget is not None
    makers = [
        _independent_models(
            prepared,
            schema,
            certificate,
            seeds,
            seed=seed,
            progress=_named(progress, f"candidate {i + 1} of {count}, "),
        )
        for i, certificate in enumerate(certificates)
    ]
    random_bytes = _random_bytes(next(seeds))
    left = selection.draw_count(random_bytes)
    at_once = max(1, VECTORS_AT_ONCE // max(certificates[0].models, certificates[0].recipe.loss.vectors))
    epsilon = selection.score_budget(budget).epsilon
    best: Model | None = None
    fewest = np.inf
    while left > 0:
        drawn = [_uniform(count, random_bytes) for _ in range(min(left, at_once))]
        models = [makers[i]() for i in drawn]
        left -= len(models)
        for model, errors in zip(models, error_counts(models, prepared), strict=True):
            score = noisy_count(errors, epsilon=epsilon, random_bytes=random_bytes)
            if score < fewest:
                best, fewest = model, score
    assert best is not None
    return best


def _rehearse(
    public: Engine,
    schema: Schema,
    certificates: Sequence[Certificate],
    seeds: Iterator[int | None],
    *,
    progress: Progress | None,
) -> int:
    """Which candidate does best on public rows, with as many updates and as much noise as on the private ones."""
    rows = public.count()
    cut = round(PUBLIC_TRAINING * rows)
    if not 2 <= cut < rows:
        raise ParameterError(f"the public data must have at least 4 rows, got {rows}")
    totals = []
    with public.prepare(schema, seed=0) as prepared:
        for i, certificate in enumerate(certificates):
            recipe = certificate.recipe
            rehearsed = replace(
                certificate,
                recipe=replace(
                    recipe,
                    rows=cut,
                    batch_size=min(recipe.batch_size, cut),
                    passes=max(1, round(recipe.passes * recipe.rows / cut)),
                ),
                selection=None,
            )
            told = _named(progress, f"candidate {i + 1} of {len(certificates)} on public rows, ")
            make = _independent_models(prepared.portion(0, cut), schema, rehearsed, seeds, seed=0, progress=told)
            models = [make() for _ in range(REHEARSALS)]
            totals.append(sum(error_counts(models, prepared.portion(cut, rows))))
    return int(np.argmin(totals))


def _independent_models(
    prepared: Prepared,
    schema: Schema,
    certificate: Certificate,
    seeds: Iterator[int | None],
    *,
    seed: int,
    progress: Progress | None,
) -> Callable[[], Model]:
    """What makes models that are independent given the rows, which trials must be: selection.md, section 2.3.

    Training is done once where all noise is added at the release. Noise inside training must be drawn anew for each
    model, and progress would then tell how many there are.
    """
    if certificate.training_noise is not None:
        return lambda: train_prepared(prepared, schema, certificate, seed=seed, noise_seed=next(seeds))
    states = run_passes(prepared, schema, certificate, seed=seed, progress=progress)
    return lambda: release_model(states, schema, certificate, noise_seed=next(seeds))


def _check_candidates(candidates: Sequence[Settings]) -> None:
    if not candidates:
        raise ParameterError("there must be at least one candidate, got none")
    first = {name: getattr(candidates[0], name) for name in TUNABLE}
    if any(replace(one, **first) != candidates[0] for one in candidates):
        raise ParameterError(f"candidates must differ in nothing but {', '.join(TUNABLE)}")


def _seeds(noise_seed: int | None) -> Iterator[int | None]:
    """A seed for each draw of noise, or None for the randomness of the operating system."""
    return itertools.repeat(None) if noise_seed is None else itertools.count(noise_seed)


def _random_bytes(seed: int | None) -> RandomBytes:
    return system_bytes if seed is None else seeded_bytes(seed)


def _uniform(count: int, random_bytes: RandomBytes) -> int:
    """A number from 0 to count - 1, each equally likely."""
    bits = (count - 1).bit_length()
    while True:
        drawn = int.from_bytes(random_bytes(8), "big") >> (64 - bits)
        if drawn < count:
            return drawn


def _named(progress: Progress | None, prefix: str) -> Progress | None:
    """Progress that tells which candidate it is about."""
    if progress is None:
        return None

    def named(stage: str, done: int, total: int) -> None:
        progress(prefix + stage, done, total)

    return named
