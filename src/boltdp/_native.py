"""The C library that setup.py builds. It knows no Python, so plain ctypes declarations are the whole binding."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from boltdp.errors import BoltdpError

_PATH = Path(__file__).parent / "kernel" / "_kernel.so"


class LibraryError(BoltdpError):
    """The C library of this installation is missing, or is of another machine."""


def load_library(signatures: Mapping[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    """Load the library, and declare the result and the arguments of each function of `signatures`."""
    try:
        library = ctypes.CDLL(str(_PATH))
    except OSError as fault:
        raise LibraryError(
            f"the library {str(_PATH)!r} cannot be loaded: {fault}",
            hint="install boltdp again; in a checkout `pip install --editable .` builds the library",
        ) from None
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
