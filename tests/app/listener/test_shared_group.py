from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
from tests.app.listener.books import Books
from tests.app.listener.consumer import Order, consume
from tests.app.listener.topic import Topic
from tests.patience import wait_until
from tests.processes import ended, running

from tidegate.core.policies import GroupProtocol
from tidegate.sandbox import Kafka, Postgres

PARTITIONS, RECORDS = 6, 50
PATIENT = 3.0  # seconds: a member that loses its partitions, on a busy machine, never gets to release them


@pytest.mark.parametrize(
    ("protocol", "step"),
    [
        (GroupProtocol.RANGE, "write"),
        (GroupProtocol.COOPERATIVE, "write"),
        (GroupProtocol.CONSUMER, "write"),
        (GroupProtocol.RANGE, "release"),
        (GroupProtocol.COOPERATIVE, "release"),
    ],
)
def test_the_others_of_a_group_take_over_from_one_that_is_killed(
    kafka: Kafka, postgres: Postgres, protocol: GroupProtocol, step: str
) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(postgres.url, PARTITIONS)
    order = Order(topic, books, until_caught_up=False, protocol=protocol, session_timeout=PATIENT)
    with running(consume, replace(order, step=step)) as first:
        wait_until(lambda: books.owners() == {first.pid}, "the first member has every partition")
        with running(consume, order) as second:
            if step != "release":  # which it dies of, giving partitions to the second one
                wait_until(lambda: books.owners() == {first.pid, second.pid}, "both have partitions")
            sums = topic.fill(RECORDS)
            assert ended(first) == -signal.SIGKILL
            wait_until(lambda: sum(books.positions().values()) == PARTITIONS * RECORDS, "every partition at its end")
            os.kill(second.pid or 0, signal.SIGTERM)
            assert ended(second) == 0
    books.check(topic, sums)
