"""``tidegate`` itself: the program that the commands belong to, and its own options."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

__all__ = ["app"]

# Typer's own tracebacks would show the local variables, and with them passwords.
app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tidegate {version('tidegate')}")
        raise typer.Exit


@app.callback()
def _tidegate(
    *,
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Kafka records into a database, exactly once."""
