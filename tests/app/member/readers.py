"""The ways of reading a topic: listeners with a ledger, on Kafka's own offsets and from topic to topic."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import create_engine, text
from tests.app.member.history import Topic, wait_until

from tidegate import App, OwnLoop, Record, Transaction, open_ledger
from tidegate.core.policies import Delivery, Start, StartStrategy
from tidegate.errors import BrokerUnavailable, LedgerError
from tidegate.kafka.cluster import Admin
from tidegate.kafka.delivery import Outgoing

_PATIENCE = 150.0


class Refused(Exception):
    """What a handler raises that is to crash on its first record."""


class Reader(ABC):
    """A group that reads one topic, life after life; ``seen`` are the effects that outlive a crash."""

    def __init__(self, bootstrap: str, topic: Topic, start: Start, members: int, folder: Path) -> None:
        self.kafka = {"bootstrap.servers": bootstrap, "log_level": 0, "heartbeat.interval.ms": 300}
        self.topic = topic
        self.group = f"{topic.name}-group"
        self.strategy = StartStrategy(start)
        self.members = members
        self.folder = folder
        self.error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self.stop: Callable[[], None] = lambda: None

    def start(self, *, crashes: bool = False) -> None:
        """Begin a life; one that ``crashes`` fails on the first record of any of its members."""
        self.error = None
        self.stop, runs = self.life(crashes=crashes)
        self._threads = [threading.Thread(target=self._run, args=(run,), daemon=True) for run in runs]
        for thread in self._threads:
            thread.start()

    def _run(self, run: Callable[[], object]) -> None:
        try:
            run()
        except BaseException as error:
            self.error = error
            self.stop()

    @property
    def is_running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def has_crashed(self) -> bool:
        return isinstance(getattr(self.error, "__cause__", None), Refused)

    def end(self) -> None:
        """Stop, unless it has ended by itself."""
        self.stop()
        self.ended()

    def ended(self) -> None:
        for thread in self._threads:
            thread.join(_PATIENCE)
            assert not thread.is_alive(), f"{self} goes on and on"

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        came_true: list[bool] = []

        def settled() -> bool:
            running = self.is_running
            if condition():
                came_true.append(True)
            return bool(came_true) or not running

        wait_until(settled, f"{self}: {what}")
        assert came_true, f"{self} ended before {what}: {self.error!r}"

    @abstractmethod
    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        """What stops a life, and what its members run."""

    @abstractmethod
    def has_begun(self) -> bool:
        """Whether the start of every partition is stored."""

    @abstractmethod
    def seen(self) -> list[str]:
        """The records that were processed."""


class WithLedger(Reader):
    """Positions in SQLite."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        url = f"sqlite:///{self.folder / self.topic.name}.db"
        self.engine = create_engine(url)
        with self.engine.begin() as conn:
            conn.execute(text("CREATE TABLE seen (value TEXT)"))
        self.ledger = open_ledger(url)
        self.ledger.create()

    def write(self, tx: Transaction, record: Record, *, crashes: bool) -> None:
        if crashes:
            raise Refused
        tx.execute(text("INSERT INTO seen VALUES (:value)"), {"value": (record.value or b"").decode()})

    def has_begun(self) -> bool:
        return len(self.ledger.read(self.group).positions) == self.topic.partitions

    def seen(self) -> list[str]:
        with self.engine.connect() as conn:
            return list(conn.execute(text("SELECT value FROM seen")).scalars())


class Listener(WithLedger):
    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        app = App(self.kafka, self.ledger)

        @app.listener(self.topic.name, group=self.group, start=self.strategy, threads=self.members, session_timeout=6.0)
        def take(record: Record, tx: Transaction) -> None:
            self.write(tx, record, crashes=crashes)

        return app.stop, [app.run]


class OwnLoops(WithLedger):
    """A consumer of one's own in each thread."""

    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        enough = threading.Event()
        settings = {
            **self.kafka,
            "group.id": self.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "session.timeout.ms": 6000,
        }

        def loop() -> None:
            consumer = Consumer(settings)
            own = OwnLoop(consumer, self.ledger, self.topic.name, kafka=settings, start=self.strategy)
            try:
                while not enough.is_set():
                    record = own.accept(consumer.poll(0.1))
                    if record is None:
                        continue
                    try:
                        with own.transaction(record) as tx:
                            self.write(tx, record, crashes=crashes)
                    except LedgerError:
                        continue
            finally:
                own.close()

        return enough.set, [loop] * self.members

    @property
    def has_crashed(self) -> bool:
        return isinstance(self.error, Refused)


class InKafka(Reader):
    """Positions among Kafka's own offsets."""

    def has_begun(self) -> bool:
        admin = Admin(self.kafka)
        try:
            wanted = admin.partitions([self.topic.name])
            return len(admin.group_offsets(self.group, wanted)) == self.topic.partitions
        except BrokerUnavailable:  # it is starting, or a transaction is open
            return False


class KafkaOffsets(InKafka):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._seen: list[str] = []

    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        app = App(self.kafka, None)

        @app.listener(
            self.topic.name,
            group=self.group,
            start=self.strategy,
            threads=self.members,
            session_timeout=6.0,
            delivery=Delivery.AT_LEAST_ONCE,
        )
        def take(record: Record) -> None:
            if crashes:
                raise Refused
            self._seen.append((record.value or b"").decode())

        return app.stop, [app.run]

    def seen(self) -> list[str]:
        return list(self._seen)


class TopicToTopic(InKafka):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.out = self.topic.sibling("out")

    def life(self, *, crashes: bool) -> tuple[Callable[[], None], list[Callable[[], object]]]:
        app = App(self.kafka, None)

        @app.listener(self.topic.name, group=self.group, start=self.strategy, threads=self.members, session_timeout=6.0)
        def copy(record: Record) -> Outgoing:
            if crashes:
                raise Refused
            return Outgoing(self.out, record.value)

        return app.stop, [app.run]

    def seen(self) -> list[str]:
        consumer = Consumer(
            {
                **self.kafka,
                "group.id": "nobody",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(self.out, 0, 0)])
            found: list[str] = []
            while (message := consumer.poll(_PATIENCE)) is not None and message.error() is None:
                found.append(message.value().decode())
            return found
        finally:
            consumer.close()
