"""Names of a package that are imported when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are at home in other modules.

    >>> get, listed = attributes("boltdp", {"BoltdpError": "boltdp.errors"})
    >>> get("BoltdpError").__name__, "BoltdpError" in listed(), "__version__" in listed()
    ('BoltdpError', True, True)
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return get, listed
