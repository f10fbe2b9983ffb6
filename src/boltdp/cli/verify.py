from __future__ import annotations

import click

from boltdp._files.sealed import read_sealed_file
from boltdp._files.signing import check_signature, read_public_key
from boltdp.algorithms import get_algorithm
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, file_option, json_option
from boltdp.cli._report import describe_decision_threshold, describe_persons_and_costs
from boltdp.cli._terminal import emit, emit_guarantee, emit_json, emit_table
from boltdp.model import Model
from boltdp.privacy.certificate import CertificateError, check_claimed_budget


@command(
    "boltdp verify model.json",
    "boltdp verify model.json --max-epsilon 1 --max-delta 1e-6",
    "boltdp verify model.json --key key.pub.pem --json",
)
@click.argument("model_path", metavar="MODEL", type=FILE)
@file_option("--key", help="Demand a signature by this public key (`boltdp keygen`).")
@click.option("--max-epsilon", type=float, metavar="NUMBER", help="Fail if more epsilon than this was spent.")
@click.option("--max-delta", type=float, metavar="NUMBER", help="Fail if more delta than this was spent.")
@click.option("--allow-not-private", is_flag=True, help="Do not fail because MODEL says that it is not private.")
@json_option
def verify(
    model_path: str,
    *,
    key: str | None,
    max_epsilon: float | None,
    max_delta: float | None,
    allow_not_private: bool,
    as_json: bool,
) -> None:
    """Recompute from its certificate what MODEL has spent; fail if that is more than it claims.

    It fails too if MODEL was changed after it was written, if it is not private, if it spends more than --max-epsilon
    or --max-delta, or if its signature is not that of --key.

    It checks the arithmetic of the claim, which needs no data. That the training was run as stated it cannot know: only
    a signature shows who says so.
    """
    record = read_sealed_file(model_path)
    signed = check_signature(record, None if key is None else read_public_key(key))
    model = Model.from_file_record(record)
    model.verify()
    certificate = model.certificate
    if max_epsilon is not None or max_delta is not None:
        check_claimed_budget(certificate, epsilon=max_epsilon, delta=max_delta)
    if not certificate.private and not allow_not_private:
        raise CertificateError(certificate.guarantee().removesuffix("."), hint="--allow-not-private accepts it")
    if as_json:
        signer = None if signed is None else {"fingerprint": signed, "known": key is not None}
        stated = {"verified": True, "guarantee": certificate.guarantee(), "signature": signer}
        emit_json({**stated, **certificate.to_dict()})
        return
    emit_guarantee(certificate.guarantee(), private=certificate.private)
    checked = [("weights", f"{model.weights.size:,} finite numbers, as many as the schema declares")]
    if (sensitivity := certificate.training.sensitivity) is not None:
        checked.append(("sensitivity", f"{sensitivity.total:.6g}, recomputed by {sensitivity.derivation}"))
    place = get_algorithm(certificate.algorithm).noise_place
    noises = {place: certificate.training_noise, "noise": certificate.release_noise}
    drawn = {name: noise for name, noise in noises.items() if noise is not None}
    for name, noise in drawn.items():
        checked.append((name, f"{noise.kind}, scale {noise.scale:.6g}, {noise.dimensions:,} dimensions"))
    if drawn:
        checked.append(("randomness", "seeded" if certificate.seeded else "operating system"))
    checked += describe_persons_and_costs(certificate)
    if certificate.selection is not None:
        checked.append(("chosen", certificate.selection.describe()))
    if certificate.private and certificate.budget is not None:
        epsilon = certificate.budget.epsilon
        checked.append(("spent", f"at epsilon = {epsilon:g}, delta = {certificate.delta(epsilon):.3g}: recomputed"))
    signature = "none" if signed is None else f"signed by {'the key given' if key else 'an unknown key'} {signed}"
    emit_table([*checked, *describe_decision_threshold(model), ("signature", signature)])
    emit("Certificate verified." if certificate.private else "Certificate verified: NOT PRIVATE.")
