"""Sink: writes records into a table as rows, without a handler function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.app.decoder import DecodingError
from tidegate.app.handler import (
    Handled,
    Handler,
    HandlerFailed,
    OnRetry,
    Outdated,
    Prepared,
    RecordRun,
    Verdicts,
    go_on,
    ignore_retry,
)
from tidegate.core.arguments import convert_arguments
from tidegate.core.batches import Tried, Tries
from tidegate.core.policies import Again, FailurePolicy
from tidegate.core.records import Record, Records, TopicPartition
from tidegate.core.schemas import CONNECT_AVRO, SCHEMA_FORMATS, SchemaRegistry
from tidegate.core.waits import ParentWaits
from tidegate.errors import ConfigurationError
from tidegate.ledger import Ledger, SqlTransaction
from tidegate.ledger.blame import described
from tidegate.ledger.ledger import TABLE_PREFIX
from tidegate.tables.feed import Mapped, sources_of
from tidegate.tables.route import IntoArgument, Route
from tidegate.tables.types import FormatArgument, KeyFormatArgument, reads_changes

if TYPE_CHECKING:
    from tidegate.tables.connect_avro import ConnectAvroFormat
    from tidegate.tables.feed import Feed
    from tidegate.tables.outlet import Draft, Outlet, RowsOfRecords
    from tidegate.tables.router import Router
    from tidegate.tables.schema_format import SchemaFormat

__all__ = ["Sink", "SinkHandler"]


def _read(ledger: Ledger[Any] | None, group: str) -> Collection[TopicPartition]:
    """Return the partitions of a group: the first claim of a topic stores a position for each of its partitions."""
    return () if ledger is None else ledger.read(group).positions


@dataclass(frozen=True)
class Sink:
    """A table, or a route to several, and how columns are read from records."""

    into: IntoArgument
    format: FormatArgument = "json"
    columns: Mapped | None = None
    key_format: KeyFormatArgument = "json"

    def __post_init__(self) -> None:
        convert_arguments(self)
        if isinstance(self.into, Route) and self.columns is not None:
            raise ConfigurationError("columns belong to one table: give them to each Part of the route")
        self.into.check_format(self.format)
        check = getattr(self.format, "check", None)  # a CsvFormat can check the names of its fields
        for column, source in sources_of(self.columns or {}).items():
            if source.is_field and callable(check):
                check(column, source.path)

    @property
    def parts(self) -> set[str] | None:
        """The fields of a record that rows are made of; ``None`` if the format is a function, which may use any."""
        if callable(self.format):
            return None
        sources = self.into.sources if isinstance(self.into, Route) else sources_of(self.columns or {}).values()
        needed = ("key",) if reads_changes(self.format) else ()
        more = (("key",) if self.into.deletes else ()) + (("headers",) if self.schemas else ())
        return {"value", *needed, *(source.part for source in sources), *more}

    @property
    def schemas(self) -> dict[str, SchemaFormat | ConnectAvroFormat]:
        """The formats whose records name a schema of a registry, by the part of the record."""
        reads_keys = hasattr(self.format, "translated") and "key" in self.format.parts
        forms = {"value": self.format, "key": self.format if reads_keys else self.key_format}
        return {part: form for part, form in forms.items() if hasattr(form, "with_registry")}

    def with_registry(self, registry: SchemaRegistry | None) -> Sink:
        """Return the sink with a schema registry for its formats that need one; raises if there is none."""
        chosen = [_with_registry(form, registry) for form in (self.format, self.key_format)]
        if hasattr(chosen[0], "translated"):
            from tidegate.tables.connect_avro import plain_keys  # noqa: PLC0415 - needs an extra

            chosen[1] = plain_keys(*chosen)
        return replace(self, **dict(zip(("format", "key_format"), chosen, strict=True)))

    def open(
        self,
        ledger: Ledger[Any] | None,
        group: str,
        policy: FailurePolicy,
        on_retry: OnRetry = ignore_retry,
        *,
        waits: bool = True,
    ) -> SinkHandler:
        """Return a handler that writes to the ledger's database; raises if the table cannot be used.

        ``waits``: a record whose parent is missing is tried again for a while.
        """
        engine = self.refuse_elsewhere(ledger)
        name = f"sink into {self.into}"
        if isinstance(self.into, Route):
            from tidegate.tables.router import Router  # noqa: PLC0415 - needs an extra

            route = self.into if waits else replace(self.into, parent_wait=0)
            own = "" if ledger is None else ledger.prefix
            forms = {"format": self.format, "key_format": self.key_format}
            router = Router(engine, route, **forms, reserved=(own, TABLE_PREFIX))
            waiting = _RouteVerdicts(name, policy, router, route.parent_wait)
            return SinkHandler(self, router, group, waiting, on_retry)
        return self.into_table(engine, group, policy, on_retry, count=lambda: len(_read(ledger, group)))

    def into_table(
        self,
        engine: Engine,
        group: str,
        policy: FailurePolicy,
        on_retry: OnRetry = ignore_retry,
        *,
        count: Callable[[], int] = lambda: 0,
    ) -> SinkHandler:
        """Return a handler of one table; ``count`` returns how many partitions the group reads, or 0 if unknown."""
        from tidegate.tables.outlet import Outlet  # noqa: PLC0415 - needs an extra

        assert not isinstance(self.into, Route)  # noqa: S101 - a route has a router
        outlet = Outlet(engine, self.into, format=self.format, key_format=self.key_format, columns=self.columns)
        verdicts = _SinkVerdicts(f"sink into {self.into}", policy)
        return SinkHandler(self, outlet, group, verdicts, on_retry, count=count)

    def refuse_elsewhere(self, ledger: Ledger[Any] | None) -> Engine:
        """Return the engine of the ledger; raises :class:`ConfigurationError` if it is not in a SQL database."""
        if ledger is None or ledger.engine is None:
            raise ConfigurationError(
                f"a sink into table {self.into} needs a ledger in SQLite, MySQL/MariaDB or PostgreSQL: rows and "
                f"position commit together, and there are no sinks for {ledger}. Write the rows in a listener instead"
            )
        return ledger.engine


def _with_registry(form: Any, registry: SchemaRegistry | None) -> Any:
    if isinstance(form, str) and (form in SCHEMA_FORMATS or form in CONNECT_AVRO):
        from tidegate.tables.target import format_of  # noqa: PLC0415 - needs an extra

        form = format_of(form)
    if not hasattr(form, "with_registry"):
        return form
    chosen = form.with_registry(registry)
    _ = chosen.codecs  # raises if there is no registry
    return chosen


class SinkHandler(Handler):
    """Converts records into rows before the transaction opens, and writes the rows in the transaction.

    The conversion may create the table or add a column, so it has to happen outside the transaction.
    """

    is_apart = False

    def __init__(
        self,
        sink: Sink,
        outlet: Outlet | Router,
        group: str,
        verdicts: Verdicts,
        on_retry: OnRetry = ignore_retry,
        *,
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        """``count`` returns how many partitions the group reads, or 0 if that is not known."""
        self._group = group
        self.name = verdicts.name
        self._verdicts = verdicts
        self._on_retry = on_retry
        self._parts = sink.parts
        self._schemas = sink.schemas
        self._count = count
        self._outlet = outlet

    def look_up(self, records: Sequence[Record], check: Callable[[], None] = go_on) -> None:
        """Ask the schema registry for the schemas of the records; ``check`` is called before each request."""
        found = Records.of(records)
        for part, form in self._schemas.items():
            if part in (self._parts or ()):
                form.codecs.look_up(found.part(part), found.part("headers"), part, check)

    def prepare(self, records: Sequence[Record]) -> Prepared:
        """Convert records into rows.

        The failure policy applies to a record that does not fit the table. If only the database finds an error, the
        batch is halved until the bad record is found.
        """
        draft = self._outlet.draft(self._feed(records))
        if draft.rows.truncates:
            draft.rows = draft.rows.of_partitions(self._count())
        known = self._misfits(records, draft.rows)
        run = _RouteRun if isinstance(self._verdicts, _RouteVerdicts) else _SinkRun
        return run(records, self._verdicts, on_retry=self._on_retry, known=known, draft=draft)

    def _feed(self, records: Sequence[Record]) -> Feed:
        """Return the records as columns, only with the needed fields, because this runs for every record."""
        from tidegate.tables import Feed  # noqa: PLC0415 - needs an extra

        if self._parts is None:
            return Feed.of(records)
        found = Records.of(records)
        return Feed(**{part: found.part(part) for part in self._parts})

    def _misfits(self, records: Sequence[Record], rows: RowsOfRecords) -> Tries:
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
        self, records: Sequence[Record], verdicts: Verdicts, *, on_retry: OnRetry, known: Tries, draft: Draft
    ) -> None:
        super().__init__(records, verdicts, on_retry=on_retry, known=known)
        self._draft = draft
        self._fit = len(records) - len(draft.rows.misfits)
        self.is_alone = draft.is_alone

    def _undecoded(self) -> Sequence[Any]:
        return range(len(self._all))  # the places of records stand for their values, which are in the rows

    def _call(self, records: Any, values: Any) -> None:
        rows = self._draft.rows if len(values) == self._fit else self._draft.rows.among(values)
        self._draft.write(self._connection, rows)

    def _check(self, *, is_written: bool) -> None:
        """Raise :class:`Outdated` if a table was altered since the rows were made.

        Then neither success nor failure of the write can be trusted.
        """
        try:
            altered = self._draft.altered(self._connection, is_written=is_written)
        except SQLAlchemyError:  # the transaction has ended, and the error that ended it is being raised
            return
        if altered is not None:
            raise Outdated(f"table {altered} was altered")

    @property
    def _connection(self) -> Connection:
        assert isinstance(self._tx, SqlTransaction)  # noqa: S101 - a sink is refused without a SQL database
        return self._tx.connection


class _RouteRun(_SinkRun):
    """Writes the rows of records in several tables, and gives the parents of refused rows time to come."""

    _verdicts: _RouteVerdicts

    def _decide(self, place: int, attempts: int, error: Exception) -> Again | None:
        """Return when to try a record again that a foreign key refused, while its parent may be on its way."""
        if self._verdicts.breaks_reference(error):
            record = self._all[place]
            after = self._verdicts.waits.next(record.source, record.offset, self._last[record.source])
            if after is not None:
                return Again(after)
        return super()._decide(place, attempts, error)

    def _ends_before(self, record: Record, error: Exception) -> bool:
        """Whether the record waits for a parent: that may itself wait for a row of the records before this one."""
        return self._verdicts.breaks_reference(error) and self._verdicts.waits.is_due(record.source, record.offset)

    @cached_property
    def _last(self) -> dict[TopicPartition, int]:
        return {record.source: record.offset for record in self._all}  # offsets ascend in each partition

    def _outcome(self, settled: int, error: Exception | None) -> Handled:
        if self._verdicts.waits and settled == len(self._all):
            self._verdicts.waits.forget(self._last)
        return super()._outcome(settled, error)

    def _parts(self) -> Iterator[tuple[int, int, Sequence[Any] | None]]:
        """Return all records as one range, even after a failure: the parent of a refused record may be among them."""
        if self.is_alone or not self._records:
            yield from super()._parts()
        else:
            yield 0, len(self._records), self._values


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


class _RouteVerdicts(_SinkVerdicts):
    """Verdicts that know how long each partition has waited for parents."""

    def __init__(self, name: str, policy: FailurePolicy, router: Router, wait: float) -> None:
        super().__init__(name, policy)
        self.breaks_reference = router.breaks_reference
        self.waits = ParentWaits(wait)
