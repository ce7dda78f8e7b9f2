"""The address of a ledger: how executors open the ledger that the driver has open."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tidegate.core.errors import ConfigurationError
from tidegate.ledger import Limits, SqlLedger, open_ledger

__all__ = ["LedgerAddress"]


@dataclass(frozen=True)
class LedgerAddress:
    """Goes to executors inside of their tasks, which no page, log or list of processes shows."""

    url: str = field(repr=False)
    prefix: str
    limits: Limits

    @classmethod
    def of(cls, ledger: SqlLedger) -> LedgerAddress:
        """The address of a ledger that was opened from a URL, or from an engine that was."""
        url = ledger.engine.url
        if url.host is None and not url.query.get("host") and not url.query.get("unix_socket"):
            raise ConfigurationError(
                "executors cannot open this ledger: its engine has no address; pass the ledger's URL to the pipeline"
            )
        return cls(url.render_as_string(hide_password=False), ledger.prefix, ledger.limits)

    def open(self) -> SqlLedger:
        """The ledger, opened once in each process."""
        return _opened(self)


@lru_cache(maxsize=8)
def _opened(address: LedgerAddress) -> SqlLedger:
    ledger = open_ledger(address.url, prefix=address.prefix, limits=address.limits)
    assert isinstance(ledger, SqlLedger)  # noqa: S101 - it was one on the driver
    return ledger
