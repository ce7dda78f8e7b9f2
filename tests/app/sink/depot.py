"""A depot whose records go into several tables: a database, a ledger in it, and a kit that runs a route."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from sqlalchemy import create_engine, event, inspect

from tidegate import App, open_ledger
from tidegate.observe.events import Event
from tidegate.testing import TestKit

GROUP = "depot"


class Depot:
    """One database with tables of its own, whose names begin alike; each run is that of a new process."""

    def __init__(self, url: str) -> None:
        self.name = f"d{secrets.token_hex(5)}"
        self.database = url.partition(":")[0].partition("+")[0]
        self.prefix = f"{self.name}_t_"  # of the ledger's tables
        self._engine = create_engine(url)
        self.ledger = open_ledger(url, prefix=self.prefix)
        if self.database == "sqlite":
            for engine in (self._engine, self.ledger.engine):
                event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
        self._app = App("nowhere.invalid:9092", self.ledger)
        self.kit = TestKit(self._app, broker="local")

    def close(self) -> None:
        self.kit.close()
        self.ledger.close()
        self._engine.dispose()

    def table(self, name: str) -> str:
        """The name of a table in the database."""
        return f"{self.name}_{name}"

    def quoted(self, name: str) -> str:
        mark = "`" if self.database in ("mysql", "mariadb") else '"'
        return f"{mark}{self.table(name)}{mark}"

    def tables(self) -> list[str]:
        """The tables beside the ledger's, without what all names begin with."""
        found = [name for name in inspect(self._engine).get_table_names() if name.startswith(f"{self.name}_")]
        return sorted(name.removeprefix(f"{self.name}_") for name in found if not name.startswith(self.prefix))

    def sql(self, *statements: str) -> None:
        with self._engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)

    def rows(self, name: str, columns: str = "*", order: str = "1, 2") -> list[tuple[Any, ...]]:
        with self._engine.connect() as conn:
            found = conn.exec_driver_sql(f"SELECT {columns} FROM {self.quoted(name)} ORDER BY {order}")
            return [tuple(row) for row in found]

    def orders(self, on_delete: str = "", lines: str = "") -> None:
        """Create orders, their lines, and the lots of the lines, with foreign keys."""
        orders, lines_, lots = map(self.table, ("orders", "lines", "lots"))
        self.sql(
            f"CREATE TABLE {orders} (id INTEGER NOT NULL PRIMARY KEY, customer VARCHAR(40) NOT NULL)",
            f"CREATE TABLE {lines_} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, sku VARCHAR(40) NOT NULL{lines}, "
            f"PRIMARY KEY (order_id, n), FOREIGN KEY (order_id) REFERENCES {orders} (id) {on_delete})",
            f"CREATE TABLE {lots} (order_id INTEGER NOT NULL, n INTEGER NOT NULL, lot INTEGER NOT NULL, "
            f"PRIMARY KEY (order_id, n, lot), FOREIGN KEY (order_id, n) REFERENCES {lines_} (order_id, n) {on_delete})",
        )

    def send(self, topic: str, *values: Any, **settings: Any) -> None:
        for value in values:
            self.kit.send(topic, value, **settings)

    def run(self, topics: Any, into: Any, *, batch: int | None = None, **settings: Any) -> Sequence[Event]:
        """Run the sink until it has caught up."""
        self._app.listeners.clear()
        self._app.sink(topics, into=into, group=GROUP, **settings)
        self.kit._batch = batch
        run = self.kit.run(within=180)  # fifty tables on a busy machine
        self.kit.check()
        return run.events

    def letters(self) -> list[tuple[str, int, str]]:
        """The dead letters: topic, offset and error."""
        found = [each.letter for each in self.kit.dead_letters(GROUP)]
        return [(each.record.topic, each.record.offset, each.error) for each in found]

    def parked(self) -> list[tuple[str, int]]:
        return sorted((topic, offset) for topic, offset, _ in self.letters())


def order(number: int, *skus: Any, customer: Any = "ann") -> dict[str, Any]:
    lines = [{"sku": sku, "lots": number} for sku in skus]
    return {"id": number, "customer": customer, "lines": lines}


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
