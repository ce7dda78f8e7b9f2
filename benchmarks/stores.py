"""The stores under measurement, each with its quickest way to load rows."""

from __future__ import annotations

import csv
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text

from tidegate import Ledger, open_ledger
from tidegate.sandbox import MariaDB, MySQL, Postgres

COLUMNS = "id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount BIGINT NOT NULL, note VARCHAR(60) NOT NULL"


class Store(ABC):
    """One store: an engine for bare loops, and a ledger on an engine of its own."""

    name: str
    syncs = 1
    """How often a commit is written to disk."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.engine: Engine = create_engine(url)
        self.ledger: Ledger[Any] = open_ledger(self.engine if "local_infile" in url else url)
        with self.engine.begin() as conn:
            conn.execute(text(f"CREATE TABLE orders ({COLUMNS})"))

    def prepare(self, rows: list[tuple[Any, ...]]) -> None:
        """Bring the rows into the form in which they are loaded."""
        self.rows = rows

    @abstractmethod
    def load(self, conn: Connection) -> None:
        """Load the prepared rows inside of the open transaction."""

    def empty(self) -> None:
        with self.engine.begin() as conn:
            conn.execute(text("DELETE FROM orders" if self.name == "SQLite" else "TRUNCATE TABLE orders"))


class SQLiteStore(Store):
    name = "SQLite"

    def load(self, conn: Connection) -> None:
        driver = conn.connection.dbapi_connection
        assert driver is not None
        driver.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", self.rows)


class MariaDBStore(Store):
    name = "MariaDB"

    def prepare(self, rows: list[tuple[Any, ...]]) -> None:
        self.file = self.folder / "rows.tsv"
        with self.file.open("w", newline="") as out:
            csv.writer(out, delimiter="\t", lineterminator="\n").writerows(rows)

    def load(self, conn: Connection) -> None:
        conn.exec_driver_sql(f"LOAD DATA LOCAL INFILE '{self.file}' INTO TABLE orders")


class MySQLStore(MariaDBStore):
    name = "MySQL"
    syncs = 2  # its binary log is on by default


class PostgresStore(Store):
    name = "PostgreSQL"

    def prepare(self, rows: list[tuple[Any, ...]]) -> None:
        self.block = "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()

    def load(self, conn: Connection) -> None:
        with conn.connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:  # type: ignore[attr-defined]
            copy.write(self.block)


@contextmanager
def sql_stores() -> Iterator[list[Store]]:
    """SQLite, MariaDB, MySQL and PostgreSQL with their settings as they come: every commit is on disk."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mariadb, mysql, postgres = (stack.enter_context(kind()) for kind in (MariaDB, MySQL, Postgres))
        stores: list[Store] = [
            SQLiteStore(f"sqlite:///{folder / 'bench.db'}", folder),
            MariaDBStore(f"{mariadb.url}&local_infile=1", folder),
            MySQLStore(f"{mysql.url}&local_infile=1", folder),
            PostgresStore(postgres.url, folder),
        ]
        yield stores
        for store in stores:
            store.ledger.close()
            store.engine.dispose()
