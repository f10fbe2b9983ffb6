"""Infer a schema from the names and types of columns, from constraints of a database, or from summaries.

The column kinds draft their entries; the user completes the draft.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from boltdp._files.toml_writer import format_toml_key, format_toml_value
from boltdp.encoding.declared_values import Value
from boltdp.errors import DataError, show_value, suggest_names
from boltdp.privacy.events.event import BudgetedEvent
from boltdp.privacy.serialization import to_record
from boltdp.schema.columns import COLUMN_KINDS, Column, Draft
from boltdp.schema.schema import Schema
from boltdp.schema.source_columns import ColumnType, suggest_columns
from boltdp.schema.summary import MAX_CATEGORIES, MIN_DIFFERENT_NUMBERS, Summary
from boltdp.schema.target import Target, derive_target

#: A column of at most this many cells is not taken for an id, even if all its values differ.
MAX_CELLS_WITHOUT_ID = 20
#: The smallest share of numbers with commas among texts for which a query is suggested.
MIN_COMMAS = 0.8
#: Kinds of source columns that are not features without further declaration.
NO_FEATURES = ("timestamp", "date", "other")

NEEDS_DELTA = "its values can be released only with a delta"
TIMESTAMPS = "; timestamps are declared under [timestamp]"

_COMMAS = re.compile(r"\s*[+-]?[0-9]+(,[0-9]+)+\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[0-9]{1,3}(,[0-9]{3})+\s*")
_CURVES = "# name = { bounds = [low, high], curve = 8 } adds steps at 8 places: a model is then a curve, not a line"
_UNDECIDED = (
    "",
    "# These have no type. Move each to [numeric] as `name = [low, high]`, to [categorical] as",
    '# `name = ["value", ...]`, to [timestamp] as `name = ["hour", "weekday", "month"]`, or to [vector] as',
    "# `name = { length = 3, bounds = [low, high] }`, or drop it; then delete this table.",
    "[undecided]",
)


def check_label(
    columns: Mapping[str, ColumnType], label: str, *, declared: Iterable[str] = (), public: bool = False
) -> None:
    """Raise a DataError if the label is not a column; the hint has similar names only if these cannot be values."""
    if label not in columns:
        hint = suggest_names(label, columns) if public else suggest_columns(columns, declared, label)
        raise DataError(f"the data must have the column {show_value(label)} for the label", hint=hint)


def derive_schema(columns: Mapping[str, ColumnType], label: str, *kinds: type[Target]) -> Schema:
    """Derive a schema from types and constraints of a source that declare every column. No row is read.

    Every column is a feature, except undeclared keys and types that cannot be features. The target is of the first of
    `kinds`, by default of all kinds, for which the label column declares enough.
    """
    check_label(columns, label)
    features = {name: derive_column(name, column) for name, column in columns.items() if name != label}
    target = derive_target(label, columns[label], *kinds)
    if target is None and (other := derive_target(label, columns[label])) is not None:
        raise DataError(
            f"the data must declare {kinds[0].other_keys[0]} of {label!r}, and declares {other.other_keys[0]}",
            hint=f"give it as the {other.key} instead",
        )
    undeclared = [] if target is not None else [label]
    undeclared += [
        name
        for name, feature in features.items()
        if feature is None and columns[name].kind not in NO_FEATURES and not columns[name].key
    ]
    if target is None or undeclared:
        names = ", ".join(map(repr, undeclared))
        raise DataError(
            f"the data must declare bounds or values of every column, and does not of {names}",
            hint="add constraints to the table, such as CHECK (age BETWEEN 0 AND 120) or CHECK (sex IN ('F', 'M')); or "
            "complete the draft that `boltdp schema` makes, without the columns that are not to be used",
        )
    return Schema(target, tuple(feature for feature in features.values() if feature is not None))


def derive_column(name: str, column: ColumnType) -> Column | None:
    """Derive a feature column from its type and constraints in the source; None if these do not declare one."""
    found = (kind.from_type(name, column) for kind in COLUMN_KINDS)
    return next((feature for feature in found if feature is not None), None)


def write_draft(
    columns: Mapping[str, ColumnType],
    kind: type[Target],
    label: str,
    summaries: Mapping[str, Summary],
    *,
    unused: Mapping[str, str] | None = None,
    spent: BudgetedEvent | None = None,
    comments: Sequence[str] = (),
) -> str:
    """Return TOML text of a schema, from the types of columns and from exact or noisy summaries.

    Unknown entries are `[]`, for which `Schema.load` raises an error. `unused` has the reasons why columns are
    commented out.
    """
    unused = unused or {}
    tables: dict[str, list[str]] = {"numeric": [], "categorical": [], "vector": []}
    undecided, left_out = [], []
    for name, column in columns.items():
        if name == label:
            continue
        draft = draft_column(name, column, summaries.get(name), unused.get(name, ""))
        if draft is None and column.kind == "untyped":
            undecided.append(f"{format_toml_key(name)} = []")
        elif draft is None:
            known = f"of the type {column.called}, which cannot be a feature" if column.called else ""
            left_out.append(f"# {format_toml_key(name)}: {known or 'no feature, by its type'}")
        elif draft.table in tables:
            tables[draft.table].append(draft.write_line(name))
        else:
            left_out.append(f"# {format_toml_key(name)}: {draft.comment}")
    summary = summaries.get(label)
    why = unused.get(label, "") if summary is None else explain_unused(label, columns[label], summary, label=True)
    lines = [
        *(f"# {comment}" for comment in comments),
        *kind.draft_lines(label, columns[label], summary, why),
        "intercept = true",
        "# clip_norm = 1.0  # rows of a larger norm are scaled down to it; without it none is",
    ]
    for table, entries in tables.items():
        if entries:
            lines += ["", f"[{table}]", *([_CURVES] if table == "numeric" else []), *entries]
    if left_out:
        lines += ["", "# Left out:", *left_out]
    if undecided:
        lines += [*_UNDECIDED, *undecided]
    if spent is not None:
        lines += [
            "",
            "# What inferring this has cost; `boltdp train` adds it to what a model claims, so leave it as it is.",
            "[spent]",
            *(f"{key} = {format_toml_value(value)}" for key, value in to_record(spent).items()),
        ]
    return "\n".join(lines) + "\n"


def draft_column(name: str, column: ColumnType, summary: Summary | None, unused: str = "") -> Draft | None:
    """Draft the schema entry of a column from its type and summary; None if it is unknown or cannot be a feature."""
    declared = derive_column(name, column)
    if declared is not None:
        return Draft(declared.table, declared.schema_entry)
    found = (kind.draft_entry(name, column, summary) for kind in COLUMN_KINDS)
    draft = next((draft for draft in found if draft is not None), None)
    reason = unused or (explain_unused(name, column, summary) if summary is not None else "")
    if draft is None or not draft.used or not reason:
        return draft
    bounds = None if summary is None else summary.bounds
    return Draft(draft.table, [*(bounds or ())], reason, used=False)


def explain_unused(name: str, column: ColumnType, summary: Summary, *, label: bool = False) -> str:
    """Return why a summarized column is not drafted as a feature or label; empty if it is."""
    values, numeric = summary.values, summary.is_numeric
    if summary.noise is not None:
        if not label and (numeric or values):
            return ""
        texts = column.kind in ("text", "untyped") and not label
        if texts and summary.noise.threshold is None:
            return f"no numbers stood out of the noise, and {NEEDS_DELTA}{TIMESTAMPS}"
        return "nothing stood out of the noise" + (TIMESTAMPS if texts else "")
    several = len(values) > MIN_DIFFERENT_NUMBERS
    if column.kind == "text" and several and numeric:
        return f"numbers in texts: {_suggest_cast_query(name, _quote(name))}"
    if numeric and summary.others:
        return ""
    commas = 0 if numeric or not several else _count_matching_cells(values, _COMMAS)
    if commas and commas >= MIN_COMMAS * summary.others:
        point = "." if _count_matching_cells(values, _THOUSANDS) < commas else ""
        what = "numbers with a decimal comma" if point else "numbers with commas between thousands"
        query = _suggest_cast_query(name, f"replace({_quote(name)}, ',', '{point}')")
        return f"{what}: {query}"
    # Fractional numbers often all differ without being ids.
    differ = len(values) > MAX_CELLS_WITHOUT_ID and max(values.values()) == 1
    if differ and (summary.whole or not numeric) and not summary.timestamp_kind:
        return "every value differs: an id?"
    if len(values) > MAX_CATEGORIES and not (numeric or label):
        return f"more than {MAX_CATEGORIES} different values: declare those to tell apart"
    return ""


def _count_matching_cells(counts: Mapping[Value, int], pattern: re.Pattern[str]) -> int:
    return sum(count for value, count in counts.items() if isinstance(value, str) and pattern.fullmatch(value))


def _suggest_cast_query(name: str, text: str) -> str:
    return f"--query \"SELECT * REPLACE (TRY_CAST({text} AS DOUBLE) AS {_quote(name)}) FROM 'FILE'\" makes them plain"


def _quote(name: str) -> str:
    """Quote a name for SQL within the double quotes of a shell."""
    return name if name.isidentifier() else '\\"' + name.replace('"', '\\"\\"') + '\\"'
