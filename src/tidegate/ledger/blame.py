"""Blame: decides whether an error is the record's fault, the database's, or could be either.

Only errors that are a record's fault are retried, skipped or parked. Otherwise a missing table or a lost connection
would turn every record into a dead letter. Errors are classified as follows:

- :attr:`Blame.RECORD`: errors that do not come from a database; errors about values (violated constraints, values that
  do not fit, a trigger that refuses a row); and errors raised before the database is reached, such as a parameter that
  the driver cannot adapt.
- :attr:`Blame.DATABASE`: outages, conflicts, timeouts, missing privileges, a full or read-only database; missing
  tables, columns and functions; invalid SQL; and a table that does not fit its configuration.
- :attr:`Blame.UNCERTAIN`: every other error of a database. It is the record's fault if another record of the same batch
  succeeds in the same transaction; :class:`Company` keeps track of that. No list of codes can be complete, because a
  trigger may raise any code.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import exc

from tidegate.errors import ConfigurationError, LedgerError
from tidegate.ledger.sql.mysql import NEVER_ABOUT_VALUES as _MYSQL_NEVER
from tidegate.ledger.transaction import NotMoved, Retriable

__all__ = ["Blame", "Company", "Fault", "described", "fault_of"]

_LONGEST_TEXT = 1000

_OF_THE_LEDGER = (LedgerError, Retriable, NotMoved)
_OF_SQLALCHEMY = (exc.PendingRollbackError, exc.ResourceClosedError, exc.TimeoutError, exc.DisconnectionError)
_ABOUT_VALUES = {"IntegrityError", "DataError"}

# SQLSTATEs of PostgreSQL: prefixes (classes) or whole codes. Of class 42, only missing privileges, missing objects and
# invalid SQL; 2200H is an exhausted sequence.
_STATES_NEVER = (
    *("08", "25", "28", "2D", "3B", "3D", "3F", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX001", "XX002"),
    *("2200H", "42501", "42601", "42703", "42704", "42883", "42P01", "42P02"),
)
_STATES = ("21", "22", "23", "44", "54", "P0")

_MYSQL_STATES = ("22", "23", "44", "45")  # 45 is the class for SIGNAL, which may come with any error number
_MYSQL_NUMBERS = {
    *(1022, 1169, 1364, 1369, 1586, 3819, 4025),  # duplicates, no default value, CHECK of a view or a column violated
    *(1118, 1153, 1242, 1292, 1365, 1411, 1690),  # too large, too many, wrong value, out of range
    *(1526, 1591, 1748, 1863),  # no table partition for the row, or not the named one
    *(1644, 3140, 3141, 4038),  # SIGNAL in a trigger; invalid JSON
    *(3751, 3752, 3903, 3904, 3905, 3906, 3907, 3908),  # value unfit for an index on an expression, or too many values
}
_MYSQL_NOT_YET, _CAST = 1235, "CAST-ing JSON"  # "not supported yet": a JSON object in a multi-valued index

_SQLITE_VALUES = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE}
_SQLITE_MISSING = re.compile("no such |syntax error|incomplete input|has no column named|unrecognized token")

_HSTORE = "hstore_io.c"  # reports invalid texts as internal errors (XX000) before PostgreSQL 16
_POLICY = "ExecWithCheckOptions"  # the PostgreSQL function that reports rows refused by a policy as missing privileges
_REFUSED_COMMIT = "only_the_ledger_commits"  # the ledger's constraint on PostgreSQL, which any other COMMIT violates


class Blame(Enum):
    """Whose fault an error is."""

    RECORD = "record"
    UNCERTAIN = "uncertain"
    DATABASE = "database"


class Fault(NamedTuple):
    """Whose fault an error is, and the error of the chain that decided it, which is the one the ledger has to see."""

    blame: Blame
    error: BaseException


def fault_of(error: BaseException) -> Fault:
    """Return whose fault an error is, judging by the error and the causes it is chained to.

    A fault of the database takes precedence over an uncertain one, and the earliest error of the chain over later ones:
    after a deadlock, rolling back to the savepoint fails as well, and a handler may wrap the error it caught.
    """
    found: dict[Blame, BaseException] = {}
    wrapper: BaseException | None = None
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        if not (isinstance(wrapper, exc.DBAPIError) and wrapper.orig is following):
            found[_blame(following)] = wrapper = following
        if isinstance(following, _OF_THE_LEDGER):  # its cause has been classified already
            break
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
    for blame in (Blame.DATABASE, Blame.UNCERTAIN):
        if blame in found:
            return Fault(blame, found[blame])
    return Fault(Blame.RECORD, error)


@dataclass
class Company:
    """The records of one transaction: if one of them has succeeded, uncertain errors are the fault of the records."""

    has_passed: bool = False
    in_doubt: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a record failed with an uncertain error, and none has succeeded so far."""
        return self.in_doubt and not self.has_passed


def described(error: BaseException) -> str:
    """Return an error's text for a dead letter or a log; of a database's error only the first line, because the rest
    quotes parameters."""
    cause = error.orig if isinstance(error, exc.StatementError) and error.orig is not None else error
    text = str(cause.args[1]) if len(cause.args) > 1 and isinstance(cause.args[0], int) else str(cause)
    if isinstance(error, exc.StatementError) or getattr(cause, "sqlstate", None):  # the latter: PostgreSQL at COMMIT
        text = text.strip().partition("\n")[0]
    if isinstance(cause, UnicodeEncodeError | UnicodeDecodeError):  # its text quotes the character
        text = f"{cause.encoding}: {cause.reason}"
    return f"{type(error).__name__}: {text[:_LONGEST_TEXT]}"


def _blame(error: BaseException) -> Blame:
    if isinstance(error, (*_OF_THE_LEDGER, *_OF_SQLALCHEMY)) or type(error) is ConfigurationError:
        return Blame.DATABASE
    if isinstance(error, exc.DBAPIError):
        return Blame.DATABASE if error.connection_invalidated or error.orig is None else _blame(error.orig)
    ancestors = type(error).__mro__
    if any(kind.__module__ == "redis.exceptions" for kind in ancestors):
        # DataError means that a value cannot be encoded.
        return Blame.RECORD if type(error).__name__ == "DataError" else Blame.DATABASE
    names = {kind.__name__ for kind in ancestors}
    if "Error" not in names or not names & {"DatabaseError", "InterfaceError"}:
        return Blame.RECORD  # not a driver's error: PEP 249 fixes the names of those
    return _blame_of_driver(error, names)


def _blame_of_driver(error: Any, names: set[str]) -> Blame:
    if _REFUSED_COMMIT in str(error):
        return Blame.DATABASE
    state = str(getattr(error, "sqlstate", None) or "")
    number = error.args[0] if error.args else None
    if isinstance(number, int):  # before the state, because PyMySQL gives HY000 for a violated CHECK
        return _told_apart(
            never=number in _MYSQL_NEVER or 2000 <= number < 3000,  # 2000 to 2999 are errors of the client
            values=bool(names & _ABOUT_VALUES)
            or number in _MYSQL_NUMBERS
            or state.startswith(_MYSQL_STATES)
            or (number == _MYSQL_NOT_YET and _CAST in str(error)),
        )
    if state:
        diagnosis = getattr(error, "diag", None)
        if state == "42501" and getattr(diagnosis, "source_function", None) == _POLICY:
            return Blame.UNCERTAIN
        if state == "42601" and not _places_of(diagnosis):
            return Blame.RECORD  # invalid syntax within a value: an ltree, an hstore, a tsquery, a JSON path
        if state == "XX000" and getattr(diagnosis, "source_file", None) == _HSTORE:
            return Blame.RECORD
        return _told_apart(
            never=state.startswith(_STATES_NEVER), values=bool(names & _ABOUT_VALUES) or state.startswith(_STATES)
        )
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        primary = code & 0xFF
        missing = _SQLITE_MISSING.search(str(error)) is not None
        return _told_apart(
            never=primary not in _SQLITE_VALUES and (primary != sqlite3.SQLITE_ERROR or missing),
            values=primary in _SQLITE_VALUES,
        )
    # An error without a code is the driver's own: a parameter that it cannot adapt, or else a lost connection.
    return Blame.RECORD if names & {*_ABOUT_VALUES, "ProgrammingError"} else Blame.DATABASE


def _places_of(diagnosis: Any) -> list[Any]:
    """Return the positions in a statement that PostgreSQL reports for an error; empty if it reports none."""
    found = (getattr(diagnosis, name, None) for name in ("statement_position", "internal_position"))
    return [place for place in found if place]


def _told_apart(*, never: bool, values: bool) -> Blame:
    if never:
        return Blame.DATABASE
    return Blame.RECORD if values else Blame.UNCERTAIN
