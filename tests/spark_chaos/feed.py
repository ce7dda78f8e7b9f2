"""What is read: records with amounts, written all the while, each once."""

from __future__ import annotations

import threading
from decimal import Decimal
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, Message, Producer
from tests.listeners.topic import Topic
from tests.spark_chaos.orders import KEYS

PARTITIONS = 4
_PAUSE = 0.02


class Feed:
    def __init__(self, topic: Topic) -> None:
        self.written = dict.fromkeys(range(topic.partitions), 0)
        self._topic = topic
        self._failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._producer = Producer(
            {"bootstrap.servers": topic.bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 5}
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
        self._thread.join()
        assert self._producer.flush(60) == 0, "the broker did not take all records"
        assert not self._failures, self._failures

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(_PAUSE):
            for partition in self.written:
                value = f'{{"k": {key(number)}, "amount": {amount(partition, number)}, "one": 1}}'
                self._producer.produce(self._topic.name, value, partition=partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(error.str())
        else:
            self.written[message.partition()] = message.offset() + 1


def key(number: int) -> int:
    """Each is in all partitions."""
    return number % KEYS


def amount(partition: int, number: int) -> Decimal:
    """Different for each record, so that one lost and one twice do not make up for each other."""
    return Decimal(1 + (number * 7 + partition) ** 2 % 100_003) / 100
