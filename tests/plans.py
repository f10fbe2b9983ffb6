"""Certificates of trainings that are planned from numbers alone."""

from dataclasses import replace

from boltdp.errors import ParameterError
from boltdp.privacy.certificate import Certificate
from boltdp.schema.schema import make_array_schema
from boltdp.settings import Settings
from boltdp.workflows.plan_training import make_plan


def plan_certificate(
    settings: Settings, *, rows: int, dims: int, classes: int, person_rows: int | None = None
) -> Certificate:
    """Plan a training, without standardization or a label check, from the numbers of rows, features and classes."""
    if settings.standardize == "private":
        raise ParameterError("a plan must have the standardization that is asked for, got none")
    schema = make_array_schema(dims=dims, classes=range(classes))
    if person_rows is not None:
        schema = replace(schema, person_id="person", max_rows_per_person=person_rows)
    return make_plan(schema, rows, replace(settings, standardize="none", label_check=0.0)).certificate
