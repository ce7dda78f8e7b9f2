"""What the database refuses at COMMIT: deferred keys and constraint triggers, under every policy."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text

from tidegate import (
    App,
    Backoff,
    DeadLetter,
    Delivery,
    Fail,
    Record,
    Retry,
    Skip,
    Span,
    Table,
    TopicPartition,
    open_ledger,
)
from tidegate.app import HandlerFailed, ReplayOutcome
from tidegate.errors import CommitRefused
from tidegate.ledger import SqlTransaction
from tidegate.observe.events import DeadLettered, Retried, Skipped, StoreLost
from tidegate.testing import Run, TestKit

GROUP = "billing"
ORDERS = TopicPartition("orders", 0)
BRIEFLY = Backoff(0.06, 1, 0.06)


class Place:
    """Parents and children, whose key is deferred: that a child has no parent shows at COMMIT, and no sooner."""

    def __init__(self, url: str) -> None:
        self.name = f"r{secrets.token_hex(5)}"
        self.parents, self.children = f"{self.name}_parents", f"{self.name}_children"
        self.ledger: Any = open_ledger(url, prefix=f"{self.name}_")
        if url.startswith("sqlite"):
            event.listen(self.ledger.engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
        self._bystander = create_engine(url)
        self.sql(f"CREATE TABLE {self.parents} (id INTEGER PRIMARY KEY)")
        self.sql(
            f"CREATE TABLE {self.children} (id INTEGER PRIMARY KEY, parent INTEGER, CONSTRAINT {self.name}_of "
            f"FOREIGN KEY (parent) REFERENCES {self.parents} (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        self.sql(f"INSERT INTO {self.parents} VALUES (1)")
        self.app = App("nowhere.invalid:9092", self.ledger)
        self.kit = TestKit(self.app, broker="local")
        self.calls: list[list[int]] = []

    def close(self) -> None:
        self.kit.close()
        self.ledger.close()
        self._bystander.dispose()

    def sql(self, statement: str) -> None:
        with self._bystander.begin() as conn:
            conn.exec_driver_sql(statement)

    def ids(self, table: str) -> list[int]:
        with self._bystander.connect() as conn:
            return list(conn.execute(text(f"SELECT id FROM {table} ORDER BY id")).scalars())

    def send(self, count: int, bad: set[int] = frozenset(), topic: str = "orders") -> None:  # type: ignore[assignment]
        """Records whose number is the child's; the bad ones have no parent."""
        for number in range(count):
            self.kit.send(topic, {"id": number, "parent": 99 if number in bad else 1}, partition=0)

    def insert(self, values: list[dict[str, int]], tx: SqlTransaction) -> None:
        self.calls.append([value["id"] for value in values])
        tx.execute(text(f"INSERT INTO {self.children} VALUES (:id, :parent)"), values)

    def listener(self, kind: str) -> Callable[..., Any]:
        def one(value: dict[str, int], tx: SqlTransaction) -> None:
            self.insert([value], tx)

        def many(values: list[dict[str, int]], tx: SqlTransaction) -> None:
            self.insert(values, tx)

        def pooled(value: dict[str, int]) -> Any:
            return text(f"INSERT INTO {self.children} VALUES (:id, :parent)"), value

        return {"one": one, "many": many, "pooled": pooled}[kind]

    def listen(self, kind: str, **settings: Any) -> Run:
        self.app.listeners.clear()
        if kind == "sink":
            self.app.sink("orders", into=Table(self.children), group=GROUP, **settings)
        else:
            workers = {"workers": 2} if kind == "pooled" else {}
            self.app.listener("orders", group=GROUP, **workers, **settings)(self.listener(kind))
        run = self.kit.run()
        self.kit.check()
        return run


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    on_disk = f"sqlite:///{tmp_path / 'shop.db'}"
    opened = Place(on_disk if request.param == "sqlite" else str(request.getfixturevalue("postgres").url))
    yield opened
    opened.close()


KINDS = ["one", "many", "sink", "pooled"]


def told(run: Run, kind: type) -> list[Any]:
    return [each for each in run.events if isinstance(each, kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_records_that_are_refused_at_commit_are_parked_and_the_others_are_committed(place: Place, kind: str) -> None:
    bad = {0, 11, 12, 39}
    place.send(40, bad)
    run = place.listen(kind, on_error=DeadLetter())
    assert place.ids(place.children) == [number for number in range(40) if number not in bad]
    letters = [each.letter for each in place.kit.dead_letters(GROUP)]
    assert {letter.record.offset: letter.attempts for letter in letters} == dict.fromkeys(bad, 1)
    assert all("FOREIGN KEY" in each.error.upper() and "DETAIL" not in each.error for each in letters), letters[0].error
    assert sorted(each.offset for each in told(run, DeadLettered)) == sorted(bad)
    assert not told(run, StoreLost)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_refused_at_commit_is_skipped_if_that_is_asked_for(place: Place, kind: str) -> None:
    place.send(10, {4})
    run = place.listen(kind, on_error=Skip())
    assert place.ids(place.children) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [each.span for each in told(run, Skipped)] == [Span(ORDERS, 4, 5, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_refused_at_commit_stops_the_listener_with_an_error_that_names_it(
    place: Place, kind: str
) -> None:
    place.send(10, {4})
    # A sink has PostgreSQL judge each record before COMMIT, and then nothing of its batch is committed.
    before = 0 if kind == "sink" and place.ledger.engine.dialect.name == "postgresql" else 4
    for _ in range(2):  # each start finds the same
        with pytest.raises(HandlerFailed) as failed:
            place.listen(kind, on_error=Fail())
        assert (failed.value.partition, failed.value.offset, failed.value.attempts) == (ORDERS, 4, 1)
        assert place.kit.positions(GROUP) == {ORDERS: before}
        assert place.ids(place.children) == list(range(before))
    place.sql(f"INSERT INTO {place.parents} VALUES (99)")
    place.listen(kind, on_error=Fail())
    assert place.ids(place.children) == list(range(10))


@pytest.mark.parametrize("kind", ["one", "many", "sink"])
def test_a_record_that_is_refused_at_commit_is_tried_again_as_often_as_the_policy_says(place: Place, kind: str) -> None:
    place.send(10, {4, 7})
    run = place.listen(kind, on_error=Retry(2, BRIEFLY, then=DeadLetter()))
    letters = [each.letter for each in place.kit.dead_letters(GROUP)]
    assert [(letter.record.offset, letter.attempts) for letter in letters] == [(4, 3), (7, 3)]
    assert [(each.offset, each.attempts) for each in told(run, Retried)] == [(4, 1), (4, 2), (7, 1), (7, 2)]
    assert place.ids(place.children) == [0, 1, 2, 3, 5, 6, 8, 9]


def test_a_retry_at_commit_succeeds_once_the_parent_is_there(place: Place) -> None:
    place.send(3, {1})

    def observe(event: Any) -> None:
        if isinstance(event, Retried) and event.attempts == 1:  # told inside of a transaction, which SQLite waits for
            threading.Thread(target=place.sql, args=(f"INSERT INTO {place.parents} VALUES (99)",)).start()

    place.app.observers.add(observe)
    place.listen("one", on_error=Retry(300, BRIEFLY))
    assert place.ids(place.children) == [0, 1, 2]
    assert not place.kit.dead_letters(GROUP)


def test_a_parent_behind_its_child_in_the_same_batch_is_no_error(place: Place) -> None:
    def family(record: Record, tx: SqlTransaction) -> None:
        number = int(record.value or b"0")
        table = place.children if number % 2 == 0 else place.parents
        values = "(:id, :id)" if number % 2 == 0 else "(:id)"
        tx.execute(text(f"INSERT INTO {table} VALUES {values}"), {"id": 100 + number // 2})

    for number in range(10):
        place.kit.send("orders", str(number))
    place.app.listener("orders", group=GROUP, on_error=DeadLetter())(family)
    place.kit.run()
    assert place.ids(place.children) == [100, 101, 102, 103, 104]
    assert not place.kit.dead_letters(GROUP)


@pytest.mark.parametrize("kind", ["one", "many", "sink"])
@pytest.mark.parametrize("delivery", [Delivery.AT_LEAST_ONCE, Delivery.AT_MOST_ONCE])
def test_with_less_than_exactly_once_the_policy_holds_for_refused_commits_as_well(
    place: Place, kind: str, delivery: Delivery
) -> None:
    place.send(8, {2, 5})
    run = place.listen(kind, on_error=DeadLetter(), delivery=delivery)
    assert place.ids(place.children) == [0, 1, 3, 4, 6, 7]
    assert [each.letter.record.offset for each in place.kit.dead_letters(GROUP)] == [2, 5]
    assert [each.offset for each in told(run, DeadLettered)] == [2, 5]


def test_at_most_once_a_refused_commit_is_tried_again_as_often_as_the_policy_says(place: Place) -> None:
    place.send(4, {2})
    run = place.listen("one", on_error=Retry(2, BRIEFLY, then=Skip()), delivery=Delivery.AT_MOST_ONCE)
    assert place.ids(place.children) == [0, 1, 3]
    assert [(each.offset, each.attempts) for each in told(run, Retried)] == [(2, 1), (2, 2)]
    assert [each.span for each in told(run, Skipped)] == [Span(ORDERS, 2, 3, 1)]


def test_partitions_without_a_refused_record_are_committed_meanwhile(place: Place) -> None:
    place.kit.topic("orders", 3)
    for number in range(30):
        place.kit.send("orders", {"id": number, "parent": 99 if number == 10 else 1}, partition=number % 3)
    place.listen("many", on_error=DeadLetter())
    assert place.ids(place.children) == [number for number in range(30) if number != 10]
    (parked,) = place.kit.dead_letters(GROUP)
    assert (parked.letter.record.partition, parked.letter.record.offset) == (1, 3)


def test_a_replay_that_is_refused_at_commit_leaves_the_letter_and_counts_an_attempt(place: Place) -> None:
    place.send(3, {1})
    place.listen("one", on_error=DeadLetter())
    (replayed,) = place.app.replay(GROUP)
    assert (replayed.outcome, replayed.attempts) == (ReplayOutcome.FAILED, 2)
    place.sql(f"INSERT INTO {place.parents} VALUES (99)")
    (replayed,) = place.app.replay(GROUP)
    assert replayed.outcome is ReplayOutcome.REPLAYED
    assert place.ids(place.children) == [0, 1, 2]


def test_the_ledger_says_itself_that_commit_was_refused_and_by_what(place: Place) -> None:
    claims = place.ledger.claim(GROUP, [ORDERS])
    span = Span(ORDERS, 0, 1, 1)

    def orphan(tx: SqlTransaction) -> None:
        tx.execute(text(f"INSERT INTO {place.children} VALUES (1, 99)"))

    with pytest.raises(CommitRefused, match="(?i)refused COMMIT.*foreign key.*nothing was committed") as refused:
        place.ledger.transact(claims, [span], orphan)
    assert refused.value.__cause__ is not None
    assert not re.search(r"\b99\b", str(refused.value))
    with pytest.raises(CommitRefused), place.ledger.transaction(claims, [span]) as tx:
        orphan(tx)
    with pytest.raises(CommitRefused), place.ledger.detached(claims, [span]) as tx:
        orphan(tx)
    assert place.ids(place.children) == []
    place.ledger.transact(claims, [span], lambda tx: None)  # the connection is fit for more
    assert place.ledger.verify(GROUP).ok


class TestOfPostgres:
    """Constraint triggers, which PostgreSQL alone has."""

    @pytest.fixture
    def place(self, postgres: Any) -> Iterator[Place]:
        opened = Place(postgres.url)
        yield opened
        opened.close()

    def trigger(self, place: Place, body: str) -> None:
        place.sql(
            f"CREATE FUNCTION {place.name}_check() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF NEW.parent = 99 THEN {body}; END IF; RETURN NULL; END $$"
        )
        place.sql(
            f"CREATE CONSTRAINT TRIGGER {place.name}_checked AFTER INSERT ON {place.children} "
            f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {place.name}_check()"
        )
        place.sql(f"INSERT INTO {place.parents} VALUES (99)")

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_a_constraint_trigger_refuses_at_commit_is_parked(self, place: Place, kind: str) -> None:
        self.trigger(place, "RAISE EXCEPTION 'not this one'")
        place.send(10, {4})
        place.listen(kind, on_error=DeadLetter())
        (parked,) = place.kit.dead_letters(GROUP)
        assert parked.letter.record.offset == 4
        assert "not this one" in parked.letter.error

    def test_a_trigger_that_is_broken_itself_stops_the_listener_and_parks_nothing(self, place: Place) -> None:
        self.trigger(place, "PERFORM 1 FROM there_is_no_such_table")
        place.send(10, {4})
        with pytest.raises(CommitRefused, match="there_is_no_such_table"):
            place.listen("one", on_error=DeadLetter())
        assert not place.kit.dead_letters(GROUP)
        assert place.ids(place.children) == []
