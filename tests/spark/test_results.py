"""What a task reports to the driver: a closed choice, which survives the way through Spark."""

from __future__ import annotations

import pytest

from tidegate.core.records import TopicPartition
from tidegate.errors import (
    CommitRefused,
    Fenced,
    LedgerBusy,
    LedgerConflict,
    LedgerUnavailable,
    NotCommitted,
    PipelineStopped,
    StatementTooLong,
    TidegateError,
    WritesRefused,
)
from tidegate.spark.claims import AWAY
from tidegate.spark.driver import FAILURES
from tidegate.spark.executor import Ended, TaskResult
from tidegate.tables.format import NewFields
from tidegate.tables.writer import TableAltered

SOURCE = TopicPartition("orders", 3)


def sent(result: TaskResult) -> TaskResult:
    """The result as the driver gets it: its row holds texts and numbers only."""
    (row,) = result.batch().to_pylist()
    return TaskResult.of(row.values())


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LedgerConflict("two of them"), LedgerConflict),
        (LedgerUnavailable("away"), LedgerUnavailable),
        (WritesRefused("read-only"), LedgerUnavailable),
        (LedgerBusy("locked"), LedgerUnavailable),
        (NotCommitted("unknown"), LedgerUnavailable),
        (StatementTooLong("1 GiB"), StatementTooLong),
        (CommitRefused("a constraint"), PipelineStopped),
        (TidegateError("something"), PipelineStopped),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else type(value).__name__,
)
def test_the_driver_raises_what_a_failed_task_reports(error: TidegateError, raised: type[TidegateError]) -> None:
    result = sent(TaskResult.failed(SOURCE, error))
    assert FAILURES[result.ended] is raised
    assert (result.source, result.detail) == (SOURCE, str(error))


def test_every_error_that_passes_by_itself_is_waited_for() -> None:
    kinds = [FAILURES[TaskResult.failed(SOURCE, kind("away")).ended] for kind in AWAY]
    assert all(issubclass(kind, AWAY) for kind in kinds)


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (Fenced("claimed by another", {}), Ended.FENCED),
        (TableAltered("altered"), Ended.OUTDATED),
        (NewFields(), Ended.OUTDATED),
    ],
    ids=lambda value: value.value if isinstance(value, Ended) else type(value).__name__,
)
def test_a_task_that_was_fenced_or_has_an_old_table_has_not_failed(error: Exception, ended: Ended) -> None:
    assert sent(TaskResult.failed(SOURCE, error)).ended is ended
    assert ended not in FAILURES


def test_an_end_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="'finished' is not a valid Ended"):
        TaskResult.of(("orders", 3, "finished"))
