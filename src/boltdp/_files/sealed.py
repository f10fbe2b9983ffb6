"""JSON files that are parsed strictly, and sealed by a digest of their contents.

The digest detects accidental changes. Whoever changes a file can recompute it: only a signature of the digest
(`signing.py`) shows who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from boltdp._files.inputs import read_text
from boltdp.errors import BoltdpError

#: Maximum size of a file: more than the weights of the largest schema and its certificate need.
MAX_BYTES = 256 * 2**20
#: Maximum depth of nested lists and objects; a certificate has about twenty levels.
MAX_DEPTH = 64
#: Maximum number of digits of an integer: no field needs more, and each of them still fits in a double.
MAX_DIGITS = 100
#: Keys that the digest does not cover: itself, and its signature.
OUTSIDE = ("digest", "signature")


class ModelFileError(BoltdpError):
    """The model file cannot be read, or was changed."""


def read_sealed_file(path: str | Path) -> dict[str, Any]:
    """Return the JSON object in a model file; raise ModelFileError if its digest does not match its contents."""
    try:
        text = read_text(path, most=MAX_BYTES)
    except BoltdpError as fault:
        raise ModelFileError(f"the model {path} cannot be read: {fault}") from None
    return check_digest(parse_json(text, what=f"the model {path}"))


def add_digest(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its digest, without an older digest and signature."""
    return {**{key: value for key, value in record.items() if key not in OUTSIDE}, "digest": compute_digest(record)}


def check_digest(record: Any) -> dict[str, Any]:
    """Return the record; raise ModelFileError if its digest does not match."""
    if not isinstance(record, dict):
        raise ModelFileError("this is not a boltdp model")
    if not isinstance(record.get("digest"), str):
        raise ModelFileError(
            "the model has no digest, which shows whether it was changed",
            hint="models of builds that wrote none must be trained again",
        )
    if record["digest"] != compute_digest(record):
        raise ModelFileError("the model was changed after it was written: its digest is another one")
    return record


def compute_digest(record: dict[str, Any]) -> str:
    """Return the SHA-256 digest of the record as compact JSON, without digest and signature.

    The order of keys is significant: that of a schema's columns is the order of the features.

    >>> compute_digest({"a": 1, "b": 2}) == compute_digest({"b": 2, "a": 1})
    False
    """
    covered = {key: value for key, value in record.items() if key not in OUTSIDE}
    text = json.dumps(covered, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hash_text(text)


def hash_text(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def parse_json(text: str, *, what: str) -> Any:
    """Parse JSON that is unambiguous; anything else raises ModelFileError.

    Duplicate keys, NaN, infinity, numbers out of range, lone surrogates and values nested too deeply are rejected.
    """

    def parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ModelFileError(f"{what} has the key {twice[:40]!r} more than once")
        return found

    def parse_int(digits: str) -> int:
        if len(digits.lstrip("-")) > MAX_DIGITS:
            raise ModelFileError(f"{what} has a whole number of more than {MAX_DIGITS} digits")
        return int(digits)

    def parse_float(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ModelFileError(f"{what} has a number that no double can hold")
        return number

    def reject_constant(name: str) -> NoReturn:
        raise ModelFileError(f"{what} is not JSON: it has {name}")

    try:
        found = json.loads(
            text,
            object_pairs_hook=parse_object,
            parse_int=parse_int,
            parse_float=parse_float,
            parse_constant=reject_constant,
        )
        _check_values(found, what)
    except RecursionError:
        raise ModelFileError(f"{what} is nested too deeply") from None
    except ValueError:
        raise ModelFileError(f"{what} is not JSON") from None
    return found


def _check_values(found: Any, what: str) -> None:
    """Raise for values that are nested too deeply, and for strings that UTF-8 cannot encode."""
    level, depth = [found], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ModelFileError(f"{what} is nested too deeply")
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside += value.keys()
                inside += value.values()
            elif isinstance(value, list):
                inside += value
            elif isinstance(value, str) and not value.isascii():
                value.encode("utf-8")  # raises for a lone surrogate, as "\ud800"
        level = inside
