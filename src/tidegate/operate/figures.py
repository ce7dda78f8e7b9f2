"""Figures: what is shown of groups and partitions, on the command line and on the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.core.verdicts import State

__all__ = ["GroupStatus", "GroupSummary", "PartitionStatus", "Summaries"]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a group. What is not known is ``None``.

    ``committed`` is the position in the ledger, and ``current`` where its consumer has read to, if that one was asked.
    ``log_begin`` and ``log_end`` are the first offset of the log and the one behind its last record (the high
    watermark); ``stable_end``, the last stable offset, is where reading ends while a transaction is open, and where
    the lag is counted to. ``lag_seconds`` is the age of the oldest record that was not read.
    """

    topic: str
    partition: int
    state: State
    committed: int
    current: int | None
    log_begin: int | None
    stable_end: int | None
    log_end: int | None
    lag_records: int | None
    lag_seconds: float | None
    owner: str | None
    epoch: int
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group with all its partitions.

    ``lag_records`` is the sum and ``lag_seconds`` the greatest of its partitions'. ``unstored`` names the partitions of
    its topics that have no stored position, as ``topic[partition]``. ``kafka`` says why nothing is known from Kafka,
    ``members`` which members could not be asked; ``None`` and nothing if all is well.
    """

    group: str
    state: State
    paused: bool
    at: datetime
    lag_records: int | None
    lag_seconds: float | None
    owners: int
    partitions: tuple[PartitionStatus, ...]
    unstored: tuple[str, ...] = ()
    kafka: str | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group in one line.

    Its state is judged by the sums of its partitions, so that one partition that stalls does not show while the
    others move: :class:`GroupStatus` looks at each. ``owned`` counts the partitions that have an owner.
    """

    group: str
    state: State
    paused: bool
    topics: tuple[str, ...]
    partitions: int
    owned: int
    lag_records: int | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class Summaries:
    """Every group of the ledger, in one line each, by name; ``kafka`` says why nothing is known from Kafka."""

    at: datetime
    groups: tuple[GroupSummary, ...]
    kafka: str | None = None
