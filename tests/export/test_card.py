"""Model cards: all of it follows from the model, blanks are visible, and the registry's form is kept."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from boltdp.engines import open_source
from boltdp.errors import ParameterError
from boltdp.evaluation.evaluate import evaluate_privately
from boltdp.evaluation.noisy_evaluation import NoisyEvaluation
from boltdp.export.card import (
    OWNER,
    make_registry_record,
    make_sections,
    to_dict,
    write_html,
    write_markdown,
    write_yaml,
)
from boltdp.model import Model
from boltdp.privacy.budget import Budget
from boltdp.privacy.release_with_noise import Randomness
from boltdp.run_context import Context
from boltdp.schema.schema import Categorical, Classes, Column, Numeric, Schema, Vector
from boltdp.settings import Settings
from boltdp.workflows.train import train
from boltdp.workflows.tune import expand_grid, tune
from tests.plans import plan_certificate

reader: Any = pytest.importorskip("yaml")
validator: Any = pytest.importorskip("jsonschema")

HOSTILE = "<script>|`*_[x](y)#"
#: What the registry's schema requires and enumerates, in its structure of 2026.
REGISTRY: dict[str, dict[str, Any]] = {
    "basic": {
        "name": str,
        "data_curators": list,
        "description": str,
        "intended_use": str,
        "data_product_type": ("Summary statistics", "Machine learning model", "Dataset", "Synthetic data"),
        "data_product_region": str,
        "data_product_sector": ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance"),
        "publication_date": str,
    },
    "dp_variant": {
        "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
        "data_domain": str,
        "unprotected_quantities": str,
    },
    "privacy_loss": {
        "privacy_unit": str,
        "privacy_unit_details": str,
        "number_of_privacy_units": int,
        "privacy_parameters": dict,
        "privacy_parameters_details": str,
    },
    "deployment_model": {
        "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
        "trust_assumptions": str,
        "actors": str,
        "release_type": ("One release", "Many releases"),
        "release_type_details": str,
        "data_source_type": ("Static", "Dynamic"),
        "access_type": ("Interactive", "Non-interactive"),
        "access_type_details": str,
    },
    "implementation": {
        "preprocessing_and_hyperparameter_tuning": str,
        "mechanisms": str,
        "composition": str,
        "post_processing": str,
        "justification": str,
        "utility": str,
        "additional_information": str,
    },
    "administrative": {"status": ("Draft", "Pending", "Approved"), "registry_authors": list, "tier": int},
}
KINDS = {str: "string", int: "integer", dict: "object", list: "array"}


def form() -> dict[str, Any]:
    """The same as a JSON schema."""
    parts: dict[str, Any] = {}
    for name, fields in REGISTRY.items():
        properties = {
            key: {"enum": [*kind]} if isinstance(kind, tuple) else {"type": KINDS[kind]} for key, kind in fields.items()
        }
        parts[name] = {"type": "object", "additionalProperties": False, "properties": properties}
        parts[name]["required"] = [*fields]
    parts["basic"]["properties"]["publication_date"] = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"}
    numbers = {"epsilon": {"type": "number"}, "delta": {"type": ["number", "string"]}, "rho": {"type": "number"}}
    parameters = {"type": "object", "additionalProperties": False, "properties": numbers}
    parts["privacy_loss"]["properties"]["privacy_parameters"] = parameters
    curator = {
        "type": "object",
        "required": ["data_curator_name", "data_curator_type"],
        "properties": {"data_curator_type": {"enum": ["Government", "Industry", "Nonprofit"]}},
    }
    parts["basic"]["properties"]["data_curators"] = {"type": "array", "items": curator, "minItems": 1}
    deployment = {"type": "object", "additionalProperties": False, "properties": parts, "required": [*parts]}
    both: dict[str, Any] = {"url_slug": {"type": "string"}, "deployment": deployment}
    return {"type": "object", "additionalProperties": False, "properties": both, "required": [*both]}


STATED = {
    **{name: f"what is said of {name}: {HOSTILE}" for name in OWNER},
    "curator-type": "Nonprofit",
    "sector": "Healthcare",
    "date": "2026-11-17",
    "data-source": "Static",
}


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    generator = np.random.default_rng(0)
    age = generator.uniform(0, 100, 3000)
    ward = generator.choice(["north", "south"], 3000)
    return pa.table({"age": age, "ward": ward, "sick": age + generator.normal(0, 20, 3000) > 60})


SCHEMA = Schema(Classes("sick", (False, True)), (Numeric("age", 0, 100), Categorical("ward", ("north", "south"))))


@pytest.fixture(scope="module")
def model(rows: pa.Table) -> Model:
    return train(open_source(rows), SCHEMA, Settings(epsilon=0.5, delta=1e-6))


@pytest.fixture(scope="module")
def evaluation(model: Model, rows: pa.Table) -> NoisyEvaluation:
    return evaluate_privately(model, open_source(rows), Budget(0.25), by="ward")


def fact(model: Model, title: str, name: str) -> str:
    return dict(next(one for one in make_sections(model, {}, None) if one.title == title).facts)[name]


def test_the_points_of_the_guideline_are_there(model: Model, evaluation: NoisyEvaluation) -> None:
    text = write_markdown(model, {}, evaluation)
    for point in (
        "## The unit of privacy",
        "one row, at its position, is replaced by any other",
        "## Privacy parameters",
        "- **epsilon**: 0.5",
        "- **delta**: 1e-06",
        "## The threat model",
        "## What is not covered",
        "## Utility",
        "| north |",
        "both together spend at most epsilon = 0.75, delta = 1e-06",
    ):
        assert point in text
    assert model.certificate.guarantee() in text


def test_the_curve_falls_from_below_the_claim_to_the_claimed_delta(model: Model) -> None:
    (curve,) = next(one for one in make_sections(model, {}, None) if one.title == "Privacy parameters").tables
    points = [(float(epsilon), float(delta)) for epsilon, delta in curve.lines]
    deltas = [delta for _, delta in points]
    assert deltas == sorted(deltas, reverse=True)
    assert dict(points)[0.5] <= 1e-6 < dict(points)[0.25] < 1
    assert dict(points)[0.25] == pytest.approx(model.certificate.delta(0.25), rel=1e-2)


def test_what_only_the_owner_knows_is_a_visible_blank(model: Model) -> None:
    text = write_markdown(model, {}, None)
    assert text.count("to be stated by the owner") == len(OWNER) - 3  # the others are the registry's
    stated = write_markdown(model, {**STATED, "curator": "A hospital"}, None)
    assert "to be stated by the owner" not in stated
    assert "- **curator**: A hospital" in stated


def test_without_an_evaluation_no_figure_is_told(model: Model) -> None:
    (utility,) = (one for one in make_sections(model, {}, None) if one.title == "Utility")
    assert not utility.tables
    assert "Not measured" in utility.text[0]
    assert utility.command is not None
    assert "--epsilon" in utility.command


def test_names_are_never_markup() -> None:
    schema = Schema(
        Classes(HOSTILE, (f"no {HOSTILE}", "yes")), (Categorical(f"in {HOSTILE}", (HOSTILE,)), Vector("v", 2, -1, 1))
    )
    certificate = plan_certificate(Settings(epsilon=1.0), rows=100, dims=schema.dims, classes=2)
    model = Model(schema, np.zeros((1, schema.dims)), certificate)

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            del attrs
            assert tag != "script"

    Tags().feed(write_html(model, STATED, None))
    text = write_markdown(model, STATED, None)
    assert "<script>" not in text
    assert re.search(r"(?<!\\)[`*\[]x?\]?\(y\)", text) is None
    assert "2 numbers from -1 to 1" in text
    lines = [line for line in text.splitlines() if "&lt;script" in line and line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3}


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("measured", [True, False])
def test_the_record_has_the_registrys_form(
    model: Model, rows: pa.Table, evaluation: NoisyEvaluation, delta: float, measured: bool
) -> None:
    if not delta:
        model = train(open_source(rows), SCHEMA, Settings(epsilon=0.5))
    record = make_registry_record(model, STATED, evaluation if measured else None)
    read = reader.safe_load(write_yaml(record))
    assert {**read, "deployment": None} == {**record, "deployment": None}
    validator.validate(read, form())
    loss = read["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": 0.5, **({"delta": delta} if delta else {})}
    assert loss["number_of_privacy_units"] == 3000
    assert read["deployment"]["dp_variant"]["variant_name"] == ("Approximate DP" if delta else "Pure DP")
    assert read["deployment"]["administrative"]["tier"] == 3
    assert ("accuracy" in read["deployment"]["implementation"]["utility"]) == measured
    for part, fields in read["deployment"].items():
        for name, value in fields.items():
            if isinstance(value, str):
                assert value.rstrip("\n") == record["deployment"][part][name], name


def test_a_record_with_blanks_says_so_and_is_refused_by_the_form(model: Model) -> None:
    text = write_yaml(make_registry_record(model, {}, None))
    assert text.count("# to be stated by the owner (--") == 12
    with pytest.raises(validator.ValidationError):
        validator.validate(reader.safe_load(text), form())
    assert reader.safe_load(text)["deployment"]["administrative"]["tier"] == 2


def test_a_model_that_is_not_private_has_a_card_that_says_so_and_no_record(rows: pa.Table) -> None:
    model = train(open_source(rows), SCHEMA, Settings(epsilon=None))
    assert "NOT PRIVATE: no noise was added." in write_markdown(model, {}, None)
    assert 'class="guarantee none"' in write_html(model, {}, None)
    with pytest.raises(ParameterError, match="no noise was added"):
        make_registry_record(model, {}, None)


def test_an_evaluation_that_is_not_private_says_so(model: Model, rows: pa.Table) -> None:
    seeded = evaluate_privately(model, open_source(rows), Budget(0.25), context=Context(randomness=Randomness(1)))
    assert "NOT PRIVATE: the noise came from a seed" in write_markdown(model, {}, seeded)


def test_data_has_the_certificate_and_the_evaluation(model: Model, evaluation: NoisyEvaluation) -> None:
    record = json.loads(json.dumps(to_dict(model, {"name": "N"}, evaluation)))
    assert record["certificate"] == model.certificate.to_dict()
    assert record["evaluation"]["counts"] == [*evaluation.counts]
    assert record["owner"]["name"] == "N"
    assert record["owner"]["contact"] is None


def test_all_that_was_spent_is_told(rows: pa.Table) -> None:
    tried = expand_grid(Settings(epsilon=1.0, algorithm="bolton"), {"regularization": [1e-3, 1e-2]})
    model = tune(open_source(rows), SCHEMA, tried, method="trials")
    assert model.certificate.selection is not None
    assert fact(model, "The mechanism", "chosen") == model.certificate.selection.describe()
    whitebox = train(open_source(rows), SCHEMA, Settings(epsilon=1.0, delta=1e-6, algorithm="dpsgd", passes=1))
    assert "drawn in floating point" in write_markdown(whitebox, {}, None)
    private = train(open_source(rows), SCHEMA, Settings(epsilon=1.0, standardize="private"))
    assert fact(private, "Privacy parameters", "spent 1").startswith("noisy moments, epsilon = ")


@pytest.mark.parametrize(("numbers", "told"), [(50, "| 11 more |"), (30, "and 18 more")])
def test_many_columns_categories_and_classes_are_shortened(numbers: int, told: str) -> None:
    columns: list[Column] = [Numeric(f"f{i}", 0, 1) for i in range(numbers)]
    columns.append(Categorical("c", tuple(range(30))))
    schema = Schema(Classes("y", tuple(range(20))), tuple(columns))
    certificate = plan_certificate(Settings(epsilon=1.0), rows=100, dims=schema.dims, classes=20)
    text = write_markdown(Model(schema, np.zeros((20, schema.dims)), certificate), {}, None)
    assert "and 8 more" in text
    assert told in text
