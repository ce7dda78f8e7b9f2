"""A user's app, with a listener that is right and with some that are not, and a kit to test it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table, insert, select

from tidegate import App
from tidegate.ledger import SqlTransaction
from tidegate.testing import TestKit

metadata = MetaData()
BILLS = Table("bills", metadata, Column("id", Integer, primary_key=True), Column("total", Integer))
# Without a key: what is written twice is there twice.
VISITS = Table("visits", metadata, Column("number", Integer, primary_key=True), Column("order_id", Integer))

KAFKA = "nowhere.invalid:9092"  # nobody is to be asked there


@dataclass
class Order:
    id: int
    total: int = 0


Handler = Callable[[Order, SqlTransaction], None]


def bill(order: Order, tx: SqlTransaction) -> None:
    """The right listener: everything is in the transaction."""
    tx.execute(insert(BILLS).values(id=order.id, total=order.total))
    tx.execute(insert(VISITS).values(order_id=order.id))


class Shop:
    """One app, one listener of orders, and a kit on an empty database."""

    def __init__(
        self,
        url: str,
        handler: Callable[..., object] = bill,
        *,
        orders: int = 0,
        batch: int | None = None,
        broker: str | Mapping[str, Any] = "local",
        partitions: int = 1,
        **settings: Any,
    ) -> None:
        self.app = App(KAFKA, "memory://")
        self.app.listener("orders", group="billing", **settings)(handler)
        self.kit = TestKit(self.app, ledger=url, batch=batch, broker=broker)
        metadata.create_all(self.kit.engine)
        if partitions > 1:
            self.kit.topic("orders", partitions)
        for number in range(orders):
            self.kit.send("orders", Order(number, 10 * number))

    def visits(self) -> list[int]:
        """The orders that were handled, in order, as often as they were."""
        with self.kit.engine.connect() as connection:
            return list(connection.scalars(select(VISITS.c.order_id).order_by(VISITS.c.number)))

    def check(self, orders: int) -> None:
        self.kit.check()
        assert sorted(self.visits()) == list(range(orders))

    def close(self) -> None:
        self.kit.close()
