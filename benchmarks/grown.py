"""Ledgers that have grown: a thousand groups of a hundred partitions each, on every store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tidegate import Span, TopicPartition, open_ledger
from tidegate.sandbox import Kafka, MariaDB, Postgres, Redis

__all__ = ["BUSY", "GROUPS", "PARTITIONS", "grown"]

GROUPS, PARTITIONS, TOPICS, COMMITS = 1_000, 100, 10, 2_000
BUSY = "group-0500"


@contextmanager
def grown() -> Iterator[tuple[dict[str, str], str]]:
    """The addresses of the ledgers by the names of their stores, and that of the broker."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        kafka = stack.enter_context(Kafka())
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        topics = [NewTopic(f"topic-{number}", PARTITIONS, 1) for number in range(TOPICS)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        urls = {
            "SQLite": f"sqlite:///{Path(folder) / 'ledger.db'}",
            "MariaDB": stack.enter_context(MariaDB()).url,
            "PostgreSQL": stack.enter_context(Postgres()).url,
            "Redis": stack.enter_context(Redis()).url,
        }
        for url in urls.values():
            _fill(url)
        yield urls, kafka.bootstrap


def _fill(url: str) -> None:
    """Positions of every group, and a journal that was busy lately for one of them."""
    with open_ledger(url) as ledger:
        for number in range(GROUPS):
            topic = f"topic-{number % TOPICS}"
            ledger.claim(f"group-{number:04}", [TopicPartition(topic, each) for each in range(PARTITIONS)], number)
        partitions = [TopicPartition("topic-0", each) for each in range(PARTITIONS)]
        claims = ledger.claim(BUSY, partitions)
        for number in range(COMMITS):
            tp = partitions[number % PARTITIONS]
            start = 500 + number // PARTITIONS
            ledger.transact(claims, [Span(tp, start, start + 1, 1)])
