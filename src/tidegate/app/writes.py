"""Writes: what a handler of a pool returns, to be carried out by the transaction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Executable, TextClause, UpdateBase

from tidegate.core.errors import LedgerError
from tidegate.ledger.sql.transaction import SqlTransaction
from tidegate.ledger.transaction import Transaction

__all__ = ["NotWritable", "Write", "carry_out", "writes"]

_POSSIBLE = (
    "None, a SQLAlchemy statement, a tuple of a statement and its parameters (a dictionary, or a list of them), a "
    "function that takes the transaction, or a list of these"
)
_CHANGES_ROWS = re.compile(r"\s*(insert|update|delete|replace|merge)\b", re.IGNORECASE)


class NotWritable(LedgerError):
    """A handler returned something that the transaction cannot carry out: no fault of the record, so it stops."""


class Write(NamedTuple):
    """One statement with its parameters, or one function of the transaction."""

    what: Any
    parameters: Any = None


def writes(result: object) -> tuple[Write, ...]:
    """What a handler returned, as writes in their order; raises :class:`NotWritable`."""
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
            yield from (Write(statement, row) for row in rows)  # for none, SQLAlchemy would run it once, without values
        case list() | tuple():
            for each in result:
                yield from _flat(each)
        case _ if callable(result) and not isinstance(result, type):
            yield Write(result)
        case _:
            raise NotWritable(f"the handler returned {type(result).__name__}; it may return {_POSSIBLE}")


def carry_out(given: Iterable[Write], tx: Transaction) -> None:
    """Write in order; the same statement with one set of parameters after the other goes to the database as one."""
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
    """Equal for writes that can go together: the same statement, which returns nothing, and the same names.

    By the first set of parameters SQLAlchemy decides which columns all of them have.
    """
    if isinstance(write.parameters, Mapping) and _changes_rows(write.what):
        return id(write.what), frozenset(write.parameters)
    return object()


def _changes_rows(statement: Any) -> bool:
    if isinstance(statement, TextClause):
        return _CHANGES_ROWS.match(statement.text) is not None
    return isinstance(statement, UpdateBase)
