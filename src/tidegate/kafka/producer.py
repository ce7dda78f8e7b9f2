"""The producer: sends records to topics and returns a handle for each. Also checks whether topics can lose records."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from inspect import signature
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self, TypeAlias, assert_never

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tidegate.core.arguments import Accepts, Seconds, argument, refuse_unknown
from tidegate.core.records import check_topic
from tidegate.errors import (
    ConfigurationError,
    ProducerClosed,
    ProducerError,
    RecordRejected,
    RegistryUnavailable,
    SendAgain,
    SerializationError,
)
from tidegate.kafka.codes import error_of, producer_error
from tidegate.kafka.config import ClientLog, opened, producer_config, safe_config
from tidegate.kafka.delivery import (
    Handle,
    Headers,
    Hooks,
    Interceptor,
    InterceptorsArgument,
    Outgoing,
    Reports,
    SendListener,
    SendListenersArgument,
    TrackedHandle,
    Undelivered,
    blamed,
    check_options,
)
from tidegate.kafka.partitioners import PartitionChoice, PartitionerChoice, Partitioning, chosen_partitioner
from tidegate.kafka.registry import RegistryGiven, open_registry
from tidegate.kafka.serializers import (
    NotSerializable,
    SchemaSerializer,
    Serializer,
    SerializerChoice,
    serializer,
)
from tidegate.kafka.transactions import KafkaTransaction, Transactions
from tidegate.observe.otel import TraceHeaders

__all__ = [
    "OnWeakTopic",
    "Producer",
    "TopicCheck",
    "TopicProducer",
    "WeakTopic",
    "Weakness",
    "topic_weaknesses",
    "weaknesses",
]


_log = logging.getLogger("tidegate")
_SECONDS = 10.0
_PRODUCERS = (
    "transactional.",
    "transaction.",
    "enable.idempotence",
    "statistics.",
    "stats_cb",
    "error_cb",
    "throttle_cb",
)


class OnWeakTopic(StrEnum):
    """What a safe producer does with a topic that can lose records."""

    REFUSE = "refuse"
    WARN = "warn"


class Weakness(NamedTuple):
    """A topic setting that can lose acknowledged records, or that stops writes when one broker is down."""

    setting: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.setting} is {self.value}: {self.reason}"


class WeakTopic(RecordRejected, ConfigurationError):
    """Raised by a safe producer for a topic whose settings can lose records (see :meth:`Producer.safe`)."""

    def __init__(self, topic: str, found: list[Weakness]) -> None:
        super().__init__(_said(topic, found))
        self.topic = topic
        self.weaknesses = tuple(found)


class TopicCheck:
    """Checks each topic once for weaknesses, and refuses it or logs a warning."""

    def __init__(self, config: Mapping[str, Any], on_weak: OnWeakTopic) -> None:
        self._config = {key: value for key, value in config.items() if not key.startswith(_PRODUCERS)}
        self._on_weak = on_weak
        self._admin: AdminClient | None = None
        self._checked: set[str] = set()

    def __call__(self, topic: str) -> None:
        """Raise :class:`WeakTopic` or log a warning, as configured, if the topic is weak."""
        if topic in self._checked:
            return
        if self._admin is None:
            self._admin = opened(AdminClient, self._config, "administration client")
        found = topic_weaknesses(self._admin, topic)
        if found:
            match self._on_weak:
                case OnWeakTopic.REFUSE:
                    raise WeakTopic(topic, found)
                case OnWeakTopic.WARN:
                    _log.warning("%s", _said(topic, found), extra={"topic": topic})
                case other:
                    assert_never(other)
        self._checked.add(topic)


def topic_weaknesses(admin: AdminClient, topic: str) -> list[Weakness]:
    """Return the weaknesses of a topic on the cluster; raises :class:`ProducerError` if the cluster does not answer."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_SECONDS)[topic].result(_SECONDS)
        settings = admin.describe_configs([resource], request_timeout=_SECONDS)[resource].result(_SECONDS)
    except KafkaException as exception:
        raise producer_error(f"{topic}: whether it is safe is not known", error_of(exception)) from None
    except TimeoutError:
        raise SendAgain(
            f"{topic}: whether it is safe is not known, the cluster did not answer for {_SECONDS:g} s; look if "
            "it can be reached"
        ) from None
    replicas = min((len(each.replicas) for each in described.partitions), default=0)
    in_sync = int(settings["min.insync.replicas"].value)
    return weaknesses(replicas, in_sync, unclean=settings["unclean.leader.election.enable"].value == "true")


def weaknesses(replicas: int, in_sync: int, *, unclean: bool) -> list[Weakness]:
    """Return the weaknesses of a topic with ``replicas`` replicas, of which ``in_sync`` have to be in sync."""
    found = []
    if in_sync < 2:
        reason = "a record may be acknowledged when one broker has it, and be lost with that; set it to 2 or more"
        found.append(Weakness("min.insync.replicas", str(in_sync), reason))
    if replicas <= in_sync or replicas < 2:
        least = max(in_sync, 2) + 1
        reason = f"with one broker away nothing can be written, or everything is lost; have {least} replicas or more"
        found.append(Weakness("replication factor", str(replicas), reason))
    if unclean:
        reason = "a replica that lacks acknowledged records may become the leader; set it to false"
        found.append(Weakness("unclean.leader.election.enable", "true", reason))
    return found


def _said(topic: str, found: list[Weakness]) -> str:
    return f"topic {topic} can lose records: " + "; ".join(map(str, found))


def _producer(given: Any) -> Any:
    return given if callable(getattr(given, "send", None)) and not isinstance(given, type) else None


_ProducerArgument: TypeAlias = Annotated[Any, Accepts("a Producer", _producer)]


class TopicProducer:
    """Sends to one topic through a :class:`Producer`."""

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
        """Send a record to the topic, as :meth:`Producer.send` does."""
        return self.producer.send(self.topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)


_ANY = -1  # the client's partitioner chooses
_NOW = 0  # the client uses the current time
_NOT_TAKEN = (BufferError, KafkaException, TypeError, ValueError, OverflowError)
_AFTERWARDS = 5.0  # seconds to wait for the delivery reports of records that were given up


class Producer:
    """Sends records to topics. It is thread-safe: create one per process and close it.

    ``kafka`` is the address of a broker, or any settings of librdkafka. The ``interceptors`` may change a record before
    it is serialized and partitioned; the ``listeners`` are called when a record was delivered or has failed. If the
    buffer is full, :meth:`send` waits up to ``max_block`` seconds. ``registry`` is the URL of the schema registry for
    serializers that need one. With ``traces``, a record that is sent inside an
    OpenTelemetry span gets the headers ``traceparent`` and ``tracestate`` of that span.
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
        traces: bool = False,
        registry: RegistryGiven | None = None,
    ) -> None:
        self._max_block = argument("max_block", Seconds, max_block)
        self._config, self._chosen = producer_config(kafka), chosen_partitioner(partitioner)
        schemas = open_registry(registry)
        self._key = serializer("key_serializer", key_serializer, schemas)
        self._value = serializer("value_serializer", value_serializer, schemas)
        self._as_it_is = value_serializer in (None, "bytes")  # bytes are sent without calling a serializer
        self._hooks = Hooks(
            argument("interceptors", InterceptorsArgument, interceptors),
            argument("listeners", SendListenersArgument, listeners),
        )
        self._trace = TraceHeaders() if argument("traces", bool, traces) else None
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
        """Create a producer that loses nothing and keeps the order: it is idempotent, waits for all in-sync replicas,
        and retries until ``message.timeout.ms`` is over.

        The topics must be safe as well: ``topics`` are checked now, others when they are first sent to. A weak topic
        is refused with :class:`WeakTopic`, or logged as a warning. The other ``options`` are those of the class.
        """
        refuse_unknown("a safe producer", options.keys(), signature(cls).parameters.keys() - {"kafka"})
        policy = argument("on_weak_topic", OnWeakTopic, on_weak_topic)
        named = argument("topics", tuple[str, ...], topics)
        config = safe_config(producer_config(kafka))
        producer = cls(config, **options)
        producer._check = TopicCheck(config, policy)
        try:
            for topic in named:
                producer._check(check_topic(topic))
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
        """Put a record into the buffer and return a handle, which gets the result.

        Raises a :class:`ProducerError` if the buffer does not accept the record: it cannot be serialized, it is too
        large, the buffer stays full, or the producer is closed or has failed. Later errors are reported by the handle.
        """
        if partition is not None or timestamp is not None or topic.__class__ is not str or not topic:
            check_options(topic, partition, timestamp)
        record = None
        if self._trace is not None:
            headers = self._trace(headers)
        if self._is_tracked or headers is not None:
            # Kept for hooks, and because a delivery report has no headers: a record that is given up is returned whole.
            record = self._hooks.on_send(Outgoing(topic, value, key, partition, headers, timestamp))
            topic, value, key, partition = record.topic, record.value, record.key, record.partition
            headers, timestamp = record.headers, record.timestamp
        try:
            if headers is not None:
                headers = _pairs(topic, headers)
            if self._check is not None:
                self._check(topic)
            if partition is None:
                partition = _ANY if self._choice is None else self._choice(topic, key, value)
            if value.__class__ is not bytes or not self._as_it_is:
                value = self._serialized(self._value, value, topic, "value")
            if key is not None:
                key = self._serialized(self._key, key, topic, "key")
            handle = Handle(self._reports) if record is None else TrackedHandle(self._reports, record, self._hooks)
            if timestamp is None:
                timestamp = _NOW
            try:
                self._produce(topic, value, key, partition, handle, None, timestamp, headers)
            except _NOT_TAKEN as exception:
                self._not_at_once(exception, topic, value, key, partition, handle, None, timestamp, headers)
        except ProducerError as error:
            if record is not None:
                self._hooks.failed(record, error)
            raise
        return handle

    def to(self, topic: str) -> TopicProducer:
        """Return a :class:`TopicProducer`, which sends to this topic."""
        return TopicProducer(self, topic)

    def transaction(self, timeout: float = 60.0) -> AbstractContextManager[KafkaTransaction]:
        """Return a context manager whose records become visible together or not at all to ``read_committed`` consumers.

        The transaction commits at the end of the block, and aborts if the block raises. The settings must contain a
        ``transactional.id``; an older producer with the same id is fenced. Blocks of several threads run one at a time.
        """
        if self._transactions is None:
            raise ConfigurationError(
                "the producer has no 'transactional.id'; give it one that no other running producer has, as in "
                "Producer({'bootstrap.servers': …, 'transactional.id': 'billing-1'})"
            )
        return self._transactions.block(argument("timeout", Seconds, timeout))

    def flush(self, timeout: float | None = None) -> int:
        """Wait up to ``timeout`` seconds until every record is delivered or given up; returns how many are neither."""
        return 0 if self._closed else self._reports.flush(argument("timeout", Seconds | None, timeout))

    def close(self, timeout: float = 60.0) -> list[Undelivered]:
        """Wait up to ``timeout`` seconds until every record is delivered; give up the others and return them."""
        timeout = argument("timeout", Seconds, timeout)
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
        """Return how many records are neither delivered nor given up."""
        return len(self._client)

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; raises the first error if a record was not delivered, unless the block itself raised."""
        if (rest := self.close()) and error is None:
            raise rest[0].error

    def _open(self) -> None:
        self._client = opened(Client, {"logger": ClientLog(), **self._config}, "producer")
        self._produce = self._client.produce
        chosen = self._chosen
        self._choice = None if chosen is None else PartitionChoice(self._client, chosen, self._max_block)
        self._reports = Reports(self._client)
        self._forgotten = weakref.finalize(self, _forgotten, self._client, self._reports)

    def _renewed(self) -> tuple[Client, Reports]:
        """Replace a client that has failed permanently; returns the new client and its delivery reports."""
        self._reports.refuse_to_wait("transaction()")
        with self._closing:
            if self._closed:
                _refuse()
            self._reports.end()
            self._forgotten.detach()
            self._open()
        return self._client, self._reports

    def _serialized(self, serialize: Serializer | SchemaSerializer, value: Any, topic: str, what: str) -> bytes | None:
        try:
            if isinstance(serialize, SchemaSerializer):
                return serialize.serialize(value, topic, what)
            serialized = serialize(value)
        except RegistryUnavailable as error:
            raise SendAgain(f"{topic}: the {what} of a record was not sent: {error}") from error
        except Exception as error:
            why = str(error) if isinstance(error, NotSerializable) else f"the serializer failed with {blamed(error)}"
            raise SerializationError(f"{topic}: the {what} of a record cannot be sent: {why}") from error
        if serialized is not None and not isinstance(serialized, bytes):
            kind = type(serialized).__name__
            raise SerializationError(f"{topic}: the serializer of {what}s returned {kind}; it must return bytes")
        return serialized

    def _not_at_once(self, exception: Exception, topic: str, *rest: Any) -> None:
        """Handle a record that the client refused: wait for room if the buffer is full, otherwise raise the reason."""
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


def _pairs(topic: str, headers: Headers) -> list[tuple[str, str | bytes | None]] | None:
    """Return headers in the form that the client takes; raise :class:`RecordRejected` for what it would take wrongly.

    It checks the types of values, but crashes on text that UTF-8 cannot encode, and cuts a name at a NUL character.
    """
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            continue  # the client says what it expects
        name, _ = pair
        if not isinstance(name, str) or "\0" in name:
            raise RecordRejected(f"{topic}: the header {name!a} cannot be sent: a name is text without NUL characters")
        for text in pair:
            if isinstance(text, str) and not _is_unicode(text):
                raise RecordRejected(f"{topic}: a header cannot be sent: UTF-8 cannot encode {text!a}")
    return pairs or None


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _refuse(*_: Any) -> None:
    raise ProducerClosed("the producer has been closed: nothing can be sent with it any more")


def _forgotten(client: Client, reports: Reports) -> None:
    reports.end_soon()
    if lost := len(client):
        _log.error("a producer was not closed: up to %d records were not delivered; call close()", lost)
