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

from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import exc

from tidegate.errors import ConfigurationError, LedgerError, RegistryUnavailable
from tidegate.ledger.registry import DIALECTS
from tidegate.ledger.sql.dialect import Blame
from tidegate.ledger.transaction import NotMoved, Retriable

__all__ = ["Blame", "Company", "Fault", "described", "fault_of"]

_LONGEST_TEXT = 1000

_NO_RECORDS = (LedgerError, Retriable, NotMoved, RegistryUnavailable)
_OF_SQLALCHEMY = (exc.PendingRollbackError, exc.ResourceClosedError, exc.TimeoutError, exc.DisconnectionError)
_ABOUT_VALUES = {"IntegrityError", "DataError"}
_DIALECTS = tuple(dict.fromkeys(DIALECTS.values()))


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
        if isinstance(following, _NO_RECORDS):  # its cause has been classified already
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
    if isinstance(error, (*_NO_RECORDS, *_OF_SQLALCHEMY)) or type(error) is ConfigurationError:
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
    """Ask the dialect of the database that the error is from."""
    for dialect in _DIALECTS:
        if (found := dialect.blame(error, about_values=bool(names & _ABOUT_VALUES))) is not None:
            return found
    # An error without a code is the driver's own: a parameter that it cannot adapt, or else a lost connection.
    return Blame.RECORD if names & {*_ABOUT_VALUES, "ProgrammingError"} else Blame.DATABASE
