"""``tidegate dashboard``: the page over the ledger."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.connecting import Config, Debug, Kafka, NoKafka, surveyed
from tidegate.cli.failures import reported
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.root import app
from tidegate.cli.watching import LogLevel, log_to_stderr
from tidegate.core.errors import ConfigurationError
from tidegate.kafka.survey import Survey
from tidegate.ledger.base import Ledger
from tidegate.settings import masked

if TYPE_CHECKING:
    from tidegate.web.server import Dashboard

__all__ = ["dashboard"]

_TOKEN = "TIDEGATE_DASHBOARD_TOKEN"  # noqa: S105 - the name of the variable that holds it

_Host = Annotated[str, typer.Option(help="The address to listen at.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 is any free one.")]
_Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A name that browsers use for it; may be given again."),
]
_Members = Annotated[
    list[str] | None,
    typer.Option("--member", metavar="HOST:PORT", help="A consumer's metrics port, to ask; may be given again."),
]
_Changes = Annotated[bool, typer.Option("--allow-changes", help="Allow pause, resume, rewind and skip on the page.")]
_Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


@app.command("dashboard")
def dashboard(
    *,
    host: _Host = "127.0.0.1",
    port: _Port = 8600,
    allow_host: _Names = None,
    allow_changes: _Changes = False,
    member: _Members = None,
    open_browser: _Open = False,
    no_kafka: NoKafka = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Serve a web page with lag, throughput, partitions, dead letters and journal, until SIGINT or SIGTERM.

    The address that it prints holds a token, behind the #: whoever has it gets in.
    """
    with reported(debug=debug):
        log_to_stderr(LogLevel.WARNING)
        survey = surveyed(kafka, config, no_kafka=no_kafka)
        with opened_ledger(ledger, config) as opened:
            page = _made(
                opened,
                survey,
                host=host,
                port=port,
                names=allow_host or (),
                allow_changes=allow_changes,
                members=member or (),
            )
            with _way_in(page) if open_browser else _nothing() as file:
                page.run(lambda: _announce(page, survey, file))


def _made(ledger: Ledger[Any], survey: Survey | None, **options: Any) -> Dashboard:
    try:
        from tidegate.web.server import Dashboard  # noqa: PLC0415 - an extra
        from tidegate.web.sessions import Token  # noqa: PLC0415 - likewise
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the dashboard needs {error.name}, which is not installed; run: pip install 'tidegate[web]'"
        ) from None
    token = Token(os.environ.get(_TOKEN))
    return Dashboard(ledger, survey, ledger_name=masked(str(ledger)), token=token, **options)


def _announce(page: Dashboard, survey: Survey | None, file: Path | None) -> None:
    if survey is None:
        typer.echo("Kafka is not asked: the page shows what the ledger has, and no lag.", err=True)
    if not page.is_local:
        typer.echo("Others can reach this page, and it is not encrypted: put something with TLS before it.", err=True)
    typer.echo(f"The dashboard is at {page.printed}")
    if file is not None:
        webbrowser.open(file.as_uri())


@contextmanager
def _way_in(page: Dashboard) -> Iterator[Path]:
    """A file that only this user can read and that leads to the page: the arguments of a browser are everybody's."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "dashboard.html"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={page.way_in}">')
        yield file


@contextmanager
def _nothing() -> Iterator[None]:
    yield
