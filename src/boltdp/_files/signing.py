"""Ed25519 signatures of model files: the signer attests that a model was trained as its certificate states.

The signature is of the digest of the file (`sealed.py`), which covers everything but itself and the signature. It needs
the package `cryptography`: `pip install "boltdp[sign]"`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from boltdp._files.inputs import InputError, read_text
from boltdp._files.outputs import OutputError, write_text
from boltdp._files.sealed import ModelFileError, check_digest
from boltdp.errors import BoltdpError, require

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

T = TypeVar("T")

ALGORITHM = "ed25519"
#: Prefix of the signed message, so that the signature is valid for nothing else.
CONTEXT = b"boltdp model, digest "
#: Maximum size of a key file, which has about 120 bytes.
MAX_BYTES = 10_000


class SignatureError(BoltdpError):
    """The key cannot be used, or the signature is not valid."""


def make_keys(path: str | Path) -> tuple[Path, str]:
    """Write a new key pair, never over an existing file; return the path and the fingerprint of the public key."""
    require("sign", "a signature")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private, public = Path(path), Path(path).with_suffix(".pub.pem")
    if private == public or public.exists():
        raise OutputError(f"the output {str(public)!r} exists already, and a key is never overwritten")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    _write_new_file(private, secret, mode=0o600)
    _write_new_file(public, shown, mode=0o644)
    return public, compute_fingerprint(key.public_key().public_bytes_raw())


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """Return the private key in a PEM file."""
    require("sign", "a signature")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    load = partial(load_pem_private_key, password=None)
    return _read_key(path, load, Ed25519PrivateKey, "a private Ed25519 key without a password")


def read_public_key(path: str | Path) -> bytes:
    """Return the 32 bytes of the public key in a PEM file."""
    require("sign", "a signature")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = _read_key(path, load_pem_public_key, Ed25519PublicKey, "a public Ed25519 key")
    return bytes(key.public_bytes_raw())


def sign_file(path: str | Path, record: dict[str, Any], key: Ed25519PrivateKey) -> str:
    """Sign the record of a file and write it back; return the fingerprint of the key."""
    check_digest(record)
    public = key.public_key().public_bytes_raw()
    signature = {
        "algorithm": ALGORITHM,
        "public_key": base64.b64encode(public).decode(),
        "value": base64.b64encode(key.sign(_make_signed_message(record))).decode(),
    }
    text = json.dumps({**record, "signature": signature}, indent=1, allow_nan=False) + "\n"
    write_text(path, text)
    return compute_fingerprint(public)


def check_signature(record: dict[str, Any], key: bytes | None) -> str | None:
    """Verify the signature of a record whose digest was checked; return the fingerprint, None if it is not signed.

    With a public `key`, any other signature, and none, raises SignatureError.
    """
    if "signature" not in record:
        if key is not None:
            raise SignatureError("the model is not signed")
        return None
    signature = record["signature"]
    if not isinstance(signature, dict) or signature.keys() != {"algorithm", "public_key", "value"}:
        raise ModelFileError("the signature of the model must have an algorithm, a public key and a value")
    if signature["algorithm"] != ALGORITHM:
        raise ModelFileError(f"the signature of the model must be by {ALGORITHM}")
    public, value = _decode_base64(signature["public_key"], 32), _decode_base64(signature["value"], 64)
    if key is not None and public != key:
        raise SignatureError(
            f"the model is signed by another key: {compute_fingerprint(public)}, not {compute_fingerprint(key)}"
        )
    require("sign", "a signature")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(value, _make_signed_message(record))
    except (InvalidSignature, ValueError):
        raise SignatureError("the signature of the model is not valid") from None
    return compute_fingerprint(public)


def compute_fingerprint(public: bytes) -> str:
    """Return the SHA-256 fingerprint of a public key.

    >>> compute_fingerprint(bytes(32))
    'SHA256:Zmh6rfhivXdsj8GLjp+OIAiXFIVu4jOzkCpZHQ1fKSU'
    """
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode().rstrip("=")


def _make_signed_message(record: dict[str, Any]) -> bytes:
    return CONTEXT + str(record["digest"]).encode()


def _decode_base64(text: Any, length: int) -> bytes:
    """Decode canonical base64 of exactly `length` bytes."""
    try:
        found = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != length or base64.b64encode(found).decode() != text:
        raise ModelFileError(f"the signature of the model must have {length} bytes in base64")
    return found


def _read_key(path: str | Path, load: Callable[[bytes], Any], kind: type[T], wanted: str) -> T:
    """Return the key in a PEM file; raise SignatureError if it is not a `wanted` one."""
    try:
        text = read_text(path, most=MAX_BYTES).encode()
    except InputError as fault:
        raise SignatureError(f"the key {str(path)!r} cannot be read: {fault}") from None
    key = None
    with suppress(Exception):  # the type depends on the library's version, and no message may quote a private key
        key = load(text)
    if not isinstance(key, kind):
        raise SignatureError(f"the key {str(path)!r} must be {wanted}")
    return key


def _write_new_file(path: Path, content: bytes, *, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise OutputError(f"the output {str(path)!r} exists already, and a key is never overwritten") from None
    except OSError as fault:
        raise OutputError(f"the output {str(path)!r} cannot be written: {fault.strerror}") from None
