"""`boltdp verify` with limits, and signatures: `boltdp keygen`, `boltdp sign`, `boltdp verify --key`."""

from __future__ import annotations

import base64
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from boltdp._files.sealed import add_digest
from boltdp.model import Model
from tests.cli.conftest import Run


@pytest.fixture
def private(run: Run, rows: Path) -> Path:
    """A model with a guarantee: epsilon = 1, delta = 1e-6."""
    result = run("train", rows, "--schema", "schema.toml", "--epsilon", 1, "--delta", 1e-6, "-o", "private.json")
    assert result.exit_code == 0, result.output
    return rows.with_name("private.json")


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        (("--max-epsilon", 1), None),
        (("--max-delta", 1e-6), None),
        (("--max-epsilon", 2, "--max-delta", 0.1), None),
        (("--max-epsilon", 0.999999), "the model spends epsilon = 1.0, which is more than 0.999999"),
        (("--max-delta", 0), "the model spends delta = 1e-06, which is more than 0.0"),
        (("--max-epsilon", 5, "--max-delta", 1e-9), "the model spends delta"),
        (("--max-epsilon", "nan"), "the largest epsilon must be a finite number >= 0, got nan"),
        (("--max-epsilon", "inf"), "the largest epsilon must be a finite number >= 0, got inf"),
        (("--max-delta", -1), "the largest delta must be a finite number >= 0, got -1.0"),
    ],
)
def test_limits_are_kept(run: Run, private: Path, limits: tuple[object, ...], fault: str | None) -> None:
    result = run("verify", private, *limits)
    assert result.exit_code == (0 if fault is None else 1), result.output
    if fault is not None:
        assert result.stdout == ""
        assert result.stderr.startswith(f"error: {fault}")


def test_a_model_without_a_claim_is_within_no_limit(run: Run, rows: Path) -> None:
    run("train", rows, "--schema", "schema.toml", "--algorithm", "noiseless", "-o", "model.json")
    result = run("verify", "model.json", "--allow-not-private", "--max-epsilon", 1e6)
    assert result.exit_code == 1
    assert "claims no epsilon" in result.stderr


def test_a_signature_needs_its_package(run: Run, private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    Path("key.pub.pem").write_text("")
    for command in (
        ("keygen", "-o", "key.pem"),
        ("sign", private, "--key", "key.pem"),
        ("verify", private, "--key", "key.pub.pem"),
    ):
        result = run(*command)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: a signature needs cryptography, which is not installed")
        assert "boltdp[sign]" in result.stderr


@pytest.fixture
def key(run: Run) -> str:
    """The fingerprint of a new key, key.pem, whose public one is key.pub.pem."""
    pytest.importorskip("cryptography")
    result = run("keygen", "-o", "key.pem")
    assert result.exit_code == 0, result.output
    name: str = result.stdout.split()[-1]
    assert name.startswith("SHA256:")
    return name


@pytest.fixture
def signed(run: Run, private: Path, key: str) -> Path:
    result = run("sign", private, "--key", "key.pem")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"signed by the key {key}\n"
    return private


@pytest.mark.usefixtures("key")
def test_a_private_key_is_its_owners_and_never_overwritten(run: Run) -> None:
    before = Path("key.pem").read_bytes()
    assert stat.S_IMODE(Path("key.pem").stat().st_mode) == 0o600
    assert b"PRIVATE" not in Path("key.pub.pem").read_bytes()
    assert run("keygen", "-o", "key.pem").exit_code == 1
    Path("key.pub.pem").unlink()
    result = run("keygen", "-o", "key.pem")
    assert result.exit_code == 1
    assert "'key.pem' exists already, and a key is never overwritten" in result.stderr
    assert Path("key.pem").read_bytes() == before
    assert run("keygen", "-o", "no/folder/key.pem").exit_code == 1


def test_a_signature_by_the_key_is_demanded_and_found(run: Run, private: Path, key: str) -> None:
    unsigned = run("verify", private)
    assert unsigned.exit_code == 0
    assert ["signature", "none"] in [line.split() for line in unsigned.stdout.splitlines()]
    assert json.loads(run("verify", private, "--json").stdout)["signature"] is None
    refused = run("verify", private, "--key", "key.pub.pem")
    assert (refused.exit_code, refused.stderr) == (1, "error: the model is not signed\n")
    before = Model.load(private)
    run("sign", private, "--key", "key.pem")
    assert f"signed by the key given {key}\n" in run("verify", private, "--key", "key.pub.pem").stdout
    assert f"signed by an unknown key {key}\n" in run("verify", private).stdout
    found = json.loads(run("verify", private, "--key", "key.pub.pem", "--json").stdout)["signature"]
    assert found == {"fingerprint": key, "known": True}
    assert Model.load(private).to_dict() == before.to_dict()


def test_a_signature_by_another_key_is_not_enough(run: Run, signed: Path, key: str) -> None:
    run("keygen", "-o", "other.pem")
    result = run("verify", signed, "--key", "other.pub.pem")
    assert result.exit_code == 1
    assert f"the model is signed by another key: {key}, not SHA256:" in result.stderr
    assert run("sign", signed, "--key", "other.pem").exit_code == 0
    assert run("verify", signed, "--key", "other.pub.pem").exit_code == 0
    assert run("verify", signed, "--key", "key.pub.pem").exit_code == 1


def test_what_was_changed_and_digested_anew_is_not_what_was_signed(run: Run, signed: Path) -> None:
    record = json.loads(signed.read_text())
    record["weights"][0][0] = 0.0
    signed.write_text(json.dumps({**add_digest(record), "signature": record["signature"]}))
    Model.load(signed)
    for options in ((), ("--key", "key.pub.pem")):
        result = run("verify", signed, *options)
        assert (result.exit_code, result.stderr) == (1, "error: the signature of the model is not valid\n")


def changed(text: str, place: int) -> str:
    raw = bytearray(base64.b64decode(text))
    raw[place] ^= 1
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": "rsa"},
        {"algorithm": None},
        {"public_key": None},
        {"public_key": ""},
        {"public_key": "AAAA"},
        {"public_key": "not base64 at all!"},
        {"public_key": "ä"},
        {"public_key": base64.b64encode(bytes(32)).decode()},
        {"public_key": base64.b64encode(b"\xff" * 32).decode()},
        {"public_key": lambda text: changed(text, 5)},
        {"value": [1]},
        {"value": base64.b64encode(bytes(64)).decode()},
        {"value": lambda text: changed(text, 0)},
        {"value": lambda text: changed(text, 63)},
        {"value": lambda text: text + "\n"},
        {"luck": 7},
    ],
)
def test_every_edit_of_a_signature_is_refused(run: Run, signed: Path, change: dict[str, Any]) -> None:
    record = json.loads(signed.read_text())
    for name, value in change.items():
        record["signature"][name] = value(record["signature"][name]) if callable(value) else value
    signed.write_text(json.dumps(record))
    for options in ((), ("--key", "key.pub.pem")):
        result = run("verify", signed, *options)
        assert result.exit_code == 1, result.output
        assert result.stderr.startswith("error: ")
    for value in (None, [], "text", {}):
        signed.write_text(json.dumps({**record, "signature": value}))
        assert run("verify", signed).exit_code == 1


@pytest.mark.usefixtures("key")
def test_what_is_no_key_is_refused(run: Run, private: Path) -> None:
    Path("text.pem").write_text("no key")
    Path("bytes.pem").write_bytes(b"\xff")
    for name in ("text.pem", "bytes.pem", "none.pem", "key.pem"):
        result = run("verify", private, "--key", name)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: the key '{name}' ")
    for name in ("text.pem", "none.pem", "key.pub.pem"):
        result = run("sign", private, "--key", name)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: the key '{name}' ")


@pytest.mark.usefixtures("key")
def test_a_key_of_another_kind_is_refused(run: Run, private: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    other = generate_private_key(SECP256R1())
    Path("p256.pem").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    Path("p256.pub.pem").write_bytes(public)
    assert "must be a private Ed25519 key" in run("sign", private, "--key", "p256.pem").stderr
    assert "must be a public Ed25519 key" in run("verify", private, "--key", "p256.pub.pem").stderr


@pytest.mark.usefixtures("key")
def test_what_does_not_add_up_is_not_signed(run: Run, private: Path) -> None:
    record = json.loads(private.read_text())
    record["certificate"]["epsilon"] = 0.5
    private.write_text(json.dumps(add_digest(record)))
    before = private.read_bytes()
    assert run("sign", private, "--key", "key.pem").exit_code == 1
    assert private.read_bytes() == before
