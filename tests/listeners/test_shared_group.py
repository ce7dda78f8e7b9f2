from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from tests.listeners.books import GROUP, Books
from tests.listeners.child import Order, consume
from tests.listeners.processes import ended, running
from tests.listeners.topic import Topic

from tidegate.core.protocols import Protocol
from tidegate.sandbox import Kafka, Postgres

PARTITIONS, RECORDS = 6, 50


def wait_until(holds: Callable[[], bool], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def owners(books: Books) -> set[int]:
    """The processes that have claimed a partition; 0 if one of them has no owner."""
    with books.ledger() as ledger:
        names = [position.owner for position in ledger.read(GROUP).positions.values()]
    return {int(name.split(":")[1]) if name else 0 for name in names}


@pytest.mark.parametrize(
    ("protocol", "step"),
    [
        (Protocol.RANGE, "write"),
        (Protocol.COOPERATIVE, "write"),
        (Protocol.CONSUMER, "write"),
        (Protocol.RANGE, "release"),
        (Protocol.COOPERATIVE, "release"),
    ],
)
def test_the_others_of_a_group_take_over_from_one_that_is_killed(
    kafka: Kafka, postgres: Postgres, protocol: Protocol, step: str
) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(postgres.url, PARTITIONS)
    with running(consume, Order(topic, books, step, until_caught_up=False, protocol=protocol)) as first:
        wait_until(lambda: owners(books) == {first.pid}, "the first member has every partition")
        with running(consume, Order(topic, books, until_caught_up=False, protocol=protocol)) as second:
            if step != "release":  # which it dies of, giving partitions to the second one
                wait_until(lambda: owners(books) == {first.pid, second.pid}, "both have partitions")
            sums = topic.fill(RECORDS)
            assert ended(first) == -signal.SIGKILL
            wait_until(lambda: sum(books.positions().values()) == PARTITIONS * RECORDS, "every partition at its end")
            os.kill(second.pid or 0, signal.SIGTERM)
            assert ended(second) == 0
    books.check(topic, sums)
