"""The feed: orders into a topic."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from demo.orders import PARTITIONS, TOPIC, orders
from tidegate import Producer

_TELL_EVERY = 2000


class Fed(NamedTuple):
    """What was produced: how many orders, and the sum of their amounts."""

    count: int
    total: Decimal


def feed(bootstrap: str, count: int, tell: Callable[[int], None]) -> Fed:
    """Create the topic and produce the orders, each acknowledged; ``tell`` hears how many were sent so far."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    # A new broker lets an idempotent producer wait for a moment, which the client would tell of.
    quiet = {"log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, **quiet})
    total = Decimal(0)
    for order in orders(count):
        producer.send(TOPIC, order.value(), key=str(order.customer).encode())
        total += order.amount
        if order.number % _TELL_EVERY == 0:
            tell(order.number)
    if undelivered := producer.close():
        raise RuntimeError(f"{len(undelivered)} orders were not delivered: {undelivered[0].error}")
    tell(count)
    return Fed(count, total)
