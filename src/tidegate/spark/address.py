"""The address of a ledger: how executors open the ledger that the driver has open."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from sqlalchemy import Engine

from tidegate.core.errors import ConfigurationError
from tidegate.ledger import Limits, SqlLedger
from tidegate.ledger.open import engine_at

__all__ = ["LedgerAddress"]

_PLAIN = (str, bytes, int, float, bool, type(None), PurePath)
_WAY_OUT = "pass the ledger's URL to the pipeline, or say all of it in connect_args as plain values"


@dataclass(frozen=True)
class LedgerAddress:
    """Goes to executors inside of their tasks, which no page, log or list of processes shows.

    ``connect_args`` are what the user's own engine gives its driver beside the URL.
    """

    url: str = field(repr=False)
    connect_args: Mapping[str, Any] = field(repr=False, hash=False)
    prefix: str
    limits: Limits

    @classmethod
    def of(cls, ledger: SqlLedger) -> LedgerAddress:
        """The address of a ledger that was opened from a URL, or from an engine that was."""
        url, given = ledger.engine.url, _connect_args(ledger.engine)
        if not (url.host or {"host", "unix_socket", "hostaddr", "service"} & {*url.query, *given}):
            raise ConfigurationError(
                "executors cannot open this ledger: its engine has no address; pass the ledger's URL to the pipeline"
            )
        written = url.render_as_string(hide_password=False)
        return cls(written, given, ledger.prefix, ledger.limits)

    def open(self) -> SqlLedger:
        """The ledger, opened once in each process."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(address: LedgerAddress) -> SqlLedger:
    engine = engine_at(address.url, address.connect_args)
    return SqlLedger(engine, prefix=address.prefix, limits=address.limits, owned=True)


def _connect_args(engine: Engine) -> dict[str, Any]:
    """What an engine gives its driver beside the URL. SQLAlchemy keeps it in the function that connects, and nowhere
    else; an engine with a function of its own, or with listeners that connect, cannot be opened elsewhere."""
    if list(engine.dialect.dispatch.do_connect):
        raise ConfigurationError(
            f"executors cannot open this ledger: its engine has a listener for 'do_connect', which cannot be sent to "
            f"them; {_WAY_OUT}"
        )
    known = inspect.getclosurevars(engine.pool._creator).nonlocals if _is_sqlalchemys(engine.pool._creator) else {}
    if "cparams" not in known:
        raise ConfigurationError(
            f"executors cannot open this ledger: its engine connects by a creator or a pool of its own, which cannot "
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
