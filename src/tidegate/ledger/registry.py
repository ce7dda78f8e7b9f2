"""The stores that a ledger can be in: databases by SQLAlchemy's names for them, other stores by the schemes of URLs."""

from __future__ import annotations

from tidegate.errors import ConfigurationError
from tidegate.ledger.sql.dialect import Dialect
from tidegate.ledger.sql.mysql import MySqlDialect
from tidegate.ledger.sql.postgres import PostgresDialect
from tidegate.ledger.sql.sqlite import SqliteDialect

__all__ = ["DIALECTS", "OTHERS", "URLS", "dialect_of"]

DIALECTS: dict[str, type[Dialect]] = {
    "sqlite": SqliteDialect,
    "postgresql": PostgresDialect,
    "mysql": MySqlDialect,
    "mariadb": MySqlDialect,
}
"""The dialect of each SQL database, by SQLAlchemy's name for it."""

OTHERS = {
    "redis": ("tidegate.ledger.redis", "RedisLedger"),
    "rediss": ("tidegate.ledger.redis", "RedisLedger"),
    "unix": ("tidegate.ledger.redis", "RedisLedger"),
    "duckdb": ("tidegate.ledger.duckdb", "DuckdbLedger"),
}
"""The stores that have no dialect: the scheme of a URL, the module, and the class, which has a method ``from_url``.

The module is imported when it is used, because its driver is an extra.
"""

URLS = "sqlite:///file.db, postgresql+psycopg://…, mysql+pymysql://…, redis://…, duckdb:///file.duckdb, memory://"
"""Examples of URLs, for error messages."""


def dialect_of(database: str, driver: str) -> type[Dialect]:
    """Return the dialect for a database and its driver; raise if one of them is not supported.

    With another driver, the ledger would mistake a lost connection for an error of the handler.
    """
    if database not in DIALECTS:
        raise ConfigurationError(
            f"there is no ledger for {database!r}; use SQLite, MySQL/MariaDB, PostgreSQL, DuckDB or Redis"
        )
    dialect = DIALECTS[database]
    if driver != dialect.driver:
        supported = ", ".join(sorted({f"{name}+{known.driver}" for name, known in DIALECTS.items()}))
        raise ConfigurationError(
            f"there is no ledger for the driver {driver!r}; use {database}+{dialect.driver}:// (drivers that the "
            f"ledger knows: {supported})"
        )
    return dialect
