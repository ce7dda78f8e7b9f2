"""A producer: records to topics, with a handle for each."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from tidegate.core.errors import ConfigurationError
from tidegate.core.partitioners import PartitionerChoice, Partitioning
from tidegate.kafka.blame import blamed
from tidegate.kafka.client import open_client
from tidegate.kafka.errors import (
    ProducerClosed,
    ProducerError,
    RecordRejected,
    SerializationError,
    error_of,
    producer_error,
)
from tidegate.kafka.handle import Handle, TrackedHandle
from tidegate.kafka.hooks import Hooks, Interceptor, SendListener
from tidegate.kafka.log import ClientLog
from tidegate.kafka.outgoing import Headers, Outgoing, Undelivered
from tidegate.kafka.partition_choice import PartitionChoice, chosen_partitioner
from tidegate.kafka.producer_config import producer_config, safe_config
from tidegate.kafka.reports import Reports
from tidegate.kafka.serializers import NotSerializable, Serializer, SerializerChoice, serializer
from tidegate.kafka.topic_check import OnWeakTopic, TopicCheck
from tidegate.kafka.topic_producer import TopicProducer
from tidegate.kafka.transactions import KafkaTransaction, Transactions

__all__ = ["Producer"]

_log = logging.getLogger("tidegate")
_ANY = -1  # the client's partitioner chooses
_NOW = 0  # the client's clock says when
_NOT_TAKEN = (BufferError, KafkaException, TypeError, ValueError, OverflowError)
_AFTERWARDS = 5.0  # seconds for the reports of what was given up


class Producer:
    """Sends records to topics. Thread-safe; one for a whole program is enough, and is to be closed.

    ``kafka`` is the address of a broker, or any settings of librdkafka. What the chain of ``interceptors`` makes of a
    record is serialized and partitioned; ``listeners`` hear how every record ended. If the buffer is full,
    :meth:`send` waits for ``max_block`` seconds.
    """

    _client: Client
    _produce: Callable[..., None]
    _reports: Reports
    _choice: PartitionChoice | None
    _forgotten: weakref.finalize[..., Any]

    def __init__(
        self,
        kafka: str | Mapping[str, Any],
        *,
        key_serializer: SerializerChoice = None,
        value_serializer: SerializerChoice = None,
        partitioner: PartitionerChoice = Partitioning.MURMUR2,
        interceptors: Iterable[Interceptor] = (),
        listeners: Iterable[SendListener] = (),
        max_block: float = 60.0,
    ) -> None:
        if max_block < 0:
            raise ConfigurationError(f"'max_block' is a number of seconds, and not {max_block:g}")
        self._config, self._chosen = producer_config(kafka), chosen_partitioner(partitioner)
        self._key = serializer(key_serializer)
        self._value = serializer(value_serializer)
        self._as_it_is = value_serializer in (None, "bytes")  # bytes need no serializer
        self._hooks = Hooks(interceptors, listeners)
        self._max_block = max_block
        self._check: TopicCheck | None = None
        self._is_tracked = bool(self._hooks)
        self._closing = threading.Lock()
        self._closed = False
        self._open()
        self._transactions: Transactions | None = None
        if "transactional.id" in self._config:
            self._transactions = Transactions(self._client, self._reports, self._renewed)

    @classmethod
    def safe(
        cls,
        kafka: str | Mapping[str, Any],
        *,
        topics: Iterable[str] = (),
        on_weak_topic: OnWeakTopic | str = OnWeakTopic.REFUSE,
        **options: Any,
    ) -> Self:
        """A producer that loses nothing: idempotent, acknowledged by all replicas in sync, retried until
        ``message.timeout.ms`` is over, in order.

        That takes topics that can hold it: ``topics`` are checked now, others when something is first sent to them.
        One that is too weak is refused with :class:`WeakTopic`, or warned of in the log. The other ``options`` are
        those of the class.
        """
        config = safe_config(producer_config(kafka))
        producer = cls(config, **options)
        producer._check = TopicCheck(config, OnWeakTopic(on_weak_topic))
        try:
            for topic in topics:
                producer._check(topic)
        except BaseException:
            producer.close(0)
            raise
        return producer

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> Handle:
        """Put a record into the buffer; the handle tells what becomes of it.

        Raises a :class:`ProducerError` if the record was not taken: it cannot be serialized, it is too large, the
        buffer stayed full, the producer is closed or has failed. From then on everything is told by the handle.
        """
        if self._is_tracked or headers is not None:
            return self._send_tracked(Outgoing(topic, value, key, partition, headers, timestamp))
        if self._check is not None:
            self._check(topic)
        if partition is None:
            partition = _ANY if self._choice is None else self._choice(topic, key, value)
        if value.__class__ is not bytes or not self._as_it_is:
            value = self._serialized(self._value, value, topic, "value")
        if key is not None:
            key = self._serialized(self._key, key, topic, "key")
        handle = Handle(self._reports)
        if timestamp is None:
            timestamp = _NOW
        try:
            self._produce(topic, value, key, partition, handle, None, timestamp)
        except _NOT_TAKEN as exception:
            self._not_at_once(exception, topic, value, key, partition, handle, None, timestamp)
        return handle

    def to(self, topic: str) -> TopicProducer:
        """A producer for one topic, which need not be named again."""
        return TopicProducer(self, topic)

    def transaction(self, timeout: float = 60.0) -> AbstractContextManager[KafkaTransaction]:
        """A block whose records are seen together or not at all by those who read ``read_committed``.

        It is committed at its end, and aborted if it raises. ``transactional.id`` has to be among the settings; an
        older producer with the same id is fenced off. Blocks of several threads go one after the other.
        """
        if self._transactions is None:
            raise ConfigurationError(
                "the producer has no 'transactional.id'; give it one that no other running producer has, as in "
                "Producer({'bootstrap.servers': …, 'transactional.id': 'billing-1'})"
            )
        return self._transactions.block(timeout)

    def flush(self, timeout: float | None = None) -> int:
        """Wait until every record is delivered or given up, at most ``timeout`` seconds; how many are neither."""
        return 0 if self._closed else self._reports.flush(timeout)

    def close(self, timeout: float = 60.0) -> list[Undelivered]:
        """Wait until everything is delivered, at most ``timeout`` seconds, and give up the rest, which is returned."""
        self._reports.refuse_to_wait("close()")
        with self._closing:
            if self._closed:
                return []
            self._closed = True
            self._produce = _refuse
        if self._transactions is not None:
            self._transactions.abandon(timeout)
        rest = self._reports.give_up(_AFTERWARDS) if self._reports.flush(timeout) else []
        self._reports.end()
        self._forgotten.detach()
        self._hooks.close()
        return rest

    def __len__(self) -> int:
        """How many records are neither delivered nor given up."""
        return len(self._client)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; raises the first error if something was not delivered, unless the block has raised itself."""
        if (rest := self.close()) and error is None:
            raise rest[0].error

    def _open(self) -> None:
        self._client = open_client(Client, {"logger": ClientLog(), **self._config}, "producer")
        self._produce = self._client.produce
        chosen = self._chosen
        self._choice = None if chosen is None else PartitionChoice(self._client, chosen, self._max_block)
        self._reports = Reports(self._client)
        self._forgotten = weakref.finalize(self, _forgotten, self._client, self._reports)

    def _renewed(self) -> tuple[Client, Reports]:
        """Another client in place of one that has failed for good, and what serves its reports."""
        self._reports.refuse_to_wait("transaction()")
        with self._closing:
            if self._closed:
                _refuse()
            self._reports.end()
            self._forgotten.detach()
            self._open()
        return self._client, self._reports

    def _send_tracked(self, record: Outgoing) -> Handle:
        record = self._hooks.on_send(record)
        topic, partition = record.topic, record.partition
        try:
            if self._check is not None:
                self._check(topic)
            if partition is None and self._choice is not None:
                partition = self._choice(topic, record.key, record.value)
            value = self._serialized(self._value, record.value, topic, "value")
            key = None if record.key is None else self._serialized(self._key, record.key, topic, "key")
            headers = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
            handle = TrackedHandle(self._reports, record, self._hooks)
            rest: tuple[Any, ...] = (_ANY if partition is None else partition, handle, None, record.timestamp or _NOW)
            rest = (value, key, *rest, *([list(headers)] if headers else []))
            try:
                self._produce(topic, *rest)
            except _NOT_TAKEN as exception:
                self._not_at_once(exception, topic, *rest)
        except ProducerError as error:
            self._hooks.failed(record, error)
            raise
        return handle

    def _serialized(self, serialize: Serializer, value: Any, topic: str, what: str) -> bytes | None:
        try:
            serialized = serialize(value)
        except Exception as error:
            said = str(error) if isinstance(error, NotSerializable) else f"the serializer failed with {blamed(error)}"
            raise SerializationError(f"{topic}: the {what} of a record cannot be sent: {said}") from error
        if serialized is not None and not isinstance(serialized, bytes):
            kind = type(serialized).__name__
            raise SerializationError(f"{topic}: the serializer of {what}s made {kind}, and has to make bytes")
        return serialized

    def _not_at_once(self, exception: Exception, topic: str, *rest: Any) -> None:
        """The client did not take the record: wait for room if that is all, or else say why."""
        if isinstance(exception, BufferError):
            try:
                return self._reports.once_there_is_room(lambda: self._produce(topic, *rest), self._max_block)
            except KafkaException as other:
                exception = other
        if not isinstance(exception, KafkaException):
            raise RecordRejected(f"{topic}: the client does not take such a record: {exception}") from exception
        error = error_of(exception)
        if error.code() == KafkaError._STATE and self._transactions is not None:
            raise RecordRejected(
                f"{topic}: a producer with a 'transactional.id' sends inside of a transaction only: "
                "with producer.transaction(): …",
                error.name(),
            ) from None
        raise producer_error(f"{topic}: the record was not taken", self._reports.behind(error)) from None


def _refuse(*_: Any) -> None:
    raise ProducerClosed("the producer has been closed: nothing can be sent with it any more")


def _forgotten(client: Client, reports: Reports) -> None:
    reports.end_soon()
    if lost := len(client):
        _log.error("a producer was not closed: up to %d records were not delivered; call close()", lost)
