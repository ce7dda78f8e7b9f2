"""`tidegate run --workers N`: processes that start, stop and fail together."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ports import two_free_ports

from tidegate.cli import ExitCode

from .conftest import Run, Start

PLANTED = "pl4nted"


def ready(process: subprocess.Popen[str], count: int) -> list[int]:
    """Wait until so many workers are ready, and return their process ids."""
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(count)]
    assert {line[0] for line in lines} == {"ready"}
    return [int(line[1]) for line in lines]


def terminate(process: subprocess.Popen[str]) -> None:
    process.terminate()


def interrupt_at_the_terminal(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


@pytest.mark.parametrize("stop", [terminate, interrupt_at_the_terminal])
def test_a_signal_stops_every_worker_once(start: Start, stop: Callable[[subprocess.Popen[str]], None]) -> None:
    process = start("run", "shop:waits", "--workers", "3")
    workers = ready(process, 3)
    assert len({process.pid, *workers}) == 4
    stop(process)
    out, err = process.communicate(timeout=90)
    assert (process.returncode, err) == (ExitCode.OK, "")
    assert out.count("signal SIGTERM") == 3
    assert {f"stopped {worker}" for worker in workers} <= set(out.splitlines())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, 130)])
def test_a_second_signal_kills_them(start: Start, number: signal.Signals, code: int) -> None:
    process = start("run", "shop:stubborn", "--workers", "2")
    ready(process, 2)
    process.send_signal(number)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["signal SIGTERM\n"] * 2
    process.send_signal(number)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == code
    assert "stopped" not in out


def test_if_one_fails_the_others_are_stopped_and_its_code_is_that_of_all(start: Start) -> None:
    process = start("run", "shop:fails_first", "--workers", "2")
    ready(process, 1)
    out, err = process.communicate(timeout=90)
    assert process.returncode == ExitCode.UNREACHABLE
    assert "stopped" in out
    assert err == "error: the ledger is gone\nerror: a worker ended with exit code 3; stopping the others\n"


def test_a_worker_that_is_killed_counts_as_failed(start: Start) -> None:
    process = start("run", "shop:waits", "--workers", "2")
    victim, other = ready(process, 2)
    os.kill(victim, signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 137
    assert f"stopped {other}" in out


def test_workers_stop_when_the_process_that_started_them_is_killed(start: Start) -> None:
    process = start("run", "shop:waits", "--workers", "2")
    workers = ready(process, 2)
    process.kill()
    out, _ = process.communicate(timeout=90)  # ends when no worker has its output open any more
    assert {f"stopped {worker}" for worker in workers} <= set(out.splitlines())


def test_workers_that_have_caught_up_end_the_whole(run: Run, directory: Path) -> None:
    (directory / "other.toml").write_text('kafka = "x:1"')
    done = run("run", "shop:shows", "--workers", "2", "--until-caught-up", "--config", "other.toml", "--debug")
    assert done.returncode == ExitCode.OK
    before, after = f"caught up {directory / 'other.toml'} run shop:shows --worker", "--log-level info"
    expected = [f"{before} {number} {after} --until-caught-up --debug" for number in range(2)]
    assert sorted(done.stdout.splitlines()) == expected


def test_no_secret_is_in_the_arguments_of_a_process(start: Start) -> None:
    secrets = {"TIDEGATE_LEDGER": f"redis://:{PLANTED}@h", "TIDEGATE_KAFKA__CLIENT__SASL_PASSWORD": PLANTED}
    process = start("run", "shop:waits", "--workers", "2", **secrets)
    for pid in (process.pid, *ready(process, 2)):
        assert PLANTED not in Path(f"/proc/{pid}/cmdline").read_text()
    process.terminate()
    process.communicate(timeout=90)


def test_each_worker_serves_its_metrics_on_a_port_of_its_own(run: Run) -> None:
    first = two_free_ports()
    done = run("run", "shop:shows", "--workers", "2", "--metrics-port", str(first))
    assert {line.rpartition(" ")[2] for line in done.stdout.splitlines()} == {str(first), str(first + 1)}
    assert run("run", "shop:shows", "--workers", "2", "--metrics-port", "65535").returncode == ExitCode.CONFIGURATION
