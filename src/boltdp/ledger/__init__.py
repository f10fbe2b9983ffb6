"""A budget that cannot be exceeded: every release from a dataset is charged before a row is read."""

from boltdp.ledger.entries import LedgerError
from boltdp.ledger.ledger import Account, BudgetExceeded, Ledger, open_ledger
from boltdp.ledger.locate import find_account

__all__ = ["Account", "BudgetExceeded", "Ledger", "LedgerError", "find_account", "open_ledger"]
