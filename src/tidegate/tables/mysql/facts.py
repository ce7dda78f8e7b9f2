"""Facts about tables of MySQL and MariaDB: keys, constraints and triggers; and their shapes."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, assert_never

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from tidegate.errors import ConfigurationError
from tidegate.ledger.sql.mysql import without_transactions
from tidegate.tables.column import Column
from tidegate.tables.layout import Facts, Order, UniqueIndex, key_of
from tidegate.tables.links import Links
from tidegate.tables.mysql.columns import TEXTS, on_mariadb
from tidegate.tables.names import Names
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import TypeName

__all__ = ["has_shape", "mysql_facts", "mysql_links", "mysql_shape"]


_BOUND = Names("`", bound=True)
_INDEXES = text(
    "SELECT index_name, COALESCE(column_name, ''), sub_part, non_unique, seq_in_index "
    "FROM information_schema.statistics "
    "WHERE table_schema = :schema AND table_name = :name"
)
_REFERRED = (
    "SELECT 1 FROM information_schema.key_column_usage "
    "WHERE referenced_table_schema = :schema AND referenced_table_name = :name{} LIMIT 1"
)
_IN_SCHEMA = " AND table_schema = :schema"  # without a schema, MariaDB opens every table of the server
# A login sees triggers only with the privilege TRIGGER. Without it, assume that there are triggers.
_TRIGGERS = text(
    "SELECT (SELECT MAX(action_timing) FROM information_schema.triggers "  # BEFORE, if any of them is
    "WHERE event_object_schema = :schema AND event_object_table = :name), "
    "(SELECT COUNT(*) FROM information_schema.user_privileges "
    "WHERE grantee = :login AND privilege_type = 'TRIGGER') "
    "+ (SELECT COUNT(*) FROM information_schema.schema_privileges "
    "WHERE grantee = :login AND privilege_type = 'TRIGGER' AND :schema LIKE table_schema) "
    "+ (SELECT COUNT(*) FROM information_schema.table_privileges "
    "WHERE grantee = :login AND privilege_type = 'TRIGGER' AND table_schema = :schema AND table_name = :name)"
)
_NAME = r"`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\""
_QUOTED = re.compile(rf"'(?:[^'\\]|\\.|'')*'|{_NAME}", re.DOTALL)
_WORDS = re.compile(rf"CHECK \(json_valid\(({_NAME})\)\)|{_QUOTED.pattern}", re.DOTALL)
_BOUNDS = re.compile(r"\b(CHECK|FOREIGN KEY|GENERATED ALWAYS|PARTITION BY|PERIOD FOR|SYSTEM VERSIONING)\b")
_AT_CHANGES = "ON UPDATE"
_VERSIONED = "SYSTEM VERSIONING"
_WITHOUT_OVERLAPS = "WITHOUT OVERLAPS"
_NUMBERED = re.compile(rf"^\s+({_NAME}) [^`\"\n]*\bAUTO_INCREMENT\b", re.MULTILINE)
_SETTLED = TEXTS | {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "json", "uuid"}
_SETTLED |= {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "date", "datetime", "timestamp"}
_EXACT = _SETTLED - TEXTS - {"float", "double", "json", "binary"}


_LINKS = text(
    "SELECT constraint_schema, table_name, unique_constraint_schema, referenced_table_name, update_rule, delete_rule "
    "FROM information_schema.referential_constraints WHERE constraint_schema = :schema "
    "AND (table_name = :name OR (unique_constraint_schema = :schema AND referenced_table_name = :name))"
)
_EXISTS = text("SELECT 1 FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name")
_NO_ACTIONS = {"RESTRICT", "NO ACTION"}
_ROW_FORMAT = text(
    "SELECT row_format FROM information_schema.tables WHERE table_schema = :schema AND table_name = :name"
)
_COMPRESSED = re.compile(r"\b(ROW_FORMAT=COMPRESSED|KEY_BLOCK_SIZE)\b")
_KEPT, _KEPT_BEFORE = (
    40,
    788,
)  # bytes of a long value that may stay in its row: if DYNAMIC, and if older
_ALWAYS_WHOLE = 255  # bytes of a VARCHAR that is never stored elsewhere
_LONGEST_KEY, _LONGEST_NUMBER, _OF_A_VALUE = 3072, 32, 3  # bytes
_SMALLEST_PAGE, _LARGEST_HALF, _OF_A_PAGE = 4096, 16_384, 100  # bytes


def mysql_links(conn: Connection, table: Table) -> Links | None:
    """Return the tables that foreign keys link to a table, and whether writing to it may change other tables."""
    schema, login = conn.exec_driver_sql("SELECT DATABASE(), CURRENT_USER()").one()
    where = {"schema": table.schema or schema, "name": table.name, "login": _grantee(login)}
    if conn.execute(_EXISTS, where).first() is None:
        return None
    me = where["schema"], where["name"]
    pairs = [((row[0], row[1]), (row[2], row[3]), row) for row in conn.execute(_LINKS, where)]
    timing, may_see = conn.execute(_TRIGGERS, where).one()
    return Links(
        me,
        parents=frozenset(parent for child, parent, _ in pairs if child == me),
        children=frozenset(child for child, parent, _ in pairs if parent == me),
        acts=bool(timing) or not may_see or any(not {row[4], row[5]} <= _NO_ACTIONS for _, _, row in pairs),
    )


def mysql_facts(conn: Connection, table: Table, columns: Sequence[Column]) -> Facts:
    """Return the facts about a table: from its definition, indexes, triggers and foreign keys.

    Raises if rows cannot be written to it exactly once and unchanged.
    """
    server = "MariaDB" if on_mariadb(conn.dialect) else "MySQL"
    schema, modes, login = conn.exec_driver_sql("SELECT DATABASE(), @@SESSION.sql_mode, CURRENT_USER()").one()
    where = {"schema": table.schema or schema, "name": table.name, "login": _grantee(login)}
    definition = conn.exec_driver_sql(f"SHOW CREATE TABLE {_BOUND.table(table)}").one()
    _refuse(conn, table, server, is_view="View" in definition._fields)
    numbered = {_unquoted(match[1]) for match in _NUMBERED.finditer(_QUOTED.sub(_without_text, str(definition[1])))}
    # Sorted here: ORDER BY compares only as many bytes of the names as max_sort_length says.
    parts = sorted(conn.execute(_INDEXES, where), key=itemgetter(0, 4))
    indexes = _indexes(parts)
    key = key_of(table, indexes)
    bare = _bare(str(definition[1]), {column.name for column in columns if server == "MariaDB" and _is_json(column)})
    reserved: set[str] = set()
    if key and table.kind is not Mode.UPDATE:
        if _WITHOUT_OVERLAPS in bare:
            raise ConfigurationError(
                f"table {table}: it has an index WITHOUT OVERLAPS, with which {server} has no ON DUPLICATE KEY for "
                f"mode {table.kind.value!r}; use mode='append', or drop the index"
            )
        others = [index for index in indexes if index not in key]
        _refuse_keys(table, server, others, numbered, str(modes))
        reserved = numbered.intersection(name for index in others for name in index.columns).difference(table.key)
    _try_rights(conn, table, columns)
    unsettled = frozenset(column.name for column in columns if not _is_settled(column))
    timing, may_see = conn.execute(_TRIGGERS, where).one()
    counted = numbered if table.kind is Mode.APPEND else numbered.difference(table.key)
    written = {column.name for column in columns if not column.generated}
    if key and _VERSIONED in bare:  # one statement creates only one version of a row
        order = Order.SINGLE
    elif (
        _BOUNDS.search(bare)
        or any(not part[1] for part in parts)
        or len(indexes) > len(key)
        or unsettled & written
        or (key and (counted or _AT_CHANGES in bare))
        or timing
        or not may_see
        or _is_referred_to(conn, where)
        or _COMPRESSED.search(bare)
        or _may_exceed_page(conn, table, columns, {part[1] for part in parts}, where)
    ):
        order = Order.KEPT
    else:
        order = Order.FREE
    return Facts(
        order,
        is_numbered="nextval(" in bare or bool(counted),
        counted=frozenset(
            numbered.intersection(name for index in indexes for name in index.columns)
            if table.kind is Mode.APPEND
            else ()
        ),
        folding={each.name: each.compared for each in columns if key and each.name in table.key and _folds(each)},
        unsettled=unsettled,
        fills_nulls=not may_see or timing == "BEFORE",
        numbered=frozenset(numbered if table.kind is Mode.APPEND else ()),
        reserved=dict.fromkeys(
            reserved, f"{server} numbers it, and it is in a unique index, by which a value could change another row"
        ),
    )


def _refuse(conn: Connection, table: Table, server: str, *, is_view: bool) -> None:
    """Raise if the table is a view or has no transactions."""
    if is_view:
        raise ConfigurationError(
            f"table {table} is a view, and {server} does not show whether the tables behind it have transactions; name "
            "the table that the view shows"
        )
    for engine in without_transactions(conn, [table.name], table.schema).values():
        raise ConfigurationError(
            f"table {table}: its engine {engine} has no transactions, so that rows would stay when the transaction "
            f"is rolled back, and come twice; run ALTER TABLE {Names('`').table(table)} ENGINE=InnoDB"
        )


def _refuse_keys(table: Table, server: str, others: Sequence[UniqueIndex], numbered: set[str], modes: str) -> None:
    """Raise if a unique index beside the key could make ON DUPLICATE KEY UPDATE change the wrong row.

    The clause applies to every unique index, not only to the key. An index with an AUTO_INCREMENT column is accepted:
    the server fills that column and never uses a number twice.
    """
    for index in others:
        if not numbered.intersection(index.columns):
            raise ConfigurationError(
                f"table {table}: beside its key it has the unique index {index.name!r}; {server} would take a row with "
                f"the same value there for the row of the key. Drop the index, or use mode='append'"
            )
    if (counted := numbered.intersection(table.key)) and "NO_AUTO_VALUE_ON_ZERO" not in modes:
        raise ConfigurationError(
            f"table {table}: its key has the AUTO_INCREMENT column {min(counted)!r}, in which {server} gives the value "
            "0 a new number, so that each such record makes a new row. Take AUTO_INCREMENT from the column, or add "
            "NO_AUTO_VALUE_ON_ZERO to sql_mode"
        )


def _bare(definition: str, json_columns: set[str]) -> str:
    """Strip string literals, names, and the json_valid checks of MariaDB's JSON columns from a table definition."""

    def word(match: re.Match[str]) -> str:
        return "CHECK" if match[1] and _unquoted(match[1]) not in json_columns else ""

    return _WORDS.sub(word, definition)


def _indexes(rows: Sequence[Any]) -> list[UniqueIndex]:
    found = []
    for name, members in groupby((row for row in rows if not row[3]), itemgetter(0)):
        parts = list(members)
        unfit = (
            "has only the beginnings of values"
            if any(part[2] is not None for part in parts)
            else "is on an expression"
            if any(not part[1] for part in parts)
            else ""
        )
        found.append(UniqueIndex(name, tuple(part[1] for part in parts), unfit))
    return found


def _try_rights(conn: Connection, table: Table, columns: Sequence[Column]) -> None:
    """EXPLAIN statements that need the same rights as writing; a missing right raises the server's error."""
    names = list(table.key) or [column.name for column in columns if not column.generated][:1]
    if not names:
        return
    at, name = _BOUND.table(table), _BOUND.quote(names[0])
    insert = f"INSERT INTO {at} ({name}) SELECT NULL FROM DUAL WHERE 1 = 0"
    match table.kind:
        case Mode.APPEND:
            tried = [insert]
        case Mode.UPSERT | Mode.ACCUMULATE | Mode.IGNORE:
            tried = [f"{insert} ON DUPLICATE KEY UPDATE {name} = VALUES({name})"]
        case Mode.UPDATE:
            tried = [f"UPDATE {at} SET {name} = NULL WHERE {name} IS NULL"]
        case other:
            assert_never(other)
    if table.deletes:
        tried.append(f"DELETE FROM {at} WHERE {name} IS NULL")
    for statement in tried:
        try:
            conn.exec_driver_sql(f"EXPLAIN {statement}")
        except DBAPIError as error:
            if error.orig is not None and error.orig.args[:1] == (_TABLE_DENIED,):
                raise


def _is_referred_to(conn: Connection, where: dict[str, str]) -> bool:
    within = _IN_SCHEMA if on_mariadb(conn.dialect) else ""
    return conn.execute(text(_REFERRED.format(within)), where).first() is not None


def _may_exceed_page(
    conn: Connection,
    table: Table,
    columns: Sequence[Column],
    indexed: Collection[str],
    where: dict[str, str],
) -> bool:
    """Whether a row may be too large for InnoDB although each value fits.

    Half of a page has to hold a row. Long values are stored elsewhere, but a part of each stays, whose length depends
    on the format of rows. A server whose ``innodb_strict_mode`` was off has accepted such tables. A whole page has to
    hold what undoes an update: what is in the row, and twice what is in indexes.
    """
    twice = 2 * sum(min(_size_of(column), _LONGEST_KEY) for column in columns if column.name in indexed)
    longest = {kept: sum(_kept_of(column, table, kept) for column in columns) for kept in (_KEPT, _KEPT_BEFORE)}
    if twice + longest[_KEPT_BEFORE] <= _SMALLEST_PAGE // 2 - _OF_A_PAGE:
        return False
    page = int(conn.exec_driver_sql("SELECT @@GLOBAL.innodb_page_size").scalar_one())
    is_dynamic = str(conn.execute(_ROW_FORMAT, where).scalar_one()).lower() == "dynamic"
    kept = longest[_KEPT if is_dynamic else _KEPT_BEFORE]
    return kept > min(page // 2, _LARGEST_HALF) - _OF_A_PAGE or kept + twice > page - _OF_A_PAGE


def _size_of(column: Column) -> int:
    """Return how many bytes a value may have, at most the length of a key for types without a length."""
    if column.sql_type == "json":
        return _LONGEST_KEY
    is_long = column.type.name in (TypeName.TEXT, TypeName.BYTES)
    return (column.size or column.length or _LONGEST_NUMBER) if is_long else _LONGEST_NUMBER


def _kept_of(column: Column, table: Table, most: int) -> int:
    """Return the bytes of a value that may have to be in its row, with what InnoDB adds."""
    size = _size_of(column)
    kept = min(size, _LONGEST_KEY) if column.name in table.key or size <= _ALWAYS_WHOLE else min(size, most)
    return kept + _OF_A_VALUE


def _is_json(column: Column) -> bool:
    return column.sql_type == "json"


def _folds(column: Column) -> bool:
    return column.folds if column.sql_type in TEXTS else column.sql_type not in _EXACT


def _is_settled(column: Column) -> bool:
    return column.is_settled and column.sql_type in _SETTLED


def _grantee(login: str) -> str:
    user, _, host = login.rpartition("@")
    return f"'{user}'@'{host}'"


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0])


def _without_text(match: re.Match[str]) -> str:
    return "''" if match[0].startswith("'") else match[0]


_TABLE_DENIED = 1142
_NO_TABLE = 1146
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_LOOKS = "tidegate_looks"
_BEFORE_TRIGGERS = "\0"  # before their names in a shape; no definition has it
_FRESH = 10.0  # seconds for which a full check stays valid on a connection; it is slow


def mysql_shape(conn: Connection, table: Table) -> str | None:
    """Return the whole definition, and the names of the triggers.

    The definition includes engine and keys: a table that lost its unique key would silently accept duplicates. In mode
    append, rows are not merged, so triggers make no difference and are left out.
    """
    definition = _definition(conn, table)
    if definition is None or table.kind is Mode.APPEND:
        return definition
    schema = (table.schema,) if table.schema else ()
    triggers = conn.exec_driver_sql(
        "SELECT trigger_name FROM information_schema.triggers "
        f"WHERE event_object_schema = {'%s' if schema else 'DATABASE()'} AND event_object_table = %s",
        (*schema, table.name),
    ).scalars()
    return definition + _BEFORE_TRIGGERS + ", ".join(sorted(triggers))


def has_shape(conn: Connection, table: Table, shape: str | None, *, is_written: bool) -> bool:
    """Whether the table still has the shape.

    The shape is also checked before the first write: there are tables without transactions, whose rows could not be
    rolled back. A full check runs on each new connection and every ten seconds. In between, only the definition is
    compared, and only after the write: looking up the triggers takes three times as long as all the rest.
    """
    looks: dict[Any, tuple[float, str | None]] = conn.info.setdefault(_LOOKS, {})
    name = table.schema, table.name
    looked, known = looks.get(name, (-_FRESH, None))
    if known is not None and known == shape and time.monotonic() - looked < _FRESH:
        return not is_written or shape.partition(_BEFORE_TRIGGERS)[0] == _definition(conn, table)
    looks[name] = time.monotonic(), mysql_shape(conn, table)
    return looks[name][1] == shape


def _definition(conn: Connection, table: Table) -> str | None:
    try:
        row = conn.exec_driver_sql(f"SHOW CREATE TABLE {_BOUND.table(table)}").one()
    except DBAPIError as error:
        if error.orig is not None and error.orig.args[:1] == (_NO_TABLE,):
            return None
        raise
    return _COUNTER.sub("", str(row[1]))
