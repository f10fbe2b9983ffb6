"""`boltdp verify`, `boltdp keygen`, `boltdp sign` and `boltdp sql`."""

from __future__ import annotations

from typing import get_args

import click

from boltdp._files.sealed import read_sealed
from boltdp._files.signing import check_signature, make_keys, read_private_key, read_public_key, sign_file
from boltdp.algorithms import get_algorithm
from boltdp.cli._options import FILE, SHOWN_CLASSES, as_json, load_model, scoring_threshold
from boltdp.cli._terminal import emit, emit_json, emit_promise, emit_table, examples, note
from boltdp.cli.train import decision, persons, spent_before
from boltdp.errors import ParameterError
from boltdp.export.sql import GRAMMARS, Dialect, probability_expression, scoring_expression
from boltdp.model import Model, Threshold
from boltdp.privacy.certificate import CertificateError, check_within
from boltdp.schema.values import spellings


@click.command(
    epilog=examples(
        "boltdp verify model.json",
        "boltdp verify model.json --max-epsilon 1 --max-delta 1e-6",
        "boltdp verify model.json --key key.pub.pem --json",
    ),
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option("--key", metavar="FILE", type=FILE, help="Demand a signature by this public key (`boltdp keygen`).")
@click.option("--max-epsilon", type=float, metavar="NUMBER", help="Fail if more epsilon than this was spent.")
@click.option("--max-delta", type=float, metavar="NUMBER", help="Fail if more delta than this was spent.")
@click.option("--allow-not-private", is_flag=True, help="Do not fail because MODEL says that it is not private.")
@as_json
def verify(
    model_path: str,
    *,
    key: str | None,
    max_epsilon: float | None,
    max_delta: float | None,
    allow_not_private: bool,
    as_json: bool,
) -> None:
    """Recompute what was spent on MODEL from its certificate; fail if that is more than it claims.

    It fails too if MODEL was changed after it was written, if it is not private, if it spends more than --max-epsilon
    or --max-delta, or if its signature is not that of --key.

    It checks the arithmetic of the claim, which needs no data. That the training was run as stated it cannot know: only
    a signature shows who says so.
    """
    record = read_sealed(model_path)
    signed = check_signature(record, None if key is None else read_public_key(key))
    model = Model.of_file(record)
    model.verify()
    certificate = model.certificate
    if max_epsilon is not None or max_delta is not None:
        check_within(certificate, epsilon=max_epsilon, delta=max_delta)
    if not certificate.private and not allow_not_private:
        raise CertificateError(certificate.promise().removesuffix("."), hint="--allow-not-private accepts it")
    if as_json:
        signature = None if signed is None else {"fingerprint": signed, "known": key is not None}
        emit_json({"verified": True, "promise": certificate.promise(), "signature": signature, **certificate.to_dict()})
        return
    emit_promise(certificate.promise(), private=certificate.private)
    checked = [("weights", f"{model.weights.size:,} finite numbers, as many as the schema asks for")]
    if certificate.sensitivity is not None:
        sensitivity = certificate.sensitivity
        checked.append(("sensitivity", f"{sensitivity.total:.6g}, recomputed by {sensitivity.derivation}"))
    place = get_algorithm(certificate.algorithm).noise_place
    noises = {place: certificate.training_noise, "noise": certificate.release_noise}
    for name, noise in noises.items():
        if noise is not None:
            checked.append((name, f"{noise.kind}, scale {noise.scale:.6g}, {noise.dimensions:,} dimensions"))
    if any(noise is not None for noise in noises.values()):
        checked.append(("randomness", "seeded" if certificate.seeded else "operating system"))
    checked += [*persons(certificate), *spent_before(certificate)]
    if certificate.selection is not None:
        checked.append(("chosen", certificate.selection.describe()))
    if certificate.private and certificate.budget is not None:
        epsilon = certificate.budget.epsilon
        checked.append(("spent", f"at epsilon = {epsilon:g}, delta = {certificate.delta(epsilon):.3g}: recomputed"))
    checked += decision(model)
    if signed is None:
        checked.append(("signature", "none"))
    else:
        checked.append(("signature", f"signed by {'the key given' if key else 'an unknown key'} {signed}"))
    emit_table(checked)
    emit("The certificate adds up." if certificate.private else "The certificate adds up, and says: NOT PRIVATE.")


@click.command(epilog=examples("boltdp keygen -o key.pem"))
@click.option("-o", "--output", required=True, metavar="FILE", type=FILE, help="Of the private key, such as key.pem.")
def keygen(output: str) -> None:
    """Make an Ed25519 key to sign models with, and beside it its public key, which may be shown.

    The private key is not encrypted and readable by its owner only. No file is ever overwritten. The public key of
    key.pem is key.pub.pem. Needs `pip install "boltdp[sign]"`.
    """
    public, fingerprint = make_keys(output)
    emit_table([("private key", output), ("public key", str(public)), ("fingerprint", fingerprint)])


@click.command(
    epilog=examples("boltdp sign model.json --key key.pem", "boltdp verify model.json --key key.pub.pem"),
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option("--key", required=True, metavar="FILE", type=FILE, help="The private key (`boltdp keygen`).")
def sign(model_path: str, *, key: str) -> None:
    """Sign MODEL, in its file; an older signature is replaced.

    The claim must add up first: what `boltdp verify --allow-not-private` refuses is not signed. Needs
    `pip install "boltdp[sign]"`.
    """
    private = read_private_key(key)
    record = read_sealed(model_path)
    Model.of_file(record).verify()
    emit(f"signed by the key {sign_file(model_path, record, private)}")


@click.command(
    epilog=examples(
        "boltdp sql model.json --dialect postgres",
        'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json) AS prediction FROM visits"',
        'duckdb hospital.duckdb "SELECT id, $(boltdp sql model.json --proba) AS probability FROM visits"',
        "boltdp sql model.json --proba --class ill --dialect spark",
    ),
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@click.option("--dialect", type=click.Choice(get_args(Dialect)), default="duckdb", show_default=True)
@click.option(
    "--proba",
    is_flag=True,
    help="The probability of the second of two classes; of more, an array of all, in the order of the schema.",
)
@click.option("--class", "of", metavar="NAME", help="With --proba: the probability of this class alone.")
@scoring_threshold
@as_json
def sql(
    model_path: str, *, dialect: Dialect, proba: bool, of: str | None, threshold: Threshold | None, as_json: bool
) -> None:
    """Print a SQL expression over the columns of the data that gives what `boltdp predict` gives."""
    if proba and threshold is not None:
        raise ParameterError("--threshold is for classes, and must not be given with --proba")
    if of is not None and not proba:
        raise ParameterError("--class is for probabilities, and must be given with --proba")
    model = load_model(model_path, threshold)
    classes = {spellings(value)[0]: value for value in model.classes}
    if of is not None and of not in classes:
        raise ParameterError(f"--class must be one of {', '.join(classes)}, got {of!r}")
    if proba:
        expression = probability_expression(model, dialect, of=None if of is None else classes[of])
    else:
        expression = scoring_expression(model, dialect)
    every = proba and of is None and len(classes) > 2
    if as_json:
        told = {"classes": list(model.classes)} if every else {}
        emit_json({"dialect": dialect, "expression": expression, **told})
        return
    emit(expression)
    if every:
        first = GRAMMARS[dialect].first
        places = ", ".join(f"[{first + place}] {name}" for place, name in enumerate([*classes][:SHOWN_CLASSES]))
        note(f"this is an array: {places}{', …' if len(classes) > SHOWN_CLASSES else ''}; --class gives one of them")
