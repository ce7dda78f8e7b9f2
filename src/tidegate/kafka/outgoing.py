"""Records on their way to Kafka, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from tidegate.kafka.errors import ProducerError

__all__ = ["Delivered", "Headers", "Outgoing", "Undelivered"]

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
