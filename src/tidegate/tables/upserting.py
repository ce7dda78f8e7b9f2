"""What to do with a row whose key is there already: the clause that ends an INSERT."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from tidegate.tables.layout import Layout
from tidegate.tables.naming import Names

__all__ = ["conflict_of", "mysql_conflict", "postgres_conflict"]

_POSTGRES, _MYSQL = Names('"', bound=True), Names("`", bound=True)


def conflict_of(conn: Connection, layout: Layout, names: Sequence[str]) -> str:
    """The clause for a row with these columns; in PostgreSQL's the table is called ``t``."""
    make = postgres_conflict if conn.dialect.name == "postgresql" else mysql_conflict
    return make(layout, names)


def postgres_conflict(layout: Layout, names: Sequence[str]) -> str:
    """Set, or add to, the columns that are not in the key."""

    def change(name: str) -> str:
        quoted = _POSTGRES.quote(name)
        if name not in layout.added:
            return f"{quoted} = excluded.{quoted}"
        return f"{quoted} = COALESCE(t.{quoted} + excluded.{quoted}, t.{quoted}, excluded.{quoted})"

    changes = ", ".join(change(name) for name in names if name not in layout.table.key)
    key = _POSTGRES.listed(layout.table.key)
    return f" ON CONFLICT ({key}) DO " + (f"UPDATE SET {changes}" if changes else "NOTHING")


def mysql_conflict(layout: Layout, names: Sequence[str]) -> str:
    """The same. Setting the key to itself is how "do nothing" is said: IGNORE would pass over errors as well."""

    def change(name: str) -> str:
        quoted = _MYSQL.quote(name)
        if name not in layout.added:
            return f"{quoted} = VALUES({quoted})"
        own = f"{_MYSQL.table(layout.table)}.{quoted}"  # or a query's column of the same name might be meant
        return f"{quoted} = COALESCE({own} + VALUES({quoted}), {own}, VALUES({quoted}))"

    others = [name for name in names if name not in layout.table.key] or list(layout.table.key[:1])
    return f" ON DUPLICATE KEY UPDATE {', '.join(map(change, others))}"
