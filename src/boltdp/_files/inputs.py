"""Input files: text of limited size."""

from __future__ import annotations

from pathlib import Path

from boltdp.errors import BoltdpError


class InputError(BoltdpError):
    """The file cannot be read as text; the message says only why."""


def read_text(path: str | Path, *, most: int) -> str:
    """Return the text of a file of at most `most` bytes; a longer or endless file raises InputError."""
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as fault:
        raise InputError(fault.strerror or "it is no file") from None
    except ValueError:
        raise InputError("its name is no name of a file") from None
    if len(content) > most:
        raise InputError(f"it is longer than {most:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("it is not UTF-8 text") from None
