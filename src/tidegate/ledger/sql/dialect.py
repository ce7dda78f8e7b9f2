"""The interface of what differs between SQL databases: passing and locking rows, guarding transactions, errors."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, TextClause
from sqlalchemy.exc import DBAPIError

from tidegate.errors import LedgerError
from tidegate.ledger.sql.schema import SchemaLayout
from tidegate.ledger.transaction import ConnectionLost, Limits, Retriable

__all__ = ["NOTE_LENGTH", "Blame", "Dialect", "as_json", "driver_error"]

NOTE_LENGTH = 2000


class Blame(Enum):
    """Whose fault an error is."""

    RECORD = "record"
    UNCERTAIN = "uncertain"
    DATABASE = "database"

    @classmethod
    def of(cls, *, never: bool, values: bool) -> Blame:
        """Return the blame for an error that values ``never`` cause, or that is about ``values``; else uncertain."""
        if never:
            return cls.DATABASE
        return cls.RECORD if values else cls.UNCERTAIN


class Dialect(ABC):
    """One kind of SQL database.

    A transaction consists of :meth:`begin`, the advance, the handler's writes, :meth:`intact` and :meth:`commit`. In
    between, the database itself refuses any other commit: a handler that commits, or runs a statement that commits
    implicitly, gets an error and has changed nothing.
    """

    driver: str
    """SQLAlchemy's name for the supported driver: the only one whose errors the dialect understands."""
    extra: str | None = None
    """The extra of Tidegate that installs the driver."""
    transactional_engine = ""
    """The storage engine to use instead of one without transactions; empty if all have them."""
    has_server = True
    """Whether the database is behind a connection to a server, which may be lost or stay silent."""
    advance: str
    """The compare-and-set that moves positions. Anything but one changed row for each of ``rows`` rolls back.

    Its places are the table ``positions``, the ``rows``, and the assignments and the condition of the journal's open
    ``entry``, which lives in the same row.
    """
    now: str
    locking = " FOR UPDATE"
    layout = SchemaLayout()
    locks_first = False
    if_turns_help = ""
    """A condition added to the statement that takes a group's turn; where it is false, the statement locks nothing."""
    skip_locked: str | None = None
    """The clause that makes a query skip a row that others have locked or wait for; ``None`` where it is not needed.

    It is needed where the database resolves a deadlock by rolling back the smaller transaction, because the larger one
    then does not learn of the conflict.
    """
    brief_lock_waits: tuple[TextClause, ...] = ()
    """Statements that shorten a transaction's lock timeout, each to another time, for a database that detects deadlocks
    late. With times of their own, the transactions of a deadlock do not all give up together: after the first, the
    others go on."""

    def __init__(self, engine: Engine, limits: Limits, *, owned: bool) -> None:
        """``owned``: the ledger created the engine, so its sessions may keep the ledger's settings."""
        self.engine = engine
        self.limits = limits
        self.owned = owned

    def quote(self, table: Table) -> str:
        """Return the table's quoted name for a statement."""
        return self.engine.dialect.identifier_preparer.format_table(table)

    # Composing statements

    @abstractmethod
    def rows(self, columns: Mapping[str, str]) -> str:
        """Return SQL for a statement's rows as a table ``v`` with these columns and types (text, note, int, bigint)."""

    def row(self, columns: Mapping[str, str]) -> str:
        """Return SQL for a single row, like :meth:`rows`; differs where the database handles one row faster."""
        return self.rows(columns)

    def parameters(self, common: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the parameters of a statement with :meth:`rows`: the rows are one parameter, in column order."""
        return {**common, "rows": as_json([list(row.values()) for row in rows])}

    def packed(self, columns: list[str]) -> str:
        """Return the SELECT list for a query of many rows; :meth:`unpacked` reads its result."""
        return ", ".join(columns)

    def unpacked(self, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Return the values of rows that were selected with :meth:`packed`."""
        return rows

    def write(
        self, conn: Connection, statements: list[TextClause], common: Mapping[str, Any], rows: list[dict[str, Any]]
    ) -> bool:
        """Run statements for these rows in order; stop and return false at one that does not change every row."""
        return all(self.moved(conn, statement, common, rows) == len(rows) for statement in statements)

    def moved(
        self, conn: Connection, statement: TextClause, common: Mapping[str, Any], rows: list[dict[str, Any]]
    ) -> int:
        """Run a statement for these rows and return how many rows it changed."""
        if ":rows" in statement.text:
            return conn.execute(statement, self.parameters(common, rows)).rowcount
        return self.write_each(conn, statement, [{**common, **row} for row in rows])

    def write_each(self, conn: Connection, statement: TextClause, rows: list[dict[str, Any]]) -> int:
        """Run a statement once for each row, whose values are its parameters; return how many rows were changed."""
        return conn.execute(statement, rows).rowcount

    def join(self, rows: str, table: str, on: str) -> str:
        """Return SQL that joins ``rows`` to ``table`` (as ``p``), in the order of ``rows`` if that matters."""
        return f"{rows} JOIN {table} AS p ON {on}"

    def update(self, table: str, rows: str, assignments: Mapping[str, str], on: str) -> str:
        """Return an UPDATE of ``table`` (as ``p``) from ``rows``."""
        return f"UPDATE {table} AS p SET {self.assigned(assignments)} FROM {rows} WHERE {on}"

    def assigned(self, assignments: Mapping[str, str]) -> str:
        """Return the assignments of an UPDATE."""
        return ", ".join(f"{column} = {value}" for column, value in assignments.items())

    def advanced(self, positions: str, rows: str, entry: Mapping[str, str], condition: str) -> str:
        """Return the compare-and-set for these rows, with the assignments and the condition of their open entries."""
        return self.advance.format(positions=positions, rows=rows, entry=self.assigned(entry), condition=condition)

    @abstractmethod
    def before(self, seconds: int) -> str:
        """Return SQL for the time so many seconds ago."""

    def marked(self) -> dict[str, str]:
        """Return further assignments of an advance, by which the database tells the ledger's COMMIT from any other."""
        return {}

    def hand_over(self, positions: str, journal: str, rows: str, same_key: str, closed: Mapping[str, str]) -> list[str]:
        """Return the statements of a :class:`Handover`: they change the owner of rows and write their journal entries.

        ``closed`` are the further assignments for rows whose open entry was written to the journal.
        """
        return [
            self.update(positions, rows, {**self._handed_over, **closed}, same_key),
            f"INSERT INTO {journal} ({JOURNAL}) SELECT :group, {HANDED_OVER.format(now=self.now)} "
            f"FROM {self.join(rows, positions, same_key)}",
        ]

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
        """Return a statement that ends the sessions that hold the rows' locks, if the database may fail to do so."""
        return None

    def greet(self, conn: Connection) -> None:  # noqa: B027 - only some stores have anything to find out
        """Prepare a connection that the ledger has taken out of the pool, before its first use."""

    def without_transactions(self, conn: Connection, names: Sequence[str]) -> dict[str, str]:
        """Return the given tables whose storage engine has no transactions, each with its engine."""
        return {}

    # Connecting

    @staticmethod  # noqa: B027 - only some databases have places where a ledger cannot live
    def check(url: URL) -> None:
        """Raise if a ledger cannot live at this URL."""

    @staticmethod
    def completed(url: URL) -> URL:
        """Return the URL with the options that the ledger's own engine needs."""
        return url

    @staticmethod
    def engine_options(limits: Limits) -> dict[str, Any]:
        """Return the arguments of ``create_engine`` for the ledger's own engine."""
        return {"pool_timeout": limits.lock_wait}

    @staticmethod  # noqa: B027 - only some databases need it
    def prepare(engine: Engine) -> None:
        """Prepare the ledger's own engine before it connects."""

    @staticmethod
    def advice(url: URL, error: BaseException) -> str:
        """Return what to do about an error that kept the ledger from connecting."""
        return "Is the database running, and are address, user and password right?"

    @staticmethod
    def is_logged_in(error: BaseException) -> bool:
        """Return whether a connection failed after the login, so that address, user and password are right."""
        return False

    def unfit_session(self, conn: Connection) -> str | None:
        """Return the setting of the session with which the ledger's statements go wrong, and what to do."""
        return None

    def room(self, conn: Connection) -> int | None:
        """Return the maximum size of a statement with its values, in bytes; ``None`` if no record can reach the limit.

        Binary values count as hexadecimal digits.
        """
        return None

    # Guarding a transaction

    @abstractmethod
    def begin_snapshot(self, conn: Connection) -> None:
        """Begin a snapshot for all reads, until the connection goes back to the pool."""

    @abstractmethod
    def begin(self, conn: Connection) -> None:
        """Begin a transaction with the limits' timeouts, which only the ledger can end."""

    def tidy(self, conn: Connection) -> None:  # noqa: B027 - only some stores let a handler move away
        """Clean up the session after the handler, before the ledger's own statements continue."""

    def intact(self, conn: Connection) -> bool:
        """Return whether this is still the transaction that :meth:`begin` began. Called once, before :meth:`commit`."""
        return True

    @abstractmethod
    def commit(self, conn: Connection) -> None:
        """Commit the transaction."""

    @abstractmethod
    def rollback(self, conn: Connection) -> None:
        """Roll the transaction back; raises if the connection cannot be used any more."""

    def restore(self, conn: Connection) -> None:  # noqa: B027 - only some stores keep settings in the session
        """Restore the original settings of a connection of the user's engine, after the transaction."""

    @abstractmethod
    def one_creator(self, conn: Connection, name: str) -> AbstractContextManager[None]:
        """Hold a lock so that only one process at a time creates tables; commit at the end."""

    def is_closed(self, conn: Connection) -> bool:
        """Return whether the driver has lost its connection; the handler may have got any kind of error for it."""
        return False

    # Interpreting errors: each method takes the driver's own error

    @abstractmethod
    def trouble(self, error: BaseException) -> Retriable | None:
        """Return the :class:`Retriable` that an error stands for; ``None`` if a retry does not help."""

    @abstractmethod
    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether an inserted row existed already; if it was the ledger's row, a retry helps."""

    def maybe_committed(self, error: BaseException) -> bool:
        """Return whether an error of COMMIT leaves its outcome unknown."""
        return isinstance(self.trouble(error), ConnectionLost)

    @abstractmethod
    def meddled(self, error: BaseException) -> bool:
        """Return whether an error means that the handler tried to end the transaction."""

    def forbidden(self, error: BaseException) -> str | None:
        """Return why the database refused a handler's statement, if it does so only in the ledger's transactions."""
        return None

    @staticmethod
    @abstractmethod
    def blame(error: Any, *, about_values: bool) -> Blame | None:
        """Return whose fault an error of the driver is, by its code; ``None`` if it has no code of this database.

        ``about_values``: the driver's own class for the error says that it is about values.
        """

    @abstractmethod
    def refusal(self, error: BaseException) -> type[LedgerError] | None:
        """Return the public error for a missing privilege or a missing table; ``None`` for other errors."""

    def time(self, value: Any) -> datetime:
        """Convert a time from the database to a datetime with a time zone."""
        parsed = datetime.fromisoformat(value) if isinstance(value, str) else value
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)

    def time_parameter(self, value: datetime) -> Any:
        """Convert a time to a parameter that the database can compare."""
        return value


JOURNAL = (
    "consumer_group, topic, partition_id, seq, kind, start_offset, end_offset, records, epoch, owner, commit_token, "
    "note, at"
)
HANDED_OVER = "p.topic, p.partition_id, p.seq, :kind, p.next_offset, p.next_offset, 0, p.epoch, :by, NULL, NULL, {now}"


def as_json(rows: list[Any]) -> str:
    """Encode rows as one JSON parameter."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


def driver_error(error: BaseException) -> BaseException:
    """Return the driver's own error, unwrapped from SQLAlchemy's."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
