"""Writing rows in an open transaction, on the driver and on executors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.ledger import SqlTransaction
from tidegate.tables.layout import Layout
from tidegate.tables.rows import Rows
from tidegate.tables.shape import shape_of
from tidegate.tables.target import write_rows

__all__ = ["Outdated", "Writing", "line_of"]


class Outdated(Exception):
    """The table was altered since its rows were made."""


@dataclass(frozen=True)
class Writing:
    """The table as it was looked at: its layout, and the shape that it has to have still."""

    layout: Layout
    shape: str | None

    def write(self, tx: SqlTransaction, rows: Iterable[Rows]) -> None:
        """Write. Once rows are written nobody can alter the table before COMMIT, so it is looked at then."""
        for each in rows:
            write_rows(tx.connection, self.layout, each)
        if shape_of(tx.connection, self.layout.table) != self.shape:
            raise Outdated(f"table {self.layout.table} was altered")


def line_of(error: Exception) -> str:
    """An error in one line; one of the database as its driver put it."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]
