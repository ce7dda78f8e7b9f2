"""Plain statements, one record at a time in order, and the writers beside them: both have to leave the same table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from tidegate.tables import DoesNotFit, Layout, Rows, Table, Target
from tidegate.tables.target import write_rows

from .places import Place


class Gone(dict[str, Any]):
    """A tombstone, with the key of its row."""


Sent = Mapping[str, Any]


def rows_of(layout: Layout, records: Sequence[Sent]) -> Rows:
    """Rows as a reader makes them: what a record has not is lacked."""
    arrays = {
        name: pa.array([record.get(name) for record in records], column.arrow)
        for name, column in layout.by_name.items()
    }
    lacking = {name: pa.array([name not in record for record in records], pa.bool_()) for name in arrays}
    gone = pa.array([isinstance(record, Gone) for record in records], pa.bool_())
    return Rows(
        pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)),
        range(len(records)),
        tombstones=gone if gone.true_count else None,
        lacking={name: mask for name, mask in lacking.items() if mask.true_count},
    )


class Case:
    """A kind of table on a database, with the mode that it is written in."""

    def __init__(self, place: Place, columns: str, extra: Sequence[str] = (), **options: Any) -> None:
        """``extra``: what else to define; ``{t}`` is the table's name. ``facts``: what to know of the layout."""
        self.place = place
        self._columns = columns
        self._extra = extra
        self._facts = options.pop("facts", {})
        self._folds: Mapping[str, str] = options.pop("folds", {})
        self._options = options

    def table(self) -> Table:
        name = self.place.create(self._columns)
        for statement in self._extra:
            self.place.run(statement.replace("{t}", name))
        return Table(name, **self._options)

    def layout(self) -> Layout:
        found = Target(self.place.engine, self.table()).layout
        columns = tuple(
            replace(column, folds=True, compared=self._folds[column.name]) if column.name in self._folds else column
            for column in found.columns
        )
        return replace(found, columns=columns, **self._facts)

    def one_by_one(self, records: Sequence[Sent]) -> tuple[list[Any], list[int]]:
        """The table that plain statements leave, and the places of the records that failed."""
        table, parked = self.table(), []
        with self.place.engine.begin() as conn:
            for place, record in enumerate(records):
                try:
                    with conn.begin_nested():
                        self._plain(conn, table, record)
                except SQLAlchemyError:
                    parked.append(place)
        return self.found(table), parked

    def in_batches(self, records: Sequence[Sent], size: int) -> tuple[list[Any], list[int]]:
        """The table that the writers leave, and the places of the records that failed, as a sink finds them."""
        layout, parked = self.layout(), list[int]()
        with self.place.engine.begin() as conn:
            for start in range(0, len(records), size):
                self._narrowed(conn, layout, rows_of(layout, records[start : start + size]), start, parked)
        return self.found(layout.table), parked

    def check(self, records: Sequence[Sent], sizes: Sequence[int] = (1000, 2)) -> list[Any]:
        """Both ways leave the same."""
        expected = self.one_by_one(records)
        for size in sizes:
            assert self.in_batches(records, size) == expected, size
        return expected[0]

    def _narrowed(self, conn: Connection, layout: Layout, rows: Rows, start: int, parked: list[int]) -> None:
        try:
            with conn.begin_nested():
                write_rows(conn, layout, rows)
        except (SQLAlchemyError, DoesNotFit):
            if len(rows) == 1:
                parked.append(start + rows.places[0])
                return
            middle = rows.places[len(rows) // 2]
            self._narrowed(conn, layout, rows.between(rows.places[0], middle), start, parked)
            self._narrowed(conn, layout, rows.between(middle, rows.places[-1] + 1), start, parked)

    def found(self, table: Table) -> list[Any]:
        """The rows of the table, as text."""
        key = ", ".join(map(self.place.quote, table.key)) or "1"
        return [tuple(str(value) for value in row) for row in self.place.rows(table.name, key)]

    def _plain(self, conn: Connection, table: Table, record: Sent) -> None:
        quote, others = self.place.quote, [name for name in record if name not in table.key]
        numbered = {name: f":p{number}" for number, name in enumerate(record)}
        values = {f"p{number}": _bound(value) for number, value in enumerate(record.values())}
        where = " AND ".join(f"{quote(name)} = {numbered[name]}" for name in table.key)
        listed, marks = ", ".join(map(quote, record)), ", ".join(numbered.values())
        mode = str(getattr(table.mode, "value", table.mode))
        if isinstance(record, Gone):
            statement = f"DELETE FROM {quote(table.name)} WHERE {where}"
        elif mode == "update":
            changes = ", ".join(f"{quote(name)} = {numbered[name]}" for name in others)
            statement = f"UPDATE {quote(table.name)} SET {changes} WHERE {where}" if others else "SELECT 1"
        else:
            statement = f"INSERT INTO {quote(table.name)} ({listed}) VALUES ({marks})" + self._clash(
                table, mode, others
            )
        conn.execute(text(statement), values)

    def _clash(self, table: Table, mode: str, others: Sequence[str]) -> str:
        if mode == "append":
            return ""
        mysql, quote = self.place.database == "mysql", self.place.quote
        changes = []
        for name in others if mode != "ignore" else ():
            old, new = f"{quote(table.name)}.{quote(name)}", f"excluded.{quote(name)}"
            new = f"VALUES({quote(name)})" if mysql else new
            added = mode == "accumulate" and name in table.add
            changes.append(f"{quote(name)} = " + (f"COALESCE({old} + {new}, {old}, {new})" if added else new))
        if mysql:
            return f" ON DUPLICATE KEY UPDATE {', '.join(changes) or f'{quote(table.key[0])} = {quote(table.key[0])}'}"
        key = ", ".join(map(quote, table.key))
        return f" ON CONFLICT ({key}) DO " + (f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING")


def _bound(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value
