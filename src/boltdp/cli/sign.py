from __future__ import annotations

import click

from boltdp._files.sealed import read_sealed_file
from boltdp._files.signing import read_private_key, sign_file
from boltdp.cli._command_group import command
from boltdp.cli._options import FILE, file_option
from boltdp.cli._terminal import emit
from boltdp.model import Model


@command("boltdp sign model.json --key key.pem", "boltdp verify model.json --key key.pub.pem")
@click.argument("model_path", metavar="MODEL", type=FILE)
@file_option("--key", required=True, help="The private key (`boltdp keygen`).")
def sign(model_path: str, *, key: str) -> None:
    """Sign MODEL, in its file; an older signature is replaced.

    The certificate must be verified first: what `boltdp verify --allow-not-private` refuses is not signed. Needs
    `pip install "boltdp[sign]"`.
    """
    private = read_private_key(key)
    record = read_sealed_file(model_path)
    Model.from_file_record(record).verify()
    emit(f"signed by the key {sign_file(model_path, record, private)}")
