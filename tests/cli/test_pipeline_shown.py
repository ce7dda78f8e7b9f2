"""What a pipeline shows: figures on a terminal, lines in a log, a summary at its end."""

from __future__ import annotations

import io
import json
import logging

import pytest
from rich.console import Console

from tidegate import TopicPartition
from tidegate.cli.pipeline import as_json, summary
from tidegate.cli.pipeline_run import LiveProgress, LoggedProgress, progress_for
from tidegate.spark import BatchReport, Report

FIRST = BatchReport(1, "driver", records=1000, rows=990, dead_letters=10, lag=5000, seconds=0.5)
SECOND = BatchReport(2, "partition", records=4000, rows=4000, dead_letters=0, lag=1000, seconds=1.0, fenced=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)


def drawn(progress: LiveProgress) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(progress.drawn())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_before_the_first_batch_it_says_what_is_going_on() -> None:
    assert "starting Spark" in drawn(LiveProgress(terminal(), "etl", "orders → table"))


def test_figures_are_of_the_whole_run_and_of_the_last_batch() -> None:
    clock = Clock()
    progress = LiveProgress(terminal(), "etl", "orders → table", clock)
    clock.now += 3722
    progress(FIRST)
    clock.now += 1.5
    progress(SECOND)
    shown = drawn(progress)
    for part in ("etl", "orders → table", "1:02:03", "5,000 records", "2,500 a second", "1,000 lag", "4,990 rows"):
        assert part in shown
    for part in ("1.00 s, partition batch", "10 dead letters", "1 fenced", "▅█"):
        assert part in shown


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = LiveProgress(terminal(), "etl", "orders → table", clock)
    progress(SECOND)
    clock.now += 60
    progress(FIRST)
    assert "100 a second" in drawn(progress)
    clock.now += 60
    assert " 0 a second" in drawn(progress)


def test_log_lines_go_above_the_figures_and_back_to_where_they_went() -> None:
    console, root = terminal(), logging.getLogger()
    before = root.handlers
    with LiveProgress(console, "etl", "orders → table") as progress:
        progress(FIRST)
        logging.getLogger("tidegate").warning("a line with [brackets]")
    assert root.handlers is before
    assert isinstance(console.file, io.StringIO)
    assert "a line with [brackets]" in console.file.getvalue()
    assert "1,000 records" in console.file.getvalue()


def test_without_a_terminal_a_line_sums_up_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    clock = Clock()
    with LoggedProgress("etl", clock) as progress:
        progress(FIRST)
        progress(SECOND)
        clock.now += 10
        progress(SECOND)
        progress(FIRST)
    assert caplog.messages == [
        "group 'etl': 1 batches: 1000 records, 990 rows, 10 dead letters, lag 5000",
        "group 'etl': 2 batches: 8000 records, 8000 rows, 0 dead letters, lag 1000",
        "group 'etl': 1 batches: 1000 records, 990 rows, 10 dead letters, lag 5000",
    ]


def test_the_console_decides() -> None:
    assert isinstance(progress_for(terminal(), "etl", ""), LiveProgress)
    assert isinstance(progress_for(Console(file=io.StringIO()), "etl", ""), LoggedProgress)


def report(partitions: int = 2) -> Report:
    made = Report("etl", seconds=2.5, stopped="caught up")
    made.add(FIRST)
    made.add(SECOND)
    made.positions = {TopicPartition("orders", number): 2500 + number for number in range(partitions)}
    return made


def test_the_summary_is_readable() -> None:
    assert summary(report()).splitlines() == [
        "etl: caught up",
        "  records       5,000 in 2 batches and 2.5 s: 2,000 a second",
        "  rows          4,990",
        "  dead letters  10",
        "  lag           1,000",
        "  fenced        1, already done 0",
        "  positions     orders[0] 2,500",
        "                orders[1] 2,501",
    ]
    assert summary(report(100)).splitlines()[-1] == "                and 88 more"


def test_the_report_is_json() -> None:
    told = json.loads(as_json(report()))
    assert told["positions"][1] == {"topic": "orders", "partition": 1, "position": 2501}
    assert (told["group"], told["records"], told["stopped"]) == ("etl", 5000, "caught up")
