"""Servers die with the process that started them, however it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.processes import descendants_of, watched

from tidegate.sandbox import MariaDB, SandboxError

START = """
import json, os, sys
from tidegate.sandbox import *
server = globals()[sys.argv[1]]().start()
if sys.argv[2] == "paused":
    server.pause()
if sys.argv[2] == "killed":
    server.kill()
sleeper = 0
if sys.argv[2] == "forked":
    sleeper = os.fork()
    if not sleeper:
        sys.stdin.read()
        os._exit(0)
print(json.dumps({"directory": str(server.directory), "sleeper": sleeper}), flush=True)
sys.stdin.read()
"""


def start_in_child(kind: str, state: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, kind, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        # One supervisor serves every kind: a kind that has one process, one that has many, and each state once.
        ("Kafka", "running"),
        ("Postgres", "running"),
        ("Postgres", "paused"),
        ("MariaDB", "killed"),
        ("Redis", "forked"),
    ],
)
def test_nothing_is_left_of_a_server_whose_parent_was_killed(kind: str, state: str) -> None:
    with start_in_child(kind, state) as parent:
        facts = json.loads(parent.stdout.readline())
        directory = Path(facts["directory"])
        assert directory.exists()
        servers = [pid for pid in descendants_of(parent.pid) if pid != facts["sleeper"]]
        assert len(servers) >= (1 if state == "killed" else 2)
        with watched(servers) as processes:
            parent.kill()
            assert processes.all_end_within(10)
        assert not directory.exists()


def test_nothing_is_left_of_a_server_whose_parent_forgot_to_stop_it() -> None:
    with start_in_child("Redis", "running") as parent:
        directory = Path(json.loads(parent.stdout.readline())["directory"])
        with watched(descendants_of(parent.pid)) as processes:
            parent.stdin.close()
            assert processes.all_end_within(10)
        assert not directory.exists()


def test_a_server_whose_supervisor_was_killed_dies_too_and_can_still_be_stopped() -> None:
    with MariaDB() as server:
        directory = server.directory
        supervisor = next(pid for pid in descendants_of(os.getpid()) if server.pid in descendants_of(pid))
        with watched([server.pid]) as process:
            os.kill(supervisor, signal.SIGKILL)
            assert process.all_end_within(10)
        assert not server.running
        with pytest.raises(SandboxError, match="was it killed"):
            server.restart()
    assert not directory.exists()
