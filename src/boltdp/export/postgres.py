"""Released models in the database: `boltdp.models`, where `boltdp.predict` and `boltdp.predict_proba` find them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import sql

from boltdp.data.encode import projection_matrix
from boltdp.data.schema import Categorical, Schema
from boltdp.data.values import spellings
from boltdp.errors import BoltdpError

if TYPE_CHECKING:
    from boltdp.model import Model

T = TypeVar("T")
_MISSING = "CREATE EXTENSION boltdp makes the table, once the extension is installed"
_OLD = "ALTER EXTENSION boltdp UPDATE makes the table one that holds models with a threshold"


class ModelStoreError(BoltdpError):
    """A model cannot be stored in the database, or read from it."""


def input_scaling(schema: Schema) -> dict[str, list[float]]:
    """Low, high, middle and factor of each number of the array that `boltdp.predict` takes.

    The numbers are those of the numeric columns, then 1 for the category a row has and 0 for each other one, then those
    of the vectors: the features by their names, without the intercept, as they are in the data.

    >>> from boltdp.data.schema import Numeric
    >>> input_scaling(Schema("sick", (0, 1), (Numeric("age", 0, 100), Categorical("sex", ("F", "M")))))["high"]
    [100.0, 1.0, 1.0]
    """
    scaling: dict[str, list[float]] = {"low": [], "high": [], "middle": [], "factor": []}
    for column, middles, factors in schema.transforms():
        low, high = (-1.0, 1.0) if isinstance(column, Categorical) else (column.low, column.high)
        scaling["low"] += [low] * len(middles)
        scaling["high"] += [high] * len(middles)
        scaling["middle"] += middles.tolist()
        scaling["factor"] += factors.tolist()
    return scaling


def quoted(text: str) -> str:
    r"""A text as an SQL literal of printable characters: what it looks like is what it is.

    >>> print(quoted("it's"), quoted("a\\b"), quoted("x\n\u202ey"))
    'it''s' E'a\\b' E'x\u000A\u202Ey'
    """
    plain = text.replace("'", "''")
    if plain.isprintable() and "\\" not in plain:
        return f"'{plain}'"
    escaped = (
        one if one.isprintable() else f"\\u{ord(one):04X}" if ord(one) < 0x10000 else f"\\U{ord(one):08X}"
        for one in plain.replace("\\", "\\\\")
    )
    return f"E'{''.join(escaped)}'"


def store_model(uri: str, name: str, model: Model, *, replace: bool = False) -> None:
    """Put a released model into `boltdp.models`; one that is there is replaced only if asked to."""
    schema = model.schema
    projection = schema.projection
    matrix = None if projection is None else projection_matrix(projection, schema.encoded_dims).tolist()
    row = {
        "name": name,
        "private": model.certificate.private,
        "loss": model.certificate.problem.loss.name,
        "classes": [spellings(value)[0] for value in model.classes],
        "weights": model.weights.tolist(),
        **input_scaling(schema),
        "intercept": schema.constant if schema.intercept else None,
        "projection": matrix,
        "schema": json.dumps(schema.to_dict()),
        "certificate": json.dumps(model.certificate.to_dict(), allow_nan=False),
    }
    if model.cut:
        # The table of an extension before 0.2.0 has no such column, and takes all other models.
        row["cut"] = model.cut

    def run() -> bool:
        with psycopg.connect(uri) as connection:
            # Whoever may create something in a schema of the search path must not choose what is run here.
            connection.execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)")
            _check_table(connection, name)
            if replace:
                connection.execute("DELETE FROM boltdp.models WHERE name OPERATOR(pg_catalog.=) %s", [name])
            done = connection.execute(
                sql.SQL("INSERT INTO boltdp.models ({}) VALUES ({}) ON CONFLICT (name) DO NOTHING").format(
                    sql.SQL(", ").join(map(sql.Identifier, row)), sql.SQL(", ").join(map(sql.Placeholder, row))
                ),
                row,
            )
            return done.rowcount == 1

    if not _attempt(run, f"the model {name!r} cannot be stored"):
        raise ModelStoreError(f"boltdp.models has a model {name!r} already", hint="--replace takes its place")


def _check_table(connection: psycopg.Connection[Any], name: str) -> None:
    """Refuse a table that is not the extension's: its triggers would be run as whoever stores a model."""
    found = connection.execute(
        "SELECT FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_extension e ON e.oid OPERATOR(pg_catalog.=) d.refobjid"
        " WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass"
        " AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass"
        " AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('boltdp.models')"
        " AND d.deptype OPERATOR(pg_catalog.=) 'e' AND e.extname OPERATOR(pg_catalog.=) 'boltdp'"
    )
    if not found.fetchall():
        said = f"the model {name!r} cannot be stored: the database has no table boltdp.models of the extension"
        raise ModelStoreError(said, hint=_MISSING)


def _attempt(action: Callable[[], T], fault: str) -> T:
    try:
        return action()
    except psycopg.Error as error:
        # Models are released: what the server says of them may be shown.
        said = error.diag.message_primary or str(error).strip().splitlines()[0]
        hint = {"42P01": _MISSING, "3F000": _MISSING, "42703": _OLD}.get(error.sqlstate or "")
    raise ModelStoreError(f"{fault}: {said}", hint=hint)
