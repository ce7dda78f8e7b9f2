"""What each test costs: seconds of processor time, those of the processes below it included."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

SHOWN = 40
TICKS = os.sysconf("SC_CLK_TCK")
PROPERTY = "seconds"


def _spent() -> float:
    """Processor time of this process and of all below it, those that have ended and were waited for included."""
    return time.process_time() + sum(map(_of, _below(os.getpid()))) + sum(os.times()[2:4])


def _of(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0.0


def _below(pid: int) -> list[int]:
    found = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


class Measured:
    """A plugin of each process that runs tests: notes for each test what it took."""

    def __init__(self) -> None:
        self._began = (0.0, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """The test begins."""
        self._began = (_spent(), time.monotonic())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """The test and its fixtures have ended."""
        report = yield
        if call.when == "teardown":
            spent, began = self._began
            report.user_properties.append((PROPERTY, (round(_spent() - spent, 3), round(time.monotonic() - began, 3))))
        return report


class Costs:
    """A plugin of the process that reports: the tests and files that take the most."""

    def __init__(self) -> None:
        self._tests: list[tuple[float, float, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has ended."""
        if report.when == "teardown":
            cost, took = dict(report.user_properties)[PROPERTY]
            self._tests.append((cost, took, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the sums."""
        files: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for cost, took, name in self._tests:
            for index, value in enumerate((cost, took, 1)):
                files[name.partition("::")[0]][index] += value
        terminalreporter.section("processor time and clock, in seconds")
        for file, (cost, took, count) in sorted(files.items(), key=lambda item: -item[1][0])[:SHOWN]:
            terminalreporter.line(f"{cost:8.1f} {took:8.1f} {file} ({count:.0f} tests)")
        terminalreporter.line("")
        for cost, took, name in sorted(self._tests, reverse=True)[:SHOWN]:
            terminalreporter.line(f"{cost:8.1f} {took:8.1f} {name}")
        total = sum(test[0] for test in self._tests)
        terminalreporter.line(f"{total:8.1f} {sum(test[1] for test in self._tests):8.1f} all")
