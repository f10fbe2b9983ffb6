"""The lines that commands print about a model and its certificate."""

from __future__ import annotations

from typing import Any

from boltdp.algorithms import get_algorithm
from boltdp.algorithms._base import compute_noise_per_weight
from boltdp.cli._options import MAX_SHOWN_CLASSES, describe_ledger
from boltdp.cli._terminal import emit_guarantee, emit_json, emit_table, is_given, note, warn
from boltdp.ledger.ledger import Account
from boltdp.model import Model
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.label_quantiles import LabelQuantiles
from boltdp.privacy.events.noisy_counts import NoisyClassCount, NoisyHistograms, NoisyUnusableLabelCount
from boltdp.privacy.events.noisy_matrix import NoisyMatrix
from boltdp.privacy.events.noisy_moments import NoisyMoments
from boltdp.schema.pairs import list_pairs
from boltdp.schema.schema import Schema
from boltdp.workflows.label_check import describe_unusable_labels
from boltdp.workflows.noise_check import describe_drowning_noise

MAX_SHOWN_CURVES = 5


def print_model_report(model: Model, output: str, *, as_json: bool, account: Account | None = None) -> None:
    """Print the guarantee of a new model, its cost, and where the model is."""
    certificate, target = model.certificate, model.schema.target
    # Whether private rows have other labels is private: only the noisy count of the label check is shown.
    note(
        f"{target.describe_used_labels(MAX_SHOWN_CLASSES)}: rows with an unknown {target.key} are ignored; "
        "`boltdp check` on public rows shows whether there are any"
    )
    for said in (describe_unusable_labels(model), describe_drowning_noise(certificate)):
        if said is not None:
            warn(said)
    if as_json:
        stated: dict[str, Any] = {"model": output, "guarantee": certificate.guarantee(), "where": model.trained_where}
        optional: dict[str, Any] = {"threshold": model.threshold, "unusable_labels": model.unusable_labels}
        if account is not None:
            optional |= {"ledger": account.ledger.address, "dataset": account.dataset}
        stated |= {name: value for name, value in optional.items() if value is not None}
        emit_json({**stated, "noise_per_weight": compute_noise_per_weight(certificate), **certificate.to_dict()})
        return
    emit_guarantee(certificate.guarantee(), private=certificate.private)
    selection, algorithm = certificate.selection, get_algorithm(certificate.algorithm)
    emit_table(
        [
            *(line for line in algorithm.describe_cost(certificate) if is_given("verbose") or line[0] != "noise"),
            *target.list_facts(certificate.problem.loss),
            *describe_persons_and_costs(certificate),
            *describe_curves(model.schema),
            *([] if selection is None else [("chosen", selection.describe())]),
            ("training", algorithm.describe_run(certificate)),
            *([] if model.trained_where is None else [("rows", model.trained_where)]),
            *describe_decision_threshold(model),
            *describe_ledger(account),
            ("model", f"{output}: {model.weights.size:,} weights for {target.summary}"),
        ]
    )
    if model.inference is not None:
        note(f"`boltdp coefficients {output}` prints coefficients with intervals")


def describe_decision_threshold(model: Model) -> list[tuple[str, str]]:
    """Return the line of a report with the decision threshold; none if the model has none."""
    if model.threshold is None:
        return []
    return [("threshold", f"{model.schema.target.describe_threshold(model.threshold)}; this costs no privacy")]


def describe_persons_and_costs(certificate: Certificate) -> list[tuple[str, str]]:
    """Return the lines of a report with the rows used per person, if any, and with the cost of each earlier release."""
    lines, draft = [], certificate.draft
    if certificate.person_rows is not None:
        used = "row of each is" if certificate.person_rows == 1 else "rows of each are"
        lines.append(("persons", f"the first {certificate.person_rows:,} {used} used, and others are ignored"))
    if draft is not None and draft.budget is not None:
        lines.append(("schema", f"found privately, for {draft.budget.describe()}"))
    for part in certificate.parts:
        cost = "" if part.budget is None else f", for {part.budget.describe()}"
        if type(part.event) is NoisyUnusableLabelCount:
            lines.append(("label check", part.event.describe() + cost))
        elif isinstance(part.event, LabelQuantiles):
            lines.append(("target", part.event.describe() + cost))
        elif isinstance(part.event, (NoisyMoments, NoisyHistograms)):
            lines.append(("standardizing", part.event.describe() + cost))
        elif isinstance(part.event, (NoisyClassCount, NoisyMatrix)):
            lines.append(("inference", part.event.describe() + cost))
    return lines


def describe_curves(schema: Schema) -> list[tuple[str, str]]:
    """Return a line that lists the columns with curves, and one with pairs of columns, if there are any."""
    pairs = [("pairs", list_pairs(schema))] if schema.pairs else []
    steps = [(column.name, len(column.encoding_rule.thresholds)) for column in schema.columns]
    curved = [(name, count) for name, count in steps if count]
    if not curved:
        return pairs
    listed = [f"{steps} of {name}" for name, steps in curved[:MAX_SHOWN_CURVES]]
    stated = ", ".join(listed).replace(" of ", " steps of ", 1)
    if more := curved[MAX_SHOWN_CURVES:]:
        stated += f" and {sum(steps for _, steps in more)} of {len(more)} more"
    return [("curves", stated), *pairs]
