"""The ledger itself: budgets, charges, and what is left, over any store.

A charge is reserved, in a transaction of its own, before a row is read; what it paid for is released after. A process
that dies in between leaves the charge, which counts as spent. It is given back only where nothing that depends on rows
can have been seen.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from boltdp import _interrupts
from boltdp.errors import BoltdpError, ParameterError
from boltdp.ledger.hash_chain import (
    BEGINNING,
    Entry,
    LedgerError,
    Line,
    Standing,
    check_name,
    read_chain,
    read_standings,
)
from boltdp.ledger.store import Moment, Store
from boltdp.privacy.accounting.charges import Charge, Rule, Spent, check_charge, spent_by, spent_epsilon
from boltdp.privacy.adjacency import Adjacency
from boltdp.privacy.budget import Budget
from boltdp.privacy.certificate import CertificateError, compare_records
from boltdp.privacy.serialization import to_record

#: How the address of a ledger in PostgreSQL starts.
POSTGRES = ("postgresql://", "postgres://")

#: What makes the rule of composition true, in a sentence.
CONDITIONS = {
    "curves": "the epsilon, delta and settings of each release must not be chosen by what earlier releases from these "
    "rows showed; if they are, set the composition 'basic'",
    "basic": "epsilons and deltas are added, whatever made somebody ask for them",
}


class BudgetExceeded(BoltdpError):  # noqa: N818 - a refusal, and not a fault
    """A release that would exceed the budget of its dataset; nothing was read. All of it is public."""

    def __init__(self, dataset: str, block: str | None, *, asked: Budget, spent: Spent, budget: Budget) -> None:
        where = f"{dataset!r}" + (f", block {block!r}" if block is not None else "")
        epsilon, delta = max(budget.epsilon - spent.epsilon, 0.0), max(budget.delta - spent.delta, 0.0)
        remaining = f"epsilon = {epsilon:.6g}" + (f", delta = {delta:g}" if budget.delta else "")
        if spent.composed is not None:
            remaining = f"delta = {max(budget.delta - spent.composed, 0.0):.3g} at epsilon = {budget.epsilon:g}"
        super().__init__(
            f"budget exceeded for dataset {where}: requested {asked.describe()}, remaining {remaining} "
            f"({spent.describe(budget)})",
            hint=f"request less; `boltdp ledger history` shows what the budget of {budget.describe()} was spent on",
        )
        self.dataset, self.block = dataset, block
        self.asked, self.spent, self.budget = asked, spent, budget

    def __reduce__(self) -> Any:
        again = partial(type(self), asked=self.asked, spent=self.spent, budget=self.budget)
        return again, (self.dataset, self.block)


@dataclass(frozen=True)
class DatasetReport:
    """What was spent of the budget of a dataset, or of the block of it that has spent the most."""

    dataset: str
    budget: Budget
    composition: Rule
    not_private: bool  #: whether releases that guarantee nothing are let through
    spent: Spent
    epsilon: float | None  #: that all keep at the budget's delta by their curves, if that was asked for and is known
    unfinished: int  #: charges that were reserved and neither released nor given back
    blocks: dict[str, Spent]


@dataclass(frozen=True)
class Reservation:
    """A charge that is in the ledger: it counts as spent unless it is given back."""

    ledger: Ledger
    number: int
    dataset: str
    budget: Budget  #: of the dataset
    spent: Spent  #: with this charge, where it is most

    def commit(self, released: str) -> None:
        """Note the digest of what was released."""
        self.ledger._end(self, kind="release", released=released)

    def note(self, released: str) -> None:
        """The same for what is released already: a warning where it fails, since it is paid for all the same."""
        try:
            self.commit(released)
        except BoltdpError as fault:
            # What is only reserved counts as spent.
            warnings.warn(f"the ledger could not note the release: {fault}", UserWarning, stacklevel=3)

    def give_back(self) -> None:
        """Undo the charge; only if nothing that depends on rows can have been seen by anybody."""
        self.ledger._end(self, kind="return", released=None)

    def describe(self) -> str:
        """What is spent of the budget now, in a line."""
        return f"{self.dataset}: {self.spent.describe(self.budget)}"


class Ledger:
    """The ledger at an address; it holds nothing open, so that it can be copied, pickled and used after a fork."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def address(self) -> str:
        return self._store.address

    def exists(self) -> bool:
        return self._store.exists()

    def set_budget(
        self,
        dataset: str,
        budget: Budget,
        *,
        composition: Rule = "curves",
        allow_not_private: bool = False,
        by: str | None = None,
    ) -> None:
        """Set the budget of a dataset, or of each of its blocks; makes the ledger if there is none.

        It may be less than what is spent already: then nothing is released any more. `allow_not_private` lets through,
        and notes, releases that guarantee nothing: no budget holds for these rows then.
        """
        if composition not in get_args(Rule):
            raise ParameterError(f"composition must be one of {', '.join(get_args(Rule))}, got {composition!r}")
        check_name(dataset, "dataset")
        self._store.create()

        def make(entries: list[Entry]) -> dict[str, Any]:
            read_standings(entries)
            return {
                "kind": "budget",
                "dataset": dataset,
                "budget": budget,
                "composition": composition,
                "not_private": bool(allow_not_private),
            }

        self._append(make, by)

    def allow(self, role: str) -> None:
        """Let a role of PostgreSQL read the entries and append charges of its own."""
        self._store.allow(role)

    def reserve(
        self, dataset: str, charge: Charge, *, blocks: Sequence[str] = (), by: str | None = None
    ) -> Reservation:
        """Charge a release before a row is read; BudgetExceeded if the dataset, or a block of it, has not that much.

        `charge` is a certificate, or a `Release` of an event and a budget that it keeps. `blocks` are those that the
        rows of the release belong to, each row to one of them by something public; none: any of the dataset.
        """
        check_charge(charge)
        if isinstance(blocks, str):
            raise ParameterError(f"blocks must be a list of names, got {blocks!r}")
        if blocks and charge.adjacency is Adjacency.REPLACE_PERSON:
            raise LedgerError(
                "blocks must not be named for a release that protects persons, who may have rows in several of them"
            )
        reserved: list[Reservation] = []

        def make(entries: list[Entry]) -> dict[str, Any]:
            standing = self._standing(entries, dataset)
            if charge.reasons and not standing.not_private:
                raise LedgerError(
                    f"the release is not private, which the budget of the dataset {dataset!r} does not allow: "
                    f"{'; '.join(charge.reasons)}",
                    hint="whoever owns the ledger may allow it: `boltdp ledger set-budget --allow-not-private`",
                )
            others = {entry.adjacency for entry in standing.charges.values()} - {charge.adjacency}
            if others:
                raise LedgerError(
                    f"the release is about {charge.adjacency.value}, and those before it about another relation; "
                    "what they spend does not add up"
                )
            spent = self._check(dataset, standing, charge, blocks)
            reserved.append(Reservation(self, len(entries) + 1, dataset, standing.budget, spent))
            return {
                "kind": "reserve",
                "dataset": dataset,
                "blocks": tuple(blocks),
                "budget": charge.budget,
                "adjacency": charge.adjacency,
                "event": to_record(charge.spent),
                "reasons": charge.reasons,
            }

        self._append(make, by)
        return reserved[0]

    def kept_open(self) -> AbstractContextManager[None]:
        """Use one connection for what is done inside, where there are connections."""
        return self._store.kept_open()

    def spent(self, dataset: str, *, whole_curves: bool = False) -> DatasetReport:
        """What was spent of a budget; `whole_curves` computes what the curves say even if sums are within it."""
        return self._report(dataset, self._standing(self.history(), dataset), whole_curves=whole_curves)

    def show(self, *, whole_curves: bool = False) -> list[DatasetReport]:
        standings = read_standings(self.history())
        return [self._report(name, standing, whole_curves=whole_curves) for name, standing in standings.items()]

    def history(self, dataset: str | None = None) -> list[Entry]:
        """All entries, or those of one dataset; damage anywhere is a LedgerError."""
        entries = read_chain(self._store.read())
        if dataset is None:
            return entries
        self._standing(entries, dataset)
        return [entry for entry in entries if entry.dataset == dataset]

    def check(self) -> int:
        """Recompute every digest, and that each charge follows from its events; how many entries there are.

        Anything that does not add up is a LedgerError.
        """
        faults = self._store.faults()
        if faults:
            raise LedgerError(f"the ledger {self.address!r} is damaged: {faults[0]}")
        entries = self.history()
        read_standings(entries)
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

    def _end(self, reservation: Reservation, *, kind: str, released: str | None) -> None:
        def make(entries: list[Entry]) -> dict[str, Any]:
            standing = self._standing(entries, reservation.dataset)
            if reservation.number not in standing.open:
                raise LedgerError(f"charge {reservation.number} was released or given back already")
            return {
                "kind": kind,
                "dataset": reservation.dataset,
                "reserved": reservation.number,
                "released": released,
            }

        # Were this lost in a power failure, the charge would still be there, and count.
        self._append(make, None, lasting=False)

    def _append(self, make: Callable[[list[Entry]], dict[str, Any]], by: str | None, *, lasting: bool = True) -> None:
        """Append the entry whose fields `make` gives."""

        def line(lines: Sequence[Line], moment: Moment) -> Line:
            entries = read_chain(lines)
            previous = lines[-1].digest if lines else BEGINNING
            who = moment.by if by is None else check_name(by, "by")
            return Entry(number=len(lines) + 1, when=moment.when, by=who, previous=previous, **make(entries)).line

        self._store.append(line, lasting=lasting)

    def _standing(self, entries: Sequence[Entry], dataset: str) -> Standing:
        standings = read_standings(entries)
        if check_name(dataset, "dataset") not in standings:
            known = ", ".join(map(repr, standings)) or "none"
            raise LedgerError(
                f"the ledger {self.address!r} has no budget for a dataset {dataset!r}; it has: {known}",
                hint=f"name it by --dataset, or `boltdp ledger set-budget {self.address} {dataset} --epsilon ...`",
            )
        return standings[dataset]

    def _check(self, dataset: str, standing: Standing, charge: Charge, blocks: Sequence[str]) -> Spent:
        """What is spent with one more charge, in the block where it is most; refused if that is too much."""
        after, wanted = [], set(blocks)
        for names, entries in standing.shares(blocks):
            block = next((name for name in names if not wanted or name in wanted), None)
            if wanted and block is None:
                continue
            charges: list[Charge] = [*map(LateCharge, entries)]
            spent = spent_by([*charges, charge], standing.budget, rule=standing.composition)
            if charge.budget is not None and not spent.within(standing.budget):
                before = spent_by(charges, standing.budget, rule=standing.composition)
                raise BudgetExceeded(dataset, block, asked=charge.budget, spent=before, budget=standing.budget)
            after.append(spent)
        return max(after, key=_size)

    def _report(self, dataset: str, standing: Standing, *, whole_curves: bool) -> DatasetReport:
        rule, shares = standing.composition, []
        for names, entries in standing.shares():
            charges: list[Charge] = [*map(LateCharge, entries)]
            shares.append((names, charges, spent_by(charges, standing.budget, rule=rule, whole_curves=whole_curves)))
        _, most, spent = max(shares, key=lambda share: _size(share[2]))
        by_block = {name: one for names, _, one in shares for name in names}
        blocks = dict.fromkeys(block for entry in standing.charges.values() for block in entry.blocks)
        epsilon = spent_epsilon(most, standing.budget) if whole_curves and rule == "curves" else None
        return DatasetReport(
            dataset=dataset,
            budget=standing.budget,
            composition=standing.composition,
            not_private=standing.not_private,
            spent=replace(spent),  # a copy, distinct from that of a block
            epsilon=epsilon,
            unfinished=len(standing.open),
            blocks={block: by_block[block] for block in blocks},
        )


@dataclass(frozen=True)
class Account:
    """What a run is charged to: a dataset of a ledger, and the blocks that its rows belong to."""

    ledger: Ledger
    dataset: str
    blocks: tuple[str, ...] = ()

    @contextmanager
    def charged(self, charge: Charge, *, drawn: Callable[[], bool]) -> Iterator[Reservation]:
        """Charge what is done inside, which must `commit` what it releases.

        Where it is interrupted from outside before `drawn`, that is before any noise was drawn, the charge is given
        back. It stays after any other fault: whether there is one may depend on a row.
        """
        with self.ledger.kept_open():
            reservation = self.ledger.reserve(self.dataset, charge, blocks=self.blocks)
            try:
                yield reservation
            except KeyboardInterrupt:
                if not drawn():
                    with _interrupts.shield():
                        reservation.give_back()
                raise


def open_ledger(address: str | Path | Ledger) -> Ledger:
    """The ledger in a file, or in the PostgreSQL database of a URI; whether there is one is not looked at yet.

    >>> open_ledger("ledger.db").address
    'ledger.db'
    """
    if isinstance(address, Ledger):
        return address
    if isinstance(address, str) and address.startswith(POSTGRES):
        from boltdp.ledger.postgres_store import PostgresStore

        return Ledger(PostgresStore(address))
    if not isinstance(address, (str, Path)) or not str(address):
        raise ParameterError("a ledger must be given by the name of its file or the URI of a PostgreSQL database")
    from boltdp.ledger.sqlite_store import SQLiteStore

    return Ledger(SQLiteStore(address))


class LateCharge:
    """The charge of an entry, whose tree of events is read only if it is asked for."""

    def __init__(self, entry: Entry) -> None:
        assert entry.adjacency is not None
        self._entry, self.budget, self.adjacency, self.reasons = entry, entry.budget, entry.adjacency, entry.reasons

    @property
    def spent(self) -> Any:
        return self._entry.charge.spent


def _size(spent: Spent) -> tuple[float, float, float]:
    """Which of two has spent more: curves count where sums are too large."""
    return (-1.0 if spent.composed is None else spent.composed, spent.epsilon, spent.delta)
