from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import click

from boltdp.algorithms import get_algorithm
from boltdp.algorithms._base import find_main_noise
from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._help import GroupedCommand
from boltdp.cli._report import describe_curves, describe_persons_and_costs
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table, warn
from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate
from boltdp.schema.schema import Classes, Number, Numeric, Schema, check_size
from boltdp.settings import Settings
from boltdp.workflows.inference import estimate_signal, estimate_width
from boltdp.workflows.label_check import count_needed_rows
from boltdp.workflows.noise_check import describe_drowning_noise
from boltdp.workflows.plan_training import make_plan, resolve_settings

#: The budgets that `plan` lists besides --epsilon.
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)


@command(
    "boltdp plan --rows 60000 --features 51 --classes 10 --epsilon 0.5",
    "boltdp plan --rows 54000 --features 24 --number --epsilon 1",
    "boltdp plan --rows 20190 --schema schema.toml --epsilon 1 --delta 1e-6",
    "boltdp plan --rows 20190 --schema schema.toml --epsilon 1 --inference",
    cls=GroupedCommand,
)
@click.option("--rows", type=int, required=True, help="How many rows there are.")
@_options.public_shape_options
@_options.max_rows_per_person_option
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The privacy budget.")
@_options.settings_options
@_options.json_option
def plan(
    *,
    rows: int,
    features: int | None,
    classes: int | None,
    number: bool,
    schema_path: str | None,
    max_rows_per_person: int | None,
    epsilon: float,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Show how much noise the weights will have, and which settings will be used, without reading data."""
    schema = make_public_schema(schema_path, features=features, classes=classes, number=number)
    if max_rows_per_person is not None:
        person_id = schema.person_id or "person_id"
        schema = replace(schema, person_id=person_id, max_rows_per_person=max_rows_per_person)
    settings = _options.make_settings(epsilon=epsilon, noiseless=False, chosen=chosen)
    cost = 0.0 if schema.spent is None or schema.spent.budget is None else schema.spent.budget.epsilon
    plans = {
        budget: make_plan(schema, rows, replace(settings, epsilon=budget), dims=features)
        for budget in (epsilon, *(other for other in EPSILONS if other > cost))
    }
    certificate = plans[epsilon].certificate
    by_epsilon = [_forecast_training(plans[budget].certificate) for budget in sorted(plans)]
    if (drowning := describe_drowning_noise(certificate)) is not None:
        warn(drowning)
    if as_json:
        emit_json({**certificate.to_dict(), **_forecast_training(certificate), "by_epsilon": by_epsilon})
        return
    emit_guarantee(certificate.guarantee(planned=True), private=certificate.private)
    algorithm = get_algorithm(certificate.algorithm)
    emit_table(
        [
            *algorithm.describe_cost(certificate),
            *plans[epsilon].schema.target.list_facts(certificate.problem.loss),
            *describe_persons_and_costs(certificate),
            *_describe_inference(certificate),
            *_describe_absent_check(certificate, settings, schema),
            *describe_curves(plans[epsilon].schema),
            *algorithm.describe_choices(certificate, settings),
        ]
    )
    emit("")
    names = [name for name in algorithm.columns if any(name in one for one in by_epsilon)]
    lines = [(f"{one['epsilon']:g}", one["noise"], *algorithm.format_forecast(one, names)) for one in by_epsilon]
    headings = [algorithm.columns[name][0] for name in names]
    emit_table(lines, header=("epsilon", "noise", *headings), numbers=True)
    emit(f"\n{algorithm.explain_forecast(certificate)}")


def _describe_inference(certificate: Certificate) -> list[tuple[str, str]]:
    """Return the lines of a planned inference: how wide intervals will be, and whether they may be refused."""
    if not certificate.matrices:
        return []
    width, signal = estimate_width(certificate.spent), estimate_signal(certificate.spent)
    lines = [("intervals", f"about {width:.2f} times as wide as without privacy, for typical data")]
    if signal < 0:
        lines.append(("caution", "the intervals will probably be refused: the noise hides the Hessian"))
    elif signal < 1:
        lines.append(
            ("caution", "the intervals may be refused, or cover less than they say, if columns are correlated")
        )
    return lines


def _describe_absent_check(certificate: Certificate, settings: Settings, schema: Schema) -> list[tuple[str, str]]:
    """Return a line with the number of rows from which labels are checked, if the planned rows are fewer."""
    if certificate.unusable_label_count is not None or not settings.label_check:
        return []
    left = resolve_settings(settings, schema)
    needed = math.ceil(count_needed_rows(left, schema))
    return [("label check", f"none, and nothing is spent on it: that needs at least {needed:,} rows")]


def make_public_schema(path: str | None, *, features: int | None, classes: int | None, number: bool) -> Schema:
    """Load the schema of --schema, or make one with the number of numeric columns that --features gives."""
    if path is not None and features is None and classes is None and not number:
        return Schema.load(path)
    if features is None or path is not None:
        raise ParameterError("give either --schema, or --features with --classes or --number")
    if number and classes is not None:
        raise ParameterError("give either --classes or --number")
    classes = 2 if classes is None else classes
    if classes < 2:
        raise ParameterError(f"classes must be >= 2, got {classes}")
    check_size(features=features, classes=classes)
    # The columns are numeric because the cost of standardizing depends on their number.
    columns = tuple(Numeric(f"feature {i}", -1, 1) for i in range(max(features - 1, 1)))
    return Schema(Number("target", -1, 1) if number else Classes("label", tuple(range(classes))), columns)


def _forecast_training(certificate: Certificate) -> dict[str, Any]:
    assert certificate.budget is not None
    noise = {"epsilon": certificate.budget.epsilon, "noise": find_main_noise(certificate).kind}
    width = {"expected_width": estimate_width(certificate.spent)} if certificate.matrices else {}
    return {**noise, **get_algorithm(certificate.algorithm).forecast(certificate), **width}
