"""Names in statements: always quoted."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.tables.table import Table

__all__ = ["Names"]


class Names:
    """Quotes names for one kind of database.

    ``bound``: for statements that go through a driver's formatting of parameters, where a percent sign is doubled.
    """

    def __init__(self, mark: str, *, bound: bool = False) -> None:
        self._mark = mark
        self._bound = bound

    def quote(self, name: str) -> str:
        """A name as it goes into a statement."""
        quoted = f"{self._mark}{name.replace(self._mark, self._mark * 2)}{self._mark}"
        return quoted.replace("%", "%%") if self._bound else quoted

    def listed(self, names: Iterable[str]) -> str:
        """Names, with commas."""
        return ", ".join(map(self.quote, names))

    def table(self, table: Table) -> str:
        """The table's name, with its schema if it has one."""
        name = self.quote(table.name)
        return f"{self.quote(table.schema)}.{name}" if table.schema else name
