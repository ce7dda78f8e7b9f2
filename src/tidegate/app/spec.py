"""What a listener is asked to do: everything that the decorator and the settings say, checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.core.batching import BatchBounds
from tidegate.core.delivery import CommitStrategy, Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.lag import LagGuard
from tidegate.core.names import check_group, check_topic
from tidegate.core.ordering import Ordering
from tidegate.core.protocols import Protocol
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Fail, FailurePolicy, OutOfRange, Recreated
from tidegate.core.start import StartStrategy

__all__ = ["ListenerSpec", "Topics"]


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, topics by a regular expression, or named partitions without a group's assignment."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.names, self.pattern, self.partitions))) != 1:
            raise ConfigurationError("a listener has topics, or a pattern, or partitions: one of the three")
        for topic in (*self.names, *(tp.topic for tp in self.partitions)):
            check_topic(topic)
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(f"{self.pattern!r} is not a regular expression: {error}") from None

    def covers(self, topic: str) -> bool:
        """Whether a topic is among these."""
        if self.pattern is not None:
            return re.match(self.pattern, topic) is not None
        return topic in self.names or any(tp.topic == topic for tp in self.partitions)

    @property
    def subscription(self) -> list[str]:
        """What the consumer subscribes to; librdkafka takes what begins with ``^`` for a pattern."""
        if self.pattern is None:
            return list(self.names)
        return [self.pattern if self.pattern.startswith("^") else f"^{self.pattern}"]


# A transaction takes what came in while the one before it ran: quick where there is little, large where there is much.
_WHATEVER_IS_THERE = BatchBounds(count=10_000, bytes=4 << 20, age=0.0)
_EARLIEST = StartStrategy()
_FAIL = Fail()

Callback = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """The settings of one listener."""

    topics: Topics
    group: str
    delivery: Delivery = Delivery.EXACTLY_ONCE
    commit: CommitStrategy = CommitStrategy.SYNCHRONOUS
    start: StartStrategy = _EARLIEST
    batch: BatchBounds = _WHATEVER_IS_THERE
    buffer_bytes: int = 32 << 20
    on_error: FailurePolicy = _FAIL
    protocol: Protocol = Protocol.COOPERATIVE
    out_of_range: OutOfRange = OutOfRange.STOP
    recreated: Recreated = Recreated.STOP
    lag_guard: LagGuard | None = None
    mirror: bool = False
    threads: int = 1
    workers: int | None = None
    ordering: Ordering = Ordering.PARTITION
    session_timeout: float = 45.0
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None
    kafka: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_group(self.group)
        if self.threads < 1:
            raise ConfigurationError(f"a listener needs at least one thread, not {self.threads}")
        if self.workers is not None and self.workers < 1:
            raise ConfigurationError(f"a pool needs at least one worker, not {self.workers}")
        object.__setattr__(self, "ordering", _ordering(self.ordering))
        if self.session_timeout <= 0:
            raise ConfigurationError(f"{self.session_timeout} s is no session timeout")


def _ordering(said: str) -> Ordering:
    try:
        return Ordering(said)
    except ValueError:
        raise ConfigurationError(
            f"there is no ordering {said!r}; use {' or '.join(map(repr, map(str, Ordering)))}"
        ) from None
