"""``make demo``, as a fresh ordinary user types it, with Python and Java on the PATH and next to nothing else."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.java.cache import cache_directory
from tidegate.sandbox.jars import kafka_jars
from tidegate.spark.session import connector_jars

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("Makefile", "pyproject.toml", "README.md", "LICENSE", "requirements", "tools", "demo", "src")
SHORT = "DEMO_ARGS=--orders 6000 --kills 1"  # an aimed kill for each delivery: six starts of Spark, three are killed
SHELL = ("sh", "bash", "env", "dirname", "make")  # Spark is started by a script
FOUND = {name: shutil.which(name) for name in ("java", *SHELL)}
NOBODY: dict[str, Any] = (
    {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
)


def interpreter() -> str:
    """A Python that the user may run and that makes virtual environments; that of the tests may lie in root's home."""
    for candidate in (sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [candidate, "-c", "import ensurepip, tomllib, venv"], check=True, capture_output=True, cwd="/", **NOBODY
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip("no Python from 3.11 on, with venv, that an ordinary user may run")


def link_tree(source: Path, target: Path) -> None:
    """A copy whose files are links: what is large is not copied."""

    def link(one: str, other: str) -> None:
        try:
            os.link(one, other)
        except OSError:  # on another file system
            shutil.copy(one, other)

    shutil.copytree(source, target, copy_function=link)


def own(folder: Path) -> None:
    """Give the folders to the user. The files are links, which keep their owner, and are readable."""
    for path in (folder, *folder.rglob("*")):
        if NOBODY and path.is_dir() and not path.is_symlink():
            shutil.chown(path, "nobody")


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for the user, with a checkout in it and the programs that are on the PATH."""
    home = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
    (home / "bin").mkdir()
    for name, program in {**FOUND, "python3": interpreter()}.items():
        (home / "bin" / name).symlink_to(program or pytest.skip(f"there is no {name}"))
    checkout(home / "tidegate")
    own(home)
    yield home
    shutil.rmtree(home)


def checkout(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        if (source := ROOT / part).is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / part)


def make_demo(home: Path, *, folder: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    """Type ``make demo``. pip has the index, the certificates and the proxy of this machine, unless told otherwise."""
    kept = re.compile(r"PIP_|SSL_|(?:https?|no)_proxy$|TIDEGATE_IVY|SPARK_LOCAL_IP", re.IGNORECASE)
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if kept.match(name)},
        "HOME": str(home),
        "PATH": str(home / "bin"),
        "SPARK_SUBMIT_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **more,
    }
    return subprocess.run(
        ["make", "demo", SHORT],
        cwd=folder or home / "tidegate",
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        **NOBODY,
    )


def processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(command)
    return found


@pytest.mark.chaos  # it downloads 600 MB
def test_a_fresh_user_with_python_and_java_alone_sees_the_demo(home: Path) -> None:
    cache = home / ".cache" / "tidegate"
    for folder in (kafka_jars(), connector_jars()[0].parent):
        link_tree(folder, cache / folder.relative_to(cache_directory()))
    own(home)
    done = make_demo(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "demo: making .venv-demo, once" in done.stdout
    assert re.search(r"^demo: (Downloading|Using cached) pyarrow\S+ \(", done.stdout, re.MULTILINE), done.stdout
    rows = {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines()) if len(words) == 7}
    assert rows["exactly-once"][:4] == ["6,000", "6,000", "0", "0"]
    assert rows["exactly-once"][4] == rows["exactly-once"][5]
    assert rows["at-least-once"][2] == "0" != rows["at-least-once"][3]
    assert rows["at-most-once"][3] == "0" != rows["at-most-once"][2]
    assert (home / "tidegate" / "build" / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert not processes_that_name(str(home))


def refused(done: subprocess.CompletedProcess[str]) -> tuple[str, int]:
    """The one line, and the exit code, which make adds in a line of its own."""
    line, makes = done.stderr.splitlines()
    code = re.fullmatch(r"make: \*\*\* \[Makefile:\d+: demo\] Error (\d+)", makes)
    assert code is not None, done.stderr
    return line, int(code[1])


def test_without_java_the_demo_says_first_how_to_get_it(home: Path) -> None:
    (home / "bin" / "java").unlink()
    done = make_demo(home)
    line, code = refused(done)
    assert line.startswith("demo: Kafka and Spark need Java 17 or newer, and there is no java on PATH; ")
    assert (code, done.stdout) == (2, "")
    assert not (home / "tidegate" / ".venv-demo").exists()


def test_an_old_java_is_named(home: Path) -> None:
    (home / "bin" / "java").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    line, code = refused(make_demo(home))
    assert f"{home}/bin/java is Java 11; " in line
    assert code == 2


def test_without_a_network_the_demo_says_that_the_index_cannot_be_reached(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    done = make_demo(home, PIP_INDEX_URL=f"{nowhere}/simple", PIP_FIND_LINKS="", http_proxy="", PIP_NO_INDEX="0")
    line, code = refused(done)
    assert line.startswith("demo: the package index cannot be reached"), done.stdout + done.stderr
    assert code == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small file system")
def test_without_disk_space_the_demo_says_how_much_it_needs(home: Path) -> None:
    small = home / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "none", str(small)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this root may not mount")
    try:
        checkout(small)
        own(small)
        line, code = refused(make_demo(home, folder=small))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert re.fullmatch(rf"demo: too little disk space: \d+ MB are free in {small}, and the demo needs 2,000 MB", line)
    assert code == 1
