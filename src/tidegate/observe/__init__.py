"""One stream of events about listeners and pipelines, and those who listen to it."""

from tidegate.observe.health import Health, ObservedHealth, ReadPosition
from tidegate.observe.log import LoggingObserver
from tidegate.observe.observer import (
    Claimed,
    Committed,
    DeadLettered,
    Event,
    FencedOff,
    LagSeen,
    Observer,
    Observers,
    Paused,
    Polled,
    Rebalanced,
    Retried,
    Skipped,
    StoreBack,
    StoreLost,
)
from tidegate.observe.prometheus import PrometheusObserver

__all__ = [
    "Claimed",
    "Committed",
    "DeadLettered",
    "Event",
    "FencedOff",
    "Health",
    "LagSeen",
    "LoggingObserver",
    "ObservedHealth",
    "Observer",
    "Observers",
    "Paused",
    "Polled",
    "PrometheusObserver",
    "ReadPosition",
    "Rebalanced",
    "Retried",
    "Skipped",
    "StoreBack",
    "StoreLost",
]
