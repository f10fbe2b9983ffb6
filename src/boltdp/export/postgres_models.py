"""Storage of released models in the table `boltdp.models`, for `boltdp.predict` and `boltdp.predict_proba`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from boltdp.encoding.plan import EncodingPlan
from boltdp.errors import BoltdpError, InferenceError
from boltdp.export.coefficients import Coefficients
from boltdp.model import Model
from boltdp.schema.schema import Schema

_MISSING = "CREATE EXTENSION boltdp makes the table, once the extension is installed"


class ModelStoreError(BoltdpError):
    """A model cannot be stored in the database, or read from it."""


def _make_input_scaling(plan: EncodingPlan) -> dict[str, list[Any]]:
    """Make the columns of `boltdp.models` by which `boltdp.predict` scales its input: bounds, factors and any steps.

    The entries are the features in original units, without steps and the intercept: numbers, 0 or 1 for each category,
    and the entries of vectors.
    """
    scaling: dict[str, list[Any]] = {"low": [], "high": [], "middle": [], "factor": []}
    curves: dict[str, list[Any]] = {"steps": [], "places": [], "absent": [], "present": []}
    for scaled in plan.scaled_rules:
        rule, (middles, factors), count = scaled.rule, scaled.original_units, len(scaled.rule.thresholds)
        inputs = [*range(rule.number_count), *range(rule.number_count + count, rule.feature_count)]
        scaling["low"] += [rule.bounds[0]] * len(inputs)
        scaling["high"] += [rule.bounds[1]] * len(inputs)
        scaling["middle"] += middles[inputs].tolist()
        scaling["factor"] += factors[inputs].tolist()
        # The steps of a number follow from it.
        absent, present = scaled.indicator_values
        curves["steps"] += [count, *[0] * (len(inputs) - 1)]
        curves["places"] += rule.exact_thresholds
        curves["absent"] += absent[:count].tolist()
        curves["present"] += present[:count].tolist()
    return scaling | curves if curves["places"] else scaling


def quote_literal(text: str) -> str:
    """Quote a text as an SQL literal of printable characters."""
    plain = text.replace("'", "''")
    if plain.isprintable() and "\\" not in plain:
        return f"'{plain}'"
    escaped = (
        one if one.isprintable() else f"\\u{ord(one):04X}" if ord(one) < 0x10000 else f"\\U{ord(one):08X}"
        for one in plain.replace("\\", "\\\\")
    )
    return f"E'{''.join(escaped)}'"


def make_model_row(name: str, model: Model) -> dict[str, Any]:
    """Make the row of the table `boltdp.models` for a model, by column name."""
    schema, (plan, weights) = model.schema, model.scoring
    matrix, parameter = schema.encoding.projection_matrix, model.certificate.problem.loss.parameter
    unit, scaling = _choose_unit(schema), _make_input_scaling(plan)
    return {
        "name": name,
        "private": model.certificate.private,
        "loss": model.certificate.problem.loss.name,
        **model.schema.target.to_stored_row(),
        "weights": (weights / unit).tolist(),
        **scaling,
        "factor": [factor * unit for factor in scaling["factor"]],
        "cut": model.margin_threshold,
        "parameter": parameter,
        "slope_norms": [*model.slope_norms] or None,
        "intercept": None if plan.constant is None else plan.constant * unit,
        "projection": None if matrix is None else matrix.tolist(),
        "feature_map": plan.unprojected_map.block.tobytes() if schema.pairs else None,
        "schema": json.dumps(schema.to_dict()),
        "certificate": json.dumps(model.certificate.to_dict(), allow_nan=False),
        "unusable_labels": model.unusable_labels,
        "coefficients": _make_coefficients(model),
    }


def _choose_unit(schema: Schema) -> float:
    """Return the power of two that features are multiplied by: one with which no row is clipped that training did not.

    `boltdp.predict` clips rows to norm 1. Weights are divided by the same number, which changes no bit of a score.
    """
    if schema.standardization is None or not schema.downweights:
        return 1.0
    return 2.0 ** -max(0, math.frexp(schema.standardization.max_row_norm)[1])


def _make_coefficients(model: Model) -> str | None:
    """Return the rows of `boltdp.coefficients` as JSON; None if the model has none, or if they are refused."""
    try:
        return json.dumps(Coefficients(model).to_dict()["coefficients"], allow_nan=False)
    except InferenceError:
        return None


def make_insert(row: Mapping[str, Any]) -> sql.Composed:
    """Make the INSERT statement for a row of `boltdp.models`."""
    return sql.SQL("INSERT INTO boltdp.models ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
    )


def store_model(uri: str, name: str, model: Model, *, replace: bool = False) -> None:
    """Insert a released model into `boltdp.models`; raise a ModelStoreError if the name exists, unless `replace`."""
    if "/" in name:
        raise ModelStoreError(f"name must not have a slash, as those of requested models do, got {name!r}")
    row = make_model_row(name, model)
    try:
        with psycopg.connect(uri, prepare_threshold=None) as connection:
            # Objects that other roles created in a schema of the search path must not be used here.
            connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)")
            _check_table(connection, name)
            if replace:
                connection.execute("DELETE FROM boltdp.models WHERE name OPERATOR(pg_catalog.=) %s", [name])
            inserted = connection.execute(make_insert(row) + sql.SQL(" ON CONFLICT DO NOTHING"), row).rowcount
    except psycopg.Error as error:
        # Models are public, so the server's message about them is too.
        said = error.diag.message_primary or str(error).strip().splitlines()[0]
        hint = _MISSING if error.sqlstate in ("42P01", "3F000") else None
        raise ModelStoreError(f"the model {name!r} cannot be stored: {said}", hint=hint) from None
    if not inserted:
        raise ModelStoreError(f"boltdp.models has a model {name!r} already", hint="--replace takes its place")


def _check_table(connection: psycopg.Connection[Any], name: str) -> None:
    """Raise a ModelStoreError if the table is not the extension's: its triggers would run with our privileges.

    Nor may its schema belong to a role that could put another table there.
    """
    found = connection.execute(
        "SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid"
        " JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) e.extnamespace"
        " JOIN pg_catalog.pg_roles o ON o.oid OPERATOR(pg_catalog.=) n.nspowner"
        " AND (o.rolsuper OR o.oid OPERATOR(pg_catalog.=) e.extowner)"
        " JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) d.objid"
        " AND c.relowner OPERATOR(pg_catalog.=) ANY (ARRAY[e.extowner, n.nspowner])"
        " WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"
        " AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
        " AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('boltdp.models')"
        " AND d.deptype OPERATOR(pg_catalog.=) 'e' AND e.extname OPERATOR(pg_catalog.=) 'boltdp'"
    )
    if not found.fetchall():
        said = f"the model {name!r} cannot be stored: the database has no table boltdp.models of the extension"
        raise ModelStoreError(said, hint=_MISSING)
