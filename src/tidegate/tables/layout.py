"""Layouts: a table as it is in the database, with all facts that reading and writing need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column, Form
from tidegate.tables.table import Mode, Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["Facts", "Layout", "Order", "UniqueIndex", "check_writable", "declared_as", "key_of", "refuse_generated"]


class Order(Enum):
    """How freely rows may be reordered and merged without changing the result of writing record by record."""

    FREE = "free"
    """The rows of a key may be merged, and keys may be written in any order."""
    KEPT = "kept"
    """Rows are written in the order of their records, unmerged, many per statement.

    A key may repeat within a statement only if the database processes its rows one after the other.
    """
    SINGLE = "single"
    """Each row is written by its own statement, in order."""


@dataclass(frozen=True)
class Layout:
    """A table, its columns in order, and how it may be written to.

    It can be pickled, so that a Spark driver inspects the table once for all its executors.
    """

    table: Table
    columns: tuple[Column, ...]
    order: Order = Order.FREE
    is_numbered: bool = False
    """Whether the database numbers new rows in a column: they are then inserted in the order of their records."""
    counted: frozenset[str] = frozenset()
    """The columns of unique indexes in which the database numbers rows, and never gives a number back.

    A write that is rolled back uses numbers up. So the next rows get others than plain statements would give them,
    which may be numbers that later records give.
    """
    takes_bulk: bool = True
    """Whether COPY and LOAD DATA can write to it."""
    deferred: str = ""
    """The names of PostgreSQL's deferrable constraints, quoted and comma-separated, for SET CONSTRAINTS."""
    digits: tuple[int, int] | None = None
    """How many digits a decimal of the database may declare, and how many after the point; ``None``: any."""
    server: int | None = None
    """The server that the positions in the guard are of, if events name one, and it is known."""
    snapshot: int | None = None
    """The position of the snapshot before the first of these events, if there was one."""

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """The columns that can be written to, by name."""
        return {column.name: column for column in self.columns if not column.generated}

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(column.name for column in self.columns)

    @cached_property
    def added(self) -> frozenset[str]:
        """The names of the columns that mode accumulate adds to; empty in other modes."""
        if self.table.kind is not Mode.ACCUMULATE:
            return frozenset()
        numbers = (name for name, column in self.by_name.items() if column.type.is_numeric and not column.reserved)
        return frozenset(self.table.add) or frozenset(numbers).difference(self.table.key)

    def refuses_null(self, column: Column) -> bool:
        """Whether null is invalid in a column: the database cannot store it, or rows are found by the column."""
        return not (column.nullable or column.fills_null) or self._finds_rows(column)

    def needs_value(self, column: Column) -> bool:
        """Whether every row needs a value for a column: the database fills in none, or rows are found by the column."""
        if self._finds_rows(column):
            return True
        filled = column.nullable or column.has_default or column.fills_null
        return self.table.kind is not Mode.UPDATE and not filled

    def _finds_rows(self, column: Column) -> bool:
        return column.name in self.table.key and self.table.kind is not Mode.APPEND


def check_writable(layout: Layout, column: Column) -> None:
    """Raise if no values can be written to the column."""
    if column.reserved:
        raise ConfigurationError(
            f"table {layout.table}: column {column.name!r} takes no values: {column.reserved}; leave it out of the "
            "columns"
        )
    if column.refusal:
        raise ConfigurationError(
            f"table {layout.table}: column {column.name!r} is {column.refusal}; leave it out of the columns"
        )


def refuse_generated(layout: Layout, name: str) -> None:
    """Raise if the database computes or numbers all values of the column itself."""
    if name not in layout.names or name in layout.by_name:
        return
    way_out = "name a key that records have" if name in layout.table.key else "leave it out of the columns"
    raise ConfigurationError(
        f"table {layout.table}: column {name!r} is GENERATED ALWAYS: the database computes or numbers its values, and "
        f"takes none from records; {way_out}"
    )


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index or the primary key. In ``columns``, an expression is an empty name."""

    name: str
    columns: tuple[str, ...]
    unfit: str = ""
    """Why it cannot serve as the key, such as "is partial"; empty if it can."""
    folding: Mapping[str, str] = field(default_factory=dict)
    """The columns in which it considers values equal that differ in Python, each with its :attr:`Column.compared`."""
    is_foreign: bool = False
    """Whether it uses an operator class that is not the default, so only its own operators can compare values."""


@dataclass(frozen=True)
class Facts:
    """What a database finds out about a table, beyond its columns."""

    order: Order = Order.FREE
    is_numbered: bool = False
    counted: frozenset[str] = frozenset()
    """The value of :attr:`Layout.counted`."""
    takes_bulk: bool = True
    folding: Mapping[str, str] = field(default_factory=dict)
    """The :attr:`UniqueIndex.folding` of the key."""
    reserved: Mapping[str, str] = field(default_factory=dict)
    """The columns that take no values from records, each with the reason: its :attr:`Column.reserved`."""
    unsettled: frozenset[str] = frozenset()
    """The columns for which only the database can tell whether a value fits."""
    fills_nulls: bool = False
    """Whether the database may replace a null in a NOT NULL column before the check, for instance by a trigger."""
    numbered: frozenset[str] = frozenset()
    """The columns in which NULL stands for the next number."""
    deferred: str = ""
    """The value of :attr:`Layout.deferred`."""
    warning: str = ""


def key_of(table: Table, indexes: Iterable[UniqueIndex]) -> Sequence[UniqueIndex]:
    """Return the unique indexes on exactly the key columns; none in mode append. Raise if there is no usable one."""
    if table.kind is Mode.APPEND:
        return ()
    key = set(table.key)
    candidates = [index for index in indexes if set(index.columns) == key]
    fit = [index for index in candidates if not index.unfit]
    if fit:
        return fit
    named = f"table {table}: {', '.join(table.key)} may not identify a row"
    needed = f"mode {table.kind.value!r} needs a primary key or a unique index on exactly these columns"
    if candidates:
        index = candidates[0]
        raise ConfigurationError(f"{named}: the index {index.name!r} {index.unfit}; {needed} that has none of that")
    raise ConfigurationError(f"{named}; {needed}")


def declared_as(column: Column, kind: ColumnType) -> Column | None:
    """Return the column with the type that the user declares; ``None`` if it cannot hold that type."""
    if kind.unit is not None:
        is_time = column.type.name is TypeName.TIMESTAMP
        return replace(column, type=replace(column.type, unit=kind.unit)) if is_time else None
    if kind.name is column.type.name:
        if kind.precision is None or column.type.precision is None:
            return column if kind.precision is None else replace(column, type=kind.bare)
        narrower = ColumnType.decimal(
            min(kind.precision, column.type.precision), min(kind.scale or 0, column.type.scale or 0)
        )
        return replace(column, type=narrower)
    if column.type.name is TypeName.TEXT and kind.name is TypeName.JSON and column.form is Form.ANY:
        return replace(column, type=kind.bare)
    if column.type.name is TypeName.DECIMAL and kind.name is TypeName.INTEGER and not column.type.scale:
        return column
    return None
