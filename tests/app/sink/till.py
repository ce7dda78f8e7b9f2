"""A till: a table and a ledger, where each batch is one transaction of a sink, whatever becomes of it."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import quote

from sqlalchemy import create_engine

from tidegate import DeadLetter, Record, Span, Table, TopicPartition, open_ledger
from tidegate.app.sink import Sink
from tidegate.core.records import FailedRecord
from tidegate.ledger import Limits

GROUP = "etl"
ORDERS = TopicPartition("orders", 0)
BAD = 3  # the id that triggers of tests refuse


class Till:
    """A table and a ledger; each batch is one transaction of a sink."""

    def __init__(self, url: str) -> None:
        self.name = f"b{secrets.token_hex(6)}"
        self.engine = create_engine(url)
        self.database = self.engine.dialect.name
        self._url = url
        self.ledger = self._opened(url)
        self.claims = self.ledger.claim(GROUP, [ORDERS])
        self.offset = 0

    def reopen(self, options: str) -> None:
        """The ledger with sessions that have these options, on PostgreSQL."""
        self.ledger.close()
        self.ledger = self._opened(f"{self._url}?options={quote(options)}")

    def _opened(self, url: str) -> Any:
        return open_ledger(url, prefix=f"{self.name}_", limits=Limits(hold=2, lock_wait=2, answer=60, attempts=2))

    def close(self) -> None:
        self.ledger.close()
        self.engine.dispose()

    def sql(self, *statements: str) -> None:
        with self.engine.begin() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement.replace("%", "%%") if self.database != "sqlite" else statement)

    def create(self, columns: str = "id INTEGER PRIMARY KEY, total INTEGER") -> None:
        self.sql(f"CREATE TABLE {self.name} ({columns})")

    def trigger(self, body: str, *, bad: int = BAD) -> None:
        """A trigger that does something for one id."""
        on = f"CREATE TRIGGER {self.name}_t BEFORE INSERT ON {self.name} FOR EACH ROW"
        match self.database:
            case "postgresql":
                self.sql(
                    f"CREATE FUNCTION {self.name}_f() RETURNS trigger LANGUAGE plpgsql AS "
                    f"$$ BEGIN IF NEW.id = {bad} THEN {body}; END IF; RETURN NEW; END $$",
                    f"{on} EXECUTE FUNCTION {self.name}_f()",
                )
            case "sqlite":
                self.sql(f"{on} WHEN NEW.id = {bad} BEGIN {body}; END")
            case _:
                self.sql(f"{on} BEGIN IF NEW.id = {bad} THEN {body}; END IF; END")

    def write(self, *rows: str, policy: Any = DeadLetter(), **into: Any) -> None:  # noqa: B008 - a constant
        """One transaction over records with these values."""
        records = [Record(*ORDERS, self.offset + at, None, row.encode()) for at, row in enumerate(rows)]
        sink = Sink(Table(self.name, **into)).open(self.ledger, GROUP, policy)
        span = Span(ORDERS, self.offset, self.offset + len(records), len(records))

        self.ledger.transact(self.claims, [span], sink.prepare(records).run)
        self.offset += len(records)

    def ids(self) -> list[int]:
        with self.engine.connect() as conn:
            return list(conn.exec_driver_sql(f"SELECT id FROM {self.name} ORDER BY id").scalars())

    def parked(self) -> list[int]:
        return [letter.record.offset for letter in self.letters()]

    def errors(self) -> list[str]:
        return [letter.error for letter in self.letters()]

    def letters(self) -> list[FailedRecord]:
        return [each.letter for each in self.ledger.dead_letters(GROUP, limit=1000)]

    @property
    def position(self) -> int:
        return int(self.ledger.read(GROUP).positions[ORDERS].next_offset)
