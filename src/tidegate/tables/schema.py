"""The seam to a database's schema: what a table's columns are, and how new ones are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from sqlalchemy import Connection, Dialect

from tidegate.tables.column import Column
from tidegate.tables.naming import Names
from tidegate.tables.table import Table
from tidegate.tables.types import ColumnType, TypeName

__all__ = ["Schema", "declared_as"]


class Schema(Protocol):
    """One kind of database."""

    names: Names

    def columns(self, conn: Connection, table: Table) -> Sequence[Column]:
        """The table's columns, in their order; none if it does not exist."""

    def written(self, kind: ColumnType, dialect: Dialect, *, in_key: bool) -> str:
        """The type of a new column."""

    def check(self, conn: Connection, table: Table) -> None:
        """Refuse a session or table in which rows would not go in as they are."""


def declared_as(column: Column, kind: ColumnType) -> Column | None:
    """The column read as the type that the user declares; ``None`` if it cannot hold that."""
    if kind.name is column.type.name:
        if kind.precision is None or column.type.precision is None:
            return column if kind.precision is None else replace(column, type=kind)
        narrower = ColumnType.decimal(
            min(kind.precision, column.type.precision), min(kind.scale or 0, column.type.scale or 0)
        )
        return replace(column, type=narrower)
    if column.type.name is TypeName.TEXT and kind.name is TypeName.JSON and not column.is_uuid:
        return replace(column, type=kind)
    if column.type.name is TypeName.DECIMAL and kind.name is TypeName.INTEGER and not column.type.scale:
        return column
    return None
