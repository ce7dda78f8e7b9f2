"""Start strategies: where reading begins when no position is stored, or when a deployment forces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, NamedTuple, TypeAlias, assert_never

from tidegate.core.arguments import Kind, Label, convert_arguments
from tidegate.core.names import check_deployment
from tidegate.core.records import TopicPartition
from tidegate.core.texts import is_text

__all__ = ["Earliest", "Latest", "LogOffsets", "Start", "StartStrategy", "Strategy", "Timestamp"]

_END_OF_TIME = 253_402_300_799_999  # milliseconds: the last ones of the year 9999


@dataclass(frozen=True, slots=True)
class Earliest:
    """At the first record that the log still has."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind the last record that the log has."""


def _milliseconds(given: Any) -> int | None:
    """Milliseconds since 1970 of a time with its zone, which may be written as text."""
    if is_text(given):
        text = given.strip()
        try:
            given = int(text) if text.isdecimal() else datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(given, datetime):
        return None if given.tzinfo is None else max(0, round(given.timestamp() * 1000))
    is_number = isinstance(given, int) and not isinstance(given, (bool, Enum))
    return given if is_number and 0 <= given <= _END_OF_TIME else None


_TIME = "a time with its zone (2026-11-01T00:00:00Z), or milliseconds since 1970"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """At the first record whose timestamp, in milliseconds, is not before ``at``; behind the last if there is none.

    ``at`` may be given as a ``datetime`` with its zone, or as text.
    """

    at: Annotated[int, Kind(_TIME, _milliseconds)]

    def __post_init__(self) -> None:
        convert_arguments(self)


def _start(given: Any) -> Earliest | Latest | Timestamp | None:
    if isinstance(given, (Earliest, Latest, Timestamp)):
        return given
    if is_text(given) and (word := given.strip().lower()) in _WORDS:
        return _WORDS[word]
    at = _milliseconds(given)
    return None if at is None else Timestamp(at)


_WORDS: dict[str, Earliest | Latest] = {"earliest": Earliest(), "latest": Latest()}
_EXPECTED = f"'earliest', 'latest', {_TIME}"

Start: TypeAlias = Annotated[Earliest | Latest | Timestamp, Kind(_EXPECTED, _start, tuple(_WORDS))]
"""Where to begin; as an argument also a word, or a time."""


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
    deployment: Label | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
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
            case other:
                assert_never(other)


def _strategy(given: Any) -> StartStrategy | None:
    if isinstance(given, StartStrategy):
        return given
    start = _start(given)
    return None if start is None else StartStrategy(start)


Strategy: TypeAlias = Annotated[StartStrategy, Kind(f"{_EXPECTED}, or a StartStrategy", _strategy, tuple(_WORDS))]
"""A strategy as an argument: a start alone is one without a deployment."""
