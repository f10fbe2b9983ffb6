"""The C library that setup.py builds. It knows no Python, so plain ctypes declarations are the whole binding."""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATH = Path(__file__).parent / "kernel" / ("_kernel" + sysconfig.get_config_var("EXT_SUFFIX"))


def load(signatures: Mapping[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    """Load it, with the result and the arguments of the functions that are to be called.

    >>> load({"sgd_log": (ctypes.c_double, [ctypes.c_double])}).sgd_log(1.0)
    0.0
    """
    library = ctypes.CDLL(str(_PATH))
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
