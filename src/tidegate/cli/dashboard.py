"""``tidegate dashboard``: serve the web page over the ledger."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.options import Config, Debug, Kafka, LedgerUrl, NoKafka, app, opened_ledger, reported, surveyed
from tidegate.cli.serve import LogLevel, log_to_stderr
from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError
from tidegate.kafka.cluster import Survey
from tidegate.ledger.ledger import Ledger
from tidegate.settings import Settings

if TYPE_CHECKING:
    from tidegate.app.listener import Listener
    from tidegate.web.application import Dashboard
    from tidegate.web.security import Token

__all__ = ["dashboard"]

_TOKEN = "TIDEGATE_DASHBOARD_TOKEN"  # noqa: S105 - the name of an environment variable, not a secret

_Host = Annotated[str, typer.Option(help="The address to listen at.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 chooses a free one.")]
_Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="NAME", help="A name that browsers use for it; may be given again."),
]
_Members = Annotated[
    list[str] | None,
    typer.Option("--member", metavar="HOST:PORT", help="A consumer's metrics port, to ask; may be given again."),
]
_Changes = Annotated[
    bool, typer.Option("--allow-changes", help="Allow pause, resume, rewind, skip, and replay and drop of letters.")
]
_App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:APP", help="Replay dead letters to its listeners. Default: to the sinks."),
]
_Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


@app.command("dashboard")
def dashboard(
    *,
    host: _Host = "127.0.0.1",
    port: _Port = 8600,
    allow_host: _Names = None,
    allow_changes: _Changes = False,
    app_name: _App = None,
    member: _Members = None,
    open_browser: _Open = False,
    no_kafka: NoKafka = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Serve a web page with lag, throughput, partitions, dead letters and journal, until SIGINT or SIGTERM.

    The link that it prints logs one browser in. It works once, and is then replaced by another one.
    """
    with reported(debug=debug):
        log_to_stderr(LogLevel.WARNING)
        survey = surveyed(kafka, config, no_kafka=no_kafka)
        with opened_ledger(ledger, config) as opened:

            def entered() -> None:
                if not token.is_chosen:  # the printed link is used up
                    with contextlib.suppress(OSError):
                        typer.echo(f"For another browser: {page.printed()}")

            token = _token()
            page = _made(
                opened,
                survey,
                host=host,
                port=port,
                names=allow_host or (),
                allow_changes=allow_changes,
                members=member or (),
                token=token,
                listeners=_listeners(app_name, config, opened) if allow_changes else (),
                entered=entered,
            )
            with _way_in(page) if open_browser else _nothing() as file:
                page.run(lambda: _announce(page, survey, file))


def _listeners(name: str | None, config: Path | None, ledger: Ledger[Any]) -> Sequence[Listener]:
    """Return the listeners of the named app, or the sinks of the settings, to which dead letters are replayed."""
    from tidegate.app.app import App, configured  # noqa: PLC0415 - few need it

    if name is None:
        settings = Settings.load(config)
        return configured(settings).listeners if settings.sink else ()
    from tidegate.cli.run import load  # noqa: PLC0415

    found = load(name)
    if not isinstance(found, App):
        raise ConfigurationError(
            f"--app: {name} is of type {type(found).__name__}; dead letters are replayed by an App"
        )
    if found.ledger is None or str(found.ledger) != str(ledger):
        raise ConfigurationError(f"--app: {name} has another ledger than the dashboard; its letters are not shown here")
    return found.listeners


def _token() -> Token:
    try:
        from tidegate.web.security import Token  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return Token(os.environ.get(_TOKEN))


def _missing(error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(
        f"the dashboard needs {error.name}, which is not installed; run: pip install 'tidegate[web]'"
    )


def _made(ledger: Ledger[Any], survey: Survey | None, **options: Any) -> Dashboard:
    try:
        from tidegate.web.application import Dashboard  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return Dashboard(ledger, survey, ledger_name=masked(str(ledger)), **options)


def _announce(page: Dashboard, survey: Survey | None, file: Path | None) -> None:
    if survey is None:
        typer.echo("Kafka is not asked: the page shows what the ledger has, and no lag.", err=True)
    if not page.is_local:
        typer.echo("Others can reach this page, and it is not encrypted: put something with TLS before it.", err=True)
    typer.echo(f"The dashboard is at {page.printed()}")
    if file is not None:
        webbrowser.open(file.as_uri())


@contextmanager
def _way_in(page: Dashboard) -> Iterator[Path]:
    """Yield a temporary HTML file that redirects to the page and that only this user can read.

    The browser is given this file because every user can read a process's arguments, and the page's address holds the
    secret.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "dashboard.html"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={page.way_in()}">')
        yield file


@contextmanager
def _nothing() -> Iterator[None]:
    yield
