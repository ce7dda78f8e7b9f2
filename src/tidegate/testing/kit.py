"""The test kit: sends records, runs an app's listeners, injects faults, and checks the results."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from sqlalchemy import URL, Engine

from tidegate.app import App, ListenerSpec
from tidegate.core.arguments import Count, Seconds, argument
from tidegate.core.journal import Entry, Kind, Verification
from tidegate.core.records import Record, StoredLetter, TopicPartition, check_topic
from tidegate.errors import ConfigurationError
from tidegate.kafka.config import KafkaArgument
from tidegate.kafka.partitioners import java_partition
from tidegate.kafka.serializers import as_json, by_type
from tidegate.ledger import Ledger, open_ledger
from tidegate.testing.broker import KitBroker, LocalBroker
from tidegate.testing.faults import Fault, FaultMissed, NotCaughtUp
from tidegate.testing.run import Run, Running, hurried

if TYPE_CHECKING:
    import redis

__all__ = ["Headers", "TestKit", "as_bytes", "as_headers", "as_key"]


Headers: TypeAlias = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


def as_bytes(value: Any) -> bytes | None:
    """Keep bytes and ``None``, encode text as UTF-8 and anything else as JSON."""
    return by_type(value) if isinstance(value, bytes | str) else as_json(value)


def as_key(key: str | bytes | None) -> bytes | None:
    """Encode a key as UTF-8; bytes and ``None`` stay as they are."""
    return key.encode() if isinstance(key, str) else key


def as_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Convert headers to pairs of a name and bytes or ``None``."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, as_key(value)) for name, value in pairs)


_SWITCH = "TIDEGATE_TEST_BROKER"
_WITHIN = 30.0


class TestKit:
    """Runs the listeners of an app in a test: the app's own code on a real ledger, with the topics in this process.

    ``ledger`` replaces the app's; it takes what :class:`App` takes. ``batch`` limits the records of a transaction, so
    that a test gets several transactions. ``broker`` is ``"local"``, the address or the settings of a real broker, or
    ``"sandbox"``, which starts one; the default is the value of ``TIDEGATE_TEST_BROKER``, else ``"local"``. Close the
    kit, or use it in ``with``.
    """

    __test__ = False  # pytest would collect it as a test class

    def __init__(
        self,
        app: App,
        *,
        ledger: str | URL | Engine | redis.Redis | Ledger[Any] | None = None,
        broker: str | Mapping[str, Any] | None = None,
        batch: int | None = None,
    ) -> None:
        self.app: App = argument("app", App, app)
        self._own_ledger = ledger is not None and not isinstance(ledger, Ledger)
        self._ledger = app.ledger if ledger is None else ledger if isinstance(ledger, Ledger) else open_ledger(ledger)
        self._batch: int | None = argument("batch", Count | None, batch)
        self._turn = 0
        self._broker: KitBroker = _broker(broker)

    @property
    def ledger(self) -> Ledger[Any]:
        """The ledger that the listeners run on; raises if the app has none."""
        if self._ledger is None:
            raise ConfigurationError("the app has no ledger: its positions are in Kafka")
        return self._ledger

    @property
    def engine(self) -> Engine:
        """The SQLAlchemy engine of the ledger, for access to the tables that handlers write to."""
        if self.ledger.engine is None:
            raise ConfigurationError(f"{type(self.ledger).__name__} is no SQL database and has no engine")
        return self.ledger.engine

    # Topics

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, or add partitions to one. A topic that a test does not create gets one partition."""
        self._broker.create(check_topic(name), argument("partitions", Count, partitions))

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Record:
        """Append a record to a topic. Bytes and ``None`` are stored as they are, text as UTF-8, anything else as JSON.

        Without a ``partition``, records with the same key go to the same partition, and records without a key go to
        the partitions in turn.
        """
        count = self._broker.partitions(topic)
        if count == 0:
            self._broker.create(topic, 1)
            count = 1
        if partition is None:
            partition = self._next() % count if key is None else java_partition(as_key(key) or b"", count)
        elif not 0 <= partition < count:
            raise ConfigurationError(f"{topic!r} has {count} partitions, and no {partition}; kit.topic() makes more")
        now = int(time.time() * 1000) if timestamp is None else timestamp
        record = Record(topic, partition, 0, as_key(key), as_bytes(value), as_headers(headers), now)
        return self._broker.append(record)

    # Running

    def run(self, *faults: Fault, group: str | None = None, within: float = _WITHIN, may_miss: bool = False) -> Run:
        """Run every listener, or those of one ``group``, until all records are handled, as a new process would.

        Raises the error that a listener failed with, or :class:`NotCaughtUp` after ``within`` seconds. Each of the
        ``faults`` strikes once; :class:`FaultMissed` is raised for one that did not, unless ``may_miss`` is set.
        """
        within = argument("within", Seconds, within)
        may_miss = argument("may_miss", bool, may_miss)
        for fault in faults:
            argument("faults", Fault, fault)
        listeners = [each for each in self.app.listeners if group in (None, each.spec.group)]
        if not listeners:
            raise ConfigurationError("the app has no listener" + (f" of group {group!r}" if group else ""))
        for listener in listeners:
            for name in {*listener.spec.topics.names, *(tp.topic for tp in listener.spec.topics.partitions)}:
                if not self._broker.partitions(name):
                    self._broker.create(name, 1)
        brisk = [hurried(listener, self._batch) for listener in listeners]
        running = Running(self.app, brisk, self._broker, self._ledger)
        run = running.run(faults, within, lambda: not any(self._behind(listener.spec) for listener in listeners))
        if running.late:
            raise NotCaughtUp(self._how_far(listeners[0].spec, within))
        if running.missed and not may_miss:
            reached = ", ".join(step.name for step in run.steps) or "nothing"
            raise FaultMissed(f"{running.missed[0]} did not strike: the run ended before it. It reached {reached}")
        return run

    # Results

    def positions(self, group: str) -> dict[TopicPartition, int]:
        """Return the group's positions: the next offset of each partition."""
        if self._ledger is None:
            return self._broker.committed(group)
        rows = self._ledger.read(group).positions
        return {tp: row.next_offset for tp, row in sorted(rows.items())}

    def dead_letters(self, group: str) -> list[StoredLetter]:
        """Return the dead letters of a group, in order."""
        return self.ledger.dead_letters(group, limit=1 << 30)

    def journal(self, group: str, *kinds: Kind) -> list[Entry]:
        """Return the journal entries of a group, all or only these kinds."""
        return [entry for entry in self.ledger.journal(group) if not kinds or entry.kind in kinds]

    def verify(self, group: str) -> Verification:
        """Verify the journal of a group: it has a break wherever an advance does not begin where the last one ended."""
        return self.ledger.verify(group)

    def check(self) -> None:
        """Raise ``AssertionError`` unless every group is at the end of its topics and its journal has no breaks."""
        for group in sorted({listener.spec.group for listener in self.app.listeners}):
            if self._ledger is None:
                continue
            verification = self.verify(group)
            if not verification.ok:
                raise AssertionError(f"group {group!r}: the journal has breaks: {verification.breaks}")
        for listener in self.app.listeners:
            if behind := self._behind(listener.spec):
                raise AssertionError(f"group {listener.spec.group!r} is not at the end of its topics: {behind}")

    def _behind(self, spec: ListenerSpec) -> str:
        """Name the partitions that a listener has not read to their end; empty if there are none."""
        positions = self.positions(spec.group)
        ends = self._broker.ends(self._topics_of(spec))
        if spec.topics.partitions:
            ends = {tp: ends[tp] for tp in spec.topics.partitions if tp in ends}
        # A ledger has a position even for a partition that never moved; Kafka's group offsets do not.
        short = (tp for tp, end in ends.items() if positions.get(tp, None if self._ledger else 0) != end)
        return ", ".join(f"{tp} is at {positions.get(tp, 'no position')} of {ends[tp]}" for tp in short)

    def _topics_of(self, spec: ListenerSpec) -> list[str]:
        topics = spec.topics
        if topics.pattern is not None:
            return [name for name in self._broker.names() if re.match(topics.pattern, name)]
        return [*topics.names, *(tp.topic for tp in topics.partitions)]

    def _how_far(self, spec: ListenerSpec, within: float) -> str:
        where = self._behind(spec) or "its topics are read to their end"
        return (
            f"the listeners did not catch up within {within:g} s; group {spec.group!r}: {where}. Is the group paused, "
            "or does a handler wait for something?"
        )

    # Closing

    def close(self) -> None:
        """Close the broker, and the ledger if the kit opened it."""
        self._broker.close()
        if self._own_ledger and self._ledger is not None:
            self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> int:
        self._turn += 1
        return self._turn - 1


def _broker(said: str | Mapping[str, Any] | None) -> KitBroker:
    chosen = said if said is not None else os.environ.get(_SWITCH) or "local"
    if chosen == "local":
        return LocalBroker()
    from tidegate.testing.real import RealBroker, sandbox  # noqa: PLC0415 - a client that most tests do without

    if chosen == "sandbox":
        return RealBroker({"bootstrap.servers": sandbox()})
    return RealBroker(argument("broker", KafkaArgument, chosen))
