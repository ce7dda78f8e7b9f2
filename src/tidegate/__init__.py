"""Kafka records into a database, exactly once: offsets are rows that commit with the data."""

from __future__ import annotations

from tidegate.core.errors import (
    AlreadyDone,
    ConfigurationError,
    Fenced,
    IdentityChanged,
    InvalidName,
    LedgerBusy,
    LedgerDenied,
    LedgerError,
    LedgerUnavailable,
    NotCommitted,
    PositionMissing,
    SchemaError,
    TidegateError,
    TransactionBroken,
)
from tidegate.core.journal import Break, Entry, Kind, Verification
from tidegate.core.letters import Letter, ParkedLetter
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Claim, Move, Span
from tidegate.ledger import Ledger, Limits, Outcome, Reclaimed, Result, Transaction, open_ledger

__version__ = "0.1.0"

__all__ = [
    "AlreadyDone",
    "Break",
    "Claim",
    "ConfigurationError",
    "Entry",
    "Fenced",
    "GroupState",
    "Identity",
    "IdentityChanged",
    "InvalidName",
    "Kind",
    "Ledger",
    "LedgerBusy",
    "LedgerDenied",
    "LedgerError",
    "LedgerUnavailable",
    "Letter",
    "Limits",
    "Move",
    "NotCommitted",
    "Outcome",
    "ParkedLetter",
    "Position",
    "PositionMissing",
    "Reclaimed",
    "Record",
    "Result",
    "SchemaError",
    "Span",
    "TidegateError",
    "TopicPartition",
    "Transaction",
    "TransactionBroken",
    "Verification",
    "open_ledger",
]
