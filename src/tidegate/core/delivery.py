"""Delivery: how often the effect of a record happens when something fails in between."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["CommitMode", "CommitStrategy", "Delivery"]


class Delivery(StrEnum):
    """Once; at least once: the data first, the position after it; at most once: the position first."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class CommitStrategy(StrEnum):
    """How positions are committed that are kept in Kafka and not in a ledger."""

    AUTOMATIC = "automatic"
    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    PER_PARTITION = "per-partition"


class CommitMode(StrEnum):
    """What a pipeline commits together: the span of each partition by itself, or the whole micro-batch."""

    PARTITION = "partition"
    BATCH = "batch"
