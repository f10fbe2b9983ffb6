"""JSON files that show when they were changed: read strictly, and sealed by a digest over everything in them.

A digest binds the parts of a file to each other. Whoever changes one can compute another digest: only a signature of
it (`signing.py`) shows who wrote the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from boltdp._files import read_text
from boltdp.errors import BoltdpError

#: Bytes of a file, at most: more than the weights of the largest schema and its certificate take.
MAX_BYTES = 256 * 2**20
#: Lists and objects inside each other, at most; a certificate's are about twenty deep.
DEEPEST = 64
#: Digits of a whole number, at most: no field needs more, and each of them still fits in a double.
MAX_DIGITS = 100
#: What the digest does not cover: itself, and what is made from it.
OUTSIDE = ("digest", "signature")


class ModelFileError(BoltdpError):
    """A model file that cannot be read, or is not as it was written."""


def read_sealed(path: str | Path) -> dict[str, Any]:
    """The object in a file whose digest is that of its contents; anything else is a ModelFileError."""
    try:
        text = read_text(path, most=MAX_BYTES)
    except BoltdpError as fault:
        raise ModelFileError(f"the model {path} cannot be read: {fault}") from None
    return unsealed(strict_json(text, what=f"the model {path}"))


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """With the digest of all that is there, but for an older seal.

    >>> sealed({"a": 1})["digest"][:15]
    'sha256:015abd7f'
    """
    return {**{key: value for key, value in record.items() if key not in OUTSIDE}, "digest": digest(record)}


def unsealed(record: Any) -> dict[str, Any]:
    """The record itself, if it has its own digest.

    >>> unsealed({**sealed({"a": 1}), "a": 2})
    Traceback (most recent call last):
    boltdp._files.sealed.ModelFileError: the model was changed after it was written: its digest is another one
    """
    if not isinstance(record, dict):
        raise ModelFileError("this is not a boltdp model")
    if not isinstance(record.get("digest"), str):
        raise ModelFileError(
            "the model has no digest, which shows whether it was changed",
            hint="models of builds that wrote none must be trained again",
        )
    if record["digest"] != digest(record):
        raise ModelFileError("the model was changed after it was written: its digest is another one")
    return record


def digest(record: dict[str, Any]) -> str:
    """SHA-256 of the record as compact JSON, without its seal.

    Keys stay in their order, which has a meaning: that of a schema's columns is the order of the features.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    False
    """
    covered = {key: value for key, value in record.items() if key not in OUTSIDE}
    text = json.dumps(covered, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def strict_json(text: str, *, what: str) -> Any:
    """Read JSON in which everything means one thing.

    Keys that stand twice, numbers that are none or that no double holds, half characters and values nested too deeply
    are refused.

    >>> strict_json('{"epsilon": 100, "epsilon": 1}', what="it")
    Traceback (most recent call last):
    boltdp._files.sealed.ModelFileError: it has the key 'epsilon' more than once
    """

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ModelFileError(f"{what} has the key {twice[:40]!r} more than once")
        return found

    def whole(digits: str) -> int:
        if len(digits.lstrip("-")) > MAX_DIGITS:
            raise ModelFileError(f"{what} has a whole number of more than {MAX_DIGITS} digits")
        return int(digits)

    def real(digits: str) -> float:
        number = float(digits)
        if math.isinf(number):
            raise ModelFileError(f"{what} has a number that no double can hold")
        return number

    def no_number(name: str) -> NoReturn:
        raise ModelFileError(f"{what} is not JSON: it has {name}")

    try:
        found = json.loads(text, object_pairs_hook=members, parse_int=whole, parse_float=real, parse_constant=no_number)
        _check_values(found, what)
    except RecursionError:
        raise ModelFileError(f"{what} is nested too deeply") from None
    except ValueError:
        raise ModelFileError(f"{what} is not JSON") from None
    return found


def _check_values(found: Any, what: str) -> None:
    """Refuse what is nested too deeply, and texts that cannot be written."""
    level, depth = [found], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ModelFileError(f"{what} is nested too deeply")
        inside: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inside += value.keys()
                inside += value.values()
            elif isinstance(value, list):
                inside += value
            elif isinstance(value, str) and not value.isascii():
                value.encode("utf-8")  # half of a character, as "\ud800" is, cannot be
        level = inside
