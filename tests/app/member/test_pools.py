"""Listeners with a pool of workers, or of coroutines, on a real broker."""

from __future__ import annotations

import asyncio
import functools
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text
from tests.app.member.stage import GROUP, Row, Running, Stage, numbered, wait_until

from tidegate import open_ledger
from tidegate.app.handler import HandlerFailed
from tidegate.app.writes import NotWritable
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Backoff, DeadLetter, Delivery, GroupProtocol, Retry, Skip
from tidegate.core.records import Record, TopicPartition
from tidegate.ledger.redis import RedisTransaction
from tidegate.observe.events import Committed, DeadLettered, Paused, Rebalanced, Retried, Skipped
from tidegate.sandbox import Kafka, Redis

SOON = 30.0  # seconds, of which hardly any are needed: nothing here waits for the end of an hour
LONG = 40.0
HOUR = Backoff(3600, 1, 3600)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def each_stage(request: pytest.FixtureRequest, kafka: Kafka, stages: Callable[..., Stage], tmp_path: Path) -> Stage:
    """The broker that all tests share, and each SQL database."""
    if request.param == "sqlite":
        return stages(kafka.bootstrap, f"sqlite:///{tmp_path / 'ledger.db'}")
    return stages(kafka.bootstrap, request.getfixturevalue(request.param).url)


class Handler:
    """Returns a row for every record; a record waits while its value is among the ``gates`` that are shut."""

    def __init__(self, stage: Stage) -> None:
        self._insert = stage._data.insert()
        self.seen: list[Record] = []
        self.gates: dict[bytes, threading.Event] = {}

    def shut(self, value: bytes) -> threading.Event:
        return self.gates.setdefault(value, threading.Event())

    def saw(self, value: bytes) -> bool:
        return any(record.value == value for record in self.seen)

    def row(self, record: Record) -> Any:
        payload = None if record.value is None else record.value.decode()
        return self._insert, Row(record.topic, record.partition, record.offset, payload)._asdict()

    def bound(self) -> Callable[[Record], Any]:
        def handle(record: Record) -> Any:
            self.seen.append(record)
            if record.value in self.gates:
                assert self.gates[record.value].wait(LONG)
            if record.value == b"bad":
                raise ValueError("bad")
            return self.row(record)

        return handle


@pytest.fixture
def handler(stage: Stage) -> Iterator[Handler]:
    made = Handler(stage)
    yield made
    for gate in made.gates.values():
        gate.set()


KIND = "threads"


@pytest.fixture(params=["threads", "coroutines"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What runs the handlers: every story is the same for both."""
    monkeypatch.setattr(sys.modules[__name__], "KIND", request.param)
    chosen: str = request.param
    return chosen


def awaited(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The handler as a coroutine that waits for it."""

    @functools.wraps(handler)
    async def handle(given: Any) -> Any:
        return await asyncio.to_thread(handler, given)

    return handle


def listen(stage: Stage, handler: Callable[..., Any], topic: str, **settings: Any) -> Running:
    chosen = {"workers": 4, "ordering": "key", **settings}
    if KIND == "coroutines":
        handler = awaited(handler)
        chosen["concurrency"] = chosen.pop("workers")
    return stage.listen(handler, topic, **chosen)


@pytest.mark.parametrize("ordering", ["key", "partition"])
def test_every_record_is_written_once_in_its_order_and_handled_in_that_of_its_lane(
    each_stage: Stage, ordering: str
) -> None:
    stage = each_stage
    topic = stage.topic(2)
    for number in range(200):
        stage._producer.produce(topic, str(number), key=str(number % 7), partition=number % 2)
    assert stage._producer.flush(LONG) == 0
    handler = Handler(stage)
    handle = handler.bound()
    inside: set[object] = set()

    def slowly(record: Record) -> Any:
        lane = (record.partition, record.key if ordering == "key" else None)
        assert lane not in inside
        inside.add(lane)
        time.sleep(random.random() / 500)
        returned = handle(record)
        inside.remove(lane)
        return returned

    listen(stage, slowly, topic, ordering=ordering, batch=BatchBounds(count=30), until_caught_up=True).ended()
    assert stage.offsets(topic, 0) == stage.offsets(topic, 1) == list(range(100))
    lanes: dict[object, list[int]] = defaultdict(list)
    for record in handler.seen:
        lanes[record.partition, record.key if ordering == "key" else None].append(record.offset)
    assert all(offsets == sorted(set(offsets)) for offsets in lanes.values())
    assert len(lanes) == (14 if ordering == "key" else 2)
    stage.verify()


def test_a_slow_key_stops_neither_other_keys_nor_other_partitions(stage: Stage, handler: Handler) -> None:
    topic = stage.topic(2)
    slow = handler.shut(b"slow")
    running = listen(stage, handler.bound(), topic, workers=2, buffer_bytes=50_000)
    stage.send(topic, ["slow"], key="a")
    stage.send(topic, ["x" * 1000] * 100, key="b")  # more than the buffers hold
    stage.send(topic, ["y" * 1000] * 100, partition=1)
    wait_until(lambda: len(stage.offsets(topic, 1)) == 100, "the other partition", SOON)
    wait_until(lambda: handler.saw(b"x" * 1000), "the other key", SOON)
    assert stage.offsets(topic, 0) == []
    assert running.member._intake.bytes <= 50_000
    slow.set()
    wait_until(lambda: len(stage.offsets(topic, 0)) == 101, "the slow one", SOON)
    running.stop()
    stage.verify()


def test_a_failure_stops_the_listener_and_names_the_record(stage: Stage, handler: Handler) -> None:
    topic = stage.topic()
    stage.send(topic, ["0", "1", "bad", "3"])
    with pytest.raises(
        HandlerFailed, match=r"offset 2: the handler failed with ValueError: bad\. The position"
    ) as told:
        listen(stage, handler.bound(), topic).ended()
    assert (told.value.partition, told.value.offset) == (TopicPartition(topic, 0), 2)
    assert stage.position(TopicPartition(topic, 0)).owner is None
    assert len(stage.rows()) == stage.position(TopicPartition(topic, 0)).next_offset <= 2


def test_records_that_fail_are_parked_or_skipped_in_their_place_and_tombstones_are_handled(
    stage: Stage, handler: Handler
) -> None:
    topic = stage.topic()
    stage.send(topic, ["0", "bad", None, "3"])
    policy = Retry(2, Backoff(0.1, 1, 0.1), then=DeadLetter())
    running = listen(stage, handler.bound(), topic, on_error=policy, until_caught_up=True)
    running.ended()
    assert stage.payloads() == ["0", None, "3"]
    (parked,) = stage.ledger.dead_letters(GROUP)
    assert (parked.letter.record.offset, parked.letter.attempts, parked.letter.error) == (1, 3, "ValueError: bad")
    assert [(event.offset, event.attempts) for event in running.told(Retried)] == [(1, 1), (1, 2)]
    assert [event.offset for event in running.told(DeadLettered)] == [1]

    stage.send(topic, ["bad", "5"])
    running = listen(stage, handler.bound(), topic, on_error=Skip(), until_caught_up=True)
    running.ended()
    assert stage.offsets() == [0, 2, 3, 5]
    assert [event.span.start for event in running.told(Skipped)] == [4]
    stage.verify()


def test_only_the_record_whose_row_the_database_refuses_is_parked(each_stage: Stage) -> None:
    stage = each_stage
    topic = stage.topic(2)
    name = f"{stage.name}_once"
    with stage._engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, n INTEGER)"))
    stage.send(topic, [*numbered(20), "7", *numbered(20, first=20)])
    stage.send(topic, numbered(20, first=100), partition=1)
    insert = text(f"INSERT INTO {name} (id, n) VALUES (:id, :n)")

    def handle(number: int) -> Any:
        return insert, {"id": number, "n": number}

    listen(stage, handle, topic, on_error=Retry(3, HOUR, then=DeadLetter()), until_caught_up=True).ended()
    with stage._engine.connect() as connection:
        found = set(connection.scalars(text(f"SELECT id FROM {name}")))
    assert found == {*range(40), *range(100, 120)}
    (parked,) = stage.ledger.dead_letters(GROUP)
    assert (parked.letter.record.offset, parked.letter.record.value) == (20, b"7")
    assert stage.position(TopicPartition(topic, 0)).next_offset == 41
    stage.verify()


def test_a_retry_waits_in_no_thread_and_a_stop_leaves_at_once(stage: Stage, handler: Handler) -> None:
    topic = stage.topic(2)
    stage.send(topic, ["bad", "1"], key="a")
    running = listen(stage, handler.bound(), topic, workers=1, on_error=Retry(1, HOUR))
    running.wait_for(Retried)
    stage.send(topic, ["other"], partition=1)
    wait_until(lambda: stage.payloads(topic, 1) == ["other"], "the other partition", SOON)
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < SOON
    assert stage.payloads(topic, 0) == []


def test_a_stop_does_not_wait_for_a_handler_and_what_it_computes_is_not_written(stage: Stage, handler: Handler) -> None:
    topic = stage.topic()
    stage.send(topic, ["slow", *numbered(100)])
    slow = handler.shut(b"slow")
    running = listen(stage, handler.bound(), topic, workers=2)
    wait_until(lambda: handler.saw(b"slow") and handler.saw(b"99"), "the handlers", SOON)
    began = time.monotonic()
    running.stop()
    assert time.monotonic() - began < SOON
    slow.set()
    assert stage.rows() == []
    listen(stage, handler.bound(), topic, until_caught_up=True).ended()
    assert stage.offsets() == list(range(101))
    stage.verify()


def test_a_rewind_while_a_handler_runs_is_followed_and_its_result_is_forgotten(stage: Stage, handler: Handler) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, [*numbered(5), "slow", "6"])
    slow = handler.shut(b"slow")
    running = listen(stage, handler.bound(), topic, workers=2, ordering="partition", batch=BatchBounds(count=1))
    wait_until(lambda: stage.offsets() == list(range(5)) and handler.saw(b"slow"), "the slow one", SOON)
    stage.ledger.edit(GROUP, {tp: 3})
    wait_until(lambda: running.member._assignment.state(tp).claim.position == 3, "the new claim", SOON)  # type: ignore[union-attr]
    slow.set()
    wait_until(lambda: len(stage.rows()) == 9, "what was rewound", SOON)
    running.stop()
    assert stage.offsets() == [*range(5), *range(3, 7)]
    stage.verify()


def test_a_skip_past_a_record_that_then_fails_is_no_failure(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    entered, go = threading.Event(), threading.Event()
    handler = Handler(stage)

    def handle(record: Record) -> Any:
        if record.offset == 0:
            entered.set()
            assert go.wait(LONG)
            raise ValueError("bad")
        return handler.row(record)

    running = listen(stage, handle, topic)
    stage.send(topic, numbered(3))
    assert entered.wait(LONG)
    stage.ledger.edit(GROUP, {tp: 1})
    wait_until(lambda: stage.offsets() == [1, 2], "what is behind it", SOON)
    go.set()
    stage.send(topic, ["3"])
    wait_until(lambda: stage.offsets() == [1, 2, 3], "what comes after it", SOON)
    running.stop()
    stage.verify()


def test_no_handler_begins_during_a_pause(stage: Stage, handler: Handler) -> None:
    topic = stage.topic()
    running = listen(stage, handler.bound(), topic, workers=1)
    slow = handler.shut(b"slow")
    stage.send(topic, ["slow", *numbered(50)])
    wait_until(lambda: handler.saw(b"slow"), "the first record", SOON)
    stage.ledger.pause(GROUP)
    running.wait_for(Paused)
    wait_until(lambda: running.member._intake._computing._pool._held, "the pool to hold", SOON)  # type: ignore[union-attr]
    slow.set()
    assert len(handler.seen) == 1
    assert stage.rows() == []
    running.stop()
    running = listen(stage, handler.bound(), topic)
    running.wait_for(Paused)
    assert len(handler.seen) == 1, "not in a listener either that finds its group paused"
    stage.ledger.resume(GROUP)
    wait_until(lambda: stage.offsets() == list(range(51)), "everything", SOON)
    running.stop()
    stage.verify()


@pytest.mark.parametrize("protocol", [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE])
def test_a_second_member_takes_its_partitions_over_while_handlers_run(stage: Stage, protocol: GroupProtocol) -> None:
    topic = stage.topic(4)
    for partition in range(4):
        stage.send(topic, numbered(200), partition=partition)
    handler = Handler(stage)

    def slowly(record: Record) -> Any:
        time.sleep(0.002)
        return handler.row(record)

    settings: dict[str, Any] = {"batch": BatchBounds(count=20), "protocol": protocol}
    first = listen(stage, slowly, topic, **settings)
    first.wait_for(Committed)
    second = listen(stage, slowly, topic, **settings)
    second.wait_for(Rebalanced, lambda event: event.kind == "assigned" and event.partitions)
    assert first.wait_for(Rebalanced, lambda event: event.kind == "revoked").seconds < 20
    first.stop()
    wait_until(lambda: len(stage.rows()) >= 800, "everything")
    second.stop()
    for partition in range(4):
        assert stage.offsets(topic, partition) == list(range(200))
    stage.verify()


def test_the_buffers_stay_within_their_bytes(stage: Stage) -> None:
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, [f"{number:05d}" * 2000 for number in range(100)], partition=partition)  # 10 kB each
    bound = 400_000
    held: list[int] = []
    handler = Handler(stage)

    def slowly(record: Record) -> Any:
        time.sleep(0.001)
        held.append(running.member._intake.bytes)
        return handler.row(record)

    running = listen(stage, slowly, topic, buffer_bytes=bound, batch=BatchBounds(count=10))
    wait_until(lambda: len(stage.rows()) == 200, "everything")
    running.stop()
    assert 0 < max(held) <= bound + 20_000, "one record of each partition may be more than was to be fetched"
    assert stage.offsets(topic, 0) == stage.offsets(topic, 1) == list(range(100))


def test_on_redis_a_function_of_the_transaction_is_what_can_be_written(stage: Stage, redis_server: Redis) -> None:
    topic = stage.topic()
    for number in range(100):
        stage._producer.produce(topic, str(number), key=str(number % 5))
    assert stage._producer.flush(LONG) == 0
    prefix = f"{{{topic}}}:"

    def count(number: int) -> Any:
        def add(tx: RedisTransaction) -> None:
            tx.redis.rpush(f"{prefix}{number % 5}", number)

        return add

    with open_ledger(redis_server.url, prefix=prefix) as ledger:
        ledger.create()
        listen(stage, count, topic, ledger=ledger, on_error=DeadLetter(), until_caught_up=True).ended()
        with redis.Redis.from_url(redis_server.url) as client:
            for key in range(5):
                assert client.lrange(f"{prefix}{key}", 0, -1) == [b"%d" % number for number in range(key, 100, 5)]
        assert ledger.verify(GROUP).ok

        stage.send(topic, ["100"])

        def write(number: int) -> Any:
            return text("SELECT 1")

        with pytest.raises(NotWritable, match="no SQL database to run it in"):
            listen(stage, write, topic, ledger=ledger, on_error=DeadLetter()).ended()
        assert ledger.dead_letters(GROUP) == []


def test_without_a_ledger_a_pool_is_at_least_once(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(50))
    seen: list[int] = []

    def see(number: int) -> None:
        seen.append(number)

    for _ in range(2):
        listen(stage, see, topic, ledger=None, delivery=Delivery.AT_LEAST_ONCE, until_caught_up=True).ended()
    assert sorted(seen) == list(range(50))
