"""Train a model: plan, standardize, prepare, run, release. Estimators and commands are layers over it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from boltdp._files.sealed import compute_digest
from boltdp.algorithms import Job, get_algorithm
from boltdp.algorithms._base import check_row_count
from boltdp.engines.local_store import fetch_rows
from boltdp.model import Model, compute_penalty_center
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.release_with_noise import release_weights
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.settings import Settings
from boltdp.workflows.inference import release_inference
from boltdp.workflows.label_check import count_labels
from boltdp.workflows.noise_check import refuse_drowning_noise
from boltdp.workflows.plan_training import Plan, make_plan, resolve_settings
from boltdp.workflows.standardize import prepare_rows

if TYPE_CHECKING:
    from boltdp.engines.base import Engine, PreparedRows
    from boltdp.ledger import Account
    from boltdp.privacy.accounting.spent_budget import Charge

#: Why a model trained with `on_bad_row="error"` has no guarantee.
BAD_ROWS_REASON = "bad rows were reported, which tells something about single rows"


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

    `reasons` are why the result is not private, such as classes that were read from the data. The default context is
    that of the settings. `account` is charged before a row is read.
    """
    context = settings.context() if context is None else context
    resolve_settings(settings, schema)  # raises errors in the settings before rows are counted
    plan = make_plan(schema, engine.count(), settings, reasons=list_non_private_reasons(reasons, context))
    refuse_drowning_noise(plan.certificate, settings)
    run = partial(run_plan, engine, plan, context)
    return charge_and_run(run, account, plan.certificate, engine, plan.schema, context)


def run_plan(engine: Engine, plan: Plan, context: Context) -> Model:
    """Run a plan: train on the rows of `engine` and release the model. No account is charged."""
    certificate, permuted = plan.certificate, plan.algorithm.needs_permutation
    prepare = prepare_rows(engine, plan.schema, certificate, context, permuted=permuted)
    with prepare as (prepared, schema):
        model = train_prepared(prepared, schema, certificate, context)
    return replace(model, trained_where=engine.where)


def charge_and_run(
    run: Callable[[], Model], account: Account | None, charge: Charge, engine: Engine, schema: Schema, context: Context
) -> Model:
    """Charge the ledger account, if there is one, then call `run` and return the model that it releases.

    Missing or unfit columns raise an error before anything is charged.
    """
    if account is None:
        return run()
    from boltdp.engines.base import check_columns  # only here: plans do not need the engines
    from boltdp.engines.person_limit import check_person_id

    check_columns(schema, engine.columns())
    check_person_id(schema, engine.columns(), context)
    with account.reserve(charge, drawn=lambda: context.randomness.drawn) as reservation:
        model = run()
        reservation.commit_or_warn(compute_digest(model.to_dict()))
    return model


def train_prepared(prepared: PreparedRows, schema: Schema, certificate: Certificate, context: Context) -> Model:
    """Train on prepared rows with the algorithm and settings in `certificate`, and release the model."""
    check_row_count(prepared, certificate.problem.rows)
    algorithm, randomness, classes = (
        get_algorithm(certificate.algorithm),
        context.randomness,
        schema.target.kernel_class_count,
    )
    labels = count_labels(prepared, schema, certificate.unusable_label_count, certificate, randomness)
    second = count_labels(prepared, schema, certificate.class_count, certificate, randomness)
    job = Job(certificate, randomness, compute_penalty_center(second, schema, rows=certificate.rows))
    hidden = context.hide_scans and not algorithm.fixed_scans
    with fetch_rows(prepared, context) if hidden else nullcontext(prepared) as rows:
        (weights,) = algorithm.run(rows, [job], classes=classes, context=context)
    released = release_weights(weights, certificate, randomness)
    inference = release_inference(prepared, released[0], certificate, randomness, classes=classes, class_count=second)
    return Model.from_release(schema, released, certificate, labels, inference)


def list_non_private_reasons(reasons: tuple[str, ...], context: Context) -> tuple[str, ...]:
    """Return the reasons why a model is not private: those given, and one more if error messages may show rows."""
    return (*reasons, BAD_ROWS_REASON) if context.on_bad_row == "error" else reasons
