"""Orders: small, numbered from 0 on, each with an amount in cents."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

TOPIC = "orders"
PARTITIONS = 4


class Order(NamedTuple):
    """One order."""

    number: int
    customer: int
    cents: int

    @property
    def amount(self) -> Decimal:
        return Decimal(self.cents).scaleb(-2)

    def value(self) -> bytes:
        """As it goes to Kafka: the amount is a number with two digits after the point, and never a binary float."""
        text = json.dumps({"id": self.number, "customer": self.customer})
        return f'{text[:-1]}, "amount": {self.amount}}}'.encode()


def orders(count: int, seed: int = 7) -> Iterator[Order]:
    """So many orders, the same ones each time."""
    chance = random.Random(seed)
    for number in range(count):
        yield Order(number, chance.randrange(1000), chance.randrange(100, 50_000))
