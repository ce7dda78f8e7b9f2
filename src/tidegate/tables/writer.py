"""Writers: rows into a table, on the connection of an open transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, assert_never

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tidegate.core.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.lines import moments
from tidegate.tables.merging import merge
from tidegate.tables.rows import Rows
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName

__all__ = ["Writer", "driver_errors", "parameters_of"]


class Writer(ABC):
    """Writes the rows of one table. It begins, commits and defines nothing, and keeps nothing between batches.

    What only the database can tell (a unique, check or foreign key, a trigger) raises the database's own error, as
    SQLAlchemy has it; run it in a savepoint to go on after that.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, conn: Connection, rows: Rows) -> None:
        """Append, upsert or accumulate; and delete the rows of tombstones, in their order."""
        match self.layout.table.kind:
            case Mode.APPEND:
                for batch in self._by_defaults(rows.batch):
                    self._append(conn, batch)
            case Mode.UPSERT | Mode.ACCUMULATE:
                for deleted, merged in merge(self.layout, rows):
                    if deleted is not None and deleted.num_rows:
                        self._delete(conn, deleted)
                    for batch in self._by_defaults(merged):
                        self._merge(conn, batch)
            case other:
                assert_never(other)

    @abstractmethod
    def _append(self, conn: Connection, batch: Any) -> None:
        """Insert all rows."""

    @abstractmethod
    def _merge(self, conn: Connection, batch: Any) -> None:
        """Insert each row, or set or add to the one with its key. A key comes but once."""

    @abstractmethod
    def _delete(self, conn: Connection, keys: Any) -> None:
        """Delete the rows with these keys, if they are there."""

    def _by_defaults(self, batch: Any) -> Iterator[Any]:
        """Batches that leave out the columns in which a null stands for what the database fills in."""
        if not batch.num_rows:
            return
        for at, name in enumerate(batch.schema.names):
            array = batch.column(at)
            if array.null_count and self.layout.by_name[name].fills_null:
                yield from self._by_defaults(batch.filter(pc.is_valid(array)))
                yield from self._by_defaults(batch.filter(pc.is_null(array)).remove_column(at))
                return
        if not batch.num_columns:
            raise ConfigurationError(f"table {self.layout.table}: the rows have no value for any of its columns")
        yield batch

    def _columns(self, batch: Any) -> Iterator[tuple[Column, Any]]:
        """The batch's arrays, each with the column that it is for."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            yield self.layout.by_name[name], array

    def _others(self, batch: Any) -> list[str]:
        """The batch's columns that are not in the key."""
        return [name for name in batch.schema.names if name not in self.layout.table.key]


def parameters_of(array: Any, column: Column, zone: str = "") -> list[Any]:
    """Values as drivers of MySQL and SQLite take them: decimals and times as text, so that no driver changes them."""
    match column.type.name:
        case TypeName.BOOLEAN:
            array = array.cast(pa.int8())
        case TypeName.TIMESTAMP:
            array = moments(array, zone)
        case TypeName.DECIMAL | TypeName.DATE:
            array = array.cast(pa.string())
    values: list[Any] = array.to_pylist()
    return values


@contextmanager
def driver_errors(conn: Connection, statement: str) -> Iterator[None]:
    """Raise what a driver raises as SQLAlchemy would: its text then is one line without values."""
    driver = conn.engine.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        raise DBAPIError.instance(
            statement, None, error, driver.Error, hide_parameters=True, dialect=conn.engine.dialect
        ) from error
