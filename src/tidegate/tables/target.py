"""Targets: tables that are inspected, created or extended as needed, and then written to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from tidegate.core.arguments import argument
from tidegate.core.records import Record
from tidegate.core.schemas import SCHEMA_FORMATS
from tidegate.errors import ConfigurationError
from tidegate.ledger.sql.ledger import passes
from tidegate.tables.alteration import (
    Changes,
    Trial,
    TrialOfBatch,
    TrialOfRecords,
    alter,
    changes_for,
    refusals,
    types_beside,
)
from tidegate.tables.column import Column
from tidegate.tables.connect_avro import ConnectAvroFormat, DebeziumAvroFormat, plain_keys, translation
from tidegate.tables.connect_format import ConnectJsonFormat
from tidegate.tables.database import TableDatabase
from tidegate.tables.debezium_format import DebeziumFormat
from tidegate.tables.feed import Clash, Feed, Known, Mapped, Source, sources_of
from tidegate.tables.fit import fit
from tidegate.tables.format import FieldMatch, Format, NewFields, NewOrigin, Unmatched
from tidegate.tables.inference import infer_arrow, is_envelope
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.layout import Facts, Layout, check_writable, declared_as, refuse_generated
from tidegate.tables.own_format import OwnFormat
from tidegate.tables.reader import REFUSED_TOMBSTONE, Reader, new_fields, type_of
from tidegate.tables.registry import DATABASES, database_of
from tidegate.tables.rights import line_of
from tidegate.tables.rows import Misfit, Rows
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.table import Mode, Table, TableArgument, Tombstones
from tidegate.tables.types import ColumnType, FormatArgument, FormatChoice, KeyFormatArgument, TypeName

__all__ = [
    "ColumnRefused",
    "Target",
    "fixed",
    "format_of",
    "prepare",
    "write_rows",
]


_log = logging.getLogger("tidegate")


_FIXED = "tidegate_fixed"


def fixed(engine: Engine) -> Engine:
    """Return the engine in a form that neither creates nor alters tables: :class:`NewFields` is raised instead."""
    return engine.execution_options(**{_FIXED: True})


class ColumnRefused(ConfigurationError):
    """The database refuses to add this column."""

    def __init__(self, why: str, column: str) -> None:
        super().__init__(why)
        self.column = column


def prepare(
    engine: Engine, table: Table, inferred: Mapping[str, ColumnType] | None = None, *, complete: bool = True
) -> Layout | None:
    """Create or extend the table where ``create`` and ``evolve`` ask for it, and return its layout.

    ``inferred`` holds types of columns that the user has not declared. They become columns of a new table, or with
    ``evolve`` new columns of an existing one. Returns ``None`` if the table must be created but its columns are not
    known yet, or ``complete`` says that some are missing.
    """
    database = database_of(engine)
    possible = {name: database.possible(kind, engine.dialect) for name, kind in (inferred or {}).items()}
    wanted = {**possible, **table.types}
    for name, kind in ((table.soft_delete, TypeName.BOOLEAN), (table.guard, TypeName.INTEGER)):
        if name is not None and wanted:
            wanted.setdefault(name, ColumnType(kind))
    _check_names(database, table)
    try:
        server, snapshot = None, None
        if table.of_guard is not None:
            _check_names(database, table.of_guard)
            server, snapshot = _prepare_guard(engine, database, table.of_guard)
        layout = _prepared(engine, database, table, wanted, complete)
        return layout and replace(layout, server=server, snapshot=snapshot)
    except SQLAlchemyError as error:
        raise database.unseen(engine, table, error) from error


def _prepared(
    engine: Engine, database: TableDatabase, table: Table, wanted: Mapping[str, ColumnType], complete: bool
) -> Layout | None:
    if table.evolution.drops and not database.alters:
        raise ConfigurationError(
            f"table {table}: evolve with nullable='drop' needs a database that can drop NOT NULL, and "
            f"{engine.dialect.name} has no ALTER COLUMN"
        )
    columns = _columns(engine, database, table)
    if not columns:
        if not table.create:
            with engine.connect() as conn:
                database.shape(conn, table)  # raises if the table may exist, but the login may not see it
            raise ConfigurationError(f"there is no table {table}; create it, or set create=True")
        if not wanted or not complete:
            return None
        columns = _create(engine, database, table, wanted)
    known = {column.name for column in columns}
    missing = {name: kind for name, kind in wanted.items() if name not in known}
    if missing and table.evolution.adds:
        columns = _evolve(engine, database, table, missing)
    if table.evolution.widens:
        columns = [database.following(column, in_key=column.name in table.key) for column in columns]
    layout = Layout(table, tuple(_declared(table, column) for column in columns))
    _check(layout)
    with engine.connect() as conn:
        facts = database.facts(conn, table, layout.columns)
    if facts.warning:
        _warn(facts.warning)
    found = Layout(
        table,
        tuple(_known(column, facts) for column in layout.columns),
        order=facts.order,
        is_numbered=facts.is_numbered,
        counted=facts.counted,
        takes_bulk=facts.takes_bulk,
        deferred=facts.deferred,
        digits=database.most_digits(engine.dialect),
    )
    _check_sums(found)
    return found


def _prepare_guard(engine: Engine, database: TableDatabase, table: Table) -> tuple[int | None, int | None]:
    """Prepare the table of a guard, which has a single row, and return the server and the first snapshot in it."""
    _prepared(engine, database, table, table.types, complete=True)
    name = database.names.table(table)
    query = database.verbatim(f"SELECT server, snapshot FROM {name} WHERE id = 1")
    with engine.connect() as conn:
        found = conn.exec_driver_sql(query).first()
    if found is not None:
        server, snapshot = (None if each is None else int(each) for each in found)
        return server, snapshot
    with suppress(IntegrityError), engine.begin() as conn:  # another process may insert it at the same time
        conn.exec_driver_sql(database.verbatim(f"INSERT INTO {name} (id) VALUES (1)"))
    return None, None


def _store_origin(engine: Engine, table: Table, origin: NewOrigin) -> None:
    """Store the server that positions are of or, as long as there is none, the first snapshot; unless there is one."""
    database = database_of(engine)
    change = f"UPDATE {database.names.table(table)} SET {origin.name} = {origin.value:d}"
    statement = f"{change} WHERE id = 1 AND server IS NULL AND {origin.name} IS NULL"
    with engine.begin() as conn:
        conn.exec_driver_sql(database.verbatim(statement))


def _check_names(database: TableDatabase, table: Table) -> None:
    """Raise if a name is too long: a database may truncate it silently, and might use another table."""
    for what, name in (("table", table.name), ("schema", table.schema or ""), *_column_names(table)):
        if (overlong := database.overlong(name)) is not None:
            raise ConfigurationError(f"table {table}: the name of {what} {name!r} has {overlong}")


def _column_names(table: Table) -> Iterator[tuple[str, str]]:
    for name in (*table.key, *table.columns, *table.add):
        yield "column", name


def _columns(engine: Engine, database: TableDatabase, table: Table) -> Sequence[Column]:
    with engine.connect() as conn:
        return database.columns(conn, table)


def _create(
    engine: Engine, database: TableDatabase, table: Table, wanted: Mapping[str, ColumnType]
) -> Sequence[Column]:
    if lost := [name for name in table.key if name not in wanted]:
        raise ConfigurationError(
            f"table {table} cannot be created: the first records do not show the type of {lost[0]!r}, a column of its "
            "key; declare it in columns=…"
        )
    parts = [_defined_as(engine, database, name, kind, in_key=name in table.key) for name, kind in wanted.items()]
    if table.key:
        parts.append(f"PRIMARY KEY ({database.names.listed(table.key)})")
    columns, options = ", ".join(parts), database.table_options
    statement = f"CREATE TABLE IF NOT EXISTS {database.names.table(table)} ({columns}){options}"
    return _define(engine, database, table, statement)


def _evolve(
    engine: Engine, database: TableDatabase, table: Table, missing: Mapping[str, ColumnType]
) -> Sequence[Column]:
    columns: Sequence[Column] = ()
    for name, kind in missing.items():
        column = _defined_as(engine, database, name, kind, in_key=False)
        statement = f"ALTER TABLE {database.names.table(table)} ADD COLUMN {column}"
        columns = _define(engine, database, table, statement, name)
    return columns


def _defined_as(engine: Engine, database: TableDatabase, name: str, kind: ColumnType, *, in_key: bool) -> str:
    """Return the definition of a column, for CREATE TABLE and ADD COLUMN."""
    required = " NOT NULL" if in_key or kind.required else ""
    default = "" if kind.default is None else f" DEFAULT {database.default_of(kind)}"
    return f"{database.names.quote(name)} {database.written(kind, engine.dialect, in_key=in_key)}{default}{required}"


def _define(
    engine: Engine, database: TableDatabase, table: Table, statement: str, column: str | None = None
) -> Sequence[Column]:
    """Run a DDL statement and return the table's columns afterwards.

    A failure counts as success if the table or ``column`` exists by then: another process has created it first.
    """
    if engine.get_execution_options().get(_FIXED):
        raise NewFields(f"table {table} is to be created or extended first")
    failure: DBAPIError | None = None
    try:
        with database.defining(engine) as conn:
            conn.exec_driver_sql(database.verbatim(statement))
    except DBAPIError as error:
        failure = error
    columns = _columns(engine, database, table)
    done = bool(columns) if column is None else any(found.name == column for found in columns)
    if failure is not None and not done:
        if failure.connection_invalidated or passes(engine, failure):  # a transient failure: the database answers again
            raise failure
        if refused := database.denial(engine, table, failure):
            raise refused from failure
        why = f"table {table} cannot be created or extended: {line_of(failure)}"
        if column is not None and database.refuses_column(failure):
            raise ColumnRefused(why, column) from failure
        raise ConfigurationError(why) from failure
    return columns


def _declared(table: Table, column: Column) -> Column:
    kind = table.types.get(column.name)
    column = replace(column, exact=table.exact)
    if kind is None:
        return column
    read = declared_as(column, kind)
    if read is None:
        raise ConfigurationError(
            f"table {table}: column {column.name!r} is declared as {kind}, and in the database it is "
            f"{column.sql_type}, which is read as {column.type}"
        )
    for declared, found, what in (
        (kind.required, not column.nullable, "NOT NULL"),
        (kind.default is not None, column.has_default, "with a default"),
    ):
        if declared and not found:
            raise ConfigurationError(
                f"table {table}: column {column.name!r} is declared {what}, and in the database it is not; alter it"
            )
    return read


def _known(column: Column, facts: Facts) -> Column:
    return replace(
        column,
        fills_null=facts.fills_nulls or column.name in facts.numbered,
        folds=column.name in facts.folding,
        compared=facts.folding.get(column.name, ""),
        is_settled=column.is_settled and column.name not in facts.unsettled,
        reserved=facts.reserved.get(column.name, ""),
    )


def _check(layout: Layout) -> None:
    """Raise if a column that the user names is missing: every record would fail."""
    table = layout.table
    for name in (*table.key, *table.types, *table.add, *table.filled):
        refuse_generated(layout, name)
        if name not in layout.by_name:
            way_out = "add it" if table.evolution.adds else "add it, or set evolve=True"
            raise ConfigurationError(f"table {table} has no column {name!r} that can be written to; {way_out}")
    if table.soft_delete is not None and layout.by_name[table.soft_delete].type.name is not TypeName.BOOLEAN:
        raise ConfigurationError(f"table {table}: column {table.soft_delete!r} is no boolean, which soft_delete needs")
    if table.guard is not None and not _holds_positions(layout.by_name[table.guard]):
        raise ConfigurationError(
            f"table {table}: column {table.guard!r} is no BIGINT, a whole number of 64 bits, which guard needs"
        )


def _holds_positions(column: Column) -> bool:
    return column.type.name is TypeName.INTEGER and column.high >= _LAST_POSITION


_LAST_POSITION = (1 << 63) - 1


def _check_sums(layout: Layout) -> None:
    """Raise if mode accumulate has a column that cannot be added to, or none to add to."""
    for name in layout.added:
        check_writable(layout, layout.by_name[name])
        if not layout.by_name[name].type.is_numeric:
            raise ConfigurationError(
                f"table {layout.table}: column {name!r} is not a number, so nothing can be added to it"
            )
    if layout.table.kind is Mode.ACCUMULATE and not layout.added:
        raise ConfigurationError(f"table {layout.table}: mode 'accumulate' needs a column with numbers beside the key")


@cache
def _warn(warning: str) -> None:
    """Log a warning once per process, although the table is inspected many times."""
    _log.warning(warning)


_NOTHING = (
    "the table does not exist yet, and no record shows all that is needed to create it: a value in some field, and in "
    "each column of its key; declare them in columns=…"
)

_NO_TYPES = (
    "the table does not exist yet, and the records have no schema that shows the types of its columns, or not those of "
    "its key; let the converters write schemas (schemas.enable=true), or declare the columns in columns=…"
)


def write_rows(connection: Connection, layout: Layout, rows: Rows) -> None:
    """Write rows on the connection of an open transaction.

    A row that violates a constraint which only the database can check raises the database's error.
    """
    if not (len(rows) or rows.truncates):
        return
    database = DATABASES[connection.dialect.name]  # one of these, because the layout was read from it
    try:
        database.writer(layout).write(connection, rows)
    except DBAPIError as error:
        if refused := database.denial(connection.engine, layout.table, error):
            raise refused from error
        raise


class Target:
    """One table to write to: converts records to rows, and writes rows.

    Call :meth:`read` and :meth:`fit` before the transaction begins: they may create the table or add columns, which
    not every database can roll back. Call :meth:`write` inside the transaction. Threads may share a target.
    """

    def __init__(
        self,
        engine: Engine,
        table: Table,
        *,
        format: FormatChoice = "json",
        key_format: FormatChoice = "json",
        columns: Mapped | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Describe the target; nothing is read from the database yet.

        ``key_format`` is the format of keys that columns come from. ``columns`` maps each column to the source of its
        values; by default, a column takes the field of its name. ``layout`` is the layout of another target of the same
        table, and saves inspecting the table again.
        """
        self.engine = argument("engine", Engine, engine)
        self.table = argument("table", TableArgument, table)
        self._form, self._translated = translation(format_of(format))
        key_format = plain_keys(format, argument("key_format", KeyFormatArgument, key_format))
        self._keys, _ = translation(format_of(key_format))
        columns = argument("columns", Mapped | None, columns)
        self._sources = None if columns is None else sources_of(columns)
        self._refuse_keyless()
        self._layout: Layout | None = argument("layout", Layout | None, layout)
        self._waiting: frozenset[str] = frozenset()
        self._reader: Reader | None = None
        self._changing = threading.Lock()

    def _refuse_keyless(self) -> None:
        """Raise if no record could have a whole key: the table need not exist yet, which would show it."""
        if self._sources is None or self.table.kind is Mode.APPEND:
            return
        lost = next((name for name in self.table.key if name not in self._sources), None)
        if lost is not None:
            raise ConfigurationError(
                f"table {self.table}: column {lost!r} of its key needs a value in every row, and no source is given "
                "for it in columns=…"
            )

    @property
    def layout(self) -> Layout:
        """The table's layout; raises if the table does not exist until the first records show its columns."""
        layout = self.prepare()
        if layout is None:
            raise ConfigurationError(
                f"table {self.table} does not exist yet: its columns will be taken from the first records"
            )
        return layout

    def prepare(self) -> Layout | None:
        """Inspect the table, and create or extend it as far as its columns are known without records.

        Returns ``None`` if records are needed to create it. The first batch calls this too; call it at startup to find
        configuration errors early.
        """
        with self._changing:
            if self._layout is None:
                known, complete = self._known_types()
                self._layout = prepare(self.engine, self.table, known, complete=complete)
            return self._layout

    def read(self, records: Feed | Sequence[Record]) -> Rows:
        """Convert records to rows; those that do not fit become misfits. May create the table, or alter its columns."""
        feed = self._translated(records if isinstance(records, Feed) else Feed.of(records))
        return self._following(lambda: self._read(feed), lambda: self._trial(feed))

    def _read(self, feed: Feed) -> Rows:
        layout = self.prepare()
        if layout is None:
            whys = self._create_for(feed)
            if self._layout is None:
                return self._unreadable(feed, whys)
        elif self.table.evolution.adds and set(self._sources or ()) - layout.names:
            self._prepare_with(self._inferred(feed))
        try:
            return self._current_reader().read(feed)
        except NewOrigin as found:
            self._take(found)
            return self._read(feed)
        except NewFields:
            watch = self._evolve_for(feed)
        return Reader(self.layout, self._form, self._sources, keys=self._keys, watch=watch).read(feed)

    def fit(self, batch: Any) -> Rows:
        """Convert a ``pyarrow.RecordBatch`` to rows, matching columns by name; what does not fit becomes a misfit.

        May create the table, or add or alter columns.
        """
        return self._following(lambda: self._fit(batch), lambda: TrialOfBatch(batch))

    def _fit(self, batch: Any) -> Rows:
        layout = self.prepare()
        if layout is None or (self.table.evolution.adds and set(batch.schema.names) - layout.names):
            layout = self._prepare_with(infer_arrow(batch.schema))
        if layout is None:
            raise ConfigurationError(f"table {self.table} cannot be created: the rows have no columns")
        return fit(layout, batch)

    def _following(self, read: Callable[[], Rows], trial: Callable[[], Trial]) -> Rows:
        """Read rows; if columns are too narrow for some of the records, alter these columns and read again."""
        rows = read()
        while rows.misfits and self._layout is not None and self.table.evolution.alters_columns:
            found = changes_for(self._layout, rows.misfits, trial(), refusals(self.engine, self.table))
            if not found.columns:
                return replace(rows, misfits=found.explained(rows.misfits))
            self._alter(found)
            rows = read()
        return rows

    def _alter(self, changes: Changes) -> None:
        if self.engine.get_execution_options().get(_FIXED):
            raise NewFields(f"table {self.table} is to be altered first")
        try:
            alter(self.engine, self.table, changes)
        except SQLAlchemyError as error:
            raise database_of(self.engine).unseen(self.engine, self.table, error) from error
        with self._changing:
            self._layout = None
            self._reader = None
        self.prepare()

    def _trial(self, feed: Feed) -> Trial:
        layout = self.layout
        watch = replace(new_fields(layout, self._waiting), unmatched=Unmatched.UNFIT) if self._watches else None
        return TrialOfRecords(layout, self._asked, self._known_sources(layout), self._keys, feed, watch)

    def write(self, connection: Connection, rows: Rows) -> None:
        """Write rows on the connection of an open transaction, as :func:`write_rows` does."""
        if len(rows) or rows.truncates:  # without rows, the table may not exist yet
            write_rows(connection, self.layout, rows)

    def _current_reader(self) -> Reader:
        with self._changing:
            if self._reader is None:
                assert self._layout is not None  # noqa: S101 - prepared before
                watch = new_fields(self._layout, self._waiting) if self._watches else None
                sources = self._known_sources(self._layout)
                self._reader = Reader(self._layout, self._form, sources, keys=self._keys, watch=watch)
            return self._reader

    def _take(self, origin: NewOrigin) -> None:
        """Store the server of the first event that names one, or the first snapshot, and read what is stored then."""
        assert self.table.of_guard is not None  # noqa: S101 - the reader knows of it
        try:
            _store_origin(self.engine, self.table.of_guard, origin)
        except SQLAlchemyError as error:
            raise database_of(self.engine).unseen(self.engine, self.table, error) from error
        with self._changing:
            self._layout = None
            self._reader = None

    @property
    def _watches(self) -> bool:
        """Whether fields without a column become new columns."""
        return self.table.evolution.adds and self._sources is None

    def _known_sources(self, layout: Layout) -> dict[str, Source] | None:
        """Return the sources of the columns that exist.

        With ``evolve`` a column may be missing: its field has been null in all records so far, so its type is unknown.
        """
        if self._sources is None or not self.table.evolution.adds:
            return self._sources
        return {name: source for name, source in self._sources.items() if name in layout.names} or self._sources

    def _unreadable(self, feed: Feed, whys: Mapping[str, str]) -> Rows:
        """Turn all records into misfits: the table does not exist, and they do not show its columns."""
        nothing = _NOTHING
        most, unshown = self.table.most_columns, self._unshown(self._inferred(feed))
        if unshown is not None:
            nothing = (
                f"the table does not exist yet, and no record shows the type of its column {unshown!r}; declare it in "
                "the table's columns=…"
            )
        elif self._sources is None and len(self._fields_of(feed, self.table.types)) > most:
            nothing = f"the table does not exist yet, and may have {most} columns at most: see most_columns"
        elif isinstance(self._form, ConnectJsonFormat | DebeziumFormat):
            nothing = _NO_TYPES
        elif isinstance(self._form, SchemaFormat) and whys:  # of the schema: a record need not have the field
            name, why = next(iter(whys.items()))
            nothing = f"the table does not exist yet, and cannot have a column {name!r} of the schema: {why}"
        watch = FieldMatch(self.table.ignore_case, Unmatched.UNFIT, whys=whys, why=nothing)
        form = self._asked
        if isinstance(form, DebeziumFormat):
            found = form.keyed_reader([], [(name,) for name in self.table.key], watch).read(feed)
        else:
            found = form.reader([], watch=watch).read(feed)
        misfits = {misfit.place: misfit for misfit in found.misfits}
        for place in found.places:
            if feed.value[place] is not None:
                misfits.setdefault(place, Misfit(place, None, nothing))
            elif self.table.on_tombstone is Tombstones.REFUSE:
                misfits.setdefault(place, Misfit(place, None, REFUSED_TOMBSTONE))
        return Rows(pa.record_batch([], names=[]), (), tuple(misfits[place] for place in sorted(misfits)))

    @property
    def _asked(self) -> Format:
        """The format; if it is a function, one that is not called for tombstones."""
        return self._form.without_tombstones() if isinstance(self._form, OwnFormat) else self._form

    def _create_for(self, feed: Feed) -> Mapping[str, str]:
        """Create the table if the records show its columns; return, by name, why some fields cannot be columns."""
        whys: Mapping[str, str] = {}
        if self._sources is not None:
            found = self._inferred(feed)
        else:
            found, _, whys = self._shown(feed, self.table.types)
        if all(name in found or name in self.table.types for name in self.table.key):
            self._prepare_with(found, complete=self._unshown(found) is None)
        return whys

    def _unshown(self, found: Mapping[str, ColumnType]) -> str | None:
        """Return a column with a source whose type is not known, if the table must have all of them from the start."""
        if self._sources is None or self.table.evolution.adds:
            return None
        return next((name for name in self._sources if name not in found and name not in self.table.types), None)

    def _evolve_for(self, feed: Feed) -> FieldMatch:
        """Add columns for the new fields, and return a match that makes records with other new fields misfits.

        Fields that are null in all records wait until a value shows their type.
        """
        new, waiting, whys = self._shown(feed, self.layout.names)
        with self._changing:
            self._waiting |= waiting
            self._reader = None
        while new:
            try:
                self._prepare_with(new)
                break
            except ColumnRefused as refused:
                whys[refused.column] = str(refused)
                new = {name: kind for name, kind in new.items() if name != refused.column}
        room = f"the table may have {self.table.most_columns} columns at most: see most_columns"
        if isinstance(self._form, ConnectJsonFormat | DebeziumFormat):
            room = f"the record has no schema, which would show the type of a new column, or {room}"
        return replace(new_fields(self.layout, self._waiting), unmatched=Unmatched.UNFIT, whys=whys, why=room)

    def _shown(
        self, feed: Feed, names: Collection[str]
    ) -> tuple[dict[str, ColumnType], frozenset[str], dict[str, str]]:
        """Return what the records show about fields beyond the columns in ``names``.

        The result has three parts: the types of fields that may become columns, the names of fields that are null so
        far, and, by name, why other fields cannot be columns. A record with an invalid field name adds no columns, nor
        does one whose new fields would exceed ``most_columns``.
        """
        is_json = isinstance(self._form, JsonFormat)
        shows = [place for place, value in enumerate(feed.value) if not (is_json and is_envelope(value))]
        feed = feed if len(shows) == len(feed) else feed.at(shows)
        taken = {name.casefold() for name in (*names, *self.table.key)}
        new: dict[str, ColumnType] = {}
        waiting, refused, alike = set(), {}, {}
        filled = {name.casefold() for name in self.table.filled}
        for name, kind in self._fields_of(feed, names).items():
            if name in names or name.casefold() in filled:
                continue
            if kind is None:
                waiting.add(name)
            elif (why := database_of(self.engine).misnamed(name)) is not None:
                refused[name] = why
            elif name.casefold() in taken and name not in self.table.key:
                alike[name] = "it differs from a column or another field in case alone"
            else:
                taken.add(name.casefold())
                new[name] = kind
        room = self.table.most_columns - len(names)
        if refused or len(new) > room:
            new = self._admitted(feed, names, new.keys(), refused.keys(), room)
        return new, frozenset(waiting), {**alike, **refused}

    def _admitted(
        self, feed: Feed, names: Collection[str], new: Collection[str], refused: Collection[str], room: int
    ) -> dict[str, ColumnType]:
        """Return the new fields of the records that can become rows, deciding record by record."""
        admitted: set[str] = set()
        places = []
        for place in range(len(feed)):
            shown = {name for name, kind in self._fields_of(feed.at([place]), names).items() if kind is not None}
            if shown.isdisjoint(refused) and len(admitted | shown.intersection(new)) <= room:
                admitted |= shown.intersection(new)
                places.append(place)
        found = self._fields_of(feed.at(places), names)
        return {name: kind for name, kind in found.items() if name in admitted and kind is not None}

    def _fields_of(self, feed: Feed, names: Collection[str]) -> dict[str, ColumnType | None]:
        """Infer the fields of records and their types; fields of the key get the spelling of their columns."""
        found = types_beside(self._asked, feed, (*names, *self.table.key), ignore_case=self.table.ignore_case)
        try:
            return Known([(name,) for name in self.table.key], ignore_case=self.table.ignore_case).matched(found)
        except Clash:
            return found

    def _prepare_with(self, inferred: Mapping[str, ColumnType], *, complete: bool = True) -> Layout | None:
        with self._changing:
            self._layout = prepare(self.engine, self.table, inferred, complete=complete)
            self._reader = None
            return self._layout

    def _known_types(self) -> tuple[dict[str, ColumnType], bool]:
        """Return the column types that are known without records, and whether these are all columns."""
        if self._sources is None:
            return {}, True
        known = {name: type_of(source) for name, source in self._sources.items() if not self._is_shown(source)}
        return known, {*known, *self.table.types} >= set(self._sources)

    def _inferred(self, feed: Feed) -> dict[str, ColumnType]:
        """Return the types of the columns that have a source, as far as the records show them."""
        sources = self._sources or {}
        paths = [source.path for source in sources.values() if source.is_field]
        fields = self._asked.infer(feed, paths) if paths else {}
        in_keys: dict[tuple[str, ...], ColumnType | None] = {}
        if isinstance(self._keys, SchemaFormat):
            of_keys = [source.path for source in sources.values() if source.part == "key"]
            in_keys = self._keys.infer_part(feed, of_keys, "key") if of_keys else {}
        found = {
            name: (fields if source.is_field else in_keys).get(source.path)
            if self._is_shown(source)
            else type_of(source)
            for name, source in sources.items()
        }
        return {name: kind for name, kind in found.items() if kind is not None}

    def _is_shown(self, source: Source) -> bool:
        """Whether records show the type of a column with this source."""
        return source.is_field or (source.part == "key" and isinstance(self._keys, SchemaFormat))


def format_of(choice: FormatChoice) -> Format | ConnectAvroFormat:
    """Return the format that a user chose."""
    choice = argument("format", FormatArgument, choice)
    if isinstance(choice, str):
        if choice in SCHEMA_FORMATS:
            return SchemaFormat(SCHEMA_FORMATS[choice])
        formats: dict[str, Callable[[], Format | ConnectAvroFormat]] = {
            "json": JsonFormat,
            "connect-json": ConnectJsonFormat,
            "debezium": DebeziumFormat,
            "connect-avro": ConnectAvroFormat,
            "debezium-avro": DebeziumAvroFormat,
        }
        return formats[choice]()
    return OwnFormat(choice) if callable(choice) else choice
