"""``tidegate sandbox`` and ``tidegate topics create``: servers that later commands in the folder find by themselves."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import redis

from tidegate import App
from tidegate.cli import ExitCode
from tidegate.cli.sandbox import SandboxFile, Setting
from tidegate.errors import ConfigurationError
from tidegate.sandbox import Kafka
from tidegate.sandbox.ports import free_port
from tidegate.settings import KafkaSettings, Settings

from .conftest import Run, Start

CLUSTER = Setting("kafka", "bootstrap", "localhost:9092")
CREATES = Setting("kafka", "create_topics", value=True, is_suggestion=True)
LEDGER = Setting("ledger", "url", "sqlite:///shop.db", is_suggestion=True)
READY = "Ctrl-C ends it"

SHOP = """
from tidegate import App, Record
app = App()

@app.listener("{topic}", group="shop")
def take(record: Record) -> None:
    print(record.value)
"""


def until(process: subprocess.Popen[str], text: str) -> str:
    """Read what it prints up to the line that begins with the text."""
    printed = ""
    for line in process.stdout:
        printed += line
        if line.startswith(text):
            return printed
    raise AssertionError(printed + process.stderr.read())


def test_a_new_file_names_the_servers_and_is_read_by_the_settings(tmp_path: Path) -> None:
    file = SandboxFile(tmp_path / "tidegate.toml")
    assert file.write(file.merged([LEDGER, CLUSTER, CREATES]), force=False).startswith("wrote ")
    said = Settings.load(file.path, {})
    assert (said.kafka.bootstrap, said.kafka.create_topics, said.ledger.url) == (
        "localhost:9092",
        True,
        "sqlite:///shop.db",
    )
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert "already" in file.write(file.merged([LEDGER, CLUSTER, CREATES]), force=False)


def test_a_renewed_file_keeps_what_the_user_has_added(tmp_path: Path) -> None:
    file = SandboxFile(tmp_path / "tidegate.toml")
    file.write(file.merged([LEDGER, CLUSTER, CREATES], ["redis is at redis://:one@localhost"]), force=False)
    text = file.path.read_text().replace("[kafka]\n", "[kafka]\nclient = { linger.ms = 5 }  # mine\n")
    file.path.write_text(text + "\n[listener]\nretries = 3\n")
    moved = Setting("kafka", "bootstrap", "localhost:19092")
    assert file.write(file.merged([LEDGER, moved, CREATES]), force=False).startswith("renewed ")
    said = Settings.load(file.path, {})
    assert (said.kafka.bootstrap, said.listener.retries) == ("localhost:19092", 3)
    assert dict(said.kafka.client) == {"linger.ms": 5}
    assert "redis" not in file.path.read_text()


@pytest.mark.parametrize(
    "users",
    [
        "[kafka.client]\nlinger.ms = 5\n",
        "[ledger.limits]\nhold = 5\n[listener]\nretries = 1\n",
        "[ kafka ] # mine\nclient.linger.ms = 5\n",
        "ledger.prefix = 'my_'\n",
        "kafka = 'localhost:9092'\nledger = 'sqlite:///mine.db'\n",
    ],
)
def test_what_is_missing_is_added_to_the_users_file(tmp_path: Path, users: str) -> None:
    file = SandboxFile(tmp_path / "tidegate.toml")
    file.path.write_text(users)
    for _ in range(2):
        text = file.merged([LEDGER, CLUSTER, CREATES])
        file.write(text, force=False)
        said = Settings.load(file.path, {})
        assert said.kafka.bootstrap == "localhost:9092"
        assert said.ledger.url == ("sqlite:///mine.db" if "mine.db" in users else "sqlite:///shop.db")
        kept = [line for line in text.splitlines() if not line.endswith("# sandbox")]
        assert [line for line in users.splitlines() if line in kept] == users.splitlines()


@pytest.mark.parametrize("users", ["kafka = 'kafka-1:9092'\n", "[kafka]\nbootstrap = 'kafka-1:9092'\n"])
def test_another_cluster_in_the_users_file_is_an_error_and_the_file_stays(tmp_path: Path, users: str) -> None:
    file = SandboxFile(tmp_path / "tidegate.toml")
    file.path.write_text(users)
    with pytest.raises(ConfigurationError, match="names another cluster; .*--force") as failed:
        file.merged([LEDGER, CLUSTER, CREATES])
    assert "kafka-1" not in str(failed.value)
    assert file.path.read_text() == users


def test_force_keeps_the_old_file_aside(tmp_path: Path) -> None:
    file = SandboxFile(tmp_path / "tidegate.toml")
    file.path.write_text("kafka = 'kafka-1:9092'\n")
    assert "tidegate.toml.before" in file.write("ledger = 'sqlite:///shop.db'\n", force=True)
    assert (tmp_path / "tidegate.toml.before").read_text() == "kafka = 'kafka-1:9092'\n"
    assert tomllib.loads(file.path.read_text()) == {"ledger": "sqlite:///shop.db"}


def test_a_taken_port_is_named_with_its_process_and_nothing_is_started(run: Run, directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("sandbox", "redis", "--port", f"redis={port}")
    assert done.returncode == ExitCode.CONFIGURATION
    assert done.stderr.startswith(f"error: Redis cannot start: port {port} is taken by process {os.getpid()} (")
    assert "--port redis=" in done.stderr
    assert not (directory / "tidegate.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["mariadb", "mysql"],
            "mariadb and mysql would both use port 3306; give one of them another: --port mysql=3307",
        ),
        (["redis", "--port", "redis"], "--port redis: expected SERVER=N"),
        (["redis", "--port", "redis=70000"], "--port redis=70000: expected SERVER=N"),
        (["redis", "--port", "kafka=9092"], "kafka is not one of the servers to start"),
    ],
)
def test_a_wrong_port_is_an_error(run: Run, arguments: list[str], told: str) -> None:
    done = run("sandbox", *arguments)
    assert (done.returncode, told in done.stderr) == (ExitCode.CONFIGURATION, True), done.stderr


def test_a_database_keeps_its_data_and_password_and_the_folder_has_one_sandbox(
    start: Start, run: Run, directory: Path
) -> None:
    arguments = ("sandbox", "redis", "--port", f"redis={free_port()}")
    for value in (None, b"kept"):
        process = start(*arguments)
        printed = until(process, READY)
        url = Settings.load(directory / "tidegate.toml", {}).ledger.url
        assert url is not None and ":***@" in printed
        with redis.Redis.from_url(url) as client:
            assert client.get("mine") == value
            client.set("mine", b"kept")
        second = run(*arguments)
        assert (second.returncode, f"as process {process.pid};" in second.stderr) == (ExitCode.CONFIGURATION, True)
        process.send_signal(signal.SIGINT if value is None else signal.SIGTERM)
        rest, errors = process.communicate(timeout=30)
        assert (process.returncode, rest, errors) == (ExitCode.OK, "stopped; the data is in .tidegate\n", "")


def test_in_a_sandbox_commands_work_as_typed_and_topics_that_an_app_names_appear(
    start: Start, run: Run, directory: Path
) -> None:
    process = start("sandbox", "--port", f"kafka={free_port()}")
    until(process, READY)
    made = run("topics", "create", "made", "--partitions", "3", "--config", "retention.ms=86400000")
    assert (made.returncode, made.stdout) == (0, "created made with 3 partitions\n")
    assert "retention.ms = 86400000" in run("topics", "describe", "made").stdout
    again = run("topics", "create", "made")
    assert (again.returncode, "there is a topic made already" in again.stderr) == (ExitCode.CONFIGURATION, True)
    (directory / "store.py").write_text(SHOP.format(topic="named"))
    for said in (True, False):
        done = run("run", "store:app", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        assert ("topic named did not exist: created it with 4 partitions" in done.stderr) is said
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == ExitCode.OK


@pytest.mark.parametrize(
    ("said", "address", "creates"),
    [
        ({"bootstrap": "here:9092", "create_topics": True}, "here:9092", True),
        ({"bootstrap": "here:9092", "create_topics": True}, "there:9092", False),
        ({"bootstrap": "here:9092"}, "here:9092", False),
        ({"create_topics": True}, "here:9092", False),
    ],
)
def test_topics_are_created_only_where_the_settings_of_that_cluster_allow_it(
    said: dict[str, Any], address: str, creates: bool
) -> None:
    assert App(address, settings=Settings(kafka=KafkaSettings(**said))).creates_topics is creates


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["not/allowed"], "is not a Kafka topic name"),
        (["weak", "--replication", "7"], "topic weak was not created: there are fewer brokers than replicas"),
        (["wrong", "--config", "no.such=1"], "topic wrong was not created: a setting is not one of a topic"),
        (["wrong", "--config", "retention.ms"], "--config retention.ms: expected KEY=VALUE"),
    ],
)
def test_a_topic_that_cannot_be_created_says_why(run: Run, kafka: Kafka, arguments: list[str], told: str) -> None:
    done = run("topics", "create", *arguments, "--kafka", kafka.bootstrap)
    assert (done.returncode, told in done.stderr) == (ExitCode.CONFIGURATION, True), done.stderr
