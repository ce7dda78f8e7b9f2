"""What a listener is asked to do: everything that the decorator and the settings say, checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import ByteCount, ClientConfig, Kind, argument, convert_arguments, several
from tidegate.core.batching import BatchBounds, Bounds
from tidegate.core.bounds import ThreadCount
from tidegate.core.delivery import CommitStrategy, Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.lag import Guard
from tidegate.core.names import check_group, check_topic
from tidegate.core.ordering import Ordering
from tidegate.core.protocols import Protocol, SessionTimeout
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Fail, FailurePolicy, OutOfRange, Recreated
from tidegate.core.start import StartStrategy, Strategy
from tidegate.core.texts import is_text

__all__ = ["ListenerSpec", "Topics"]


def _partition(given: Any) -> TopicPartition | None:
    if not isinstance(given, tuple) or len(given) != 2:
        return None
    topic, number = given
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return TopicPartition(check_topic(topic), number) if is_number else None


_PARTITION = Annotated[TopicPartition, Kind("a TopicPartition", _partition)]


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, topics by a regular expression, or named partitions without a group's assignment."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Annotated[tuple[TopicPartition, ...], several(_PARTITION, "partitions such as ('orders', 0)")] = ()

    def __post_init__(self) -> None:
        convert_arguments(self)
        if sum(map(bool, (self.names, self.pattern, self.partitions))) != 1:
            raise ConfigurationError("a listener has topics, or a pattern, or partitions: one of the three")
        for topic in self.names:
            check_topic(topic)
        object.__setattr__(self, "names", tuple(dict.fromkeys(self.names)))  # librdkafka refuses a topic that is twice
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"topics: the pattern {self.pattern!r} is not a regular expression: {error}"
                ) from None

    @classmethod
    def of(cls, topics: Any, partitions: Any = ()) -> Topics:
        """What a listener is bound to: names, a pattern that begins with ``^`` or is compiled, or partitions."""
        if isinstance(topics, Topics):
            return topics
        if isinstance(topics, re.Pattern):
            return cls(pattern=topics.pattern, partitions=partitions)
        if is_text(topics) and topics.startswith("^"):
            return cls(pattern=topics, partitions=partitions)
        names = () if topics is None else argument("topics", tuple[str, ...], topics)
        return cls(names, None, partitions)

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

Callback: TypeAlias = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """The settings of one listener."""

    topics: Annotated[Topics, Kind("topics", Topics.of)]
    group: Annotated[str, Kind("the name of a group", check_group)]
    delivery: Delivery = Delivery.EXACTLY_ONCE
    commit: CommitStrategy = CommitStrategy.SYNCHRONOUS
    start: Strategy = _EARLIEST
    batch: Bounds = _WHATEVER_IS_THERE
    buffer_bytes: ByteCount = 32 << 20
    on_error: FailurePolicy = _FAIL
    protocol: Protocol = Protocol.COOPERATIVE
    out_of_range: OutOfRange = OutOfRange.STOP
    recreated: Recreated = Recreated.STOP
    lag_guard: Guard | None = None
    mirror: bool = False
    threads: ThreadCount = 1
    workers: ThreadCount | None = None
    ordering: Ordering = Ordering.PARTITION
    session_timeout: SessionTimeout = 45.0
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None
    kafka: ClientConfig = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.topics.partitions and self.threads > 1:
            raise ConfigurationError(
                f"threads: {self.threads} of them would each read the named partitions, and stop one another; use one, "
                "or let a group share the topic out"
            )
        commits_first = self.delivery is Delivery.AT_MOST_ONCE
        if commits_first and self.commit in (CommitStrategy.ASYNCHRONOUS, CommitStrategy.AUTOMATIC):
            raise ConfigurationError(
                f"commit: {self.commit.value!r} does not go with delivery='at-most-once', which commits a position "
                "before its records are handled: nobody waits for this commit, and after a crash the records would be "
                "handled again; use 'synchronous' or 'per-partition'"
            )
