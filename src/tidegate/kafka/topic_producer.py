"""A producer for one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from tidegate.core.arguments import Kind, argument
from tidegate.core.names import check_topic
from tidegate.kafka.outgoing import Headers

if TYPE_CHECKING:
    from tidegate.kafka.handle import Handle
    from tidegate.kafka.producer import Producer

__all__ = ["TopicProducer"]


def _producer(given: Any) -> Any:
    return given if callable(getattr(given, "send", None)) and not isinstance(given, type) else None


_ProducerArgument: TypeAlias = Annotated[Any, Kind("a Producer", _producer)]


class TopicProducer:
    """Sends to one topic, through the producer that it was made by."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer: Producer = argument("producer", _ProducerArgument, producer)
        self.topic = check_topic(topic)

    def send(
        self,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> Handle:
        """See :meth:`Producer.send`."""
        return self.producer.send(self.topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)
