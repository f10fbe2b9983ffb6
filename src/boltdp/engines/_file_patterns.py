"""Expansion of a name into files: one file, the matches of a pattern, or all files of a directory.

Files are sorted by path. Names of files and directories are public.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from boltdp.errors import DataError, suggest_names

Format: TypeAlias = Literal["csv", "json", "parquet", "arrow", "duckdb"]

#: The format of each file suffix; .gz may follow the suffixes of text files.
ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".duckdb": "duckdb",
    ".ddb": "duckdb",
    ".db": "duckdb",
}
#: Hints for files of other formats.
_FORMAT_HINTS = {
    ".json": "name it .jsonl if each of its lines is an object by itself",
    ".txt": "name it .csv if its first line is a header",
    ".xlsx": "save it as CSV",
    ".xls": "save it as CSV",
}


@dataclass(frozen=True)
class Files:
    """Files of one format, which are read one after another."""

    name: str  #: the name or pattern that the user gave
    format: Format
    paths: tuple[str, ...]
    root: str = ""  #: the directory that contains the partitions
    partitions: tuple[str, ...] = ()  #: columns named by directories below the root, such as year for year=2024


def find_format(path: str | Path) -> Format | None:
    """Return the format of a data file according to its suffix, or None if it is not supported.

    >>> find_format("rows.CSV.gz"), find_format("part-0.c000.snappy.parquet"), find_format("rows.xlsx")
    ('csv', 'parquet', None)
    """
    return ENDINGS.get(_find_suffix(path))


def find_files(name: str | Path) -> Files:
    """Return the files that a path, a pattern or a directory stands for, which must have one format."""
    text = str(name)
    if os.path.isfile(text):
        return Files(text, _require_format(text), (text,))
    if os.path.isdir(text):
        return collect_files(text, _list_files_below(text), root=text, what="directory")
    paths = sorted(path for path in glob.glob(text, recursive=True) if os.path.isfile(path))
    if not paths:
        raise DataError(f"no file is named {text!r}, or matches it", hint=suggest_file(text))
    return collect_files(text, paths, root=_find_literal_root(text), what="pattern")


def collect_files(name: str, paths: Sequence[str], *, root: str, what: str) -> Files:
    """Return several data files as one source; raise DataError if formats or partition columns differ."""
    formats = {find_format(path) for path in paths}
    if len(formats) != 1 or None in formats or "duckdb" in formats:
        endings = sorted({_find_suffix(path) or "no ending" for path in paths})
        if not endings:
            raise DataError(f"the {what} {name!r} must have files, and it has none")
        raise DataError(
            f"the {what} {name!r} must have files of one kind that can be read, it has {' and '.join(endings)}",
            hint=f"choose some by a pattern, such as '{name.rstrip('/')}/*{endings[0]}'",
        )
    keys = {tuple(_find_partition_keys(path, root)) for path in paths}
    if len(keys) > 1:
        raise DataError(f"the directories of {name!r} must name the same columns as key=value, and do not")
    return Files(name, _require_format(paths[0]), tuple(paths), root, next(iter(keys)))


def _find_partition_keys(path: str, root: str) -> list[str]:
    """Return the partition columns of a path: its directories named key=value below the root."""
    inside = os.path.relpath(path, root or ".") if root or not os.path.isabs(path) else path
    return [part.partition("=")[0] for part in Path(inside).parent.parts if part.find("=") > 0]


def _list_files_below(directory: str) -> list[str]:
    """Return all files below a directory, except hidden files and markers such as _SUCCESS."""
    paths = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [inner for inner in folders if not inner.startswith((".", "_"))]
        paths += [os.path.join(folder, name) for name in names if not name.startswith((".", "_"))]
    return sorted(paths)


def _find_literal_root(pattern: str) -> str:
    """Return the directories of a pattern before its first wildcard."""
    literal = [*takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts[:-1])]
    return str(Path(*literal)) if literal else ""


def _find_suffix(path: str | Path) -> str:
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def _require_format(path: str) -> Format:
    known = find_format(path)
    if known is None:
        raise DataError(
            f"the file {path!r} must be CSV, JSON lines, Parquet, Arrow or DuckDB, with a name ending in "
            + ", ".join(ENDINGS),
            hint=_FORMAT_HINTS.get(_find_suffix(path)),
        )
    return known


def suggest_file(path: str) -> str | None:
    """Return a hint for a file that does not exist: a similar name in its directory, if there is one."""
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f"there is no directory {folder!r}"
    return suggest_names(name, os.listdir(folder or "."), prefix=path.removesuffix(name))
