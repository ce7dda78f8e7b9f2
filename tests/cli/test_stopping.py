"""Signals while something runs: the first asks it to stop, the second ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tidegate.cli.pipeline_run import run_until_stopped

PROGRAM = """
import signal, sys, threading
from tidegate.cli.pipeline_run import run_until_stopped

asked, told = threading.Event(), threading.Event()

def work():
    print("working", flush=True)
    asked.wait()
    if sys.argv[1] == "deaf":
        print("deaf", flush=True)
        threading.Event().wait()
    return "finished"

print(run_until_stopped(work, asked.set), flush=True)
"""


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, request.param], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        yield process
        process.kill()


@pytest.mark.parametrize("program", ["willing"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_and_what_is_under_way_is_finished(
    program: subprocess.Popen[str], number: signal.Signals
) -> None:
    program.send_signal(number)
    assert program.communicate(timeout=90) == ("finished\n", None)
    assert program.returncode == 0


@pytest.mark.parametrize("program", ["deaf"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(program: subprocess.Popen[str], number: signal.Signals) -> None:
    program.send_signal(number)
    assert program.stdout is not None
    assert program.stdout.readline() == "deaf\n"
    program.send_signal(number)
    assert program.wait(90) == -number


def test_an_error_of_the_work_is_raised_here_and_the_handlers_are_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        assert signal.getsignal(signal.SIGINT) is not before
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        run_until_stopped(work, lambda: None)
    assert signal.getsignal(signal.SIGINT) is before
