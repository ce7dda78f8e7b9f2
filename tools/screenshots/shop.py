"""A shop to take pictures of: a broker, a ledger, and groups in every state that there is."""

from __future__ import annotations

import json
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidegate.core.records import FailedRecord, Record, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced
from tidegate.ledger import Ledger, open_ledger
from tidegate.ledger import ledger as ledgers
from tidegate.sandbox import Kafka

TOPICS = {"orders": 6, "payments": 3, "clicks": 4, "audit": 2}
LEDGER = "shop.db"
_SECONDS = 30.0


class Shop:
    """Produces and consumes until it is closed."""

    def __init__(self, folder: Path, kafka: Kafka) -> None:
        self.bootstrap = kafka.bootstrap
        ledgers._HOST = "shop-1"  # pictures show no machine's own name
        self._ledger: Ledger[Any] = open_ledger(f"sqlite:///{folder / LEDGER}")
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, "linger.ms": 20})
        self._ending = threading.Event()
        self._random = random.Random(7)  # noqa: S311 - for a picture
        self._threads: list[threading.Thread] = []
        topics = [NewTopic(name, count, 1) for name, count in TOPICS.items()]
        for future in self._admin.create_topics(topics).values():
            future.result(_SECONDS)

    def open(self) -> None:
        """Let everybody begin to work."""
        for topic in TOPICS:
            self._send(topic, 2000)
        self._producer.flush(_SECONDS)
        self._dead_letters()
        self._claim("audit-copy", "audit", read=0.6, release=True)
        self._claim("fraud-check", "payments", read=0.3)
        self._claim("clicks-by-hour", "clicks", read=0.8)
        self._ledger.pause("clicks-by-hour", note="pause by nora: the warehouse is being moved")
        self._start(self._produce)
        self._start(lambda: self._consume("billing", "orders", 400))
        self._start(lambda: self._consume("search-index", "orders", 90))
        self._start(lambda: self._consume("receipts", "payments", 300))

    def trouble(self) -> None:
        """What charts have marks for: a handover, and an operator's hand."""
        claimed = [TopicPartition("orders", number) for number in range(3)]
        self._ledger.claim("billing", claimed)
        positions = self._ledger.read("search-index").positions
        first = min(positions)
        back = {first: max(0, positions[first].next_offset - 40)}
        self._ledger.edit("search-index", back, note="rewind by omar: the mapping was wrong")

    def close(self) -> None:
        """Stop everything."""
        self._ending.set()
        for thread in self._threads:
            thread.join(_SECONDS)
        self._producer.flush(_SECONDS)
        self._ledger.close()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()

    def _send(self, topic: str, count: int) -> None:
        for number in range(count):
            order = {"id": secrets.token_hex(4), "total": round(self._random.uniform(3, 400), 2)}
            self._producer.produce(topic, json.dumps(order).encode(), partition=number % TOPICS[topic])
        self._producer.poll(0)

    def _produce(self) -> None:
        """More and less, as a day has it."""
        while not self._ending.wait(0.5):
            wave = 1 + 0.6 * math.sin(time.time() / 25) + self._random.uniform(-0.15, 0.15)
            self._send("orders", int(110 * wave))
            self._send("payments", int(20 * wave))
            self._send("clicks", 4)

    def _ends(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked = {KafkaPartition(*tp): OffsetSpec.latest() for tp in partitions}
        futures = self._admin.list_offsets(asked)
        return {TopicPartition(tp.topic, tp.partition): each.result(_SECONDS).offset for tp, each in futures.items()}

    def _claim(self, group: str, topic: str, read: float, *, release: bool = False) -> None:
        partitions = [TopicPartition(topic, number) for number in range(TOPICS[topic])]
        claims = self._ledger.claim(group, partitions)
        spans = [Span(tp, 0, int(end * read), int(end * read)) for tp, end in self._ends(partitions).items()]
        self._ledger.transact(claims, spans)
        if release:
            self._ledger.release(claims)

    def _consume(self, group: str, topic: str, rate: int) -> None:
        """Read at most so many records a second."""
        partitions = [TopicPartition(topic, number) for number in range(TOPICS[topic])]
        claims = dict(self._ledger.claim(group, partitions))
        at = {tp: claim.position for tp, claim in claims.items()}
        while not self._ending.wait(1.0):
            ends = self._ends(partitions)
            share = int(rate / len(partitions) * self._random.uniform(0.9, 1.1))
            spans = [
                Span(tp, at[tp], end, end - at[tp])
                for tp in partitions
                if (end := min(ends[tp], at[tp] + share)) > at[tp]
            ]
            try:
                if spans:
                    self._ledger.transact(claims, spans)
                    at |= {span.partition: span.end for span in spans}
            except Fenced:
                claims |= self._ledger.reclaim(claims, take=True).claims
                at = {tp: claim.position for tp, claim in claims.items()}

    def _dead_letters(self) -> None:
        tp = TopicPartition("payments", 0)
        claims: dict[TopicPartition, Claim] = self._ledger.claim("receipts", [tp])
        texts = [
            b'{"id": "7f3a91c2", "customer": {"name": "Ann <script>alert(1)</script>"}, "total": "twelve"}',
            b'{"id": "90aa17d0", "total": null}',
            bytes(range(120, 256)) * 3,
        ]
        errors = [
            "ValueError: total is not a number: 'twelve'",
            "KeyError: 'customer'",
            "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80 in position 8: invalid start byte",
        ]
        letters = [
            FailedRecord(
                Record(
                    "payments",
                    0,
                    number * 7,
                    b"customer-%d" % number,
                    text,
                    (("trace", b"a1f%d" % number),),
                    1794650000000,
                ),
                error,
                3,
            )
            for number, (text, error) in enumerate(zip(texts, errors, strict=True), 1)
        ]

        def park(tx: Any) -> None:
            for letter in letters:
                tx.park(letter)

        self._ledger.transact(claims, [Span(tp, 0, 30, 27)], park)


@contextmanager
def shop(folder: Path) -> Iterator[Shop]:
    """An open shop, with a broker of its own."""
    with Kafka() as kafka:
        opened = Shop(folder, kafka)
        opened.open()
        try:
            yield opened
        finally:
            opened.close()
