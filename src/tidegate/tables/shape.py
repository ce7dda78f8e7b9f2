"""The shape of a table: a text that is another one once somebody has altered the table."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tidegate.tables.naming import Names
from tidegate.tables.table import Table

__all__ = ["shape_of"]

_POSTGRES, _MYSQL, _SQLITE = Names('"'), Names("`"), Names('"')
_NO_TABLE = 1146
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


def shape_of(conn: Connection, table: Table) -> str | None:
    """What the table looks like; ``None`` if there is none.

    Asked for in a transaction that has written to the table, it holds until that ends: nobody can alter it meanwhile.
    """
    return _SHAPES[conn.dialect.name](conn, table)


def _postgres(conn: Connection, table: Table) -> str | None:
    """The columns with all that decides what fits, labels of enums included, and the unique indexes; by their numbers,
    which others of the same names do not have."""
    found: str | None = conn.exec_driver_sql(
        "SELECT string_agg(concat_ws(' ', attname, atttypid, atttypmod, attnotnull, atthasdef, attidentity, "
        "(SELECT count(*) FROM pg_enum WHERE enumtypid = atttypid)), ', ' ORDER BY attnum) || attrelid "
        "|| coalesce((SELECT string_agg(indexrelid::text, ' ' ORDER BY indexrelid) FROM pg_index "
        "WHERE indrelid = attrelid AND indisunique), '') "
        "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid",
        (_POSTGRES.table(table),),
    ).scalar()
    return found


def _mysql(conn: Connection, table: Table) -> str | None:
    """The whole definition with its keys: without its unique key a table takes duplicates, and says nothing."""
    try:
        row = conn.exec_driver_sql(f"SHOW CREATE TABLE {_MYSQL.table(table).replace('%', '%%')}").one()
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[:1] == (_NO_TABLE,):
            return None
        raise
    return _COUNTER.sub("", str(row[1]))


def _sqlite(conn: Connection, table: Table) -> str | None:
    schema = f"{_SQLITE.quote(table.schema)}." if table.schema else ""
    found: str | None = conn.exec_driver_sql(
        f"SELECT group_concat(sql, '; ') FROM {schema}sqlite_master WHERE tbl_name = ? COLLATE NOCASE", (table.name,)
    ).scalar()
    return found


_SHAPES: dict[str, Callable[[Connection, Table], str | None]] = {
    "postgresql": _postgres,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}
