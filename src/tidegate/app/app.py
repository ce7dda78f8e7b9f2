"""An application: listeners, and the Kafka and the ledger that they share."""

from __future__ import annotations

import copy
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, TypeVar, assert_never

from sqlalchemy import URL, Engine

from tidegate.app.decoding import DecoderArgument
from tidegate.app.health import AppHealth
from tidegate.app.listener import Listener
from tidegate.app.member import Member
from tidegate.app.replay import Replay, Replayed
from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.arguments import Amount, Kind, argument, refuse_unknown, several
from tidegate.core.delivery import Delivery
from tidegate.core.errors import BrokerUnavailable, ConfigurationError
from tidegate.core.names import check_group
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import DeadLetter
from tidegate.kafka.broker import Broker, KafkaBroker, Membership
from tidegate.kafka.config import address_of, check_settings, client_config, consumer_config
from tidegate.kafka.positions import KafkaPositions
from tidegate.kafka.producer import Producer
from tidegate.kafka.topic_to_topic import TopicToTopic
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.ledger.letters import find_letters
from tidegate.observe.observer import Observer, Observers, ObserversArgument, Retried
from tidegate.settings import Settings, refuse_unsafe
from tidegate.tables.table import Table, TableArgument

if TYPE_CHECKING:
    import redis

    from tidegate.tables.choice import FormatChoice
    from tidegate.tables.sources import Mapped

__all__ = ["App", "Listener"]

_log = logging.getLogger("tidegate")
_TRIES = 4  # of half a second each: a busy broker is no broker that is away
F = TypeVar("F", bound=Callable[..., Any])


_SettingsArgument: TypeAlias = Annotated[
    Settings | str | os.PathLike[str],
    Kind("a Settings, or the path of a file", lambda given: given if isinstance(given, _SETTINGS) and given else None),
]
_SETTINGS = (Settings, str, os.PathLike)


_Ids: TypeAlias = Annotated[Collection[int], several(Amount, "the number of a dead letter")]


class Unset(Enum):
    """Sentinel: argument not passed."""

    UNSET = "unset"


class App:
    """Listeners that share a Kafka cluster and a ledger.

    ``kafka`` is the address of a broker, or any settings of librdkafka; ``ledger`` a URL, a SQLAlchemy engine, a Redis
    client, a ledger that is open already, or ``None``: then positions are kept in Kafka, and exactly-once is to be had
    from topic to topic only.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any] | None = None,
        ledger: str | URL | Engine | redis.Redis | Ledger[Any] | Unset | None = Unset.UNSET,
        *,
        settings: Settings | str | os.PathLike[str] | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        """What is not given here comes from ``settings``: an object, a file, or what :meth:`Settings.load` finds."""
        chosen = argument("settings", _SettingsArgument | None, settings)
        self.settings = chosen if isinstance(chosen, Settings) else Settings.load(chosen)
        self.kafka: dict[str, Any] = self.settings.kafka.configuration()
        if kafka is not None:
            self.kafka |= client_config(kafka)
        refuse_unsafe(self.kafka)
        if "bootstrap.servers" not in self.kafka:
            raise ConfigurationError("no broker is named; pass kafka='host:9092', or set it in tidegate.toml")
        check_settings(self.kafka)
        self.observers = Observers(argument("observers", ObserversArgument, observers))
        self.ledger, self._owns_ledger = self._opened(ledger)
        self.broker: Broker = KafkaBroker()
        self.worker: int | None = None  # its number, where several processes run the app
        self.listeners: list[Listener] = []
        self._members: list[Member] = []
        self._in_kafka: list[KafkaPositions] = []
        self._producer: Producer | None = None
        self._making = threading.Lock()
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
        spec = self._spec("a listener", Topics.of(topics, partitions), group, settings)
        decoder = argument("decoder", DecoderArgument | None, decoder)

        def register(function: F) -> F:
            self.listeners.append(Listener.of(function, decoder, spec, has_ledger=self.ledger is not None))
            return function

        return register

    def sink(
        self,
        topics: str | Sequence[str] | re.Pattern[str] | None = None,
        *,
        into: Table | str,
        group: str | None = None,
        partitions: Iterable[TopicPartition] = (),
        format: FormatChoice = "json",
        columns: Mapped | None = None,
        **settings: Any,
    ) -> Listener:
        """Write the records of topics into a table, without a function.

        ``format`` reads values (``"json"``, a ``CsvFormat``, or a function that makes rows of a record); ``columns``
        says where each column comes from (``{"id": "value.id", "at": "timestamp"}``), and without it columns are the
        fields of their names. The group is ``sink-<table>`` unless another one is named. Records that do not fit are
        dead letters unless ``on_error`` says otherwise. The other ``settings`` are a listener's.
        """
        sink = Sink(argument("into", TableArgument, into), format, columns)
        name = f"sink-{sink.into}" if group is None else group
        spec = self._spec("a sink", Topics.of(topics, partitions), name, {"on_error": DeadLetter(), **settings})
        listener = Listener.into(sink, spec, ledger=self.ledger)
        self.listeners.append(listener)
        return listener

    def _spec(self, what: str, topics: Topics, group: str, settings: Mapping[str, Any]) -> ListenerSpec:
        refuse_unknown(what, settings.keys(), ListenerSpec.__dataclass_fields__.keys() - {"topics", "group"})
        spec = ListenerSpec(topics=topics, group=group, **{**self.settings.listener.defaults(), **settings})
        kafka = {**self.kafka, **spec.kafka}
        check_settings(kafka | consumer_config(kafka, spec.group, spec.protocol, spec.session_timeout))
        return spec

    def run(self, *, until_caught_up: bool = False) -> int:
        """Run every listener until SIGTERM or SIGINT, until all have caught up, or until one fails, which is raised.

        The first signal finishes the transactions under way, releases and leaves; a second one stops at once.
        """
        until_caught_up = argument("until_caught_up", bool, until_caught_up)
        if not self.listeners:
            raise ConfigurationError(
                "the app has no listener; decorate a function with @app.listener(topics, group=…), or add an "
                "app.sink(topics, into=Table(…))"
            )
        if self.worker is not None and any(listener.spec.topics.partitions for listener in self.listeners):
            raise ConfigurationError(
                "a listener names its partitions: several workers would each read them, and stop one another; run it "
                "without --workers, or let a group share the topic out"
            )
        if self.ledger is not None:
            self.ledger.create()
        failures: list[BaseException] = []
        self._members = [
            self._member(listener, until_caught_up, thread)
            for listener in self.listeners
            for thread in range(listener.spec.threads)
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
        self._close()
        if failures:
            raise failures[0]
        return 0

    def replay(
        self,
        group: str,
        ids: Collection[int] | None = None,
        *,
        topic: str | None = None,
        tell: Callable[[Replayed], object] = lambda _: None,
    ) -> list[Replayed]:
        """Give dead letters of a group to their listener once more: those with these ``ids``, or all; of one topic, if
        that is said. What became of each is returned, and told at once to ``tell``.

        A letter is removed by the transaction that handles its record: exactly once, whoever else replays it. One that
        fails again stays, with one attempt more and the new error. No position moves, and listeners may go on.
        """
        ids = argument("ids", _Ids | None, ids)
        tell = argument("tell", Callable[[Replayed], object], tell)
        replay = Replay(self.ledger, self.listeners, check_group(group))
        # All are listed first: what fails on Redis is parked anew, and would be met again.
        wanted = [parked.id for parked in find_letters(replay.ledger, group, ids, topic)]
        done = []
        try:
            for number in wanted:
                done.append(replay.one(number))
                tell(done[-1])
            return done
        finally:
            self._close_producer()

    def stop(self) -> None:
        """Stop every listener: each finishes its transaction, commits, releases and leaves its group."""
        self._stopping.set()
        for member in self._members:
            member.stop()

    @property
    def producer(self) -> Producer:
        """A producer for use inside of listeners, with the app's settings of librdkafka; it is made when it is first
        asked for, and closed when the app has run. What is sent with it is no part of a listener's transaction.
        """
        with self._making:
            if self._producer is None:
                self._producer = Producer(self.kafka)
            return self._producer

    @producer.setter
    def producer(self, producer: Producer) -> None:
        """Use another one; the app closes it as well."""
        self._producer = producer

    def _close(self) -> None:
        """Close what was opened for the run."""
        for positions in self._in_kafka:
            positions.close()
        self._in_kafka.clear()
        self._close_producer()
        if self._owns_ledger and self.ledger is not None:
            self.ledger.close()

    def _close_producer(self) -> None:
        if self._producer is not None:
            if undelivered := self._producer.close():
                _log.error("%d records were not delivered: %s", len(undelivered), undelivered[0].error)
            self._producer = None

    @property
    def health(self) -> AppHealth:
        """Whether the listeners that run here do their work, and where they read; to be asked from any thread."""
        return AppHealth(lambda: self._members, self._questions())

    def _questions(self) -> dict[str, Callable[[], object]]:
        """What to ask of the stores to see that they answer."""
        ledger, cluster = self.ledger, cache(lambda: self.broker.cluster(self.kafka))

        def broker_answers() -> None:
            if not any(cluster().answers() for _ in range(_TRIES)):
                raise BrokerUnavailable(f"no broker of {address_of(self.kafka)} did")

        if ledger is None:
            return {"broker": broker_answers}
        group = self.listeners[0].spec.group if self.listeners else ""
        return {"broker": broker_answers, "ledger": lambda: ledger.read(group, ())}

    def elsewhere(
        self, broker: Broker, ledger: Ledger[Any] | None, listeners: list[Listener], observer: Observer
    ) -> Self:
        """Listeners of this app on another broker and another ledger, as a process of its own would run them."""
        other = copy.copy(self)
        other.broker, other.listeners = broker, listeners
        other.ledger, other._owns_ledger = ledger, False
        other.observers = Observers([*self.observers, observer])
        other._members, other._in_kafka, other._stopping = [], [], threading.Event()
        return other

    def _run(self, member: Member, failures: list[BaseException]) -> None:
        try:
            member.run()
        except BaseException as error:  # a handler's sys.exit() included: whoever runs the app is to hear of it
            failures.append(error)
            self.stop()

    def _member(self, listener: Listener, until_caught_up: bool, thread: int = 0) -> Member:
        spec = listener.spec
        kafka = self._one_of_several(listener, thread, {**self.kafka, **spec.kafka})

        def retried(record: Record, attempts: int, after: float, error: Exception) -> None:
            self.observers(Retried(spec.group, record.source, record.offset, attempts, after, type(error).__name__))

        membership = Membership(spec.group, spec.protocol, spec.session_timeout)

        ledger = self._positions(spec, kafka) if self.ledger is None else self.ledger
        member = Member(
            spec,
            ledger,
            self.broker.cluster(kafka),
            lambda member: self.broker.source(kafka, membership, member),
            handle=listener.handle(self.ledger, retried),
            computing=listener.computing(retried),
            tell=self.observers,
            until_caught_up=until_caught_up,
        )
        if isinstance(ledger, KafkaPositions):
            ledger.attach(member.source)
            self._in_kafka.append(ledger)
        return member

    def _one_of_several(self, listener: Listener, thread: int, kafka: dict[str, Any]) -> dict[str, Any]:
        """Settings in which a static member has a name of its own: two members of one name fence each other.

        Its number among the members of the group in this process is the same after every restart.
        """
        name, group = kafka.get("group.instance.id"), listener.spec.group
        members = [
            (each, number) for each in self.listeners if each.spec.group == group for number in range(each.spec.threads)
        ]
        if name is None or (len(members) == 1 and self.worker is None):
            return kafka
        place = next(i for i, (each, number) in enumerate(members) if each is listener and number == thread)
        return {**kafka, "group.instance.id": f"{name}-{self.worker or 0}-{place}"}

    @staticmethod
    def _positions(spec: ListenerSpec, kafka: Mapping[str, Any]) -> KafkaPositions:
        """Positions kept in Kafka: in its transactions, if it is to be exactly once."""
        match spec.delivery:
            case Delivery.EXACTLY_ONCE:
                return TopicToTopic(kafka, spec.group)
            case Delivery.AT_LEAST_ONCE | Delivery.AT_MOST_ONCE:
                return KafkaPositions(spec.commit)
            case other:
                assert_never(other)


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
