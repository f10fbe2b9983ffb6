"""Training one model per group of rows, where groups are the values of a public column of a PostgreSQL table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from boltdp.model import Model
from boltdp.run_context import Context
from boltdp.schema.schema import Schema
from boltdp.workflows.plan_training import Plan
from boltdp.workflows.standardize import standardize_schema
from boltdp.workflows.train import train_prepared

if TYPE_CHECKING:
    from boltdp.engines.base import PreparedRows
    from boltdp.engines.postgres import PostgresGroups


def train_groups(groups: PostgresGroups, plans: Sequence[Plan], context: Context) -> list[Model]:
    """Train the planned model of each group, without charging a budget.

    One scan of the source prepares all groups, after one more scan if projected features are standardized. Each model
    is bitwise equal to one trained on the rows of its group alone.
    """
    schemas = [plan.schema for plan in plans]

    def standardize_schemas(tables: Sequence[PreparedRows]) -> Iterator[Schema]:
        for prepared, schema, plan in zip(tables, schemas, plans, strict=True):
            yield standardize_schema(prepared, schema, plan.certificate, context.randomness)

    if any(plan.schema.projection is not None and plan.certificate.moments is not None for plan in plans):
        unprojected, unpermuted = [schema.unscaled for schema in schemas], [False for _ in plans]
        with groups.prepare(unprojected, context, permuted=unpermuted, last=False) as tables:
            schemas = list(standardize_schemas(tables))
    permuted = [plan.algorithm.needs_permutation for plan in plans]
    models = []
    with groups.prepare(schemas, context, permuted=permuted) as tables:
        for prepared, schema, plan in zip(tables, standardize_schemas(tables), plans, strict=True):
            with prepared:  # drops the table of a group as early as possible
                models.append(
                    train_prepared(
                        prepared.with_feature_map(schema.encoding.feature_map), schema, plan.certificate, context
                    )
                )
    return [replace(model, trained_where=groups.where) for model in models]
