"""MySQL and MariaDB, as databases that tables can be in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from tidegate.errors import ConfigurationError, LedgerBusy
from tidegate.ledger.sql.mysql import unfit_session
from tidegate.tables.column import Column
from tidegate.tables.database import DEFINING, StageStatements, TableDatabase
from tidegate.tables.layout import Facts, Layout
from tidegate.tables.links import Links
from tidegate.tables.mysql.columns import alteration_of, mysql_columns, on_mariadb, type_written
from tidegate.tables.mysql.facts import has_shape, mysql_facts, mysql_links, mysql_shape
from tidegate.tables.mysql.writer import MySQLWriter, conflict_clause
from tidegate.tables.names import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType

__all__ = ["MySQLDatabase"]

_LONGEST = 64  # characters of a name
_INNODB = {"db_row_id", "db_trx_id", "db_roll_ptr", "fts_doc_id"}
_REFUSED_COLUMN = {1059, 1060, 1117, 1118, 1166, 1300}  # invalid name, or too many columns
_REFUSED_ALTERATION = {
    *(1063, 1067, 1074, 1101, 1425, 1426, 1439),  # AUTO_INCREMENT, a default, or a length that the type cannot have
    *(1069, 1071, 1118, 1170, 1171, 1709),  # an index that the type is too long for, a row too large, NULL in a key
    *(1025, 1215, 1832, 1833, 1834, 3780),  # a foreign key
    *(1347, 1503, 1659, 1846, 1901, 1906, 3108, 3837, 3855, 3959, 4119),  # a view, partitions, expressions, history
    *(1062, 1264, 1265, 1366, 1406, 1690, 3819, 4025),  # a generated column or a check that does not fit then
}
_BROKEN_REFERENCE = {1216, 1217, 1451, 1452}  # without and with the name of the foreign key


class MySQLStages(StageStatements):
    """Statements for staging tables on MySQL and MariaDB."""

    names = Names("`", bound=True)
    unlimited = "SET SESSION lock_wait_timeout = DEFAULT"

    def created(self, stage: Table, layout: Layout, extra: str) -> str:
        """Return the statement that creates a staging table. It names the columns: ``*`` leaves invisible ones out."""
        listed = self.names.listed(column.name for column in layout.columns)
        original = f"SELECT {listed} FROM {self.names.table(layout.table)} LIMIT 0"
        return f"CREATE TABLE {self.names.table(stage)} ({extra}) ENGINE=InnoDB AS {original}"

    def limited(self, seconds: int) -> str:
        """Return the statement that limits the waits for locks, until :attr:`unlimited`."""
        return f"SET SESSION lock_wait_timeout = {seconds}"

    def inserted(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an INSERT of a query's rows; it handles rows whose key exists as the mode asks."""
        listed, conflict = self.names.listed(names), conflict_clause(layout, names)
        return f"INSERT INTO {self.names.table(layout.table)} ({listed}) {query}{conflict}"

    def updated(self, layout: Layout, names: Sequence[str], query: str) -> str:
        """Return an UPDATE of the rows that have the keys of a query's rows."""
        quote = self.names.quote
        same = " AND ".join(f"t.{quote(name)} = r.{quote(name)}" for name in layout.table.key)
        changes = ", ".join(f"t.{quote(name)} = r.{quote(name)}" for name in names if name not in layout.table.key)
        return f"UPDATE {self.names.table(layout.table)} AS t JOIN ({query}) AS r ON {same} SET {changes}"


class MySQLDatabase(TableDatabase):
    """MySQL or MariaDB."""

    names = Names("`")
    writer = MySQLWriter
    stages = MySQLStages()
    table_options = " ENGINE=InnoDB"
    folds_tables = True  # with lower_case_table_names, which servers on other systems than Linux have

    def overlong(self, name: str) -> str | None:
        """Return how long a name is and may be, if it is too long."""
        return f"{len(name)} characters, and there may be {_LONGEST}" if len(name) > _LONGEST else None

    def _misnamed(self, name: str) -> str | None:
        if self.overlong(name) is not None:
            return f"MySQL and MariaDB have no column with a name of more than {_LONGEST} characters"
        if name[-1].isspace() or any(character > "\uffff" for character in name):
            return "MySQL and MariaDB have no column whose name ends in a space or has a character beyond U+FFFF"
        return "InnoDB has a column of this name for itself" if name.lower() in _INNODB else None

    def _moment(self, value: datetime) -> str:
        return super()._moment(value).removesuffix("+00:00")  # a DATETIME has no zone

    def _binary(self, value: bytes) -> str:
        return f"({super()._binary(value)})"  # the long types accept defaults only as expressions

    def _text(self, value: str) -> str:
        return f"(CONVERT({self._binary(value.encode())} USING utf8mb4))"

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """Return the table's columns in order; none if the table does not exist. Raise if the session is unfit."""
        _check_session(conn, table)
        return mysql_columns(conn, table)

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """Return the SQL type of a new column."""
        return type_written(kind, dialect, in_key=in_key)

    def most_digits(self, dialect: Dialect) -> tuple[int, int] | None:
        """Return how many digits a column of decimals may declare, and how many after the point."""
        return 65, 38 if on_mariadb(dialect) else 30

    def facts(self, conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
        """Return the facts about a table; raise if rows cannot be written to it exactly once and unchanged."""
        return mysql_facts(conn, table, columns)

    def shape(self, conn: Connection, table: Table) -> str | None:
        """Return the table's shape: its definition, and the names of its triggers."""
        return mysql_shape(conn, table)

    def has_shape(self, conn: Connection, table: Table, shape: str | None, *, is_written: bool) -> bool:
        """Whether the table still has the shape; also checked before the first write."""
        return has_shape(conn, table, shape, is_written=is_written)

    @contextmanager
    def alone(self, conn: Connection, table: Table) -> Iterator[None]:
        """Hold a named lock: a definition commits by itself, so that the table cannot stay locked."""
        name = f"{table.schema or conn.exec_driver_sql('SELECT DATABASE()').scalar()}.{table.name}"
        lock = f"tidegate {hashlib.sha256(name.encode()).hexdigest()[:48]}"  # at most 64 characters
        if not conn.exec_driver_sql("SELECT GET_LOCK(%s, %s)", (lock, DEFINING)).scalar():
            raise LedgerBusy(f"table {table}: another process has been altering it for {DEFINING} s; trying again")
        try:
            yield
        finally:
            if not conn.invalidated:  # otherwise the lock ended with the connection
                conn.exec_driver_sql("SELECT RELEASE_LOCK(%s)", (lock,))

    def alteration(self, conn: Connection, table: Table, old: Column, new: Column) -> str:
        """Return the statement that alters a column, with all else of its definition."""
        return alteration_of(conn, table, old, new)

    def refuses_alteration(self, error: DBAPIError) -> bool:
        """Whether the server refused to alter a column: an index, a key or a default needs it as it is."""
        return error.orig is not None and bool(_REFUSED_ALTERATION.intersection(error.orig.args[:1]))

    def links(self, conn: Connection, table: Table) -> Links | None:
        """Return what the table has to do with others; ``None`` if it does not exist."""
        return mysql_links(conn, table)

    def breaks_reference(self, error: BaseException) -> bool:
        """Whether a foreign key refused a row."""
        orig = getattr(error, "orig", error)
        return bool(_BROKEN_REFERENCE.intersection(getattr(orig, "args", ())[:1]))

    def refuses_column(self, error: DBAPIError) -> bool:
        """Whether the server refused a new column for its name, or because the table has too many."""
        number = error.orig.args[:1] if error.orig is not None else ()
        # MariaDB's InnoDB reports too many columns only in the message
        return bool(_REFUSED_COLUMN.intersection(number)) or "too many columns" in str(error.orig).lower()


_STRICT = {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}
_MODES = {
    "EMPTY_STRING_IS_NULL": "so that the server stores NULL for an empty text",
    "NO_FIELD_OPTIONS": "so that the server does not show what columns do by themselves",
    "NO_TABLE_OPTIONS": "so that the server does not show the engine of a table",
}
_SWITCHES = {
    "sql_notes": "so that the server does not report a value that it has changed",
    "unique_checks": "so that the server may store a value twice in a unique index",
    "sql_quote_show_create": "so that the server does not quote names in the definition of a table",
}
_CHARACTERS = ("character_set_client", "character_set_connection")
_UTF8 = "utf8mb4"
_SETTINGS = ", ".join(f"@@SESSION.{name}" for name in ("sql_mode", *_SWITCHES, *_CHARACTERS))


def _check_session(conn: Connection, table: Table) -> None:
    """Raise if the session would refuse or change values, hide changes, or hide a part of the table's definition."""
    if unfit := unfit_session(conn):
        raise ConfigurationError(f"table {table}: {unfit}")
    modes, *found = conn.exec_driver_sql(f"SELECT {_SETTINGS}").one()
    switches, characters = found[: len(_SWITCHES)], found[len(_SWITCHES) :]
    if not _STRICT.intersection(str(modes).split(",")):
        raise ConfigurationError(
            f"table {table}: the session's sql_mode is not strict, so that the server changes values that do not "
            "fit instead of refusing them; add STRICT_TRANS_TABLES to it"
        )
    for mode, effect in _MODES.items():
        if mode in str(modes).split(","):
            raise ConfigurationError(f"table {table}: the session's sql_mode has {mode}, {effect}; take it out of it")
    for (name, effect), is_on in zip(_SWITCHES.items(), switches, strict=True):
        if not is_on:
            raise ConfigurationError(f"table {table}: the session's {name} is off, {effect}; switch it on")
    for name, value in zip(_CHARACTERS, characters, strict=True):
        if value != _UTF8:
            raise ConfigurationError(
                f"table {table}: the session's {name} is {value}, so that some texts could not be sent; add "
                f"charset={_UTF8} to the URL"
            )
