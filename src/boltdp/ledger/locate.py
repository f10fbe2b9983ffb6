"""Which ledger a run is charged to: the one that is named, or the one that is found where the data is."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltdp.engines.registry import PATTERN_CHARACTERS, find_engine
from boltdp.errors import ParameterError
from boltdp.ledger.ledger import POSTGRES, Account, Ledger, open_ledger
from boltdp.ledger.sqlite_store import BESIDE


def find_account(
    source: Any,
    *,
    table: str | None = None,
    query: str | None = None,
    ledger: str | Path | Ledger | None = None,
    dataset: str | None = None,
    blocks: Sequence[str] = (),
) -> Account | None:
    """What a run over this source is charged to; None if no ledger is named and none is where the data is.

    A ledger is found in the directory of a file, as `.boltdp-ledger.db`, or in the PostgreSQL database of the data; of
    rows in memory (None is such a source too) there is none. A dataset that is not named has the name of the file or
    the table.

    >>> find_account("patients.csv", ledger="ledger.db").dataset
    'patients.csv'
    """
    if isinstance(blocks, str):
        raise ParameterError(f"blocks must be a list of names, got {blocks!r}")
    found = _beside(source, query) if ledger is None else open_ledger(_in_folder(ledger))
    if found is None:
        if dataset is not None or blocks:
            raise ParameterError(
                "dataset and blocks must be given with a ledger, and there is none where the data is",
                hint="`boltdp ledger set-budget` makes one",
            )
        return None
    name = dataset or _name(source, table=table, query=query)
    if name is None:
        raise ParameterError(
            f"dataset must say what is charged to the ledger {found.address!r}; a query, a pattern or an object has no "
            "name",
            hint="--dataset NAME, a dataset that the ledger has a budget for",
        )
    return Account(found, name, tuple(blocks))


def named_ledger(address: str | Path) -> Ledger:
    """The ledger of a name; a directory stands for the ledger in it that is found beside data.

    >>> named_ledger("/").address
    '/.boltdp-ledger.db'
    """
    return open_ledger(_in_folder(address))


def _in_folder(address: str | Path | Ledger) -> str | Path | Ledger:
    if isinstance(address, Ledger) or str(address).startswith(POSTGRES) or not Path(address).is_dir():
        return address
    return Path(address) / BESIDE


def _beside(source: Any, query: str | None) -> Ledger | None:
    if source is None:
        return None
    engine = find_engine(source)
    if engine.holds_ledger:
        inside = open_ledger(source)
        return inside if inside.exists() else None
    files = [file for name in engine.local_paths(source, query) for file in _files(name)]
    # Beside the file and what it is a link to, and in a directory of files.
    places = [one for file in files for one in (file, file.parent, file.resolve(), file.resolve().parent)]
    folders = {place.resolve(): place for place in reversed(places) if place.is_dir()}
    found = [one for one in (open_ledger(folder / BESIDE) for folder in folders.values()) if one.exists()]
    if len(found) > 1:
        raise ParameterError(
            f"the data must have one ledger beside it, and there are {len(found)}", hint="name one with --ledger"
        )
    return found[0] if found else None


def _files(name: str) -> list[Path]:
    """What a name stands for; of a pattern, the directory that all are in too."""
    folder = Path(name)
    if not PATTERN_CHARACTERS & set(name):
        return [folder]
    while PATTERN_CHARACTERS & set(str(folder)):
        folder = folder.parent
    return [folder, *map(Path, glob.glob(name, recursive=True))]


def _name(source: Any, *, table: str | None, query: str | None) -> str | None:
    if table is not None or query is not None:
        return table
    return None if source is None else find_engine(source).dataset_name(source)
