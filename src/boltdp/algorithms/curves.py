"""Which curves "auto" adds to a schema, from public numbers: the rows, the budget and the bounds of the columns."""

from __future__ import annotations

from boltdp.algorithms.standardize import plan_moments
from boltdp.data.curves import with_curves
from boltdp.data.schema import Schema
from boltdp.errors import ParameterError
from boltdp.privacy.certificate import remaining
from boltdp.privacy.losses import Logistic
from boltdp.privacy.objective import objective_noise
from boltdp.privacy.recipe import Problem
from boltdp.settings import Settings

#: Steps of all curves together: each column has its part of them.
STEPS = 40
#: The noise a row, at most, that they may bring it to.
MOST_NOISE = 0.15


def curved(settings: Settings, schema: Schema, *, rows: int) -> Schema:
    """The schema with the curves that were asked for, or that "auto" adds: it does if all else is left to it too.

    A curve follows what a line cannot, and every step of it is one more weight that noise is added to. The more columns
    there are, the fewer steps each has; with few rows or a small epsilon there are none.

    >>> from boltdp.data.schema import Numeric
    >>> schema = Schema("sick", (0, 1), (Numeric("age", 0, 100), Numeric("pulse", 0, 250)))
    >>> [len(column.curve) for column in curved(Settings(epsilon=1.0), schema, rows=10_000).columns]
    [20, 20]
    >>> curved(Settings(epsilon=1.0), schema, rows=100) == schema
    True
    """
    if settings.curves is not None:
        if not isinstance(settings.curves, int) or settings.curves < 0:
            raise ParameterError(f"curves must be a whole number >= 0, got {settings.curves!r}")
        return with_curves(schema, settings.curves)
    budget = settings.budget
    if budget is None or settings.algorithm != "auto" or settings.standardize == "none" or rows < 2:
        return schema
    columns = sum(new != old for new, old in zip(with_curves(schema, 1).columns, schema.columns, strict=True))
    wanted = with_curves(schema, STEPS // columns if columns else 0)
    before = plan_moments(settings, wanted, rows=rows)
    if before is None:
        return schema
    # As if for two classes; Lambda as large as makes it of no account.
    problem = Problem(loss=Logistic(), dims=wanted.dims, rows=rows, regularization=1.0 + 8.0 / budget.epsilon)
    noise = objective_noise(problem, remaining(budget, before))
    return wanted if noise.expected_norm <= MOST_NOISE * rows else schema
