"""Model cards, and records for the OpenDP deployments registry, both made from a model.

The sections of a card follow NIST SP 800-226: the guarantee, the unit of privacy, the parameters with the privacy
profile, the mechanism, the threat model, what is not covered, and the utility, by subgroup if it was measured with
noise. Facts that only the owner of the data knows are arguments, or are left as visible blanks.

A record has the form of `schemas/deployments-schema.yaml` in the repository opendp/deployments-registry-data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from boltdp._charts import escape_text
from boltdp.errors import ParameterError, make_printable
from boltdp.evaluation.metrics import Table
from boltdp.export.html_pages import choose_guarantee_class, write_document, write_facts
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import Certificate
from boltdp.privacy.events.noisy_sgd import NoisyUpdates
from boltdp.privacy.mechanisms import Mechanism
from boltdp.schema.columns import Column
from boltdp.schema.pairs import list_pairs

if TYPE_CHECKING:
    from boltdp.evaluation.noisy_evaluation import NoisyEvaluation
    from boltdp.model import Model

#: The facts that only the owner of the data knows: the name of each option, and its meaning.
OWNER = {
    "name": "the name of the model, as it is published",
    "curator": "who publishes it",
    "curator-type": "what they are: Government, Industry or Nonprofit",
    "contact": "whom to ask about it",
    "use": "what it is intended for",
    "region": "the region that the rows are about, or whose law applies",
    "sector": "Technology, Healthcare, Education, Government, Energy or Finance",
    "date": "when it was or will be published, as YYYY-MM-DD",
    "persons": "how many rows one person can have, and how that is known",
    "collection": "how the rows were collected, and what the persons concerned were informed of",
    "access": "who may read the rows, and how they are kept",
    "data-source": "whether new rows come in over time: Static or Dynamic",
    "other-releases": "what else is or will be published from the same rows",
    "justification": "why these privacy parameters were chosen, and by whom",
    "author": "who wrote this card",
}

#: The epsilons at which the privacy profile is tabulated, as fractions of the claimed epsilon.
CURVE_FRACTIONS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
#: The title of the section that the HTML page highlights.
GUARANTEE = "The guarantee"
MAX_COLUMNS = 40
#: The maximum number of characters of a text.
MAX_LENGTH = 4000

#: The actors of the threat model, and the assumptions about them and the machine.
ACTORS = (
    "Whoever gets the model may know every other row, and everything that is printed: they learn no more about a row "
    "than the parameters allow.",
    "Whoever trains it reads the rows, and is trusted with them (central model).",
)
ASSUMPTIONS = (
    "It is assumed that the schema, the settings and the number of rows are public and were not chosen by looking at "
    "the rows, but for what is stated as spent, and that no position of a row depends on its values.",
    "It is assumed that the random numbers of the operating system are secret, and that nobody else reads the memory "
    "and the disk of the machine that trains.",
    "Time, memory, power and disk access are not hidden.",
)
EXCLUSIONS = (
    "Other releases from the same rows: their budgets are spent in addition.",
    "Whatever was computed from the rows by other means, such as a threshold that was found by looking at them.",
)

Owner = Mapping[str, str]


@dataclass(frozen=True)
class Section:
    """A section of a card, as plain texts."""

    title: str
    text: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    command: str | None = None


def make_sections(model: Model, owner: Owner, evaluation: NoisyEvaluation | None) -> list[Section]:
    """Make all sections of the model card."""
    certificate = model.certificate
    return [
        Section(
            "The model",
            (_describe_model(model),),
            (
                *_list_owner_facts(owner, "name", "curator", "contact", "use", "region", "date", "author"),
                *([] if model.threshold is None else [("threshold", f"{model.threshold:g}")]),
                *([] if not model.schema.pairs else [("pairs of columns", list_pairs(model.schema))]),
            ),
            (_tabulate_columns(model.schema.columns),),
        ),
        Section(GUARANTEE, (certificate.guarantee(),)),
        Section("The unit of privacy", _describe_privacy_unit(certificate), _list_owner_facts(owner, "persons")),
        Section(
            "Privacy parameters",
            (
                "The claim is one point of the privacy profile delta(epsilon), which is bounded by:"
                if certificate.private
                else "Without a guarantee there is no privacy profile.",
            ),
            (*_list_privacy_parameters(certificate), *_list_owner_facts(owner, "justification")),
            _tabulate_privacy_profile(certificate),
        ),
        Section("The mechanism", _describe_implementation(certificate), _list_mechanisms(certificate)),
        Section("The threat model", (*ACTORS, *ASSUMPTIONS), _list_owner_facts(owner, "access")),
        Section(
            "What is not covered",
            (_describe_public_facts(model), *EXCLUSIONS),
            _list_owner_facts(owner, "collection", "other-releases"),
        ),
        _make_utility_section(certificate, evaluation),
        Section(
            "How to check it",
            (
                "The claim is recomputed from the public numbers in the model file, and the weights are compared with "
                "the grid that noise is released on:",
            ),
            command="boltdp verify model.json",
        ),
    ]


def write_markdown(model: Model, owner: Owner, evaluation: NoisyEvaluation | None) -> str:
    """Write the model card as Markdown, with a metadata header for model hubs."""
    task = f"tabular-{model.schema.target.task}"
    header = ("library_name: boltdp", f"pipeline_tag: {task}", "tags:", "- differential-privacy", f"- {task}")
    lines = ["---", *header, "---", "", f"# Model card: {_escape_markdown(_choose_title(model, owner))}"]
    for section in make_sections(model, owner, evaluation):
        lines += ["", f"## {_escape_markdown(section.title)}"]
        for text in section.text:
            lines += ["", _escape_markdown(text)]
        if section.facts:
            facts = (tuple(map(_escape_markdown, fact)) for fact in section.facts)
            lines += ["", *(f"- **{name}**: {text}" for name, text in facts)]
        for table in section.tables:
            rule = "|---" * len(table.headings) + "|"
            lines += ["", _write_markdown_row(table.headings), rule, *map(_write_markdown_row, table.lines)]
        if section.command is not None:
            lines += ["", "```sh", section.command, "```"]
    return "\n".join(lines) + "\n"


def write_html(model: Model, owner: Owner, evaluation: NoisyEvaluation | None) -> str:
    """Write the model card as a self-contained HTML page."""
    body = ""
    for section in make_sections(model, owner, evaluation):
        kind = f' class="{choose_guarantee_class(model)}"' if section.title == GUARANTEE else ""
        body += f"<h2>{escape_text(section.title)}</h2>"
        body += "".join(f"<p{kind}>{escape_text(text, MAX_LENGTH)}</p>" for text in section.text)
        body += write_facts(section.facts, MAX_LENGTH)
        for table in section.tables:
            head = "".join(f"<th>{escape_text(cell)}</th>" for cell in table.headings)
            rows = ("".join(f"<td>{escape_text(cell, MAX_LENGTH)}</td>" for cell in line) for line in table.lines)
            body += f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
        if section.command is not None:
            body += f"<pre>{escape_text(section.command)}</pre>"
    return write_document(f"Model card: {escape_text(_choose_title(model, owner))}", body)


def to_dict(model: Model, owner: Owner, evaluation: NoisyEvaluation | None) -> dict[str, Any]:
    """Convert the card, its certificate and its evaluation to JSON-compatible values."""
    listed = [
        {
            "title": section.title,
            "text": list(section.text),
            "facts": dict(section.facts),
            "tables": [table._asdict() for table in section.tables],
        }
        for section in make_sections(model, owner, evaluation)
    ]
    return {
        "format": "boltdp-card",
        "owner": {name: owner.get(name) for name in OWNER},
        "sections": listed,
        "certificate": model.certificate.to_dict(),
        "evaluation": None if evaluation is None else evaluation.to_dict(),
    }


def make_registry_record(model: Model, owner: Owner, evaluation: NoisyEvaluation | None) -> dict[str, Any]:
    """Make the record for the OpenDP deployments registry; blanks are empty texts, which its validation rejects."""
    certificate = model.certificate
    if not certificate.private or certificate.budget is None:
        raise ParameterError(
            f"a model for the registry must be private, and this one is not: {'; '.join(certificate.reasons)}"
        )
    budget, target = certificate.budget, model.schema.target
    stated = {name: owner.get(name) or _Blank(name) for name in OWNER}
    slug = re.sub(r"[^a-z0-9]+", "-", f"{stated['name']} {stated['curator']}".lower()).strip("-")
    basic = {
        "name": stated["name"],
        "data_curators": [{"data_curator_name": stated["curator"], "data_curator_type": stated["curator-type"]}],
        "description": _describe_model(model),
        "intended_use": stated["use"],
        "data_product_type": "Machine learning model",
        "data_product_region": stated["region"],
        "data_product_sector": stated["sector"],
        "publication_date": stated["date"],
    }
    curve = _tabulate_privacy_profile(certificate)
    points = [f"delta = {delta} at epsilon = {epsilon}" for epsilon, delta in curve[0].lines] if curve else []
    persons = [f"Rows of a person: {stated['persons']}"] if stated["persons"] else []
    access = [f"Access to the rows: {stated['access']}"] if stated["access"] else []
    mechanisms = [f"{name}: {value}" for name, value in _list_mechanisms(certificate)]
    spent = [f"{name}: {value}" for name, value in _list_privacy_parameters(certificate) if name.startswith("spent")]
    utility = _make_utility_section(certificate, evaluation)
    scores = [f"{': '.join(line[:2])} ({', '.join(line[2:])})" for table in utility.tables[:1] for line in table.lines]
    groups = [
        "; ".join(f"{name}: {value}" for name, value in zip(table.headings, line, strict=True))
        for table in utility.tables[1:]
        for line in table.lines
    ]
    return {
        "url_slug": slug or _Blank("name"),
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP" if budget.delta else "Pure DP",
                "data_domain": _write_markdown_list(
                    [f"Tables of {certificate.rows:,} rows with these columns, whatever is in them:"],
                    [": ".join(filter(None, line)) for line in _tabulate_columns(model.schema.columns).lines],
                    [f"{target.column}: the {target.key}, {target.describe_values()}"],
                ),
                "unprotected_quantities": _describe_public_facts(model),
            },
            "privacy_loss": {
                "privacy_unit": certificate.adjacency.unit.capitalize(),
                "privacy_unit_details": _write_markdown_list(_describe_privacy_unit(certificate), persons),
                # The number of persons is private.
                "number_of_privacy_units": certificate.rows if certificate.person_rows is None else None,
                "privacy_parameters": {"epsilon": budget.epsilon, **({"delta": budget.delta} if budget.delta else {})},
                "privacy_parameters_details": _write_markdown_list([certificate.guarantee()], points),
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": _write_markdown_list(ASSUMPTIONS, access),
                "actors": _write_markdown_list(ACTORS),
                "release_type": "One release",
                "release_type_details": stated["other-releases"],
                "data_source_type": stated["data-source"],
                "access_type": "Non-interactive",
                "access_type_details": "The model is published as it is; nobody queries the rows.",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _write_markdown_list(_describe_preprocessing(certificate)),
                "mechanisms": _write_markdown_list(mechanisms, _describe_implementation(certificate)),
                "composition": _write_markdown_list(spent or ["One mechanism: nothing is composed."]),
                "post_processing": "None."
                if model.threshold is None
                else f"A threshold of {model.threshold:g}, which changes no weight.",
                "justification": stated["justification"],
                "utility": _write_markdown_list(utility.text, scores, groups),
                "additional_information": "The model file has a certificate; `boltdp verify` recomputes the claim.",
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [stated["author"]],
                "tier": 3 if stated["justification"] else 2,
            },
        },
    }


class _Blank(str):
    """An empty text in place of a fact that the owner has not stated."""

    option: str  #: by which the owner states it

    def __new__(cls, option: str) -> _Blank:
        blank = super().__new__(cls)
        blank.option = option
        return blank


def write_yaml(record: Mapping[str, Any]) -> str:
    """Write a nested record as YAML; a comment beside a blank text names its option."""
    return "\n".join(_list_yaml_lines(record)) + "\n"


def _list_yaml_lines(record: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _list_yaml_lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{key}:"
            for one in value:
                if isinstance(one, Mapping):
                    first, *others = _list_yaml_lines(one, indent + "  ")
                    yield f"{indent}- {first.removeprefix(indent + '  ')}"
                    yield from others
                else:
                    yield f"{indent}- {_write_yaml_scalar(one)}"
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{key}: |"
            yield from (f"{indent}  {line}".rstrip() for line in value.split("\n"))
        else:
            yield f"{indent}{key}: {_write_yaml_scalar(value)}"


def _write_yaml_scalar(value: Any) -> str:
    if isinstance(value, float):
        # YAML parsers read a number with an exponent but no point as a text.
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    comment = ""
    if isinstance(value, _Blank):
        comment = f"  # to be stated by the owner (--{value.option}): {OWNER[value.option]}"
    return json.dumps(value, ensure_ascii=False) + comment


def _write_markdown_list(*parts: Sequence[str]) -> str:
    return "\n".join(f"- {_escape_markdown(text)}" for part in parts for text in part)


def _list_owner_facts(owner: Owner, *names: str) -> tuple[tuple[str, str], ...]:
    """List what the owner of the model states in its card, with visible blanks for missing texts."""
    return tuple((name, owner.get(name) or f"____ (to be stated by the owner: {OWNER[name]})") for name in names)


def _choose_title(model: Model, owner: Owner) -> str:
    target = model.schema.target
    return owner.get("name") or f"a {target.predictor} of {target.column}"


def _describe_model(model: Model) -> str:
    certificate, target, count = model.certificate, model.schema.target, len(model.schema.columns)
    return (
        f"A linear {target.predictor} with the {certificate.problem.loss.name} loss that predicts {target.column} "
        f"({target.describe_values()}) from {count:,} {'column' if count == 1 else 'columns'}. It was "
        f"trained on {certificate.rows:,} rows by boltdp {certificate.version} with the algorithm "
        f"{certificate.algorithm}."
    )


def _tabulate_columns(columns: Sequence[Column]) -> Table:
    lines: list[tuple[str, ...]] = [(column.name, column.describe()) for column in columns[:MAX_COLUMNS]]
    more = len(columns) - MAX_COLUMNS
    if more > 0:
        lines.append((f"{more:,} more", ""))
    return Table(("column", "what it can be, which is public"), lines)


def _describe_privacy_unit(certificate: Certificate) -> tuple[str, ...]:
    adjacency = certificate.adjacency
    rows = "Someone with g rows is protected by less: with pure differential privacy by g times epsilon."
    if certificate.person_rows is not None:
        rows = f"Of each person's rows at most {certificate.person_rows:,} count."
    return f"{adjacency.unit.capitalize()}. Neighbouring datasets ({adjacency.value}): {adjacency.meaning}.", rows


def _list_privacy_parameters(certificate: Certificate) -> list[tuple[str, str]]:
    budget = certificate.budget
    facts = [] if budget is None else [("epsilon", f"{budget.epsilon:g}"), ("delta", f"{budget.delta:g}")]
    for number, part in enumerate(certificate.parts, 1):
        share = "without noise" if part.budget is None else part.budget.describe()
        facts.append((f"spent {number}", f"{part.event.kind}, {share}"))
    return facts


def _tabulate_privacy_profile(certificate: Certificate) -> tuple[Table, ...]:
    if not certificate.private or certificate.budget is None:
        return ()
    claimed = certificate.budget
    lines: list[tuple[str, ...]] = []
    for epsilon in (part * claimed.epsilon for part in CURVE_FRACTIONS):
        # At larger epsilons the claimed delta may be a tighter bound than the discretized profile.
        delta = min(certificate.delta(epsilon), claimed.delta if epsilon >= claimed.epsilon else 1.0)
        lines.append((f"{epsilon:g}", f"{delta:.3g}"))
    return (Table(("epsilon", "delta, at most"), lines),)


def _describe_noise(noise: Mechanism | None) -> str | None:
    if noise is None:
        return None
    kind = "normal noise" if noise.kind == "gaussian" else "spherical noise, density ~ exp(-length / scale),"
    return f"{kind} of scale {noise.scale:.6g} in {noise.dimensions:,} dimensions"


def _list_mechanisms(certificate: Certificate) -> tuple[tuple[str, str], ...]:
    moments, selection, sensitivity = certificate.moments, certificate.selection, certificate.training.sensitivity
    separate = f"{certificate.model_count}, one per class, each with noise of its own"
    facts = {
        "algorithm": certificate.algorithm,
        "schema": None if certificate.draft is None else "found from the rows, by noisy counts",
        "label check": None
        if certificate.unusable_label_count is None
        else certificate.unusable_label_count.describe(),
        "target": None if certificate.label_quantiles is None else certificate.label_quantiles.describe(),
        "standardizing": None if moments is None else moments.describe(),
        "chosen": None if selection is None else selection.describe(),
        "noise in training": _describe_noise(certificate.training_noise),
        "noise of the weights": _describe_noise(certificate.release_noise),
        "sensitivity of the weights": None if sensitivity is None else f"{sensitivity.total:.6g}",
        "models": separate if certificate.model_count > 1 else None,
    }
    return tuple((name, text) for name, text in facts.items() if text)


def _describe_implementation(certificate: Certificate) -> tuple[str, ...]:
    texts = [f"Implemented by boltdp {certificate.version}; each bound has its proof beside the code."]
    if isinstance(certificate.training, NoisyUpdates):
        texts.append("Noise in the updates is drawn in floating point: the guarantee is that of real-valued noise.")
    elif certificate.private:
        texts.append(
            "Noise is drawn exactly, as a real number that is rounded once, to a public grid, from random bits of the "
            "operating system. Rounding in the training is bounded and counted in the sensitivity."
        )
    return tuple(texts)


def _describe_preprocessing(certificate: Certificate) -> list[str]:
    texts = ["Bounds, categories and classes are declared as public, and values outside are clipped or neutral."]
    if certificate.draft is not None:
        texts = ["Bounds, categories and classes were found from the rows by noisy counts, which are accounted for."]
    if certificate.label_quantiles is not None:
        texts.append("The target is scaled by quantiles that were chosen with noise, which are accounted for.")
    if certificate.moments is not None:
        texts.append("Features are centred by noisy moments, which are accounted for.")
    if certificate.selection is not None:
        texts.append(f"Settings were chosen within the guarantee: {certificate.selection.describe()}.")
    else:
        texts.append("Settings that were not given were chosen from public numbers, before a row was read.")
    return texts


def _describe_public_facts(model: Model) -> str:
    return (
        f"The number of rows ({model.certificate.rows:,}) and the schema: names of columns, bounds, categories and "
        "classes."
    )


def _make_utility_section(certificate: Certificate, evaluation: NoisyEvaluation | None) -> Section:
    title = "Utility"
    if evaluation is None:
        return Section(
            title,
            ("Not measured. It can be, with noise and for each category of a column:",),
            command="boltdp evaluate model.json SOURCE --epsilon 0.1 --by COLUMN -o evaluation.json",
        )
    together = ""
    if (first := certificate.budget) is not None and not evaluation.reasons:
        second = evaluation.budget
        both = Budget(first.epsilon + second.epsilon, min(first.delta + second.delta, 0.999)).describe()
        together = f" If these rows are those of the training, both together spend at most {both}."
    text = (
        f"{evaluation.guarantee()}{together}",
        "Intervals of 95 % are for the noise and for the rows as a sample of others like them.",
    )
    scores: list[tuple[str, ...]] = [
        (name, "-", "too few rows for the noise") if score is None else (name, score.text, score.interval)
        for name, score in evaluation.scores.items()
    ]
    return Section(
        title, text, tables=(Table(("all rows", "with noise", "95 % interval"), scores), *evaluation.make_tables())
    )


def _write_markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escape_markdown, cells))} |"


def _escape_markdown(text: str) -> str:
    """Escape an untrusted text for Markdown, as one line."""
    one = make_printable(text, longest=MAX_LENGTH).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#$])", r"\\\1", one)
