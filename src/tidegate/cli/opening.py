"""Opening the ledger that a command is about: the one on the command line, or that of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.core.errors import ConfigurationError
from tidegate.ledger import Ledger, Limits, open_ledger
from tidegate.settings import Settings, masked

__all__ = ["LedgerUrl", "opened_ledger"]

LedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="The ledger, without a password; otherwise as the settings say."),
]


def opened_ledger(url: str | None, config: Path | None) -> Ledger[Any]:
    """The ledger that is meant; it is to be closed. A password in the arguments would be everybody's to read."""
    said = Settings.load(config).ledger
    if url is not None and masked(url) != url:
        raise ConfigurationError(
            "--ledger has a password in it, which everybody on this machine could read; put the URL into "
            "TIDEGATE_LEDGER or tidegate.toml"
        )
    where = url or said.url
    if where is None:
        raise ConfigurationError("no ledger is named; set TIDEGATE_LEDGER, or ledger in tidegate.toml")
    limits = Limits(said.limits.hold, said.limits.lock_wait, said.limits.attempts)
    return open_ledger(where, prefix=said.prefix, limits=limits)
