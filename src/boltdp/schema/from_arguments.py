"""Make a schema from the arguments of a call and from the declarations of the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from boltdp.errors import DataError, ParameterError, describe_argument, quote_names, show_value
from boltdp.schema.infer import NO_FEATURES, check_label, derive_column
from boltdp.schema.schema import Categorical, Column, Numeric, Schema, TimePart, Vector, read_weight
from boltdp.schema.source_columns import ColumnType, OpenColumns, suggest_columns
from boltdp.schema.target import Target

#: What the columns have that cannot have bounds, and a hint.
_UNFIT = {
    "text": ("texts", 'categories={{"{name}": ["value", ...]}}'),
    "timestamp": ("timestamps", 'timestamps={{"{name}": ["hour", "weekday", "month"]}}'),
    "date": ("dates", 'timestamps={{"{name}": ["weekday", "month"]}}'),
    "other": ("neither numbers, texts nor booleans", "leave it out"),
}


def declare_schema(
    columns: Mapping[str, ColumnType],
    kind: type[Target],
    label: str,
    of_target: Mapping[str, Any],
    *,
    bounds: Any = None,
    categories: Any = None,
    timestamps: Any = None,
    weight: Any = None,
    pairs: Any = None,
) -> tuple[Schema, tuple[str, ...]]:
    """Make a schema from the arguments of a call; return it with the names of the unused columns. No row is read.

    Every declared column is a feature: in `bounds` by (low, high) or its entry in a schema file, in `categories` by a
    list of values, in `timestamps` by a list of parts, such as "hour", or by the source itself: by a boolean type, an
    enum type or constraints. Others are left out; without any bounds, categories and timestamps they raise an error. A
    pair of numbers as `bounds` is for all columns of numbers. The target is of the given kind. `of_target` are the
    arguments that declare it, such as `classes`; the bounds of a number may also be among `bounds`. By default it is
    what the source declares. `weight` and `pairs` are as in a schema: the column and the bounds of the weights of rows,
    and pairs of columns.
    """
    of_rows = read_weight(weight)
    others = (label,) if of_rows is None else (label, of_rows.name)
    if others[-1] not in columns and of_rows is not None:
        raise ParameterError(
            f"the weight must be a column of the data, got {show_value(of_rows.name)}",
            hint=suggest_columns(columns, [label], of_rows.name),
        )
    given = {
        "bounds": _read_bounds(columns, others, bounds),
        "categories": _read_dict(categories, "categories", '["F", "M"]'),
        "timestamps": _read_dict(timestamps, "timestamps", '["hour", "weekday"]'),
    }
    if kind.numeric and label in given["bounds"]:
        of_target = {**of_target, "bounds": given["bounds"].pop(label)}
    uses = Counter(name for names in given.values() for name in names)
    if isinstance(columns, OpenColumns):
        columns = {name: columns[name] for name in (*uses, label)}
    check_label(columns, label, declared=uses)
    for what, names in given.items():
        _check_column_names(columns, label, names, what)
    target = declare_target(kind, label, columns[label], of_target)
    twice = [name for name in columns if uses[name] > 1]
    if twice:
        what = "bounds, categories or timestamps" if given["timestamps"] else "bounds or categories"
        raise ParameterError(f"a column must have {what}, not both, got both for {quote_names(twice)}")
    declared: dict[str, Column | None] = {
        name: derive_column(name, column) for name, column in columns.items() if name not in (*others, *uses)
    }
    for name, pair in given["bounds"].items():
        declared[name] = _make_bounded_column(name, columns[name], pair)
    for name, values in given["categories"].items():
        stated = {**values} if isinstance(values, Mapping) else {"categories": values}
        if "categories" in stated:
            stated["categories"] = [*_read_values(stated["categories"], f"the categories of {name!r}")]
        (declared[name],) = Categorical.from_declaration(name, stated)
    parts = [
        TimePart(name, part)
        for name, listed in given["timestamps"].items()
        for part in _read_values(listed, f"the parts of {name!r}")
    ]
    features = [feature for name in columns if (feature := declared.get(name)) is not None]
    undeclared = [name for name, feature in declared.items() if feature is None and not columns[name].key]
    usable = [name for name in undeclared if columns[name].kind not in NO_FEATURES]
    nothing = bounds is None and categories is None and timestamps is None
    if target is None or not (features or parts) or (usable and nothing):
        missing = None if target is not None else kind
        raise _make_undeclared_error(columns, missing, label, [] if any(given.values()) else usable)
    made = Schema(target, (*features, *parts), weight=of_rows, pairs=() if pairs is None else pairs)
    return made, tuple(undeclared)


def declare_target(kind: type[Target], name: str, column: ColumnType, given: Mapping[str, Any]) -> Target | None:
    """Make the target from the arguments of a call that declare it, or from its column; None if neither does.

    Arguments of another kind of target raise an error.
    """
    read: dict[str, Any] = {"bounds": _read_pair, "typical": _read_pair, "classes": _read_values}
    for argument, value in given.items():
        if value is not None and argument not in kind.other_keys:
            raise ParameterError(
                f"{argument} must not be given for {kind.key}={name!r}, which has {kind.other_keys[0]}",
                hint=f"label={name!r} has classes, target={name!r} predicts a number",
            )
    plain = {key: read[key](value, key) if key in read else value for key, value in given.items() if value is not None}
    return kind.from_arguments(name, column, plain)


def _make_bounded_column(name: str, column: ColumnType, pair: tuple[Any, Any] | Mapping[str, Any]) -> Column:
    if column.kind in _UNFIT:
        what, hint = _UNFIT[column.kind]
        raise ParameterError(
            f"bounds must be of columns of numbers, and {name!r} has {what}", hint=hint.format(name=name)
        )
    if isinstance(pair, Mapping):
        (declared,) = Numeric.from_declaration(name, pair)
        return declared
    if column.kind != "list":
        return Numeric(name, *pair)
    if column.length is None:
        raise ParameterError(
            f"column {name!r} must have a length, which its type does not tell",
            hint='declare it in a schema, by "vector": {"' + name + '": {"length": 3, "bounds": [0, 1]}}',
        )
    return Vector(name, column.length, *pair)


def _make_undeclared_error(
    columns: Mapping[str, ColumnType], kind: type[Target] | None, label: str, undeclared: Sequence[str]
) -> ParameterError | DataError:
    """Make an error with a hint of the arguments that would declare the columns, and a target of the kind, if given."""
    numbers = [name for name in undeclared if columns[name].kind in ("number", "list")]
    texts = [name for name in undeclared if name not in numbers]
    faults, lines = [], []
    bounds = [f'"{name}": (low, high)' for name in numbers[:1]] + ["..."] * (len(numbers) > 1)
    if undeclared:
        faults.append(f"bounds or categories of {quote_names(undeclared)}")
    if kind is not None:
        faults.append(f"the {kind.other_keys[0]} of {label!r}")
        bounds += [f'"{label}": (low, high)'] * kind.numeric
    if not faults:
        return DataError("the data must have at least one column that can be a feature, beside the label")
    if bounds:
        lines.append(f"bounds={{{', '.join(bounds)}}}")
    if texts:
        lines.append(f'categories={{"{texts[0]}": ["value", ...]{", ..." if texts[1:] else ""}}}')
    if kind is not None and not kind.numeric:
        lines.append("classes=[first, second]")
    used = " for the columns to use" if len(undeclared) > 1 else ""
    number = ""
    if kind is not None and not kind.numeric and columns[label].kind in ("number", "untyped"):
        number = f'; to predict a number, give target="{label}" with its bounds instead of label="{label}"'
    return ParameterError(
        f"what is public must be declared, and is not: {' and '.join(faults)}",
        hint=f"add {', '.join(lines)}{used}; from public knowledge, not from the rows{number}",
    )


def _read_bounds(columns: Mapping[str, ColumnType], others: Sequence[str], bounds: Any) -> dict[str, Any]:
    """Return the bounds of each column, by name; a single pair is for all columns of numbers but `others`."""
    if bounds is None or isinstance(bounds, Mapping):
        by_name = _read_dict(bounds, "bounds", "(0, 110)")
        return {
            name: pair if isinstance(pair, Mapping) else _read_pair(pair, f"the bounds of {name!r}")
            for name, pair in by_name.items()
        }
    pair = _read_pair(bounds, "bounds")
    return {name: pair for name, one in columns.items() if name not in others and one.kind in ("number", "list")}


def _read_dict(given: Any, what: str, example: str) -> dict[str, Any]:
    """Return a dictionary by names of columns, as texts: a data frame may have numbers for names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(
            f"{what} must be a dictionary by names of columns, got {describe_argument(given)}",
            hint=f'such as {what}={{"column": {example}}}',
        )
    return {str(name): value for name, value in given.items()}


def _check_column_names(columns: Mapping[str, ColumnType], label: str, given: Mapping[str, Any], what: str) -> None:
    """Raise ParameterError if an argument by names of columns has the label, or one that the data does not have."""
    if label in given:
        raise ParameterError(
            f"{what} must be of features, got the label {label!r}",
            hint=f"its values are the classes; target={label!r} predicts a number",
        )
    unknown = [name for name in given if name not in columns]
    if unknown:
        raise ParameterError(
            f"{what} must be of columns of the data, got {quote_names(unknown)}",
            hint=suggest_columns(columns, [label], unknown[0]),
        )


def _read_pair(pair: Any, what: str) -> tuple[Any, Any]:
    if isinstance(pair, np.ndarray) and pair.shape == (2,):
        pair = tuple(pair.tolist())
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        example = "typical=(500, 12_000)" if what == "typical" else 'bounds={"age": (0, 110)}'
        raise ParameterError(
            f"{what} must be a pair (low, high), got {describe_argument(pair)}", hint=f"such as {example}"
        )
    return pair[0], pair[1]


def _read_values(values: Any, what: str) -> tuple[Any, ...]:
    """Return a list of different values in its order; a set is sorted."""
    if isinstance(values, (set, frozenset)):
        values = sorted(values, key=lambda value: (isinstance(value, str), value))
    elif (isinstance(values, np.ndarray) and values.ndim == 1) or hasattr(values, "get_indexer"):  # a pandas Index
        values = values.tolist()
    if not isinstance(values, (list, tuple, range)):
        raise ParameterError(f"{what} must be a list of values, got {describe_argument(values)}")
    if len(set(map(repr, values))) < len(values):
        # No value is quoted: they may be the labels of all rows, by mistake.
        raise ParameterError(
            f"{what} must be different values, got some of them more than once",
            hint="name each value there can be once, from public knowledge",
        )
    return tuple(values)
