"""`tidegate config show`: what holds, and who said so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tidegate.cli import ExitCode
from tidegate.cli import main as _registered  # noqa: F401
from tidegate.cli.options import app

from .golden import check_golden

PLANTED = "pl4nted"
FILE = f"""
ledger = "postgresql+psycopg://shop:{PLANTED}@db/shop"

[kafka]
bootstrap = "kafka-1:9092"
[kafka.client]
sasl.password = "${{KAFKA_PASSWORD}}"
client.id = "shop"

[listener]
on_error = "dead-letter"
retries = 3
start = "2026-11-01T00:00:00Z"

[sink.orders]
topics = ["orders", "returns"]
[sink.orders.into]
table = "orders"
key = ["id"]
"""
ENVIRON = {
    "KAFKA_PASSWORD": PLANTED,
    "TIDEGATE_KAFKA": "kafka-2:9092",
    "TIDEGATE_LISTENER__RETRIES": "5",
    "TIDEGATE_KAFKA__CLIENT__SSL_KEY_PASSWORD": PLANTED,
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tidegate.toml").write_text(FILE)


def invoke(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["config", "show", *arguments], env={"TIDEGATE_CONFIG": None, **environ})


def test_every_setting_is_shown_with_its_origin_and_without_secrets() -> None:
    for name, arguments in (("config_show.txt", ()), ("config_show.json", ("--json",))):
        done = invoke(*arguments, **ENVIRON)
        assert PLANTED not in done.output
        check_golden(name, done.stdout)


def test_the_environment_goes_before_the_file_and_the_file_before_the_default() -> None:
    told = json.loads(invoke("--json", **ENVIRON).stdout)["settings"]
    held = {each["key"]: (each["value"], each["origin"], each["where"]) for each in told}
    assert held["kafka.bootstrap"] == ("kafka-2:9092", "environment", "TIDEGATE_KAFKA")
    assert held["listener.retries"] == (5, "environment", "TIDEGATE_LISTENER__RETRIES")
    assert held["kafka.client.sasl.password"] == ("***", "file", "tidegate.toml")
    assert held["listener.on_error"] == ("dead-letter", "file", "tidegate.toml")
    assert held["listener.threads"] == (1, "default", None)
    assert held["sink.orders.topics"] == (["orders", "returns"], "file", "tidegate.toml")


def test_another_file_may_be_named_and_a_wrong_one_is_a_usage_error() -> None:
    Path("other.toml").write_text('kafka = "elsewhere:9092"')
    told = json.loads(invoke("--json", "--config", "other.toml").stdout)["settings"]
    assert {"key": "kafka.bootstrap", "value": "elsewhere:9092", "origin": "file", "where": "other.toml"} in told
    assert invoke("--config", "gone.toml").exit_code == ExitCode.CONFIGURATION
