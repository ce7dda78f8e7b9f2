"""What is read: records with amounts, written all the while, each once."""

from __future__ import annotations

from decimal import Decimal

from tests.app.listener.topic import Topic
from tests.chaos.feed import Feed
from tests.chaos.spark.orders import KEYS

PARTITIONS = 4


def feed(topic: Topic) -> Feed:
    return Feed(topic, lambda partition, n: f'{{"k": {key(n)}, "amount": {amount(partition, n)}, "one": 1}}')


def key(number: int) -> int:
    """Each is in all partitions."""
    return number % KEYS


def amount(partition: int, number: int) -> Decimal:
    """Different for each record, so that one lost and one twice do not make up for each other."""
    return Decimal(1 + (number * 7 + partition) ** 2 % 100_003) / 100
