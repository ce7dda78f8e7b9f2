"""Ledgers: they store positions in the same database as the data. This package exports their public names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.core.journal import Break, Bucket, Entry, Kind, Verification
    from tidegate.core.positions import GroupState, Identity, Position
    from tidegate.core.records import FailedRecord, StoredLetter
    from tidegate.core.work import Move
    from tidegate.ledger.claims import Identities, StartAt, Subscription
    from tidegate.ledger.ledger import Ledger
    from tidegate.ledger.memory import MemoryLedger, MemoryTransaction
    from tidegate.ledger.open import open_ledger
    from tidegate.ledger.position_store import Reclaimed
    from tidegate.ledger.sql.ledger import SqlLedger
    from tidegate.ledger.sql.sessions import SqlTransaction
    from tidegate.ledger.transaction import Limits, Outcome, Result, Transaction
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "core.journal": ("Break", "Bucket", "Entry", "Kind", "Verification"),
            "core.positions": ("GroupState", "Identity", "Position"),
            "core.records": ("FailedRecord", "StoredLetter"),
            "core.work": ("Move",),
            "ledger.claims": ("Identities", "StartAt", "Subscription"),
            "ledger.ledger": ("Ledger",),
            "ledger.memory": ("MemoryLedger", "MemoryTransaction"),
            "ledger.open": ("open_ledger",),
            "ledger.position_store": ("Reclaimed",),
            "ledger.sql.ledger": ("SqlLedger",),
            "ledger.sql.sessions": ("SqlTransaction",),
            "ledger.transaction": ("Limits", "Outcome", "Result", "Transaction"),
        },
    )

__all__ = [
    "Break",
    "Bucket",
    "Entry",
    "FailedRecord",
    "GroupState",
    "Identities",
    "Identity",
    "Kind",
    "Ledger",
    "Limits",
    "MemoryLedger",
    "MemoryTransaction",
    "Move",
    "Outcome",
    "Position",
    "Reclaimed",
    "Result",
    "SqlLedger",
    "SqlTransaction",
    "StartAt",
    "StoredLetter",
    "Subscription",
    "Transaction",
    "Verification",
    "open_ledger",
]
