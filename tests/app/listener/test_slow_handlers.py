"""Handlers that take their time: all is done, each effect once, and nobody waits for more than the record in hand."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.app.listener.books import Books
from tests.app.listener.slow import KINDS, Shop, plod
from tests.app.listener.topic import Topic
from tests.patience import wait_until
from tests.processes import ended, running

from tidegate import DeadLetter, Limits, Record, Transaction
from tidegate.app.handler import HandlerFailed
from tidegate.core.policies import Delivery
from tidegate.errors import HeldTooLong
from tidegate.observe.events import Committed, StoreLost
from tidegate.sandbox import Kafka, Postgres

STORES = ["sqlite", "mariadb", "mysql", "postgres", "redis"]
SECONDS_OF_A_BATCH = Limits().hold / 2
SMALL = Limits(hold=1, lock_wait=2)
ENDING_IDLE_TRANSACTIONS = ["mariadb", "mysql", "postgres"]
ON_POSTGRES = pytest.mark.parametrize("store", ["postgres"], indirect=True)


def ends_idle_transactions(store: str) -> bool:
    return not store.startswith(("sqlite", "redis"))


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_take_longer_together_than_a_transaction_may_be_idle_are_done_once(
    kafka: Kafka, store: str, kind: str
) -> None:
    shop = Shop(kafka.bootstrap, store, limits=SMALL)
    shop.topic.fill(100)
    shop.takes(0.013)
    listening = shop.caught_up(kind)
    shop.check(100, kind)
    assert shop.repeated == {}
    assert listening.told(StoreLost) == []
    assert len(listening.told(Committed)) >= 2


@pytest.mark.parametrize("store", ENDING_IDLE_TRANSACTIONS, indirect=True)
def test_a_batch_that_was_idle_for_too_long_is_cut_and_that_is_no_outage(kafka: Kafka, store: str) -> None:
    """As of records that suddenly take longer: what was learned does not hold any more."""
    shop = Shop(kafka.bootstrap, store, limits=SMALL)
    shop.topic.fill(40)
    shop.pause = lambda record: time.sleep(0.55 if record.offset in (36, 37, 38) else 0)
    listening = shop.caught_up("many in a transaction")
    shop.check(40, "many in a transaction")
    assert shop.repeated != {}, "its transaction was ended"
    assert listening.told(StoreLost) == []


@pytest.mark.parametrize("store", ENDING_IDLE_TRANSACTIONS, indirect=True)
def test_a_record_that_takes_longer_than_hold_stops_with_an_error_that_names_it(kafka: Kafka, store: str) -> None:
    shop = Shop(kafka.bootstrap, store, limits=SMALL)
    shop.topic.fill(3)
    shop.pause = lambda record: time.sleep(1.6 if record.offset == 1 else 0)
    with pytest.raises(HeldTooLong) as raised:
        shop.caught_up("one in a transaction")
    for said in ("hold (1 s)", "'billing'", f"{shop.topic.name}[0] offset 1", "take no Transaction"):
        assert said in str(raised.value)
    (seconds,) = re.findall(r"idle for ([\d.]+) s", str(raised.value))
    assert float(seconds) >= 1.6
    assert list(shop.books.positions().values()) == [1]
    ((hold, lock_wait),) = re.findall(r"Limits\(hold=([\d.]+), lock_wait=([\d.]+)\)", str(raised.value))
    assert float(hold) > float(seconds)
    shop.limits = Limits(hold=float(hold), lock_wait=float(lock_wait))
    listening = shop.caught_up("one in a transaction")
    shop.check(3, "one in a transaction")
    assert listening.told(StoreLost) == []


@ON_POSTGRES
def test_with_at_most_once_a_record_that_takes_longer_than_hold_stops_the_listener_by_its_name(
    kafka: Kafka, store: str
) -> None:
    """Its position has moved, and so nobody hands it out again, in smaller batches or otherwise."""
    shop = Shop(kafka.bootstrap, store, limits=SMALL)
    shop.topic.fill(4)

    def idle(record: Record, tx: Transaction) -> None:
        shop.books.add([record], tx)
        time.sleep(1.6 if record.offset == 2 else 0)

    with pytest.raises(HeldTooLong, match="offset 2: .*hold"):
        shop.caught_up(idle, delivery=Delivery.AT_MOST_ONCE)
    (each,) = shop.books.sums(1).values()
    assert each.records == 2


@ON_POSTGRES
@pytest.mark.parametrize("kind", ["one", "many"])
def test_without_a_transaction_a_record_may_take_longer_than_hold(kafka: Kafka, store: str, kind: str) -> None:
    shop = Shop(kafka.bootstrap, store, limits=SMALL)
    shop.topic.fill(3)
    shop.pause = lambda record: time.sleep(1.6 if record.offset == 1 else 0)
    listening = shop.caught_up(kind)
    shop.check(3, kind)
    assert listening.told(StoreLost) == []


@ON_POSTGRES
@pytest.mark.parametrize("kind", ["one", "one in a transaction", "many"])
def test_a_revoke_waits_for_the_record_in_hand_and_no_more(kafka: Kafka, store: str, kind: str) -> None:
    shop = Shop(kafka.bootstrap, store, 2)
    shop.topic.fill(60)
    shop.takes(0.2)
    with shop.listening(kind) as first:
        wait_until(lambda: len(shop.calls) >= 5, "the first one is at it")
        with shop.listening(kind) as second:
            wait_until(lambda: "revoked" in first.rebalances, "a partition is taken away")
            call = 0.2 if kind.startswith("one") else SECONDS_OF_A_BATCH
            assert first.rebalances["revoked"] < call + 1.5
            wait_until(lambda: bool(second.told(Committed)), "the second one is at it")
            assert shop.repeated == {}, "what was handled is committed"
            shop.takes(0)
            wait_until(lambda: sum(shop.books.positions().values()) == 120, "all is done")
    shop.check(60, kind)
    assert shop.repeated == {}


@pytest.mark.parametrize(
    ("store", "kind", "delivery"),
    [
        *((store, "one in a transaction", Delivery.EXACTLY_ONCE) for store in STORES),
        ("postgres", "one in a transaction", Delivery.AT_LEAST_ONCE),
        ("postgres", "one", Delivery.EXACTLY_ONCE),
        ("postgres", "one", Delivery.AT_LEAST_ONCE),
    ],
    indirect=["store"],
)
def test_a_stop_waits_for_the_record_in_hand_and_commits_what_is_finished(
    kafka: Kafka, store: str, kind: str, delivery: Delivery
) -> None:
    shop = Shop(kafka.bootstrap, store)
    shop.topic.fill(50)
    shop.takes(0.2)
    with shop.listening(kind, delivery=delivery) as listening:
        wait_until(lambda: len(shop.calls) >= 3, "it is at it")
        assert listening.stop() < 0.2 + 3
    assert len(shop.calls) < 40
    assert list(shop.books.positions().values()) == [len(shop.calls)]
    shop.takes(0)
    shop.caught_up(kind, delivery=delivery)
    shop.check(50, kind)
    assert shop.repeated == {}


def test_a_process_that_is_told_to_end_finishes_the_record_in_hand(
    kafka: Kafka, postgres: Postgres, tmp_path: Path
) -> None:
    topic, books, file = Topic.create(kafka.bootstrap, 1), Books.open(postgres.url, 1), tmp_path / "done"
    topic.fill(100)
    file.touch()

    def done() -> list[str]:
        return file.read_text().split()

    with running(plod, topic, books, 0.2, file) as child:
        wait_until(lambda: len(done()) >= 3, "it is at it")
        os.kill(child.pid or 0, signal.SIGTERM)
        began = time.monotonic()
        assert ended(child) == 0
        assert time.monotonic() - began < 0.2 + 5
    assert done() == [str(number) for number in range(len(done()))]
    assert len(done()) < 60
    assert list(books.positions().values()) == [len(done())]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["one", "many"])
@pytest.mark.parametrize("parks", [False, True])
def test_without_a_transaction_nothing_is_handled_again_because_a_later_record_fails(
    kafka: Kafka, store: str, kind: str, parks: bool
) -> None:
    shop = Shop(kafka.bootstrap, store)
    shop.topic.fill(9)
    bad = True

    def one(record: Record) -> None:
        many([record])

    def many(records: list[Record]) -> None:
        if bad and any(record.offset == 6 for record in records):
            raise ValueError(len(records))
        shop._take(records)

    handler = one if kind == "one" else many
    policy: dict[str, Any] = {"on_error": DeadLetter()} if parks else {}
    if parks:
        shop.caught_up(handler, **policy)
        assert Counter(offset for _, offset in shop.calls) == Counter(set(range(9)) - {6})
        return
    with pytest.raises(HandlerFailed) as raised:
        shop.caught_up(handler, **policy)
    done = 6 if kind == "one" else 4  # the batch that failed is not narrowed down
    assert raised.value.offset == done
    assert list(shop.books.positions().values()) == [done]
    bad = False
    shop.caught_up(handler)
    shop.check(9, kind)


def test_partitions_of_slow_records_take_turns(kafka: Kafka, postgres: Postgres) -> None:
    shop = Shop(kafka.bootstrap, postgres.url, 3, limits=SMALL)
    shop.topic.fill(60)
    shop.takes(0.02)
    with shop.listening("one"):
        wait_until(lambda: len({partition for partition, _ in shop.calls}) == 3, "all of them got on")
        assert len(shop.calls) < 3 * 60 - 20, "before one of them was at its end"
        shop.takes(0)
        wait_until(lambda: sum(shop.books.positions().values()) == 180, "all is done")
    shop.check(60, "one")


def test_a_handler_that_leaves_the_transaction_alone_gets_on_with_a_backlog(kafka: Kafka, postgres: Postgres) -> None:
    """With all defaults: 4,000 records of 3 ms are longer than hold."""
    shop = Shop(kafka.bootstrap, postgres.url)
    shop.topic.fill(4000)

    def idle(record: Record, tx: Transaction) -> None:
        shop._take([record])

    shop.takes(0.003)
    listening = shop.caught_up(idle)
    shop.check(4000, "one")
    assert listening.told(StoreLost) == []


def at_once(work: Callable[[str, str], None], store: str) -> None:
    """All kinds at the same time: they sleep. SQLite has one writer, so each has a file of its own there."""
    is_file = store.startswith("sqlite")
    with ThreadPoolExecutor(len(KINDS)) as pool:
        futures = [
            pool.submit(work, kind, f"{store}{number}" if is_file else store) for number, kind in enumerate(KINDS)
        ]
    for future in futures:
        future.result()


@pytest.mark.chaos
@pytest.mark.parametrize(("seconds", "records"), [(0.003, 4000), (1.0, 25)])
def test_with_all_defaults_slow_records_are_done_once(kafka: Kafka, store: str, seconds: float, records: int) -> None:
    def work(kind: str, url: str) -> None:
        shop = Shop(kafka.bootstrap, url)
        shop.topic.fill(records)
        shop.takes(seconds)
        began = time.monotonic()
        listening = shop.caught_up(kind, timeout=300)
        pace = records / (time.monotonic() - began)
        print(f"{store.partition(':')[0]}, {kind}, {seconds} s a record: {pace:.2f} records/s")
        shop.check(records, kind)
        assert shop.repeated == {}
        assert listening.told(StoreLost) == []

    at_once(work, store)


@pytest.mark.chaos
def test_a_record_of_fifteen_seconds_is_done_without_a_transaction_or_with_a_longer_hold(
    kafka: Kafka, store: str
) -> None:
    def work(kind: str, url: str) -> None:
        shop = Shop(kafka.bootstrap, url)
        shop.topic.fill(2)
        shop.takes(15)
        if kind.endswith("transaction") and ends_idle_transactions(url):
            with pytest.raises(HeldTooLong, match=r"hold \(10 s\).*hold=20, lock_wait=3"):
                shop.caught_up(kind, timeout=240)  # two together and one alone, each tried twice: 90 s
            shop.limits = Limits(hold=20, lock_wait=30)
            shop.calls.clear()
        listening = shop.caught_up(kind, timeout=240)
        shop.check(2, kind)
        if kind != "many in a transaction":  # of which two were tried together
            assert shop.repeated == {}
        assert listening.told(StoreLost) == []

    at_once(work, store)
