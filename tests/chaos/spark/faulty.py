"""The commits of a pipeline with traps around them: imported by drivers, and by executors along with their tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql.connections
from pyspark import TaskContext
from tests.chaos.spark.traps import Place, Traps

from tidegate.core.policies import Delivery
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced
from tidegate.ledger import Ledger, Outcome, Result, SqlTransaction
from tidegate.ledger.ledger import deliver as genuine
from tidegate.spark import driver, executor, staging

FOLDER = "TIDEGATE_CHAOS_FOLDER"


def traps() -> Traps:
    return Traps(Path(os.environ[FOLDER]))


def in_task() -> bool:
    return TaskContext.get() is not None


def deliver(
    ledger: Ledger[SqlTransaction],
    delivery: Delivery,
    claims: Mapping[TopicPartition, Claim],
    spans: Sequence[Span],
    write: Callable[[SqlTransaction], object],
    **options: Any,
) -> Result:
    """What drivers and tasks call to commit; it goes well, or it is fenced, or it fails: that is noted here."""
    where = "task" if in_task() else "driver"
    covered = [[span.partition.partition, span.start, span.end] for span in spans]
    traps().spring(Place(f"{where}-before"), spans=covered)

    def written(tx: SqlTransaction) -> None:
        write(tx)
        traps().spring(Place(f"{where}-loading"), spans=covered, after="the rows")

    try:
        result = genuine(ledger, delivery, claims, spans, written, **options)
    except Fenced as fenced:
        traps().note("fenced", where=where, spans=covered, reason=str(fenced))
        raise
    outcome = result.outcome.name
    traps().note("committed", where=where, spans=covered, outcome=outcome, unknown=result.unknown_outcomes)
    if in_task() and result.outcome is Outcome.COMMITTED:
        traps().spring(Place.TASK_AFTER, spans=covered)
    return result


@dataclass(frozen=True)
class FaultyCommit(executor.ExecutorCommit):
    """Brings this module to the executors."""


@dataclass(frozen=True)
class FaultyLoad(staging._Load):
    """A load into the staging table with traps around it."""

    def _load(self, batches: Iterable[Any], place: int) -> dict[str, Any]:
        traps().spring(Place.TASK_BEFORE)
        result = super()._load(batches, place)
        traps().note("loaded", attempt=result["attempt"], rows=result["rows"])
        traps().spring(Place.TASK_AFTER, attempt=result["attempt"])
        return result


def _copy(self: psycopg.Copy, buffer: Any) -> None:
    """Half of the rows are with the server."""
    middle = len(buffer) // 2
    _genuine_copy(self, buffer[:middle])
    if in_task():
        traps().spring(Place.TASK_LOADING, after="a part of COPY")
    _genuine_copy(self, buffer[middle:])


def _packet(self: Any, payload: bytes) -> None:
    """An empty packet ends the rows of LOAD DATA LOCAL."""
    if not payload and in_task():
        traps().spring(Place.TASK_LOADING, after="a part of LOAD DATA")
    _genuine_packet(self, payload)


_genuine_copy = psycopg.Copy.write
_genuine_packet = pymysql.connections.Connection.write_packet


def install() -> None:
    """In whatever process this is imported: in those of the ordeal alone."""
    executor.deliver = driver.deliver = deliver  # type: ignore[attr-defined]
    driver.ExecutorCommit = FaultyCommit  # type: ignore[misc, attr-defined]
    staging._Load = FaultyLoad
    psycopg.Copy.write = _copy  # type: ignore[method-assign]
    pymysql.connections.Connection.write_packet = _packet


if FOLDER in os.environ:
    install()
