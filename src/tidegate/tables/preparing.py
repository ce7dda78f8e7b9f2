"""Preparing a table: look at it, create it or add columns to it, all before a transaction begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.core.errors import ConfigurationError, LedgerUnavailable
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.mysql_schema import MySQLSchema
from tidegate.tables.postgres_schema import PostgresSchema
from tidegate.tables.schema import Schema, declared_as
from tidegate.tables.sqlite_schema import SQLiteSchema
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import ColumnType

__all__ = ["prepare"]

_SCHEMAS: dict[str, Schema] = {
    "postgresql": PostgresSchema(),
    "mysql": MySQLSchema(),
    "mariadb": MySQLSchema(),
    "sqlite": SQLiteSchema(),
}
_INNODB = {"mysql": " ENGINE=InnoDB", "mariadb": " ENGINE=InnoDB"}


def prepare(
    engine: Engine, table: Table, inferred: Mapping[str, ColumnType] | None = None, *, complete: bool = True
) -> Layout | None:
    """The table's layout, once it is as asked for.

    ``inferred`` are types of columns that the user has not declared: they make the table, or with ``evolve`` new
    columns of it. ``None``: the table is to be created, and its columns are not known yet, or not ``complete``.
    """
    schema = _SCHEMAS.get(engine.dialect.name)
    if schema is None:
        raise ConfigurationError(
            f"there are no tables on {engine.dialect.name!r}; use SQLite, MySQL/MariaDB, PostgreSQL"
        )
    wanted = {**(inferred or {}), **table.types}
    try:
        return _prepared(engine, schema, table, wanted, complete)
    except SQLAlchemyError as error:
        raise LedgerUnavailable(f"table {table} cannot be looked at: {_line(error)}") from error


def _prepared(
    engine: Engine, schema: Schema, table: Table, wanted: Mapping[str, ColumnType], complete: bool
) -> Layout | None:
    columns = _columns(engine, schema, table)
    if not columns:
        if not table.create:
            raise ConfigurationError(f"there is no table {table}; create it, or say create=True")
        if not wanted or not complete:
            return None
        columns = _create(engine, schema, table, wanted)
    known = {column.name for column in columns}
    missing = {name: kind for name, kind in wanted.items() if name not in known}
    if missing and table.evolve:
        columns = _evolve(engine, schema, table, missing)
    layout = Layout(table, tuple(_declared(table, column) for column in columns))
    _check(engine, schema, layout)
    return layout


def _columns(engine: Engine, schema: Schema, table: Table) -> Sequence[Column]:
    with engine.connect() as conn:
        return schema.columns(conn, table)


def _create(engine: Engine, schema: Schema, table: Table, wanted: Mapping[str, ColumnType]) -> Sequence[Column]:
    if lost := [name for name in table.key if name not in wanted]:
        raise ConfigurationError(
            f"table {table} cannot be created: the first records do not show the type of {lost[0]!r}, a column of its "
            "key; declare it in columns=…"
        )
    quote = schema.names.quote
    parts = [
        f"{quote(name)} {schema.written(kind, engine.dialect, in_key=name in table.key)}"
        f"{' NOT NULL' if name in table.key else ''}"
        for name, kind in wanted.items()
    ]
    if table.key:
        parts.append(f"PRIMARY KEY ({schema.names.listed(table.key)})")
    engine_clause = _INNODB.get(engine.dialect.name, "")
    statement = f"CREATE TABLE IF NOT EXISTS {schema.names.table(table)} ({', '.join(parts)}){engine_clause}"
    return _define(engine, schema, table, statement)


def _evolve(engine: Engine, schema: Schema, table: Table, missing: Mapping[str, ColumnType]) -> Sequence[Column]:
    columns: Sequence[Column] = ()
    for name, kind in missing.items():
        column = f"{schema.names.quote(name)} {schema.written(kind, engine.dialect, in_key=False)}"
        statement = f"ALTER TABLE {schema.names.table(table)} ADD COLUMN {column}"
        columns = _define(engine, schema, table, statement, name)
    return columns


def _define(
    engine: Engine, schema: Schema, table: Table, statement: str, column: str | None = None
) -> Sequence[Column]:
    """Run a definition; if it fails because another process was faster, that is as good."""
    failure: DBAPIError | None = None
    try:
        with engine.begin() as conn:
            conn.exec_driver_sql(_bound(conn, statement))
    except DBAPIError as error:
        failure = error
    columns = _columns(engine, schema, table)
    done = bool(columns) if column is None else any(found.name == column for found in columns)
    if failure is not None and not done:
        if failure.connection_invalidated:  # and the database is back by now
            raise failure
        raise ConfigurationError(f"table {table} cannot be made as asked for: {_line(failure)}") from failure
    return columns


def _bound(conn: Connection, statement: str) -> str:
    """A statement for a driver that formats parameters, even if there are none."""
    return statement if conn.dialect.name == "sqlite" else statement.replace("%", "%%")


def _declared(table: Table, column: Column) -> Column:
    kind = table.types.get(column.name)
    if kind is None:
        return column
    read = declared_as(column, kind)
    if read is None:
        raise ConfigurationError(
            f"table {table}: column {column.name!r} is declared as {kind}, and in the database it is "
            f"{column.sql_type}, which is read as {column.type}"
        )
    return read


def _check(engine: Engine, schema: Schema, layout: Layout) -> None:
    """Refuse what would fail with every record."""
    table = layout.table
    for name in (*table.key, *table.types, *table.add):
        if name not in layout.by_name:
            raise ConfigurationError(
                f"table {table} has no column {name!r} that can be written to; add it, or say evolve=True"
            )
    with engine.connect() as conn:
        if table.kind is not Mode.APPEND and not _is_unique(conn, table):
            raise ConfigurationError(
                f"table {table}: its rows are not told apart by {', '.join(table.key)}; mode {table.kind.value!r} "
                "needs a primary key or a unique index on exactly these columns"
            )
        schema.check(conn, table)
    if table.kind is Mode.ACCUMULATE:
        for name in layout.added:
            if not layout.by_name[name].type.is_numeric:
                raise ConfigurationError(f"table {table}: column {name!r} is no number, so nothing can be added to it")
        if not layout.added:
            raise ConfigurationError(f"table {table}: mode 'accumulate' needs a column with numbers beside the key")


def _is_unique(conn: Connection, table: Table) -> bool:
    inspector, at, key = inspect(conn), (table.name, table.schema), set(table.key)
    found = [inspector.get_pk_constraint(*at)["constrained_columns"]]
    found += [constraint["column_names"] for constraint in inspector.get_unique_constraints(*at)]
    found += [
        [name for name in index["column_names"] if name is not None]
        for index in inspector.get_indexes(*at)
        if index["unique"] and not index.get("expressions") and not _is_partial(index)
    ]
    return any(set(columns) == key for columns in found)


def _is_partial(index: Mapping[str, object]) -> bool:
    options = index.get("dialect_options")
    return isinstance(options, dict) and any(name.endswith("_where") for name in options)


def _line(error: SQLAlchemyError) -> str:
    """An error in one line, as the driver put it."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(cause.args[1]) if len(cause.args) > 1 else str(cause)
    return text.strip().partition("\n")[0]
