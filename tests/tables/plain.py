"""The oracle: each record as one plain statement with bound parameters, and nothing else.

What a record lacks is not in its statement. A record that the database refuses is parked. So are those that the docs
say do not fit, whatever the database would do with them (see :data:`tests.tables.cells.BAD`):

- text, numbers and booleans of the wrong type, which MySQL and SQLite would convert with or without loss;
- decimals with more digits after the point than their column has, which PostgreSQL and MySQL round;
- on SQLite: texts over their declared length, which it does not know, and sums over 64 bits, which become floats.

Not generated, since the databases change these values without a word: trailing blanks over the length of a column
(cut by all), fractions of a second that are finer than the column (rounded; Tidegate cuts them off, and so do the bound
values), values for columns that number themselves (what number is next depends on transactions that were rolled back),
and a record that has the same field in two spellings.

Left open: whether a tombstone is parked whose key does not fit, and in mode update a record that does not fit and whose
key has no row. Tidegate parks what it finds out by itself; of the databases some look at such a value and some do not.
There is no such row either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from tests.tables.cells import BAD, Cell
from tests.tables.specs import Spec


class Sent(NamedTuple):
    """A record: its fields by column, with the names that it spells them by; a tombstone; or what is no row at all.

    ``cells``: ``None`` stands for JSON's null.
    """

    cells: dict[str, Cell | None] = {}  # noqa: RUF012 - never changed
    names: dict[str, str] = {}  # noqa: RUF012
    is_tombstone: bool = False
    rubbish: bytes | None = None
    bare: bool = False
    extra: str = ""


class Refused(Exception):
    """The record is to be parked."""


class Open(Exception):
    """Nothing is stored, and the record may be parked or not."""


class Oracle:
    """Plain SQL on one table."""

    def __init__(self, conn: Connection, spec: Spec, name: str) -> None:
        self._conn = conn
        self._spec = spec
        self._name = name
        self._is_mysql = spec.database in ("mysql", "mariadb")
        self._mark = "?" if spec.database == "sqlite" else "%s"

    def parks(self, record: Sent) -> bool | None:
        """Execute it; whether it was refused, or ``None`` if that is open."""
        try:
            self._run(record)
        except Refused:
            return True
        except Open:
            return None
        return False

    def _without(self, sent: Sent) -> Sent:
        """The fields that are spelled as their columns are; the others are unknown ones."""
        cells = {name: cell for name, cell in sent.cells.items() if name not in sent.names}
        if not cells:
            raise Refused
        return sent._replace(cells=cells, extra="unknown")

    def _is_doubtful(self, sent: Sent) -> bool:
        """Whether it has a value that need not fit, and a key that has no row."""
        by_name = self._spec.by_name
        doubtful = any(
            not by_name[name].nullable if cell is None else cell in by_name[name].kind.bad
            for name, cell in sent.cells.items()
        )
        if not doubtful or any(sent.cells.get(name) is None for name in self._spec.key):
            return False
        if any(sent.cells[name] in by_name[name].kind.bad for name in self._spec.key):
            return True
        return not self._is_there(sent)

    def _run(self, sent: Sent) -> None:
        spec = self._spec
        if sent.rubbish is not None or not sent.cells:
            raise Refused
        if sent.is_tombstone and spec.on_tombstone != "delete":
            if spec.on_tombstone == "ignore":
                return
            raise Refused
        if not spec.ignores_case and sent.names:
            sent = self._without(sent)
        if spec.unknown == "refuse" and sent.extra:
            raise Refused
        if (spec.mode == "update" or sent.is_tombstone) and self._is_doubtful(sent):
            raise Open
        if any(cell is not None and cell.bound is BAD for cell in sent.cells.values()):
            raise Refused
        if (sent.is_tombstone or spec.mode != "append") and any(sent.cells.get(name) is None for name in spec.key):
            raise Refused
        if sent.is_tombstone:
            same, values = self._same(sent)
            self._execute(f"DELETE FROM {self._name} WHERE {same}", values)
            return
        getattr(self, f"_{spec.mode}")(sent)

    def _append(self, sent: Sent) -> None:
        self._insert(sent, "")

    def _upsert(self, sent: Sent) -> None:
        if self._is_mysql and self._spec.has_second_key:
            self._update(sent) if self._is_there(sent) else self._insert(sent, "")
            return
        new = "VALUES({c})" if self._is_mysql else "excluded.{c}"
        self._insert(sent, self._conflict(dict.fromkeys(self._others(sent), new)))

    def _accumulate(self, sent: Sent) -> None:
        if self._is_mysql:
            old, new = "{c}", "VALUES({c})"
        else:
            old, new = f"{self._name}.{{c}}", "excluded.{c}"
        if self._is_mysql and self._spec.has_second_key:
            if not self._is_there(sent):
                self._insert(sent, "")
                return
            sums = dict.fromkeys(self._spec.added, f"COALESCE({{c}} + {self._mark}, {{c}}, {self._mark})")
            self._update(sent, sums)
            return
        added = f"COALESCE({old} + {new}, {old}, {new})"
        others = {name: added if name in self._spec.added else new for name in self._others(sent)}
        self._insert(sent, self._conflict(others))

    def _ignore(self, sent: Sent) -> None:
        if self._is_mysql and self._spec.has_second_key:
            if not self._is_there(sent):
                self._insert(sent, "")
            return
        self._insert(sent, self._conflict({}))

    def _update(self, sent: Sent, sums: dict[str, str] | None = None) -> None:
        others = self._others(sent)
        if not others:
            return
        sums = sums or {}
        changes, values = [], []
        for name in others:
            change = sums.get(name, self._mark).replace("{c}", self._quoted(name))
            changes.append(f"{self._quoted(name)} = {change}")
            values += [self._bound(sent, name)] * change.count(self._mark)
        same, found = self._same(sent)
        self._execute(f"UPDATE {self._name} SET {', '.join(changes)} WHERE {same}", [*values, *found])

    def _insert(self, sent: Sent, conflict: str) -> None:
        columns = ", ".join(map(self._quoted, sent.cells))
        marks = ", ".join([self._mark] * len(sent.cells))
        values = [self._bound(sent, name) for name in sent.cells]
        self._execute(f"INSERT INTO {self._name} ({columns}) VALUES ({marks}){conflict}", values)

    def _conflict(self, changes: dict[str, str]) -> str:
        said = ", ".join(f"{self._quoted(n)} = {new.replace('{c}', self._quoted(n))}" for n, new in changes.items())
        key = [self._quoted(name) for name in self._spec.key]
        if self._is_mysql:
            return f" ON DUPLICATE KEY UPDATE {said or f'{key[0]} = {key[0]}'}"
        return f" ON CONFLICT ({', '.join(key)}) DO {f'UPDATE SET {said}' if said else 'NOTHING'}"

    def _is_there(self, sent: Sent) -> bool:
        same, values = self._same(sent)
        return bool(self._execute(f"SELECT COUNT(*) FROM {self._name} WHERE {same}", values).scalar())

    def _same(self, sent: Sent) -> tuple[str, list[Any]]:
        parts = [
            self._spec.by_name[name].kind.same.format(c=self._quoted(name), p=self._mark) for name in self._spec.key
        ]
        return " AND ".join(parts), [self._bound(sent, name) for name in self._spec.key]

    def _others(self, sent: Sent) -> list[str]:
        return [name for name in sent.cells if name not in self._spec.key]

    def _bound(self, sent: Sent, name: str) -> Any:
        cell = sent.cells[name]
        if cell is None or isinstance(cell.bound, bytes) or self._spec.database != "postgres":
            return None if cell is None else cell.bound
        return str(cell.bound)  # of no type, so that it takes on the column's

    def _quoted(self, name: str) -> str:
        quoted = self._spec.quote(name)
        return quoted if self._spec.database == "sqlite" else quoted.replace("%", "%%")

    def _execute(self, statement: str, values: Sequence[Any]) -> Any:
        """A statement that fails is undone by itself on MySQL and SQLite, and by a savepoint on PostgreSQL."""
        overflows = self._spec.database == "sqlite" and bool(self._spec.added)
        if self._spec.database == "postgres" or overflows:
            savepoint = self._conn.begin_nested()
            try:
                result = self._conn.exec_driver_sql(statement, tuple(values))
                if overflows:
                    self._refuse_floats()
            except (DBAPIError, Refused):
                savepoint.rollback()
                raise Refused from None
            savepoint.commit()
            return result
        try:
            return self._conn.exec_driver_sql(statement, tuple(values))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            raise Refused from None

    def _refuse_floats(self) -> None:
        """SQLite makes a float of a sum that is over 64 bits."""
        whole = [name for name in self._spec.added if "INT" in self._spec.by_name[name].kind.sql]
        wrong = " OR ".join(f"typeof({self._quoted(name)}) = 'real'" for name in whole)
        if wrong and self._conn.exec_driver_sql(f"SELECT COUNT(*) FROM {self._name} WHERE {wrong}").scalar():
            raise Refused
