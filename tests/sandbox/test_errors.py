"""Every error says what to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

import pytest

from tidegate.errors import TidegateError
from tidegate.sandbox import Kafka, MariaDB, Postgres, Redis, SandboxError, Server, postgres, programs
from tidegate.sandbox.ports import free_port

from .clients import recall, remember


@pytest.fixture
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed; returns the one directory on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(programs, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(postgres, "DEBIAN_ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        (MariaDB, "mariadb-server"),
        (Postgres, "postgresql"),
        (Redis, "redis-server"),
        (Kafka, "openjdk-17-jre-headless"),
    ],
)
def test_a_missing_program_names_the_package(kind: type[Server], package: str, empty_machine: Path) -> None:
    with pytest.raises(SandboxError, match=package):
        kind().start()


def test_an_old_java_is_refused(empty_machine: Path) -> None:
    java = empty_machine / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    with pytest.raises(SandboxError, match=r"Kafka 4 needs Java 17, and .* is Java 11\. Install Java 17"):
        Kafka().start()


def test_a_full_disk_is_noticed_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=3 * 2**20))
    with pytest.raises(SandboxError, match=r"Only 3 MiB are free at .* needs 512 MiB"):
        Redis().start()


def test_a_taken_port_is_named_if_it_was_asked_for_and_avoided_if_not() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as squatter:
        taken = squatter.getsockname()[1]
        with pytest.raises(SandboxError, match=f"127.0.0.1:{taken} is taken by process {os.getpid()} "):
            Redis(port=taken).start()
    server = Redis()
    with socket.create_server((server.host, server.port)) as squatter, server:
        assert server.port != squatter.getsockname()[1]
        remember(server, "elsewhere")


def test_a_port_that_is_taken_at_the_last_moment_is_avoided_as_well() -> None:
    with contextlib.ExitStack() as stack:

        class Unlucky(Redis):
            squatter: socket.socket | None = None

            def _command(self):
                command = super()._command()
                if self.squatter is None:
                    self.squatter = stack.enter_context(socket.create_server((self.host, self.port)))
                return command

        server = stack.enter_context(Unlucky())
        assert server.port != server.squatter.getsockname()[1]
        remember(server, "elsewhere")


def test_a_server_that_dies_at_its_start_shows_its_log_without_secrets() -> None:
    server = Redis()
    server.settings = {"nonsense": server.password}
    with pytest.raises(SandboxError, match=r"Redis died while starting \(status 1\)") as caught:
        server.start()
    assert "nonsense ***" in str(caught.value)
    assert server.password not in str(caught.value)
    assert isinstance(caught.value, TidegateError)
    with pytest.raises(SandboxError, match="unrecognized configuration parameter"):
        Postgres(settings={"no_such_setting": 1}).start()
    with pytest.raises(SandboxError, match="unknown variable"):
        MariaDB(settings={"no_such_setting": 1}).start()
    with pytest.raises(SandboxError, match=r"log\.retention.hours"):
        Kafka(settings={"log.retention.hours": "many"}).start()


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SandboxError):
        Redis(settings={"nonsense": 1}).start()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_restart_keeps_the_data() -> None:
    with Redis() as server:
        remember(server, "safe")
        server.kill()
        server.settings = {"nonsense": 1}
        with pytest.raises(SandboxError, match="died"):
            server.start()
        server.settings = {}
        server.start()
        assert recall(server) == {"safe"}


def test_a_server_that_takes_too_long_is_given_up() -> None:
    server = Postgres()
    with pytest.raises(SandboxError, match=r"PostgreSQL was not ready in time\. The end of its log"):
        server.start(timeout=0)
    assert not server.running


def test_a_directory_that_is_not_a_sandbox_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(SandboxError, match="is not empty"):
        Redis(directory=tmp_path).start()
    assert (tmp_path / "data").exists()


def test_a_directory_of_another_kind_of_server_is_refused(tmp_path: Path) -> None:
    with Redis(directory=tmp_path / "r"):
        pass
    with pytest.raises(SandboxError, match="holds the data of a redis server, not of kafka"):
        Kafka(directory=tmp_path / "r").start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change the user")
def test_a_directory_that_the_servers_user_cannot_reach_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(SandboxError, match=r"user postgres, who may not pass through .*chmod o\+x"):
        Postgres(directory=tmp_path / "unreachable").start()


def test_a_log_is_asked_for_in_vain_before_the_start() -> None:
    assert Redis().log_tail() == ""
    with pytest.raises(SandboxError, match="not started"):
        _ = Redis().log_path
