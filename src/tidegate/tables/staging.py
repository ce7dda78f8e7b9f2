"""Staging tables: several processes load rows into one, then a single transaction moves them to the target table."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.database import StageStatements
from tidegate.tables.layout import Layout, Order
from tidegate.tables.registry import database_of
from tidegate.tables.rows import Rows, can_sum
from tidegate.tables.table import Mode, Table
from tidegate.tables.target import write_rows
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["LostRows", "Stage", "create_stage", "drop_stage", "empty_stage", "sweep_stages"]

_ATTEMPT, _PLACE = "stage_attempt", "stage_place"
_LONGEST = 63  # bytes of a name that every database accepts
_WAIT = 5  # seconds for a lock on a staging table, which a frozen process may hold


class LostRows(Exception):
    """The staging table does not hold all rows that were loaded: another process has swept it."""


@dataclass(frozen=True)
class Stage:
    """A staging table and the layout of its target table. It can be pickled and sent to the processes that load."""

    table: Table
    layout: Layout

    def load(self, conn: Connection, attempt: int, place: int, rows: Rows) -> None:
        """Load rows, marked with the number of an attempt; ``place`` is the first row's position in all attempts."""
        count = len(rows)
        batch = rows.batch.append_column(_ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), count))
        if self._is_ordered:
            batch = batch.append_column(_PLACE, pa.array(range(place, place + count), pa.int64()))
        write_rows(conn, self._layout, Rows(batch, range(count)))

    def move(self, conn: Connection, names: Sequence[str], attempts: Sequence[int], count: int) -> None:
        """Move the rows of these attempts into the target table, inside the open transaction.

        Raises :class:`LostRows` if there are not exactly ``count`` rows.
        """
        if not attempts:
            return
        moving = _Moving(conn, self, names, tuple(attempts))
        # The row count may be off: MySQL counts an updated row twice, and triggers may drop rows. Then count the rows.
        if moving.move() != count or self.layout.table.kind is not Mode.APPEND:
            found = moving.count()
            if found != count:
                raise LostRows(f"staging table {self.table} holds {found} of {count} rows")

    @property
    def _is_ordered(self) -> bool:
        """Whether the order of the rows matters."""
        layout = self.layout
        return layout.table.kind is not Mode.APPEND or layout.order is not Order.FREE or layout.is_numbered

    @property
    def _layout(self) -> Layout:
        own = (_ATTEMPT, _PLACE) if self._is_ordered else (_ATTEMPT,)
        numbers = (Column(name, ColumnType(TypeName.INTEGER), "bigint") for name in own)
        return Layout(self.table, (*self.layout.columns, *numbers))


class _Moving:
    """Moves rows from a staging table to the target table, with the same result as writing them record by record."""

    def __init__(self, conn: Connection, stage: Stage, names: Sequence[str], attempts: tuple[int, ...]) -> None:
        self._conn = conn
        self._layout = layout = stage.layout
        self._names = names
        self._attempts = attempts
        self._statements = _statements(conn)
        self._quoted = quoted = self._statements.names
        self._place = quoted.quote(_PLACE)
        self._rows = (
            f"{quoted.table(stage.table)} WHERE {quoted.quote(_ATTEMPT)} IN ({', '.join(['%s'] * len(attempts))})"
        )
        self._takes_turns = database_of(conn).writer.in_turn or layout.table.kind in (Mode.APPEND, Mode.IGNORE)
        self._folds = any(layout.by_name[name].folds for name in layout.table.key)

    def count(self) -> int:
        """Return how many rows of these attempts the staging table holds."""
        return int(self._run(f"SELECT count(*) FROM {self._rows}").scalar_one())

    def move(self) -> int:
        """Move the rows; return how many the database reports, or -1 if it reports no reliable number."""
        self._statements.check_at_once(self._conn, self._layout)
        listed, kind = self._quoted.listed(self._names), self._layout.table.kind
        if kind is Mode.UPDATE and not [name for name in self._names if name not in self._layout.table.key]:
            return -1
        if kind is Mode.APPEND and self._layout.order is not Order.SINGLE:
            ordered = f" ORDER BY {self._place}" if self._layout.order is Order.KEPT or self._layout.is_numbered else ""
            return int(self._run(self._moved(f"SELECT {listed} FROM {self._rows}{ordered}")).rowcount)
        if kind is not Mode.APPEND and self._can_merge:
            self._run(self._moved(self._one_of_each_key()))
            return -1
        chosen = f"SELECT {listed} FROM {self._rows}"
        if self._layout.order is not Order.SINGLE and self._takes_turns and kind is not Mode.UPDATE:
            self._run(self._moved(f"{chosen} ORDER BY {self._place}"))
            return -1
        part = self._moved(f"{chosen} AND {self._place} >= %s AND {self._place} < %s ORDER BY {self._place}")
        parts = [(*self._attempts, start, end) for start, end in self._parts()]
        self._statements.run_each(self._conn, part, parts)
        return -1

    @property
    def _can_merge(self) -> bool:
        """Whether the rows of one key may be merged into one, by the same rules as in :class:`Plan`."""
        layout = self._layout
        if layout.order is not Order.FREE or (
            self._folds and self._takes_turns and layout.table.kind is not Mode.UPDATE
        ):
            return False
        added = [name for name in self._names if name in layout.added]
        if not all(can_sum(layout.by_name[name]) for name in added):
            return False
        quoted = map(self._quoted.quote, added)
        opposed = " OR ".join(f"(min({name}) < 0 AND max({name}) > 0)" for name in quoted)
        query = f"SELECT 1 FROM {self._rows} GROUP BY {self._key} HAVING {opposed} LIMIT 1"
        return not added or self._run(query).scalar() is None

    def _one_of_each_key(self) -> str:
        """Return a query that merges the rows of each key: the last or, in mode ignore, the first; or their sums.

        The key is spelled as in the first row. Rows are ordered by key, to avoid deadlocks; if the database numbers
        them, they keep their order.
        """
        layout, quote = self._layout, self._quoted.quote
        ascending = "ASC" if layout.table.kind is Mode.IGNORE else "DESC"

        def taken(name: str) -> str:
            if name in layout.added:
                return f"sum({quote(name)}) OVER (PARTITION BY {self._key}) AS {quote(name)}"
            if self._folds and name in layout.table.key:
                first = f"first_value({quote(name)}) OVER (PARTITION BY {self._key} ORDER BY {self._place})"
                return f"{first} AS {quote(name)}"
            return quote(name)

        first = f"min({self._place}) OVER (PARTITION BY {self._key}) AS stage_first"
        rank = f"row_number() OVER (PARTITION BY {self._key} ORDER BY {self._place} {ascending}) AS stage_rank"
        inner = f"SELECT {', '.join(map(taken, self._names))}, {first}, {rank} FROM {self._rows}"
        order = "stage_first" if layout.is_numbered else self._quoted.listed(layout.table.key)
        return f"SELECT {self._quoted.listed(self._names)} FROM ({inner}) AS v WHERE stage_rank = 1 ORDER BY {order}"

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of places that one statement moves: single rows, or runs in which no key repeats."""
        kind, order = self._layout.table.kind, self._layout.order
        if order is Order.SINGLE or kind is Mode.UPDATE:
            for (place,) in self._run(f"SELECT {self._place} FROM {self._rows} ORDER BY 1"):
                yield place, place + 1
            return
        ranked = f"dense_rank() OVER (ORDER BY {self._key})"
        seen, start, place = set[int](), 0, -1
        for place, key in self._run(f"SELECT {self._place}, {ranked} FROM {self._rows} ORDER BY 1"):
            if key in seen:
                yield start, place
                start = place
                seen.clear()
            seen.add(key)
        yield start, place + 1

    def _moved(self, query: str) -> str:
        is_update = self._layout.table.kind is Mode.UPDATE
        made = self._statements.updated if is_update else self._statements.inserted
        return made(self._layout, self._names, query)

    @property
    def _key(self) -> str:
        """The columns of the key, as the key's index compares them."""
        key = (self._layout.by_name[name] for name in self._layout.table.key)
        return ", ".join(self._quoted.quote(column.name) + self._statements.compared(column) for column in key)

    def _run(self, statement: str) -> Any:
        return self._conn.exec_driver_sql(statement, self._attempts)


def create_stage(engine: Engine, layout: Layout, owner: str) -> Stage:
    """Create a staging table for one owner, such as a pipeline's group. Call it outside of any transaction."""
    statements = _statements(engine)
    names = statements.names
    table = Table(f"{_prefix(layout.table, owner)}{secrets.token_hex(4)}", schema=layout.table.schema)
    place = names.quote(_PLACE)
    statement = statements.created(table, layout, f"{names.quote(_ATTEMPT)} BIGINT, {place} BIGINT")
    indexed = f"CREATE INDEX {names.quote(f'{table.name[-20:]}_places')} ON {names.table(table)} ({place})"
    try:
        _define(engine, statement)
        if layout.order is not Order.FREE or layout.added:  # rows may be moved in parts, each a range of places
            _define(engine, indexed)
    except DBAPIError as error:
        raise ConfigurationError(
            f"cannot create a staging table for table {layout.table}: {str(error.orig).strip().partition(chr(10))[0]}. "
            "Large micro-batches of commit mode 'batch' need the right to create and drop tables in its schema"
        ) from error
    return Stage(table, layout)


def empty_stage(engine: Engine, stage: Stage) -> bool:
    """Delete all rows of a staging table; return whether it succeeded."""
    return _defined(engine, f"TRUNCATE TABLE {_statements(engine).names.table(stage.table)}")


def drop_stage(engine: Engine, table: Table) -> bool:
    """Drop a staging table; return whether it succeeded."""
    return _defined(engine, f"DROP TABLE IF EXISTS {_statements(engine).names.table(table)}")


def sweep_stages(engine: Engine, table: Table, owner: str) -> bool:
    """Drop the staging tables that earlier processes of the same owner left behind.

    Tables that are locked stay until the next sweep. Returns whether the tables could be listed.
    """
    prefix = _prefix(table, owner)
    try:
        for name in _tables(engine, table.schema):
            if name.startswith(prefix) and len(name) == len(prefix) + 8:
                drop_stage(engine, Table(name, schema=table.schema))
    except SQLAlchemyError:
        return False
    return True


def _tables(engine: Engine, schema: str | None) -> Iterable[str]:
    return inspect(engine).get_table_names(schema=schema)


def _prefix(table: Table, owner: str) -> str:
    digest = hashlib.blake2b(f"{table}\0{owner}".encode(), digest_size=5).hexdigest()
    ending = f"_stage_{digest}_"
    room = _LONGEST - len(ending) - 8
    return table.name.encode()[:room].decode(errors="ignore") + ending


def _defined(engine: Engine, statement: str) -> bool:
    try:
        _define(engine, statement)
    except SQLAlchemyError:
        return False
    return True


def _define(engine: Engine, statement: str) -> None:
    """Run a DDL statement with a short lock timeout, since a frozen process may hold the lock."""
    statements = _statements(engine)
    with engine.connect() as conn:
        try:
            conn.exec_driver_sql(statements.limited(_WAIT))
            conn.exec_driver_sql(statement)
            conn.commit()
        except DBAPIError:
            conn.invalidate()
            raise
        if statements.unlimited is not None:
            conn.exec_driver_sql(statements.unlimited)
            conn.commit()


def _statements(place: Engine | Connection) -> StageStatements:
    found = database_of(place).stages
    if found is None:
        raise ConfigurationError(f"there are no staging tables on {place.dialect.name!r}: executors cannot write to it")
    return found
