"""The address of a ledger: what executors need to open the same ledger as the driver."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from sqlalchemy import Engine

from tidegate.errors import ConfigurationError
from tidegate.ledger import Limits, SqlLedger
from tidegate.ledger.open import engine_at

__all__ = ["LedgerAddress"]

_PLAIN = (str, bytes, int, float, bool, type(None), PurePath)
_WAY_OUT = "pass the ledger's URL to the pipeline, or put everything into connect_args as plain values"


@dataclass(frozen=True)
class LedgerAddress:
    """The URL and the options that open a ledger on an executor.

    Spark sends it inside the serialized tasks, so the password shows on no web page, in no log and in no process list.
    ``connect_args`` holds what the engine passes to its database driver in addition to the URL.
    """

    url: str = field(repr=False)
    connect_args: Mapping[str, Any] = field(repr=False, hash=False)
    prefix: str
    limits: Limits

    @classmethod
    def of(cls, ledger: SqlLedger) -> LedgerAddress:
        """Return the address of a ledger. Raises if executors cannot open it, such as for a URL without a host."""
        url, given = ledger.engine.url, _connect_args(ledger.engine)
        if not (url.host or {"host", "unix_socket", "hostaddr", "service"} & {*url.query, *given}):
            raise ConfigurationError(
                "executors cannot open this ledger: its engine has no address; pass the ledger's URL to the pipeline"
            )
        written = url.render_as_string(hide_password=False)
        return cls(written, given, ledger.prefix, ledger.limits)

    def open(self) -> SqlLedger:
        """Return the ledger. It is opened once in each process and then reused."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(address: LedgerAddress) -> SqlLedger:
    engine = engine_at(address.url, address.connect_args, limits=address.limits)
    return SqlLedger(engine, prefix=address.prefix, limits=address.limits, owned=True)


def _connect_args(engine: Engine) -> dict[str, Any]:
    """Return the arguments that an engine passes to its database driver in addition to those of the URL.

    SQLAlchemy stores them only in the closure of its connect function, so they are read from there. Raises for an
    engine with its own creator or with ``do_connect`` listeners: neither can be sent to executors.
    """
    if list(engine.dialect.dispatch.do_connect):
        raise ConfigurationError(
            f"executors cannot open this ledger: its engine has a listener for 'do_connect', which cannot be sent to "
            f"them; {_WAY_OUT}"
        )
    known = inspect.getclosurevars(engine.pool._creator).nonlocals if _is_sqlalchemys(engine.pool._creator) else {}
    if "cparams" not in known:
        raise ConfigurationError(
            f"executors cannot open this ledger: its engine has its own creator or pool, which cannot "
            f"be sent to them; {_WAY_OUT}"
        )
    of_url = engine.dialect.create_connect_args(engine.url)[1]
    given = {
        name: value
        for name, value in known["cparams"].items()
        if name not in of_url or not (of_url[name] is value or of_url[name] == value)
    }
    for name, value in given.items():
        _refuse_unless_plain(name, value)
    return given


def _is_sqlalchemys(creator: Any) -> bool:
    return inspect.isfunction(creator) and creator.__module__ == "sqlalchemy.engine.create"


def _refuse_unless_plain(name: str, value: Any) -> None:
    parts: list[Any] = [value]
    while parts:
        part = parts.pop()
        if isinstance(part, Mapping):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            parts += part
        elif not isinstance(part, _PLAIN):
            raise ConfigurationError(
                f"executors cannot open this ledger: {name!r} in its engine's connect_args is or holds an object of "
                f"type {type(part).__name__}, which cannot be sent to them; {_WAY_OUT}, such as paths of certificates"
            )
