"""Events of listeners and pipelines, and the observers that log them, count them or derive health from them."""

from tidegate.observe.events import (
    Claimed,
    Committed,
    Conflicted,
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
from tidegate.observe.health import Health, ObservedHealth, ReadPosition
from tidegate.observe.log import LoggingObserver
from tidegate.observe.otel import OpenTelemetryObserver
from tidegate.observe.prometheus import PrometheusObserver

__all__ = [
    "Claimed",
    "Committed",
    "Conflicted",
    "DeadLettered",
    "Event",
    "FencedOff",
    "Health",
    "LagSeen",
    "LoggingObserver",
    "ObservedHealth",
    "Observer",
    "Observers",
    "OpenTelemetryObserver",
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
