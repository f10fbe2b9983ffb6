"""A budget that cannot be exceeded: every release from a dataset is charged before a row is read."""

from boltdp.ledger.entries import Entry, LedgerError, LedgerUnavailableError
from boltdp.ledger.ledger import Account, BudgetExceeded, DatasetReport, Ledger, Reservation, open_ledger
from boltdp.ledger.locate import find_account

__all__ = [
    "Account",
    "BudgetExceeded",
    "DatasetReport",
    "Entry",
    "Ledger",
    "LedgerError",
    "LedgerUnavailableError",
    "Reservation",
    "find_account",
    "open_ledger",
]
