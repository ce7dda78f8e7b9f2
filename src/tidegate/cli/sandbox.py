"""``tidegate sandbox``: run real servers on their usual ports, and name them in tidegate.toml."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import signal
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer

from tidegate.cli.options import Debug, ExitCode, app, reported
from tidegate.cli.output import said
from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError
from tidegate.java.downloads import show_downloads
from tidegate.sandbox.account import Account
from tidegate.sandbox.database import Database
from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.jars import KAFKA_VERSION
from tidegate.sandbox.kafka import Kafka
from tidegate.sandbox.mariadb import MariaDB
from tidegate.sandbox.mysql import MySQL
from tidegate.sandbox.ports import is_free, listener_on
from tidegate.sandbox.postgres import Postgres
from tidegate.sandbox.redis import Redis
from tidegate.sandbox.registry import Registry
from tidegate.sandbox.server import Server

__all__ = ["SandboxFile", "SandboxServer", "sandbox"]

_DIRECTORY = Path(".tidegate")
_FILE = Path("tidegate.toml")
_SQLITE = "sqlite:///shop.db"
_MARK = "  # sandbox"
_HEAD = f'# Written by `tidegate sandbox`. It renews the lines that end with "{_MARK.strip()}", and keeps all others.'
_WATCH_SECONDS = 0.5


class SandboxServer(StrEnum):
    """A server that the sandbox runs."""

    KAFKA = "kafka"
    POSTGRES = "postgres"
    MARIADB = "mariadb"
    MYSQL = "mysql"
    REDIS = "redis"
    REGISTRY = "registry"


class _Kind(NamedTuple):
    server: type[Server]
    port: int
    driver: str
    extra: str


_KINDS = {
    SandboxServer.KAFKA: _Kind(Kafka, 9092, "confluent_kafka", ""),
    SandboxServer.POSTGRES: _Kind(Postgres, 5432, "psycopg", "postgres"),
    SandboxServer.MARIADB: _Kind(MariaDB, 3306, "pymysql", "mysql"),
    SandboxServer.MYSQL: _Kind(MySQL, 3306, "pymysql", "mysql"),
    SandboxServer.REDIS: _Kind(Redis, 6379, "redis", "redis"),
    SandboxServer.REGISTRY: _Kind(Registry, 8081, "http", ""),
}


class Setting(NamedTuple):
    """A setting for tidegate.toml. One that is only a suggestion gives way to a different value in the file."""

    section: str
    key: str
    value: str | bool
    is_suggestion: bool = False

    @property
    def line(self) -> str:
        """The line below the header of the section."""
        return f"{self.key} = {json.dumps(self.value)}{_MARK}"


@dataclass(frozen=True)
class SandboxFile:
    """The settings file. The sandbox changes only lines that it has written, and adds those that are missing."""

    path: Path

    def merged(self, settings: Sequence[Setting], notes: Sequence[str] = ()) -> str:
        """Return the file's text with these settings; raise if the user has written others."""
        text = self.path.read_text() if self.path.exists() else ""
        kept = [line for line in text.splitlines() if not line.endswith(_MARK) and line != _HEAD]
        try:
            tree = tomllib.loads("\n".join(kept))
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{self.path}: {error}; correct it, or replace it with --force") from None
        for setting in settings:
            found = _value(tree, setting)
            if found is None:
                kept = _with_line(kept, setting, has_section=setting.section in tree)
                tree.setdefault(setting.section, {})
            elif found != setting.value and not setting.is_suggestion:
                raise ConfigurationError(
                    f"{self.path} names another {_described(setting)}; remove that line, replace the whole file with "
                    "--force, or start the sandbox in another folder"
                )
        head = [_HEAD, *(f"# {note}{_MARK}" for note in notes)]
        return "\n".join([*head, *kept]).rstrip() + "\n"

    def write(self, text: str, *, force: bool) -> str:
        """Write the text, and return a sentence about what was done. The file may hold a password."""
        before = self.path.read_text() if self.path.exists() else None
        if before == text:
            return f"{self.path} names them already"
        done = "wrote" if before is None else "renewed the sandbox's lines in"
        if force and before is not None:
            backup = self.path.with_name(f"{self.path.name}.before")
            self.path.replace(backup)
            done = f"the old {self.path.name} is now {backup.name}; wrote"
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # made with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(self.path)
        return f"{done} {self.path}, so that the commands in this folder use them"


def _value(tree: Mapping[str, Any], setting: Setting) -> Any:
    section = tree.get(setting.section)
    if isinstance(section, str):  # the short form: kafka = "…", ledger = "…"
        return section if setting.key in {"bootstrap", "url"} else not setting.value
    return None if section is None else section.get(setting.key)


def _with_line(lines: list[str], setting: Setting, *, has_section: bool) -> list[str]:
    header = re.compile(rf"\s*\[\s*{setting.section}\s*\]\s*(#.*)?")
    at = next((number for number, line in enumerate(lines) if header.fullmatch(line)), None)
    if at is not None:
        while at + 1 < len(lines) and lines[at + 1].endswith(_MARK):  # behind what was added before
            at += 1
        return [*lines[: at + 1], setting.line, *lines[at + 1 :]]
    if has_section:  # as dotted keys, or by a table inside it: a dotted key at the top goes with both
        return [f"{setting.section}.{setting.line}", *lines]
    return [*lines, "", f"[{setting.section}]", setting.line]


def _described(setting: Setting) -> str:
    return {"kafka": "cluster", "registry": "schema registry"}.get(setting.section, "ledger")


_Servers = Annotated[
    list[SandboxServer] | None,
    typer.Argument(metavar="[SERVER]...", help="kafka, postgres, mariadb, mysql, redis; without any, kafka."),
]
_Ports = Annotated[
    list[str] | None,
    typer.Option("--port", metavar="SERVER=N", help="Another port than the usual one; may be given again."),
]
_Directory = Annotated[Path, typer.Option(help="Where the servers keep their data.")]
_Force = Annotated[
    bool, typer.Option("--force", help="Replace a tidegate.toml that names other servers; the old one is kept aside.")
]


@app.command("sandbox")
def sandbox(
    servers: _Servers = None,
    *,
    port: _Ports = None,
    directory: _Directory = _DIRECTORY,
    force: _Force = False,
    debug: Debug = False,
) -> None:
    """Run real servers on their usual ports until Ctrl-C, and name them in tidegate.toml.

    Example: tidegate sandbox kafka postgres
    """
    with reported(debug=debug):
        show_downloads()
        chosen = list(dict.fromkeys(servers or [SandboxServer.KAFKA]))
        ports = _chosen_ports(chosen, port or [])
        try:
            with _interruptible(), _alone(directory):
                _run(chosen, ports, directory, force=force)
        except KeyboardInterrupt:
            said(f"stopped; the data is in {directory}")
            raise typer.Exit(ExitCode.OK) from None


def _run(chosen: Sequence[SandboxServer], ports: Mapping[SandboxServer, int], directory: Path, *, force: bool) -> None:
    _require(ports)
    made = {each: _made(each, ports[each], directory) for each in chosen}
    file = SandboxFile(_FILE)
    if not force:
        file.merged(_settings(made))  # raises before anything is started
    with ExitStack() as running:
        for each, server in made.items():
            running.enter_context(server)
            said(f"{_title(each)} is at {_address(server)}")
        empty = SandboxFile(Path(os.devnull))
        text = (empty if force else file).merged(_settings(made), _notes(made))
        said(file.write(text, force=force))
        _say_what_next(made, directory)
        _watch(made)


def _chosen_ports(chosen: Sequence[SandboxServer], given: Sequence[str]) -> dict[SandboxServer, int]:
    ports = {each: _KINDS[each].port for each in chosen}
    for text in given:
        name, _, number = text.partition("=")
        if name not in list(SandboxServer) or not number.isdecimal() or not 0 < int(number) < 65536:
            raise ConfigurationError(f"--port {text}: expected SERVER=N, such as kafka=19092")
        if (server := SandboxServer(name)) not in ports:
            raise ConfigurationError(f"--port {text}: {name} is not one of the servers to start")
        ports[server] = int(number)
    for used in ports.values():
        if len(same := [str(each) for each in ports if ports[each] == used]) > 1:
            raise ConfigurationError(
                f"{' and '.join(same)} would both use port {used}; give one of them another: "
                f"--port {same[-1]}={used + 1}"
            )
    return ports


def _require(ports: Mapping[SandboxServer, int]) -> None:
    for server, port in ports.items():
        if not is_free(port):
            raise ConfigurationError(
                f"{_title(server)} cannot start: port {port} is taken by {listener_on(port)}; end that process, or "
                f"choose another port: --port {server}={port + 10_000 if port < 50_000 else port - 10_000}"
            )


def _made(each: SandboxServer, port: int, directory: Path) -> Server:
    kind = _KINDS[each].server
    account = Account.to_drop_to(kind.accounts)
    existing = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if account is not None and (closed := account.first_closed(existing)) is not None:
        said(f"{_title(each)} runs as {account.name}, who may not enter {closed}: its data is not kept")
        return kind(port=port)
    return kind(port=port, directory=directory / each.value)


def _settings(made: Mapping[SandboxServer, Server]) -> list[Setting]:
    found = []
    database = next((server for server in made.values() if isinstance(server, Database)), None)
    if database is not None:
        found.append(Setting("ledger", "url", database.url))
    if (kafka := made.get(SandboxServer.KAFKA)) is not None:
        if database is None:
            found.append(Setting("ledger", "url", _SQLITE, is_suggestion=True))
        found.append(Setting("kafka", "bootstrap", f"localhost:{kafka.port}"))
        found.append(Setting("kafka", "create_topics", value=True, is_suggestion=True))
    if isinstance(registry := made.get(SandboxServer.REGISTRY), Registry):
        found.append(Setting("registry", "url", registry.url))
    return found


def _notes(made: Mapping[SandboxServer, Server]) -> list[str]:
    """Return comments with the URLs of databases that are not the ledger."""
    databases = [(each, server) for each, server in made.items() if isinstance(server, Database)]
    return [f"{each} is at {server.url}" for each, server in databases[1:]]


def _title(each: SandboxServer) -> str:
    title = _KINDS[each].server.title
    return f"{title} {KAFKA_VERSION}" if each is SandboxServer.KAFKA else title


def _address(server: Server) -> str:
    return masked(server.url) if isinstance(server, Database) else f"localhost:{server.port}"


def _say_what_next(made: Mapping[SandboxServer, Server], directory: Path) -> None:
    for each in made:
        if importlib.util.find_spec(_KINDS[each].driver) is None:
            said(f"to use {_title(each)} from Python: pip install 'tidegate[{_KINDS[each].extra}]'")
    if SandboxServer.KAFKA in made:
        said("in another terminal, in this folder:")
        said("  tidegate topics create orders")
        said("""  echo '{"id": 1, "total": 9.99}' | tidegate produce orders --json""")
        said("  tidegate consume orders")
    said(f"Ctrl-C ends it; the data stays in {directory}, which you can delete to start from scratch")


def _watch(made: Mapping[SandboxServer, Server]) -> None:
    """Wait for Ctrl-C; raise if a server ends before that."""
    while True:
        threading.Event().wait(_WATCH_SECONDS)
        for each, server in made.items():
            if not server.running:
                raise SandboxError(f"{_title(each)} has ended. The end of its log: {server.log_tail()}")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the folder of the data: two servers on the same data would destroy it."""
    if not directory.exists():
        directory.mkdir(parents=True, mode=0o711)
    with (directory / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"a sandbox runs on {directory} already, as process {lock.read().strip()}; end it with Ctrl-C or "
                "kill, or choose another --directory"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the servers are stopped in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
