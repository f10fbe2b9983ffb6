from __future__ import annotations

from boltdp._files.signing import make_keys
from boltdp.cli._command_group import command
from boltdp.cli._options import file_option
from boltdp.cli._terminal import emit_table


@command("boltdp keygen -o key.pem")
@file_option("-o", "--output", required=True, help="Of the private key, such as key.pem.")
def keygen(output: str) -> None:
    """Make an Ed25519 key to sign models with, and beside it its public key, which may be shown.

    The private key is not encrypted and readable by its owner only. No file is ever overwritten. The public key of
    key.pem is key.pub.pem. Needs `pip install "boltdp[sign]"`.
    """
    public, fingerprint = make_keys(output)
    emit_table([("private key", output), ("public key", str(public)), ("fingerprint", fingerprint)])
