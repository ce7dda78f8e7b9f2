"""Tells what happens while it happens: a run that is ended from outside has no summary."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time

import pytest

LONG = 120.0  # seconds after which a test that still runs is named
LOOK = 15.0  # seconds between looks
WHOLE = 70 * 60.0  # seconds after which `make test` has failed: whatever still runs shows its stacks and ends


class Watched:
    """A plugin of each process that runs tests: a test that hangs shows all stacks, and ends the process."""

    def __init__(self, *, ends: bool) -> None:
        """``ends``: after :data:`WHOLE`, which `make chaos` takes longer than."""
        self._stderr = os.dup(sys.__stderr__.fileno()) if sys.__stderr__ is not None else 2
        if ends:
            timer = threading.Timer(WHOLE, os.abort)
            timer.daemon = True
            timer.start()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        """pytest takes its watch off a test that has failed, whose end may well hang."""
        seconds = float(node.config.getini("faulthandler_timeout"))
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._stderr)


class Running:
    """A plugin of the process that the others report to: failures are told at once, and tests that run for long."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._began = time.monotonic()
        self._since: dict[str, float] = {}
        self._named: dict[str, float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="running", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        with self._lock:
            self._since[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        with self._lock:
            self._since.pop(nodeid, None)
            self._named.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has failed: the summary may never come."""
        if report.failed:
            self._say(f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}")

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK)
            now = time.monotonic()
            with self._lock:
                late = [test for test, since in self._since.items() if now - self._named.get(test, since) > LONG]
                self._named.update(dict.fromkeys(late, now))
                lines = [f"still running after {now - self._since[test]:.0f} s: {test}" for test in late]
                left = list(self._since)
            for line in lines:
                self._say(line)
            if self._ends and now - self._began > WHOLE:
                self._say(f"the run has taken {now - self._began:.0f} s; these still run: {left}")
                time.sleep(LOOK)  # for the stacks of the workers
                os._exit(1)

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        sys.stderr.write(f"\n[{minutes}:{seconds:02}] {text}\n")
        sys.stderr.flush()
