"""A shop whose topics go into tables: a database, a ledger in it, and a kit that runs its sinks."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import create_engine

from tidegate import App, Table, open_ledger
from tidegate.testing import Run, TestKit

GROUP = "etl"
TOPIC = "orders"


class Shop:
    """One database of its own tables; each run of a sink is that of a new process."""

    def __init__(self, url: str, broker: str = "local", partitions: int = 1) -> None:
        self.name = f"s{secrets.token_hex(6)}"
        self.database = url.partition(":")[0].partition("+")[0]
        self._engine = create_engine(url)  # a bystander's
        self._ledger = open_ledger(url, prefix=f"{self.name}_")
        self._app = App("nowhere.invalid:9092", self._ledger)
        self.kit = TestKit(self._app, broker=broker)
        self.kit.topic(TOPIC, partitions)

    def close(self) -> None:
        self.kit.close()
        self._ledger.close()
        self._engine.dispose()

    # Tables

    @property
    def table(self) -> str:
        return f"{self.name}_orders"

    def create(self, columns: str, table: str | None = None) -> None:
        self.sql(f"CREATE TABLE {table or self.table} ({columns})")

    def sql(self, statement: str) -> None:
        with self._engine.begin() as conn:
            conn.exec_driver_sql(statement.replace("%", "%%") if self.database != "sqlite" else statement)

    def rows(self, columns: str = "*", table: str | None = None, order: str = "1") -> list[tuple[Any, ...]]:
        with self._engine.connect() as conn:
            found = conn.exec_driver_sql(f"SELECT {columns} FROM {table or self.table} ORDER BY {order}")
            return [tuple(row) for row in found]

    # Records

    def send(self, *values: Mapping[str, Any] | str | bytes | None, **settings: Any) -> None:
        for value in values:
            self.kit.send(TOPIC, value, **settings)

    # Sinks

    def sink(self, *, batch: int | None = None, columns: Any = None, format: Any = "json", **settings: Any) -> Run:
        """Run a sink until it has caught up: ``into`` are settings of its table, the others its own."""
        into = settings.pop("into", {})
        self._app.listeners.clear()
        self._app.sink(TOPIC, into=Table(self.table, **into), group=GROUP, format=format, columns=columns, **settings)
        self.kit._batch = batch
        run = self.kit.run()
        self.kit.check()
        return run

    def letters(self) -> list[tuple[int, str]]:
        """The dead letters: offset and error."""
        return [(each.letter.record.offset, each.letter.error) for each in self.kit.dead_letters(GROUP)]

    def once(self, statements: str | Iterable[str], at: int) -> Callable[[Any], Any]:
        """A format that reads JSON, and has the table altered by somebody else when it comes to an offset."""
        due = [statements] if isinstance(statements, str) else list(statements)

        def read(record: Any) -> Any:
            if record.offset == at:
                while due:
                    self.sql(due.pop(0))
            return json.loads(record.value)

        return read
