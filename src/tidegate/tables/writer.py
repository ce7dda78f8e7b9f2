"""Writers: write rows into a table on the connection of an open transaction; base class for all databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.plan import Plan
from tidegate.tables.rows import Rows
from tidegate.tables.statements import moments
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName

__all__ = ["Writer", "driver_errors", "parameters_of"]


class Writer(ABC):
    """Writes rows into one table. It neither begins nor commits transactions, runs no DDL, and keeps no state.

    A row that only the database can reject (unique, check or foreign key constraint, trigger) raises SQLAlchemy's
    ``DBAPIError``. To continue the transaction after such an error, write in a savepoint.
    """

    in_turn = True
    """Whether the database processes the rows of a statement one after the other, so a key may occur twice in it."""
    nested: int
    """How many brackets JSON may have if it is certain not to be nested too deeply; rows with more keep their order."""
    short: int | None = None
    """How many bytes of text a key may have if it is certain to fit its index; ``None`` if every key fits."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, conn: Connection, rows: Rows) -> None:
        """Write the rows; the table ends up as if each record had been written by its own statement, in order."""
        alike = None if self.in_turn else partial(self._alike, conn)
        plan = Plan(
            self.layout,
            self._with_keys_as_stored(rows),
            in_turn=self.in_turn,
            nested=self.nested,
            short=self.short,
            alike=alike,
            folded=self._folded,
        )
        for batch, deletes, single in plan.steps():
            if not batch.num_rows:
                continue
            if deletes:
                self._delete(conn, batch, single=single)
                continue
            match self.layout.table.kind:
                case Mode.APPEND if not single and self.layout.takes_bulk:
                    self._load(conn, batch)
                case Mode.APPEND | Mode.UPSERT | Mode.ACCUMULATE | Mode.IGNORE:
                    self._insert(conn, batch, single=single)
                case Mode.UPDATE:
                    if self._others(batch):
                        self._update(conn, batch, single=single)
                case other:
                    assert_never(other)

    @abstractmethod
    def _load(self, conn: Connection, batch: Any) -> None:
        """Insert all rows, in bulk."""

    @abstractmethod
    def _insert(self, conn: Connection, batch: Any, *, single: bool) -> None:
        """Insert each row; if a row with its key exists, change or keep that one, depending on the mode."""

    @abstractmethod
    def _update(self, conn: Connection, batch: Any, *, single: bool) -> None:
        """Update the rows with these keys, if they exist."""

    @abstractmethod
    def _delete(self, conn: Connection, keys: Any, *, single: bool) -> None:
        """Delete the rows with these keys, if they exist."""

    def _alike(self, conn: Connection, keys: Any) -> Sequence[Sequence[int]]:
        """Return the groups of keys that the database considers equal, as lists of places in ascending order."""
        raise NotImplementedError

    def _folded(self, array: Any, column: Column) -> Any | None:
        """Map key values so that those the database considers equal become equal; ``None`` if that is not possible."""
        return None

    def _as_stored(self, array: Any, column: Column) -> Any:
        """Convert key values to what the database stores, so that equal keys compare equal."""
        if column.type.name is TypeName.DOUBLE and column.largest is not None:  # single precision
            return array.cast(pa.float32()).cast(pa.float64())
        return array

    def _with_keys_as_stored(self, rows: Rows) -> Rows:
        if self.layout.table.kind is Mode.APPEND:
            return rows
        batch = rows.batch
        for name in self.layout.table.key:
            at = batch.schema.get_field_index(name)
            stored = self._as_stored(batch.column(at), self.layout.by_name[name])
            if stored is not batch.column(at):
                batch = batch.set_column(at, name, stored)
        return rows if batch is rows.batch else replace(rows, batch=batch)

    def _columns(self, batch: Any) -> Iterator[tuple[Column, Any]]:
        """Yield each column of the batch with its array."""
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            yield self.layout.by_name[name], array

    def _others(self, batch: Any) -> list[str]:
        """Return the names of the batch's columns outside the key."""
        return [name for name in batch.schema.names if name not in self.layout.table.key]


def parameters_of(array: Any, column: Column, zone: str = "") -> list[Any]:
    """Return values for the drivers of MySQL and SQLite; decimals and times as text, so that no driver changes them."""
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
    """Raise a driver's errors as SQLAlchemy's ``DBAPIError``, whose message leaves out the parameters."""
    driver = conn.engine.dialect.loaded_dbapi
    try:
        yield
    except driver.Error as error:
        raise DBAPIError.instance(
            statement, None, error, driver.Error, hide_parameters=True, dialect=conn.engine.dialect
        ) from error
