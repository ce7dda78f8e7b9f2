"""Ledgers: where positions live, in the database that the data goes to."""

from __future__ import annotations

from tidegate.ledger.base import Ledger, Reclaimed
from tidegate.ledger.claiming import Identities, StartAt, Subscription
from tidegate.ledger.limits import Limits
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
from tidegate.ledger.open import open_ledger
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.ledger.sql.transaction import SqlTransaction
from tidegate.ledger.transaction import Outcome, Result, Transaction

__all__ = [
    "Identities",
    "Ledger",
    "Limits",
    "MemoryLedger",
    "MemoryTransaction",
    "Outcome",
    "Reclaimed",
    "Result",
    "SqlLedger",
    "SqlTransaction",
    "StartAt",
    "Subscription",
    "Transaction",
    "open_ledger",
]
