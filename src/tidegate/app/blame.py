"""Blame: whether an error that came out of a handler may be the record's fault, or is the database's.

Only what may be the record's fault is retried, skipped or parked. Everything that the database said is the database's,
for a missing table or a lost connection would make a dead letter of every record there is; except what it says about
the values that it was given:

- violated constraints and values that do not fit: ``IntegrityError`` and ``DataError``, and by code what drivers put
  elsewhere: SQLSTATE classes 21 to 23, 44, 54 and P0 on PostgreSQL, and the error numbers of CHECK constraints,
  SIGNAL, arithmetic out of range and the like on MySQL and MariaDB, whose drivers call them operational;
- what never reached the server: a parameter that the driver cannot adapt, a statement that SQLAlchemy cannot compile,
  a ``one()`` that found no row.

SQLite has one code for malformed JSON and for a missing table, so both are the database's there.
"""

from __future__ import annotations

from sqlalchemy import exc

from tidegate.core.errors import LedgerError
from tidegate.ledger.trouble import NotMoved, Trouble

__all__ = ["database_error"]

_OF_THE_LEDGER = (LedgerError, Trouble, NotMoved)
_OF_SQLALCHEMY = (exc.PendingRollbackError, exc.ResourceClosedError, exc.TimeoutError, exc.DisconnectionError)
_ABOUT_VALUES = {"IntegrityError", "DataError"}
_SQLSTATES = ("21", "22", "23", "44", "54", "P0")
_MYSQL_NUMBERS = {
    *(1022, 1169, 1364, 1369, 1586, 3819, 4025),  # duplicates, no default, a view's or a column's CHECK
    *(1118, 1242, 1292, 1365, 1411, 1526, 1690),  # too large, too many, wrong value, division by 0, out of range
    *(1644, 3140, 3141, 4038),  # SIGNAL in a trigger; not JSON
}
_REFUSED_COMMIT = "only_the_ledger_commits"  # the ledger's constraint against commits of others on PostgreSQL


def database_error(error: BaseException) -> BaseException | None:
    """The error of the database that ``error`` is or came of, which is what the ledger has to see; or ``None``.

    The first one of a chain counts: after a deadlock, rolling back to the savepoint fails as well, and
    a handler may wrap what it caught.
    """
    found: BaseException | None = None
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        wrapped = isinstance(found, exc.DBAPIError) and found.orig is following
        if not wrapped and _is_databases(following):
            found = following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    return found


def _is_databases(error: BaseException) -> bool:
    if isinstance(error, (*_OF_THE_LEDGER, *_OF_SQLALCHEMY)):
        return True
    if isinstance(error, exc.DBAPIError):
        return error.connection_invalidated or error.orig is None or _is_databases(error.orig)
    ancestors = type(error).__mro__
    if any(kind.__module__ == "redis.exceptions" for kind in ancestors):
        return type(error).__name__ != "DataError"  # which says that a value cannot be encoded
    names = {kind.__name__ for kind in ancestors}
    if "Error" not in names or not names & {"DatabaseError", "InterfaceError"}:
        return False  # no driver's: PEP 249 fixes these names
    return not _about_values(error, names)


def _about_values(error: BaseException, names: set[str]) -> bool:
    if _REFUSED_COMMIT in str(error):
        return False
    if names & _ABOUT_VALUES:
        return True
    number = error.args[0] if error.args else None
    if isinstance(number, int):  # first: PyMySQL tells a state too, which is HY000 for a violated CHECK
        return number in _MYSQL_NUMBERS
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_SQLSTATES)
    return "ProgrammingError" in names and not hasattr(error, "sqlite_errorcode")  # without a code: the driver's own
