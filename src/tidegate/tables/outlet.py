"""Outlets: targets that a sink keeps for as long as their tables are not altered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from tidegate.tables.feed import Feed, Mapped
from tidegate.tables.registry import database_of
from tidegate.tables.rows import Misfit
from tidegate.tables.shape import look_at_shape
from tidegate.tables.table import Table
from tidegate.tables.target import Target
from tidegate.tables.types import FormatChoice

__all__ = ["Draft", "Outlet", "RowsOfRecords", "TableDraft"]


class RowsOfRecords(Protocol):
    """The rows of some records, and the misfits among the records: at most one of each."""

    misfits: tuple[Misfit, ...]

    def __len__(self) -> int: ...

    def among(self, places: list[int]) -> RowsOfRecords:
        """Return the rows and misfits of the records at these places, which must be in ascending order."""


class Draft(Protocol):
    """Rows to write, and the tables that they were made for."""

    rows: Any
    """The :class:`RowsOfRecords`."""
    is_alone: bool
    """Whether each record must be tried alone: see :attr:`~tidegate.tables.layout.Layout.counted`."""

    def write(self, connection: Connection, rows: Any) -> None:
        """Write all of the rows, or some of them, on the connection of an open transaction."""

    def altered(self, connection: Connection, *, is_written: bool) -> Table | None:
        """Return a table that was altered since the rows were made; the next rows are made for its new layout."""


class Outlet:
    """One table, with its metadata as long as it is not altered.

    Making rows may create the table or add a column, so it has to happen outside the transaction. A transaction asks
    :meth:`has_shape` after it has written its rows: from then until COMMIT, the database lets no other session alter
    the table.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        *,
        format: FormatChoice = "json",
        key_format: FormatChoice = "json",
        columns: Mapped | None = None,
    ) -> None:
        """Inspect the table; raises if it cannot be used."""
        self.table = table
        self._engine = engine
        self._format = format
        self._key_format = key_format
        self._columns = columns
        self._database = database_of(engine)
        self._look()

    def draft(self, feed: Feed) -> TableDraft:
        """Convert records to rows. If some do not fit, this makes sure that the table is still as it was."""
        if self._outdated:
            self._look()
        known = self.target.prepare()
        rows = self.target.read(feed)
        if (rows.misfits or self.target.prepare() is not known) and self._shape != look_at_shape(
            self._engine, self.table
        ):
            self._look()
            rows = self.target.read(feed)
        return TableDraft(self, rows)

    def has_shape(self, connection: Connection, *, is_written: bool) -> bool:
        """Whether the table is as it was when it was inspected; if not, the next draft inspects it again."""
        if not self._database.has_shape(connection, self.table, self._shape, is_written=is_written):
            self._outdated = True
            return False
        return True

    @staticmethod
    def first_altered(outlets: Sequence[Outlet], connection: Connection, *, is_written: bool) -> Outlet | None:
        """Return the first outlet whose table is not as it was, as :meth:`has_shape` finds it; asks for all at once."""
        known = [(each.table, each._shape) for each in outlets]
        place = outlets[0]._database.first_altered(connection, known, is_written=is_written) if outlets else None
        if place is None:
            return None
        outlets[place]._outdated = True
        return outlets[place]

    def _look(self) -> None:
        """Read the shape of the table, and then its metadata. A change in between shows later as another shape."""
        shape, self._shape = object(), look_at_shape(self._engine, self.table)
        while shape != self._shape:  # prepare() may create or alter the table: then read it again
            shape = self._shape
            self.target = Target(
                self._engine, self.table, format=self._format, key_format=self._key_format, columns=self._columns
            )
            layout = self.target.prepare()
            self._shape = look_at_shape(self._engine, self.table)
        if layout is not None and not self.table.evolution.adds:
            self.target.read([])  # raises if a source has no column in the table
        self._outdated = False


class TableDraft:
    """Rows of one table."""

    def __init__(self, outlet: Outlet, rows: Any) -> None:
        self.rows = rows
        self.is_alone = len(rows) > 0 and rows.mix_numbers(outlet.target.layout.counted)
        self._outlet = outlet
        self._target = outlet.target
        self.write = self._target.write

    def altered(self, connection: Connection, *, is_written: bool) -> Table | None:
        """Return the table if it was altered since the rows were made; the next rows are made for its new layout."""
        same = self._is_current and self._outlet.has_shape(connection, is_written=is_written)
        return None if same else self._outlet.table

    @staticmethod
    def first_altered(drafts: Sequence[TableDraft], connection: Connection, *, is_written: bool) -> Table | None:
        """Return the first table of these drafts that was altered since its rows were made."""
        for draft in drafts:
            if not draft._is_current:
                return draft._outlet.table
        found = Outlet.first_altered([each._outlet for each in drafts], connection, is_written=is_written)
        return None if found is None else found.table

    @property
    def _is_current(self) -> bool:
        """Whether no other thread has inspected the table since."""
        return self._outlet.target is self._target
