"""What every server can do, on every kind of server."""

from __future__ import annotations

import os
import pwd
import threading
from pathlib import Path

import pytest
from tests.processes import descendants_of, state_of, user_of, watched

from tidegate.sandbox import Database, Kafka, MariaDB, MySQL, Postgres, Redis, SandboxError, Server

from .clients import connection, recall, remember

DATABASES = [MariaDB, MySQL, Postgres, Redis]
EVERY_KIND = [*DATABASES, Kafka]


@pytest.fixture(params=["mariadb", "mysql", "postgres", "redis_server"])
def database(request: pytest.FixtureRequest) -> Database:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_what_was_acknowledged_survives_a_kill_and_the_temporary_directory_goes_at_the_end(kind: type[Server]) -> None:
    server = kind()
    assert not server.running
    with server:
        port, pid, directory = server.port, server.pid, server.directory
        assert pid is not None
        remember(server, "before")
        with watched([pid]) as process:
            server.kill()
            assert process.all_end_within(0)
        assert not server.running
        assert server.pid is None
        assert directory.exists()

        server.restart()
        assert server.running
        assert server.port == port
        assert server.pid != pid
        assert "before" in recall(server)
        remember(server, "after")

        server.restart()  # this time gracefully
        assert {"before", "after"} <= recall(server)
        assert server.directory == directory
    assert not server.running
    assert not directory.exists()


def test_a_paused_server_is_frozen_whole_and_goes_on_when_resumed(database: Database) -> None:
    remember(database, "before")
    supervisor = [pid for pid in descendants_of(os.getpid()) if database.pid in descendants_of(pid)]
    everyone = [pid for pid in descendants_of(supervisor[-1]) if state_of(pid) != "Z"]

    database.pause()
    assert {state_of(pid) for pid in everyone} == {"T"}
    assert database.running
    answers: list[set[str]] = []
    asking = threading.Thread(target=lambda: answers.append(recall(database)))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive(), "a frozen server answered"

    database.resume()
    asking.join(90)
    assert answers == [{"before"}]


@pytest.mark.parametrize("kind", [MariaDB, Redis])  # MySQL takes signals as MariaDB does
def test_a_paused_server_can_be_stopped_and_killed(kind: type[Server]) -> None:
    with kind() as server:
        server.pause()
        server.kill()
        server.restart()
        remember(server, "alive")
        server.pause()
    assert not server.running


def test_a_kill_reaches_backends_that_are_busy_and_left_the_process_group(postgres: Postgres) -> None:
    with connection(postgres.url) as sql:
        backend = sql.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        busy = threading.Thread(target=_suffer, args=(sql, "DO $$ BEGIN LOOP END LOOP; END $$"))
        busy.start()
        with watched([backend]) as process:
            postgres.kill()
            assert process.all_end_within(0)
        busy.join(90)
        sql.invalidate()
    postgres.restart()


def _suffer(sql, statement: str) -> None:
    with pytest.raises(Exception, match="closed|terminating connection"):
        sql.exec_driver_sql(statement)


@pytest.mark.parametrize("kind", [MariaDB, Postgres, Redis])  # MySQL's directory is treated as MariaDB's
def test_a_given_directory_stays_and_another_server_continues_with_its_data(kind, open_directory) -> None:
    directory = open_directory / "kept"
    with kind(directory=directory) as first:
        remember(first, "kept")
    with kind(directory=directory) as second:
        assert recall(second) == {"kept"}
        assert second.password == first.password


def test_a_temporary_directory_can_be_kept(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Redis(keep=True) as server:
        directory = server.directory
    assert directory.parent == tmp_path
    assert (directory / "server.log").exists()


def test_a_server_that_was_stopped_starts_anew_on_the_same_port() -> None:
    server = Redis().start()
    port = server.port
    remember(server, "gone")
    server.stop()
    server.stop()
    with server:
        assert server.port == port
        assert recall(server) == set()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Redis()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    with server:
        remember(server, "still here")


def test_a_server_that_is_not_running_cannot_be_paused() -> None:
    with pytest.raises(SandboxError, match="Redis is not running"):
        Redis().pause()


def test_the_password_is_in_no_argument_and_in_no_file_that_others_can_read(database: Database) -> None:
    for pid in descendants_of(os.getpid()):
        assert database.password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    files = [path for path in database.directory.iterdir() if path.is_file()]
    holders = [path for path in files if database.password in path.read_text()]
    assert holders
    assert all(path.stat().st_mode & 0o077 == 0 for path in holders)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change the user")
@pytest.mark.parametrize(("kind", "user"), [(MariaDB, "mysql"), (MySQL, "mysql"), (Postgres, "postgres")])
def test_servers_that_refuse_root_run_as_their_own_user(kind, user, request) -> None:
    server = request.getfixturevalue(kind.__name__.lower())
    assert user_of(server.pid) == pwd.getpwnam(user).pw_uid
