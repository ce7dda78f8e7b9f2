"""A layout: a table as it is in its database, all that reading and writing need to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tidegate.tables.column import Column
from tidegate.tables.table import Mode, Table

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The table's columns in their order. It can be pickled, so that a Spark driver can look once for its executors."""

    table: Table
    columns: tuple[Column, ...]

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
        """The columns that accumulate adds to."""
        if self.table.kind is not Mode.ACCUMULATE:
            return frozenset()
        numbers = (name for name, column in self.by_name.items() if column.type.is_numeric)
        return frozenset(self.table.add) or frozenset(numbers).difference(self.table.key)

    def must_not_be_null(self, column: Column) -> bool:
        """Whether a row needs a value for a column: the database has none of its own, or the row is found by it."""
        if column.name in self.table.key and self.table.kind is not Mode.APPEND:
            return True
        return not column.nullable and not column.has_default
