from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from boltdp._files.outputs import write_text
from boltdp.cli._command_group import USER_ERROR, command
from boltdp.cli._options import Data, json_option, source_options
from boltdp.cli._terminal import can_encode, emit_json, emit_table, note, show_bar, warn

if TYPE_CHECKING:
    from boltdp.schema.check import CheckedColumn

#: The characters for bar heights and for a bound.
BLOCKS = (" ▁▂▃▄▅▆▇█", "│")
#: The same in ASCII.
LETTERS = (" .:-=+*#@", "|")
#: The maximum number of categories in a drawing.
MAX_DRAWN = 24


@command(
    "boltdp check last-year.csv --schema schema.toml",
    "boltdp check sample.parquet --schema schema.toml --html checked.html",
    "boltdp check hospital.duckdb --query 'SELECT * FROM visits LIMIT 1000' --schema schema.toml --json",
)
@source_options
@click.option("--schema", "schema_path", metavar="TOML", required=True, help="The schema to compare the rows with.")
@click.option("--html", metavar="FILE", help="Write a self-contained page with a drawing of each column.")
@json_option
def check(*, data: Data, html: str | None, as_json: bool) -> None:
    """Compare non-sensitive rows of SOURCE, such as a sample or last year's public file, with a schema.

    For each column: cells that are no numbers, cells beyond the bounds, classes and categories that are not declared or
    never occur, missing cells, and a picture: numbers between the bounds, which are marked, and beyond them.

    The exit code is 1 if training would learn garbage: if fewer than two declared classes occur, if all numbers to
    predict are the same, if a column cannot be read or is empty, if more than half of a column's cells (of all labels,
    and of the features that are not missing) do not parse, are clipped or are not declared, if more than a tenth do not
    parse or are other spellings of declared values, or if all numbers lie within a fiftieth of the bounds. It is 0
    otherwise.

    Nothing of it is private: values and counts of the rows are shown as they are.
    """
    from boltdp.engines.base import check_columns
    from boltdp.schema.check import NOT_PRIVATE, RULE, check_source  # `--help` needs no Arrow

    schema = data.load_schema()
    warn(NOT_PRIVATE)
    with data.locate_csv_errors(), data.open() as engine, show_bar() as bar:
        columns = engine.columns()
        if not any(name in columns for name in (schema.label, *schema.sources)):
            check_columns(schema, columns)  # raises an error with a hint
        rows = engine.count()
        report = check_source(engine, schema, progress=lambda done: bar("checking", done, rows))
    if html is not None:
        from boltdp.export.check_page import write_check_page

        write_text(html, write_check_page(report, str(data.schema_path)))
    if as_json:
        emit_json(report.to_dict())
    else:
        lines = [("rows", "", f"{report.rows:,}", "")]
        for column in report.columns:
            remarks = tuple(column.list_deviations()) or (column.fault or "as declared",)
            mark = "ok" if column.problem is None else "GARBAGE"
            lines += [(column.name, draw_bars(column), mark, remarks[0]), *(("", "", "", more) for more in remarks[1:])]
        lines += [(name, "", "not used", why) for name, why in report.unused]
        emit_table(lines)
        if html is not None:
            emit_table([("page", html)])
    if not report.ok:
        note(RULE)
        warn(f"training would learn garbage: {'; '.join(report.problems)}")
        click.get_current_context().exit(USER_ERROR)


def draw_bars(column: CheckedColumn) -> str:
    """Draw the counts of a checked column as a line of text: within and beyond its bounds, or of each value."""
    if column.fault is not None:
        return ""
    heights, bound = BLOCKS if can_encode("".join(BLOCKS)) else LETTERS
    inner = column.bars or tuple(count for _, count in column.counts[:MAX_DRAWN])
    before = [column.below] if column.bars else []
    after = [column.above if column.bars else column.undeclared]
    largest = max(1, *inner, *before, *after)

    def draw_counts(counts: Sequence[int]) -> str:
        # Rounded up, so that only a count of 0 is drawn as 0.
        return "".join(heights[-(-count * (len(heights) - 1) // largest)] for count in counts)

    return f"{draw_counts(before)}{bound}{draw_counts(inner)}{bound}{draw_counts(after)}"
