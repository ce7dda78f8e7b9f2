"""Writers: write rows into a table on the connection of an open transaction; base class for all databases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.names import Names
from tidegate.tables.plan import Plan, PlanStep
from tidegate.tables.rows import DoesNotFit, Rows, Truncate
from tidegate.tables.statements import moments
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName

if TYPE_CHECKING:
    from tidegate.tables.database import TableDatabase

__all__ = ["Ask", "GuardedWriter", "TableAltered", "Writer", "driver_errors", "parameters_of"]

_PART = 32 << 20  # bytes to write at once: the statement holds a copy of the rows, and servers limit its size

Ask: TypeAlias = Callable[[], AbstractContextManager[Connection]]
"""Gives a connection for a question to the database that does not depend on the table's rows."""


class Writer(ABC):
    """Writes rows into one table. It neither begins nor commits transactions, runs no DDL, and keeps no state.

    A row that only the database can reject (unique, check or foreign key constraint, trigger) raises SQLAlchemy's
    ``DBAPIError``. To continue the transaction after such an error, write in a savepoint.
    """

    in_turn = True
    """Whether the database processes the rows of a statement one after the other, so a key may occur twice in it."""
    names: Names
    """How identifiers are written in statements with parameters."""
    for_share = ""
    """The clause by which a query locks rows against changes; empty if there is one writer at a time anyway."""
    nested: int
    """How many brackets JSON may have if it is certain not to be nested too deeply; rows with more keep their order."""
    short: int | None = None
    """How many bytes of text a key may have if it is certain to fit its index; ``None`` if every key fits."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, conn: Connection, rows: Rows) -> None:
        """Write the rows; the table ends up as if each record had been written by its own statement, in order."""
        self.run(conn, self.planned(rows, lambda: nullcontext(conn)))

    def planned(self, rows: Rows, ask: Ask) -> Iterator[PlanStep]:
        """Yield the steps that write the rows. They may be planned before the transaction that runs them."""
        for truncate, run in rows.runs():
            if truncate is not None:
                yield PlanStep(self._place_of(truncate), truncates=True)
            for part in run.parts(_PART) if len(run) else ():
                yield from self._plan(part, ask).steps()

    def _plan(self, rows: Rows, ask: Ask) -> Plan:
        def alike(keys: Any) -> Sequence[Sequence[int]]:
            with ask() as conn:
                return self._alike(conn, keys)

        return Plan(
            self.layout,
            self._alive(self._with_keys_as_stored(rows)),
            in_turn=self.in_turn,
            nested=self.nested,
            short=self.short,
            alike=None if self.in_turn else alike,
            folded=self._folded,
        )

    def run(self, conn: Connection, steps: Iterable[PlanStep]) -> None:
        """Run planned steps in order."""
        emptied_at = self._emptied_at(conn)
        for planned, deletes, single, exists, truncates in steps:
            if truncates:
                emptied_at = self._note_truncate(conn, planned, emptied_at)
                self._empty(conn, planned)
                continue
            batch = planned if deletes else self._after(emptied_at, planned)
            if not batch.num_rows:
                continue
            if deletes and self.layout.table.soft_delete is not None:
                self._update(conn, self._marked(batch, is_deleted=True), single=single)
                continue
            if deletes:
                self._delete(conn, batch, single=single)
                continue
            if exists:
                self._change(conn, batch)
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

    def _emptied_at(self, conn: Connection) -> int | None:
        """Return the position of the last truncate, and lock it: another one waits until it can see these rows."""
        if self.layout.table.guard_table is None:
            return None
        query = f"SELECT emptied_at FROM {self._guard_table} WHERE id = 1{self.for_share}"
        found: int | None = conn.exec_driver_sql(query).scalar_one()
        return found

    def _note_truncate(self, conn: Connection, batch: Any, emptied_at: int | None) -> int | None:
        """Keep the position of a truncate, if it is the last; return that of the last."""
        if self.layout.table.guard_table is None:
            return None
        position: int = batch.column(0)[0].as_py()
        if emptied_at is not None and emptied_at >= position:
            return emptied_at
        conn.exec_driver_sql(f"UPDATE {self._guard_table} SET emptied_at = {position:d} WHERE id = 1")
        return position

    def _after(self, emptied_at: int | None, batch: Any) -> Any:
        """Return the rows that the last truncate has not emptied: events of other partitions may come after it."""
        if emptied_at is None:
            return batch
        return batch.filter(pc.greater(batch.column(self.layout.table.guard), emptied_at))

    def _change(self, conn: Connection, batch: Any) -> None:
        """Update rows that must exist, each key once; raise if one does not."""
        keys = batch.select(list(self.layout.table.key))
        if self._count(conn, keys) < batch.num_rows:
            raise DoesNotFit(
                f"table {self.layout.table}: the change of a row that does not exist, with a value that is not in the "
                "event; alter the source table to REPLICA IDENTITY FULL, so that events have whole rows"
            )
        if self._others(batch):
            self._update(conn, batch, single=False)

    def _place_of(self, truncate: Truncate) -> Any:
        """Return the batch of a step that empties the table: the position, if the table has a guard."""
        return pa.record_batch({name: pa.array([truncate.position], pa.int64()) for name in self._guard})

    @abstractmethod
    def _empty(self, conn: Connection, batch: Any) -> None:
        """Delete all rows, by :meth:`_emptied`: TRUNCATE ends the transaction on some databases."""

    @abstractmethod
    def _count(self, conn: Connection, keys: Any) -> int:
        """Return how many rows have one of these keys."""

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

    def _alive(self, rows: Rows) -> Rows:
        """Add the column of ``soft_delete``: what a record writes is not deleted."""
        if self.layout.table.soft_delete is None:
            return rows
        return replace(rows, batch=self._marked(rows.batch, is_deleted=False))

    def _marked(self, batch: Any, *, is_deleted: bool) -> Any:
        name = self.layout.table.soft_delete
        return batch.append_column(name, pa.repeat(pa.scalar(is_deleted), batch.num_rows))

    def _emptied(self, table: str, names: Names, batch: Any) -> str:
        """Return the statement that deletes all rows or, with a guard, those that are not newer."""
        deleted = self.layout.table.soft_delete
        after = [(names.quote(name), batch.column(name)[0].as_py()) for name in self._guard]
        older = "".join(f" WHERE {guard} IS NULL OR {guard} <= {position:d}" for guard, position in after)
        if deleted is None:
            return f"DELETE FROM {table}{older}"
        marks = "".join(f", {guard} = {position:d}" for guard, position in after)
        return f"UPDATE {table} SET {names.quote(deleted)} = TRUE{marks}{older}"

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

    @property
    def _guard(self) -> list[str]:
        """The column that refuses older changes, if there is one."""
        guard = self.layout.table.guard
        return [] if guard is None else [guard]

    @property
    def _guard_table(self) -> str:
        table = self.layout.table.of_guard
        assert table is not None  # noqa: S101 - asked before
        return self.names.table(table)

    def _others(self, batch: Any) -> list[str]:
        """Return the names of the batch's columns outside the key."""
        return [name for name in batch.schema.names if name not in self.layout.table.key]


class TableAltered(Exception):
    """The table was altered after the rows were made."""


class GuardedWriter:
    """Writes planned steps to a table, if the table still has the shape for which the rows were made."""

    def __init__(self, database: TableDatabase, layout: Layout, shape: str | None) -> None:
        self._database = database
        self._layout = layout
        self._shape = shape
        self._writer = database.writer(layout)

    def planned(self, rows: Rows, ask: Ask) -> Iterator[PlanStep]:
        """Yield the steps that write the rows; see :meth:`Writer.planned`."""
        if rows.changing:
            yield from self._writer.planned(rows, ask)

    def write(self, conn: Connection, steps: Iterable[PlanStep]) -> None:
        """Run the steps in the open transaction, and raise :class:`TableAltered` if the table has changed.

        The check after writing is decisive: written rows lock the table against changes until COMMIT.
        """
        self.check(conn, is_written=False)
        try:
            self._writer.run(conn, steps)
        except DBAPIError as error:
            if refused := self._database.denial(conn.engine, self._layout.table, error):
                raise refused from error
            raise
        self.check(conn, is_written=True)

    def check(self, conn: Connection, *, is_written: bool) -> None:
        """Raise :class:`TableAltered` if the table has changed; see :meth:`TableDatabase.has_shape`."""
        if not self._database.has_shape(conn, self._layout.table, self._shape, is_written=is_written):
            raise TableAltered(f"table {self._layout.table} was altered")


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
