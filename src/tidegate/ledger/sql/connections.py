"""Timeouts for every wait of a driver for its server, and a check of idle connections before use."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DisconnectionError

from tidegate.ledger.transaction import Limits
from tidegate.ledger.watch import LINE, Watch

__all__ = ["connect_args", "connect_timeout", "driver_options", "revive_idle", "watch_own", "watch_users"]


_SERVER_LOST = 2013  # MySQL's number

# The methods of each driver's connection that wait for the server, and whether their return means that it answered.
# Statements, COPY, LOAD DATA, commits and the handler's direct use of the driver all go through these methods.
_WAITS: dict[str, tuple[tuple[str, bool], ...]] = {
    "psycopg": (("wait", True),),
    "pymysql": (("_read_packet", True), ("_write_bytes", False)),
}


def connect_timeout(limits: Limits) -> int:
    """Return the timeout for connecting to a server, in whole seconds, as the drivers need it."""
    return max(1, round(min(limits.lock_wait, 10.0)))


def driver_options(driver: str) -> frozenset[str]:
    """Return the names that the driver takes behind the ``?`` of a URL. It ignores others, or raises a TypeError."""
    match driver:
        case "psycopg":
            from psycopg import Connection as PsycopgConnection  # noqa: PLC0415 - an extra
            from psycopg import pq  # noqa: PLC0415 - an extra

            of_server = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
            return frozenset({*of_server, *signature(PsycopgConnection.connect).parameters}) - {"conninfo", "kwargs"}
        case "pymysql":
            from pymysql.connections import Connection as PyMySqlConnection  # noqa: PLC0415 - an extra

            return frozenset({*signature(PyMySqlConnection.__init__).parameters, "ssl_check_hostname"}) - {"self"}
        case "pysqlite":
            names = ("uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements")
            return frozenset(names)
    return frozenset()


def connect_args(driver: str, limits: Limits) -> dict[str, Any]:
    """Return the driver's connection arguments for the ledger's own engine; those in the URL take precedence."""
    match driver:
        case "psycopg":
            names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
            return {"connect_timeout": connect_timeout(limits), **dict(zip(names, _keepalive(limits), strict=True))}
        case "pymysql":  # these timeouts of reading and writing hold for the login only; watch_own removes them
            return dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), connect_timeout(limits))
    return {}


def _keepalive(limits: Limits) -> tuple[int, int, int, int]:
    """Return the TCP keepalive settings: idle seconds before the first probe, seconds between probes, number of probes;
    and for how many milliseconds sent data may stay unacknowledged."""
    third = max(1, round(limits.answer / 3))
    return third, max(1, third // 3), 3, round(limits.answer * 1000)


def watch_own(engine: Engine, watch: Watch, limits: Limits) -> None:
    """Watch every connection of the ledger's own engine, from login on, because tables and pipelines use it too."""
    kept = {"read_timeout", "write_timeout"} & engine.url.query.keys()

    def connected(driver: Any, record: Any) -> None:
        if engine.dialect.driver == "pymysql":
            for name in {"read_timeout", "write_timeout"} - kept:
                setattr(driver, f"_{name}", None)  # from here on, the watch limits the wait
            _keep_alive(driver._sock.fileno(), limits)
        _install(driver, record.info, watch)

    event.listen(engine, "connect", connected, insert=True)  # before SQLAlchemy sends its first queries


def watch_users(engine: Engine, watch: Watch) -> tuple[Engine, Callable[[], None]]:
    """Return an engine on the user's pool that watches the connections taken through it, and a function to undo that.

    Only connections that the ledger takes are watched, and only until they go back to the pool.
    """
    watched = engine.execution_options()

    def taken(conn: Connection) -> None:
        if LINE not in conn.info:
            _install(conn.connection.dbapi_connection, conn.info, watch)

    def given_back(driver: Any, record: Any) -> None:
        if record.info.pop(LINE, None) is not None and driver is not None:
            for name, _ in _waits(driver):
                vars(driver).pop(name, None)

    event.listen(watched, "engine_connect", taken)
    event.listen(engine, "checkin", given_back)
    return watched, lambda: event.remove(engine, "checkin", given_back)


def _install(driver: Any, info: dict[Any, Any], watch: Watch) -> None:
    if not (waits := _waits(driver)):
        return
    line = watch.line(lambda: _fileno(driver), lambda reason: _lost(driver, reason))
    for name, tells in waits:
        setattr(driver, name, line.watched(getattr(driver, name), tells=tells))
    info[LINE] = line


def _waits(driver: Any) -> tuple[tuple[str, bool], ...]:
    return _WAITS.get(_kind(driver), ())


def _kind(driver: Any) -> str:
    return type(driver).__module__.partition(".")[0]


def _fileno(driver: Any) -> int:
    return int(driver.pgconn.socket if _kind(driver) == "psycopg" else driver._sock.fileno())


def _lost(driver: Any, reason: str) -> Exception:
    words = (reason,) if _kind(driver) == "psycopg" else (_SERVER_LOST, reason)
    error: Exception = driver.OperationalError(*words)
    return error


def _keep_alive(fileno: int, limits: Limits) -> None:
    """Set the keepalive options of a socket. PyMySQL has no arguments for them: it turns keepalives on, but then the
    system sends the first one after two hours."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    with suppress(OSError), socket.socket(fileno=os.dup(fileno)) as kept:  # a Unix domain socket has none of these
        for name, value in zip(names, _keepalive(limits), strict=True):
            if hasattr(socket, name):
                kept.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


_IDLE_SINCE = "tidegate_idle_since"


def revive_idle(engine: Engine, after: float) -> None:
    """Make the pool replace a dead connection that was idle for more than ``after`` seconds.

    Unlike SQLAlchemy's ``pool_pre_ping``, which pings the server at every checkout, it costs nothing for a connection
    in regular use.
    """

    def checked_in(_: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()

    def checked_out(connection: Any, record: Any, _: Any) -> None:
        since = record.info.get(_IDLE_SINCE)
        if since is None or time.monotonic() - since < after:
            return
        try:
            alive = engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error:
            alive = False
        if not alive:
            raise DisconnectionError("the server ended the connection while it was idle")

    event.listen(engine, "checkin", checked_in)
    event.listen(engine, "checkout", checked_out)
