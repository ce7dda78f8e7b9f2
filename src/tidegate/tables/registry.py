"""The databases that tables can be in, by the names of SQLAlchemy's dialects."""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from tidegate.errors import ConfigurationError
from tidegate.tables.database import TableDatabase
from tidegate.tables.mysql.database import MySQLDatabase
from tidegate.tables.postgres.database import PostgresDatabase
from tidegate.tables.sqlite import SQLiteDatabase

__all__ = ["DATABASES", "database_of"]

DATABASES: dict[str, TableDatabase] = {
    "postgresql": PostgresDatabase(),
    "mysql": MySQLDatabase(),
    "mariadb": MySQLDatabase(),
    "sqlite": SQLiteDatabase(),
}


def database_of(place: Engine | Connection) -> TableDatabase:
    """Return the database of an engine or a connection; raise if it can have no tables."""
    name = place.dialect.name
    if name not in DATABASES:
        raise ConfigurationError(f"there are no tables on {name!r}; use SQLite, MySQL/MariaDB, PostgreSQL")
    return DATABASES[name]
