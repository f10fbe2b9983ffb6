"""Write TOML, which the standard library only reads."""

from __future__ import annotations

import json
import re
from typing import Any


def format_toml_key(name: str) -> str:
    """Return a name as a TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else format_toml_value(name)


def format_toml_value(value: Any) -> str:
    """Return a string, number, boolean, or a list or dictionary of them in TOML."""
    if isinstance(value, str):
        # A JSON string is a TOML basic string, except for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53:
        return str(int(value))
    if isinstance(value, list):
        return "[" + ", ".join(format_toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{format_toml_key(k)} = {format_toml_value(v)}" for k, v in value.items()) + " }"
    return repr(value)
