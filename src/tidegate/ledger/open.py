"""Functions that open a ledger from a URL, a SQLAlchemy engine or a Redis client."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.util import asbool

from tidegate.core.arguments import Label, argument, described, did_you_mean
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.memory import MemoryLedger
from tidegate.ledger.registry import DIALECTS, OTHERS, URLS, dialect_of
from tidegate.ledger.sql.connections import connect_args, driver_options
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.ledger.transaction import Limits

if TYPE_CHECKING:
    import redis

__all__ = ["engine_at", "open_ledger"]


def open_ledger(
    target: str | URL | Engine | redis.Redis,
    *,
    prefix: str | None = None,
    limits: Limits | None = None,
) -> Ledger[Any]:
    """Open the ledger that lives at ``target``: a URL, a SQLAlchemy engine, or a Redis client.

    ``prefix`` begins the names of its tables (default ``tidegate_``) or keys (default ``{tidegate}:``). Nothing is sent
    before the ledger is first used; missing tables are created then.
    """
    prefix = argument("prefix", Label | None, prefix)
    limits = argument("limits", Limits | None, limits)
    if isinstance(target, Engine):
        return SqlLedger(target, prefix=prefix or "tidegate_", limits=limits)
    if not (is_text(target) or isinstance(target, URL)):
        if not _is_redis(target):
            raise ConfigurationError(
                f"ledger: expected a URL, a SQLAlchemy engine or a Redis client, not {described(target)}; URLs are: "
                f"{URLS}"
            )
        given: Ledger[Any] = _ledger_class("redis")(target, **_options(prefix, limits))
        return given
    scheme = str(target).partition(":")[0]
    if str(target) == "memory://":
        return MemoryLedger(limits)
    if scheme in OTHERS:
        opened: Ledger[Any] = _ledger_class(scheme).from_url(str(target), **_options(prefix, limits))
        return opened
    engine = engine_at(target, limits=limits)
    return SqlLedger(engine, prefix=prefix or "tidegate_", limits=limits, owned=True)


def _is_redis(target: object) -> bool:
    """Return whether ``target`` is a synchronous Redis client; if it is, the module redis is already imported."""
    module = sys.modules.get("redis")
    return module is not None and isinstance(target, (module.Redis, module.RedisCluster))


def engine_at(target: str | URL, given: Mapping[str, Any] | None = None, *, limits: Limits | None = None) -> Engine:
    """Create an engine for a ledger's own use.

    ``given`` are arguments for its driver, in addition to those in the URL. Timeouts and keepalives that neither of
    them sets are derived from the limits.
    """
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        raise ConfigurationError(f"ledger: that is not the URL of a ledger; known are: {URLS}") from None
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigurationError(f"ledger: there is none for {backend!r}; known are: {URLS}")
    usual = f"{backend}+{DIALECTS[backend].driver}"
    if "+" not in url.drivername:
        url = url.set(drivername=usual)
    dialect = dialect_of(backend, url.drivername.partition("+")[2])
    if any(name.lower() == "local_infile" for name in (*url.query, *(given or {}))):
        raise ConfigurationError(
            "ledger: local_infile is refused, since it lets the server read files of this machine; sinks use LOAD DATA "
            "LOCAL without it, for rows from memory"
        )
    limits = limits or Limits()
    url = dialect.completed(url)
    bounds = connect_args(dialect.driver, limits)
    args = {name: value for name, value in bounds.items() if name not in url.query} | dict(given or {})
    try:
        _check_options(url, dialect.driver)
        engine = create_engine(
            url,
            hide_parameters=True,
            pool_reset_on_return=None,
            connect_args=args,
            **dialect.engine_options(limits),
        )
    except (ArgumentError, ValueError):
        raise ConfigurationError(
            f"ledger: a part of the {backend} URL cannot be read: is each option behind the '?' of the right type? "
            f"Known are: {URLS}"
        ) from None
    except (ImportError, NoSuchModuleError):
        extra = f"tidegate[{dialect.extra}]" if dialect.extra else "tidegate"
        raise ConfigurationError(
            f"ledger: the driver of {url.drivername}:// is not installed; for {usual}:// run: pip install '{extra}'"
        ) from None
    if engine.dialect.is_async:
        raise ConfigurationError(f"ledger: {url.drivername} is a driver for asyncio; use {usual}://")
    dialect.prepare(engine)
    return engine


def _check_options(url: URL, driver: str) -> None:
    """Raise for an option in the URL that the driver does not take: it would be ignored, or fail at each connection."""
    options = driver_options(driver)
    if "uri" in options and asbool(url.query.get("uri", False)):  # the database itself reads the other options
        return
    for name in sorted(url.query.keys() - options):
        near = did_you_mean(name, options)
        raise ConfigurationError(f"ledger: {url.drivername} has no option {name!r}; correct it in the URL{near}")


def _ledger_class(scheme: str) -> Any:
    module, name = OTHERS[scheme]
    return getattr(import_module(module), name)


def _options(prefix: str | None, limits: Limits | None) -> dict[str, Any]:
    """Return the arguments of a ledger, without a prefix if the default applies."""
    return {"limits": limits} | ({} if prefix is None else {"prefix": prefix})
