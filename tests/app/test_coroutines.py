"""Coroutines as handlers: what may be awaited, what limits it, and what an app has for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.patience import PATIENCE, wait_until

from tidegate import App, Backoff, ConfigurationError, DeadLetter, Delivery, Outgoing, Record, Retry, Table, Transaction
from tidegate.app import coroutines
from tidegate.app.handler import HandlerFailed
from tidegate.app.lifespan import Lifespan
from tidegate.core.policies import Ordering
from tidegate.core.records import TopicPartition
from tidegate.errors import ListenerStopped
from tidegate.testing import Crash, NotCaughtUp, Step, TestKit

INSERT = text("INSERT INTO seen (place, value) VALUES (:place, :value)")
QUICK = Backoff(0.001, 1, 0.001)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(ledger=f"sqlite:///{tmp_path / 'shop.db'}")
    assert made.ledger is not None and made.ledger.engine is not None
    with made.ledger.engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (id INTEGER PRIMARY KEY, place INTEGER, value TEXT)"))
    yield made
    made.ledger.close()


def seen(app: App) -> list[tuple[int, str]]:
    assert app.ledger is not None and app.ledger.engine is not None
    with app.ledger.engine.connect() as connection:
        return [(row.place, row.value) for row in connection.execute(text("SELECT place, value FROM seen ORDER BY id"))]


def row(record: Record, value: str = "") -> Any:
    return INSERT, {"place": record.offset, "value": value}


def listen(app: App, function: Callable[..., Any], **settings: Any) -> None:
    app.listener("orders", **{"group": "g", "ordering": "key", **settings})(function)


def feed(kit: TestKit, count: int, keys: int = 1000, first: int = 0) -> None:
    for number in range(first, first + count):
        kit.send("orders", str(number), key=str(number % keys))


def test_coroutines_wait_side_by_side_and_write_in_order(app: App) -> None:
    running = most = 0
    lanes: set[bytes | None] = set()

    async def quote(record: Record) -> Any:
        nonlocal running, most
        assert record.key not in lanes
        lanes.add(record.key)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        lanes.remove(record.key)
        return row(record)

    listen(app, quote, concurrency=50)
    with TestKit(app) as kit:
        feed(kit, 1000, keys=200)
        kit.run(within=PATIENCE)
        kit.check()
    assert [place for place, _ in seen(app)] == list(range(1000))
    assert most == 50


def test_by_partition_the_coroutines_of_a_partition_run_one_after_the_other(app: App) -> None:
    inside: set[TopicPartition] = set()
    together = 0

    async def quote(record: Record) -> Any:
        nonlocal together
        assert record.source not in inside
        inside.add(record.source)
        together = max(together, len(inside))
        await asyncio.sleep(0.001)
        inside.remove(record.source)
        return row(record)

    listen(app, quote, ordering="partition")
    with TestKit(app) as kit:
        kit.topic("orders", 3)
        feed(kit, 90)
        kit.run(within=PATIENCE)
    assert together == 3
    assert len(seen(app)) == 90


def test_a_crash_between_result_and_commit_writes_each_record_once(app: App) -> None:
    async def quote(record: Record) -> Any:
        await asyncio.sleep(0)
        return row(record)

    listen(app, quote)
    with TestKit(app, batch=10) as kit:
        feed(kit, 60)
        kit.run(Crash(Step.WRITTEN, 2), within=PATIENCE)
        kit.run(Crash(Step.COMMITTED), within=PATIENCE)
        kit.run(within=PATIENCE)
        kit.check()
    assert [place for place, _ in seen(app)] == list(range(60))


def test_a_coroutine_over_its_limit_is_cancelled_and_fails_by_the_policy(app: App) -> None:
    cancelled = []

    async def quote(record: Record) -> Any:
        if record.value == b"3":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(record.offset)
                raise
        return row(record)

    listen(app, quote, timeout=0.2, on_error=Retry(1, QUICK, then=DeadLetter()))
    with TestKit(app) as kit:
        feed(kit, 6)
        kit.run(within=PATIENCE)
        (parked,) = kit.dead_letters("g")
    assert cancelled == [3, 3]
    assert (parked.letter.record.offset, parked.letter.attempts) == (3, 2)
    assert parked.letter.error == "TimeoutError: no result within 0.2 s (timeout)"
    assert [place for place, _ in seen(app)] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), TimeoutError("theirs"), ValueError("bad")])
def test_what_a_coroutine_raises_is_the_fault_of_its_record(app: App, raised: BaseException) -> None:
    async def quote(record: Record) -> Any:
        await asyncio.sleep(0)
        if record.value == b"1":
            raise raised
        return row(record)

    listen(app, quote, on_error=DeadLetter())
    with TestKit(app) as kit:
        feed(kit, 3)
        kit.run(within=PATIENCE)
        (parked,) = kit.dead_letters("g")
    assert parked.letter.record.offset == 1
    assert [place for place, _ in seen(app)] == [0, 2]
    if isinstance(raised, TimeoutError):
        assert parked.letter.error == "TimeoutError: theirs"


def test_a_failure_stops_the_listener_and_names_the_record(app: App) -> None:
    async def quote(record: Record) -> Any:
        if record.value == b"2":
            raise ValueError("bad")
        return row(record)

    listen(app, quote)
    with TestKit(app) as kit:
        feed(kit, 5)
        with pytest.raises(HandlerFailed, match="offset 2: the handler failed with ValueError: bad"):
            kit.run(within=PATIENCE)


def test_sys_exit_in_a_coroutine_ends_the_app_and_not_only_its_task(app: App) -> None:
    async def quote(record: Record) -> Any:
        raise SystemExit(7)

    listen(app, quote)
    with TestKit(app) as kit:
        feed(kit, 1)
        with pytest.raises(SystemExit):
            kit.run(within=PATIENCE)


def test_a_coroutine_that_never_ends_is_reported_stops_its_partition_only_and_a_stop_is_obeyed(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coroutines, "_LONG", 0.3)
    caplog.set_level(logging.WARNING, "tidegate")
    started: list[tuple[int, int]] = []

    async def quote(record: Record) -> Any:
        started.append((record.partition, record.offset))
        if record.value == b"stuck":
            await asyncio.Event().wait()
        return row(record, str(record.partition))

    listen(app, quote, ordering="partition", concurrency=2)
    with TestKit(app) as kit:
        kit.topic("orders", 2)
        kit.send("orders", "stuck", partition=0)
        for _ in range(200):
            kit.send("orders", "on", partition=1)
        with pytest.raises(NotCaughtUp, match=r"orders\[0\] is at 0 of 1"):
            kit.run(within=8)
    assert len(seen(app)) == 200
    told = [each.getMessage() for each in caplog.records if "has been handled for" in each.getMessage()]
    assert told and all("orders[0] offset 0" in each and "timeout=" in each for each in told)
    assert len(told) <= 6, "each time after twice as long"


def test_a_replay_awaits_the_coroutine(app: App) -> None:
    ok = False

    async def quote(record: Record) -> Any:
        await asyncio.sleep(0)
        if not ok:
            raise ValueError("not yet")
        return row(record, "again")

    listen(app, quote, on_error=DeadLetter())
    with TestKit(app) as kit:
        feed(kit, 1)
        kit.run(within=PATIENCE)
        app.kafka["bootstrap.servers"] = "nowhere:9"
        (failed,) = app.replay("g")
        assert failed.error == "ValueError: not yet"
        ok = True
        (done,) = app.replay("g")
        assert done.error is None
    assert seen(app) == [(0, "again")]
    assert not [each for each in threading.enumerate() if each.name == "tidegate-loop"]


async def with_transaction(record: Record, tx: Transaction) -> None: ...
async def with_batch(records: list[Record]) -> None: ...
async def to_topic(record: Record) -> Outgoing:
    return Outgoing("t", b"")


def plain(record: Record) -> None: ...
async def plain_coroutine(record: Record) -> None: ...


@pytest.mark.parametrize(
    ("function", "settings", "why"),
    [
        (with_transaction, {}, "whose row locks would be held while it waits. Leave the transaction out and return"),
        (with_batch, {}, "awaited for many records at once"),
        (to_topic, {}, "plain 'def'"),
        (plain_coroutine, {"workers": 8}, "workers are threads; say concurrency=8 instead"),
        (plain, {"concurrency": 8}, "concurrency is for coroutines"),
        (plain, {"timeout": 8}, "timeout is for coroutines"),
        (plain_coroutine, {"concurrency": 0}, "concurrency: .*a whole number from 1 to 10000"),
        (plain_coroutine, {"concurrency": "many"}, "concurrency: .*a whole number"),
        (plain_coroutine, {"concurrency": 10_001}, "10000"),
        (plain_coroutine, {"timeout": 0}, "timeout"),
        (plain_coroutine, {"timeout": float("nan")}, "timeout"),
        (plain_coroutine, {"timeout": "soon"}, "timeout"),
    ],
)
def test_what_a_coroutine_cannot_be_is_refused_with_the_way_out(
    app: App, function: Callable[..., Any], settings: dict[str, Any], why: str
) -> None:
    ledger = None if function is to_topic else app.ledger
    with pytest.raises(ConfigurationError, match=why):
        listen(App(ledger=ledger), function, **settings)
    listen(app, plain_coroutine, concurrency="8", timeout="5s")
    assert (app.listeners[-1].spec.concurrency, app.listeners[-1].spec.timeout) == (8, 5.0)


def test_at_most_once_without_a_ledger_and_sinks_refuse_coroutines(app: App) -> None:
    with pytest.raises(ConfigurationError, match="moves the position first"):
        listen(App(ledger=None), plain_coroutine, delivery=Delivery.AT_MOST_ONCE)
    with pytest.raises(ConfigurationError, match="leave concurrency and timeout out"):
        app.sink("orders", into=Table("orders"), timeout=1)


def test_a_cancelled_computation_cancels_its_coroutine_and_the_lane_goes_on_when_that_has_ended() -> None:
    story: list[str] = []
    started = threading.Event()

    async def compute(record: Record, attempt: int) -> int:
        story.append(f"began {record.offset}")
        if record.offset == 0:
            started.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.05)
                story.append("ended 0")
        return record.offset

    with Lifespan() as lifespan:
        pool = coroutines.CoroutinePool(4, Ordering.PARTITION, compute, "test", lifespan)
        stuck = pool.submit([Record("t", 0, 0), Record("t", 0, 1)])
        assert started.wait(PATIENCE)
        after = pool.submit([Record("t", 0, 2)])
        pool.cancel([stuck])
        wait_until(lambda: after.is_done, "the lane goes on")
        pool.check()
        pool.close()
    assert after.results == [2]
    assert story == ["began 0", "ended 0", "began 2"]


# Resources


@dataclass
class Client:
    opened_in: Any
    is_open: bool = True

    async def ask(self, record: Record) -> str:
        assert asyncio.get_running_loop() is self.opened_in
        assert self.is_open
        await asyncio.sleep(0)
        return f"answer {record.offset}"


def test_a_resource_is_opened_once_in_the_loop_and_closed_at_the_end(app: App) -> None:
    story: list[str] = []
    clients: list[Client] = []

    @app.resource
    async def client() -> AsyncIterator[Client]:
        clients.append(Client(asyncio.get_running_loop()))
        story.append("client opened")
        yield clients[-1]
        await asyncio.sleep(0)
        clients[-1].is_open = False
        story.append("client closed")

    @app.resource
    def rates() -> Iterator[dict]:  # type: ignore[type-arg]
        story.append("rates opened")
        yield {"EUR": 1}
        story.append("rates closed")

    async def quote(client: Client | None, record: Record, *, rates: dict) -> Any:  # type: ignore[type-arg]
        assert client is not None
        assert rates == {"EUR": 1}
        return row(record, await client.ask(record))

    listen(app, quote)
    with TestKit(app, batch=5) as kit:
        feed(kit, 20)
        kit.run(Crash(Step.WRITTEN), within=PATIENCE)
        kit.run(within=PATIENCE)
    assert [value for _, value in seen(app)] == [f"answer {number}" for number in range(20)]
    assert story == ["client opened", "rates opened", "rates closed", "client closed"] * (len(story) // 4)
    assert not any(each.is_open for each in clients)
    with pytest.raises(ListenerStopped, match="client is not open: the app does not run"):
        _ = app._lifespan.resources[Client].value


def test_a_resource_that_cannot_be_opened_stops_the_app_and_closes_those_before_it(app: App) -> None:
    story: list[str] = []

    @app.resource
    def first() -> Iterator[int]:
        story.append("opened")
        yield 1
        story.append("closed")

    @app.resource
    async def second() -> AsyncIterator[str]:
        raise ConnectionRefusedError("no service")
        yield ""

    listen(app, plain_coroutine)
    with TestKit(app) as kit:
        feed(kit, 1)
        with pytest.raises(ConnectionRefusedError, match="no service"):
            kit.run(within=PATIENCE)
    assert story == ["opened", "closed"]
    assert not [each for each in threading.enumerate() if each.name == "tidegate-loop"]


def unannotated():  # type: ignore[no-untyped-def]
    yield 1


def no_generator() -> Iterator[int]:
    return iter(())


def needs(name: str) -> Iterator[int]:
    yield 1


def of_records() -> Iterator[Record]:
    yield Record("t", 0, 0)


def of_anything() -> Iterator[Any]:
    yield 1


def of_nothing_known() -> Iterator[Unknown]:  # type: ignore[name-defined]  # noqa: F821
    yield 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (unannotated, "does not say which class"),
        (no_generator, "generator function without parameters"),
        (needs, "generator function without parameters"),
        (of_records, "yields Record"),
        (of_anything, "does not say which class"),
        (of_nothing_known, "annotation cannot be resolved .NameError"),
    ],
)
def test_what_is_no_resource_is_refused(app: App, function: Callable[..., Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        app.resource(function)


def test_two_resources_of_one_class_are_refused(app: App) -> None:
    @app.resource
    def one() -> Iterator[Client]:
        yield Client(None)

    def two() -> Iterator[Client]:
        yield Client(None)

    with pytest.raises(ConfigurationError, match="one yields Client already"):
        app.resource(two)


def test_a_lifespan_ends_although_a_coroutine_does_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tidegate.app.lifespan._LEAVE", 0.2)

    async def stubborn() -> None:
        while not let_go:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    let_go: list[int] = []
    with Lifespan() as lifespan:
        loop = lifespan.loop
        loop.call_soon_threadsafe(lambda: loop.create_task(stubborn()))
        lifespan.run(asyncio.sleep(0))
    assert "did not end within 0.2 s" in caplog.text
    let_go.append(1)
    wait_until(lambda: not loop.is_running(), "the loop ends")
    loop.close()


# In a loop of the user's


def test_serve_runs_in_the_loop_that_is_there_and_a_cancellation_commits_and_leaves(tmp_path: Path) -> None:
    app = App(ledger=f"sqlite:///{tmp_path / 'shop.db'}")
    loops = []

    @app.listener("orders", group="g")
    async def quote(record: Record) -> None:
        loops.append(asyncio.get_running_loop())

    with TestKit(app) as kit:
        feed(kit, 10)
        served = app.elsewhere(kit._broker, app.ledger, app.listeners, lambda event: None)

        async def main() -> None:
            serving = asyncio.create_task(served.serve())
            deadline = time.monotonic() + PATIENCE
            while kit.positions("g").get(TopicPartition("orders", 0)) != 10:
                assert time.monotonic() < deadline and not serving.done()
                await asyncio.sleep(0.01)
            assert set(loops) == {asyncio.get_running_loop()}
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert all(thread.name != "tidegate-member-0" for thread in threading.enumerate())

        asyncio.run(main())
        assert app.ledger is not None
        assert app.ledger.read("g").positions[TopicPartition("orders", 0)].owner is None, "it gave its partition back"


def test_serve_raises_what_a_listener_fails_with(tmp_path: Path) -> None:
    app = App(ledger=f"sqlite:///{tmp_path / 'shop.db'}")

    @app.listener("orders", group="g")
    async def quote(record: Record) -> None:
        raise ValueError("bad")

    with TestKit(app) as kit:
        feed(kit, 1)
        served = app.elsewhere(kit._broker, app.ledger, app.listeners, lambda event: None)
        with pytest.raises(HandlerFailed, match="ValueError: bad"):
            asyncio.run(served.serve())
