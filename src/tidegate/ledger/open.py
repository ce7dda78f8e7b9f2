"""Opening a ledger from an address, or from what the user has open already."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from tidegate.core.arguments import Label, argument, described
from tidegate.core.errors import ConfigurationError
from tidegate.core.texts import is_text
from tidegate.ledger.base import Ledger
from tidegate.ledger.limits import Limits
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.sql.ledger import DRIVERS, SqlLedger, check_driver

if TYPE_CHECKING:
    import redis

__all__ = ["engine_at", "open_ledger"]

_SCHEMES = "sqlite:///file.db, postgresql+psycopg://…, mysql+pymysql://…, redis://…, memory://"
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


def open_ledger(
    target: str | URL | Engine | redis.Redis,
    *,
    prefix: str | None = None,
    limits: Limits | None = None,
) -> Ledger[Any]:
    """Open the ledger that lives at ``target``: a URL, a SQLAlchemy engine, or a Redis client.

    ``prefix`` goes before the names of its tables (``tidegate_``) or keys (``{tidegate}:``). Nothing is sent before the
    ledger is used; its tables are created then, if they are not there.
    """
    prefix = argument("prefix", Label | None, prefix)
    limits = argument("limits", Limits | None, limits)
    if isinstance(target, Engine):
        return SqlLedger(target, prefix=prefix or "tidegate_", limits=limits)
    if not (is_text(target) or isinstance(target, URL)):
        if not _is_redis(target):
            raise ConfigurationError(
                f"ledger: expected a URL, a SQLAlchemy engine or a Redis client, not {described(target)}; URLs are: "
                f"{_SCHEMES}"
            )
        return _redis_ledger(target, prefix, limits)
    scheme = str(target).partition(":")[0]
    if str(target) == "memory://":
        return MemoryLedger(limits)
    if scheme in {"redis", "rediss", "unix"}:
        return _redis_ledger(str(target), prefix, limits)
    return SqlLedger(engine_at(target), prefix=prefix or "tidegate_", limits=limits, owned=True)


def _is_redis(target: object) -> bool:
    """Whether it is a client of Redis that blocks: who has one has imported the module."""
    module = sys.modules.get("redis")
    return module is not None and isinstance(target, (module.Redis, module.RedisCluster))


def engine_at(target: str | URL, connect_args: Mapping[str, Any] | None = None) -> Engine:
    """An engine for a ledger alone; ``connect_args`` go to its driver, beside what the URL says."""
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"ledger: that is not the URL of a ledger; known are: {_SCHEMES}") from None
    backend = url.get_backend_name()
    if backend not in DRIVERS:
        raise ConfigurationError(f"ledger: there is none for {backend!r}; known are: {_SCHEMES}")
    usual = f"{backend}+{DRIVERS[backend]}"
    if "+" not in url.drivername:
        url = url.set(drivername=usual)
    check_driver(backend, url.drivername.partition("+")[2])
    if url.get_driver_name() == "pymysql":
        url = url.update_query_dict({"client_flag": str(_flags(url) | _LOCAL_FILES)})
    try:
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_reset_on_return=None,
            connect_args=dict(connect_args or {}),
            **_OPTIONS.get(backend, {}),
        )
    except (ImportError, NoSuchModuleError):
        extra = f"tidegate[{_EXTRAS[backend]}]" if backend in _EXTRAS else "tidegate"
        raise ConfigurationError(
            f"ledger: the driver of {url.drivername}:// is not installed; for {usual}:// run: pip install '{extra}'"
        ) from None
    if engine.dialect.is_async:
        raise ConfigurationError(f"ledger: {url.drivername} is a driver for asyncio; use {usual}://")
    return engine


# Lets the server ask for rows during LOAD DATA LOCAL, which tables/ answers from memory. It opens no file to the
# server: PyMySQL itself refuses such a request unless local_infile is set as well.
_LOCAL_FILES = 128


def _flags(url: URL) -> int:
    flags = url.query.get("client_flag", "0")
    return int(flags) if isinstance(flags, str) and flags.isdigit() else 0


# Fewer locks than MySQL's default: no gaps between rows are locked, so that claims of different partitions do not meet.
_READ_COMMITTED = {"isolation_level": "READ COMMITTED"}
_OPTIONS: dict[str, dict[str, Any]] = {"mysql": _READ_COMMITTED, "mariadb": _READ_COMMITTED}


def _redis_ledger(target: str | redis.Redis, prefix: str | None, limits: Limits | None) -> Ledger[Any]:
    from tidegate.ledger.redis import RedisLedger  # noqa: PLC0415 - redis is an extra

    options: dict[str, Any] = {"limits": limits} | ({} if prefix is None else {"prefix": prefix})
    if isinstance(target, str):
        return RedisLedger.from_url(target, **options)
    return RedisLedger(target, **options)
