"""The functions of the PostgreSQL extension, called by hand with whatever SQL lets through, on a server of their own.

The extension is built with the sanitizers, whose abort ends the server: a lost connection is a finding, and so is an
error that PostgreSQL takes for a fault of its own (class XX).
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from boltdp.engines.postgres.build import KERNEL, SOURCES, ask_pg_config, install_extension
from boltdp.engines.postgres.local_server import Server, run_private_server
from boltdp.engines.postgres.source import SourceColumn, compile_source_plan
from boltdp.errors import DataError
from boltdp.kernel.feature_sums import FeatureSums
from boltdp.kernel.label_histogram import LabelHistogram
from boltdp.kernel.loss_derivatives import DerivativeSums
from boltdp.kernel.misclassification import ErrorCounts
from boltdp.kernel.sgd import State
from boltdp.kernel.unusable_label_count import UnusableLabelCount
from boltdp.losses import Logistic, Multinomial
from boltdp.privacy.sgd_recipe import Recipe
from boltdp.privacy.step_schedules import make_constant_schedule
from boltdp.schema.schema import Categorical, Classes, Numeric, Projection, Schema, Vector
from boltdp.schema.source_columns import ColumnType, Kind
from fuzz.sanitized import SANITIZERS, runtime
from fuzz.target import Target, scrambled

_held = ExitStack()  #: the server, for as long as the process lives


@contextmanager
def sanitized_server() -> Iterator[Server]:
    """A server whose extension is built with the sanitizers."""
    before = dict(os.environ)
    # The server's processes must have the sanitizers' runtime before they load the extension.
    os.environ.update(LD_PRELOAD=runtime(), ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:verify_asan_link_order=0")
    try:
        with run_private_server(extension=False) as server:
            os.environ.pop("LD_PRELOAD")
            install_extension(server.pg_config)
            _rebuild(server)
            yield server
    finally:
        os.environ.clear()
        os.environ.update(before)


def _rebuild(server: Server) -> None:
    headers, library = (ask_pg_config(server.pg_config, f"--{name}") for name in ("includedir-server", "pkglibdir"))
    kernel = [
        KERNEL / f"{name}.c"
        for name in (
            "sgd",
            "hash_sampling",
            "row_permutation",
            "row_projection",
            "columns_to_cells",
            "feature_map",
            "sum_state",
            "loss_derivatives",
            "misclassification",
            "feature_sums",
            "unusable_label_count",
            "label_histogram",
        )
    ]
    command = [
        *("cc", "-O1", "-g", "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC", *SANITIZERS),
        *(f"-I{headers}", f"-I{KERNEL}", "-o", str(Path(library) / "boltdp.so")),
        *map(str, sorted((SOURCES / "src").glob("*.c"))),
        *(*map(str, kernel), "-lm"),
    ]
    subprocess.run(command, check=True)


@cache
def _connection() -> psycopg.Connection[Any]:
    server = _held.enter_context(sanitized_server())
    connection = _held.enter_context(psycopg.connect(server.uri, autocommit=True))
    connection.execute("CREATE EXTENSION boltdp")
    connection.execute("CREATE TEMPORARY TABLE packed (start bigint, block real[])")
    return connection


def _state(dice: random.Random) -> bytes:
    loss = dice.choice((Logistic(), Multinomial(3)))
    recipe = Recipe(
        loss=loss, dims=3, rows=6, batch_size=dice.randrange(1, 7), passes=2, schedule=make_constant_schedule(0.1)
    )
    weights = np.random.default_rng(dice.getrandbits(32)).normal(size=(loss.vector_count, 3))
    state = dice.choice(
        (
            lambda: State(recipe, classes=3).to_bytes(),
            lambda: DerivativeSums(loss, weights, classes=3).to_bytes(),
            lambda: ErrorCounts(weights[None], classes=3).to_bytes(),
            lambda: FeatureSums(clip_norm=1.0, cells=3).to_bytes(),
            lambda: UnusableLabelCount(cells=3, classes=3, neutral=np.zeros((1, 4), np.float32)).to_bytes(),
            lambda: LabelHistogram(cells=3, bins=8).to_bytes(),
        )
    )()
    return scrambled(state, dice) if dice.random() < 0.7 else state


def _plan(dice: random.Random) -> bytes:
    """How a bigint, a double precision, a text and a real[] are packed."""
    columns = (Numeric("a", 0, 10, curve=(3, 7)), Categorical("c", ("x", "y")), Vector("v", 3, -1, 1))
    projection = Projection(dims=2, seed=1) if dice.random() < 0.3 else None
    bases: dict[str, tuple[str, Kind]]
    bases = {"y": ("int8", "number"), "a": ("float8", "number"), "c": ("text", "text"), "v": ("float4", "list")}
    sources = {name: SourceColumn(name, base, ColumnType(kind)) for name, (base, kind) in bases.items()}
    plan, _ = compile_source_plan(Schema(Classes("y", (0, 1)), columns, projection=projection).encoding, sources)
    return scrambled(plan, dice) if dice.random() < 0.7 else plan


def _array(dice: random.Random, kind: str) -> str:
    """An array literal of one or two dimensions, with odd elements."""
    odd = ["NULL", "NaN", "Infinity", "-1", "0", "1", "0.5", "2147483647", "1e30"]
    whole = ["NULL", "-1", "0", "1", "2", "2147483647"]

    def row(length: int) -> str:
        return "{" + ",".join(dice.choice(whole if kind == "integer" else odd) for _ in range(length)) + "}"

    length = dice.choice((0, 1, 2, 3, 4, 4, 4, 9))
    if dice.random() < 0.5:
        return row(length)
    return "{" + ",".join(row(length) for _ in range(dice.randrange(1, 4))) + "}" if length else "{}"


CALLS = (
    ("boltdp.sgd({bytea}, {real})", 1),
    ("boltdp.sgd({bytea}, {float})", 1),
    ("boltdp.sgd({bytea}, {number}::real, {real})", 1),
    ("boltdp.sgd_drawn({bytea}, {bytea}, {whole}, {real})", 1),
    ("boltdp.sums({bytea}, {real})", 6),
    ("boltdp.pack_row({plan}, {whole}, {number}, {text}, {real})", 2),
    ("boltdp.pack('packed', {plan}, {small}, {whole}, {whole}, 1, {whole}, {number}, {text}, {real})", 2),
    ("boltdp.repack('packed', {small}, {whole}, {whole}, 1, {whole}, {whole}, {whole}, {real})", 1),
    ("boltdp.put_state({whole}, {bytea})", 1),
    ("boltdp.get_state({whole})", 1),
)


def feed_extension(dice: random.Random) -> None:
    """One call with arguments of the right types and any values."""
    text, _ = dice.choices(CALLS, [weight for _, weight in CALLS])[0]
    values: list[Any] = []

    def argument(kind: str) -> str:
        if dice.random() < 0.03:
            return {"bytea": "NULL::bytea", "whole": "NULL::bigint"}.get(kind, f"NULL::{_TYPES[kind]}")
        makers: dict[str, Callable[[], Any]] = {
            "bytea": lambda: _state(dice),
            "number": lambda: dice.choice(("NaN", "Infinity", "-1", "0", "0.5", "1e300")),
            "whole": lambda: dice.choice((-(2**63), -1, 0, 1, 7, 2**63 - 1)),
            "small": lambda: dice.choice((-1, 0, 1, 5, 2**31 - 1)),
            "plan": lambda: _plan(dice),
            "text": lambda: dice.choice(("x", "y", "", "z")),
        }
        made = makers[kind]() if kind in makers else _array(dice, "integer" if kind == "integer" else "real")
        values.append(made)
        return f"%s::{_TYPES[kind]}"

    parts = text.split("{")
    call = parts[0] + "".join(argument(part.split("}")[0]) + part.split("}", 1)[1] for part in parts[1:])
    try:
        _connection().execute(f"SELECT {call} FROM generate_series(1, {dice.choice((1, 1, 3))})".encode(), values)
    except psycopg.Error as error:
        state = error.sqlstate
        if state is not None and not state.startswith(("XX", "57")):
            raise DataError("the server refused it") from None
        raise


_TYPES = {
    "bytea": "bytea",
    "plan": "bytea",
    "text": "text",
    "real": "real[]",
    "float": "double precision[]",
    "integer": "integer[]",
    "number": "double precision",
    "whole": "bigint",
    "small": "integer",
}

TARGETS = (Target("extension", feed_extension, weight=100, prepare=_connection),)
