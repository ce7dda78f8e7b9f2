"""What is consumed: numbered records with amounts, written all the while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer
from tests.app.listener.topic import Topic, amount

_PAUSE = 0.02


class Feed:
    """Writes one record to every partition, over and over, and each of them once.

    ``value`` makes the value of a record of its partition and its number there.
    """

    def __init__(self, topic: Topic, value: Callable[[int, int], str] = lambda p, n: f"{n}:{amount(p, n)}") -> None:
        self.topic = topic
        self._value = value
        self.written = dict.fromkeys(range(topic.partitions), 0)
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._producer = Producer(
            {
                "bootstrap.servers": topic.bootstrap,
                "log_level": 0,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 0,
                "reconnect.backoff.max.ms": 500,
            }
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Write no more; everything is in the log on return."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        assert self._producer.flush(60) == 0, "the broker did not take all records"
        assert not self.failures, self.failures

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(_PAUSE):
            for partition in self.written:
                value = self._value(partition, number)
                self._producer.produce(self.topic.name, value, partition=partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error.str())
        else:
            self.written[message.partition()] = message.offset() + 1
