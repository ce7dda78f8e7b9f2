"""Records into the tables of a route: the same on the driver and on executors, but only the driver creates tables.

A record whose parent is missing is left for a later micro-batch, and so are the records behind it in its partition:
the spans end in front of it. So a task never waits while it holds a place that another task needs.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.policies import Delivery
from tidegate.core.records import FailedRecord, TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.core.work import Claim, Span
from tidegate.errors import ConfigurationError, LedgerBusy, TidegateError
from tidegate.ledger import Ledger, Outcome, SqlLedger, SqlTransaction
from tidegate.ledger.ledger import TABLE_PREFIX, deliver
from tidegate.ledger.threads import THREADS
from tidegate.spark.address import LedgerAddress
from tidegate.spark.executor import Ended, Kept, SpanRecords, TaskResult, park_all, task_is_retried
from tidegate.spark.records import RAW, Sizes, feed_of, letters_of
from tidegate.spark.rows import RowWise
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.transforms import parts_of
from tidegate.spark.workers import ready_worker
from tidegate.spark.writer import Narrowing, RecordRows, public_error
from tidegate.tables.format import NewFields
from tidegate.tables.outlet import Draft
from tidegate.tables.registry import database_of
from tidegate.tables.route import Route
from tidegate.tables.router import RoutedRows, Router
from tidegate.tables.rows import DoesNotFit
from tidegate.tables.target import fixed
from tidegate.tables.writer import TableAltered

__all__ = ["Drafted", "ParentsMissing", "PipelineRoute", "RouteCommit", "RouteWriting", "before_waits"]

T = TypeVar("T")

_AT_ONCE = 16 << 20  # bytes of records whose rows are made together: parents and children among them pass together
_MOST = 32 << 20  # bytes of records whose rows a task keeps in memory; it makes those of others again when it writes


class ParentsMissing(Exception):
    """Foreign keys refuse records whose parents may come: the first such offset of each partition."""

    def __init__(self, first: Mapping[TopicPartition, int]) -> None:
        super().__init__(f"{len(first)} partitions wait for parents")
        self.first = first


@dataclass(frozen=True, eq=False)
class FixedRoute:
    """A route in the form that is sent to executors, which neither create nor alter its tables."""

    address: LedgerAddress
    route: Route
    format: Any
    key_format: Any
    parts: frozenset[str]
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    """Stands for all of it, so that a worker which runs many tasks inspects the tables once."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedRoute) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def router(self) -> Router:
        """Return the router, opened once in each process. Raises :class:`NewFields` if a table is to be created."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(route: FixedRoute) -> Router:
    ledger = route.address.open()
    return _router(route.route, fixed(ledger.engine), ledger.prefix, route.format, route.key_format)


def _router(route: Route, engine: Engine, prefix: str, form: Any, key_format: Any) -> Router:
    return Router(engine, route, format=form, key_format=key_format, reserved=(prefix, TABLE_PREFIX))


class Drafted(NamedTuple):
    """What was made from a batch of records: the rows of all tables, and dead letters."""

    records: int
    rows: RoutedRows
    letters: list[FailedRecord]
    source: Any
    draft: Draft

    @classmethod
    def of(cls, batch: Any, parts: frozenset[str], router: Router) -> Drafted:
        """Make the rows of a batch of raw records."""
        draft = router.draft(feed_of(batch, parts))
        letters = letters_of(batch, {misfit.place: str(misfit) for misfit in draft.rows.misfits})
        return cls(batch.num_rows, draft.rows, letters, batch, draft)

    def counts(self, ends: Mapping[TopicPartition, int]) -> Counter[TopicPartition]:
        """Return the number of records of each partition in front of these offsets."""
        return Counter(source for source, at in places_of(self.source) if at < ends.get(source, at + 1))

    def before(self, ends: Mapping[TopicPartition, int]) -> Drafted:
        """Return the same without the records from these offsets on."""
        if not ends:
            return self
        kept = [place for place, (source, at) in enumerate(places_of(self.source)) if at < ends.get(source, at + 1)]
        letters = [each for each in self.letters if each.record.offset < ends.get(each.record.source, 1 << 63)]
        return self._replace(records=len(kept), rows=self.rows.among(kept), letters=letters)


def places_of(batch: Any) -> list[tuple[TopicPartition, int]]:
    """Return the partition and the offset of each of these raw records."""
    topics, numbers, offsets = (batch.column(RAW[part]).to_pylist() for part in ("topic", "partition", "offset"))
    found = zip(topics, numbers, offsets, strict=True)
    return [(TopicPartition(topic, number), offset) for topic, number, offset in found]


@dataclass(frozen=True)
class RouteWriting:
    """How rows of a route are written, or why not: a record that a foreign key refuses waits, if its time is not over.

    ``over`` has the partitions that have waited, with the last offset that has. ``waits``: records wait at all.
    """

    router: Router
    over: Mapping[TopicPartition, int]
    waits: bool

    def write_or_park(
        self, tx: SqlTransaction, drafted: Iterable[Drafted], park: Callable[[list[FailedRecord]], None]
    ) -> int:
        """Write rows, and park the records whose rows the database refuses, along with the existing dead letters.

        Returns the number of rows that are written. Raises :class:`ParentsMissing` if records are to wait.
        """
        narrowing = _RouteNarrowing(tx, self)
        done: list[Draft] = []
        try:
            for each in drafted:
                done.append(each.draft)
                _check(tx, each.draft, is_written=False)
                park(narrowing.write(each, each.draft.write, alone=each.draft.is_alone))
            if narrowing.first:
                raise ParentsMissing(narrowing.first)
            park(narrowing.settled())
        except Exception:
            with suppress(SQLAlchemyError):  # the transaction has failed, and the original error is raised below
                for draft in done:
                    _check(tx, draft, is_written=True)
            raise
        for draft in done:
            _check(tx, draft, is_written=True)
        return narrowing.written

    def is_waiting(self, source: TopicPartition, offset: int, error: Exception) -> bool:
        """Whether a record that the database refuses is to wait."""
        return self.waits and offset > self.over.get(source, -1) and self.router.breaks_reference(error)


def _check(tx: SqlTransaction, draft: Draft, *, is_written: bool) -> None:
    if (table := draft.altered(tx.connection, is_written=is_written)) is not None:
        raise TableAltered(f"table {table} was altered")


class _RouteNarrowing(Narrowing):
    """Finds refused records, and those that wait; the records behind these in their partitions are not tried."""

    def __init__(self, tx: SqlTransaction, writing: RouteWriting) -> None:
        super().__init__(tx)
        self.first: dict[TopicPartition, int] = {}
        self._writing = writing
        self._places: tuple[Any, list[tuple[TopicPartition, int]]] = (None, [])

    def _places_of(self, made: RecordRows) -> list[tuple[TopicPartition, int]]:
        if self._places[0] is not made.source:
            self._places = made.source, places_of(made.source)
        return self._places[1]

    def _remaining(self, made: RecordRows, rows: Any) -> Any:
        if not self.first:
            return rows
        places, first = self._places_of(made), self.first
        kept = [place for place in rows.changing if places[place][1] < first.get(places[place][0], 1 << 63)]
        return rows.among(kept)

    def _waits(self, made: RecordRows, place: int, error: Exception) -> bool:
        source, offset = self._places_of(made)[place]
        if not self._writing.is_waiting(source, offset, error):
            return False
        self.first[source] = offset
        return True


def before_waits(attempt: Callable[[Mapping[TopicPartition, int]], T]) -> tuple[T, dict[TopicPartition, int]]:
    """Call ``attempt`` with the offsets in front of which partitions end, until no record in front of them waits.

    Returns its result and these offsets: each is that of a record that waits for its parent.
    """
    ends: dict[TopicPartition, int] = {}
    while True:
        try:
            return attempt(ends), ends
        except ParentsMissing as missing:
            ends |= missing.first


@dataclass(frozen=True)
class RouteCommit:
    """The function that a task runs on an executor: reads one span, then advances and writes all tables in one commit.

    If a record waits for its parent, the span ends in front of it. ``over``: see :class:`RouteWriting`.
    """

    fixed: FixedRoute
    rowwise: RowWise
    delivery: Delivery
    claims: Mapping[TopicPartition, Claim]
    spans: Mapping[TopicPartition, Span]
    over: Mapping[TopicPartition, int]
    runtime: Runtime = THREADS

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run one task and yield its result."""
        ready_worker()
        kept = Kept()
        try:
            result = self._done(batches, kept)
        finally:
            kept.close()
        if result is not None:
            yield result.batch()

    def _done(self, batches: Iterable[Any], kept: Kept) -> TaskResult | None:
        """Return the result of the task; ``None`` if it saw no record."""
        whole, sizes, ledger = SpanRecords(self.spans), Sizes(), self.fixed.address.open()
        some = next(iter(self.spans))
        try:
            ledger.meet()  # raises errors with advice if there is no way to connect
            router = self.fixed.router()
            made = _TaskRows(router, self.fixed.parts, kept)
            for batch in filter(len, batches):
                whole.add(batch, None)
                sizes.add(self.rowwise.sizes(batch))
                made.add(batch)
            made.finish()
        except SQLAlchemyError as error:
            return TaskResult.failed(whole.source or some, public_error(ledger, error, "making rows"))
        except (DoesNotFit, pa.ArrowException, NewFields, TidegateError) as error:
            return TaskResult.failed(whole.source or some, error)
        if whole.source is None:
            return None
        return self._commit(ledger, made, whole.source)._replace(size=sizes.expected)

    def _commit(self, ledger: SqlLedger, made: _TaskRows, source: TopicPartition) -> TaskResult:
        began, span = self.runtime.monotonic(), self.spans[source]
        waits = self.delivery is not Delivery.AT_MOST_ONCE and self.fixed.route.parent_wait > 0
        writing = RouteWriting(made.router, self.over, waits)
        letters: list[FailedRecord] = []
        rows = 0

        def attempt(ends: Mapping[TopicPartition, int]) -> tuple[Span, Any] | None:
            part = span._replace(end=ends.get(source, span.end), records=made.count(ends))
            if part.end == part.start:
                return None

            def write(tx: SqlTransaction) -> None:
                nonlocal rows
                letters.clear()
                rows = writing.write_or_park(tx, made.before(ends), letters.extend)
                park_all(ledger, tx, letters)

            return part, deliver(ledger, self.delivery, {source: self.claims[source]}, [part], write, shared=True)

        try:
            done, ends = before_waits(attempt)
        except (TidegateError, TableAltered, NewFields, SQLAlchemyError, pa.ArrowException) as error:
            if isinstance(error, LedgerBusy) and task_is_retried():
                # an earlier attempt may still be committing, and Spark would kill it if this one returned a result
                raise
            return TaskResult.failed(source, error)
        waiting = ends.get(source, -1)
        if done is None:
            return TaskResult(*source, Ended.WAITING, waiting=waiting)
        part, result = done
        return TaskResult(
            *source,
            Ended.ALREADY_DONE if result.outcome is Outcome.ALREADY_DONE else Ended.COMMITTED,
            records=part.records,
            rows=rows,
            letters=len(letters),
            attempts=result.attempts,
            unknown=result.unknown_outcomes,
            seconds=self.runtime.monotonic() - began,
            parked=json.dumps([(letter.record.offset, letter.error) for letter in letters]),
            waiting=waiting,
        )


class _TaskRows:
    """The records of a task, and their rows, which are made before the transaction begins."""

    def __init__(self, router: Router, parts: frozenset[str], kept: Kept) -> None:
        self.router = router
        self._parts = parts
        self._kept = kept.raw
        self._drafted: list[Drafted | None] = []
        self._pending: list[Any] = []
        self._bytes = 0  # of the pending batches
        self._count = 0
        self._held = 0  # of the records whose rows are kept

    def add(self, batch: Any) -> None:
        """Add a batch of raw records."""
        self._pending.append(batch)
        self._count += batch.num_rows
        self._bytes += batch.nbytes
        if self._bytes >= _AT_ONCE:
            self.finish()

    def finish(self) -> None:
        """Make the rows of the batches that have been added since."""
        if not self._pending:
            return
        together = pa.Table.from_batches(self._pending).combine_chunks()
        for batch in together.to_batches():
            self._kept.add(batch)
            drafted = self._draft(batch)
            self._held += batch.nbytes
            self._drafted.append(drafted if self._held <= _MOST else None)
        self._pending, self._bytes = [], 0

    def count(self, ends: Mapping[TopicPartition, int]) -> int:
        """Return the number of records in front of these offsets."""
        if not ends:
            return self._count
        return sum(at < ends.get(source, at + 1) for batch, _ in self._kept for source, at in places_of(batch))

    def before(self, ends: Mapping[TopicPartition, int]) -> Iterable[Drafted]:
        """Yield the rows of the records in front of these offsets. An altered table has rows of its own again."""
        for number, (batch, _) in enumerate(self._kept):
            drafted = self._drafted[number] or self._draft(batch)
            yield drafted.before(ends)

    def _draft(self, batch: Any) -> Drafted:
        return Drafted.of(batch, self._parts, self.router)


class PipelineRoute:
    """The tables of a pipeline's route; see :class:`~tidegate.spark.driver.PipelineTable`."""

    layout = None

    def __init__(self, spec: PipelineSpec, ledger: Ledger[Any]) -> None:
        if not isinstance(ledger, SqlLedger):
            raise ConfigurationError(
                f"{spec.about}: it needs a ledger in a SQL database, since rows and positions commit together"
            )
        assert spec.route is not None  # noqa: S101 - asked before
        self.route = spec.route
        self.engine = ledger.engine
        self._ledger = ledger
        self._spec = spec
        self._parts = parts_of(spec)
        self._is_new = True

    @property
    def is_local(self) -> bool:
        """Whether only this machine can write to the tables: their database is a file."""
        return database_of(self.engine).is_local

    @property
    def is_ready(self) -> bool:
        """Whether executors may write: the driver makes the first rows, which may create many tables at once."""
        return not (self._is_new and any(part.table.create for part in self.route.tables))

    @property
    def address(self) -> LedgerAddress | None:
        """Where executors open the ledger; ``None`` if they cannot, because its database is a file of this machine."""
        return None if self.is_local else LedgerAddress.of(self._ledger)

    def look(self) -> None:
        """Inspect the tables with fixed names, and create them if the route asks for that."""
        _ = self.router

    @cached_property
    def router(self) -> Router:
        """The driver's router, which creates and alters tables."""
        return _router(self.route, self.engine, self._ledger.prefix, self._spec.format, self._spec.key_format)

    def made(self, batches: Sequence[Any]) -> list[Drafted]:
        """Make the rows of batches of raw records; may create and alter tables."""
        found = [Drafted.of(batch, self._parts, self.router) for batch in batches]
        self._is_new = False
        return found

    def writing(self, over: Mapping[TopicPartition, int]) -> RouteWriting:
        """Return the writer of the driver."""
        waits = self._spec.delivery is not Delivery.AT_MOST_ONCE and self.route.parent_wait > 0
        return RouteWriting(self.router, over, waits)

    @cached_property
    def fixed(self) -> FixedRoute:
        """The route in the form that is sent to executors."""
        address = self.address
        assert address is not None  # noqa: S101 - it is None for a local database only, which the driver writes to
        return FixedRoute(address, self.route, self._spec.format, self._spec.key_format, self._parts)
