"""Delivery of sent records: their handles, the client's delivery reports, interceptors, listeners and metrics."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as Client

from tidegate.core.arguments import Accepts, described
from tidegate.errors import BufferFull, ConfigurationError, InvalidArgument, ProducerError
from tidegate.kafka.codes import producer_error

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = [
    "Delivered",
    "Handle",
    "Headers",
    "Hooks",
    "Interceptor",
    "InterceptorsArgument",
    "Outgoing",
    "ProducerMetrics",
    "Reports",
    "SendListener",
    "SendListenersArgument",
    "TrackedHandle",
    "Undelivered",
    "blamed",
    "check_options",
]


def blamed(error: BaseException) -> str:
    """Return the type of an error and the line that raised it; never its message, which may quote data."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


_LAST_PARTITION = 2**31 - 1
_LAST_TIMESTAMP = 2**63 - 1

Headers: TypeAlias = "Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to send, with key and value before serialization.

    Without a ``partition``, the partitioner chooses one. ``timestamp`` is in milliseconds; the default is now.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Headers | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        if self.partition is None and self.timestamp is None and self.topic.__class__ is str and self.topic:
            if self.headers is None:  # the common case; this runs for every record
                return
        else:
            check_options(self.topic, self.partition, self.timestamp)
        if isinstance(self.headers, (str, bytes)) or not isinstance(self.headers, Iterable | None):
            raise InvalidArgument(f"headers: expected a mapping or pairs, not {described(self.headers)}")


def check_options(topic: str, partition: int | None, timestamp: int | None) -> None:
    """Raise an :class:`InvalidArgument` for an invalid option. It runs for every record, so it must be fast."""
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
    """Where a delivered record is in the log. With ``acks=0`` the broker does not report an offset.

    ``seconds`` is the time from sending to acknowledgement; only interceptors and listeners get it.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None
    seconds: float | None = None


class Undelivered(NamedTuple):
    """A record that was given up, with key and value as bytes, and the error.

    ``is_unknown``: it was sent to a broker that did not answer, so it may be in the log.
    """

    record: Outgoing
    error: ProducerError
    is_unknown: bool


_log = logging.getLogger("tidegate")
_lock = threading.Lock()
"""One lock for all handles. Only handles with a callback or a waiting thread take it, so contention is rare."""


class Handle:
    """The result of sending one record, now or later.

    Every record has one, so it is small: the objects for waiting are created only when a thread waits.
    """

    __slots__ = ("_outcome", "_reports", "_waiting")

    def __init__(self, reports: Reports) -> None:
        self._outcome: Any = None  # a tuple, or an error
        self._waiting: list[Callable[[Handle], object]] | None = None
        self._reports = reports

    @property
    def done(self) -> bool:
        """Whether the record was delivered or given up."""
        return self._outcome is not None

    @property
    def error(self) -> ProducerError | None:
        """Why the record was given up; ``None`` if it was delivered or is still under way."""
        return self._outcome if isinstance(self._outcome, ProducerError) else None

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait until the record is delivered, and return where.

        Raises a :class:`ProducerError` if it was given up, or :class:`TimeoutError` after ``timeout`` seconds.
        Callbacks cannot wait: they run on the thread that would have to deliver the result.
        """
        if self._outcome is None:
            self._wait(timeout)
        if isinstance(self._outcome, ProducerError):
            raise self._outcome
        return Delivered(*self._outcome)

    def add_callback(self, callback: Callable[[Handle], object]) -> None:
        """Call ``callback`` with this handle once it is done.

        The callback runs on the thread that serves delivery reports, so it must be fast. If the handle is done already,
        the callback runs at once on this thread. An exception in it is logged.
        """
        with _lock:
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(callback)
        if self._outcome is not None:
            self._call_back()

    def __call__(self, error: Any, message: Any) -> None:
        """Take the client's delivery report."""
        if error is None:
            self._outcome = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        else:
            self._outcome = self._reports.given_up(error, message)
        if self._waiting is not None:
            self._call_back()

    def _call_back(self) -> None:
        with _lock:  # the delivery report or a late add_callback(): the first one takes all callbacks
            waiting, self._waiting = self._waiting, None
        for callback in waiting or ():
            try:
                callback(self)
            except Exception as error:
                _log.error("a callback of a record that was sent failed with %s", blamed(error))

    def _wait(self, timeout: float | None) -> None:
        self._reports.refuse_to_wait("result()")
        event = threading.Event()
        self.add_callback(lambda _: event.set())
        if not event.wait(timeout):
            raise TimeoutError(f"nothing is known of the record after {timeout} s; it may still be delivered")


class TrackedHandle(Handle):
    """A handle that keeps its record, to pass it to interceptors and listeners."""

    __slots__ = ("_hooks", "_record")

    def __init__(self, reports: Reports, record: Outgoing, hooks: Hooks) -> None:
        super().__init__(reports)
        self._record = record
        self._hooks = hooks

    def __call__(self, error: Any, message: Any) -> None:
        """Take the client's delivery report."""
        outcome: Any
        if error is None:
            delivered = Delivered(message.topic(), message.partition(), message.offset(), message.timestamp()[1])
            outcome = tuple(delivered)[:-1]
            self._hooks.delivered(self._record, delivered._replace(seconds=message.latency()))
        else:
            outcome = self._reports.given_up(error, message, self._record)
            self._hooks.failed(self._record, outcome)
        self._outcome = outcome
        if self._waiting is not None:
            self._call_back()


class Interceptor:
    """Base class for hooks that see, and may change, every record before serialization, and then its result.

    Override the methods you need. An exception in an interceptor is logged and does not stop the send.
    """

    def on_send(self, record: Outgoing) -> Outgoing:
        """Return the record to send instead. Called on the sending thread, in the order of the interceptors."""
        return record

    def on_acknowledgement(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        """Handle the result: either ``delivered`` or ``error`` is set. Called before listeners and callbacks."""

    def close(self) -> None:
        """Release resources; called when the producer has been closed."""


class SendListener:
    """Base class for hooks that get the result of every record, after interceptors and before callbacks.

    Override the methods you need.
    """

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """Handle a record that was delivered."""

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """Handle a record that the buffer did not accept or that was given up."""


def _all(*methods: str) -> Callable[[Any], tuple[Any, ...] | None]:
    """Return a converter that accepts one or several objects with these methods; classes are refused."""

    def convert(given: Any) -> tuple[Any, ...] | None:
        found = tuple(given) if isinstance(given, Iterable) else (given,)
        fit = all(
            not isinstance(each, type) and all(callable(getattr(each, name, None)) for name in methods)
            for each in found
        )
        return found if fit else None

    return convert


InterceptorsArgument: TypeAlias = Annotated[
    tuple[Interceptor, ...], Accepts("Interceptors", _all("on_send", "on_acknowledgement", "close"))
]
"""The type of an argument that takes interceptors."""

SendListenersArgument: TypeAlias = Annotated[
    tuple[SendListener, ...], Accepts("SendListeners", _all("on_success", "on_error"))
]
"""The type of an argument that takes send listeners."""


class Hooks:
    """Calls the interceptors and listeners of a producer, in the order given. Their exceptions are logged."""

    def __init__(self, interceptors: Iterable[Interceptor] = (), listeners: Iterable[SendListener] = ()) -> None:
        self._interceptors = tuple(interceptors)
        self._listeners = tuple(listeners)

    def __bool__(self) -> bool:
        return bool(self._interceptors or self._listeners)

    def on_send(self, record: Outgoing) -> Outgoing:
        """Pass the record through all interceptors and return the result; an interceptor that fails is skipped."""
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_send(record)
                if not isinstance(changed, Outgoing):
                    raise TypeError
            except Exception as error:
                self._complain(interceptor, "on_send", record, error)
            else:
                record = changed
        return record

    def delivered(self, record: Outgoing, delivered: Delivered) -> None:
        """Report a delivered record."""
        self._acknowledge(record, delivered, None)
        for listener in self._listeners:
            self._call(listener, "on_success", record, delivered)

    def failed(self, record: Outgoing, error: ProducerError) -> None:
        """Report a record that the buffer did not accept or that was given up."""
        self._acknowledge(record, None, error)
        for listener in self._listeners:
            self._call(listener, "on_error", record, error)

    def close(self) -> None:
        """Close the interceptors."""
        for interceptor in self._interceptors:
            try:
                interceptor.close()
            except Exception as error:
                _log.error("%s.close() failed with %s", type(interceptor).__name__, blamed(error))

    def _acknowledge(self, record: Outgoing, delivered: Delivered | None, error: ProducerError | None) -> None:
        for interceptor in self._interceptors:
            self._call(interceptor, "on_acknowledgement", record, delivered, error)

    def _call(self, whom: object, method: str, record: Outgoing, *arguments: object) -> None:
        try:
            getattr(whom, method)(record, *arguments)
        except Exception as error:
            self._complain(whom, method, record, error)

    @staticmethod
    def _complain(whom: object, method: str, record: Outgoing, error: Exception) -> None:
        _log.error(
            "%s.%s() failed with %s for a record of topic %s, which is not disturbed by that",
            type(whom).__name__,
            method,
            blamed(error),
            record.topic,
            extra={"topic": record.topic, "partition": record.partition},
        )


_TURN = 0.05  # seconds that one turn of the thread waits for reports


class Reports:
    """Serves the delivery reports of one client, in order, on a thread of its own."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._turned = threading.Condition()
        self._waiting = 0  # threads to be notified after every turn
        self._flushing = 0
        self._ended = False
        self._given_up: list[Undelivered] | None = None
        self._fatal: KafkaError | None = None
        self._thread = threading.Thread(target=self._serve, name="tidegate-delivery-reports", daemon=True)
        self._thread.start()

    def flush(self, timeout: float | None) -> int:
        """Wait up to ``timeout`` seconds until every record is delivered or given up; returns how many are neither."""
        self.refuse_to_wait("flush()")
        with self._turned:
            self._flushing += 1
            self._waiting += 1
            try:
                self._turned.wait_for(lambda: len(self._client) == 0, timeout)
            finally:
                self._flushing -= 1
                self._waiting -= 1
            return len(self._client)

    def once_there_is_room(self, produce: Callable[[], None], seconds: float) -> None:
        """Produce as soon as the buffer has room; raises :class:`BufferFull` after ``seconds``."""
        if self._thread is threading.current_thread():  # in a callback: only this thread can make room, so do not wait
            seconds = 0
        deadline = time.monotonic() + seconds
        with self._turned:
            self._waiting += 1
            try:
                while (left := deadline - time.monotonic()) > 0:
                    self._turned.wait(left)
                    try:
                        return produce()
                    except BufferError:
                        continue
            finally:
                self._waiting -= 1
        raise BufferFull(
            f"the buffer of the producer stayed full for {seconds:g} s: about {len(self._client)} records wait for a "
            "broker. Send less, wait longer ('max_block'), or raise 'queue.buffering.max.messages' and '.max.kbytes'",
            "_QUEUE_FULL",
        )

    def give_up(self, timeout: float) -> list[Undelivered]:
        """Drop every undelivered record and return them; waits up to ``timeout`` seconds for their reports."""
        self._given_up = []
        self._client.purge()
        self.flush(timeout)
        given_up, self._given_up = self._given_up, None
        return given_up

    def given_up(self, error: KafkaError, message: Any, record: Outgoing | None = None) -> ProducerError:
        """Return the error for a record that the client has given up; the record's handle calls this."""
        topic, partition = message.topic(), message.partition()
        where = topic if partition is None or partition < 0 else f"{topic}[{partition}]"
        ours = producer_error(f"{where}: the record was not delivered", error)
        if self._given_up is not None:
            when = None if record is None else record.timestamp
            headers = None if record is None else record.headers
            asked = partition if record is None else record.partition
            whole = Outgoing(topic, message.value(), message.key(), asked, headers, when)
            self._given_up.append(Undelivered(whole, ours, error.code() == KafkaError._PURGE_INFLIGHT))
        return ours

    def note(self, error: KafkaError) -> None:
        """Remember the error if it is fatal: the reason why the client has failed permanently."""
        if error.fatal():
            self._fatal = error

    def behind(self, error: KafkaError) -> KafkaError:
        """Return the original reason if ``error`` only says that the client has failed permanently."""
        return self._fatal if error.code() == KafkaError._FATAL and self._fatal is not None else error

    def refuse_to_wait(self, what: str) -> None:
        """Raise on the thread that serves reports: it would wait for itself."""
        if self._thread is threading.current_thread():
            raise RuntimeError(f"{what} waits for delivery reports, and this callback is one: it would wait for ever")

    def end(self) -> None:
        """Stop the thread, and drop records that were sent meanwhile."""
        self.end_soon()
        self._thread.join()
        for _ in range(2):  # a failed client raises its fatal error in the first turn
            if len(self._client):  # another thread was still sending
                self._client.purge()
                self._turn(self._client.flush)

    def end_soon(self) -> None:
        """Let the thread stop after its current turn."""
        self._ended = True

    def _serve(self) -> None:
        client = self._client
        while not self._ended:
            self._turn(client.flush if self._flushing else client.poll)  # flush does not wait for linger.ms
            if self._waiting:
                with self._turned:
                    self._turned.notify_all()

    def _turn(self, serve: Callable[[float], object]) -> None:
        try:
            serve(_TURN)
        except KafkaException as failed:  # the client has failed permanently; it reports that once, here
            self.note(failed.args[0])
        except Exception as error:
            _log.error("a callback in the settings of the Kafka client failed with %s", blamed(error))


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class ProducerMetrics(SendListener):
    """Send listener with Prometheus metrics: records delivered, send errors, and the duration of deliveries.

    One instance can serve several producers. A registry accepts one instance only: for a second one, prometheus_client
    raises ``ValueError``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY, Counter, Histogram  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "metrics need prometheus_client, which is not installed; run: pip install 'tidegate[metrics]'"
            ) from None
        where = REGISTRY if registry is None else registry
        self._delivered = Counter("tidegate_records_delivered", "Records delivered", ("topic",), registry=where)
        self._errors = Counter(
            "tidegate_send_errors", "Records not taken, or given up", ("topic", "kind"), registry=where
        )
        self._seconds = Histogram(
            "tidegate_delivery_seconds",
            "Time from sending a record to its acknowledgement",
            ("topic",),
            buckets=_BUCKETS,
            registry=where,
        )

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """Count a delivered record and the duration of its delivery."""
        self._delivered.labels(record.topic).inc()
        if delivered.seconds is not None:
            self._seconds.labels(record.topic).observe(delivered.seconds)

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """Count an error, by topic and type."""
        self._errors.labels(record.topic, type(error).__name__).inc()
