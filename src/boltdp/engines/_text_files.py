"""Headers of text files: the columns and the separator of a CSV file, the keys of JSON lines.

The header of a CSV file is public, and it alone decides how the file is read. A file without a header has values there,
so no message quotes it. The first of JSON lines is a row: that it is an object is public, its keys are not.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import IO

import numpy as np

from boltdp import _interrupts
from boltdp.engines._file_patterns import Files
from boltdp.errors import DataError

#: Separators of CSV cells that are recognised.
SEPARATORS = (",", ";", "\t", "|")
#: Bytes read at a time in the search for blank lines.
LOOK_BYTES = 1 << 18
#: Hint for text that is not UTF-8, which is most often the Windows encoding.
ENCODING_HINT = "iconv -f cp1252 -t utf-8 rows.csv > utf8.csv makes UTF-8 of a text from Windows"
#: Maximum length of a cell or of the first line.
MAX_CELL_BYTES = 1 << 22


def find_separator(file: str) -> str:
    """Return the most frequent separator in the header of a CSV file, outside quotes.

    Ties are resolved in the order comma (tab for .tsv files), semicolon, tab, bar.
    """
    default = "\t" if ".tsv" in Path(file.lower()).suffixes else ","
    try:
        with _open_text(file) as text:
            line = text.readline(MAX_CELL_BYTES)
            while line.count('"') % 2 and len(line) < MAX_CELL_BYTES and (more := text.readline(MAX_CELL_BYTES)):
                line += more
    except (OSError, EOFError, zlib.error):
        return default  # reading the header will raise the error
    unquoted = re.sub(r'"[^"]*"', "", line)
    return max((default, *SEPARATORS), key=unquoted.count)


def read_csv_header(files: Files, separator: str) -> list[str]:
    """Return the column names of CSV files; raise DataError if their headers differ."""
    header = _read_csv_header_of_file(files.paths[0], separator)
    for file in files.paths[1:]:
        if _read_csv_header_of_file(file, separator) != header:
            raise DataError(f"the CSV files of {files.name!r} must have the same header, {file!r} has another")
    return header


def check_json_lines(files: Files) -> None:
    """Raise DataError for a file that is not JSON lines: its first line must be within braces.

    No key is looked at, since a row has them.
    """
    for file in files.paths:
        line = b""
        with suppress(OSError, EOFError, zlib.error), _open_bytes(file) as raw:  # reading the rows will raise the error
            line = next((line for line in iter(lambda: raw.readline(MAX_CELL_BYTES), b"") if line.strip()), b"")
        whole = line.rstrip().endswith(b"}") or len(line) == MAX_CELL_BYTES
        if line and not (line.lstrip().startswith(b"{") and whole):
            raise DataError(
                _describe_json_fault(file), hint="`jq -c '.[]' rows.json > rows.jsonl` makes them of an array"
            )


def _describe_json_fault(file: str) -> str:
    return f"the file {file!r} must have a JSON object in each line, in UTF-8 without a mark at its start"


def read_json_keys(files: Files) -> list[str]:
    """Return the keys of the first line of the first file, which is a row: for drafts from rows that are public."""
    file, keys = files.paths[0], None
    with suppress(OSError, EOFError, zlib.error, ValueError, RecursionError):
        with _open_bytes(file) as raw:
            line = next((line for line in iter(lambda: raw.readline(MAX_CELL_BYTES), b"") if line.strip()), b"{}")
        has_bom = line.startswith(b"\xef\xbb\xbf")
        # An object becomes a tuple of pairs, with duplicate keys; an array is a list.
        first = json.loads(line, object_pairs_hook=tuple)
        keys = [key for key, _ in first] if isinstance(first, tuple) and not has_bom else None
    if keys is None:
        raise DataError(
            _describe_json_fault(file),
            hint="its first line must have all columns as keys, with null where a cell is missing",
        )
    if not keys:
        raise DataError(f"the first line of {file!r} must have all columns as keys, and it has none")
    return check_distinct_names(keys, f"the first line of {file!r}")


def has_blank_line(file: str, separator: str) -> bool:
    """Return whether a CSV file has a blank line, outside quotes, before its last line."""
    try:
        # Consecutive line ends are rare and fast to find; the file is parsed only if there are any.
        with _open_bytes(file) as raw:
            before, found = b"", False
            while not found and (part := raw.read(LOOK_BYTES)):
                _interrupts.check()
                # Of single bytes, since bytes.find is five times slower for two.
                seen = np.frombuffer(before + part, np.uint8)
                feeds, returns = seen == ord("\n"), seen == ord("\r")
                found = bool(((feeds | returns)[1:] & (feeds[:-1] | (returns[:-1] & returns[1:]))).any())
                before = part[-1:]
        if not found:
            return False
        csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_BYTES))
        with _open_text(file) as text:
            # As in DuckDB, a quote after leading spaces opens a quoted cell.
            lines = csv.reader(text, delimiter=separator, skipinitialspace=True)
            return any(not cells for cells in lines) and any(cells for cells in lines)
    except (OSError, EOFError, zlib.error, csv.Error):
        return False  # DuckDB will raise the error, or can read the file


def describe_csv_fault(files: Files) -> str | None:
    """Describe the first malformed line of public CSV files, or return None if there is none.

    The description has the line number and the number of cells, but no values.
    """
    for file in files.paths:
        delimiter = find_separator(file)
        width = len(_read_csv_header_of_file(file, delimiter))
        try:
            with _open_bytes(file) as raw:
                for at, line in enumerate(iter(lambda: raw.readline(MAX_CELL_BYTES), b""), 1):
                    _interrupts.check()
                    try:
                        line.decode("utf-8")
                    except UnicodeDecodeError:
                        return f"line {at:,} of {file!r} is not UTF-8"
            csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_BYTES))
            with _open_text(file) as text:
                lines = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
                begins, blank = 1, None
                try:
                    for cells in lines:
                        if cells and blank is not None and width > 1:
                            return f"line {blank:,} of {file!r} is blank"
                        if cells and len(cells) != width:
                            counts = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}, and the header {width}"
                            return f"line {begins:,} of {file!r} has {counts}"
                        blank = begins if not cells and blank is None else blank
                        begins = lines.line_num + 1
                except csv.Error:
                    return f"line {begins:,} of {file!r} has a quote that is not closed, or text after one that is"
        except (OSError, EOFError, zlib.error):
            return None
    return None


def _read_csv_header_of_file(file: str, separator: str) -> list[str]:
    names = None
    with suppress(OSError, EOFError, zlib.error, csv.Error), _open_text(file) as text:
        names = next(csv.reader(text, delimiter=separator), [])
    if names is None:
        raise DataError(f"the CSV file {file!r} cannot be read: it must be text that starts with a header")
    if not names:
        raise DataError(f"the CSV file {file!r} must start with a header, and it is empty")
    if any("\ufffd" in name for name in names):  # the replacement character of `_open_text`
        raise DataError(f"the header of the CSV file {file!r} must be UTF-8", hint=ENCODING_HINT)
    # pandas writes an index column without a name.
    names = [name or f"column{i}" for i, name in enumerate(names)]
    return check_distinct_names(names, f"the header of the CSV file {file!r}")


def check_distinct_names(names: list[str], where: str) -> list[str]:
    """Return the names of columns; raise DataError if two are the same."""
    # DuckDB compares names without regard to case.
    if len({name.lower() for name in names}) < len(names):
        raise DataError(f"{where} must have different names (in either case)")
    return names


def _open_bytes(file: str) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def _open_text(file: str) -> IO[str]:
    """Open a CSV file as text; bytes that are not UTF-8 are replaced, and DuckDB raises the error."""
    return TextIOWrapper(_open_bytes(file), encoding="utf-8-sig", errors="replace", newline="")
