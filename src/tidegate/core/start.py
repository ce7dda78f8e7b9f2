"""Start strategies: where reading begins when no position is stored, or when a deployment forces it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tidegate.core.errors import ConfigurationError, PositionMissing
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

    The ledger remembers the deployment in each position, so that a restart or a rebalance does not force it again.
    """

    start: Start = Earliest()
    deployment: str | None = None

    def __post_init__(self) -> None:
        if self.deployment == "":
            raise ConfigurationError("the deployment has no name; give it one, such as deployment='2024-05-replay'")

    def offsets(
        self,
        partitions: Iterable[TopicPartition],
        logs: Mapping[TopicPartition, LogOffsets],
        *,
        added: Collection[TopicPartition] = (),
    ) -> dict[TopicPartition, int]:
        """The offsets that :meth:`Ledger.claim` takes as ``start_at``.

        ``added`` are partitions that the topic got while the group was running: they are read from their beginning,
        because producers may have used them before anyone here knew of them.
        """
        return {tp: self._offset(tp, logs.get(tp), tp in added) for tp in sorted(partitions)}

    def _offset(self, partition: TopicPartition, log: LogOffsets | None, is_added: bool) -> int:
        if log is None:
            raise PositionMissing(f"the log offsets of {partition} are not known, so its start is not; does it exist?")
        if is_added:
            return log.earliest
        match self.start:
            case Earliest():
                return log.earliest
            case Latest():
                return log.latest
            case Timestamp():
                return log.latest if log.at_timestamp is None else max(log.at_timestamp, log.earliest)
