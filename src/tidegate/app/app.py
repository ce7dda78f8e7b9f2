"""The application: a set of listeners that share one Kafka cluster and one ledger."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from enum import Enum
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, TypeVar, assert_never

from sqlalchemy import URL, Engine

from tidegate.app.decoder import DecoderArgument
from tidegate.app.health import AppHealth
from tidegate.app.lifespan import Lifespan, Resource
from tidegate.app.listener import Listener
from tidegate.app.member import Member
from tidegate.app.progress import GroupPlan, Reporter
from tidegate.app.replay import Replay, Replayed
from tidegate.app.schema_decoder import SchemaDecoder
from tidegate.app.sink import Sink
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.arguments import Accepts, Amount, argument, refuse_unknown, several
from tidegate.core.policies import DeadLetter, Delivery
from tidegate.core.records import Record, TopicPartition, check_group
from tidegate.core.runtime import Runtime
from tidegate.core.schemas import SCHEMA_FORMATS
from tidegate.errors import BrokerUnavailable, ConfigurationError, TidegateError
from tidegate.kafka.broker import Broker, Cluster, KafkaBroker, Membership
from tidegate.kafka.cluster import Survey, no_topic
from tidegate.kafka.config import address_of, check_settings, client_config, consumer_config, refuse_unsafe
from tidegate.kafka.offsets import KafkaPositions, TopicToTopic
from tidegate.kafka.producer import Producer
from tidegate.kafka.registry import RegistryGiven, open_registry
from tidegate.kafka.topics import create_missing_topics
from tidegate.ledger import Ledger, open_ledger
from tidegate.ledger.letters import find_heads
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.threads import THREADS
from tidegate.observe.events import Observer, Observers, ObserversArgument, Retried
from tidegate.observe.otel import OpenTelemetryObserver
from tidegate.settings import Settings, SinkFormat, SinkSettings
from tidegate.tables.route import IntoArgument, Route, RouteArgument

if TYPE_CHECKING:
    import redis

    from tidegate.tables.feed import Mapped
    from tidegate.tables.types import FormatChoice

__all__ = ["App", "Listener", "configured"]


_log = logging.getLogger("tidegate")
_TRIES = 4  # attempts of half a second each, so that a busy broker does not count as unavailable
F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", bound=Callable[[], Iterator[Any] | AsyncIterator[Any]])


_SettingsArgument: TypeAlias = Annotated[
    Settings | str | os.PathLike[str],
    Accepts(
        "a Settings, or the path of a file", lambda given: given if isinstance(given, _SETTINGS) and given else None
    ),
]
_SETTINGS = (Settings, str, os.PathLike)


_Ids: TypeAlias = Annotated[Collection[int], several(Amount, "the number of a dead letter")]


LedgerArgument: TypeAlias = "str | URL | Engine | redis.Redis | Ledger[Any]"


class Unset(Enum):
    """Sentinel: argument not passed."""

    UNSET = "unset"


class App:
    """A set of listeners that share a Kafka cluster and a ledger.

    ``kafka`` is the address of a broker, or a mapping of librdkafka settings. ``ledger`` is a URL, a SQLAlchemy engine,
    a Redis client, an open ledger, or ``None``. With ``None``, positions are kept in Kafka, and exactly-once works only
    from topic to topic.
    """

    def __init__(
        self,
        kafka: str | Mapping[str, Any] | None = None,
        ledger: LedgerArgument | Unset | None = Unset.UNSET,
        *,
        settings: Settings | str | os.PathLike[str] | None = None,
        observers: Iterable[Observer] = (),
        registry: RegistryGiven | None = None,
    ) -> None:
        """Create an app; values that are not passed come from ``settings``.

        ``registry`` is the URL of a schema registry, or :class:`~tidegate.kafka.RegistrySettings`.

        Without a broker, an app can be run by a test kit only. If it has no ledger either, it gets one in memory.

        ``settings`` is a :class:`Settings` or the path of a file; by default :meth:`Settings.load` finds the file.
        """
        chosen = argument("settings", _SettingsArgument | None, settings)
        self.settings = chosen if isinstance(chosen, Settings) else Settings.load(chosen)
        self.kafka: dict[str, Any] = self.settings.kafka.configuration()
        if kafka is not None:
            self.kafka |= client_config(kafka)
        refuse_unsafe(self.kafka)
        check_settings(self.kafka)
        watching = argument("observers", ObserversArgument, observers)
        if self.settings.observe.traces and not any(isinstance(each, OpenTelemetryObserver) for each in watching):
            watching += (OpenTelemetryObserver(),)
        self.observers = Observers(watching)
        self.registry = open_registry(self.settings.registry if registry is None else registry)
        self.ledger, self._owns_ledger = self._opened(ledger)
        self.broker: Broker = KafkaBroker()
        self._runtime = THREADS
        self._lifespan = Lifespan()
        self.creates_topics = self.settings.kafka.creates_topics_of(self.kafka)
        self.worker: int | None = None  # the number of this process, if several processes run the app
        self.listeners: list[Listener] = []
        self._members: list[Member] = []
        self._in_kafka: list[KafkaPositions] = []
        self._producer: Producer | None = None
        self._making = threading.Lock()
        self._stopping = threading.Event()

    def _opened(self, ledger: LedgerArgument | Unset | None) -> tuple[Ledger[Any] | None, bool]:
        """Return the ledger, and whether the app has to close it."""
        if isinstance(ledger, Ledger):
            return ledger, False
        settings = self.settings.ledger
        where = settings.url if isinstance(ledger, Unset) else ledger
        if isinstance(ledger, Unset) and where is None and "bootstrap.servers" not in self.kafka:
            where = "memory://"  # nothing is named, so only a test kit can run the app
        if where is None:
            return None, False
        return open_ledger(where, prefix=settings.prefix, limits=settings.limits), True

    def _require_broker(self) -> None:
        if isinstance(self.broker, KafkaBroker) and "bootstrap.servers" not in self.kafka:
            raise ConfigurationError("no broker is named; pass kafka='host:9092', or set it in tidegate.toml")

    def listener(
        self,
        topics: str | Sequence[str] | re.Pattern[str] | None = None,
        *,
        group: str,
        partitions: Iterable[TopicPartition] = (),
        decoder: Any = None,
        **settings: Any,
    ) -> Callable[[F], F]:
        """Return a decorator that binds a function to topics, to a regular expression of topics, or to ``partitions``.

        ``decoder`` turns a record into a value: ``"json"``, ``"text"``, ``"bytes"``, one of ``"avro"``, ``"protobuf"``
        and ``"json-schema"``, or a function that takes the record. The other ``settings`` are the fields of
        :class:`~tidegate.app.spec.ListenerSpec`. Raises :class:`ConfigurationError` if the function cannot be bound.
        """
        spec = self._spec("a listener", Topics.of(topics, partitions), group, settings)
        decoder = argument("decoder", DecoderArgument | None, decoder)
        if isinstance(decoder, str) and decoder in SCHEMA_FORMATS and self.registry is not None:
            decoder = SchemaDecoder(SCHEMA_FORMATS[decoder], self.registry)

        def register(function: F) -> F:
            self.listeners.append(Listener.of(function, decoder, spec, ledger=self.ledger, lifespan=self._lifespan))
            return function

        return register

    def resource(self, function: G) -> G:
        """Decorate a generator function that yields a value which handlers share, such as a client of a service.

        It runs up to its ``yield`` before the first record of a process, and from there to its end after the last one;
        an ``async def`` runs in the event loop of the coroutines. The listeners below that have a parameter annotated
        with the class that it yields get the value.
        """
        self._lifespan.add(Resource(function))
        return function

    def sink(
        self,
        topics: str | Sequence[str] | re.Pattern[str] | None = None,
        *,
        into: RouteArgument,
        group: str | None = None,
        partitions: Iterable[TopicPartition] = (),
        format: FormatChoice = Sink.format,
        key_format: FormatChoice = Sink.key_format,
        columns: Mapped | None = None,
        **settings: Any,
    ) -> Listener:
        """Add a listener that writes the records of topics into a table, or into several, without a function.

        ``format`` reads the values: ``"json"``, ``"avro"``, ``"protobuf"``, ``"json-schema"``, a ``CsvFormat``, or a
        function that turns a record into rows. ``key_format`` reads the keys that columns come from; it takes the same
        names.
        ``columns`` maps each column to its source (``{"id": "value.id", "at": "timestamp"}``). Without it, each column
        takes the field of the same name. ``group`` defaults to ``sink-<table>``. Records that do not fit the table
        become dead letters, unless ``on_error`` sets another policy. The other ``settings`` are those of a listener.
        """
        sink = Sink(argument("into", IntoArgument, into), format, columns, key_format).with_registry(self.registry)
        if isinstance(sink.into, Route) and group is None:
            raise ConfigurationError("a sink into several tables has no name of its own: give it one with group=…")
        name = f"sink-{sink.into}" if group is None else group
        chosen = Topics.of(topics, partitions)
        if isinstance(sink.into, Route):
            sink.into.refuse_alike([*chosen.names, *(tp.topic for tp in chosen.partitions)])
        spec = self._spec("a sink", chosen, name, {"on_error": DeadLetter(), **settings})
        listener = Listener.into(sink, spec, ledger=self.ledger)
        self.listeners.append(listener)
        return listener

    def _spec(self, what: str, topics: Topics, group: str, settings: Mapping[str, Any]) -> ListenerSpec:
        refuse_unknown(what, settings.keys(), ListenerSpec.__dataclass_fields__.keys() - {"topics", "group"})
        spec = ListenerSpec(topics=topics, group=group, **{**self.settings.listener.defaults(), **settings})
        kafka = {**self.kafka, **spec.kafka}
        check_settings(kafka | consumer_config(kafka, spec.group, spec.protocol, spec.session_timeout))
        return spec

    def run(self, *, until_caught_up: bool = False, quiet: bool = False) -> int:
        """Run every listener until SIGTERM or SIGINT, or until one fails; its error is raised.

        With ``until_caught_up``, also return once all listeners have reached the end of their topics; a topic that does
        not exist is then an error. On the first signal, listeners finish their open transactions, release their
        partitions and leave their groups. A second signal stops the process at once.

        What happens is logged: what the app connects to, its partitions, progress every ten seconds, what it waits for,
        and a summary. If the program has not set up logging, that goes to standard error, on a terminal with a live
        view. With ``quiet``, nothing is added to what the app's own observers do.
        """
        until_caught_up = argument("until_caught_up", bool, until_caught_up)
        quiet = argument("quiet", bool, quiet)
        self._require_broker()
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
        if quiet:
            return self._run_all(until_caught_up, None)
        with self._reporter() as reporter:
            return self._run_all(until_caught_up, reporter)

    async def serve(self, *, until_caught_up: bool = False) -> int:
        """Run the listeners beside other work in the running event loop, such as a web application's.

        Coroutines and resources run in this loop, and everything else on threads of its own. It ends as :meth:`run`
        does, but signals are left to the program. When it is cancelled, the listeners stop as after SIGTERM, and then
        the cancellation goes on.
        """
        loop = asyncio.get_running_loop()
        self._lifespan.adopt(loop)
        thread = ThreadPoolExecutor(1, thread_name_prefix="tidegate-serve")
        running = loop.run_in_executor(thread, partial(self.run, until_caught_up=until_caught_up, quiet=True))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait([running])
            raise
        finally:
            self._lifespan.adopt(None)
            thread.shutdown(wait=False)  # the loop must not wait for a thread that may need the loop

    def _run_all(self, until_caught_up: bool, reporter: Reporter | None) -> int:
        try:
            self._prepare(until_caught_up, reporter)
            with self._lifespan:
                failures = self._run_members(until_caught_up)
        finally:
            self._close()
        if failures:
            raise failures[0]
        return 0

    def _run_members(self, until_caught_up: bool) -> list[BaseException]:
        """Run a member for each listener and thread until all have ended; return what they failed with."""
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
        return failures

    def _prepare(self, until_caught_up: bool, reporter: Reporter | None) -> None:
        waiting_for = (lambda _: nullcontext()) if reporter is None else reporter.step
        if self.ledger is not None:
            with waiting_for(f"the ledger at {self.ledger}"):
                self.ledger.create()
        if self.creates_topics:
            with waiting_for(address_of(self.kafka)):
                create_missing_topics(self.kafka, {name for each in self.listeners for name in each.spec.topics.read})
        if until_caught_up:
            with waiting_for(address_of(self.kafka)):
                self._check_topics()

    def _check_topics(self) -> None:
        """Raise if a topic does not exist: a listener could never catch up with it. One may take a moment to appear."""
        for listener in self.listeners:
            kafka = {**self.kafka, **listener.spec.kafka}
            if str(kafka.get("allow.auto.create.topics", "")).lower() == "true":
                continue
            cluster = self.broker.cluster(kafka)
            if (why := _unanswered(cluster)) is not None:
                raise BrokerUnavailable(why)
            wanted = {*listener.spec.topics.names, *(tp.topic for tp in listener.spec.topics.partitions)}
            for _ in range(_TRIES):
                missing = sorted(wanted - {tp.topic for tp in cluster.partitions(wanted)})
                if not missing or self._stopping.wait(0.5):
                    break
            else:
                raise ConfigurationError(
                    f"group {listener.spec.group!r}: nothing to catch up with: {no_topic(missing)}"
                )

    def _reporter(self) -> Reporter:
        groups: dict[str, list[Listener]] = {}
        for listener in self.listeners:
            groups.setdefault(listener.spec.group, []).append(listener)
        plans = [
            GroupPlan(
                group,
                ", ".join(dict.fromkeys(str(each.spec.topics) for each in listeners)),
                "→ " + ", ".join(dict.fromkeys(each.name for each in listeners)),
                listeners[0].spec.session_timeout,
            )
            for group, listeners in groups.items()
        ]
        ledger = "positions in Kafka" if self.ledger is None else f"ledger {self.ledger}"
        return Reporter(
            self.observers,
            plans,
            f"{address_of(self.kafka)}, {ledger}",
            lambda: [member.pulse.vitals for member in self._members],
            self._obstacle,
            is_live=self.worker is None,
        )

    def _obstacle(self, plan: GroupPlan) -> str | None:
        """Return why a group may have no partitions yet, as far as the broker tells."""
        topics = [listener.spec.topics for listener in self.listeners if listener.spec.group == plan.group]
        cluster = self.broker.cluster(self.kafka)
        if (why := cluster.unanswered()) is not None:
            return why
        try:
            wanted = {name for each in topics for name in each.names}
            if missing := sorted(wanted - {tp.topic for tp in cluster.partitions(wanted)}):
                return no_topic(missing)
            return None if not isinstance(self.broker, KafkaBroker) else self._held(plan, topics)
        except TidegateError as error:
            return str(error)

    def _held(self, plan: GroupPlan, topics: list[Topics]) -> str | None:
        if any(each.partitions for each in topics):
            return None
        survey = Survey(self.kafka)
        patterns = [each.pattern for each in topics if each.pattern is not None]
        if patterns and not any(each.covers(found.topic) for each in topics for found in survey.topics()):
            return f"no topic matches {', '.join(patterns)} yet"
        group = survey.group(plan.group)
        if group is None:
            return None
        if group.state == "stable":
            return f"every partition is assigned to another of the group's {len(group.members)} members"
        return (
            "partitions are held by a member that stopped answering, or that is still at work on a batch; Kafka gives "
            f"them away after up to {plan.session_timeout:g} s, the session timeout"
        )

    def replay(
        self,
        group: str,
        ids: Collection[int] | None = None,
        *,
        topic: str | None = None,
        tell: Callable[[Replayed], object] = lambda _: None,
    ) -> list[Replayed]:
        """Replay dead letters of a group: pass each to its listener again, and return the outcomes.

        ``ids`` selects letters by number and ``topic`` by topic; by default all letters of the group are replayed.
        ``tell`` is called with each outcome at once.

        The transaction that handles the record also removes its letter. So each letter is replayed exactly once, even
        if several processes replay it at the same time. Only a handler that takes no transaction may run more than
        once, because it runs before the transaction. A letter that fails again stays, with its attempts increased by
        one and the new error. No position moves, and listeners may keep running.
        """
        ids = argument("ids", _Ids | None, ids)
        tell = argument("tell", Callable[[Replayed], object], tell)
        self._require_broker()
        replay = Replay(self.ledger, self.listeners, check_group(group))
        # List all letters first: on Redis, a failed command is parked as a new letter, and would be replayed too.
        wanted = [head.id for head in find_heads(replay.ledger, group, ids, topic)]
        done = []
        try:
            with self._lifespan:
                for number in wanted:
                    done.append(replay.one(number))
                    tell(done[-1])
            return done
        finally:
            self._close_producer()

    def stop(self) -> None:
        """Stop every listener: each finishes its transaction, commits, releases its partitions and leaves its group.

        If the ledger does not answer within 10 seconds, the listeners stop waiting for it. The transaction is then
        either committed or rolled back, never half of it.
        """
        self._stopping.set()
        if self.ledger is not None:
            self.ledger.hurry()
        for member in self._members:
            member.stop()

    @property
    def producer(self) -> Producer:
        """A producer for use in handlers, with the librdkafka settings of the app.

        The app creates it on first access and closes it when :meth:`run` or :meth:`replay` ends. Records sent with it
        are not part of a listener's transaction.
        """
        with self._making:
            if self._producer is None:
                traces = any(isinstance(each, OpenTelemetryObserver) for each in self.observers)
                self._producer = Producer(self.kafka, traces=traces, registry=self.registry)
            return self._producer

    @producer.setter
    def producer(self, producer: Producer) -> None:
        """Replace the producer. The app closes the new one too."""
        self._producer = producer

    def _close(self) -> None:
        """Close the resources that the app opened, and restore the ledger's normal time limits."""
        for positions in self._in_kafka:
            positions.close()
        self._in_kafka.clear()
        self._close_producer()
        if self.ledger is not None:
            self.ledger.hurry(None)
            if self._owns_ledger:
                self.ledger.close()

    def _close_producer(self) -> None:
        if self._producer is not None:
            if undelivered := self._producer.close():
                _log.error("%d records were not delivered: %s", len(undelivered), undelivered[0].error)
            self._producer = None

    @property
    def health(self) -> AppHealth:
        """The health of the listeners in this process, and their read positions; may be used from any thread."""
        return AppHealth(lambda: self._members, self._questions())

    def _questions(self) -> dict[str, Callable[[], object]]:
        """Return, by name of the store, a function that raises if the store does not answer."""
        ledger, cluster = self.ledger, cache(lambda: self.broker.cluster(self.kafka))

        def broker_answers() -> None:
            if (why := _unanswered(cluster())) is not None:
                raise BrokerUnavailable(why)

        if ledger is None:
            return {"broker": broker_answers}
        group = self.listeners[0].spec.group if self.listeners else ""
        return {"broker": broker_answers, "ledger": lambda: ledger.read(group, ())}

    def elsewhere(
        self,
        broker: Broker,
        ledger: Ledger[Any] | None,
        listeners: list[Listener],
        observer: Observer,
        runtime: Runtime = THREADS,
    ) -> Self:
        """Return a copy of this app with another broker, ledger and listeners, as a separate process would have it."""
        other = copy.copy(self)
        other.broker, other.listeners, other._runtime = broker, listeners, runtime
        other.ledger, other._owns_ledger = ledger, False
        other.creates_topics = False
        other.observers = Observers([*self.observers, observer])
        other._members, other._in_kafka, other._stopping = [], [], threading.Event()
        return other

    def _run(self, member: Member, failures: list[BaseException]) -> None:
        try:
            member.run()
        except BaseException as error:  # includes sys.exit() in a handler: run() has to raise it
            failures.append(error)
            self.stop()

    def _member(self, listener: Listener, until_caught_up: bool, thread: int = 0) -> Member:
        spec = listener.spec
        kafka = self._one_of_several(listener, thread, {**self.kafka, **spec.kafka})

        def retried(record: Record, attempts: int, after: float, error: Exception) -> None:
            self.observers(Retried(spec.group, record.source, record.offset, attempts, after, type(error).__name__))

        membership = Membership(spec.group, spec.protocol, spec.session_timeout)

        store: PositionStore[Any] | None = self.ledger
        in_kafka: KafkaPositions | None = None
        if store is None:
            store = in_kafka = self._positions(spec, kafka)
        member = Member(
            spec,
            store,
            self.broker.cluster(kafka),
            lambda member: self.broker.source(kafka, membership, member),
            handler=listener.handler(self.ledger, retried),
            first_portion=listener.first_portion,
            computing=listener.computing(retried),
            tell=self.observers,
            until_caught_up=until_caught_up,
            runtime=self._runtime,
        )
        if in_kafka is not None:
            in_kafka.attach(member.source)
            self._in_kafka.append(in_kafka)
        return member

    def _one_of_several(self, listener: Listener, thread: int, kafka: dict[str, Any]) -> dict[str, Any]:
        """Return Kafka settings with a unique ``group.instance.id``, if the member is static.

        Two static members with the same id fence each other. The id ends with the member's number in the group in this
        process, which stays the same after a restart.
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
        """Return a store that keeps positions in Kafka; for exactly-once, it commits them in Kafka transactions."""
        match spec.delivery:
            case Delivery.EXACTLY_ONCE:
                return TopicToTopic(kafka, spec.group)
            case Delivery.AT_LEAST_ONCE | Delivery.AT_MOST_ONCE:
                return KafkaPositions(spec.commit)
            case other:
                assert_never(other)


class _Signals:
    """Context manager: the first SIGTERM or SIGINT calls ``stop``; a second one has its default effect."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on) for number in (signal.SIGTERM, signal.SIGINT)}

    def _on(self, number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        _log.info(
            "stopping on %s: finishing the work in progress; send it again to stop at once", signal.Signals(number).name
        )
        self._stop()

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def configured(settings: Settings) -> App:
    """Create an app with the sinks that the settings describe."""
    if not settings.sink:
        raise ConfigurationError(
            "nothing to run: name an app, as in 'tidegate run shop:app', or describe a sink in tidegate.toml, under "
            "[sink.NAME]"
        )
    app = App(settings=settings)
    for name, sink in settings.sink.items():
        try:
            _add(app, sink)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink.{name}: {error}") from None
    return app


def _add(app: App, sink: SinkSettings) -> None:
    topics = sink.topics[0] if sink.topics[0].startswith("^") else sink.topics
    app.sink(
        topics,
        into=sink.target(),
        group=sink.group,
        format=_format(sink),
        key_format=sink.key_format.value,
        columns=sink.columns or None,
        on_error=sink.on_error.policy,
    )


def _format(sink: SinkSettings) -> Any:
    match sink.format:
        case SinkFormat.JSON:
            return "json"
        case SinkFormat.CSV:
            from tidegate.tables import CsvFormat  # noqa: PLC0415 - needs an extra

            return CsvFormat(sink.fields, delimiter=sink.delimiter, header=sink.header, nulls=sink.nulls)
        case SinkFormat.AVRO | SinkFormat.PROTOBUF | SinkFormat.JSON_SCHEMA:
            from tidegate.tables import SchemaFormat  # noqa: PLC0415 - needs an extra

            return SchemaFormat(SCHEMA_FORMATS[sink.format.value], sink.flatten)
        case SinkFormat.CONNECT_JSON | SinkFormat.CONNECT_AVRO:
            return sink.format.value
        case SinkFormat.DEBEZIUM:
            from tidegate.tables import DebeziumFormat  # noqa: PLC0415 - needs an extra

            return DebeziumFormat(decimals=sink.decimals, placeholder=sink.placeholder)
        case SinkFormat.DEBEZIUM_AVRO:
            from tidegate.tables import DebeziumAvroFormat  # noqa: PLC0415 - needs an extra

            return DebeziumAvroFormat(placeholder=sink.placeholder)
        case other:
            assert_never(other)


def _unanswered(cluster: Cluster) -> str | None:
    """Return why the cluster does not answer, not even at the last attempt; ``None`` if it does."""
    why = None
    for _ in range(_TRIES):
        if (why := cluster.unanswered()) is None:
            break
    return why
