"""Dead letters are replayed by their listener: a function, a pool or a sink, each on every store that it can run on."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from tidegate import (
    App,
    ConfigurationError,
    DeadLetter,
    Fail,
    Ledger,
    Record,
    Retry,
    Skip,
    Span,
    Table,
    TopicPartition,
    Transaction,
    open_ledger,
)
from tidegate.app import Replay, ReplayOutcome
from tidegate.errors import ListenerStopped
from tidegate.ledger import FailedRecord
from tidegate.ledger.transaction import Conflict

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
REPLAYED, GONE, FAILED = ReplayOutcome.REPLAYED, ReplayOutcome.GONE, ReplayOutcome.FAILED


@dataclass
class Order:
    id: int


class Shop:
    """A ledger with dead letters, and beside it what was billed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"r{secrets.token_hex(5)}_"
        self.is_sql = not url.startswith(("redis", "memory"))
        self.ledger: Ledger[Any] = open_ledger(
            url, prefix=f"{{{self.name}}}:" if url.startswith("redis") else self.name
        )
        self.app = App("nowhere.invalid:9092", self.ledger)
        if self.is_sql:
            self.sql(f"CREATE TABLE {self.name}bills (id INTEGER NOT NULL)")

    def sql(self, statement: str) -> list[Any]:
        engine = create_engine(self.url)
        try:
            with engine.begin() as conn:
                result = conn.execute(text(statement))
                return list(result) if result.returns_rows else []
        finally:
            engine.dispose()

    def bill(self, tx: Any, number: int) -> None:
        if self.is_sql:
            tx.execute(text(f"INSERT INTO {self.name}bills (id) VALUES ({number:d})"))
        elif self.url.startswith("redis"):
            tx.redis.rpush(f"{{{self.name}}}:bills", number)
        else:
            tx.append("bills", number)

    def bills(self) -> list[int]:
        if self.is_sql:
            return [row[0] for row in self.sql(f"SELECT id FROM {self.name}bills ORDER BY id")]
        if self.url.startswith("redis"):
            with redis.Redis.from_url(self.url) as client:
                return [int(each) for each in client.lrange(f"{{{self.name}}}:bills", 0, -1)]  # type: ignore[union-attr]
        return list(self.ledger.data.get("bills", ()))  # type: ignore[attr-defined]

    def park(self, *values: bytes, topic: str = "orders") -> list[int]:
        """Letters with these values, at the offsets from 0 on; their ids."""
        claims = self.ledger.claim(GROUP, [ORDERS])
        start = claims[ORDERS].position

        def handler(tx: Any) -> None:
            for offset, value in enumerate(values):
                tx.park(FailedRecord(Record(topic, 0, offset, None, value), "no such customer", 2))

        self.ledger.transact(claims, [Span(ORDERS, start, start + 1, 1)], handler)
        return [parked.id for parked in self.ledger.dead_letters(GROUP)][-len(values) :]

    def letters(self) -> list[tuple[int, int, str]]:
        return [
            (each.letter.record.offset, each.letter.attempts, each.letter.error)
            for each in self.ledger.dead_letters(GROUP)
        ]


def shop_on(request: pytest.FixtureRequest, store: str) -> Iterator[Shop]:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{request.getfixturevalue('tmp_path') / 'shop.db'}",
        "redis": lambda: request.getfixturevalue("redis_server").url,
    }
    made = Shop(urls.get(store, lambda: request.getfixturevalue(store).url)())
    yield made
    made.ledger.close()


@pytest.fixture(params=["memory", "sqlite", "mariadb", "mysql", "postgres", "redis"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from shop_on(request, request.param)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def sql_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from shop_on(request, request.param)


@pytest.fixture
def lone_shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    yield made
    made.ledger.close()


@pytest.mark.parametrize(
    "policy", [Fail(), Skip(), Retry(5, then=DeadLetter())], ids=lambda policy: type(policy).__name__
)
def test_a_function_is_run_once_more_whatever_its_policy(shop: Shop, policy: Any) -> None:
    @shop.app.listener("orders", group=GROUP, on_error=policy)
    def bill(order: Order, tx: Transaction) -> None:
        shop.bill(tx, order.id)
        if order.id == 2:
            raise LookupError("customer 2 is unknown")

    shop.park(b'{"id": 1}', b'{"id": 2}', b"{", b'{"id": 3}')
    done = shop.app.replay(GROUP)
    assert [(each.offset, each.outcome) for each in done] == [(0, REPLAYED), (1, FAILED), (2, FAILED), (3, REPLAYED)]
    assert shop.bills() == [1, 3]
    first, second = shop.letters()
    assert first == (1, 3, "LookupError: customer 2 is unknown")
    assert second[:2] == (2, 3)
    assert second[2].startswith("DecodingError: not JSON")
    assert shop.ledger.verify(GROUP).ok


def test_a_function_of_batches_is_given_one(sql_shop: Shop) -> None:
    given: list[list[Record]] = []

    @sql_shop.app.listener("^ord.*", group=GROUP)
    def bill(records: list[Record], tx: Transaction) -> None:
        given.append(records)
        sql_shop.bill(tx, len(records))

    sql_shop.park(b"a", b"b")
    assert [each.outcome for each in sql_shop.app.replay(GROUP)] == [REPLAYED, REPLAYED]
    assert [[record.value for record in records] for records in given] == [[b"a"], [b"b"]]
    assert sql_shop.bills() == [1, 1]


def test_a_pool_computes_and_its_result_is_written(shop: Shop) -> None:
    @shop.app.listener("orders", group=GROUP, workers=2, on_error=DeadLetter())
    def quote(order: Order) -> Any:
        if order.id == 2:
            raise LookupError("customer 2 is unknown")
        return lambda tx: shop.bill(tx, order.id)

    shop.park(b'{"id": 1}', b'{"id": 2}', b"{")
    assert [each.outcome for each in shop.app.replay(GROUP)] == [REPLAYED, FAILED, FAILED]
    assert shop.bills() == [1]
    assert [letter[:2] for letter in shop.letters()] == [(1, 3), (2, 3)]
    assert shop.letters()[0][2] == "LookupError: customer 2 is unknown"


def test_a_write_of_a_pool_that_the_database_refuses_leaves_the_letter(sql_shop: Shop) -> None:
    insert = text(f"INSERT INTO {sql_shop.name}bills (id) VALUES (:id)")

    @sql_shop.app.listener("orders", group=GROUP, workers=2)
    def quote(order: dict[str, Any]) -> Any:
        return insert, {"id": order["id"]}

    sql_shop.park(b'{"id": null}', b'{"id": 5}')
    assert [each.outcome for each in sql_shop.app.replay(GROUP)] == [FAILED, REPLAYED]
    assert sql_shop.bills() == [5]
    assert "IntegrityError" in sql_shop.letters()[0][2]


def test_a_sink_writes_the_row(sql_shop: Shop) -> None:
    sql_shop.app.sink("orders", into=Table(f"{sql_shop.name}bills"), group=GROUP)
    sql_shop.park(b'{"id": 1}', b'{"id": "many"}', b'{"id": null}')
    assert [each.outcome for each in sql_shop.app.replay(GROUP)] == [REPLAYED, FAILED, FAILED]
    assert sql_shop.bills() == [1]
    first, second = sql_shop.letters()
    assert first[:2] == (1, 3)
    assert "id" in first[2]
    assert second[:2] == (2, 3)


def test_a_sink_looks_again_if_the_table_was_altered(sql_shop: Shop) -> None:
    table = f"{sql_shop.name}bills"
    sql_shop.app.sink("orders", into=Table(table), group=GROUP)
    first, second = sql_shop.park(b'{"id": 1}', b'{"id": 2, "city": "Rome"}')
    replay = Replay(sql_shop.ledger, sql_shop.app.listeners, GROUP)
    assert replay.one(first).outcome is REPLAYED
    sql_shop.sql(f"ALTER TABLE {table} ADD COLUMN city VARCHAR(20)")
    assert replay.one(second).outcome is REPLAYED
    assert sql_shop.sql(f"SELECT id, city FROM {table} ORDER BY id") == [(1, None), (2, "Rome")]


def test_ids_and_topics_choose(lone_shop: Shop) -> None:
    @lone_shop.app.listener(["orders", "returns"], group=GROUP)
    def bill(record: Record, tx: Transaction) -> None:
        lone_shop.bill(tx, int(record.value or b""))

    first, second = lone_shop.park(b"1", b"2")
    (third,) = lone_shop.park(b"3", topic="returns")
    assert [(each.id, each.outcome) for each in lone_shop.app.replay(GROUP, [second, second + 99, second])] == [
        (second, REPLAYED)
    ]
    assert [each.id for each in lone_shop.app.replay(GROUP, topic="returns")] == [third]
    assert [each.id for each in lone_shop.app.replay(GROUP)] == [first]
    assert lone_shop.app.replay(GROUP) == []
    assert lone_shop.bills() == [1, 2, 3]


def test_a_letter_that_another_has_replayed_meanwhile_is_gone(lone_shop: Shop) -> None:
    @lone_shop.app.listener("orders", group=GROUP)
    def bill(record: Record, tx: Transaction) -> None:
        lone_shop.bill(tx, 1)

    (number,) = lone_shop.park(b"1")
    both = threading.Barrier(2)
    found: list[ReplayOutcome] = []

    def replay() -> None:
        mine = Replay(lone_shop.ledger, lone_shop.app.listeners, GROUP)
        both.wait(30)
        found.append(mine.one(number).outcome)

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [GONE, REPLAYED]
    assert lone_shop.bills() == [1]


def test_an_error_of_the_database_is_raised_and_the_letter_is_as_it_was(sql_shop: Shop) -> None:
    @sql_shop.app.listener("orders", group=GROUP, on_error=DeadLetter())
    def bill(record: Record, tx: Transaction) -> None:
        tx.execute(text("INSERT INTO nowhere VALUES (1)"))  # type: ignore[attr-defined]

    sql_shop.park(b"1")
    with pytest.raises(ListenerStopped, match=r"bill, group '.*': the database refused with .*nowhere") as stopped:
        sql_shop.app.replay(GROUP)
    assert isinstance(stopped.value.__cause__, SQLAlchemyError)
    assert "INSERT INTO" not in str(stopped.value)
    assert sql_shop.letters() == [(0, 2, "no such customer")]


@pytest.fixture
def redis_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from shop_on(request, "redis")


def test_a_command_that_redis_refuses_is_parked_anew_and_told(redis_shop: Shop) -> None:
    @redis_shop.app.listener("orders", group=GROUP)
    def bill(record: Record, tx: Transaction) -> None:
        redis_shop.bill(tx, 1)
        tx.execute("INCR", f"{{{redis_shop.name}}}:bills", record=record)  # type: ignore[attr-defined]

    redis_shop.park(b"1")
    (done,) = redis_shop.app.replay(GROUP)
    assert (done.outcome, done.parked_anew) == (REPLAYED, 1)
    assert [letter[0] for letter in redis_shop.letters()] == [0]


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ([], "the app has no listener of group 'billing'; its groups are: none"),
        (["returns"], "group 'billing' has no listener for topic orders"),
        (["orders", "^ord"], "group 'billing' has 2 listeners for topic orders"),
    ],
)
def test_a_letter_without_one_listener_is_refused(lone_shop: Shop, topics: list[str], said: str) -> None:
    for topic in topics:
        lone_shop.app.listener(topic, group=GROUP)(handle)
    lone_shop.park(json.dumps({"id": 1}).encode())
    with pytest.raises(ConfigurationError, match=said):
        lone_shop.app.replay(GROUP)
    assert len(lone_shop.letters()) == 1


def handle(record: Record) -> None:
    """Take anything."""


def test_an_app_without_a_ledger_has_no_dead_letters() -> None:
    with pytest.raises(ConfigurationError, match="the app has no ledger, and so it has no dead letters"):
        App("nowhere.invalid:9092", None).replay(GROUP)


def test_a_function_without_a_transaction_is_run_before_one_opens_and_not_again_after_a_conflict(shop: Shop) -> None:
    seen: list[int] = []

    @shop.app.listener("orders", group=GROUP)
    def note(order: Order) -> None:
        seen.append(order.id)
        if order.id == 2:
            raise LookupError("customer 2 is unknown")

    begin, conflicts = shop.ledger._replaying, [Conflict("no"), Conflict("not yet")]

    def conflicting(*args: Any) -> Any:
        if conflicts:
            raise conflicts.pop()
        return begin(*args)

    shop.ledger._replaying = conflicting  # type: ignore[method-assign]
    shop.park(b'{"id": 1}', b'{"id": 2}')
    done = shop.app.replay(GROUP)
    assert [each.outcome for each in done] == [REPLAYED, FAILED]
    assert seen == [1, 2]
    assert shop.letters() == [(1, 3, "LookupError: customer 2 is unknown")]
