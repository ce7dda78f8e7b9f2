"""Staged batches: executors load rows into a staging table, and the driver moves them in one transaction."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.errors import ConfigurationError, LedgerUnavailable, TidegateError
from tidegate.ledger import SqlLedger, SqlTransaction
from tidegate.ledger.blame import Blame, fault_of
from tidegate.spark.address import LedgerAddress
from tidegate.spark.workers import ready_worker
from tidegate.spark.writer import line_of, public_error
from tidegate.tables.fit import fit
from tidegate.tables.layout import Layout
from tidegate.tables.rows import DoesNotFit, Rows
from tidegate.tables.staging import LostRows, Stage, create_stage, drop_stage, empty_stage, sweep_stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LoadFailed", "MisfitRow", "Offered", "RowRefused", "Staged", "Staging", "misfit_rows"]

_RESULT = "attempt long, rows long, ended string, failure string, misfits string, place long, batches binary"
_SCHEMA = pa.schema(
    [
        *(("attempt", pa.int64()), ("rows", pa.int64()), ("ended", pa.string()), ("failure", pa.string())),
        *(("misfits", pa.string()), ("place", pa.int64()), ("batches", pa.binary())),
    ]
)
_ROWS_OF_A_TASK = 40  # bits: the lower part of a row's place numbers the rows of a task, the upper part the tasks
_MOST_KEPT = 1 << 20  # bytes of rows that a task returns instead of loading them


class LoadFailed(TidegateError):
    """Rows could not be loaded or have disappeared from the staging table. A retry may help."""


class RowRefused(TidegateError):
    """A row does not fit the table. A retry does not help."""


class LoadEnded(StrEnum):
    """How the load of a task ended. A task reports a failure, and the driver raises it."""

    LOADED = "loaded"
    KEPT = "kept"
    FAILED = "failed"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


_FAILURES: dict[LoadEnded, type[TidegateError]] = {
    LoadEnded.FAILED: LoadFailed,
    LoadEnded.REFUSED: RowRefused,
    LoadEnded.UNAVAILABLE: LedgerUnavailable,
}


class Staged(NamedTuple):
    """Rows in the staging table: the columns they fill, the load attempts they belong to, and their number."""

    stage: Stage
    names: tuple[str, ...]
    attempts: tuple[int, ...]
    total: int

    def move(self, tx: SqlTransaction) -> None:
        """Move the rows to their table in the transaction that advances the positions; raise if any is missing."""
        try:
            self.stage.move(tx.connection, self.names, self.attempts, self.total)
        except LostRows as lost:
            raise LoadFailed(str(lost)) from None


class MisfitRow(NamedTuple):
    """A row that does not fit the table, as JSON, and the error."""

    value: str
    error: str


class Offered(NamedTuple):
    """The rows of a batch: ``staged``, with the misfits among them, or Arrow batches that are small enough to write."""

    staged: Staged | None
    batches: list[Any]
    misfits: Sequence[MisfitRow] = ()


class Staging:
    """The staging table of one run of a pipeline or a query, created when it is first needed."""

    def __init__(self, ledger: SqlLedger, group: str, address: LedgerAddress | None) -> None:
        self._ledger = ledger
        self._group = group
        self._address = address
        self._stage: Stage | None = None
        self._swept = False
        self._is_empty = False  # whether no task has loaded rows since the staging table was emptied

    def load(self, rows: DataFrame, layout: Layout) -> Staged:
        """Let executors load the rows. If a task ran twice, only the attempt that Spark returned counts."""
        stage, names, results = self._results(rows, layout, None)
        return Staged(stage, names, tuple(each.attempt for each in results), sum(each.rows for each in results))

    def offer(self, rows: DataFrame, layout: Layout, collect: int) -> Offered:
        """Let executors return their rows if no task has more than ``collect`` of them, or load all rows otherwise."""
        stage, names, results = self._results(rows, layout, collect)
        kept = [(result.place, _read(result.batches, names)) for result in results if result.ended == LoadEnded.KEPT]
        if len(kept) == len(results):
            self._is_empty = True
            return Offered(None, [batch for _, batches in kept for batch in batches])
        loaded = [result for result in results if result.ended == LoadEnded.LOADED]
        misfits = [MisfitRow(*each) for result in loaded for each in json.loads(result.misfits)]
        loading = _Loading(stage, parks=True)
        try:
            with self._engine.begin() as conn:
                for place, batches in kept:
                    loading.load(conn, batches, place)
        except SQLAlchemyError as error:
            raise public_error(self._ledger, error, "loading rows") from error
        attempts = (*(result.attempt for result in loaded), loading.attempt)
        total = sum(result.rows for result in loaded) + loading.count
        return Offered(Staged(stage, names, attempts, total), [], [*misfits, *loading.misfits])

    def _results(
        self, rows: DataFrame, layout: Layout, collect: int | None
    ) -> tuple[Stage, tuple[str, ...], list[Any]]:
        """Run the tasks. Returns the staging table, the columns that they fill, and their results; raises failures."""
        stage = self._emptied(layout)
        self._is_empty = False
        names = tuple(name for name in rows.columns if name in layout.by_name)
        numbered = rows.select(*(rows[f"`{name}`"] for name in names)).toDF(*(f"c{at}" for at in range(len(names))))
        assert self._address is not None  # noqa: S101 - it is None for a local database only, which the driver writes to
        results = numbered.mapInArrow(_Load(self._address, stage, names, collect), _RESULT).collect()
        for result in results:
            if (ended := LoadEnded(result.ended)) in _FAILURES:
                raise _FAILURES[ended](result.failure)
        return stage, names, results

    def close(self) -> None:
        """Drop the staging table."""
        if self._stage is not None:
            drop_stage(self._engine, self._stage.table)
            self._stage = None

    @property
    def _engine(self) -> Engine:
        return self._ledger.engine

    def _emptied(self, layout: Layout) -> Stage:
        """Return an empty staging table; a new one if the target was altered or if the old one is locked."""
        if not self._swept:
            self._swept = sweep_stages(self._engine, layout.table, self._group)
        stage = self._stage
        if stage is None or stage.layout != layout or not (self._is_empty or empty_stage(self._engine, stage)):
            stage = self._created(layout)
            self.close()
            self._stage = stage
        return stage

    def _created(self, layout: Layout) -> Stage:
        try:
            return create_stage(self._engine, layout, self._group)
        except ConfigurationError as error:
            cause = error.__cause__
            away = cause and self._ledger.passing(cause, f"preparing a staging table for table {layout.table}")
            raise away or error from cause


@dataclass
class _Loading:
    """Loads rows into a staging table in one transaction, under a random attempt number."""

    stage: Stage
    parks: bool
    attempt: int = field(default_factory=lambda: secrets.randbits(63))
    count: int = 0
    misfits: list[MisfitRow] = field(default_factory=list)

    def load(self, conn: Connection, batches: Iterable[Any], place: int) -> None:
        """Load rows in order; ``place`` is the first one's. Misfits are kept, or raise :class:`RowRefused`."""
        for batch in batches:
            rows = fit(self.stage.layout, batch)
            if rows.misfits and not self.parks:
                raise RowRefused(str(rows.misfits[0]))
            self.misfits += misfit_rows(batch, rows)
            self.stage.load(conn, self.attempt, place, rows)
            place += len(rows)
            self.count += len(rows)


@dataclass(frozen=True)
class _Load:
    """The function that a task runs: returns its rows, if they are at most ``collect``, or loads them."""

    address: LedgerAddress
    stage: Stage
    names: Sequence[str]
    collect: int | None

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return or load the rows of one task."""
        from pyspark import TaskContext  # noqa: PLC0415 - only executors have one

        ready_worker()
        context = TaskContext.get()
        place = (context.partitionId() if context else 0) << _ROWS_OF_A_TASK
        rest = iter(batches)
        first, is_all = _few(rest, self.collect)
        if is_all:
            result = {"ended": LoadEnded.KEPT, "place": place, "batches": _written(first)}
        else:
            renamed = (batch.rename_columns(list(self.names)) for batch in chain(first, rest))
            result = self._load(renamed, place)
        yield pa.RecordBatch.from_pylist([result], schema=_SCHEMA)

    def _load(self, batches: Iterable[Any], place: int) -> dict[str, Any]:
        loading, ended, failure = _Loading(self.stage, parks=self.collect is not None), LoadEnded.LOADED, ""
        ledger = self.address.open()
        try:
            with ledger.engine.begin() as conn:
                loading.load(conn, batches, place)
        except (RowRefused, DoesNotFit) as error:
            ended, failure = LoadEnded.REFUSED, str(error)
        except SQLAlchemyError as error:
            ended, failure = self._failed(ledger, error)
        found = {"attempt": loading.attempt, "rows": loading.count, "misfits": json.dumps(loading.misfits)}
        return {**found, "ended": ended, "failure": failure}

    def _failed(self, ledger: SqlLedger, error: SQLAlchemyError) -> tuple[LoadEnded, str]:
        """Return the kind and the text of a failure.

        The driver waits for an unavailable database, stops at a refused row, and retries after other failures.
        """
        found = public_error(ledger, error, "loading rows")
        if found is not error:
            return LoadEnded.UNAVAILABLE, str(found)
        is_refused = fault_of(error).blame is Blame.RECORD
        return LoadEnded.REFUSED if is_refused else LoadEnded.FAILED, line_of(error)


def misfit_rows(batch: Any, rows: Rows) -> list[MisfitRow]:
    """Return the rows of an Arrow batch that do not fit the table, as JSON, with the errors."""
    places = [misfit.place for misfit in rows.misfits]
    found = batch.take(pa.array(places, pa.int64())).to_pylist() if places else []
    errors = map(str, rows.misfits)
    return [MisfitRow(msgspec.json.encode(row).decode(), error) for row, error in zip(found, errors, strict=True)]


def _few(batches: Iterator[Any], collect: int | None) -> tuple[list[Any], bool]:
    """Take batches until there are more than ``collect`` rows, and return them and whether they are all."""
    taken: list[Any] = []
    count = size = 0
    if collect is None:
        return taken, False
    for batch in batches:
        taken.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if count > collect or size > _MOST_KEPT:
            return taken, False
    return taken, True


def _written(batches: Sequence[Any]) -> bytes:
    """Return Arrow batches as bytes."""
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _read(written: bytes, names: Sequence[str]) -> list[Any]:
    """Return the Arrow batches that :func:`_written` wrote, with the names of their columns."""
    if not written:
        return []
    with pa.ipc.open_stream(bytes(written)) as reader:
        return [batch.rename_columns(list(names)) for batch in reader]
