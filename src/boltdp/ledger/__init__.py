"""A budget that cannot be overspent: every release about a data set is charged before a row is read."""

from boltdp.ledger.book import Account, BudgetExceeded, DatasetReport, Ledger, Reservation, open_ledger
from boltdp.ledger.entries import Entry, LedgerError
from boltdp.ledger.finding import find_account

__all__ = [
    "Account",
    "BudgetExceeded",
    "DatasetReport",
    "Entry",
    "Ledger",
    "LedgerError",
    "Reservation",
    "find_account",
    "open_ledger",
]
