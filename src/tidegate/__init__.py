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
from tidegate.core.ordering import Ordering
from tidegate.core.partitioners import Partitioning, java_partition
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.protocols import Protocol
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import Backoff, DeadLetter, Fail, OutOfRange, Recreated, Retry, Skip
from tidegate.core.spans import Claim, Move, Span
from tidegate.core.start import Earliest, Latest, StartStrategy, Timestamp
from tidegate.ledger import Ledger, Limits, Outcome, Reclaimed, Result, Transaction, open_ledger
from tidegate.tables.table import Table

if TYPE_CHECKING:
    from tidegate.app import App, ListenerSpec
    from tidegate.kafka import (
        BufferFull,
        CommitUnknown,
        Delivered,
        Handle,
        Interceptor,
        InvalidArgument,
        KafkaTransaction,
        OnWeakTopic,
        Outgoing,
        OwnLoop,
        Producer,
        ProducerClosed,
        ProducerError,
        ProducerFailed,
        ProducerFenced,
        RecordRejected,
        SendAgain,
        SendListener,
        SerializationError,
        TopicProducer,
        TransactionAborted,
        Undelivered,
        Weakness,
        WeakTopic,
    )

__version__ = "0.1.0"

__all__ = [
    "AlreadyDone",
    "App",
    "Backoff",
    "BatchBounds",
    "Break",
    "BrokerUnavailable",
    "BufferFull",
    "Claim",
    "CommitStrategy",
    "CommitUnknown",
    "ConfigurationError",
    "DeadLetter",
    "Delivered",
    "Delivery",
    "Earliest",
    "Entry",
    "Fail",
    "Fenced",
    "GroupState",
    "Handle",
    "Identity",
    "IdentityChanged",
    "Interceptor",
    "InvalidArgument",
    "InvalidName",
    "KafkaTransaction",
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
    "OnWeakTopic",
    "Ordering",
    "OutOfRange",
    "Outcome",
    "Outgoing",
    "OwnLoop",
    "ParkedLetter",
    "Partitioning",
    "Position",
    "PositionMissing",
    "Producer",
    "ProducerClosed",
    "ProducerError",
    "ProducerFailed",
    "ProducerFenced",
    "Protocol",
    "Reclaimed",
    "Record",
    "RecordRejected",
    "Recreated",
    "Result",
    "Retry",
    "SchemaError",
    "SendAgain",
    "SendListener",
    "SerializationError",
    "Skip",
    "Span",
    "StartStrategy",
    "Table",
    "TidegateError",
    "Timestamp",
    "TopicPartition",
    "TopicProducer",
    "Transaction",
    "TransactionAborted",
    "TransactionBroken",
    "Undelivered",
    "Verification",
    "WeakTopic",
    "Weakness",
    "java_partition",
    "open_ledger",
]

# These need the Kafka client, which a process that only uses a ledger does not have to load.
_KAFKA = {
    **dict.fromkeys(("App", "ListenerSpec"), "app"),
    **dict.fromkeys(
        (
            "BufferFull",
            "CommitUnknown",
            "Delivered",
            "Handle",
            "Interceptor",
            "InvalidArgument",
            "KafkaTransaction",
            "OnWeakTopic",
            "Outgoing",
            "OwnLoop",
            "Producer",
            "ProducerClosed",
            "ProducerError",
            "ProducerFailed",
            "ProducerFenced",
            "RecordRejected",
            "SendAgain",
            "SendListener",
            "SerializationError",
            "TopicProducer",
            "TransactionAborted",
            "Undelivered",
            "WeakTopic",
            "Weakness",
        ),
        "kafka",
    ),
}


def __getattr__(name: str) -> Any:
    if name in _KAFKA:
        return getattr(import_module(f"tidegate.{_KAFKA[name]}"), name)
    raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
