"""A schema from what a call declares by column, and from what the source of the rows declares itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from boltdp.data.draft import LEFT_OUT, declared_column, declared_schema
from boltdp.data.schema import Schema
from boltdp.data.source import ColumnType
from boltdp.errors import DataError, ParameterError, described, near, quoted, shown

#: What cannot have bounds.
_UNFIT = {
    "text": "texts",
    "timestamp": "timestamps, whose parts a schema can declare",
    "date": "dates, whose parts a schema can declare",
    "other": "neither numbers, texts nor booleans",
}


def declare(
    columns: Mapping[str, ColumnType],
    label: str,
    *,
    bounds: Any = None,
    categories: Any = None,
    classes: Any = None,
) -> tuple[Schema, tuple[str, ...]]:
    """The schema of a table with these columns, and the names of those that it does not use. No row is read.

    A feature is every column that is declared: in `bounds` by (low, high), in `categories` by a list, or by the source
    itself, as booleans are by their type and a database's columns by enum types and constraints. The others are left
    out, if there are bounds or categories at all; else they are refused, by name. A pair of numbers in the place of
    bounds by name is for all columns of numbers. Classes are those of `classes`, unless the label's type has them.

    >>> columns = {"age": ColumnType("number"), "smokes": ColumnType("bool"), "name": ColumnType("text")}
    >>> schema, unused = declare(columns | {"sick": ColumnType("bool")}, "sick", bounds={"age": (0, 110)})
    >>> schema.feature_names, schema.classes, unused
    (('age', 'smokes', 'intercept'), (False, True), ('name',))
    """
    numeric, categorical = _numeric(columns, label, bounds), _by_name(categories, "categories", '["F", "M"]')
    if label not in columns:
        raise DataError(
            f"the data must have the column {shown(label)} for the label",
            hint=names_hint(columns, [*numeric, *categorical], label),
        )
    for what, given in (("bounds", numeric), ("categories", categorical)):
        _check_names(columns, label, given, what)
    twice = [name for name in numeric if name in categorical]
    if twice:
        raise ParameterError(f"a column must have bounds or categories, not both, got both for {quoted(twice)}")
    known = dict(columns)
    for name, pair in numeric.items():
        kind = columns[name].kind
        if kind in _UNFIT:
            raise ParameterError(
                f"bounds must be of columns of numbers, and {name!r} has {_UNFIT[kind]}",
                hint=f'categories={{"{name}": ["value", ...]}}' if kind == "text" else "leave it out",
            )
        if kind == "list" and columns[name].length is None:
            raise ParameterError(
                f"column {name!r} must have a length, which its type does not tell",
                hint='declare it in a schema, by "vector": {"' + name + '": {"length": 3, "bounds": [0, 1]}}',
            )
        known[name] = replace(columns[name], kind=kind if kind == "list" else "number", bounds=pair, values=None)
    for name, values in categorical.items():
        declared = _values(values, f"the categories of {name!r}")
        known[name] = replace(columns[name], kind="text", bounds=None, values=declared)
    if classes is not None:
        known[label] = replace(columns[label], kind="text", values=_values(classes, "classes"))
    undeclared = [name for name in columns if name != label and declared_column(name, known[name]) is None]
    features = [name for name in columns if name != label and name not in undeclared]
    usable = [name for name in undeclared if columns[name].kind not in LEFT_OUT and not columns[name].key]
    unclassed = known[label].kind != "bool" and known[label].values is None
    if unclassed or not features or (usable and bounds is None and categories is None):
        _refuse(columns, label if unclassed else None, usable if not (numeric or categorical) else [])
    return declared_schema({name: known[name] for name in (*features, label)}, label), tuple(
        name for name in undeclared if not columns[name].key
    )


def _refuse(columns: Mapping[str, ColumnType], label: str | None, undeclared: Sequence[str]) -> None:
    """Say what is not declared, and which arguments would declare it."""
    numbers = [name for name in undeclared if columns[name].kind in ("number", "list")]
    texts = [name for name in undeclared if name not in numbers]
    faults, lines = [], []
    if undeclared:
        faults.append(f"bounds or categories of {quoted(undeclared)}")
    if numbers:
        lines.append(f'bounds={{"{numbers[0]}": (low, high){", ..." if numbers[1:] else ""}}}')
    if texts:
        lines.append(f'categories={{"{texts[0]}": ["value", ...]{", ..." if texts[1:] else ""}}}')
    if label is not None:
        faults.append(f"the classes of {label!r}")
        lines.append("classes=[first, second]")
    if not faults:
        raise DataError("the data must have at least one column that can be a feature, beside the label")
    used = " for the columns to use" if len(undeclared) > 1 else ""
    raise ParameterError(
        f"what is public must be declared, and is not: {' and '.join(faults)}",
        hint=f"add {', '.join(lines)}{used}; from public knowledge, not from the rows",
    )


def _numeric(columns: Mapping[str, ColumnType], label: str, bounds: Any) -> dict[str, tuple[Any, Any]]:
    """The pair of each column that has bounds."""
    if bounds is None or isinstance(bounds, Mapping):
        by_name = _by_name(bounds, "bounds", "(0, 110)")
        return {name: _pair(pair, f"the bounds of {name!r}") for name, pair in by_name.items()}
    pair = _pair(bounds, "bounds")
    return {name: pair for name, one in columns.items() if name != label and one.kind in ("number", "list")}


def _by_name(given: Any, what: str, example: str) -> dict[str, Any]:
    """A dictionary by names of columns, which are texts: numbers that a data frame has for names are written out."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"{what} must be a dictionary by names of columns, got {described(given)}",
            hint=f'such as {what}={{"column": {example}}}',
        )
    return {str(name): value for name, value in given.items()}


def _check_names(columns: Mapping[str, ColumnType], label: str, given: Mapping[str, Any], what: str) -> None:
    if label in given:
        raise ParameterError(f"{what} must be of features, got the label {label!r}", hint="its values are the classes")
    unknown = [name for name in given if name not in columns]
    if unknown:
        raise ParameterError(
            f"{what} must be of columns of the data, got {quoted(unknown)}",
            hint=names_hint(columns, [label], unknown[0]),
        )


def names_hint(columns: Mapping[str, ColumnType], declared: Iterable[str], missing: str | None = None) -> str:
    """Which columns there are, or one that may be meant by a name that is missing.

    >>> names_hint({"age": ColumnType("number")}, [], "Age"), names_hint({"age": ColumnType("number")}, [])
    ("did you mean 'age'?", "it has 'age'")
    >>> names_hint({"4711": ColumnType("untyped")}, ["age"])
    'none of these columns is there: is there a header, and is it the right file?'
    """
    # A file without a header has values in its place: unless something declared is there, they are not named.
    untyped = all(column.kind == "untyped" for column in columns.values())
    if untyped and not any(name in columns for name in declared):
        return "none of these columns is there: is there a header, and is it the right file?"
    return (None if missing is None else near(missing, columns)) or f"it has {quoted(columns)}"


def _pair(pair: Any, what: str) -> tuple[Any, Any]:
    if isinstance(pair, np.ndarray) and pair.shape == (2,):
        pair = tuple(pair.tolist())
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ParameterError(
            f"{what} must be a pair (low, high), got {described(pair)}", hint='such as bounds={"age": (0, 110)}'
        )
    return pair[0], pair[1]


def _values(values: Any, what: str) -> tuple[Any, ...]:
    """A list of values; its own order, but for a set, which has none."""
    if isinstance(values, (set, frozenset)):
        values = sorted(values, key=lambda value: (isinstance(value, str), value))
    elif (isinstance(values, np.ndarray) and values.ndim == 1) or hasattr(values, "get_indexer"):  # a pandas Index
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        raise ParameterError(f"{what} must be a list of values, got {described(values)}")
    if len(set(map(repr, values))) < len(values):
        # None is quoted: they may be the labels of all rows, by mistake.
        raise ParameterError(
            f"{what} must be different values, got some of them more than once",
            hint="name each value there can be once, from public knowledge",
        )
    return tuple(values)
