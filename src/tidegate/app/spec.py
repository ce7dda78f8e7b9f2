"""The specification of a listener: its topics and settings, validated."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from tidegate.core.arguments import (
    Accepts,
    ByteCount,
    ClientConfig,
    Concurrency,
    ThreadCount,
    TimeLimit,
    argument,
    convert_arguments,
    several,
)
from tidegate.core.batches import Bounds
from tidegate.core.policies import (
    CommitStrategy,
    Delivery,
    Fail,
    FailurePolicy,
    GroupProtocol,
    Guard,
    Ordering,
    OutOfRange,
    Recreated,
    SessionTimeout,
    StartStrategy,
    Strategy,
)
from tidegate.core.records import TopicPartition, check_group, check_topic
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.kafka.delivery import Outgoing
from tidegate.settings import ListenerSettings

__all__ = ["ListenerSpec", "Topics", "refuse_to_return", "returns_records"]


_SEVERAL = (list, tuple, Sequence, Collection, Iterable)


def returns_records(function: Callable[..., object]) -> bool:
    """Return whether the return annotation names ``Outgoing``, alone or in a list or a union."""
    return _names_a_record(_annotation(function))


def refuse_to_return(
    name: str, function: Callable[..., object], spec: ListenerSpec, *, has_ledger: bool, is_async: bool
) -> None:
    """Raise if the records that a handler returns cannot be sent, or cannot be sent exactly once."""
    if not _is_sendable(_annotation(function)):
        raise ConfigurationError(
            f"{name}: the annotation of what it returns names Outgoing in a form that cannot be sent; use -> Outgoing, "
            "-> list[Outgoing], or either with | None"
        )
    if has_ledger:
        raise ConfigurationError(
            f"{name} returns records for other topics: those and their positions go into one Kafka transaction, "
            "which cannot include a database. Give the app ledger=None, or send with app.producer, which may send a "
            "record twice"
        )
    if spec.delivery is not Delivery.EXACTLY_ONCE:
        raise ConfigurationError(
            f"{name} returns records for other topics, which is for delivery=Delivery.EXACTLY_ONCE; for less, send "
            "with app.producer"
        )
    if spec.workers is not None or is_async:
        raise ConfigurationError(
            f"{name} returns records for other topics, and those of a pool are not sent; make it a plain 'def' without "
            "workers, and run several processes"
        )
    if spec.topics.partitions:
        raise ConfigurationError(
            f"{name} returns records and names its partitions: without a group's assignment, Kafka cannot "
            "fence one of two consumers of a partition. Subscribe to the topic instead"
        )


def _annotation(function: Callable[..., object]) -> Any:
    inner = getattr(function, "func", function)  # the function inside a partial
    try:
        return get_type_hints(inner).get("return")
    except Exception:  # bind() reports annotations that cannot be resolved
        return None


def _is_sendable(annotation: Any) -> bool:
    """Return whether the annotation is ``Outgoing`` or a collection of it, optionally with ``None``."""
    if get_origin(annotation) in (Union, UnionType):
        return all(part is NoneType or _is_sendable(part) for part in get_args(annotation))
    parts = get_args(annotation) if get_origin(annotation) in _SEVERAL else (annotation,)
    return all(part is Outgoing or part is Ellipsis for part in parts)


def _names_a_record(annotation: Any) -> bool:
    return annotation is Outgoing or any(_names_a_record(part) for part in get_args(annotation))


def _partition(given: Any) -> TopicPartition | None:
    if not isinstance(given, tuple) or len(given) != 2:
        return None
    topic, number = given
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    return TopicPartition(check_topic(topic), number) if is_number else None


_PARTITION = Annotated[TopicPartition, Accepts("a TopicPartition", _partition)]


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a listener: topic names, a regular expression, or named partitions.

    Named partitions are read without a group's assignment.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Annotated[tuple[TopicPartition, ...], several(_PARTITION, "partitions such as ('orders', 0)")] = ()

    def __post_init__(self) -> None:
        convert_arguments(self)
        if sum(map(bool, (self.names, self.pattern, self.partitions))) != 1:
            raise ConfigurationError("a listener has topics, or a pattern, or partitions: one of the three")
        for topic in self.names:
            check_topic(topic)
        object.__setattr__(self, "names", tuple(dict.fromkeys(self.names)))  # librdkafka refuses duplicate topics
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ConfigurationError(
                    f"topics: the pattern {self.pattern!r} is not a regular expression: {error}"
                ) from None

    @classmethod
    def of(cls, topics: Any, partitions: Any = ()) -> Topics:
        """Create it from topic names, from a pattern (compiled, or a string that begins with ``^``), or partitions."""
        if isinstance(topics, Topics):
            return topics
        if isinstance(topics, re.Pattern):
            return cls(pattern=topics.pattern, partitions=partitions)
        if is_text(topics) and topics.startswith("^"):
            return cls(pattern=topics, partitions=partitions)
        names = () if topics is None else argument("topics", tuple[str, ...], topics)
        return cls(names, None, partitions)

    def covers(self, topic: str) -> bool:
        """Return whether a topic is one of these."""
        if self.pattern is not None:
            return re.match(self.pattern, topic) is not None
        return topic in self.names or any(tp.topic == topic for tp in self.partitions)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern}"
        return ", ".join(self.names or map(str, self.partitions))

    @property
    def read(self) -> set[str]:
        """The topics that are named; a pattern names none."""
        return {*self.names, *(tp.topic for tp in self.partitions)}

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer subscribes to; librdkafka treats a name that begins with ``^`` as a pattern."""
        if self.pattern is None:
            return list(self.names)
        return [self.pattern if self.pattern.startswith("^") else f"^{self.pattern}"]


_DEFAULT = ListenerSettings()
_EARLIEST = StartStrategy()
_FAIL = Fail()

Callback: TypeAlias = Callable[[list[TopicPartition]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSpec:
    """The settings of one listener, validated when it is created."""

    topics: Annotated[Topics, Accepts("topics", Topics.of)]
    group: Annotated[str, Accepts("the name of a group", check_group)]
    delivery: Delivery = _DEFAULT.delivery
    commit: CommitStrategy = _DEFAULT.commit
    start: Strategy = _EARLIEST
    batch: Bounds = _DEFAULT.batch
    buffer_bytes: ByteCount = _DEFAULT.buffer_bytes
    on_error: FailurePolicy = _FAIL
    protocol: GroupProtocol = _DEFAULT.protocol
    out_of_range: OutOfRange = _DEFAULT.out_of_range
    recreated: Recreated = _DEFAULT.recreated
    lag_guard: Guard | None = None
    mirror: bool = _DEFAULT.mirror
    threads: ThreadCount = _DEFAULT.threads
    workers: ThreadCount | None = None
    concurrency: Concurrency | None = None
    timeout: TimeLimit | None = None
    ordering: Ordering = Ordering.PARTITION
    session_timeout: SessionTimeout = _DEFAULT.session_timeout
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
                "before its records are handled: nothing waits for this commit, and after a crash the records would be "
                "handled again; use 'synchronous' or 'per-partition'"
            )
