"""An application: listeners, and the Kafka and the ledger that they share."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import URL, Engine

from tidegate.app.binding import Binding, bind
from tidegate.app.handling import Handling
from tidegate.app.member import Member
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.delivery import Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import DeadLetter, FailurePolicy, Retry
from tidegate.kafka.admin import Admin
from tidegate.kafka.config import admin_config, consumer_config
from tidegate.kafka.positions import KafkaPositions
from tidegate.kafka.source import Source
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.observe.observer import Observer, Observers
from tidegate.settings import Settings, refuse_unsafe

if TYPE_CHECKING:
    import redis

__all__ = ["App", "Listener"]

_log = logging.getLogger("tidegate")
F = TypeVar("F", bound=Callable[..., Any])


class Unset(Enum):
    """That something was not said, which is not the same as ``None``."""

    UNSET = "unset"


class Listener:
    """A function bound to topics, and how it is run."""

    def __init__(self, function: Callable[..., Any], spec: ListenerSpec, handling: Handling) -> None:
        self.function = function
        self.spec = spec
        self.handling = handling


class App:
    """Listeners that share a Kafka cluster and a ledger.

    ``kafka`` is the address of a broker, or any settings of librdkafka; ``ledger`` a URL, a SQLAlchemy engine, a Redis
    client, a ledger that is open already, or ``None``: then positions are kept in Kafka, and exactly-once is not to be
    had.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any] | None = None,
        ledger: str | URL | Engine | redis.Redis | Ledger[Any] | Unset | None = Unset.UNSET,
        *,
        settings: Settings | str | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """What is not given here comes from ``settings``: an object, a file, or what :meth:`Settings.load` finds."""
        self.settings = settings if isinstance(settings, Settings) else Settings.load(settings)
        self.kafka: dict[str, Any] = self.settings.kafka.configuration()
        if kafka is not None:
            self.kafka |= {"bootstrap.servers": kafka} if isinstance(kafka, str) else kafka
        refuse_unsafe(self.kafka)
        if "bootstrap.servers" not in self.kafka:
            raise ConfigurationError("no broker is named; pass kafka='host:9092', or set it in tidegate.toml")
        self.ledger, self._owns_ledger = self._opened(ledger)
        self.observers = Observers(observers)
        self.listeners: list[Listener] = []
        self._members: list[Member] = []
        self._stopping = threading.Event()

    def _opened(self, ledger: Any) -> tuple[Ledger[Any] | None, bool]:
        """The ledger, and whether it is ours to close."""
        if isinstance(ledger, Ledger):
            return ledger, False
        said = self.settings.ledger
        where = said.url if ledger is Unset.UNSET else ledger
        if where is None:
            return None, False
        limits = Limits(said.limits.hold, said.limits.lock_wait, said.limits.attempts)
        return open_ledger(where, prefix=said.prefix, limits=limits), True

    def listener(
        self,
        topics: str | Sequence[str] | re.Pattern[str] | None = None,
        *,
        group: str,
        partitions: Iterable[TopicPartition] = (),
        decoder: Any = None,
        **settings: Any,
    ) -> Callable[[F], F]:
        """Bind a function to topics, to those that match a regular expression, or to named ``partitions``.

        ``decoder`` makes values of records (``"json"``, ``"text"``, ``"bytes"`` or a function of the record); the other
        ``settings`` are those of :class:`~tidegate.app.spec.ListenerSpec`. What cannot be bound is refused here.
        """
        subscription = _topics(topics, partitions)

        def register(function: F) -> F:
            unknown = settings.keys() - ListenerSpec.__dataclass_fields__.keys()
            if unknown:
                known = ", ".join(sorted(ListenerSpec.__dataclass_fields__.keys() - {"topics", "group"}))
                raise ConfigurationError(f"a listener has no setting {', '.join(sorted(unknown))}; it has {known}")
            defaults = self.settings.listener.defaults()
            spec = ListenerSpec(topics=subscription, group=group, **{**defaults, **settings})
            bound = bind(function, decoder)
            if self.ledger is None:
                _refuse_without_ledger(spec, bound)
            else:
                _refuse_long_waits(spec.on_error, self.ledger.limits)
            handling = Handling(bound, spec.on_error)
            self.listeners.append(Listener(function, spec, handling))
            return function

        return register

    def run(self, *, until_caught_up: bool = False) -> int:
        """Run every listener until SIGTERM or SIGINT, until all have caught up, or until one fails, which is raised.

        The first signal finishes the transactions under way, releases and leaves; a second one stops at once.
        """
        if not self.listeners:
            raise ConfigurationError("the app has no listener; decorate a function with @app.listener(topics, group=…)")
        if self.ledger is not None:
            self.ledger.create()
        failures: list[Exception] = []
        self._members = [
            self._member(listener, until_caught_up) for listener in self.listeners for _ in range(listener.spec.threads)
        ]
        threads = [
            threading.Thread(target=self._run, args=(member, failures), name=f"tidegate-member-{number}")
            for number, member in enumerate(self._members)
        ]
        with _Signals(self.stop):
            for thread in threads:
                thread.start()
            if self._stopping.is_set():
                self.stop()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        if self._owns_ledger and self.ledger is not None:
            self.ledger.close()
        if failures:
            raise failures[0]
        return 0

    def stop(self) -> None:
        """Stop every listener: each finishes its transaction, commits, releases and leaves its group."""
        self._stopping.set()
        for member in self._members:
            member.stop()

    def _run(self, member: Member, failures: list[Exception]) -> None:
        try:
            member.run()
        except Exception as error:
            failures.append(error)
            self.stop()

    def _member(self, listener: Listener, until_caught_up: bool) -> Member:
        spec = listener.spec
        kafka = {**self.kafka, **spec.kafka}
        config = consumer_config(kafka, spec.group, spec.protocol, spec.session_timeout)

        def handle(records: list[Record], tx: Any) -> Any:
            return listener.handling.run(records, tx)

        ledger = KafkaPositions(spec.commit) if self.ledger is None else self.ledger
        member = Member(
            spec,
            ledger,
            Admin(admin_config(kafka)),
            partial(Source, config, incremental=spec.protocol.is_incremental),
            handle=handle,
            tell=self.observers,
            until_caught_up=until_caught_up,
        )
        if isinstance(ledger, KafkaPositions):
            ledger.attach(member.source)
        return member


class _Signals:
    """SIGTERM and SIGINT stop; a second one kills, as if nobody had been listening."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on) for number in (signal.SIGTERM, signal.SIGINT)}

    def _on(self, number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        _log.info("stopping on %s: finishing what is under way; once more to stop at once", signal.Signals(number).name)
        self._stop()

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def _refuse_without_ledger(spec: ListenerSpec, bound: Binding) -> None:
    """Kafka's own offsets can hold positions, and nothing else."""
    if spec.delivery is Delivery.EXACTLY_ONCE:
        raise ConfigurationError(
            "exactly-once needs a ledger: Kafka's own offsets and a database cannot commit together. Give the app a "
            "ledger, or ask for delivery=Delivery.AT_LEAST_ONCE or AT_MOST_ONCE"
        )
    if bound.wants_transaction:
        raise ConfigurationError(f"{bound.name} asks for a transaction, and without a ledger there is none")
    policy = spec.on_error
    while isinstance(policy, Retry):
        policy = policy.then
    if isinstance(policy, DeadLetter):
        raise ConfigurationError(f"{bound.name}: dead letters are kept in the ledger, and the app has none")


def _refuse_long_waits(policy: FailurePolicy, limits: Limits) -> None:
    """Retries wait inside of the transaction, which the database ends when it has been idle for too long."""
    while isinstance(policy, Retry):
        if (longest := policy.backoff.after(policy.times)) >= limits.hold:
            raise ConfigurationError(
                f"Retry({policy.times}) waits up to {longest:g} s, but the ledger's transactions may be idle for "
                f"{limits.hold:g} s only; wait for less, retry less often, or raise Limits.hold"
            )
        policy = policy.then


def _topics(topics: str | Sequence[str] | re.Pattern[str] | None, partitions: Iterable[TopicPartition]) -> Topics:
    named = tuple(TopicPartition(*tp) for tp in partitions)
    if isinstance(topics, re.Pattern):
        return Topics(pattern=topics.pattern, partitions=named)
    if isinstance(topics, str):
        return Topics(pattern=topics, partitions=named) if topics.startswith("^") else Topics((topics,), None, named)
    return Topics(tuple(topics or ()), None, named)
