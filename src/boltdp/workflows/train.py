"""The one way to train: plan, standardize, prepare, run, release. Estimators and commands are layers over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from boltdp._files.sealed import digest
from boltdp.algorithms import Job, algorithm_of
from boltdp.algorithms._base import check_rows
from boltdp.context import Context
from boltdp.model import Model
from boltdp.privacy.certificate import Certificate, after
from boltdp.privacy.release import release_weights
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.plan import curved, plan, within
from boltdp.workflows.standardize import plan_moments, prepared_rows, standardized

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, Prepared
    from boltdp.engines.postgres import PostgresGroups
    from boltdp.ledger import Account
    from boltdp.privacy.accounting.charges import Charge

#: Why a model trained with `on_bad_row="error"` has no guarantee.
BAD_ROWS_SHOWN = "bad rows were reported, which tells something about single rows"


def train(
    engine: Engine,
    schema: Schema,
    settings: Settings,
    *,
    reasons: tuple[str, ...] = (),
    context: Context | None = None,
    account: Account | None = None,
) -> Model:
    """Train a model on the rows of `engine` and release it.

    `reasons` are why the caller knows the result not to be private, such as classes that were read from the data.
    The context is that of the settings, unless one is given. `account` is what it is charged to, before a row is read.

    >>> import numpy as np
    >>> from boltdp.schema.schema import Numeric
    >>> from boltdp.engines import open_source
    >>> import pyarrow as pa
    >>> rows = pa.table({"age": np.arange(1000) % 100, "sick": np.arange(1000) % 100 > 60})
    >>> schema = Schema("sick", (False, True), (Numeric("age", 0, 100),))
    >>> model = train(open_source(rows), schema, Settings(epsilon=1.0))
    >>> model.certificate.private, model.weights.shape
    (True, (1, 2))
    """
    context = settings.context() if context is None else context
    within(settings.weighed(schema), schema)  # what is wrong with these is told before rows are counted
    planned = plan_rows(engine.count(), schema, settings, reasons=known_faults(reasons, context))
    with charged(account, planned.certificate, engine, planned.schema, context) as commit:
        return commit(train_planned(engine, planned, context))


@dataclass(frozen=True)
class Planned:
    """What will be trained, from public numbers."""

    schema: Schema  #: with its curves
    certificate: Certificate


def plan_rows(rows: int, schema: Schema, settings: Settings, *, reasons: tuple[str, ...] = ()) -> Planned:
    """The plan of a training on so many rows; `reasons` are why it is not private."""
    whole, settings = settings.budget, within(settings.weighed(schema), schema)
    schema = curved(settings, schema, rows=rows)
    before = plan_moments(settings, schema, rows=rows)
    certificate = plan(
        settings,
        rows=rows,
        dims=schema.dims,
        classes=len(schema.classes),
        before=before,
        reasons=reasons,
        person_rows=schema.max_rows,
    )
    if schema.spent is not None:
        certificate = after(schema.spent, certificate, whole)
    return Planned(schema, certificate)


def train_planned(engine: Engine, planned: Planned, context: Context) -> Model:
    """Train as planned on the rows of `engine`, and release the result; nothing is charged here."""
    certificate = planned.certificate
    ordered = algorithm_of(certificate).ordered
    with prepared_rows(engine, planned.schema, certificate.moments, context, ordered=ordered) as (prepared, schema):
        model = train_prepared(prepared, schema, certificate, context)
    return replace(model, trained_where=engine.where)


def train_groups(groups: PostgresGroups, plans: Sequence[Planned], context: Context) -> list[Model]:
    """Train as planned on the rows of each group, and release the results; nothing is charged here.

    All groups are prepared by one scan of the source; one more comes before it if features that are to be projected are
    standardized. Each model has the bits that it would have if it were trained on the rows of its group alone.
    """
    schemas = [planned.schema for planned in plans]
    certificates = [planned.certificate for planned in plans]

    def seen(tables: Sequence[Prepared]) -> Iterator[Schema]:
        for prepared, schema, certificate in zip(tables, schemas, certificates, strict=True):
            rows = certificate.problem.rows
            yield standardized(prepared, schema, certificate.moments, context.randomness, rows=rows)

    if any(planned.schema.projection is not None and planned.certificate.moments is not None for planned in plans):
        unprojected, unordered = [schema.unscaled for schema in schemas], [False for _ in plans]
        with groups.prepared(unprojected, context, ordered=unordered, last=False) as tables:
            schemas = list(seen(tables))
    ordered = [algorithm_of(certificate).ordered for certificate in certificates]
    models = []
    with groups.prepared(schemas, context, ordered=ordered) as tables:
        for prepared, schema, certificate in zip(tables, seen(tables), certificates, strict=True):
            with prepared:  # nothing of a group is kept longer than it is needed
                models.append(
                    train_prepared(prepared.read_by(schema.encoding.feature_map), schema, certificate, context)
                )
    return [replace(model, trained_where=groups.where) for model in models]


@contextmanager
def charged(
    account: Account | None, charge: Charge, engine: Engine, schema: Schema, context: Context
) -> Iterator[Callable[[Model], Model]]:
    """Charge what is done inside to an account, if there is one; gives what notes the model that is released.

    What can be known to be wrong without reading a row is an error before it costs anything.
    """
    if account is None:
        yield lambda model: model
        return
    from boltdp.engines.base import check_columns  # it reads rows, which a plan does not
    from boltdp.engines.person_limit import check_unit

    check_columns(schema, engine.columns())
    check_unit(schema, engine.columns(), context)

    def commit(model: Model) -> Model:
        reservation.note(digest(model.to_dict()))
        return model

    with account.charged(charge, drawn=lambda: context.randomness.drawn) as reservation:
        yield commit


def train_prepared(prepared: Prepared, schema: Schema, certificate: Certificate, context: Context) -> Model:
    """Train as `certificate` plans on rows that are prepared already, and release the result."""
    check_rows(prepared, certificate.problem.rows)
    algorithm = algorithm_of(certificate)
    job = Job(certificate, context.randomness)
    (weights,) = algorithm.run(prepared, [job], classes=len(schema.classes), context=context)
    released = release_weights(weights, certificate, context.randomness)
    return Model.of_release(schema, released, certificate)


def known_faults(reasons: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """The reasons, and what the context itself takes from the promise.

    >>> known_faults((), Context(on_bad_row="error")) == (BAD_ROWS_SHOWN,)
    True
    """
    return (*reasons, BAD_ROWS_SHOWN) if context.on_bad_row == "error" else reasons
