"""Staged batches: executors load rows into a staging table, and one transaction of the driver moves them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from tidegate.core.errors import ConfigurationError, LedgerUnavailable, TidegateError
from tidegate.ledger import SqlLedger, SqlTransaction
from tidegate.spark.address import LedgerAddress
from tidegate.spark.workers import ready_worker
from tidegate.spark.writing import line_of
from tidegate.tables.fitting import fit
from tidegate.tables.layout import Layout
from tidegate.tables.staging import LostRows, Stage, create_stage, drop_stage, empty_stage, sweep_stages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LoadFailed", "RowRefused", "Staged", "Staging"]

_RESULT = "attempt long, rows long, kind string, failure string"
_SCHEMA = pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("kind", pa.string()), ("failure", pa.string())])
_ROWS_OF_A_TASK = 40  # bits


class LoadFailed(TidegateError):
    """Rows could not be loaded, or are not there any more: to try again may help."""


class RowRefused(TidegateError):
    """A row does not fit the table: to try again is of no use."""


_FAILURES: dict[str, type[TidegateError]] = {
    kind.__name__: kind for kind in (LoadFailed, RowRefused, LedgerUnavailable)
}


class Staged(NamedTuple):
    """Rows that wait in the staging table: which of its columns, under which attempts, how many."""

    stage: Stage
    names: tuple[str, ...]
    attempts: tuple[int, ...]
    total: int

    def move(self, tx: SqlTransaction) -> None:
        """Into their table, with the positions; all of them or nothing."""
        try:
            self.stage.move(tx.connection, self.names, self.attempts, self.total)
        except LostRows as lost:
            raise LoadFailed(str(lost)) from None


class Staging:
    """The staging table of one run of a pipeline, which nobody else uses; made when it is first needed."""

    def __init__(self, ledger: SqlLedger, group: str, address: LedgerAddress | None) -> None:
        self._ledger = ledger
        self._group = group
        self._address = address
        self._stage: Stage | None = None
        self._swept = False

    def load(self, rows: DataFrame, layout: Layout) -> Staged:
        """Have executors load the rows. Of tasks that were tried twice, only the attempts that are named count."""
        stage = self._emptied(layout)
        names = tuple(name for name in rows.columns if name in layout.by_name)
        numbered = rows.select(*(rows[f"`{name}`"] for name in names)).toDF(*(f"c{at}" for at in range(len(names))))
        assert self._address is not None  # noqa: S101 - or the driver writes
        load = _Load(self._address, stage, names)
        results = numbered.mapInArrow(load, _RESULT).collect()
        for result in results:
            if result.kind:
                raise _FAILURES[result.kind](result.failure)
        attempts = tuple(result.attempt for result in results)
        return Staged(stage, names, attempts, sum(result.rows for result in results))

    def close(self) -> None:
        """Remove the table."""
        if self._stage is not None:
            drop_stage(self._engine, self._stage.table)
            self._stage = None

    @property
    def _engine(self) -> Engine:
        return self._ledger.engine

    def _emptied(self, layout: Layout) -> Stage:
        """An empty table like the one that rows are for: a new one if that was altered, or if someone holds it."""
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
    """What an executor does: its rows, as they come, in a transaction of its own under a number of its own."""

    address: LedgerAddress
    stage: Stage
    names: Sequence[str]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Load the rows of one task."""
        from pyspark import TaskContext  # noqa: PLC0415 - there is one on executors only

        ready_worker()
        context = TaskContext.get()
        place = (context.partitionId() if context else 0) << _ROWS_OF_A_TASK
        attempt = secrets.randbits(63)
        count, kind, failure = 0, "", ""
        ledger = self.address.open()
        try:
            count = self._load(ledger.engine, batches, attempt, place)
        except RowRefused as error:
            kind, failure = RowRefused.__name__, str(error)
        except SQLAlchemyError as error:
            kind, failure = self._failed(ledger, error)
        yield pa.RecordBatch.from_pylist(
            [{"attempt": attempt, "rows": count, "kind": kind, "failure": failure}], schema=_SCHEMA
        )

    def _failed(self, ledger: SqlLedger, error: SQLAlchemyError) -> tuple[str, str]:
        """What the driver makes of it: a database that is away is waited for, other failures are tried again."""
        try:
            away: TidegateError | None = ledger.passing(error, "loading rows")
        except LedgerUnavailable as unavailable:  # it has never answered this process
            away = unavailable
        return (LedgerUnavailable.__name__, str(away)) if away else (LoadFailed.__name__, line_of(error))

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
