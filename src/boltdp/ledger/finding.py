"""Which ledger a run is charged to: the one that is named, or the one that is found where the data is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boltdp.engines import SPARK
from boltdp.errors import ParameterError
from boltdp.ledger.book import POSTGRES, Account, Ledger, open_ledger
from boltdp.ledger.sqlite import BESIDE

#: In a name of a file they stand for other characters.
_PATTERN = set("*?[")


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

    A ledger is found in the directory of a file, as `.boltdp-ledger.db`, or in the PostgreSQL database of the data. A
    data set that is not named has the name of the file or the table.

    >>> find_account("patients.csv", ledger="ledger.db").dataset
    'patients.csv'
    """
    found = _beside(source) if ledger is None else open_ledger(_in_folder(ledger))
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
            hint="--dataset NAME, a data set that the ledger has a budget for",
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


def _beside(source: Any) -> Ledger | None:
    if isinstance(source, str) and source.startswith(POSTGRES):
        found = open_ledger(source)
        return found if found.exists() else None
    if not isinstance(source, (str, Path)) or SPARK.fullmatch(str(source)):
        return None  # rows that are in memory, or in a cluster
    folder = Path(source).parent
    while _PATTERN & set(str(folder)):
        folder = folder.parent
    # Of a directory of files, also the one in it.
    beside = [open_ledger(one / BESIDE) for one in (Path(source), folder) if one.is_dir()]
    return next((one for one in beside if one.exists()), None)


def _name(source: Any, *, table: str | None, query: str | None) -> str | None:
    if table is not None or query is not None:
        return table
    if not isinstance(source, (str, Path)) or str(source).startswith(POSTGRES) or _PATTERN & set(str(source)):
        return None
    return Path(source).name
