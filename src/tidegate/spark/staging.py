"""Staged batches: executors load rows into a staging table, and the driver moves them in one transaction."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.errors import ConfigurationError, LedgerUnavailable, TidegateError
from tidegate.ledger import SqlLedger, SqlTransaction
from tidegate.ledger.blame import Blame, fault_of
from tidegate.spark.address import LedgerAddress
from tidegate.spark.workers import ready_worker
from tidegate.spark.writer import line_of
from tidegate.tables.fit import fit
from tidegate.tables.layout import Layout
from tidegate.tables.rows import DoesNotFit
from tidegate.tables.staging import LostRows, Stage, create_stage, drop_stage, empty_stage, sweep_stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LoadFailed", "RowRefused", "Staged", "Staging"]

_RESULT = "attempt long, rows long, ended string, failure string"
_SCHEMA = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("ended", pa.string()), ("failure", pa.string())])
_ROWS_OF_A_TASK = 40  # bits: the lower part of a row's place numbers the rows of a task, the upper part the tasks


class LoadFailed(TidegateError):
    """Rows could not be loaded or have disappeared from the staging table. A retry may help."""


class RowRefused(TidegateError):
    """A row does not fit the table. A retry does not help."""


class LoadEnded(StrEnum):
    """How the load of a task ended. A task reports a failure, and the driver raises it."""

    LOADED = "loaded"
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


class Staging:
    """The staging table of one run of a pipeline. No other run uses it; it is created when it is first needed."""

    def __init__(self, ledger: SqlLedger, group: str, address: LedgerAddress | None) -> None:
        self._ledger = ledger
        self._group = group
        self._address = address
        self._stage: Stage | None = None
        self._swept = False

    def load(self, rows: DataFrame, layout: Layout) -> Staged:
        """Let executors load the rows. If a task ran twice, only the attempt that Spark returned counts."""
        stage = self._emptied(layout)
        names = tuple(name for name in rows.columns if name in layout.by_name)
        numbered = rows.select(*(rows[f"`{name}`"] for name in names)).toDF(*(f"c{at}" for at in range(len(names))))
        assert self._address is not None  # noqa: S101 - it is None for a local database only, which the driver writes to
        load = _Load(self._address, stage, names)
        results = numbered.mapInArrow(load, _RESULT).collect()
        for result in results:
            if (ended := LoadEnded(result.ended)) is not LoadEnded.LOADED:
                raise _FAILURES[ended](result.failure)
        attempts = tuple(result.attempt for result in results)
        return Staged(stage, names, attempts, sum(result.rows for result in results))

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
        if stage is None or stage.layout != layout or not empty_stage(self._engine, stage):
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


@dataclass(frozen=True)
class _Load:
    """The function that a task runs: loads its rows in one transaction, under a random attempt number."""

    address: LedgerAddress
    stage: Stage
    names: Sequence[str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Load the rows of one task."""
        from pyspark import TaskContext  # noqa: PLC0415 - only executors have one

        ready_worker()
        context = TaskContext.get()
        place = (context.partitionId() if context else 0) << _ROWS_OF_A_TASK
        attempt = secrets.randbits(63)
        count, ended, failure = 0, LoadEnded.LOADED, ""
        ledger = self.address.open()
        try:
            count = self._load(ledger.engine, batches, attempt, place)
        except (RowRefused, DoesNotFit) as error:
            ended, failure = LoadEnded.REFUSED, str(error)
        except SQLAlchemyError as error:
            ended, failure = self._failed(ledger, error)
        yield pa.RecordBatch.from_pylist(
            [{"attempt": attempt, "rows": count, "ended": ended, "failure": failure}], schema=_SCHEMA
        )

    def _failed(self, ledger: SqlLedger, error: SQLAlchemyError) -> tuple[LoadEnded, str]:
        """Return the kind and the text of a failure.

        The driver waits for an unavailable database, stops at a refused row, and retries after other failures.
        """
        try:
            away: TidegateError | None = ledger.passing(error, "loading rows")
        except LedgerUnavailable as unavailable:  # this process has never reached it
            away = unavailable
        if away:
            return LoadEnded.UNAVAILABLE, str(away)
        is_refused = fault_of(error).blame is Blame.RECORD
        return LoadEnded.REFUSED if is_refused else LoadEnded.FAILED, line_of(error)

    def _load(self, engine: Engine, batches: Iterable[Any], attempt: int, place: int) -> int:
        count = 0
        with engine.begin() as conn:
            for batch in batches:
                rows = fit(self.stage.layout, batch.rename_columns(list(self.names)))
                if rows.misfits:
                    raise RowRefused(str(rows.misfits[0]))
                self.stage.load(conn, attempt, place + count, rows)
                count += len(rows)
        return count
