"""Members that want the same rows: each record is counted once, and no conflict is taken for an outage."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.app.member.stage import GROUP, Running, Stage, wait_until

from tidegate import Backoff, BatchBounds, Delivery, Record, Retry, open_ledger
from tidegate.ledger import SqlTransaction
from tidegate.observe.events import Committed, Conflicted, StoreLost
from tidegate.sandbox import Kafka

ROWS = 30
RECORDS = 1500
SOON = 30.0


class Counters:
    """A stage whose handler counts rows up that all partitions share."""

    def __init__(self, stage: Stage, url: str) -> None:
        self.stage, self.url = stage, url
        self.engine = create_engine(url)
        self.table = f"{stage.name}_counters"
        self.update = text(f"UPDATE {self.table} SET n = n + 1 WHERE id = :id")
        with self.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE {self.table} (id INT PRIMARY KEY, n INT NOT NULL)"))
            rows = [{"id": row} for row in range(ROWS)]
            conn.execute(text(f"INSERT INTO {self.table} VALUES (:id, 0)"), rows)
        self._closing = ExitStack()
        self._closing.callback(self.engine.dispose)

    def close(self) -> None:
        self._closing.close()

    def listen(
        self, topic: str, handler: Callable[..., None] | None = None, engine: Engine | None = None, **settings: Any
    ) -> Running:
        """A member with a ledger of its own, as another process would have it."""
        ledger = open_ledger(self.url if engine is None else engine, prefix=f"{self.stage.name}_")
        self._closing.callback(ledger.close)

        def count(record: Record, tx: SqlTransaction) -> None:
            tx.execute(self.update, {"id": int(record.value or b"0")})

        return self.stage.listen(handler or count, topic, ledger=ledger, **settings)

    def counted(self) -> Counter[int]:
        with self.engine.connect() as conn:
            rows = conn.execute(text(f"SELECT id, n FROM {self.table}")).all()
        return Counter({row: n for row, n in rows if n})


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def counters(request: pytest.FixtureRequest, kafka: Kafka, stages: Callable[..., Stage]) -> Iterator[Counters]:
    url = str(request.getfixturevalue(request.param).url)
    opened = Counters(stages(kafka.bootstrap, url), url)
    yield opened
    opened.close()


def of(kind: type, *members: Running) -> list[Any]:
    return [event for member in members for event in member.told(kind)]


def spread(counters: Counters, topic: str, members: list[Running], partitions: int) -> None:
    """Wait until each member has its share."""
    share = partitions // len(members)
    wait_until(lambda: {len(each.member._assignment.partitions) for each in members} == {share}, "a share for each")
    wait_until(lambda: all(row.owner for row in counters.stage.ledger.read(GROUP).positions.values()), "claims")


def test_three_members_that_share_rows_count_each_record_once_and_no_partition_rests(counters: Counters) -> None:
    topic = counters.stage.topic(6)
    members = [counters.listen(topic) for _ in range(3)]
    spread(counters, topic, members, 6)
    chance = random.Random(5)
    expected = [chance.randrange(ROWS) for _ in range(RECORDS)]
    for partition in range(6):
        counters.stage.send(topic, map(str, expected[partition::6]), partition=partition)
    began = time.monotonic()
    positions, moved, rests = Counter[Any](), dict.fromkeys(range(6), began), list[float]()
    while positions.total() < RECORDS:
        now = time.monotonic()
        assert now - began < 60, f"{positions.total()} of {RECORDS} records"
        for tp, row in counters.stage.ledger.read(GROUP).positions.items():
            if row.next_offset > positions[tp]:
                rests.append(now - moved[tp.partition])
                positions[tp], moved[tp.partition] = row.next_offset, now
        time.sleep(0.02)
    for member in members:
        member.stop()

    assert counters.counted() == Counter(expected)
    assert not of(StoreLost, *members)
    assert max(rests) < 10, "seconds in which a partition did not move"
    counters.stage.verify()


def test_two_members_in_a_deadlock_are_told_of_a_conflict_and_go_on_one_after_the_other(counters: Counters) -> None:
    """Each has counted its first row up before it asks for the other's."""
    topic = counters.stage.topic(2)
    met = threading.Barrier(2)
    first_time = {0, 1}

    def meet(record: Record, tx: SqlTransaction) -> None:
        tx.execute(counters.update, {"id": int(record.value or b"0")})
        if record.offset == 0 and record.partition in first_time:
            try:
                met.wait(3)
            except threading.BrokenBarrierError:  # the other one is late: roll back, and try again
                met.reset()
                raise
            first_time.discard(record.partition)

    settings = {"batch": BatchBounds(40, age=SOON), "on_error": Retry(100, Backoff(0.1, 1, 0.1))}
    members = [counters.listen(topic, meet, **settings) for _ in range(2)]
    spread(counters, topic, members, 2)
    counters.stage.send(topic, ["0", "1"] * 20, partition=0)
    counters.stage.send(topic, ["1", "0"] * 20, partition=1)
    wait_until(lambda: counters.counted() == {0: 40, 1: 40}, "80 records")
    for member in members:
        member.stop()

    assert counters.counted() == {0: 40, 1: 40}
    conflicts = of(Conflicted, *members)
    assert conflicts
    assert sum(event.conflicts for event in conflicts) >= 1
    assert not of(StoreLost, *members)
    counters.stage.verify()


class Stranger:
    """Changes a row behind the snapshot of every transaction that has more than one record."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._seen: Any = None
        self.is_there = True
        self.count = 0

    def disturb(self, tx: SqlTransaction) -> None:
        """To be called with each record."""
        if tx is self._seen and self.is_there:
            self.count += 1
            with self._counters.engine.begin() as conn:
                conn.execute(self._counters.update, {"id": 1})
            tx.execute(self._counters.update, {"id": 1})
        self._seen = tx


@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_with_less_than_exactly_once_records_get_on_one_by_one_and_no_conflict_is_an_outage(
    kafka: Kafka, stages: Callable[..., Stage], postgres: Any, delivery: Delivery
) -> None:
    counters = Counters(stages(kafka.bootstrap, postgres.url), postgres.url)
    topic = counters.stage.topic(1)
    counters.stage.send(topic, ["0"] * 20, partition=0)
    stranger = Stranger(counters)

    def count(record: Record, tx: SqlTransaction) -> None:
        stranger.disturb(tx)
        tx.execute(counters.update, {"id": 0})

    snapshots = create_engine(postgres.url, isolation_level="REPEATABLE READ")
    member = counters.listen(topic, count, snapshots, until_caught_up=True, delivery=delivery)
    member.ended()
    assert counters.counted()[0] == 20
    assert stranger.count >= 2
    assert not member.told(StoreLost)
    counters.stage.verify()
    snapshots.dispose()
    counters.close()


def test_others_than_the_group_in_the_way_make_batches_smaller_down_to_one_record_and_then_they_grow_again(
    kafka: Kafka, stages: Callable[..., Stage], postgres: Any
) -> None:
    """A stranger changes a row between a snapshot and its use, whenever there is more than one record to disturb."""
    counters = Counters(stages(kafka.bootstrap, postgres.url), postgres.url)
    topic = counters.stage.topic(1)
    counters.stage.send(topic, ["0"] * 200, partition=0)
    stranger = Stranger(counters)

    def count(record: Record, tx: SqlTransaction) -> None:
        stranger.disturb(tx)
        tx.execute(counters.update, {"id": 0})
        if record.offset == 5:
            stranger.is_there = False

    snapshots = create_engine(postgres.url, isolation_level="REPEATABLE READ")
    member = counters.listen(topic, count, snapshots, until_caught_up=True, batch=BatchBounds(64, age=0))
    member.ended()

    sizes = [span.records for event in member.told(Committed) for span in event.spans]
    assert sizes[:5] == [1] * 5
    assert max(sizes) > 16  # up to 64, if as many have been read by then
    assert all(size <= 2 * before for before, size in pairwise(sizes))
    assert counters.counted()[0] == 200
    assert [len(event.spans) for event in member.told(Conflicted)] == [1] * stranger.count
    assert not member.told(StoreLost)
    counters.stage.verify()
    snapshots.dispose()
    counters.close()
