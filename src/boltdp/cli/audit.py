from __future__ import annotations

from typing import Any

import click

from boltdp._charts import check_can_draw
from boltdp._files.outputs import check_writable, write_text
from boltdp.cli import _options
from boltdp.cli._command_group import command
from boltdp.cli._help import GroupedCommand
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table, show_bar
from boltdp.cli.plan import make_public_schema
from boltdp.errors import ParameterError
from boltdp.workflows.plan_training import make_plan


@command(
    "boltdp audit model.json",
    "boltdp audit model.json --html audit.html --plot audit.png",
    "boltdp audit --rows 60000 --features 51 --epsilon 0.5",
    "boltdp audit --rows 20190 --schema schema.toml --epsilon 1 --delta 1e-6 --algorithm noisy-gd --json",
    cls=GroupedCommand,
)
@click.argument("model_path", metavar="[MODEL]", type=_options.FILE, required=False)
@click.option("--rows", type=int, help="Instead of MODEL: how many rows there are.")
@_options.public_shape_options
@click.option("--epsilon", type=float, help="The privacy budget of the settings.  [default: 1]")
@_options.settings_options
@click.option(
    "--trials", type=int, help="Trainings of the black box on each of two datasets.  [default: by the algorithm]"
)
@_options.file_option("--html", help="Write a page that needs nothing else, with both pictures.")
@_options.file_option("--plot", "picture", help="Draw a .png or .svg file; needs `pip install 'boltdp[plot]'`.")
@_options.json_option
def audit(
    model_path: str | None,
    *,
    rows: int | None,
    features: int | None,
    classes: int | None,
    number: bool,
    schema_path: str | None,
    epsilon: float | None,
    trials: int | None,
    html: str | None,
    picture: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Attack what MODEL, or a training with these settings, claims; no private row is needed.

    The training code runs on neighbouring tables of made-up rows: with everything released held fixed, so that each
    release's input can be compared with its sensitivity (replay); with the exact privacy loss on the worst rows that a
    search finds; and thousands of times, as an attacker would. The exit code is 1 if a claim is broken.

    An audit can refute a claim, and cannot prove it: the proofs do that. --seed is that of the made-up rows and of the
    search; the noise is the operating system's.
    """
    from boltdp.audit import audit as audit_claim
    from boltdp.audit.report_charts import draw_report, write_report_page

    if (model_path is None) == (rows is None):
        raise ParameterError("give either MODEL or --rows with the settings of a training")
    if html is not None:
        check_writable(html)
    if picture is not None:
        check_can_draw(picture)
    if model_path is not None:
        if schema_path is not None or features is not None or epsilon is not None:
            raise ParameterError("--schema, --features and --epsilon must not be given with MODEL, which has its own")
        model = _options.load_model(model_path, verify=True)
        schema, certificate = model.schema, model.certificate
    else:
        assert rows is not None
        public = make_public_schema(schema_path, features=features, classes=classes, number=number)
        if schema_path is None and chosen["curves"] is None:
            chosen = {**chosen, "curves": 0}  # so that the number of features is --features
        settings = _options.make_settings(epsilon=1.0 if epsilon is None else epsilon, noiseless=False, chosen=chosen)
        plan = make_plan(public, rows, settings)
        schema, certificate = plan.schema, plan.certificate
    with show_bar(unit="done") as bar:
        report = audit_claim(schema, certificate, trials=trials, seed=chosen["seed"] or 0, progress=bar)
    if html is not None:
        write_text(html, write_report_page(report, planned=model_path is None))
    if picture is not None:
        draw_report(report, picture)
    if as_json:
        emit_json(report.to_dict())
    else:
        emit_guarantee(certificate.guarantee(planned=model_path is None), private=certificate.private)
        emit_table(
            [
                (one.method, one.what, one.claimed, ("BROKEN: " if one.broken else "") + one.found)
                for one in report.findings
            ],
            header=("attack", "of", "claimed", "found"),
        )
        for said in report.notes:
            emit(said)
        emit_guarantee(report.verdict, private=not report.broken)
    if report.broken:
        raise click.exceptions.Exit(1)
