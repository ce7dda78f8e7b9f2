"""Start strategies: where reading begins when no position is stored, or when a deployment forces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidegate.core.errors import ConfigurationError
from tidegate.core.names import check_deployment
from tidegate.core.records import TopicPartition

__all__ = ["Earliest", "Latest", "LogOffsets", "Start", "StartStrategy", "Timestamp"]


@dataclass(frozen=True, slots=True)
class Earliest:
    """At the first record that the log still has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind the last record that the log has."""


@dataclass(frozen=True, slots=True)
class Timestamp:
    """At the first record whose timestamp, in milliseconds, is not before ``at``; behind the last if there is none."""

    at: int

    def __post_init__(self) -> None:
        if self.at < 0:
            raise ConfigurationError(f"{self.at} is not a timestamp: milliseconds since 1970 are expected")


Start: TypeAlias = Earliest | Latest | Timestamp


class LogOffsets(NamedTuple):
    """Offsets of one partition's log: its first record, where the next one goes, and the first one not before the
    wanted timestamp (``None``: there is none, or it was not asked for)."""

    earliest: int
    latest: int
    at_timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class StartStrategy:
    """Where to begin: where no position is stored, or, with a ``deployment``, everywhere, once under that name.

    The ledger remembers every name that a group has used, so that neither a restart nor a rebalance nor a return to an
    older name forces its start again.
    """

    start: Start = Earliest()
    deployment: str | None = None

    def __post_init__(self) -> None:
        if self.deployment is not None:
            check_deployment(self.deployment)

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        logs: Mapping[TopicPartition, LogOffsets],
    ) -> dict[TopicPartition, int]:
        """The offsets that :meth:`Ledger.claim` takes as ``start_at``, of those partitions that have a log."""
        return {tp: self._offset(logs[tp]) for tp in sorted(partitions) if tp in logs}

    def _offset(self, log: LogOffsets) -> int:
        match self.start:
            case Earliest():
                return log.earliest
            case Latest():
                return log.latest
            case Timestamp():
                return log.latest if log.at_timestamp is None else max(log.at_timestamp, log.earliest)
