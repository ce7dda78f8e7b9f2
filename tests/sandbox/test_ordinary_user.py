"""The sandbox works for a user without privileges. As root, the tests become one; else all tests are this test."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.processes import user_of

import tidegate.core
import tidegate.errors
import tidegate.java
import tidegate.sandbox
from tidegate.java.cache import cache_directory
from tidegate.sandbox.jars import kafka_jars
from tidegate.sandbox.mysql import mysqld

from .clients import connection

START = """
import json, sys
from tidegate.sandbox import *
with globals()[sys.argv[1]]() as server:
    if sys.argv[1] != "Kafka":  # the others come back in no time
        server.kill()
        server.restart()
    server.pause()
    server.resume()
    print(json.dumps([server.pid, server.port, getattr(server, "url", None)]), flush=True)
    sys.stdin.read()
"""

LONG = "long-" * 30  # longer than the path of a socket may be
NOBODY = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already")


@pytest.fixture(scope="module")
def interpreter() -> str:
    """A Python that an ordinary user may run; that of the tests may lie in root's home."""
    for candidate in (sys.executable, sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run([candidate, "-c", "import tomllib"], check=True, capture_output=True, cwd="/", **NOBODY)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip("no Python from 3.11 on that the user nobody may run")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A home for the user, with the package, the broker's jars and MySQL in it."""
    home = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
    # Without the rest of the package, which needs other libraries.
    for part in (tidegate.core, tidegate.java, tidegate.sandbox):
        source = Path(part.__file__).parent
        shutil.copytree(source, home / "lib" / "tidegate" / source.name)
    shutil.copy(tidegate.errors.__file__, home / "lib" / "tidegate")
    shutil.copytree(kafka_jars(), home / "cache" / kafka_jars().relative_to(cache_directory()))
    (home / LONG).mkdir()
    for path in (home, *home.rglob("*")):
        shutil.chown(path, "nobody")
    program = Path(mysqld().command[-1])
    if (unpacked := program.parents[2]) != Path("/"):  # too large to be copied
        (home / "cache" / unpacked.name).symlink_to(unpacked)
    yield home
    shutil.rmtree(home)


@pytest.mark.parametrize("kind", ["Kafka", "MariaDB", "MySQL", "Postgres", "Redis"])
def test_a_server_starts_dies_and_comes_back_for_an_ordinary_user(kind: str, interpreter: str, home: Path) -> None:
    temporary = home / LONG
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "TIDEGATE_CACHE": str(home / "cache"),
        "PYTHONPATH": str(home / "lib"),
        **{name: value for name, value in os.environ.items() if name == "JAVA_HOME"},
    }
    with subprocess.Popen(
        [interpreter, "-c", START, kind],
        env=environment,
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **NOBODY,
    ) as process:
        pid, _port, url = json.loads(process.stdout.readline())
        assert user_of(pid) == pwd.getpwnam("nobody").pw_uid
        if kind == "Redis":
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        elif url:
            with connection(url) as sql:
                assert sql.exec_driver_sql("SELECT 1").scalar_one() == 1
        process.stdin.close()
        assert process.wait(90) == 0
    assert list(temporary.iterdir()) == []
