"""Find the ledger that a run is charged to: the named one, or the one beside the data."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltdp.engines.registry import PATTERN_CHARACTERS, find_engine
from boltdp.errors import ParameterError
from boltdp.ledger.ledger import Account, Ledger, open_ledger
from boltdp.ledger.sqlite_store import DEFAULT_NAME


def find_account(
    source: Any,
    *,
    table: str | None = None,
    query: str | None = None,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    blocks: Sequence[str] = (),
) -> Account | None:
    """Return the account that a run over a source is charged to; None if no ledger is named or found.

    A ledger is found in the directory of a file, as `.boltdp-ledger.db`, or in the PostgreSQL database of the data.
    Rows in memory (source None) have none. The default name of the dataset is that of the file or the table.
    """
    if isinstance(blocks, str):
        raise ParameterError(f"blocks must be a list of names, got {blocks!r}")
    found = _find_ledger_beside(source, table, query) if ledger is None else open_ledger(ledger)
    if found is None:
        if dataset is not None or blocks:
            raise ParameterError(
                "dataset and blocks must be given with a ledger, and there is none where the data is",
                hint="`boltdp ledger set-budget` makes one",
            )
        return None
    name = dataset
    if name is None and query is None and source is not None:
        name = find_engine(source).find_dataset_name(source, table)
    if name is None:
        raise ParameterError(
            f"dataset must say what is charged to the ledger {found.address!r}; a query, a pattern or an object has no "
            "name",
            hint="--dataset NAME, a dataset that the ledger has a budget for",
        )
    return Account(found, name, tuple(blocks))


def _find_ledger_beside(source: Any, table: str | None, query: str | None) -> Ledger | None:
    """Return the ledger in the directory of the data files, or in their database; None if there is none."""
    if source is None:
        return None
    engine = find_engine(source)
    if engine.holds_ledger:
        inside = open_ledger(source)
        return inside if inside.exists() else None
    files = [file for name in engine.list_local_paths(source, table, query) for file in _list_files(name)]
    # In a directory of files, beside a file, beside the target of a symbolic link, and at the root of hive partitions.
    paths = [path for file in files for path in (file, file.resolve())]
    places = [one for path in paths for one in (path, *_list_partition_directories(path))]
    above = [one for path in paths for one in _list_folders_of_dataset(path)]
    folders = {place.resolve(): place for place in reversed([*places, *above]) if place.is_dir()}
    found = [one for one in (open_ledger(folder / DEFAULT_NAME) for folder in folders.values()) if one.exists()]
    if len(found) > 1:
        raise ParameterError(
            f"the data must have one ledger beside it, and there are {len(found)}", hint="name one with --ledger"
        )
    return found[0] if found else None


def _list_partition_directories(path: Path) -> list[Path]:
    """Return the directory of a data file, and those above it up to the root of hive partitions (year=2026/...)."""
    folders = [path.parent]
    while "=" in folders[-1].name:
        folders.append(folders[-1].parent)
    return folders


def _list_folders_of_dataset(path: Path) -> list[Path]:
    """Return the directories above a data file whose ledger has a budget for a directory that the file is in."""
    parents, found = path.absolute().parents, []
    for above, inside in zip(parents, (None, *parents), strict=False):
        ledger = open_ledger(above / DEFAULT_NAME)
        if ledger.exists() and os.access(above / DEFAULT_NAME, os.R_OK):
            names = {above.name} if inside is None else {above.name, inside.name}
            found += [above] if any(entry.dataset in names for entry in ledger.history()) else []
    return found


def _list_files(name: str) -> list[Path]:
    """List the data files of a name or a pattern; of a pattern also the directory that contains all of them."""
    folder = Path(name)
    if not PATTERN_CHARACTERS & set(name):
        return [folder]
    while PATTERN_CHARACTERS & set(str(folder)):
        folder = folder.parent
    return [folder, *map(Path, glob.glob(name, recursive=True))]
