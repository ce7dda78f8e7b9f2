"""SQLite: inspect tables through their definitions; write rows by INSERT.

SQLite stores any value in any column, so values are checked before they are written.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Dialect, text
from sqlalchemy.exc import DBAPIError

from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.database import TableDatabase
from tidegate.tables.layout import Facts, Layout, Order, UniqueIndex, key_of
from tidegate.tables.links import Links
from tidegate.tables.names import Names
from tidegate.tables.rows import EXACT, DoesNotFit
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.writer import Writer, driver_errors, parameters_of

__all__ = ["SQLiteDatabase", "SQLiteWriter"]


_NAMES = Names('"')
_MASTER = (
    "SELECT type, COALESCE(sql, ''), name, tbl_name = :name COLLATE NOCASE FROM {}sqlite_master "
    "WHERE tbl_name = :name COLLATE NOCASE OR sql LIKE '%ROLLBACK%' OR sql LIKE '%FAIL%' "
    "ORDER BY type IN ('index', 'trigger')"
)
_INDEXES = text(
    "SELECT i.name, i.partial, COALESCE(c.name, ''), c.coll, i.origin, i.\"unique\" "
    "FROM pragma_index_list(:name, :schema) AS i, pragma_index_xinfo(i.name, :schema) AS c "
    "WHERE c.key ORDER BY i.seq, c.seqno"
)
_PRIMARY = text("SELECT name FROM pragma_table_xinfo(:name, :schema) WHERE pk ORDER BY pk")
_REFERENCES = (
    'SELECT m.name = :name COLLATE NOCASE AS of_it, f."table" = :name COLLATE NOCASE AS to_it, m.name, m.sql '
    "FROM {}sqlite_master AS m, pragma_foreign_key_list(m.name, :schema) AS f "
    "WHERE m.type = 'table' AND (m.name = :name COLLATE NOCASE OR f.\"table\" = :name COLLATE NOCASE)"
)
_UNREAD = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|$)", re.DOTALL)
_BREAKS = re.compile(
    r"\b(?:(ON\s+CONFLICT)\s+|(RAISE)\s*\(\s*|(?:INSERT|UPDATE)\s+(OR)\s+)(ROLLBACK|FAIL)\b", re.IGNORECASE
)
_SETTLES = re.compile(r"\bON\s+CONFLICT\s+(?:IGNORE|REPLACE)\b", re.IGNORECASE)
_FILLS = re.compile(rf"\bNOT\s+NULL\s+{_SETTLES.pattern}", re.IGNORECASE)
_CHECK = re.compile(r"\bCHECK\b", re.IGNORECASE)
_PASSES_OVER = re.compile(r"\bRAISE\s*\(\s*IGNORE\b", re.IGNORECASE)
_DEFERRED = re.compile(r"(?<!\bNOT\s)\bDEFERRABLE\s+INITIALLY\s+DEFERRED\b", re.IGNORECASE)
_INSTEAD = re.compile(r"\bINSTEAD\s+OF\s+INSERT\b", re.IGNORECASE)
_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\b", re.IGNORECASE)
_BYTE_FOR_BYTE = "BINARY"
_EXACTLY = f" COLLATE {_BYTE_FOR_BYTE}"
_HOLDS = "SELECT 1 FROM {}.sqlite_master WHERE name = :name COLLATE NOCASE AND type IN ('table', 'view')"
_MAIN, _TEMPORARY = "main", "temp"
_TOGETHER = {"delete", "truncate", "persist"}  # journal modes in which SQLite commits several files together


_PARENTS = text('SELECT "table", on_update, on_delete FROM pragma_foreign_key_list(:name, :schema)')
_CHILDREN = (
    "SELECT m.name, f.on_update, f.on_delete FROM {}sqlite_master AS m, pragma_foreign_key_list(m.name, :schema) AS f "
    "WHERE m.type = 'table' AND f.\"table\" = :name COLLATE NOCASE"
)
_OBJECTS = "SELECT type, name FROM {}sqlite_master WHERE tbl_name = :name COLLATE NOCASE"
_NO_ACTIONS = {"RESTRICT", "NO ACTION"}


def _links_of(conn: Connection, table: Table) -> Links | None:
    """Return the tables that foreign keys link to a table, and whether writing to it may change other tables."""
    schema = f"{_NAMES.quote(table.schema)}." if table.schema else ""
    where = {"name": table.name, "schema": table.schema}
    kinds = {row[0] for row in conn.execute(text(_OBJECTS.format(schema)), where)}
    if not kinds & {"table", "view"}:
        return None
    parents = conn.execute(_PARENTS, where).all()
    children = conn.execute(text(_CHILDREN.format(schema)), where).all()
    return Links(
        (table.schema, table.name.lower()),
        parents=frozenset((table.schema, row[0].lower()) for row in parents),
        children=frozenset((table.schema, row[0].lower()) for row in children),
        acts=bool(kinds & {"trigger", "view"})
        or any(not {row[1], row[2]} <= _NO_ACTIONS for row in (*parents, *children)),
    )


def _facts_of(conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
    """Return the facts about a table, from the schema; raise if it takes no rows, or may break a transaction."""
    _refuse_elsewhere(conn, table)
    schema = f"{_NAMES.quote(table.schema)}." if table.schema else ""
    where = {"name": table.name, "schema": table.schema}
    found = conn.execute(text(_MASTER.format(schema)), where).all()
    own = [row for row in found if row[3]]
    triggers = [row[1] for row in own if row[0] == "trigger"]
    _refuse(table, own[0][:2] if own else ("table", ""), triggers)
    for kind, sql, name, _ in own:
        _refuse_breaks(f"table {table}: its {f'trigger {name!r}' if kind == 'trigger' else 'definition'}", sql)
    rows = conn.execute(_INDEXES, where).all()
    indexes = _indexes(rows, {column.name: column for column in columns})
    primary = conn.execute(_PRIMARY, where).scalars().all()
    row_id = primary[0] if primary and not any(row.origin == "pk" for row in rows) else None
    if row_id is not None:
        indexes.insert(0, UniqueIndex("PRIMARY KEY", (row_id,)))
    key = key_of(table, indexes)
    references = conn.execute(text(_REFERENCES.format(schema)), where).all()
    if conn.exec_driver_sql("PRAGMA foreign_keys").scalar():
        _refuse_deferred(table, references)
    for kind, sql, name, is_own in found:
        if (triggers or references) and not is_own:
            _refuse_breaks(
                f"table {table}: its triggers or foreign keys may lead to others, of which the {kind} {name!r}", sql
            )
    may_fail = any(row.partial or not row[2] for row in rows)
    may_fail |= any(column.generated or not column.is_settled for column in columns)
    definition = " ".join(_UNREAD.sub(" ", row[1]) for row in own if row[0] in ("table", "view"))
    may_fail |= _CHECK.search(definition) is not None or _SETTLES.search(definition) is not None
    # SQLite checks foreign keys at the end of a statement, when a later row may have hidden a violation.
    hides = triggers or table.kind in (Mode.UPSERT, Mode.ACCUMULATE)
    if any(hides or (each.of_it and each.to_it) for each in references):
        order = Order.SINGLE
    elif triggers or references or may_fail or len(indexes) > len(key):
        order = Order.KEPT
    else:
        order = Order.FREE
    return Facts(
        order,
        is_numbered=row_id is not None and (table.kind is Mode.APPEND or row_id not in table.key),
        folding={name: compared for index in key for name, compared in index.folding.items()},
        fills_nulls=_FILLS.search(definition) is not None or any(map(_PASSES_OVER.search, triggers)),
        numbered=frozenset({row_id} if row_id is not None and table.kind is Mode.APPEND else ()),
    )


def _refuse_elsewhere(conn: Connection, table: Table) -> None:
    """Raise if the table is in another file than the ledger, and SQLite may commit only one of them."""
    name = {"name": table.name}

    def holds(schema: str) -> bool:
        return conn.execute(text(_HOLDS.format(_NAMES.quote(schema))), name).first() is not None

    schema = (table.schema or (_TEMPORARY if holds(_TEMPORARY) else _MAIN)).lower()
    if schema == _TEMPORARY:
        raise ConfigurationError(f"table {table} is temporary: it ends with the connection, and the position stays")
    if schema == _MAIN:
        if not holds(_MAIN):
            raise ConfigurationError(
                f"table {table} is in an attached database; give the name of that database as schema"
            )
        return
    for file in (_MAIN, schema):
        mode = conn.exec_driver_sql(f"PRAGMA {_NAMES.quote(file)}.journal_mode").scalar()
        if mode not in _TOGETHER:
            raise ConfigurationError(
                f"table {table} is in an attached database, and {file} has the journal mode {mode}, in which SQLite "
                "commits each file by itself: a crash may keep the rows without the position. Put the table and the "
                "ledger into one file, or set the journal mode DELETE on both"
            )


def _refuse_deferred(table: Table, references: Sequence[Any]) -> None:
    """Raise if a record may break a deferred foreign key, and a later one of its transaction mend it."""
    for each in references:
        hides = each.to_it and (each.of_it or table.deletes)
        if hides and _DEFERRED.search(_UNREAD.sub(" ", each.sql)):
            raise ConfigurationError(
                f"table {table}: the foreign key of {each.name!r} that refers to it is DEFERRABLE INITIALLY DEFERRED, "
                "so that SQLite checks it at COMMIT and not record by record; leave these words out"
            )


def _refuse(table: Table, found: Any, triggers: Sequence[str]) -> None:
    kind, sql = found
    keyed = table.kind is not Mode.APPEND
    if kind == "view" and (keyed or not any(map(_INSTEAD.search, triggers))):
        way_out = "name the table that the view shows" + ("" if keyed else ", or give it a trigger INSTEAD OF INSERT")
        raise ConfigurationError(
            f"table {table} is a view, which takes no rows in mode {table.kind.value!r}; {way_out}"
        )
    if keyed and _VIRTUAL.match(sql):
        raise ConfigurationError(
            f"table {table} is a virtual table, on which SQLite has no ON CONFLICT for mode {table.kind.value!r}; use "
            "mode='append', or a table"
        )


def _refuse_breaks(whose: str, sql: str) -> None:
    """Raise if the SQL handles errors by ROLLBACK or FAIL, which undo more or less than the failed statement."""
    if (found := _BREAKS.search(_UNREAD.sub(" ", sql))) is None:
        return
    way = found[4].upper()
    written = f"RAISE({way}, …)" if found[2] else f"{'ON CONFLICT' if found[1] else 'OR'} {way}"
    effect = "ends the transaction" if way == "ROLLBACK" else "leaves a part of a statement done"
    raise ConfigurationError(f"{whose} has {written}, which {effect}; write ABORT instead of {way}")


def _indexes(rows: Sequence[Any], columns: Mapping[str, Column]) -> list[UniqueIndex]:
    found = []
    for name, parts in groupby(rows, itemgetter(0)):
        members = list(parts)
        if not members[0].unique:
            continue
        unfit = "is partial" if members[0].partial else "" if all(row[2] for row in members) else "is on an expression"
        folding = {
            row[2]: f' COLLATE "{row.coll}"'
            for row in members
            if row[2] in columns and (row.coll.upper() != _BYTE_FOR_BYTE or _folds(columns[row[2]]))
        }
        found.append(UniqueIndex(name, tuple(row[2] for row in members), unfit, folding))
    return found


def _folds(column: Column) -> bool:
    """Whether SQLite may convert values that differ in Python to the same number."""
    match column.type.name:
        case TypeName.DOUBLE:
            return True
        case TypeName.DECIMAL:
            return column.is_unbounded and "TEXT" not in column.sql_type.upper()
        case TypeName.JSON:
            return "TEXT" not in column.sql_type.upper()
        case TypeName.TEXT:
            return not column.sql_type
    return False


_DECLARED = re.compile(r"([^(]*)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?.*")
_EXACT_DIGITS = 15  # significant digits that a number keeps if SQLite stores it as a float
_GENERATED = (2, 3)
_LITERAL = re.compile(
    r"[-+]?[0-9.][0-9a-f.x]*(?:e[-+]?[0-9]+)?|x?'(?:[^']|'')*'|NULL|TRUE|FALSE|CURRENT_\w+|(?:date|time|datetime)\('now'\)",
    re.DOTALL | re.IGNORECASE,
)
_TIMES = {"DATETIME": False, "TIMESTAMP": False, "TIMESTAMPTZ": True, "TIMESTAMP WITH TIME ZONE": True}

# To SQLite these are unknown names, for which it makes numbers of texts that look like one.
_NO_NUMBERS = {"TIME", "UUID", "GUID"}
_NO_NUMBER = r"[^0-9eE+.\-\s]|[0-9.]-"


def _columns(conn: Connection, table: Table) -> Sequence[Column]:
    schema = f"{_NAMES.quote(table.schema)}." if table.schema else ""
    rows = conn.exec_driver_sql(f"PRAGMA {schema}table_xinfo({_NAMES.quote(table.name)})").all()
    keys = [row for row in rows if row[5]]
    indexes = conn.exec_driver_sql(f"PRAGMA {schema}index_list({_NAMES.quote(table.name)})").all() if keys else []
    # With an index (INTEGER PRIMARY KEY DESC, WITHOUT ROWID), the column is not the number that SQLite gives rows.
    has_row_id = len(keys) == 1 and not any(index[3] == "pk" for index in indexes)
    is_strict = bool(rows) and _is_strict(conn, schema, _NAMES.quote(table.name))
    return [_column(row, is_strict, is_row_id=bool(row[5]) and has_row_id) for row in rows]


def _is_strict(conn: Connection, schema: str, quoted: str) -> bool:
    """Whether the table is STRICT, a feature since SQLite 3.37."""
    row = conn.exec_driver_sql(f"PRAGMA {schema}table_list({quoted})").mappings().first()
    return row is not None and bool(row.get("strict"))


def _column(row: Any, is_strict: bool, *, is_row_id: bool) -> Column:
    _, name, declared, not_null, default, _, hidden = row
    has_default = default is not None and default.upper() != "NULL"
    return Column(
        name,
        sql_type=declared,
        nullable=not not_null and not is_row_id,
        has_default=has_default or is_row_id,
        generated=hidden in _GENERATED,
        is_settled=not has_default or (_LITERAL.fullmatch(default) is not None and not is_strict),
        **_facts("" if is_strict and declared.upper() == "ANY" else declared.upper().strip()),
    )


def _facts(declared: str) -> Mapping[str, Any]:
    """Return what a declared type says about the values that fit: by its name if known, else by SQLite's affinity."""
    match = _DECLARED.fullmatch(declared)
    name, first, second = (match[1].strip(), match[2], match[3]) if match else (declared, None, None)
    if name in ("BOOLEAN", "BOOL"):
        return {"type": ColumnType(TypeName.BOOLEAN)}
    if name in _TIMES:
        return {"type": ColumnType(TypeName.TIMESTAMP), "has_zone": _TIMES[name]}
    if name == "DATE":
        return {"type": ColumnType(TypeName.DATE)}
    if name in _NO_NUMBERS:
        return {"type": ColumnType(TypeName.TEXT), "pattern": _NO_NUMBER}
    if name in ("JSON", "JSON_TEXT"):  # SQLite makes a number of JSON that is one, unless the type has TEXT in it
        return {"type": ColumnType(TypeName.JSON), "digits": _EXACT_DIGITS if name == "JSON" else None}
    if name == "DECIMAL_TEXT":
        return {"type": _decimal(first, second)}
    if "INT" in name:
        return {"type": ColumnType(TypeName.INTEGER)}
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        length = int(first) if first is not None and "CHAR" in name else None
        return {"type": ColumnType(TypeName.TEXT), "length": length}
    if "BLOB" in name or not name:
        return {"type": ColumnType(TypeName.BYTES if name else TypeName.TEXT)}
    if any(word in name for word in ("REAL", "FLOA", "DOUB")):
        return {"type": ColumnType(TypeName.DOUBLE), "takes_nan": False}
    kind = _decimal(first, second)
    return {"type": kind, "digits": None if (kind.precision or 99) <= _EXACT_DIGITS else _EXACT_DIGITS}


def _decimal(first: str | None, second: str | None) -> ColumnType:
    if first is None or int(first) < 1 or int(second or 0) > int(first):
        return ColumnType(TypeName.DECIMAL)
    return ColumnType.decimal(int(first), int(second or 0))


_WRITTEN = {
    TypeName.BOOLEAN: "BOOLEAN",
    TypeName.INTEGER: "BIGINT",
    TypeName.DOUBLE: "DOUBLE",
    TypeName.TEXT: "TEXT",
    TypeName.BYTES: "BLOB",
    TypeName.DATE: "DATE",
    TypeName.TIMESTAMP: "TIMESTAMPTZ",
    TypeName.JSON: "JSON_TEXT",
}


_ROWS = 500


class SQLiteWriter(Writer):
    """Writes rows to SQLite by INSERTs of many rows, which take little more than half the time of single ones."""

    names = _NAMES
    nested = 30  # SQLite accepts 1000 levels; a low number costs little, since it writes rows in turn

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._table = _NAMES.table(layout.table)
        self._quoted = {name: _NAMES.quote(name) for name in layout.by_name}

    def _listed(self, names: Sequence[str]) -> str:
        return ", ".join(self._quoted[name] for name in names)

    def _load(self, conn: Connection, batch: Any) -> None:
        self._insert(conn, batch, single=False)

    def _insert(self, conn: Connection, batch: Any, *, single: bool) -> None:
        unfit: list[str] = []
        driver, names = _driver(conn), batch.schema.names
        start = f"INSERT INTO {self._table} ({self._listed(names)}) VALUES "
        row, end = f"({', '.join('?' * len(names))})", self._conflict(conn, self._others(batch), unfit)
        most = 1 if single else min(_ROWS, driver.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(names))
        values = chain.from_iterable(zip(*self._parameters(batch), strict=True))
        with driver_errors(conn, start):
            for first in range(0, batch.num_rows, most):
                count = min(most, batch.num_rows - first)
                driver.execute(start + ", ".join([row] * count) + end, tuple(islice(values, count * len(names))))
        if unfit:
            raise DoesNotFit(f"column {unfit[0]!r}: the sum of a key's row and its records does not fit the column")

    def _update(self, conn: Connection, batch: Any, *, single: bool) -> None:
        key, others = list(self.layout.table.key), self._others(batch)
        changes = ", ".join(f"{self._quoted[name]} = ?" for name in others)
        start = f"UPDATE {self._table} SET {changes}"
        self._for_each(conn, start, batch.select([*others, *key, *self._guard]))

    def _delete(self, conn: Connection, keys: Any, *, single: bool) -> None:
        self._for_each(conn, f"DELETE FROM {self._table}", keys.select([*self.layout.table.key, *self._guard]))

    def _empty(self, conn: Connection, batch: Any) -> None:
        conn.exec_driver_sql(self._emptied(self._table, _NAMES, batch))

    def _count(self, conn: Connection, keys: Any) -> int:
        start = f"SELECT count(*) FROM {self._table}"
        with driver_errors(conn, start):
            rows = zip(*self._parameters(keys), strict=True)
            found = (_driver(conn).execute(f"{start} WHERE {self._same}", key) for key in rows)
            return sum(int(each.fetchone()[0]) for each in found)

    def _for_each(self, conn: Connection, start: str, batch: Any) -> None:
        """Run an UPDATE or DELETE for each row of the batch, on the row with the same key, if that is not newer."""
        older = "".join(f" AND {self._not_older(self._quoted[name], '?')}" for name in self._guard)
        with driver_errors(conn, start):
            _driver(conn).executemany(f"{start} WHERE {self._same}{older}", zip(*self._parameters(batch), strict=True))

    @staticmethod
    def _not_older(guard: str, value: str) -> str:
        return f"({guard} IS NULL OR {guard} <= {value})"

    @property
    def _same(self) -> str:
        """The condition that finds a key as its index does: the column may have another collation."""
        columns = (self.layout.by_name[name] for name in self.layout.table.key)
        compared = ((each.name, each.compared if each.folds else _EXACTLY) for each in columns)
        return " AND ".join(f"{self._quoted[name]} = ?{how}" for name, how in compared)

    def _conflict(self, conn: Connection, others: list[str], unfit: list[str]) -> str:
        if self.layout.table.kind is Mode.APPEND:
            return ""
        changes = [
            f"{self._quoted[name]} = {self._sum(conn, name, number, unfit)}"
            if name in self.layout.added
            else f"{self._quoted[name]} = excluded.{self._quoted[name]}"
            for number, name in enumerate(others)
        ]
        sets = changes and self.layout.table.kind is not Mode.IGNORE
        action = f"UPDATE SET {', '.join(changes)}" if sets else "NOTHING"
        for quoted in (self._quoted[name] for name in self._guard):
            action += f" WHERE {self._not_older(quoted, f'excluded.{quoted}')}"
        return f" ON CONFLICT ({self._listed(self.layout.table.key)}) DO {action}"

    def _parameters(self, batch: Any) -> list[list[Any]]:
        return [
            parameters_of(array, column, zone="+00:00" if column.has_zone else "")
            for column, array in self._columns(batch)
        ]

    def _sum(self, conn: Connection, name: str, number: int, unfit: list[str]) -> str:
        """Return the expression that adds exactly; SQLite itself would make floats of large or fractional numbers."""
        column, quoted = self.layout.by_name[name], self._quoted[name]
        old = f"{_NAMES.quote(self.layout.table.name)}.{quoted}"
        if column.type.name is TypeName.DOUBLE:
            return f"COALESCE({old} + excluded.{quoted}, {old}, excluded.{quoted})"
        _driver(conn).create_function(f"exact_sum_{number}", 2, _adder(column, unfit), deterministic=True)
        return f"exact_sum_{number}({old}, excluded.{quoted})"


def _driver(conn: Connection) -> sqlite3.Connection:
    driver = conn.connection.dbapi_connection
    if not isinstance(driver, sqlite3.Connection):
        raise ConfigurationError(f"tables on SQLite need Python's own driver, not {type(driver).__name__}")
    return driver


def _adder(column: Column, unfit: list[str]) -> Callable[[Any, Any], Any]:
    """Return a function that adds exactly.

    If a sum does not fit, it appends the column to ``unfit``: an error raised inside SQLite would lose its message.
    """

    def add(old: Any, new: Any) -> Any:
        if old is None or new is None:
            return new if old is None else old
        total = EXACT.add(Decimal(str(old)), Decimal(str(new)))
        if not _fits(total, column):
            unfit.append(column.name)
            return None
        return int(total) if column.type.name is TypeName.INTEGER else f"{total:f}"

    return add


def _fits(total: Decimal, column: Column) -> bool:
    if column.type.name is TypeName.INTEGER:
        return column.low <= total <= column.high
    digits = "".join(map(str, total.as_tuple().digits)).strip("0")
    if column.digits is not None and len(digits) > column.digits:
        return False
    precision, scale = column.type.precision, column.type.scale or 0
    return precision is None or total.is_zero() or total.adjusted() < precision - scale


class SQLiteDatabase(TableDatabase):
    """SQLite: the database is a file, or in memory."""

    names = _NAMES
    writer = SQLiteWriter
    is_local = True
    folds_tables = True
    alters = False

    def verbatim(self, statement: str) -> str:
        """Return the statement: this driver formats nothing."""
        return statement

    def _text(self, value: str) -> str:
        doubled = value.replace("'", "''")
        return f"'{doubled}'"

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """Return the table's columns in order; none if the table does not exist."""
        return _columns(conn, table)

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """Return the SQL type of a new column.

        Decimals of up to 15 digits are stored as numbers; longer ones as text, which keeps every digit.
        """
        if kind.name is TypeName.DECIMAL:
            bounds = f"({kind.precision},{kind.scale})" if kind.precision else ""
            exact = kind.precision is not None and kind.precision <= _EXACT_DIGITS
            return ("DECIMAL" if exact else "DECIMAL_TEXT") + bounds
        return _WRITTEN[kind.name]

    def following(self, column: Column, *, in_key: bool) -> Column:
        """Return a column without the length or the digits of its type, which mean nothing to SQLite."""
        if column.type.name not in (TypeName.TEXT, TypeName.DECIMAL):
            return column
        bare = _facts(column.sql_type.upper().partition("(")[0].strip())
        return replace(column, **bare) if bare["type"].name is column.type.name else column

    def facts(self, conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
        """Return the facts about a table; raise if it takes no rows, or may break a transaction."""
        return _facts_of(conn, table, columns)

    def shape(self, conn: Connection, table: Table) -> str | None:
        """Return the SQL of the table, its indexes, its triggers, and all objects with REFERENCES, ROLLBACK or FAIL."""
        schema = f"{_NAMES.quote(table.schema)}." if table.schema else ""
        found: str | None = conn.exec_driver_sql(
            f"SELECT group_concat(sql, '; ') FROM {schema}sqlite_master WHERE tbl_name = ? COLLATE NOCASE "
            "OR sql LIKE '%REFERENCES%' OR sql LIKE '%ROLLBACK%' OR sql LIKE '%FAIL%'",
            (table.name,),
        ).scalar()
        return found

    def has_shape(self, conn: Connection, table: Table, shape: str | None, *, is_written: bool) -> bool:
        """Whether the table still has the shape; checked after the write only."""
        return not is_written or self.shape(conn, table) == shape

    def links(self, conn: Connection, table: Table) -> Links | None:
        """Return what the table has to do with others; ``None`` if it does not exist."""
        return _links_of(conn, table)

    def breaks_reference(self, error: BaseException) -> bool:
        """Whether a foreign key refused a row."""
        orig = getattr(error, "orig", error)
        return getattr(orig, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY

    def missing_file(self, url: URL) -> str | None:
        """Return the path of the database's file if it does not exist: connecting would create it."""
        file = url.database
        return file if file and file != ":memory:" and not Path(file).exists() else None

    def refuses_column(self, error: DBAPIError) -> bool:
        """Whether SQLite refused a new column for its name, or because the table has too many."""
        message = str(error.orig).lower()
        return "too many columns" in message or message.startswith("duplicate column name")
