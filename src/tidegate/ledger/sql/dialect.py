"""What differs between SQL stores: how rows are passed and locked, a transaction kept whole, errors understood."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Table, TextClause
from sqlalchemy.exc import DBAPIError

from tidegate.core.errors import LedgerError
from tidegate.ledger.limits import Limits
from tidegate.ledger.sql.schema import Layout
from tidegate.ledger.trouble import ConnectionLost, Trouble

__all__ = ["NOTE_LENGTH", "Dialect", "as_json", "driver_error"]

NOTE_LENGTH = 2000


class Dialect(ABC):
    """One kind of SQL store.

    The life of a transaction: :meth:`begin`, the advance, the handler's writes, :meth:`intact`, :meth:`commit`. In
    between the store itself refuses to commit for anybody else: a handler that commits, or runs a statement that
    commits by itself, gets an error and has changed nothing.
    """

    now: str
    locking = " FOR UPDATE"
    layout = Layout()
    locks_first = False

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        """``owned``: the ledger made the engine, so that sessions keep the ledger's settings."""
        self.engine = engine
        self.limits = limits
        self.owned = owned

    def quote(self, table: Table) -> str:
        """The table's name as it goes into a statement."""
        return self.engine.dialect.identifier_preparer.format_table(table)

    # Composing statements

    @abstractmethod
    def rows(self, columns: Mapping[str, str]) -> str:
        """The rows of a statement as a table ``v`` with these columns and types (text, note, int, bigint)."""

    def row(self, columns: Mapping[str, str]) -> str:
        """One row of a statement, like :meth:`rows`, where the store does less for one if it is told so."""
        return self.rows(columns)

    def parameters(self, common: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """What a statement with :meth:`rows` is run with: the rows are one parameter, in the order of the columns."""
        return {**common, "rows": as_json([list(row.values()) for row in rows])}

    def packed(self, columns: list[str]) -> str:
        """The columns of many rows as a query selects them, for :meth:`unpacked`."""
        return ", ".join(columns)

    def unpacked(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """The values of rows that were selected by :meth:`packed`."""
        return rows

    def write(
        self, conn: Connection, statements: list[TextClause], common: Mapping[str, Any], rows: list[dict[str, Any]]
    ) -> bool:
        """Run statements for these rows, one after the other, as long as each of them changes as many as there are."""
        together: dict[str, Any] = {}
        each: list[dict[str, Any]] = []
        for statement in statements:
            if ":rows" in statement.text:
                together = together or self.parameters(common, rows)
                count = conn.execute(statement, together).rowcount
            else:
                each = each or [{**common, **row} for row in rows]
                count = self.write_each(conn, statement, each)
            if count != len(rows):
                return False
        return True

    def write_each(self, conn: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> int:
        """Run a statement for each of the rows, whose values are its parameters, and count what they changed."""
        return conn.execute(statement, rows).rowcount

    def join(self, rows: str, table: str, on: str) -> str:
        """The rows of ``table`` (as ``p``) that belong to ``rows``, in their order if that matters."""
        return f"{rows} JOIN {table} AS p ON {on}"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """An UPDATE of ``table`` (as ``p``) from ``rows``."""
        assigned = ", ".join(f"{column} = {value}" for column, value in assignments.items())
        return f"UPDATE {table} AS p SET {assigned} FROM {rows} WHERE {on}"

    def advance(self, positions: str, journal: str, rows: str, same_key: str) -> list[str]:
        """The compare-and-set and its journal entries: each of the statements changes as many rows as moved."""
        return [
            self.update(positions, rows, self._moved, f"{same_key} AND {COMPARE}"),
            f"INSERT INTO {journal} ({JOURNAL}) SELECT :group, {JOURNALLED.format(now=self.now)} "
            f"FROM {self.join(rows, positions, f'{same_key} AND p.commit_token = :token')}",
        ]

    def hand_over(self, positions: str, journal: str, rows: str, same_key: str) -> list[str]:
        """Rows that change hands and nothing else, and their journal entries; see :class:`Handover`."""
        return [
            self.update(positions, rows, self._handed_over, same_key),
            f"INSERT INTO {journal} ({JOURNAL}) SELECT :group, {HANDED_OVER.format(now=self.now)} "
            f"FROM {self.join(rows, positions, same_key)}",
        ]

    @property
    def _moved(self) -> dict[str, str]:
        return {"next_offset": "v.end_offset", "commit_token": ":token", "seq": "p.seq + 1", "updated_at": self.now}

    @property
    def _handed_over(self) -> dict[str, str]:
        return {
            "epoch": "p.epoch + :epochs",
            "owner": ":owner",
            "commit_token": "CASE WHEN :epochs = 0 THEN p.commit_token END",
            "seq": "p.seq + 1",
            "updated_at": self.now,
        }

    def holders(self, positions: str, rows: str, same_key: str) -> str | None:
        """A statement that ends the sessions which hold the rows' locks, where the store does not do so itself."""
        return None

    def greet(self, conn: Connection) -> None:  # noqa: B027 - only some stores have anything to find out
        """Called with every connection that the ledger takes out of the pool, before it is used."""

    def without_transactions(self, conn: Connection, names: Sequence[str]) -> dict[str, str]:
        """Those of the ledger's tables that somebody gave a storage engine without transactions, each with it."""
        return {}

    # Keeping a transaction whole

    @abstractmethod
    def begin(self, conn: Connection) -> None:
        """Begin, with the limits in force and everybody else kept from ending the transaction."""

    def intact(self, conn: Connection) -> bool:
        """Whether this is still the transaction that :meth:`begin` began. Called just before :meth:`commit`, once."""
        return True

    @abstractmethod
    def commit(self, conn: Connection) -> None:
        """Commit for good."""

    @abstractmethod
    def rollback(self, conn: Connection) -> None:
        """Undo everything; raises if the connection is not to be trusted any more."""

    def restore(self, conn: Connection) -> None:  # noqa: B027 - only some stores keep settings in the session
        """Give a connection of the user's engine its own settings back, after the transaction."""

    @abstractmethod
    def one_creator(self, conn: Connection, name: str) -> AbstractContextManager[None]:
        """Let one process at a time create tables."""

    def is_closed(self, conn: Connection) -> bool:
        """Whether the driver has lost its connection; it may have told the handler so by any kind of error."""
        return False

    # Understanding errors: each takes the driver's own error

    @abstractmethod
    def trouble(self, error: BaseException) -> Trouble | None:
        """What an error means, if another try may cure it."""

    @abstractmethod
    def is_duplicate(self, error: BaseException) -> bool:
        """Whether two inserted the same row: another try cures it if the row was the ledger's."""

    def maybe_committed(self, error: BaseException) -> bool:
        """Whether an error of COMMIT leaves open what became of it."""
        return isinstance(self.trouble(error), ConnectionLost)

    @abstractmethod
    def meddled(self, error: BaseException) -> bool:
        """Whether it says that a handler tried to end the transaction."""

    def forbidden(self, error: BaseException) -> str | None:
        """Why the store refused what a handler asked for, if it does so only in the ledger's transactions."""
        return None

    @abstractmethod
    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """Which public error the ledger's own statements ran into: no right, or no table."""

    def time(self, value: Any) -> datetime:
        """A time as the store gave it, with its zone."""
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)

    def time_parameter(self, value: datetime) -> Any:
        """A time as the store compares it."""
        return value


COMPARE = "p.next_offset = v.start_offset AND p.epoch = v.epoch AND p.owner = v.owner"
JOURNAL = (
    "consumer_group, topic, partition_id, seq, kind, start_offset, end_offset, records, epoch, owner, commit_token, "
    "note, at"
)
JOURNALLED = (
    "p.topic, p.partition_id, p.seq, :move, v.start_offset, v.end_offset, v.records, v.epoch, v.owner, :token, "
    ":note, {now}"
)
HANDED_OVER = "p.topic, p.partition_id, p.seq, :kind, p.next_offset, p.next_offset, 0, p.epoch, :by, NULL, NULL, {now}"


def as_json(rows: list[Any]) -> str:
    """Rows as one parameter."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def driver_error(error: BaseException) -> BaseException:
    """The driver's own error, out of SQLAlchemy's wrapping."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
