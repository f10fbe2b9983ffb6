"""The one way to train: plan, prepare, passes, release. Estimators and commands are thin layers over it."""

from __future__ import annotations

import secrets
from typing import Protocol

import numpy as np

from boltdp.data.encode import OnBadRow
from boltdp.data.schema import Schema
from boltdp.engines.base import Engine
from boltdp.errors import DataError
from boltdp.kernel import State
from boltdp.model import Model
from boltdp.privacy.release import release
from boltdp.settings import Settings

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
    progress: Progress | None = None,
) -> Model:
    """Train a model on the rows of `engine` and release it.

    `reasons` are why the caller knows the result not to be private, such as classes that were read from the data.

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
    certificate = settings.plan(rows=rows, dims=schema.dims, classes=len(schema.classes), reasons=reasons)
    recipe = certificate.recipe
    seed = secrets.randbits(63) if settings.seed is None else settings.seed

    def tell(stage: str, done: int) -> None:
        if progress is not None:
            progress(stage, done, rows)

    with engine.prepare(
        schema, seed=seed, on_bad_row=on_bad_row, progress=lambda done: tell("preparing", done)
    ) as prepared:
        if prepared.rows != rows:
            raise DataError("the data changed while it was read: its number of rows is not what it was")
        if certificate.models == 1:
            states = [State(recipe, classes=len(schema.classes))]
        else:
            states = [State(recipe, positive=index, classes=len(schema.classes)) for index in range(certificate.models)]
        for number in range(1, recipe.passes + 1):
            if number > 1 and recipe.permutation == "fresh":
                prepared.reshuffle(seed + number - 1)
            stage = f"pass {number} of {recipe.passes}"
            prepared.run_pass(states, progress=lambda done, stage=stage: tell(stage, done))  # type: ignore[misc]
        weights = np.stack([state.weights for state in states])
    released = release(weights, certificate, seed=settings.noise_seed)
    return Model(schema=schema, weights=released.reshape(-1, recipe.dims), certificate=certificate)
