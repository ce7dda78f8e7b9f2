from __future__ import annotations

from tests.app.listener.books import Books
from tests.app.listener.consumer import Order, consume
from tests.app.listener.topic import Topic
from tests.processes import finished, killed

from tidegate.core.policies import Delivery
from tidegate.sandbox import Kafka, Postgres

PARTITIONS, RECORDS = 3, 30


def counted(kafka: Kafka, store: str, delivery: Delivery, step: str) -> int:
    """How many of the records are in the books, after a kill at the step and a second process that finished."""
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(store, PARTITIONS)
    topic.fill(RECORDS)
    killed(consume, Order(topic, books, step, 2, delivery=delivery))
    finished(consume, Order(topic, books, delivery=delivery))
    assert sum(books.positions().values()) == PARTITIONS * RECORDS
    return sum(each.records for each in books.sums(PARTITIONS).values())


def test_at_least_once_repeats_what_was_written_when_a_kill_came_before_the_position(
    kafka: Kafka, postgres: Postgres
) -> None:
    assert counted(kafka, postgres.url, Delivery.AT_LEAST_ONCE, "advance") > PARTITIONS * RECORDS
    assert counted(kafka, postgres.url, Delivery.EXACTLY_ONCE, "advance") == PARTITIONS * RECORDS


def test_at_most_once_loses_what_was_not_written_when_a_kill_came_after_the_position(
    kafka: Kafka, postgres: Postgres
) -> None:
    assert counted(kafka, postgres.url, Delivery.AT_MOST_ONCE, "acknowledge") < PARTITIONS * RECORDS
    assert counted(kafka, postgres.url, Delivery.EXACTLY_ONCE, "acknowledge") == PARTITIONS * RECORDS
