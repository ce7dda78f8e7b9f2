"""Failures, as a person at a terminal or a log file wants them: one line; the traceback on request; no passwords."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from tidegate.cli.codes import ExitCode
from tidegate.core.errors import TidegateError
from tidegate.settings import masked

__all__ = ["reported"]


@contextmanager
def reported(*, debug: bool) -> Iterator[None]:
    """Show an error in one line and exit with its code."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit):
            raise
        if debug:
            sys.stderr.write(masked("".join(traceback.format_exception(error))))
        typer.echo(f"error: {masked(_line(error))}", err=True)
        raise typer.Exit(ExitCode.of(error)) from None


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, TidegateError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
