"""Staging: rows that several processes load, each by itself, until one transaction moves them into their table."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tidegate.core.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.naming import Names
from tidegate.tables.rows import Rows
from tidegate.tables.table import Mode, Table
from tidegate.tables.target import write_rows
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.upserting import conflict_of

__all__ = ["LostRows", "Stage", "create_stage", "drop_stage", "empty_stage", "sweep_stages"]

_ATTEMPT, _PLACE = "stage_attempt", "stage_place"
_LONGEST = 63  # of PostgreSQL's names; MySQL's are one longer
_WAIT = 5  # seconds for a lock on a staging table, which a frozen process may hold
_NAMES = {"postgresql": Names('"', bound=True), "mysql": Names("`", bound=True), "mariadb": Names("`", bound=True)}


class LostRows(Exception):
    """The staging table does not hold the rows that were loaded: somebody else has swept it."""


@dataclass(frozen=True)
class Stage:
    """A staging table, made like its table as that was looked at. It can be pickled, for those who load."""

    table: Table
    layout: Layout

    def load(self, conn: Connection, attempt: int, place: int, rows: Rows) -> None:
        """Load rows under the number of an attempt; ``place`` counts the rows of all attempts in their order."""
        count = len(rows)
        batch = rows.batch.append_column(_ATTEMPT, pa.repeat(pa.scalar(attempt, pa.int64()), count))
        if self._is_ordered:
            batch = batch.append_column(_PLACE, pa.array(range(place, place + count), pa.int64()))
        write_rows(conn, self._layout, Rows(batch, range(count)))

    def move(self, conn: Connection, names: Sequence[str], attempts: Sequence[int], count: int) -> None:
        """Move the rows of these attempts into the table, inside of the open transaction; they have to be ``count``."""
        if not attempts:
            return
        quoted = _NAMES[conn.dialect.name]
        chosen = f"{quoted.quote(_ATTEMPT)} IN ({', '.join(['%s'] * len(attempts))})"
        stage, listed = quoted.table(self.table), quoted.listed(names)
        if self._is_ordered:
            query, conflict = self._one_of_each_key(quoted, names, stage, chosen), conflict_of(conn, self.layout, names)
        else:
            query, conflict = f"SELECT {listed} FROM {stage} WHERE {chosen}", ""
        alias = " AS t" if conn.dialect.name == "postgresql" else ""
        moved = conn.exec_driver_sql(
            f"INSERT INTO {quoted.table(self.layout.table)}{alias} ({listed}) {query}{conflict}", tuple(attempts)
        )
        # MySQL counts a row that was there before twice, and triggers may take some: then the rows are counted.
        if self._is_ordered or moved.rowcount != count:
            found = conn.exec_driver_sql(f"SELECT count(*) FROM {stage} WHERE {chosen}", tuple(attempts)).scalar_one()
            if found != count:
                raise LostRows(f"staging table {self.table} holds {found} of {count} rows")

    @property
    def _is_ordered(self) -> bool:
        """Whether it matters which of two rows came last."""
        return self.layout.table.kind is not Mode.APPEND

    def _one_of_each_key(self, quoted: Names, names: Sequence[str], stage: str, chosen: str) -> str:
        """Of rows with the same key the last counts, or their sum; in the order of keys, so as not to deadlock."""
        key = quoted.listed(self.layout.table.key)
        taken = ", ".join(
            f"sum({quoted.quote(name)}) OVER (PARTITION BY {key}) AS {quoted.quote(name)}"
            if name in self.layout.added
            else quoted.quote(name)
            for name in names
        )
        latest = f"row_number() OVER (PARTITION BY {key} ORDER BY {quoted.quote(_PLACE)} DESC) AS stage_rank"
        inner = f"SELECT {taken}, {latest} FROM {stage} WHERE {chosen}"
        return f"SELECT {quoted.listed(names)} FROM ({inner}) AS v WHERE stage_rank = 1 ORDER BY {key}"

    @property
    def _layout(self) -> Layout:
        own = (_ATTEMPT, _PLACE) if self._is_ordered else (_ATTEMPT,)
        numbers = (Column(name, ColumnType(TypeName.INTEGER), "bigint") for name in own)
        return Layout(self.table, (*self.layout.columns, *numbers))


def create_stage(engine: Engine, layout: Layout, owner: str) -> Stage:
    """Make a staging table for one owner, such as a pipeline's group: outside of any transaction."""
    like = _NAMES[engine.dialect.name]
    table = Table(f"{_prefix(layout.table, owner)}{secrets.token_hex(4)}", schema=layout.table.schema)
    name, original = like.table(table), like.table(layout.table)
    extra = f"{like.quote(_ATTEMPT)} BIGINT, {like.quote(_PLACE)} BIGINT"
    if engine.dialect.name == "postgresql":
        # Without a log: after a crash of the server it is empty, which is noticed.
        kept = "INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING GENERATED"
        statement = f"CREATE UNLOGGED TABLE {name} (LIKE {original} {kept}, {extra})"
    else:
        statement = f"CREATE TABLE {name} ({extra}) ENGINE=InnoDB AS SELECT t.* FROM {original} AS t LIMIT 0"
    try:
        _define(engine, statement)
    except DBAPIError as error:
        raise ConfigurationError(
            f"no staging table can be made for table {layout.table}: {str(error.orig).strip().partition(chr(10))[0]}. "
            "Large micro-batches of commit mode 'batch' need the right to create and drop tables beside it"
        ) from error
    return Stage(table, layout)


def empty_stage(engine: Engine, stage: Stage) -> bool:
    """Delete all rows of a staging table; whether nobody kept us from it."""
    return _defined(engine, f"TRUNCATE TABLE {_NAMES[engine.dialect.name].table(stage.table)}")


def drop_stage(engine: Engine, table: Table) -> bool:
    """Remove a staging table; whether nobody kept us from it."""
    return _defined(engine, f"DROP TABLE IF EXISTS {_NAMES[engine.dialect.name].table(table)}")


def sweep_stages(engine: Engine, table: Table, owner: str) -> bool:
    """Remove what earlier processes of the same owner left behind; what is locked stays for the next time. Whether the
    database was there to be looked at."""
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
    """Run a definition, which waits no longer for locks than a frozen process is worth."""
    wait = (
        f"SET LOCAL lock_timeout = '{_WAIT}s'"
        if engine.dialect.name == "postgresql"
        else f"SET SESSION lock_wait_timeout = {_WAIT}"
    )
    with engine.connect() as conn:
        try:
            conn.exec_driver_sql(wait)
            conn.exec_driver_sql(statement)
            conn.commit()
        except DBAPIError:
            conn.invalidate()
            raise
        if engine.dialect.name != "postgresql":
            conn.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")
            conn.commit()
