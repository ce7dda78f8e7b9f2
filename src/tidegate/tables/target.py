"""A target: a table that is open for records."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine

from tidegate.core.arguments import argument
from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record
from tidegate.tables.choice import FormatArgument, FormatChoice
from tidegate.tables.feed import Feed
from tidegate.tables.fitting import fit
from tidegate.tables.format import Format, NewFields, Watch
from tidegate.tables.inference import infer_arrow
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.layout import Layout
from tidegate.tables.metadata import type_of
from tidegate.tables.misfit import Misfit
from tidegate.tables.mysql import MySQLWriter
from tidegate.tables.own_format import OwnFormat
from tidegate.tables.postgres import PostgresWriter
from tidegate.tables.preparing import prepare
from tidegate.tables.reader import Reader
from tidegate.tables.rows import Rows
from tidegate.tables.sources import Mapped, sources_of
from tidegate.tables.sqlite import SQLiteWriter
from tidegate.tables.table import Table, TableArgument
from tidegate.tables.types import ColumnType
from tidegate.tables.writer import Writer

__all__ = ["Target", "write_rows"]

_WRITERS: dict[str, type[Writer]] = {
    "postgresql": PostgresWriter,
    "mysql": MySQLWriter,
    "mariadb": MySQLWriter,
    "sqlite": SQLiteWriter,
}


def write_rows(connection: Connection, layout: Layout, rows: Rows) -> None:
    """Write rows on the connection of an open transaction. What only the database can tell raises its error."""
    if len(rows):
        _WRITERS[connection.dialect.name](layout).write(connection, rows)


class Target:
    """Records to rows, and rows into the table.

    :meth:`read` and :meth:`fit` belong before the transaction: they may create the table or add columns, which no
    database can do inside of one and still undo it. :meth:`write` belongs inside. Threads may share a target.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        *,
        format: FormatChoice = "json",
        columns: Mapped | None = None,
        layout: Layout | None = None,
    ) -> None:
        """``columns`` tells where the values of columns come from; without it they come from the fields of their names.

        ``layout`` saves looking at the table: that of another target of the same table.
        """
        self.engine = argument("engine", Engine, engine)
        self.table = argument("table", TableArgument, table)
        self._form = _format(format)
        columns = argument("columns", Mapped | None, columns)
        self._sources = None if columns is None else sources_of(columns)
        self._layout: Layout | None = argument("layout", Layout | None, layout)
        self._watch = Watch()
        self._reader: Reader | None = None
        self._changing = threading.Lock()

    @property
    def layout(self) -> Layout:
        """The table as it is; raises if it is yet to be created from the first records."""
        layout = self.prepare()
        if layout is None:
            raise ConfigurationError(
                f"table {self.table} does not exist yet: the first records are to show its columns"
            )
        return layout

    def prepare(self) -> Layout | None:
        """Look at the table, and create or extend it as far as its columns are declared. ``None``: records are needed.

        Called at the start it shows early what is wrong; otherwise the first batch does it.
        """
        with self._changing:
            if self._layout is None:
                known, complete = self._known_types()
                self._layout = prepare(self.engine, self.table, known, complete=complete)
            return self._layout

    def read(self, records: Feed | Sequence[Record]) -> Rows:
        """The rows of the records that fit, and the misfits."""
        feed = records if isinstance(records, Feed) else Feed.of(records)
        layout = self.prepare()
        if layout is None and self._prepare_with(self._inferred(feed)) is None:
            return self._unreadable(feed)
        if layout is not None and self.table.evolve and set(self._sources or ()) - layout.names:
            self._prepare_with(self._inferred(feed))
        try:
            return self._current_reader().read(feed)
        except NewFields:
            self._evolve_for(feed)
        try:
            return self._current_reader().read(feed)
        except NewFields:  # what is left are fields that make no column
            return Reader(self.layout, self._form, self._sources).read(feed)

    def fit(self, batch: Any) -> Rows:
        """The rows of a ``pyarrow.RecordBatch`` that fit, matched by column name, and the misfits."""
        layout = self.prepare()
        if layout is None or (self.table.evolve and set(batch.schema.names) - layout.names):
            layout = self._prepare_with(infer_arrow(batch.schema))
        if layout is None:
            raise ConfigurationError(f"table {self.table} cannot be created: the rows have no columns")
        return fit(layout, batch)

    def write(self, connection: Connection, rows: Rows) -> None:
        """Write rows on the connection of an open transaction: see :func:`write_rows`."""
        write_rows(connection, self.layout, rows)

    def _current_reader(self) -> Reader:
        with self._changing:
            if self._reader is None:
                assert self._layout is not None  # noqa: S101 - prepared before
                watch = self._watch if self.table.evolve and self._sources is None else None
                self._reader = Reader(self._layout, self._form, self._sources, watch=watch)
            return self._reader

    def _unreadable(self, feed: Feed) -> Rows:
        """No record shows a column: so there are no rows, if that is because none of them can be read."""
        found = self._form.reader([]).read(feed)
        misfits = {misfit.place: misfit for misfit in found.misfits}
        left = [place for place in found.places if place not in misfits]
        if any(feed.value[place] is not None for place in left):
            raise ConfigurationError(
                f"table {self.table} cannot be created: the first records show no column; declare them in columns=…"
            )
        if not self.table.deletes:
            misfits |= {place: Misfit(place, None, "a tombstone, and the table does not delete") for place in left}
        return Rows(pa.record_batch([], names=[]), (), tuple(misfits[place] for place in sorted(misfits)))

    def _evolve_for(self, feed: Feed) -> None:
        """Add columns for the new fields. Those with nothing but nulls wait. Those that differ from a column in nothing
        but case, which most databases take for the same, are left out, and so is what the database generates.
        """
        layout = self.layout
        taken = {name.casefold() for name in layout.names}
        found = {path[0]: kind for path, kind in self._form.infer(feed, None).items() if path[0] not in layout.by_name}
        never = frozenset(name for name in found if name.casefold() in taken)
        waiting = frozenset(name for name, kind in found.items() if kind is None) - never
        with self._changing:
            self._watch = Watch(self._watch.waiting | waiting, self._watch.never | never)
            self._reader = None
        new = {name: kind for name, kind in found.items() if kind is not None and name not in never}
        if new:
            self._prepare_with(new)

    def _prepare_with(self, inferred: Mapping[str, ColumnType]) -> Layout | None:
        with self._changing:
            self._layout = prepare(self.engine, self.table, inferred)
            self._reader = None
            return self._layout

    def _known_types(self) -> tuple[dict[str, ColumnType], bool]:
        """Types of columns that need no records to be known, and whether those are all that there are."""
        if self._sources is None:
            return {}, True
        known = {name: type_of(source) for name, source in self._sources.items() if not source.is_field}
        return known, {*known, *self.table.types} >= set(self._sources)

    def _inferred(self, feed: Feed) -> dict[str, ColumnType]:
        if self._sources is None:
            found = {path[0]: kind for path, kind in self._form.infer(feed, None).items()}
        else:
            paths = [source.path for source in self._sources.values() if source.is_field]
            fields = self._form.infer(feed, paths) if paths else {}
            sources = self._sources.items()
            found = {name: fields.get(source.path) if source.is_field else type_of(source) for name, source in sources}
        return {name: kind for name, kind in found.items() if kind is not None}


def _format(choice: FormatChoice) -> Format:
    choice = argument("format", FormatArgument, choice)
    if isinstance(choice, str):
        return JsonFormat()
    return OwnFormat(choice) if callable(choice) else choice
