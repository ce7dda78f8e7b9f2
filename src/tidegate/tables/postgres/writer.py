"""Writing to PostgreSQL: by COPY, or by one INSERT from arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tidegate.tables.checks import has_byte
from tidegate.tables.column import Column
from tidegate.tables.layout import Layout
from tidegate.tables.names import Names
from tidegate.tables.plan import PlanStep, has_extreme_json
from tidegate.tables.rights import line_of
from tidegate.tables.rows import DoesNotFit
from tidegate.tables.statements import changed_columns, days, escaped, hexadecimal, joined, moments
from tidegate.tables.table import Mode
from tidegate.tables.types import TypeName
from tidegate.tables.writer import Writer, driver_errors

__all__ = ["PostgresWriter", "conflict_clause", "judge_now"]


_NAMES = Names('"')
_BOUND = Names('"', bound=True)

# Without lengths and scales: a cast to varchar(5) truncates what an assignment refuses.
_ARRAYS = {
    TypeName.BOOLEAN: "boolean",
    TypeName.INTEGER: "bigint",
    TypeName.DOUBLE: "double precision",
    TypeName.DECIMAL: "numeric",
    TypeName.BYTES: "bytea",
    TypeName.DATE: "date",
}
_TEXT_TYPES = ("text", "varchar", "char")
# Codes for names that are unknown, ambiguous or invalid, or contain an unknown schema.
_OF_NAMES = {"42P01", "42704", "42883", "42725", "42601", "42602", "3F000"}
# A name with three parts; a value for a column of a view that shows an expression, or a generated or identity column.
_OTHERS = {("0A000", "namespace.c"), ("0A000", "rewriteHandler.c"), ("428C9", "rewriteHandler.c")}
_COPIED = "COPY "
_LONGEST = (1 << 30) - (1 << 16)  # bytes: the server accepts no longer message, and no longer line of COPY


class PostgresWriter(Writer):
    """Writes rows to PostgreSQL: by COPY in mode append, otherwise by one statement that takes the rows as arrays.

    COPY needs psycopg; with another driver, mode append uses INSERT too.
    """

    in_turn = False
    names = _BOUND
    for_share = " FOR SHARE"
    nested = 1000  # the server accepts thousands of levels
    short = 200  # an entry of an index has 2,700 bytes, and two characters in an array of JSON can take twenty

    def run(self, conn: Connection, steps: Iterable[PlanStep]) -> None:
        """Run planned steps in order."""
        judge_now(conn, self.layout)
        super().run(conn, steps)

    def _load(self, conn: Connection, batch: Any) -> None:
        driver = _psycopg(conn)
        if driver is None:
            self._insert(conn, batch, single=False)
            return
        columns = _NAMES.listed(batch.schema.names)
        statement = f"COPY {_NAMES.table(self.layout.table)} ({columns}) FROM STDIN (ENCODING 'UTF8')"
        lines = joined([_field(array, column) for column, array in self._columns(batch)])
        self._refuse_large(batch, len(lines))
        with _value_errors(), driver_errors(conn, statement), driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(lines)

    def _insert(self, conn: Connection, batch: Any, *, single: bool) -> None:
        names = batch.schema.names
        values = ", ".join(f"v.{_BOUND.quote(name)}{self._cast(name)}" for name in names)
        insert = f"INSERT INTO {self._table} AS t ({_BOUND.listed(names)}) SELECT {values} FROM "
        self._run(conn, insert, batch, conflict_clause(self.layout, names), single=single)

    def _update(self, conn: Connection, batch: Any, *, single: bool) -> None:
        changes = (f"{_BOUND.quote(name)} = v.{_BOUND.quote(name)}{self._cast(name)}" for name in self._others(batch))
        update = f"UPDATE {self._table} AS t SET {', '.join(changes)} FROM "
        self._check_texts(conn, batch)
        self._run(conn, update, batch, self._same + self._not_older, single=single)

    def _delete(self, conn: Connection, keys: Any, *, single: bool) -> None:
        self._check_texts(conn, keys)
        self._run(conn, f"DELETE FROM {self._table} AS t USING ", keys, self._same + self._not_older, single=single)

    def _empty(self, conn: Connection, batch: Any) -> None:
        conn.exec_driver_sql(self._emptied(self._table, _BOUND, batch))

    def _count(self, conn: Connection, keys: Any) -> int:
        query = f"SELECT count(*) FROM {self._table} AS t, {self._arrays(keys.schema.names)} AS v "
        query += f"({_BOUND.listed(keys.schema.names)}){self._same}"
        literals = tuple(_literal(_text(array, column)) for column, array in self._columns(keys))
        with _value_errors():
            return int(conn.exec_driver_sql(query, literals).scalar_one())

    def _check_texts(self, conn: Connection, batch: Any) -> None:
        """Raise the database's error if it cannot read a text: UPDATE and DELETE read only those of rows that exist."""
        doubtful = [
            (column, array)
            for column, array in self._columns(batch)
            if self._cast(column.name) and (not column.is_settled or has_extreme_json(array, column, self.nested))
        ]
        if not doubtful:
            return
        names = [column.name for column, _ in doubtful]
        read = ", ".join(f"count(v.{_BOUND.quote(name)}{self._cast(name)})" for name in names)
        literals = tuple(_literal(_text(array, column)) for column, array in doubtful)
        self._refuse_large(batch, sum(len(each.encode()) for each in literals))
        with _value_errors():
            conn.exec_driver_sql(f"SELECT {read} FROM {self._arrays(names)} AS v ({_BOUND.listed(names)})", literals)

    def _run(self, conn: Connection, before: str, batch: Any, after: str, *, single: bool) -> None:
        """Run a statement on the rows, which it calls ``v``: once for all, or with ``single`` once per row."""
        names = batch.schema.names
        called = f" AS v ({_BOUND.listed(names)})"
        texts = [_text(array, column) for column, array in self._columns(batch)]
        if single:
            values = ", ".join(f"%s::{self._element(self.layout.by_name[name])}" for name in names)
            rows = list(zip(*(each.to_pylist() for each in texts), strict=True))
            self._refuse_large(batch, sum(each.nbytes for each in texts))
            with _value_errors():
                _run_each(conn, f"{before}(VALUES ({values})){called}{after}", rows)
        else:
            literals = tuple(map(_literal, texts))
            size = sum(map(len, literals))
            self._refuse_large(batch, size if size < _LONGEST // 4 else sum(len(each.encode()) for each in literals))
            with _value_errors():
                conn.exec_driver_sql(f"{before}{self._arrays(names)}{called}{after}", literals)

    def _alike(self, conn: Connection, keys: Any) -> Sequence[Sequence[int]]:
        names = keys.schema.names
        place = next(each for each in (f"place{number}" for number in count()) if each not in names)
        statement = (
            f"SELECT array_agg({place} - 1) FROM {self._arrays(names)} WITH ORDINALITY "
            f"AS v ({_BOUND.listed(names)}, {place}) "
            f"GROUP BY {', '.join(self._compared(name) for name in names)} HAVING count(*) > 1"
        )
        with _value_errors():
            found = conn.exec_driver_sql(
                statement, tuple(_literal(_text(array, column)) for column, array in self._columns(keys))
            )
        return [sorted(places) for places in found.scalars()]  # with ORDER BY, the server would sort all keys

    def _refuse_large(self, batch: Any, size: int) -> None:
        """Raise if a message is too large to send: the server would close the connection, which looks like an outage.

        Rows are written in parts of limited size, so only a single row can be this large.
        """
        if size >= _LONGEST:
            sizes = {name: array.nbytes for name, array in zip(batch.schema.names, batch.columns, strict=True)}
            raise DoesNotFit(
                f"column {max(sizes, key=lambda name: sizes[name])!r}: a row of {size} bytes, most of them in this "
                "column; PostgreSQL takes less than 1 GiB"
            )

    @property
    def _table(self) -> str:
        return _BOUND.table(self.layout.table)

    @property
    def _same(self) -> str:
        """The WHERE clause that finds the row with the key of ``v``, comparing as the key's index does."""
        same = (f"t.{_BOUND.quote(name)} = {self._compared(name)}" for name in self.layout.table.key)
        return f" WHERE {' AND '.join(same)}"

    @property
    def _not_older(self) -> str:
        """The condition that ``v`` is not older than the row."""
        guards = (f"(t.{each} IS NULL OR t.{each} <= v.{each})" for each in map(_BOUND.quote, self._guard))
        return "".join(f" AND {guard}" for guard in guards)

    def _arrays(self, names: Sequence[str]) -> str:
        return f"unnest({', '.join(f'%s::{self._element(self.layout.by_name[name])}[]' for name in names)})"

    def _element(self, column: Column) -> str:
        if column.type.name is TypeName.TIMESTAMP:
            return "timestamptz" if column.has_zone else "timestamp"
        return _ARRAYS.get(column.type.name, "text")

    def _compared(self, name: str) -> str:
        column = self.layout.by_name[name]
        cast = column.compared.replace("%", "%%") if column.folds and column.compared else self._cast(name)
        return f"v.{_BOUND.quote(name)}{cast}"

    def _cast(self, name: str) -> str:
        """Return the cast that a value sent as text needs, or nothing.

        An assignment does not convert text to uuid, json, an enum or another type that is written as text.
        """
        column = self.layout.by_name[name]
        needed = self._element(column) == "text" and column.sql_type not in _TEXT_TYPES
        return f"::{column.sql_type.replace('%', '%%')}" if needed else ""


@contextmanager
def _value_errors() -> Iterator[None]:
    """Raise :class:`DoesNotFit` for an error that looks like one of the table or statement, but is about a value.

    A column of a view may take none. The input of regclass, regtype and the like looks up names. Its errors have the
    codes of a statement or function that uses a missing table, type or function, but unlike those no position, and no
    context except that of COPY.
    """
    try:
        yield
    except DBAPIError as error:
        if _is_about_value(getattr(error.orig, "diag", None)):
            raise DoesNotFit(line_of(error)) from None
        raise


def _is_about_value(diagnosis: Any) -> bool:
    state = str(getattr(diagnosis, "sqlstate", None) or "")
    if state not in _OF_NAMES and (state, getattr(diagnosis, "source_file", None)) not in _OTHERS:
        return False
    if diagnosis.internal_position or diagnosis.internal_query:
        return False
    context = str(diagnosis.context or "").partition("\n")[0]
    if diagnosis.statement_position:  # a syntax error has none of these, unless it is in the name of a type
        return state == "42601" and bool(context)
    return not context or _COPIED in context


def conflict_clause(layout: Layout, names: Sequence[str]) -> str:
    """Return the ON CONFLICT clause of an INSERT of these columns into a table that is called ``t``."""
    if layout.table.kind is Mode.APPEND:
        return ""

    def change(name: str) -> str:
        quoted = _BOUND.quote(name)
        if name not in layout.added:
            return f"{quoted} = excluded.{quoted}"
        return f"{quoted} = COALESCE(t.{quoted} + excluded.{quoted}, t.{quoted}, excluded.{quoted})"

    changes = ", ".join(map(change, changed_columns(layout, names)))
    action = f"UPDATE SET {changes}" if changes else "NOTHING"
    if (guard := layout.table.guard) is not None:
        quoted = _BOUND.quote(guard)
        action += f" WHERE t.{quoted} IS NULL OR t.{quoted} <= excluded.{quoted}"
    return f" ON CONFLICT ({_BOUND.listed(layout.table.key)}) DO {action}"


def judge_now(conn: Connection, layout: Layout) -> None:
    """Make the table's deferrable constraints check each statement, as if each were its own transaction.

    Only those of the table: the ledger has a deferred constraint too, which must wait for COMMIT.
    """
    if layout.deferred:
        conn.exec_driver_sql(f"SET CONSTRAINTS {layout.deferred.replace('%', '%%')} IMMEDIATE")


def _psycopg(conn: Connection) -> Any | None:
    """Return the driver's connection if the driver is psycopg, else ``None``."""
    driver: Any = conn.connection.dbapi_connection
    return driver if type(driver).__module__.partition(".")[0] == "psycopg" else None


def _run_each(conn: Connection, statement: str, rows: Sequence[Any]) -> None:
    """Run a statement for each row in order; in pipeline mode if the driver supports it, without waiting for answers.

    The first error belongs to the row that failed, and is raised. The errors that follow from it are swallowed here:
    psycopg would log each as a warning, or raise one of them instead.
    """
    driver = _psycopg(conn)
    if driver is None or not conn.engine.dialect.loaded_dbapi.Pipeline.is_supported():
        conn.exec_driver_sql(statement, list(rows))
        return
    errors: Any = conn.engine.dialect.loaded_dbapi.Error
    with driver_errors(conn, statement), driver.cursor() as cursor:
        first: Exception | None = None
        try:
            with driver.pipeline() as pipeline:
                try:
                    cursor.executemany(statement, rows)
                    pipeline.sync()
                except errors as error:
                    first = error
        except errors as error:
            first = first or error
        if first is not None:
            raise first


def _field(array: Any, column: Column) -> Any:
    texts = _text(array, column)
    return escaped(texts) if column.type.name in (TypeName.TEXT, TypeName.JSON, TypeName.BYTES) else texts


def _text(array: Any, column: Column) -> Any:
    match column.type.name:
        case TypeName.BYTES:
            return hexadecimal(array, "\\x")
        case TypeName.TIMESTAMP:
            return moments(array, "+00" if column.has_zone else "")
        case TypeName.DATE:
            return days(array)
    return array.cast(pa.string())


def _literal(texts: Any) -> str:
    """Return a PostgreSQL array literal. All elements are quoted, since only an unquoted NULL is a null."""
    for plain, escape in (("\\", "\\\\"), ('"', '\\"')):
        if has_byte(texts, plain.encode()):
            texts = pc.replace_substring(texts, plain, escape)
    elements = pc.binary_join_element_wise('"', texts, '"', "").to_pylist()
    return "{" + ",".join("NULL" if element is None else element for element in elements) + "}"
