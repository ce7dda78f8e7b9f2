"""Writes: what a handler in a pool returns, for the transaction to execute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Executable, TextClause, UpdateBase

from tidegate.errors import LedgerError
from tidegate.ledger.sql.sessions import SqlTransaction
from tidegate.ledger.transaction import Transaction

__all__ = ["NotWritable", "Write", "carry_out", "writes"]


_POSSIBLE = (
    "None, a SQLAlchemy statement, a tuple of a statement and its parameters (a dictionary, or a list of them), a "
    "function that takes the transaction, or a list of these"
)
_CHANGES_ROWS = re.compile(r"\s*(insert|update|delete|replace|merge)\b", re.IGNORECASE)


class NotWritable(LedgerError):
    """A handler returned something that the transaction cannot execute. This is no record's fault, so the listener
    stops."""


class Write(NamedTuple):
    """One statement with its parameters, or one function that takes the transaction."""

    what: Any
    parameters: Any = None


def writes(result: object) -> tuple[Write, ...]:
    """Convert the return value of a handler into writes, in order; raises :class:`NotWritable`."""
    return tuple(_flat(result))


def _flat(result: object) -> Iterator[Write]:
    match result:
        case None:
            return
        case Executable():
            yield Write(result)
        case tuple((Executable() as statement, Mapping() as parameters)):
            yield Write(statement, parameters)
        case tuple((Executable() as statement, list() as rows)) if all(isinstance(row, Mapping) for row in rows):
            # Row by row: for an empty list, SQLAlchemy would execute the statement once, without values.
            yield from (Write(statement, row) for row in rows)
        case list() | tuple():
            for each in result:
                yield from _flat(each)
        case _ if callable(result) and not isinstance(result, type):
            yield Write(result)
        case _:
            raise NotWritable(f"the handler returned {type(result).__name__}; it may return {_POSSIBLE}")


def carry_out(given: Iterable[Write], tx: Transaction) -> None:
    """Execute writes in order; consecutive writes of the same statement become one ``executemany``."""
    for _, group in groupby(given, key=_sameness):
        same = list(group)
        what = same[0].what
        if isinstance(what, Executable):
            if not isinstance(tx, SqlTransaction):
                raise NotWritable("the handler returned a SQL statement, and there is no SQL database to run it in")
            tx.execute(what, same[0].parameters if len(same) == 1 else [write.parameters for write in same])
        else:
            what(tx)


def _sameness(write: Write) -> object:
    """Return a key that is equal for writes that can share one ``executemany``.

    They have the same statement, which changes rows, and the same parameter names: SQLAlchemy takes the columns of all
    parameter sets from the first one.
    """
    if isinstance(write.parameters, Mapping) and _changes_rows(write.what):
        return id(write.what), frozenset(write.parameters)
    return object()


def _changes_rows(statement: Any) -> bool:
    if isinstance(statement, TextClause):
        return _CHANGES_ROWS.match(statement.text) is not None
    return isinstance(statement, UpdateBase)
