"""Secrets planted in every URL and setting appear in no log, error, metric or process listing, whatever fails."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.ports import refused_port

from tidegate.sandbox import Kafka, Postgres
from tidegate.sandbox.database import Database
from tidegate.sandbox.ports import free_port

SECRET = "hunter2-planted"

APP = """
from tidegate import App, Record

app = App()

@app.listener("orders", group="billing")
def bill(record: Record) -> None:
    raise ValueError("no")
"""

SETTINGS = """
[kafka]
bootstrap = "{kafka}"

[kafka.client]
"sasl.password" = "{secret}"
"sasl.username" = "shop"
"ssl.key.password" = "{secret}"

[ledger]
url = "{ledger}"

[ledger.limits]
hold = 1
lock_wait = 2
"""


def run(folder: Path, kafka: str, ledger: str, *, seconds: float = 25) -> str:
    """Everything that a run tells: what it prints, and what the system lists of its process."""
    (folder / "shop.py").write_text(APP)
    (folder / "tidegate.toml").write_text(SETTINGS.format(kafka=kafka, ledger=ledger, secret=SECRET))
    command = [sys.executable, "-m", "tidegate.cli", "run", "shop:app", "--log-level", "debug", "--debug"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        listing = Path(f"/proc/{process.pid}/cmdline").read_text()
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            told, _ = process.communicate(timeout=60)
    return listing + told


@pytest.fixture(params=["mariadb", "mysql", "postgres", "redis_server"])
def server(request: pytest.FixtureRequest) -> Database:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Database)
    return found


def test_a_wrong_password_of_the_ledger_is_not_told(server: Database, kafka: Kafka, tmp_path: Path) -> None:
    told = run(tmp_path, kafka.bootstrap, server.url_for(password=SECRET))
    assert "cannot open the ledger" in told or "refused the login" in told
    assert SECRET not in told


def test_the_password_of_a_ledger_that_is_not_there_is_not_told(server: Database, kafka: Kafka, tmp_path: Path) -> None:
    told = run(tmp_path, kafka.bootstrap, server.url_for(password=SECRET, port=refused_port()))
    assert "cannot open the ledger" in told
    assert SECRET not in told


def test_the_password_of_a_broker_that_is_not_there_is_not_told(tmp_path: Path) -> None:
    told = run(tmp_path, f"127.0.0.1:{refused_port()}", f"sqlite:///{tmp_path / 'shop.db'}", seconds=8)
    assert "billing" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    "ledger", [f"nosuch://u:{SECRET}@localhost/x", f"postgresql+psycopg://u:{SECRET}@localhost:port/x", SECRET]
)
def test_an_address_that_is_none_is_not_repeated(ledger: str, kafka: Kafka, tmp_path: Path) -> None:
    told = run(tmp_path, kafka.bootstrap, ledger)
    assert "ledger" in told
    assert SECRET not in told


def test_metrics_and_the_arguments_of_workers_tell_nothing(postgres: Postgres, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    down = f"127.0.0.1:{refused_port()}"
    (tmp_path / "tidegate.toml").write_text(SETTINGS.format(kafka=down, ledger=postgres.url, secret=SECRET))
    port = free_port()
    command = [sys.executable, "-m", "tidegate.cli", "run", "shop:app", "--workers", "2", "--metrics-port", str(port)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            metrics, deadline = "", time.monotonic() + 30
            while not metrics and time.monotonic() < deadline:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as page:
                        metrics = page.read().decode()
                except OSError:
                    time.sleep(0.2)
            listing = "".join(line for line in map(_arguments, Path("/proc").glob("[0-9]*")) if "shop:app" in line)
        finally:
            process.terminate()
            told, _ = process.communicate(timeout=60)
    assert metrics
    assert listing.count("shop:app") >= 3
    assert SECRET not in metrics + listing + told
    assert postgres.password not in metrics + listing + told


def _arguments(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
