"""The interface of what differs between databases: names, literals, the inspection of tables, statements and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from sqlalchemy import URL, Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.core.text import is_text
from tidegate.errors import LedgerDenied, LedgerError, LedgerUnavailable
from tidegate.ledger.sql.sessions import is_denied, passes
from tidegate.tables.column import Column
from tidegate.tables.defaults import default_value
from tidegate.tables.layout import Facts, Layout
from tidegate.tables.links import Links
from tidegate.tables.names import Names
from tidegate.tables.rights import line_of, rights_of
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.writer import Writer

__all__ = ["DEFINING", "StageStatements", "TableDatabase", "Unalterable"]

DEFINING = 5  # seconds that a definition waits for the locks of a table: all others wait behind it


class Unalterable(Exception):
    """A column cannot be altered so; the message says why."""


class StageStatements(ABC):
    """The statements of one kind of database for staging tables, from which rows are moved to their target tables.

    Their drivers format parameters as ``%s``.
    """

    names: Names
    """Quotes names; percent signs are doubled."""
    unlimited: str | None = None
    """The statement that ends the effect of :meth:`limited`, if it lasts longer than the transaction."""

    @abstractmethod
    def created(self, stage: Table, layout: Layout, extra: str) -> str:
        """Return the statement that creates a staging table with the columns of its target, and ``extra`` columns."""

    @abstractmethod
    def limited(self, seconds: int) -> str:
        """Return the statement that limits how long the next statements wait for the lock of a table."""

    @abstractmethod
    def inserted(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an INSERT of a query's rows; it handles rows whose key exists as the mode asks."""

    @abstractmethod
    def updated(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an UPDATE of the rows that have the keys of a query's rows."""

    def compared(self, column: Column) -> str:
        """Return the SQL after a column of the key that makes it compare as the key's index does."""
        return ""

    def run_each(self, conn: Connection, statement: str, parameters: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once for each tuple of parameters, in order."""
        for each in parameters:
            conn.exec_driver_sql(statement, each)

    def check_at_once(self, conn: Connection, layout: Layout) -> None:  # noqa: B027 - only some defer checks
        """Make the constraints of the target table check each statement, as if each were its own transaction."""


class TableDatabase(ABC):
    """One kind of database that tables can be in. It has no state: one object serves all engines."""

    names: Names
    """Quotes names, for statements that the driver does not format."""
    writer: type[Writer]
    stages: StageStatements | None = None
    """The statements for staging tables; ``None`` if executors cannot load into any."""
    is_local = False
    """Whether the database is a file, which only processes on the same machine can open."""
    table_options = ""
    """What a CREATE TABLE has after the columns."""
    alters = True
    """Whether columns can be altered after the table was created."""
    folds_tables = False
    """Whether names of tables that differ only in case are, or on some servers may be, the same table."""

    # Names and literals

    def overlong(self, name: str) -> str | None:
        """Return how long a name is and may be, if it is too long; ``None`` if it is not."""
        return None

    def misnamed(self, name: Any) -> str | None:
        """Return why there can be no column of this name; ``None`` if there can."""
        odd = not is_text(name) or any(character < " " or "\ud800" <= character <= "\udfff" for character in name)
        return "no column can have this name" if odd or not name.strip() else self._misnamed(name)

    def _misnamed(self, name: str) -> str | None:
        return None

    def verbatim(self, statement: str) -> str:
        """Return a statement without parameters so that the driver sends it unchanged.

        Most drivers format percent signs even if there are no parameters.
        """
        return statement.replace("%", "%%")

    def default_of(self, kind: ColumnType) -> str:
        """Return the default of a column type as an SQL literal."""
        value = default_value(kind)
        if kind.name is TypeName.DECIMAL:
            return f"'{value}'"
        match value:
            case bool():
                return self._boolean(value)
            case int():
                return str(value)
            case bytes():
                return self._binary(value)
            case datetime():
                return f"'{self._moment(value)}'"
            case date():
                return f"'{value.isoformat()}'"
            case float():
                return f"'{value}'"
        return self._text(str(value))

    def _boolean(self, value: bool) -> str:
        return str(int(value))

    def _moment(self, value: datetime) -> str:
        return f"{value.replace(tzinfo=None).isoformat(' ', 'microseconds')}+00:00"

    def _binary(self, value: bytes) -> str:
        return f"X'{value.hex()}'"

    @abstractmethod
    def _text(self, value: str) -> str:
        """Return a text literal that is correct whether or not the session treats a backslash as an escape."""

    # Inspecting tables

    @abstractmethod
    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """Return the table's columns in order; none if the table does not exist."""

    @abstractmethod
    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """Return the SQL type of a new column."""

    def most_digits(self, dialect: Dialect) -> tuple[int, int] | None:
        """Return how many digits a column of decimals may declare, and how many after the point; ``None``: any."""
        return None

    def possible(self, kind: ColumnType, dialect: Dialect) -> ColumnType:
        """Return the type, or for decimals of more digits than a column may declare: decimals without bounds."""
        most = self.most_digits(dialect)
        if most is None or kind.precision is None or (kind.precision <= most[0] and (kind.scale or 0) <= most[1]):
            return kind
        return replace(kind, precision=None, scale=None)

    @abstractmethod
    def facts(self, conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
        """Return what indexes, constraints, triggers and rules imply; raise if rows cannot be written unchanged."""

    @abstractmethod
    def shape(self, conn: Connection, table: Table) -> str | None:
        """Return the table's shape, to compare with its shape later; may be ``None`` if the table does not exist."""

    @abstractmethod
    def has_shape(self, conn: Connection, table: Table, shape: str | None, *, is_written: bool) -> bool:
        """Whether the table still has the shape.

        After the transaction has written to the table (``is_written``), the answer holds until the transaction ends,
        since the table cannot be altered meanwhile. Before the first write, a database that rolls back every write
        answers true without a look at the table.
        """

    def first_altered(
        self, conn: Connection, known: Sequence[tuple[Table, str | None]], *, is_written: bool
    ) -> int | None:
        """Return the place of the first of these tables that does not have its shape; see :meth:`has_shape`."""
        changed = (not self.has_shape(conn, *each, is_written=is_written) for each in known)
        return next((place for place, is_altered in enumerate(changed) if is_altered), None)

    @abstractmethod
    def links(self, conn: Connection, table: Table) -> Links | None:
        """Return what the table has to do with others; ``None`` if it does not exist."""

    def missing_file(self, url: URL) -> str | None:
        """Return the path of the database's file if it does not exist: connecting would create it."""
        return None

    # Altering tables

    @contextmanager
    def defining(self, engine: Engine) -> Iterator[Connection]:
        """Open a transaction for a definition, which waits a few seconds for the locks of a table, and no longer."""
        with engine.begin() as conn:
            if self.stages is None:
                yield conn
                return
            conn.exec_driver_sql(self.stages.limited(DEFINING))
            try:
                yield conn
            finally:
                if self.stages.unlimited is not None and not conn.invalidated:
                    conn.exec_driver_sql(self.stages.unlimited)

    def following(self, column: Column, *, in_key: bool) -> Column:
        """Return a column that may be widened: then a number that it would round does not fit."""
        widens = column.spelled and column.largest is not None and not in_key
        return replace(column, rounds=False) if widens else column

    @contextmanager
    def alone(self, conn: Connection, table: Table) -> Iterator[None]:
        """Let no other process alter the table until the transaction ends."""
        yield

    def alteration(self, conn: Connection, table: Table, old: Column, new: Column) -> str:
        """Return the statement that alters a column, and keeps all else of it; raise :class:`Unalterable`."""
        raise NotImplementedError

    def refuses_alteration(self, error: DBAPIError) -> bool:
        """Whether the database refused to alter a column because of what the table is."""
        return False

    # Interpreting errors

    @abstractmethod
    def refuses_column(self, error: DBAPIError) -> bool:
        """Whether the database refused a new column for its name, or because the table has too many."""

    @abstractmethod
    def breaks_reference(self, error: BaseException) -> bool:
        """Whether a foreign key refused a row: one that refers to no row, or one that others refer to."""

    def denial(self, engine: Engine, table: Table, error: BaseException) -> LedgerDenied | None:
        """Return an error with the GRANT to run, if a statement failed for a missing right; else ``None``."""
        if not is_denied(engine, error) or not self._is_for_rights(error):
            return None
        login, reason = self.names.quote(engine.url.username or "login"), line_of(error)
        return LedgerDenied(
            f"table {table}: the database refused: {reason}. It takes {self._grant(table, reason, login)} TO {login}"
        )

    def _is_for_rights(self, error: BaseException) -> bool:
        """Whether a refusal has to do with rights at all."""
        return True

    def _grant(self, table: Table, reason: str, login: str) -> str:
        rights = [*rights_of(table), *["CREATE"] * table.create, *["ALTER"] * table.evolution.alters]
        return f"GRANT {', '.join(rights)} ON {self.names.table(table)}"

    def unseen(self, engine: Engine, table: Table, error: SQLAlchemyError) -> LedgerError:
        """Return the error to raise if a table cannot be inspected: a missing right, or an unavailable database."""
        is_away = not isinstance(error, DBAPIError) or error.connection_invalidated or passes(engine, error)
        return self.denial(engine, table, error) or LedgerUnavailable(
            f"table {table} cannot be inspected: {line_of(error)}{'; is the database running?' if is_away else ''}"
        )
