"""What the first line of a text file declares: the columns of a CSV file and their separator, the keys of JSON lines.

The first line is public. Nothing else is looked at to decide how a file is read; and since a file without a header has
values there, no message repeats what it says.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from boltdp import _interrupts
from boltdp.engines._file_patterns import Files
from boltdp.errors import DataError

#: What may stand between the cells of a CSV file.
SEPARATORS = (",", ";", "\t", "|")
#: Bytes of a CSV file that are looked through at a time for blank lines.
LOOK_BYTES = 1 << 18
#: What to do about a text that is not UTF-8; that of Windows is most often this one.
ENCODING_HINT = "iconv -f cp1252 -t utf-8 rows.csv > utf8.csv makes UTF-8 of a text from Windows"
#: Longest cell of a CSV file, or first line: DuckDB reads no longer line.
CELL_BYTES = 1 << 22


def find_separator(file: str) -> str:
    """What separates the names in the header of a CSV file: the one that stands there most often, outside quotes.

    Among equals it is a comma, or a tab if the name of the file ends in .tsv; then a semicolon, a tab, a bar.
    """
    own = "\t" if ".tsv" in Path(file.lower()).suffixes else ","
    try:
        with _text(file) as text:
            line = text.readline(CELL_BYTES)
            while line.count('"') % 2 and len(line) < CELL_BYTES and (more := text.readline(CELL_BYTES)):
                line += more
    except (OSError, EOFError, zlib.error):
        return own  # whoever reads the header will tell
    plain = re.sub(r'"[^"]*"', "", line)
    return max((own, *SEPARATORS), key=plain.count)


def csv_header(files: Files, separator: str) -> list[str]:
    """Names of the columns, which all files must have."""
    header = _header(files.paths[0], separator)
    for file in files.paths[1:]:
        if _header(file, separator) != header:
            raise DataError(f"the CSV files of {files.name!r} must have the same header, {file!r} has another")
    return header


def json_keys(files: Files) -> list[str]:
    """The keys of the first line of the first file, which are the columns of all."""
    file, keys = files.paths[0], None
    try:
        with _bytes(file) as raw:
            line = next((line for line in iter(lambda: raw.readline(CELL_BYTES), b"") if line.strip()), b"{}")
        marked = line.startswith(b"\xef\xbb\xbf")
        pairs = json.loads(line, object_pairs_hook=lambda pairs: _Pairs(pairs))
        keys = [key for key, _ in pairs.pairs] if isinstance(pairs, _Pairs) and not marked else None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        keys = None
    if keys is None:
        raise DataError(
            f"the file {file!r} must have a JSON object in each line, in UTF-8 without a mark at its start",
            hint="its first line must have all columns as keys, with null where a cell is missing",
        )
    if not keys:
        raise DataError(f"the first line of {file!r} must have all columns as keys, and it has none")
    return _different(keys, f"the first line of {file!r}")


def has_blank_line(file: str, separator: str) -> bool:
    """Whether a CSV file has a blank line before others, not counting those inside quotes."""
    try:
        # Two ends of lines in a row are rare and quickly found; only where there are any, it matters what is quoted.
        with _bytes(file) as raw:
            before, found = b"", False
            while not found and (part := raw.read(LOOK_BYTES)):
                _interrupts.check()
                seen = np.frombuffer(before + part, np.uint8)
                feeds, returns = seen == ord("\n"), seen == ord("\r")
                found = bool(((feeds | returns)[1:] & (feeds[:-1] | (returns[:-1] & returns[1:]))).any())
                before = part[-1:]
        if not found:
            return False
        csv.field_size_limit(max(csv.field_size_limit(), CELL_BYTES))
        with _text(file) as text:
            # DuckDB too takes a quote for one that opens if only spaces are before it.
            lines = csv.reader(text, delimiter=separator, skipinitialspace=True)
            return any(not cells for cells in lines) and any(cells for cells in lines)
    except (OSError, EOFError, zlib.error, csv.Error):
        return False  # DuckDB will find so too, or reads what Python does not


def csv_fault(files: Files, separator: str | None = None) -> str | None:
    """Where a CSV file is at fault, and what the fault is, for public rows; None if there is none.

    Only the number of a line is stated, and how many cells it has.
    """
    for file in files.paths:
        own = find_separator(file) if separator is None else separator
        width = len(_header(file, own))
        try:
            with _bytes(file) as raw:
                for at, line in enumerate(iter(lambda: raw.readline(CELL_BYTES), b""), 1):
                    _interrupts.check()
                    try:
                        line.decode("utf-8")
                    except UnicodeDecodeError:
                        return f"line {at:,} of {file!r} is not UTF-8"
            csv.field_size_limit(max(csv.field_size_limit(), CELL_BYTES))
            with _text(file) as text:
                lines, begins, blank = csv.reader(text, delimiter=own, skipinitialspace=True, strict=True), 1, None
                try:
                    for cells in lines:
                        if cells and blank is not None and width > 1:
                            return f"line {blank:,} of {file!r} is blank"
                        if cells and len(cells) != width:
                            said = f"{len(cells)} cell{'s' if len(cells) > 1 else ''}, and the header {width}"
                            return f"line {begins:,} of {file!r} has {said}"
                        blank = begins if not cells and blank is None else blank
                        begins = lines.line_num + 1
                except csv.Error:
                    return f"line {begins:,} of {file!r} has a quote that is not closed, or text after one that is"
        except (OSError, EOFError, zlib.error):
            return None
    return None


class _Pairs:
    """An object of JSON with its keys as they stand there, the same ones too."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        self.pairs = pairs


def _header(file: str, separator: str) -> list[str]:
    try:
        with _text(file) as text:
            names = next(csv.reader(text, delimiter=separator), [])
    except (OSError, EOFError, zlib.error, csv.Error):
        names = None
    if names is None:
        raise DataError(f"the CSV file {file!r} cannot be read: it must be text that starts with a header")
    if not names:
        raise DataError(f"the CSV file {file!r} must start with a header, and it is empty")
    if any("\ufffd" in name for name in names):  # what `_text` makes of other bytes
        raise DataError(f"the header of the CSV file {file!r} must be UTF-8", hint=ENCODING_HINT)
    # Such as the index column that pandas writes.
    names = [name or f"column{i}" for i, name in enumerate(names)]
    return _different(names, f"the header of the CSV file {file!r}")


def _different(names: list[str], where: str) -> list[str]:
    # DuckDB's names are the same in either case.
    if len({name.lower() for name in names}) < len(names):
        raise DataError(f"{where} must have different names (in either case)")
    return names


def _bytes(file: str) -> gzip.GzipFile | IO[bytes]:
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def _text(file: str) -> IO[str]:
    """A CSV file as text. What is not UTF-8 is left for DuckDB to find, in the header as in the rows."""
    opened: IO[str] = (gzip.open if file.endswith(".gz") else open)(
        file, "rt", encoding="utf-8-sig", errors="replace", newline=""
    )
    return opened
