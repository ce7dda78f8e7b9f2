"""`tidegate run` in one process: what it loads, what it says, and how it ends."""

from __future__ import annotations

import signal
import socket
import tomllib
import urllib.request
from importlib.metadata import version
from pathlib import Path

import pytest

from tidegate.cli import ExitCode, main

from .conftest import Run, Start

PLANTED = "pl4nted"


def test_the_entry_point_of_the_package_is_the_command_line() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"tidegate": "tidegate.cli:main"}
    assert callable(main)


def test_the_version_is_shown(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"tidegate {version('tidegate')}\n")


def test_help_names_every_option(run: Run) -> None:
    shown = run("run", "--help").stdout
    for option in (
        "--workers",
        "--until-caught-up",
        "--config",
        "--log-level",
        "--metrics-port",
        "--debug",
        "--metrics-host",
    ):
        assert option in shown
    assert "--worker " not in shown


def test_an_app_is_run_and_told_whether_to_stop_at_the_end(run: Run) -> None:
    assert run("run", "shop:shows").stdout.startswith("forever None")
    assert run("run", "shop:shows", "--until-caught-up").stdout.startswith("caught up None")


@pytest.mark.parametrize(
    ("app", "code", "said"),
    [
        ("returns_nothing", ExitCode.OK, ""),
        ("returns_7", 7, ""),
        ("stops", ExitCode.FAILED, "error: group 'billing', orders[0]@7: the handler failed\n"),
        ("raises", ExitCode.FAILED, "error: ValueError: cannot reach mysql+pymysql://me:***@db/shop\n"),
        ("misconfigured", ExitCode.CONFIGURATION, "error: no such thing\n"),
        ("no_ledger", ExitCode.UNREACHABLE, "error: the ledger is gone\n"),
        ("no_broker", ExitCode.UNREACHABLE, "error: the broker is gone\n"),
        ("interrupted", ExitCode.INTERRUPTED, "error: interrupted\n"),
    ],
)
def test_the_end_of_an_app_is_told_in_one_line_and_by_the_exit_code(run: Run, app: str, code: int, said: str) -> None:
    done = run("run", f"shop:{app}")
    assert (done.returncode, done.stderr) == (code, said)


def test_a_traceback_is_shown_on_request_and_without_passwords(run: Run) -> None:
    done = run("run", "shop:raises", "--debug")
    assert "Traceback" in done.stderr
    assert PLANTED not in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop", "'shop' does not name an app; write MODULE:APP, such as shop:app"),
        (":app", "':app' does not name an app"),
        ("shpo:app", "there is no module 'shpo' in"),
        ("shop.part:app", "there is no module 'shop.part' in"),
        ("shop:ap", "'shop' has no 'ap'; did you mean 'app'?"),
        ("shop:number", "shop:number is not an App but of type int"),
        ("shop:App", "shop:App is a class; name an instance of it"),
        ("broken:app", "the module 'broken' cannot be imported: NameError: name 'nothing' is not defined"),
        ("needy:app", "the module 'needy' cannot be imported: ModuleNotFoundError: No module named 'not_there'"),
        ("unsafe:app", "the client setting 'group.id' is refused"),
    ],
)
def test_what_cannot_be_loaded_is_a_usage_error_that_says_why(
    run: Run, directory: Path, target: str, said: str
) -> None:
    (directory / "broken.py").write_text("app = nothing")
    (directory / "needy.py").write_text("import not_there")
    (directory / "unsafe.py").write_text(
        "from tidegate.kafka.config import refuse_unsafe\nrefuse_unsafe({'group.id': 1})"
    )
    done = run("run", target)
    assert done.returncode == ExitCode.CONFIGURATION
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["run"], ["run", "shop:app", "--workers", "0"], ["walk"], ["run", "a:b", "--x"]])
def test_a_wrong_command_line_is_a_usage_error(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).returncode == ExitCode.CONFIGURATION


def test_the_settings_file_reaches_the_app(run: Run, directory: Path) -> None:
    (directory / "other.toml").write_text('kafka = "x:1"')
    assert f"forever {directory / 'other.toml'}" in run("run", "shop:shows", "--config", "other.toml").stdout


def test_a_wrong_settings_file_is_told_before_anything_is_run(run: Run, directory: Path) -> None:
    (directory / "other.toml").write_text(f'legder = "redis://:{PLANTED}@host"')
    done = run("run", "shop:shows", "--config", "other.toml")
    assert (done.returncode, done.stdout) == (ExitCode.CONFIGURATION, "")
    assert done.stderr == "error: other.toml: legder: there is no such setting; did you mean ledger?\n"
    assert run("run", "shop:shows", "--config", "gone.toml").returncode == ExitCode.CONFIGURATION


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_app_and_its_events_are_logged(start: Start, number: signal.Signals) -> None:
    process = start("run", "shop:app")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")
    process.send_signal(number)
    out, err = process.communicate(timeout=90)
    assert process.returncode == ExitCode.OK
    assert f"signal {number.name}" in out
    assert "INFO    tidegate: group 'billing': paused by an operator" in err


def test_the_log_level_is_heeded(start: Start) -> None:
    process = start("run", "shop:app", "--log-level", "warning")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    assert process.communicate(timeout=90)[1] == ""


def test_metrics_are_served(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    process = start("run", "shop:app", "--metrics-port", str(port))
    assert process.stdout is not None
    process.stdout.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert 'tidegate_paused{group="billing"} 1.0' in answer.read().decode()
    process.terminate()
    process.communicate(timeout=90)


def test_a_port_that_is_taken_is_a_usage_error(run: Run) -> None:
    with socket.create_server(("", 0)) as server:
        done = run("run", "shop:app", "--metrics-port", str(server.getsockname()[1]))
    assert done.returncode == ExitCode.CONFIGURATION
    assert "metrics cannot be served on port" in done.stderr
