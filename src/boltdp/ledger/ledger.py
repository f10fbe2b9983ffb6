"""The ledger: budgets and charges of datasets, in any store.

A charge is reserved, in a transaction of its own, before a row is read, and committed with the digest of the release.
A process that dies in between leaves the charge, which counts as spent. A charge is returned only if nobody can have
seen anything that depends on rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from boltdp import _interrupts
from boltdp.errors import BoltdpError, ParameterError
from boltdp.ledger.entries import (
    BEGINNING,
    DatasetState,
    Entry,
    LedgerError,
    Line,
    check_name,
    read_datasets,
    read_entries,
)
from boltdp.ledger.store import Store
from boltdp.privacy.accounting.spent_budget import Charge, CompositionRule, SpentBudget, check_charge, compose_charges
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records
from boltdp.privacy.serialization import to_record

#: Prefixes of the address of a ledger in PostgreSQL.
POSTGRES = ("postgresql://", "postgres://")

#: The condition of the rules of composition that have one; the others hold however somebody chooses the next release.
CONDITIONS = {
    "curves": "the epsilon, delta and settings of each release must not be chosen by what earlier releases from these "
    "rows showed; if they are, set the composition 'adaptive'",
}


class BudgetExceeded(BoltdpError):  # noqa: N818 - a refusal, and not a fault
    """The release would exceed the budget of its dataset; no row was read. All attributes are public."""

    def __init__(self, dataset: str, block: str | None, *, asked: Budget, spent: SpentBudget, budget: Budget) -> None:
        where = f"{dataset!r}" + (f", block {block!r}" if block is not None else "")
        delta = max(budget.delta - spent.delta, 0.0)
        remaining = f"epsilon = {spent.remaining:.6g}" + (f", delta = {delta:.3g}" if budget.delta else "")
        super().__init__(
            f"budget exceeded for dataset {where}: requested {asked.describe()}, remaining {remaining} "
            f"({spent.describe_cost(budget)})",
            hint=f"request less; `boltdp ledger history` shows what the budget of {budget.describe()} was spent on",
        )
        self.dataset, self.block = dataset, block
        self.asked, self.spent, self.budget = asked, spent, budget

    def __reduce__(self) -> Any:
        again = partial(type(self), asked=self.asked, spent=self.spent, budget=self.budget)
        return again, (self.dataset, self.block)


@dataclass(frozen=True)
class DatasetReport:
    """The privacy spent of the budget of a dataset, in the block that has spent the most."""

    dataset: str
    budget: Budget
    composition: CompositionRule
    not_private: bool  #: whether non-private releases are allowed
    spent: SpentBudget
    unfinished: int  #: charges that were reserved and neither released nor returned
    blocks: dict[str, SpentBudget]


@dataclass(frozen=True)
class Reservation:
    """A charge in the ledger: it counts as spent unless it is returned."""

    ledger: Ledger
    number: int
    dataset: str
    budget: Budget  #: of the dataset
    spent: SpentBudget  #: with this charge, in the block that has spent the most

    def commit(self, released: str) -> None:
        """Append to the ledger that the charged release was made, with its digest."""
        self.ledger._finish_charge(self, kind="release", released=released)

    def commit_or_warn(self, released: str) -> None:
        """Append the release as `commit` does; only warn if the ledger cannot be written: the charge counts anyway."""
        try:
            self.commit(released)
        except BoltdpError as fault:
            warnings.warn(f"the ledger could not note the release: {fault}", UserWarning, stacklevel=3)

    def cancel(self) -> None:
        """Cancel the charge, so that it is not spent; only if nobody can have seen anything that depends on rows."""
        self.ledger._finish_charge(self, kind="return", released=None)

    def describe(self) -> str:
        """Return a line with the epsilon and delta that the dataset has spent of its budget."""
        return f"{self.dataset}: {self.spent.describe(self.budget)}"


class Ledger:
    """The ledger at an address; it holds no connection, so that it can be copied, pickled and used after a fork."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def address(self) -> str:
        return self.store.address

    def exists(self) -> bool:
        return self.store.exists()

    def set_budget(
        self,
        dataset: str,
        budget: Budget,
        *,
        composition: CompositionRule = "adaptive",
        allow_not_private: bool = False,
    ) -> None:
        """Set the budget of a dataset, or of each of its blocks; create the ledger if there is none.

        If the budget is less than the privacy spent already, no further release is possible. `allow_not_private` allows
        and records non-private releases, after which the budget no longer holds for these rows.
        """
        if composition not in get_args(CompositionRule):
            raise ParameterError(
                f"composition must be one of {', '.join(get_args(CompositionRule))}, got {composition!r}"
            )
        check_name(dataset, "dataset")
        self.store.create()

        def make_fields(entries: list[Entry]) -> dict[str, Any]:
            read_datasets(entries)
            return {
                "kind": "budget",
                "dataset": dataset,
                "budget": budget,
                "composition": composition,
                "not_private": bool(allow_not_private),
            }

        self._append(make_fields)

    def allow(self, role: str) -> None:
        """Allow a PostgreSQL role to read the entries and append its own charges."""
        self.store.allow(role)

    def reserve(
        self,
        dataset: str,
        charge: Charge,
        *,
        blocks: Sequence[str] = (),
        by: str | None = None,
        role: str | None = None,
    ) -> Reservation:
        """Charge a release before a row is read; raise BudgetExceeded if the dataset, or a block, has too little left.

        `charge` is a certificate, or a `Release` of an event and its budget. `blocks` are the blocks of the rows of the
        release, each row in one of them by a public rule; empty: rows of the whole dataset. `role` is noted, for those
        who give roles budgets of their own (`list_charged_budgets`).
        """
        check_charge(charge)
        if isinstance(blocks, str):
            raise ParameterError(f"blocks must be a list of names, got {blocks!r}")
        if blocks and charge.adjacency is Adjacency.REPLACE_PERSON:
            raise LedgerError(
                "blocks must not be named for a release that protects persons, who may have rows in several of them"
            )
        reserved: list[Reservation] = []

        def make_fields(entries: list[Entry]) -> dict[str, Any]:
            state = self._find_dataset(entries, dataset)
            if charge.reasons and not state.not_private:
                raise LedgerError(
                    f"the release is not private, which the budget of the dataset {dataset!r} does not allow: "
                    f"{'; '.join(charge.reasons)}",
                    hint="whoever owns the ledger may allow it: `boltdp ledger set-budget --allow-not-private`",
                )
            others = {entry.adjacency for entry in state.charges.values()} - {charge.adjacency}
            if others:
                raise LedgerError(
                    f"the release is about {charge.adjacency.value}, and those before it about another relation; "
                    "what they spend does not add up"
                )
            spent = self._check_budget(dataset, state, charge, blocks)
            reserved.append(Reservation(self, len(entries) + 1, dataset, state.budget, spent))
            return {
                "kind": "reserve",
                "dataset": dataset,
                "role": role,
                "blocks": tuple(blocks),
                "budget": charge.budget,
                "adjacency": charge.adjacency,
                "event": to_record(charge.spent),
                "reasons": charge.reasons,
            }

        self._append(make_fields, by)
        return reserved[0]

    def spent(self, dataset: str, *, always_compose: bool = False) -> DatasetReport:
        """Report the privacy spent of a budget; `always_compose` composes costs even if the sums are within it."""
        return self._make_report(dataset, self._find_dataset(self.history(), dataset), always_compose=always_compose)

    def list_charged_budgets(self, dataset: str, *, role: str) -> list[Budget]:
        """Return the budgets that charged releases for a role have claimed."""
        charges = self._find_dataset(self.history(), dataset).charges.values()
        return [entry.budget for entry in charges if entry.role == role and entry.budget is not None]

    def show(self, *, always_compose: bool = False) -> list[DatasetReport]:
        """Report what each dataset has spent of its budget, as `spent` does for one."""
        datasets = read_datasets(self.history())
        return [self._make_report(name, state, always_compose=always_compose) for name, state in datasets.items()]

    def history(self, dataset: str | None = None) -> list[Entry]:
        """Return all entries of the ledger, or those of one dataset; damage anywhere raises LedgerError."""
        entries = read_entries(self.store.read())
        if dataset is None:
            return entries
        self._find_dataset(entries, dataset)
        return [entry for entry in entries if entry.dataset == dataset]

    def check(self) -> int:
        """Verify every digest, and that each charge follows from its event; return the number of entries.

        Any mismatch raises LedgerError.
        """
        faults = self.store.list_faults()
        if faults:
            raise LedgerError(f"the ledger {self.address!r} is damaged: {faults[0]}")
        entries = self.history()
        read_datasets(entries)
        for entry in entries:
            if entry.kind == "reserve":
                charge = entry.charge
                try:
                    compare_records(entry.event, to_record(charge.spent), f"entry {entry.number} of the ledger")
                    compare_records(list(entry.reasons), list(charge.reasons), f"entry {entry.number} of the ledger")
                    check_charge(charge)
                except (CertificateError, ParameterError) as fault:
                    raise LedgerError(str(fault)) from None
        return len(entries)

    def _finish_charge(self, reservation: Reservation, *, kind: str, released: str | None) -> None:
        """Append that a reserved charge is released or returned; raise LedgerError if it already is."""

        def make_fields(entries: list[Entry]) -> dict[str, Any]:
            state = self._find_dataset(entries, reservation.dataset)
            if reservation.number not in state.open:
                raise LedgerError(f"charge {reservation.number} is already released or returned")
            return {
                "kind": kind,
                "dataset": reservation.dataset,
                "reserved": reservation.number,
                "released": released,
            }

        # If a power failure loses this entry, the charge still counts as spent.
        self._append(make_fields, durable=False)

    def _append(
        self, make: Callable[[list[Entry]], dict[str, Any]], by: str | None = None, *, durable: bool = True
    ) -> None:
        """Append the entry whose fields `make` returns, given all entries so far, in one transaction."""

        def make_line(lines: Sequence[Line], user: str, time: str) -> Line:
            entries = read_entries(lines)
            previous = lines[-1].digest if lines else BEGINNING
            who = user if by is None else check_name(by, "by")
            return Entry(number=len(lines) + 1, when=time, by=who, previous=previous, **make(entries)).line

        self.store.append(make_line, durable=durable)

    def _find_dataset(self, entries: Sequence[Entry], dataset: str) -> DatasetState:
        """Return the state of a dataset after all entries; raise LedgerError if it has no budget."""
        datasets = read_datasets(entries)
        if check_name(dataset, "dataset") not in datasets:
            known = ", ".join(map(repr, datasets)) or "none"
            raise LedgerError(
                f"the ledger {self.address!r} has no budget for a dataset {dataset!r}; it has: {known}",
                hint=f"name it by --dataset, or `boltdp ledger set-budget {self.address} {dataset} --epsilon ...`",
            )
        return datasets[dataset]

    def _check_budget(self, dataset: str, state: DatasetState, charge: Charge, blocks: Sequence[str]) -> SpentBudget:
        """Return what the most used block has spent with one more charge; raise BudgetExceeded if that is too much."""
        after, wanted = [], set(blocks)
        for names, charges in state.group_blocks(blocks):
            block = next((name for name in names if not wanted or name in wanted), None)
            if wanted and block is None:
                continue
            spent = compose_charges([*charges, charge], state.budget, rule=state.composition)
            if charge.budget is not None and not spent.is_within(state.budget):
                before = compose_charges(charges, state.budget, rule=state.composition)
                raise BudgetExceeded(dataset, block, asked=charge.budget, spent=before, budget=state.budget)
            after.append(spent)
        return max(after, key=_get_sort_key)

    def _make_report(self, dataset: str, state: DatasetState, *, always_compose: bool) -> DatasetReport:
        shares = [
            (names, compose_charges(charges, state.budget, rule=state.composition, always_compose=always_compose))
            for names, charges in state.group_blocks()
        ]
        by_block = {name: one for names, one in shares for name in names}
        blocks = dict.fromkeys(block for entry in state.charges.values() for block in entry.blocks)
        return DatasetReport(
            dataset=dataset,
            budget=state.budget,
            composition=state.composition,
            not_private=state.not_private,
            spent=max((one for _, one in shares), key=_get_sort_key),
            unfinished=len(state.open),
            blocks={block: by_block[block] for block in blocks},
        )


@dataclass(frozen=True)
class Account:
    """The account of a run: a dataset of a ledger, and the blocks of its rows."""

    ledger: Ledger
    dataset: str
    blocks: tuple[str, ...] = ()
    role: str | None = None  #: that the run is for, if roles have budgets of their own

    @contextmanager
    def reserve(self, charge: Charge, *, drawn: Callable[[], bool]) -> Iterator[Reservation]:
        """Reserve a charge for the release that is made inside the `with` block, which must `commit` it.

        A KeyboardInterrupt before any noise was `drawn` returns the charge. It stays after any other exception, which
        may depend on a row.
        """
        with self.ledger.store.keep_open():
            reservation = self.ledger.reserve(self.dataset, charge, blocks=self.blocks, role=self.role)
            try:
                yield reservation
            except KeyboardInterrupt:
                if not drawn():
                    with _interrupts.shield():
                        reservation.cancel()
                raise


def open_ledger(address: str | Path | Ledger) -> Ledger:
    """Return the ledger in a file, or in the PostgreSQL database of a URI, without checking that it exists.

    A directory stands for its `.boltdp-ledger.db`.
    """
    if isinstance(address, Ledger):
        return address
    if isinstance(address, str) and address.startswith(POSTGRES):
        from boltdp.ledger.postgres_store import PostgresStore

        return Ledger(PostgresStore(address))
    if not isinstance(address, (str, Path)) or not str(address):
        raise ParameterError("a ledger must be given by the name of its file or the URI of a PostgreSQL database")
    from boltdp.ledger.sqlite_store import DEFAULT_NAME, SQLiteStore

    return Ledger(SQLiteStore(Path(address) / DEFAULT_NAME if Path(address).is_dir() else address))


def _get_sort_key(spent: SpentBudget) -> tuple[float, float, float]:
    """Return a key that sorts spent budgets by composed delta, which is known where sums exceed it, then by sums."""
    return (-1.0 if spent.composed is None else spent.composed, spent.epsilon, spent.delta)
