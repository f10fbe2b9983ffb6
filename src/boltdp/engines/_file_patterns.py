"""Which files a name stands for: one file, those that match a pattern, or all of a directory.

They are in the order of their paths, as texts. Names of files and of directories are public.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from boltdp.errors import DataError, near

Format: TypeAlias = Literal["csv", "json", "parquet", "arrow", "duckdb"]

#: How the name of a file of each format ends; .gz may follow those that are text.
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
#: What to do with a file of another format.
_OTHERWISE = {
    ".json": "name it .jsonl if each of its lines is an object by itself",
    ".txt": "name it .csv if its first line is a header",
    ".xlsx": "save it as CSV",
    ".xls": "save it as CSV",
}


@dataclass(frozen=True)
class Files:
    """Files of one format, which are read one after the other.

    >>> Files("rows.csv", "csv", ("rows.csv",)).partitions
    ()
    """

    name: str  #: as they were asked for
    format: Format
    paths: tuple[str, ...]
    root: str = ""  #: the directory that partitions are below
    partitions: tuple[str, ...] = ()  #: the columns that directories below the root name: year of year=2024


def format_of(path: str | Path) -> Format | None:
    """The format of a file by its name, if it is one that can be read.

    >>> format_of("rows.CSV.gz"), format_of("part-0.c000.snappy.parquet"), format_of("rows.xlsx")
    ('csv', 'parquet', None)
    """
    return ENDINGS.get(_ending(path))


def find_files(name: str | Path) -> Files:
    """The files that a name stands for; several must be of one format.

    >>> find_files(Path(__file__).with_suffix(".csv"))
    Traceback (most recent call last):
    boltdp.errors.DataError: no file is named '.../_file_patterns.csv', or matches it
    """
    text = str(name)
    if os.path.isfile(text):
        return Files(text, _known_format(text), (text,))
    if os.path.isdir(text):
        return found(text, _below(text), root=text, what="directory")
    paths = sorted(path for path in glob.glob(text, recursive=True) if os.path.isfile(path))
    if not paths:
        raise DataError(f"no file is named {text!r}, or matches it", hint=_near_file(text))
    return found(text, paths, root=_literal_root(text), what="pattern")


def found(name: str, paths: Sequence[str], *, root: str, what: str) -> Files:
    """Several files, if they are of one format and their directories name the same columns.

    >>> found("visits", ["visits/year=2023/a.parquet", "visits/year=2024/a.parquet"], root="visits", what="").partitions
    ('year',)
    """
    formats = {format_of(path) for path in paths}
    if len(formats) != 1 or None in formats or "duckdb" in formats:
        endings = sorted({_ending(path) or "no ending" for path in paths})
        if not endings:
            raise DataError(f"the {what} {name!r} must have files, and it has none")
        raise DataError(
            f"the {what} {name!r} must have files of one kind that can be read, it has {_listed(endings)}",
            hint=f"choose some by a pattern, such as '{name.rstrip('/')}/*{endings[0]}'",
        )
    keys = {tuple(_keys(path, root)) for path in paths}
    if len(keys) > 1:
        raise DataError(f"the directories of {name!r} must name the same columns as key=value, and do not")
    return Files(name, _known_format(paths[0]), tuple(paths), root, next(iter(keys)))


def _keys(path: str, root: str) -> list[str]:
    """The columns that the directories of a path name, below the root."""
    inside = os.path.relpath(path, root or ".") if root or not os.path.isabs(path) else path
    return [part.partition("=")[0] for part in Path(inside).parent.parts if part.find("=") > 0]


def _below(directory: str) -> list[str]:
    """All files in a directory and in those inside it, but for hidden ones and marks such as _SUCCESS."""
    paths = []
    for folder, folders, names in os.walk(directory):
        folders[:] = [inner for inner in folders if not inner.startswith((".", "_"))]
        paths += [os.path.join(folder, name) for name in names if not name.startswith((".", "_"))]
    return sorted(paths)


def _literal_root(pattern: str) -> str:
    """The directories of a pattern before the first that is one itself."""
    literal: list[str] = []
    for part in Path(pattern).parts[:-1]:
        if glob.has_magic(part):
            break
        literal.append(part)
    return str(Path(*literal)) if literal else ""


def _ending(path: str | Path) -> str:
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")


def _known_format(path: str) -> Format:
    known = format_of(path)
    if known is None:
        raise DataError(
            f"the file {path!r} must be CSV, JSON lines, Parquet, Arrow or DuckDB, with a name ending in "
            + ", ".join(ENDINGS),
            hint=_OTHERWISE.get(_ending(path)),
        )
    return known


def _near_file(path: str) -> str | None:
    folder, name = os.path.split(path)
    if not os.path.isdir(folder or "."):
        return f"there is no directory {folder!r}"
    return near(name, os.listdir(folder or "."), before=path.removesuffix(name))


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
