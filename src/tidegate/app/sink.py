"""Sink: writes records into a table as rows, without a handler function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.app.decoder import DecodingError
from tidegate.app.handler import (
    Handler,
    HandlerFailed,
    OnRetry,
    Outdated,
    Prepared,
    RecordRun,
    Verdicts,
    ignore_retry,
)
from tidegate.core.arguments import convert_arguments
from tidegate.core.batches import Tried, Tries
from tidegate.core.policies import Again, FailurePolicy
from tidegate.core.records import Record
from tidegate.errors import ConfigurationError
from tidegate.ledger import Ledger, SqlTransaction
from tidegate.ledger.blame import described
from tidegate.tables.feed import Mapped, sources_of
from tidegate.tables.table import TableArgument
from tidegate.tables.types import FormatArgument

if TYPE_CHECKING:
    from tidegate.tables.feed import Feed
    from tidegate.tables.rows import Rows
    from tidegate.tables.target import Target

__all__ = ["Sink", "SinkHandler"]

_PLACES = {name: place for place, name in enumerate(Record._fields)}


@dataclass(frozen=True)
class Sink:
    """A table, and how its columns are read from records."""

    into: TableArgument
    format: FormatArgument = "json"
    columns: Mapped | None = None

    def __post_init__(self) -> None:
        convert_arguments(self)
        check = getattr(self.format, "check", None)  # a CsvFormat can check the names of its fields
        for column, source in sources_of(self.columns or {}).items():
            if source.is_field and callable(check):
                check(column, source.path)

    @property
    def parts(self) -> set[str] | None:
        """The fields of a record that rows are made of; ``None`` if the format is a function, which may use any."""
        if callable(self.format):
            return None
        sources = sources_of(self.columns or {}).values()
        return {"value", *(source.part for source in sources), *(("key",) if self.into.deletes else ())}

    def open(
        self, ledger: Ledger[Any] | None, group: str, policy: FailurePolicy, on_retry: OnRetry = ignore_retry
    ) -> SinkHandler:
        """Return a handler that writes to the ledger's database; raises if the table cannot be used."""
        return SinkHandler(self, self.refuse_elsewhere(ledger), group, policy, on_retry)

    def refuse_elsewhere(self, ledger: Ledger[Any] | None) -> Engine:
        """Return the engine of the ledger; raises :class:`ConfigurationError` if it is not in a SQL database."""
        if ledger is None or ledger.engine is None:
            raise ConfigurationError(
                f"a sink into table {self.into} needs a ledger in SQLite, MySQL/MariaDB or PostgreSQL: rows and "
                f"position commit together, and there are no sinks for {ledger}. Write the rows in a listener instead"
            )
        return ledger.engine


class SinkHandler(Handler):
    """Converts records into rows before the transaction opens, and writes the rows in the transaction.

    The conversion may create the table or add a column, so it has to happen outside the transaction.

    Cached table metadata stays valid until the table is altered. Every transaction checks that after it has written its
    rows: from then until COMMIT, the database lets no other session alter the table.
    """

    is_apart = False

    def __init__(
        self, sink: Sink, engine: Engine, group: str, policy: FailurePolicy, on_retry: OnRetry = ignore_retry
    ) -> None:
        self._sink = sink
        self._engine = engine
        self._group = group
        self.name = f"sink into {sink.into}"
        self._verdicts = _SinkVerdicts(self.name, policy)
        self._on_retry = on_retry
        self._parts = sink.parts
        self._look()

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Convert records into rows.

        The failure policy applies to a record that does not fit the table. If only the database finds an error, the
        batch is halved until the bad record is found.
        """
        if self._outdated:
            self._look()
        known = self._target.prepare()
        feed = self._feed(records)
        rows = self._target.read(feed)
        if (rows.misfits or self._target.prepare() is not known) and self._shape != self._look_at_shape():
            self._look()
            rows = self._target.read(feed)
        return _SinkRun(
            records,
            self._verdicts,
            on_retry=self._on_retry,
            known=self._misfits(records, rows),
            target=self._target,
            rows=rows,
            check=self._refuse_outdated,
        )

    def _look(self) -> None:
        """Read the shape of the table, and then its metadata. A change in between shows later as another shape."""
        from tidegate.tables import Target  # noqa: PLC0415 - needs an extra
        from tidegate.tables.registry import database_of  # noqa: PLC0415 - the same

        self._database = database_of(self._engine)
        shape, self._shape = object(), self._look_at_shape()
        while shape != self._shape:  # prepare() may create or alter the table: then read it again
            shape = self._shape
            self._target = Target(self._engine, self._sink.into, format=self._sink.format, columns=self._sink.columns)
            layout = self._target.prepare()
            self._shape = self._look_at_shape()
        if layout is not None and not self._sink.into.evolve:
            self._target.read([])  # raises if a source has no column in the table
        self._outdated = False

    def _look_at_shape(self) -> str | None:
        from tidegate.tables.shape import look_at_shape  # noqa: PLC0415 - needs an extra

        return look_at_shape(self._engine, self._sink.into)

    def _feed(self, records: Sequence[Record]) -> Feed:
        """Return the records as columns, only with the needed fields, because this runs for every record."""
        from tidegate.tables import Feed  # noqa: PLC0415 - needs an extra

        if self._parts is None:
            return Feed.of(records)
        return Feed(**{part: list(map(itemgetter(_PLACES[part]), records)) for part in self._parts})

    def _refuse_outdated(self, connection: Connection, is_written: bool) -> None:
        """Raise :class:`Outdated` if the table was altered since the rows were made.

        Then neither success nor failure of the write can be trusted.
        """
        try:
            same = self._database.has_shape(connection, self._sink.into, self._shape, is_written=is_written)
        except SQLAlchemyError:  # the transaction has ended, and the error that ended it is being raised
            return
        if not same:
            self._outdated = True
            raise Outdated(f"table {self._sink.into} was altered")

    def _misfits(self, records: Sequence[Record], rows: Rows) -> Tries:
        known: dict[Any, Tried] = {}
        for misfit in rows.misfits:
            record, error = records[misfit.place], DecodingError(str(misfit))
            verdict = self._verdicts.verdict(1, error)
            if verdict is None or isinstance(verdict, Again):
                raise self._verdicts.failed(self._group, record, 1, error) from error
            known[record.source, record.offset] = Tried(1, verdict)
        return known


class _SinkRun(RecordRun):
    """Writes the rows of a batch of records together, or in parts after a failure."""

    narrows = True

    def __init__(
        self,
        records: Sequence[Record],
        verdicts: Verdicts,
        *,
        on_retry: OnRetry,
        known: Tries,
        target: Target,
        rows: Rows,
        check: Callable[[Connection, bool], None],
    ) -> None:
        super().__init__(records, verdicts, on_retry=on_retry, known=known)
        self._target = target
        self._rows = rows
        self._refuse_outdated = check
        self._fit = len(records) - len(rows.misfits)
        self.is_alone = len(rows) > 0 and rows.mix_numbers(target.layout.counted)

    def _call(self, records: Any, values: Any) -> None:
        rows = self._rows if len(records) == self._fit else self._rows.among(self._indices(records))
        self._target.write(self._connection, rows)

    def _check(self, *, is_written: bool) -> None:
        self._refuse_outdated(self._connection, is_written)

    @property
    def _connection(self) -> Connection:
        assert isinstance(self._tx, SqlTransaction)  # noqa: S101 - a sink is refused without a SQL database
        return self._tx.connection

    def _indices(self, records: Sequence[Record]) -> list[int]:
        return [self._index_of[id(record)] for record in records]

    @cached_property
    def _index_of(self) -> dict[int, int]:
        return {id(record): index for index, record in enumerate(self._all)}


class _SinkVerdicts(Verdicts):
    """Verdicts whose error messages are about a sink and its table, not about a function."""

    def failed(
        self, group: str, record: Record, attempts: int, error: Exception, *, among: int = 1, doubt: str = ""
    ) -> HandlerFailed:
        """Return the error that stops the listener, with advice about the table."""
        tried = f" {attempts} times" if attempts > 1 else ""
        what = str(error) if isinstance(error, DecodingError) else f"refused{tried} with {described(error)}"
        return HandlerFailed(
            f"{self.name}, group {group!r}, {record.source} offset {record.offset}: {what}{doubt}",
            f"alter the table{'' if doubt else ', or let on_error park or skip such records'}",
            function=self.name,
            group=group,
            partition=record.source,
            offset=record.offset,
            attempts=attempts,
        )
