"""The audit: what is in the table, against what was produced."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from demo.feed import Fed
from tidegate import Delivery


class Audit(NamedTuple):
    """What became of the orders."""

    delivery: Delivery
    produced: Fed
    rows: int
    lost: int
    twice: int
    total: Decimal

    @property
    def exact(self) -> bool:
        """Whether every order is there once, with its amount."""
        return not self.lost and not self.twice and self.total == self.produced.total


def audit(delivery: Delivery, database: Path, produced: Fed) -> Audit:
    """Count the orders of a table, and add up their amounts without rounding."""
    with closing(sqlite3.connect(database)) as connection:
        rows, known = connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
        amounts = connection.execute("SELECT CAST(amount AS TEXT) FROM orders")
        total = sum((Decimal(text) for (text,) in amounts), Decimal(0))
    return Audit(delivery, produced, rows, produced.count - known, rows - known, total)


def verdict(audits: list[Audit]) -> str | None:
    """What is wrong with the outcome; ``None`` if nothing is.

    Kills that met nothing prove nothing: where data and position are two steps, some of them have to have shown.
    """
    by_delivery = {each.delivery: each for each in audits}
    if not by_delivery[Delivery.EXACTLY_ONCE].exact:
        return "exactly once was not: orders are missing or there twice"
    if not by_delivery[Delivery.AT_LEAST_ONCE].twice:
        return "no order came twice at least once: the kills met nothing, so they prove nothing"
    if not by_delivery[Delivery.AT_MOST_ONCE].lost:
        return "no order was lost at most once: the kills met nothing, so they prove nothing"
    if by_delivery[Delivery.AT_LEAST_ONCE].lost or by_delivery[Delivery.AT_MOST_ONCE].twice:
        return "at least once lost orders, or at most once repeated some: neither may happen"
    return None
