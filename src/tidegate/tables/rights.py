"""The rights that writing to a table needs, and the error that names a missing one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from tidegate.errors import LedgerDenied
from tidegate.tables.names import Names
from tidegate.tables.table import Mode, Table

__all__ = ["denied", "line_of", "rights_of"]

_OF_MODES = {
    Mode.APPEND: {"INSERT"},
    Mode.UPSERT: {"SELECT", "INSERT", "UPDATE"},
    Mode.ACCUMULATE: {"SELECT", "INSERT", "UPDATE"},
    Mode.IGNORE: {"SELECT", "INSERT"},
    Mode.UPDATE: {"SELECT", "UPDATE"},
}
_ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")


def rights_of(table: Table) -> tuple[str, ...]:
    """Return the rights on the table that its mode needs."""
    needed = _OF_MODES[table.kind] | ({"SELECT", "DELETE"} if table.deletes else set())
    return tuple(right for right in _ALL if right in needed)


def denied(table: Table, missing: Sequence[str], names: Names, login: str) -> LedgerDenied:
    """Return an error that names the missing rights, and the GRANT statement for them."""
    rights = ", ".join(missing)
    return LedgerDenied(
        f"table {table}: the login {login} lacks the right to {rights}; run GRANT {rights} ON {names.table(table)} TO "
        f"{login}"
    )


def line_of(error: BaseException) -> str:
    """Return the first line of a driver's error message; further lines may contain values."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(cause.args[1]) if len(cause.args) > 1 else str(cause)
    return text.strip().partition("\n")[0]
