"""A topic whose history every start strategy reads another part of."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tidegate.core.policies import Earliest, Start, Timestamp

_serial = itertools.count(1)
NOON = 1_700_000_000_000


def wait_until(condition: Callable[[], object], what: str, timeout: float = 150.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout} s"
        time.sleep(0.05)


class Topic:
    """Four partitions, each with a record from before noon and one from after it; later ones are from after it."""

    def __init__(self, bootstrap: str) -> None:
        self.name = f"starts-{os.getpid()}-{next(_serial)}"
        self.partitions = 4
        client = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._admin = AdminClient(client)
        self._client = {**client, "linger.ms": 0}
        self._create(self.name, self.partitions)
        self._send("morning", NOON - 1000)
        self._send("afternoon", NOON + 1000)

    def sibling(self, suffix: str) -> str:
        """Another topic, of one partition."""
        name = f"{self.name}-{suffix}"
        self._create(name, 1)
        return name

    def promised(self, start: Start) -> set[str]:
        """The part of the history that a strategy reads."""
        history = {"morning": isinstance(start, Earliest), "afternoon": isinstance(start, Earliest | Timestamp)}
        return {f"{word}-{number}" for word, wanted in history.items() if wanted for number in range(4)}

    def send(self, word: str) -> set[str]:
        """One record to each partition."""
        return self._send(word, NOON + 2000)

    def add_partitions(self, word: str) -> set[str]:
        """Two partitions more, each with a record from before noon, which only a start at the beginning reads."""
        before, self.partitions = self.partitions, self.partitions + 2
        self._admin.create_partitions([NewPartitions(self.name, self.partitions)])[self.name].result(30)
        wait_until(
            lambda: len(self._admin.list_topics(self.name, timeout=10).topics[self.name].partitions) == self.partitions,
            "the new partitions",
        )
        return self._send(word, NOON - 1000, since=before)

    def _send(self, word: str, timestamp: int, since: int = 0) -> set[str]:
        values = {f"{word}-{number}": number for number in range(since, self.partitions)}
        producer = Producer(self._client)  # a new one knows of new partitions at once
        for value, number in values.items():
            producer.produce(self.name, value, partition=number, timestamp=timestamp)
        assert producer.flush(30) == 0
        return set(values)

    def _create(self, name: str, partitions: int) -> None:
        config = {"retention.ms": "-1"}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
