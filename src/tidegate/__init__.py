"""Write Kafka records into a database exactly once: offsets are rows that commit together with the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from tidegate.app import App
    from tidegate.core.batches import BatchBounds
    from tidegate.core.policies import (
        Backoff,
        DeadLetter,
        Delivery,
        Earliest,
        Fail,
        GroupProtocol,
        Latest,
        Ordering,
        Retry,
        Skip,
        StartStrategy,
        Timestamp,
    )
    from tidegate.core.records import Record, TopicPartition
    from tidegate.core.work import Claim, Span
    from tidegate.errors import ConfigurationError, Fenced, TidegateError
    from tidegate.kafka import Outgoing, OwnLoop, Producer
    from tidegate.ledger import Ledger, Limits, Transaction, open_ledger
    from tidegate.tables.table import Table
else:
    # Nothing is imported before it is used: the command line starts fast, and a process with only a ledger does without
    # the Kafka client.
    __getattr__ = lazy_names(
        __name__,
        {
            "": ("core", "errors", "ledger", "observe", "tables"),
            "app": ("App",),
            "core.batches": ("BatchBounds",),
            "core.policies": (
                *("Backoff", "DeadLetter", "Delivery", "Earliest", "Fail", "GroupProtocol", "Latest", "Ordering"),
                *("Retry", "Skip", "StartStrategy", "Timestamp"),
            ),
            "core.records": ("Record", "TopicPartition"),
            "core.work": ("Claim", "Span"),
            "errors": ("ConfigurationError", "Fenced", "TidegateError"),
            "kafka": ("Outgoing", "OwnLoop", "Producer"),
            "ledger": ("Ledger", "Limits", "Transaction", "open_ledger"),
            "tables.table": ("Table",),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "BatchBounds",
    "Claim",
    "ConfigurationError",
    "DeadLetter",
    "Delivery",
    "Earliest",
    "Fail",
    "Fenced",
    "GroupProtocol",
    "Latest",
    "Ledger",
    "Limits",
    "Ordering",
    "Outgoing",
    "OwnLoop",
    "Producer",
    "Record",
    "Retry",
    "Skip",
    "Span",
    "StartStrategy",
    "Table",
    "TidegateError",
    "Timestamp",
    "TopicPartition",
    "Transaction",
    "open_ledger",
]
