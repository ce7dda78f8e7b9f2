"""Names in SQL statements, and how they are quoted."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.tables.table import Table

__all__ = ["Names"]


class Names:
    """Quotes names for one kind of database.

    ``bound`` doubles percent signs, for statements in which the driver formats parameters.
    """

    def __init__(self, mark: str, *, bound: bool = False) -> None:
        self._mark = mark
        self._bound = bound

    def quote(self, name: str) -> str:
        """Return the quoted name."""
        quoted = f"{self._mark}{name.replace(self._mark, self._mark * 2)}{self._mark}"
        return quoted.replace("%", "%%") if self._bound else quoted

    def listed(self, names: Iterable[str]) -> str:
        """Return the quoted names, separated by commas."""
        return ", ".join(map(self.quote, names))

    def table(self, table: Table) -> str:
        """Return the quoted name of a table, with its schema if it has one."""
        name = self.quote(table.name)
        return f"{self.quote(table.schema)}.{name}" if table.schema else name
