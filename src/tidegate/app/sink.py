"""A sink: records into rows of a table, without a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.app.binding import Binding
from tidegate.app.commit import Outdated, Process
from tidegate.app.decoding import DecodingError
from tidegate.app.handling import Handled, HandlerFailed, Handling, OnRetry, described
from tidegate.core.arguments import convert_arguments
from tidegate.core.errors import ConfigurationError, LedgerUnavailable
from tidegate.core.records import Record
from tidegate.core.recovery import Again, FailurePolicy
from tidegate.core.tries import Tried, Tries
from tidegate.ledger import Ledger, SqlTransaction
from tidegate.tables.choice import FormatArgument
from tidegate.tables.shape import shape_of
from tidegate.tables.sources import Mapped, sources_of
from tidegate.tables.table import TableArgument

if TYPE_CHECKING:
    from tidegate.tables.feed import Feed
    from tidegate.tables.rows import Rows
    from tidegate.tables.target import Target

__all__ = ["Sink"]

_PLACES = {name: place for place, name in enumerate(Record._fields)}


@dataclass(frozen=True)
class Sink:
    """A table, and how its columns are read from records."""

    into: TableArgument
    format: FormatArgument = "json"
    columns: Mapped | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        check = getattr(self.format, "check", None)  # CSV knows its fields
        for column, source in sources_of(self.columns or {}).items():
            if source.is_field and callable(check):
                check(column, source.path)

    @property
    def parts(self) -> set[str] | None:
        """The parts of a record that rows are made of; ``None`` if nobody can tell: a function takes all of it."""
        if callable(self.format):
            return None
        sources = sources_of(self.columns or {}).values()
        return {"value", *(source.part for source in sources), *(("key",) if self.into.deletes else ())}

    def open(self, ledger: Ledger[Any] | None, group: str, policy: FailurePolicy) -> OpenSink:
        """The sink on the database that holds the ledger; shows at once what is wrong with the table."""
        return OpenSink(self, self.refuse_elsewhere(ledger), group, policy)

    def refuse_elsewhere(self, ledger: Ledger[Any] | None) -> Engine:
        """The database of the ledger; raises if that is none that has tables."""
        engine = getattr(ledger, "engine", None)
        if not isinstance(engine, Engine):
            raise ConfigurationError(
                f"a sink into table {self.into} needs a ledger in a SQL database: rows and position commit together"
            )
        return engine


class OpenSink:
    """Reads records before the transaction, which may create the table or a column, and writes their rows in it.

    What it knows of the table holds for as long as nobody alters it. That is looked at in every transaction, once its
    rows are written: from there to COMMIT no database lets anybody alter the table.
    """

    def __init__(self, sink: Sink, engine: Engine, group: str, policy: FailurePolicy) -> None:
        self._sink = sink
        self._engine = engine
        self._group = group
        self._policy = policy
        self._parts = sink.parts
        self._look()

    def prepare(self, records: Sequence[Record], *, on_retry: OnRetry) -> Process:
        """Make rows of records; what it returns writes them.

        A record that does not fit is given up as the policy says. What only the database can tell is narrowed down.
        """
        if self._outdated:
            self._look()
        known = self._target.prepare()
        feed = self._feed(records)
        rows = self._target.read(feed)
        if (rows.misfits or self._target.prepare() is not known) and self._shape != self._shape_now():
            self._look()
            rows = self._target.read(feed)
        batch = _Batch(self._target, records, rows)
        handling = _Writing(batch.binding, self._policy, narrows=True)
        misfits = self._misfits(handling, records, rows)

        def process(tx: SqlTransaction, tries: Tries) -> Handled:
            try:
                return handling.run(records, tx, {**misfits, **tries} if misfits else tries, on_retry=on_retry)
            finally:
                self._refuse_outdated(tx)

        return process

    def _look(self) -> None:
        """Look at the table: at its shape first, so that whatever happens in between shows as another one."""
        from tidegate.tables import Target  # noqa: PLC0415 - needs an extra

        shape, self._shape = object(), self._shape_now()
        while shape != self._shape:  # a table that was created or altered here is looked at once more
            shape = self._shape
            self._target = Target(self._engine, self._sink.into, format=self._sink.format, columns=self._sink.columns)
            layout = self._target.prepare()
            self._shape = self._shape_now()
        if layout is not None and not self._sink.into.evolve:
            self._target.read([])  # which refuses sources that the table has no columns for
        self._outdated = False

    def _feed(self, records: Sequence[Record]) -> Feed:
        """The records as columns, no more of them than are needed: that is done for every record."""
        from tidegate.tables import Feed  # noqa: PLC0415 - needs an extra

        if self._parts is None:
            return Feed.of(records)
        return Feed(**{part: list(map(itemgetter(_PLACES[part]), records)) for part in self._parts})

    def _shape_now(self) -> str | None:
        try:
            with self._engine.connect() as conn:
                return shape_of(conn, self._sink.into)
        except SQLAlchemyError as error:
            raise LedgerUnavailable(
                f"table {self._sink.into} cannot be looked at: {type(error).__name__}; is the database running?"
            ) from error

    def _refuse_outdated(self, tx: SqlTransaction) -> None:
        """Whether the rows went in or not means nothing if the table was altered since they were made."""
        try:
            altered = shape_of(tx.connection, self._sink.into) != self._shape
        except SQLAlchemyError:  # the transaction has ended, and what ended it is on its way
            return
        if altered:
            self._outdated = True
            raise Outdated(f"table {self._sink.into} was altered")

    def _misfits(self, handling: Handling, records: Sequence[Record], rows: Rows) -> Tries:
        known: dict[Any, Tried] = {}
        for misfit in rows.misfits:
            record, error = records[misfit.place], DecodingError(str(misfit))
            verdict = handling.verdict(1, error)
            if verdict is None or isinstance(verdict, Again):
                raise handling.failed(self._group, record, 1, error) from error
            known[record.source, record.offset] = Tried(1, verdict)
        return known


class _Batch:
    """The rows of some records, to be written together, or in parts after a failure."""

    def __init__(self, target: Target, records: Sequence[Record], rows: Rows) -> None:
        self._target = target
        self._records = records
        self._rows = rows
        self._fit = len(records) - len(rows.misfits)

    @property
    def binding(self) -> Binding:
        """A batch handler that writes the rows of the records that it is given."""

        def invoke(given: tuple[Any, Any, Any]) -> None:
            records, _, tx = given
            rows = self._rows if len(records) == self._fit else self._rows.among(self._places(records))
            self._target.write(tx.connection, rows)

        name = f"sink into {self._target.table}"
        return Binding(invoke, name, is_batch=True, transaction=SqlTransaction, decoding=None, invoke=invoke)

    def _places(self, records: Sequence[Record]) -> list[int]:
        return [self._place_of[id(record)] for record in records]

    @cached_property
    def _place_of(self) -> dict[int, int]:
        return {id(record): place for place, record in enumerate(self._records)}


class _Writing(Handling):
    """Says of a sink what is said of a handler."""

    def failed(self, group: str, record: Record, attempts: int, error: Exception, among: int = 1) -> HandlerFailed:
        """See :meth:`Handling.failed`."""
        tried = f" {attempts} times" if attempts > 1 else ""
        what = str(error) if isinstance(error, DecodingError) else f"refused{tried} with {described(error)}"
        name = self.binding.name
        return HandlerFailed(
            f"{name}, group {group!r}, {record.source} offset {record.offset}: {what}. The position stays in front of "
            "it; alter the table, or let on_error park or skip such records",
            function=name,
            group=group,
            partition=record.source,
            offset=record.offset,
            attempts=attempts,
        )
