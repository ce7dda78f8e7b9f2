"""A stage for listeners: a broker, fresh topics, a store with a ledger and a table for the data, members in threads."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, Text, create_engine, select

from tidegate.app.app import App
from tidegate.app.handler import Handled, Handler, Over, Prepared, never
from tidegate.app.member import Member
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import NO_TRIES, Tries
from tidegate.core.journal import Entry, Kind
from tidegate.core.policies import GroupProtocol
from tidegate.core.positions import Position
from tidegate.core.records import Record, TopicPartition
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config, consumer_config
from tidegate.kafka.consumer import GroupConsumer
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.observe.events import Event, Observer, Observers
from tidegate.settings import Settings

PATIENCE = 40.0
GROUP = "billing"

_QUIET = {"log_level": 0}  # librdkafka writes to standard error
_BRISK = {"topic.metadata.refresh.interval.ms": 500, "heartbeat.interval.ms": 500}
_serial = itertools.count(1)
E = TypeVar("E")


def wait_until(condition: Callable[[], object], what: str = "the condition", timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(0.02)


class Row(NamedTuple):
    """A record as the handler stored it."""

    topic: str
    partition: int
    offset: int
    payload: str | None


class _Writer(Handler):
    """A handler that passes all records of a transaction to a function."""

    name = "the writer"
    is_apart = False

    def __init__(self, write: Callable[[list[Record], Any], object]) -> None:
        self._write = write

    def prepare(self, records: Sequence[Record]) -> Prepared:
        return _Writing(self._write, list(records))


class _Writing:
    def __init__(self, write: Callable[[list[Record], Any], object], records: list[Record]) -> None:
        self._write = write
        self._records = records

    def run(self, tx: Any, tries: Tries = NO_TRIES, over: Over = never) -> Handled:
        self._write(self._records, tx)
        return Handled(len(self._records), (), ())


class Running:
    """A member in a thread of its own, and everything that it told."""

    def __init__(self, make: Callable[[Callable[[Event], None]], Member]) -> None:
        self.events: list[Event] = []
        self.error: Exception | None = None
        self.member = make(self.events.append)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.member.run()
        except Exception as error:
            self.error = error

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def told(self, kind: type[E]) -> list[E]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def wait_for(self, kind: type[E], matching: Callable[[E], object] = lambda _: True) -> E:
        """The first event of a kind that matches; a member that ends before it has told of one fails the test."""

        def found() -> list[E]:
            return [event for event in self.told(kind) if matching(event)]

        wait_until(lambda: found() or not self.is_alive, f"a {kind.__name__}")
        assert found(), f"the member ended without a {kind.__name__}: {self.error!r}"
        return found()[0]

    def ended(self) -> None:
        """Wait for an end of its own accord; what the member failed with is raised."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"the member goes on and on; its last events: {self.events[-5:]}"
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        self.member.stop()
        self.ended()


class Stage:
    """One test's topics, its group, its ledger and its data."""

    def __init__(self, bootstrap: str, url: str, limits: Limits | None = None) -> None:
        self.kafka: dict[str, Any] = {"bootstrap.servers": bootstrap, **_QUIET}
        self.name = f"s{os.getpid()}_{next(_serial)}"
        with open_ledger(url, prefix=f"{self.name}_") as patient:
            patient.create()
        self.ledger: Ledger[Any] = open_ledger(url, prefix=f"{self.name}_", limits=limits)
        self._engine = create_engine(url, pool_pre_ping=True)
        # No key but the number of the row: a record that was written twice is there twice.
        self._data = Table(
            f"{self.name}_data",
            MetaData(),
            Column("id", Integer, primary_key=True, autoincrement=True),
            Column("topic", String(255), nullable=False),
            Column("partition", Integer, nullable=False),
            Column("offset", BigInteger, nullable=False),
            Column("payload", Text),
        )
        self._data.create(self._engine)
        self._admin = AdminClient(self.kafka)
        self._producer = self._new_producer()
        self._running: list[Running] = []
        self._lifespans = ExitStack()

    def close(self) -> None:
        for running in self._running:
            running.member.stop()
        for running in self._running:
            running._thread.join(PATIENCE)
        self._lifespans.close()
        self.ledger.close()
        self._engine.dispose()

    # Topics

    def topic(self, partitions: int = 1, *, name: str | None = None, **config: object) -> str:
        topic = name or f"{self.name}.orders.{next(_serial)}"
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}

        def created() -> bool:
            try:
                self._admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(PATIENCE)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:  # not deleted completely yet
                    return False
                raise
            return True

        wait_until(created, f"topic {topic}")
        wait_until(lambda: len(self._partitions(topic)) == partitions, f"the partitions of {topic}")
        return topic

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(PATIENCE)
        wait_until(lambda: not self._partitions(topic), f"the end of {topic}")

    def add_partitions(self, topic: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(PATIENCE)
        wait_until(lambda: len(self._partitions(topic)) == total, f"the partitions of {topic}")
        self._producer = self._new_producer()  # which does not believe in the old number for a while

    def delete_records(self, partition: TopicPartition, before: int) -> None:
        """Do what retention does."""
        wanted = KafkaPartition(*partition, before)
        for future in self._admin.delete_records([wanted]).values():
            future.result(PATIENCE)

    def log_end(self, partition: TopicPartition) -> int:
        wanted = KafkaPartition(*partition)
        (future,) = self._admin.list_offsets({wanted: OffsetSpec.latest()}).values()
        return int(future.result(PATIENCE).offset)

    def _partitions(self, topic: str) -> Sequence[object]:
        (future,) = self._admin.describe_topics(TopicCollection([topic])).values()
        try:
            return list(future.result(PATIENCE).partitions)
        except KafkaException:
            return []

    # Records

    def send(self, topic: str, values: Iterable[str | bytes | None], partition: int = 0, **settings: Any) -> list[int]:
        """Produce, and return the offsets that the records got."""
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        for value in values:
            self._producer.produce(topic, value, partition=partition, on_delivery=delivered, **settings)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE) == 0, "not everything was delivered"
        return offsets

    def _new_producer(self) -> Producer:
        return Producer({**self.kafka, "enable.idempotence": True, "linger.ms": 5})

    def transactions(self) -> Producer:
        producer = Producer({**self.kafka, "transactional.id": f"{self.name}-{next(_serial)}"})
        producer.init_transactions(PATIENCE)
        return producer

    def offsets_in(self, topic: str, end: int) -> list[int]:
        """The offsets that partition 0 of a topic really has, as a plain consumer sees them."""
        settings = {"group.id": f"{self.name}-bystander", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({**self.kafka, **settings, "auto.offset.reset": "earliest"})
        seen: list[int] = []
        try:
            consumer.assign([KafkaPartition(topic, 0, 0)])
            while (message := consumer.poll(PATIENCE)) is not None:
                if message.error() is None:
                    seen.append(message.offset())
                elif message.offset() >= end:
                    break
        finally:
            consumer.close()
        return seen

    # Members

    def start(
        self,
        *topics: str,
        pattern: str | None = None,
        partitions: Iterable[TopicPartition] = (),
        handle: Callable[[list[Record], Any], Any] | None = None,
        until_caught_up: bool = False,
        kafka: Mapping[str, Any] | None = None,
        ledger: Ledger[Any] | None = None,
        observers: Iterable[Observer] = (),
        **settings: Any,
    ) -> Running:
        settings = {"group": GROUP, "session_timeout": 6.0, **settings}
        spec = ListenerSpec(topics=Topics(topics, pattern, tuple(partitions)), kafka=dict(kafka or {}), **settings)
        client = {**self.kafka, **_BRISK, **spec.kafka}
        if spec.protocol is GroupProtocol.CONSUMER:
            del client["heartbeat.interval.ms"]  # the broker's to say
        config = consumer_config(client, spec.group, spec.protocol, spec.session_timeout)

        def make(tell: Callable[[Event], None]) -> Member:
            return Member(
                spec,
                ledger or self.ledger,
                Admin(admin_config(client)),
                partial(GroupConsumer, config, incremental=spec.protocol.is_incremental, address="Kafka"),
                handler=_Writer(handle or self.write),
                tell=Observers([tell, *observers]),
                until_caught_up=until_caught_up,
            )

        self._running.append(Running(make))
        return self._running[-1]

    def listen(
        self, function: Callable[..., Any], *topics: str, until_caught_up: bool = False, **settings: Any
    ) -> Running:
        """A member that runs a function as an app does, with its error policy; ``ledger`` may be ``None``."""
        client = {**self.kafka, **_BRISK}
        if settings.get("protocol") is GroupProtocol.CONSUMER:
            del client["heartbeat.interval.ms"]  # the broker's to say
        app = App(client, settings.pop("ledger", self.ledger), settings=Settings())
        app.listener(topics, **{"group": GROUP, "session_timeout": 6.0, **settings})(function)
        self._lifespans.enter_context(app._lifespan)

        def make(tell: Callable[[Event], None]) -> Member:
            app.observers.add(tell)
            return app._member(app.listeners[0], until_caught_up)

        self._running.append(Running(make))
        return self._running[-1]

    def catch_up(self, *topics: str, **settings: Any) -> Running:
        """Run a member until there is nothing left to read."""
        running = self.start(*topics, until_caught_up=True, **settings)
        running.ended()
        return running

    def write(self, records: list[Record], tx: Any) -> None:
        """The ordinary handler: every record leaves a row."""
        rows = [
            Row(r.topic, r.partition, r.offset, None if r.value is None else r.value.decode())._asdict()
            for r in records
        ]
        tx.execute(self._data.insert(), rows)

    # What came of it

    def rows(self, topic: str | None = None, partition: int | None = None) -> list[Row]:
        columns = [self._data.c[name] for name in Row._fields]
        query = select(*columns).order_by(self._data.c.id)
        with self._engine.connect() as connection:
            rows = [Row(*row) for row in connection.execute(query)]
        return [
            row
            for row in rows
            if (topic is None or row.topic == topic) and (partition is None or row.partition == partition)
        ]

    def payloads(self, topic: str | None = None, partition: int | None = None) -> list[str | None]:
        return [row.payload for row in self.rows(topic, partition)]

    def offsets(self, topic: str | None = None, partition: int | None = None) -> list[int]:
        return [row.offset for row in self.rows(topic, partition)]

    def position(self, partition: TopicPartition) -> Position:
        return self.ledger.read(GROUP).positions[partition]

    def journal(self, partition: TopicPartition, *kinds: Kind) -> list[Entry]:
        return [entry for entry in self.ledger.journal(GROUP, partition) if not kinds or entry.kind in kinds]

    def verify(self) -> None:
        verification = self.ledger.verify(GROUP)
        assert verification.ok, verification.breaks


def numbered(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]
