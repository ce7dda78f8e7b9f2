"""Kafka records into a database, exactly once: offsets are rows that commit with the data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.core.batching import BatchBounds
from tidegate.core.delivery import CommitStrategy, Delivery
from tidegate.core.errors import (
    AlreadyDone,
    BrokerUnavailable,
    ConfigurationError,
    Fenced,
    IdentityChanged,
    InvalidName,
    LedgerBusy,
    LedgerDenied,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    NotCommitted,
    PositionMissing,
    SchemaError,
    TidegateError,
    TransactionBroken,
)
from tidegate.core.journal import Break, Entry, Kind, Verification
from tidegate.core.lag import LagGuard
from tidegate.core.letters import Letter, ParkedLetter
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.protocols import Protocol
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import Backoff, DeadLetter, Fail, OutOfRange, Recreated, Retry, Skip
from tidegate.core.spans import Claim, Move, Span
from tidegate.core.start import Earliest, Latest, StartStrategy, Timestamp
from tidegate.ledger import Ledger, Limits, Outcome, Reclaimed, Result, Transaction, open_ledger

if TYPE_CHECKING:
    from tidegate.app import App, ListenerSpec
    from tidegate.kafka import OwnLoop

__version__ = "0.1.0"

__all__ = [
    "AlreadyDone",
    "App",
    "Backoff",
    "BatchBounds",
    "Break",
    "BrokerUnavailable",
    "Claim",
    "CommitStrategy",
    "ConfigurationError",
    "DeadLetter",
    "Delivery",
    "Earliest",
    "Entry",
    "Fail",
    "Fenced",
    "GroupState",
    "Identity",
    "IdentityChanged",
    "InvalidName",
    "Kind",
    "LagGuard",
    "Latest",
    "Ledger",
    "LedgerBusy",
    "LedgerDenied",
    "LedgerError",
    "LedgerUnavailable",
    "Letter",
    "Limits",
    "ListenerSpec",
    "ListenerStopped",
    "Move",
    "NotCommitted",
    "OutOfRange",
    "Outcome",
    "OwnLoop",
    "ParkedLetter",
    "Position",
    "PositionMissing",
    "Protocol",
    "Reclaimed",
    "Record",
    "Recreated",
    "Result",
    "Retry",
    "SchemaError",
    "Skip",
    "Span",
    "StartStrategy",
    "TidegateError",
    "Timestamp",
    "TopicPartition",
    "Transaction",
    "TransactionBroken",
    "Verification",
    "open_ledger",
]

# These need the Kafka client, which a process that only uses a ledger does not have to load.
_KAFKA = {"App": "app", "ListenerSpec": "app", "OwnLoop": "kafka"}


def __getattr__(name: str) -> Any:
    if name in _KAFKA:
        return getattr(import_module(f"tidegate.{_KAFKA[name]}"), name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
