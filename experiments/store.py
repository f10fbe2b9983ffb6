"""Results in files of JSON lines that several runs may add to, and that a run may stop in the middle of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def add_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line to the file, whole or not at all: it is written by one call, and a torn line is not read."""
    with path.open("ab", buffering=0) as file:
        file.write(b"\n" * _torn(path) + json.dumps(record).encode() + b"\n")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records in the file, if there is one, without lines that a stop has torn."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _torn(path: Path) -> bool:
    """Whether the last line has no end."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
