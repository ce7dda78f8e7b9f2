"""Records on their way to Kafka, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from tidegate.core.arguments import described
from tidegate.kafka.errors import InvalidArgument

if TYPE_CHECKING:
    from tidegate.kafka.errors import ProducerError

__all__ = ["Delivered", "Headers", "Outgoing", "Undelivered", "check_options"]

_LAST_PARTITION = 2**31 - 1
_LAST_TIMESTAMP = 2**63 - 1

Headers: TypeAlias = "Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be sent: key and value as the user has them, before they are serialized.

    Without a ``partition`` the partitioner chooses one; without a ``timestamp``, in milliseconds, it is now.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Headers | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        if self.partition is None and self.timestamp is None and self.topic.__class__ is str and self.topic:
            if self.headers is None:  # as most are: this is run for every record
                return
        else:
            check_options(self.topic, self.partition, self.timestamp)
        if isinstance(self.headers, (str, bytes)) or not isinstance(self.headers, Iterable | None):
            raise InvalidArgument(f"headers: expected a mapping or pairs, not {described(self.headers)}")


def check_options(topic: str, partition: int | None, timestamp: int | None) -> None:
    """Raise a :class:`InvalidArgument` for what cannot be sent; called for every record, so it is quick."""
    if topic.__class__ is not str or not topic:
        raise InvalidArgument(f"topic: expected the name of a topic, not {described(topic) if topic else 'nothing'}")
    if partition is not None and not _is_amount(partition, _LAST_PARTITION):
        raise InvalidArgument(
            f"partition: expected a number from 0 to {_LAST_PARTITION}, or None, not {_shown(partition)}"
        )
    if timestamp is not None and not _is_amount(timestamp, _LAST_TIMESTAMP):
        raise InvalidArgument(f"timestamp: expected milliseconds since 1970, or None, not {_shown(timestamp)}")


def _is_amount(given: object, most: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= most


def _shown(given: object) -> str:
    return "one beyond that" if isinstance(given, int) and not isinstance(given, bool) else described(given)


class Delivered(NamedTuple):
    """Where a record is in the log. With ``acks=0`` nobody says at which offset.

    Interceptors and listeners are also told the ``seconds`` from sending it to its acknowledgement.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None
    seconds: float | None = None


class Undelivered(NamedTuple):
    """A record that was given up, key and value as bytes, and why.

    ``is_unknown``: it had been handed to a broker that did not answer, so it may be in the log all the same.
    """

    record: Outgoing
    error: ProducerError
    is_unknown: bool
