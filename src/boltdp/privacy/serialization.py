"""Conversion of frozen dataclasses to JSON and back by their fields and types; undeclared entries raise ValueError.

Certificates are stored this way. A record names an event by its kind and a loss by its name, and both have, beside
their fields, numbers that follow from them, under "derived".
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from boltdp import privacy
from boltdp.errors import show_value
from boltdp.losses import LOSSES, Loss
from boltdp.privacy.events.event import Event
from boltdp.privacy.training_problem import IF_GIVEN

T = TypeVar("T")


def to_record(value: Any) -> Any:
    """Convert an event or another frozen dataclass to JSON values; floats keep every bit, and infinity becomes null."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_record(one) for one in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: to_record(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.metadata != IF_GIVEN or getattr(value, field.name) != field.default
        }
        if isinstance(value, Event):
            derived = {"derived": to_record(value.derived_numbers)} if value.derived_numbers else {}
            return {"kind": value.kind, **fields, **derived}
        if isinstance(value, Loss):
            derived = {"lipschitz": value.lipschitz, "smoothness": value.smoothness}
            return {"name": value.name, **fields, "derived": derived}
        return fields
    if isinstance(value, dict):
        return {key: to_record(one) for key, one in value.items()}
    return None if isinstance(value, float) and value == math.inf else value


def from_record(kind: type[T], record: Any) -> T:
    """Convert the result of `to_record` back to a dataclass; derived numbers are ignored, for the caller to compare."""
    value: T = _convert(kind, record, "the record")
    return value


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Convert a JSON value of a record to the type that `hint` declares; `where` names it in errors."""
    if hint is Any:
        return value
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        return _convert(hint, value, where)
    if origin is Literal:
        return _require(value in get_args(hint) and isinstance(value, str), value, where, "a known word")
    if origin is tuple:
        _require(isinstance(value, list), value, where, "a list")
        return tuple(_convert(get_args(hint)[0], one, f"an element of {where}") for one in value)
    if hint is float:
        if value is None:
            return math.inf
        return float(
            _require(isinstance(value, (int, float)) and not isinstance(value, bool), value, where, "a number")
        )
    if hint is int:
        return _require(isinstance(value, int) and not isinstance(value, bool), value, where, "a whole number")
    if hint in (str, bool):
        return _require(isinstance(value, hint), value, where, "text" if hint is str else "true or false")
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _convert_object(hint, value, where)


def _convert_object(hint: Any, value: Any, where: str) -> Any:
    """Convert a JSON object to an event, a loss or another dataclass that `hint` declares."""
    _require(isinstance(value, dict), value, where, "an object")
    fields = {key: one for key, one in value.items() if key != "derived"}
    if issubclass(hint, Event):
        named, known, what = fields.pop("kind", None), load_event_classes(), "event"
    elif issubclass(hint, Loss):
        named, known, what = fields.pop("name", None), LOSSES, "loss"  # type: ignore[assignment]
    else:
        # The class or the subclass with these fields: a problem with passes is a recipe.
        fitting = (
            one
            for one in (hint, *hint.__subclasses__())
            if _find_fields(one)[1] <= fields.keys() <= _find_fields(one)[0].keys()
        )
        named, known, what = "", {"": next(fitting, hint)}, ""
    if not isinstance(named, str) or named not in known or not issubclass(known[named], hint):
        raise ValueError(
            f"unknown {what} {show_value(named)}" if isinstance(named, str) else f"unknown {what} without a name"
        )
    kind: Any = known[named]
    hints, required = _find_fields(kind)
    for name in required:
        if name not in fields:
            raise ValueError(f"{name!r} is missing from {where}")
    for name in fields:
        if name not in hints:
            raise ValueError(f"{where} has an entry {show_value(name)} that this boltdp does not know")
    return kind(**{name: _convert(hints[name], one, name) for name, one in fields.items()})


@cache
def load_event_classes() -> Mapping[str, type[Event]]:
    """Return every event class of this package by its kind."""
    for module in pkgutil.walk_packages(privacy.__path__, f"{privacy.__name__}."):
        importlib.import_module(module.name)
    return Event.KINDS


@cache
def _find_fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the types of a dataclass's fields by name, and the names of those that a record must have."""
    fields, hints = dataclasses.fields(kind), get_type_hints(kind)
    required = frozenset(field.name for field in fields if field.metadata != IF_GIVEN)
    return {field.name: hints[field.name] for field in fields}, required


def _require(holds: bool, value: Any, where: str, wanted: str) -> Any:
    """Return `value`; raise ValueError, with `where` it was read and what was `wanted`, unless `holds`."""
    if not holds:
        raise ValueError(f"{where} must be {wanted}")
    return value
