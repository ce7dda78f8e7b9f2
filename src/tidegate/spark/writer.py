"""Writing rows in an open transaction, on the driver and on executors: all of them, or all that the database takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.records import FailedRecord
from tidegate.errors import LedgerUnavailable
from tidegate.ledger import SqlLedger, SqlTransaction
from tidegate.ledger.blame import Blame, Company, described, fault_of
from tidegate.spark.records import letters_of
from tidegate.spark.rows import Made
from tidegate.tables.layout import Layout
from tidegate.tables.registry import database_of
from tidegate.tables.rows import Rows
from tidegate.tables.target import write_rows
from tidegate.tables.writer import GuardedWriter

__all__ = ["Narrowing", "RecordRows", "Writing", "line_of", "public_error"]


@dataclass(frozen=True)
class Writing:
    """How rows are written to a table: its layout, and the shape that it must still have. It can be pickled."""

    layout: Layout
    shape: str | None

    def on(self, engine: Engine) -> GuardedWriter:
        """Return the writer for the database of an engine."""
        return GuardedWriter(database_of(engine), self.layout, self.shape)

    def write(self, tx: SqlTransaction, rows: Iterable[Rows]) -> None:
        """Plan and write rows, and raise :class:`TableAltered` if the table has changed."""
        writer, conn = self.on(tx.connection.engine), tx.connection
        steps = (writer.planned(each, lambda: nullcontext(conn)) for each in rows)
        writer.write(conn, chain.from_iterable(steps))

    def write_or_park(
        self, tx: SqlTransaction, made: Iterable[Made], park: Callable[[list[FailedRecord]], None]
    ) -> int:
        """Write rows, and park the records whose rows the database refuses, along with the existing dead letters.

        Returns the number of rows that are written.
        """
        writer = self.on(tx.connection.engine)
        writer.check(tx.connection, is_written=False)
        narrowing = Narrowing(tx)
        try:
            for each in made:
                alone = each.rows.mix_numbers(self.layout.counted)
                park(narrowing.write(each, lambda conn, rows: write_rows(conn, self.layout, rows), alone=alone))
            park(narrowing.settled())
        except Exception:
            with suppress(SQLAlchemyError):  # the transaction has failed, and the original error is raised below
                writer.check(tx.connection, is_written=True)
            raise
        writer.check(tx.connection, is_written=True)
        return narrowing.written


class RecordRows(Protocol):
    """The rows of a batch of records, with the dead letters among these: :class:`Made`, or those of a route."""

    @property
    def rows(self) -> Any:
        """The rows, with the places of their records."""

    @property
    def letters(self) -> list[FailedRecord]:
        """The dead letters that have been found so far."""

    @property
    def source(self) -> Any:
        """The raw records, at their places."""


class Narrowing:
    """Finds refused records by halving what the database refuses; writes the first half first, to keep the order."""

    def __init__(self, tx: SqlTransaction) -> None:
        self.written = 0
        self._tx = tx
        self._company = Company()
        self._doubts: list[FailedRecord] = []
        self._doubt: Exception | None = None

    def write(self, made: RecordRows, write: Callable[[Connection, Any], object], *, alone: bool) -> list[FailedRecord]:
        """Write the rows of a batch with ``write``; if ``alone``, each record by itself, as numbers may run out.

        Returns the dead letters of refused records, except those in doubt.
        """
        refused: dict[int, str] = {}
        doubtful: dict[int, str] = {}
        pending = self._tried_first(made.rows, alone=alone) if made.rows.changing else []
        while pending:
            rows = self._remaining(made, pending.pop())
            places = rows.changing
            if not places:
                continue
            error = self._attempt(rows, write)
            if error is None:
                self._company.has_passed = True
                self.written += len(rows)
                continue
            first, last = places[0], places[-1]
            if first < last:
                middle = _middle(places)
                pending += [rows.between(middle, last + 1), rows.between(first, middle)]
                continue
            if self._waits(made, first, error):
                continue
            is_doubtful = fault_of(error).blame is Blame.UNCERTAIN
            (doubtful if is_doubtful else refused)[first] = described(error)
            if is_doubtful:
                self._company.in_doubt = True
                self._doubt = self._doubt or error
        self._doubts += letters_of(made.source, doubtful)
        return sorted(made.letters + letters_of(made.source, refused), key=_place)

    def _remaining(self, made: RecordRows, rows: Any) -> Any:
        """Return the rows that are still to be written."""
        return rows

    def _waits(self, made: RecordRows, place: int, error: Exception) -> bool:
        """Whether a refused record is left for later, and so is not to be parked."""
        return False

    def _tried_first(self, rows: Any, *, alone: bool) -> list[Any]:
        """Return the rows to try, the last ones first."""
        if not alone:
            return [rows]
        return [rows.between(place, place + 1) for place in sorted(set(rows.changing), reverse=True)]

    def settled(self) -> list[FailedRecord]:
        """Return the dead letters of records in doubt. If no record has passed, raise the error of the first."""
        if self._company.is_open and self._doubt is not None:
            raise self._doubt
        return self._doubts

    def _attempt(self, rows: Any, write: Callable[[Connection, Any], object]) -> Exception | None:
        """Write rows in a savepoint. Returns an error that may be a record's fault; raises those of the database."""
        try:
            with self._tx.savepoint():
                write(self._tx.connection, rows)
        except Exception as error:
            failure = error
        else:
            return None
        fault = fault_of(failure)
        if fault.blame is Blame.DATABASE:
            raise fault.error
        return failure


def public_error(ledger: SqlLedger, error: SQLAlchemyError, what: str) -> Exception:
    """Return the public error for a statement that failed outside of a ledger's transaction, if it passes by itself.

    Returns other errors unchanged.
    """
    try:
        return ledger.passing(error, what) or error
    except LedgerUnavailable as unavailable:  # this process has never reached the ledger
        return unavailable


def line_of(error: Exception) -> str:
    """Return the first line of an error; for a database error, of its driver's message."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().partition("\n")[0]


def _middle(places: Sequence[int]) -> int:
    """Return the place of a record in the middle that is not the first."""
    middle = places[len(places) // 2]
    return middle if middle > places[0] else next(place for place in places if place > middle)


def _place(letter: FailedRecord) -> tuple[object, int]:
    return letter.record.source, letter.record.offset
