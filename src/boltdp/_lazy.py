"""Attributes of a package that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def import_lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package whose names, separated by blanks, are in the modules `homes`.

    >>> get, listed = import_lazily("boltdp", {"boltdp.errors": "BoltdpError DataError"})
    >>> get("BoltdpError").__name__, "BoltdpError" in listed(), "__version__" in listed()
    ('BoltdpError', True, True)
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *home})

    return get, listed
