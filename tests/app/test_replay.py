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
    Delivery,
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
from tidegate.app.commit import Commit
from tidegate.app.handler import Postponed
from tidegate.app.schema_decoder import SchemaDecoder
from tidegate.core.batches import Batch
from tidegate.core.records import Records
from tidegate.core.schemas import Schema, SchemaKind, UnknownSchema, framed
from tidegate.errors import ListenerStopped, RegistryUnavailable
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


class Away:
    """A schema registry that knew no schema when it was last asked, and does not answer any more."""

    latest = id_of = None

    def __init__(self, answers: int = 0, known: int | None = None) -> None:
        self._left = answers
        self._known = known
        self.seen: list[int] = []

    def by_id(self, number: int) -> Any:
        if number == self._known:
            fields = [{"name": "id", "type": "int"}]
            return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "Order", "fields": fields}))
        self._left -= 1
        if self._left >= 0:
            raise UnknownSchema(f"the schema registry does not know the id {number}")
        raise RegistryUnavailable("the schema registry did not answer")


def with_registry(registry: Away, group: str, delivery: Delivery = Delivery.EXACTLY_ONCE, is_apart: bool = True) -> App:
    app = App("nowhere.invalid:9092", "memory://")
    decoder: Any = SchemaDecoder(SchemaKind.AVRO, registry)  # type: ignore[arg-type]

    def bill(order: Order) -> None:
        registry.seen.append(order.id)

    def bill_inside(order: Order, tx: Transaction) -> None:
        registry.seen.append(order.id)

    listener = app.listener("orders", group=group, decoder=decoder, on_error=DeadLetter(), delivery=delivery)
    listener(bill if is_apart else bill_inside)
    return app


def test_a_letter_stays_as_it_was_while_the_registry_of_its_schema_is_away() -> None:
    app = with_registry(Away(), "a")
    letter = FailedRecord(Record(*ORDERS, 0, None, framed(1, b"\2")), "ValueError: the reason", 1)
    app.ledger.transact(app.ledger.claim("a", [ORDERS]), [Span(ORDERS, 0, 1, 1)], lambda tx: tx.park(letter))
    (parked,) = app.ledger.dead_letters("a")
    with pytest.raises(RegistryUnavailable):
        Replay(app.ledger, app.listeners, "a").one(parked.id)
    assert app.ledger.dead_letters("a") == [parked]


@pytest.mark.parametrize("delivery", list(Delivery))
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_commit_asks_the_registry_before_the_position_moves_and_not_again(delivery: Delivery, is_apart: bool) -> None:
    """A schema that was unknown then is unknown for the commit, even if the registry does not answer any more."""
    registry = Away(answers=1, known=7)
    app = with_registry(registry, "b", delivery, is_apart)
    (listener,) = app.listeners
    values = framed(7, b"\x02"), framed(1, b"\2"), framed(7, b"\x04")
    records = [Record(*ORDERS, place, None, value) for place, value in enumerate(values)]
    handler = listener.handler(app.ledger, lambda *_: None)

    def commit(start: int, end: int) -> None:
        Commit(
            listener.spec,
            app.ledger,
            app.ledger.claim("b", [ORDERS]),
            [Batch(1, Span(ORDERS, start, end, end - start), Records.of(records[start:end]))],
            handler=handler,
            hurry=threading.Event(),
        ).run()

    commit(0, 3)
    (parked,) = app.ledger.dead_letters("b")
    assert parked.letter.record.offset == 1
    assert "does not know the id 1" in parked.letter.error
    assert app.ledger.read("b").positions[ORDERS].next_offset == 3
    assert registry.seen == [1, 2]
    records += [Record(*ORDERS, 3, None, framed(1, b"\2"))]
    with pytest.raises(RegistryUnavailable):  # the next commit asks again, and before its position moves
        commit(3, 4)
    assert app.ledger.read("b").positions[ORDERS].next_offset == 3
    assert len(app.ledger.dead_letters("b")) == 1


class Slow(Away):
    """A schema registry that knows no schema, and is asked while the member is told to end its job."""

    def __init__(self, hurry: threading.Event) -> None:
        super().__init__(answers=100)
        self.asked: list[int] = []
        self._hurry = hurry

    def by_id(self, number: int) -> Any:
        self.asked.append(number)
        self._hurry.set()
        return super().by_id(number)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_commit_in_a_hurry_asks_the_registry_once_more_and_hands_its_records_back(delivery: Delivery) -> None:
    hurry = threading.Event()
    registry = Slow(hurry)
    app = with_registry(registry, "c", delivery)
    (listener,) = app.listeners
    records = [Record(*ORDERS, place, None, framed(place + 1, b"\2")) for place in range(5)]
    commit = Commit(
        listener.spec,
        app.ledger,
        app.ledger.claim("c", [ORDERS]),
        [Batch(1, Span(ORDERS, 0, 5, 5), Records.of(records))],
        handler=listener.handler(app.ledger, lambda *_: None),
        hurry=hurry,
    )
    with pytest.raises(Postponed):
        commit.run()
    assert registry.asked == [1]
    assert app.ledger.read("c").positions[ORDERS].next_offset == 0
    assert [list(batch.records) for batch in commit.rest()] == [records]
