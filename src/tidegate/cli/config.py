"""``tidegate config``: the settings as they hold."""

from __future__ import annotations

import json as text_of
from typing import Any

import typer

from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.failures import reported
from tidegate.cli.payload import harmless
from tidegate.cli.root import app
from tidegate.settings.origins import Held, held_settings

__all__ = ["show"]

settings = typer.Typer(no_args_is_help=True, help="The settings.")
app.add_typer(settings, name="config")


@settings.command("show")
def show(*, json: Json = False, config: Config = None, debug: Debug = False) -> None:
    """Show every setting as it holds, and where it was said: in the file, in the environment, or nowhere."""
    with reported(debug=debug):
        held = held_settings(config)
        if json:
            typer.echo(text_of.dumps({"settings": [each._asdict() for each in held]}, indent=2, default=str))
            return
        width = max(len(each.key) for each in held)
        values = [harmless(_said(each.value)) for each in held]
        wide = max(map(len, values))
        for each, value in zip(held, values, strict=True):
            typer.echo(f"{each.key:<{width}} = {value:<{wide}}  # {_origin(each)}")


def _said(value: Any) -> str:
    return "none" if value is None else text_of.dumps(value, ensure_ascii=False, default=str)


def _origin(each: Held) -> str:
    return each.origin if each.where is None else f"{each.origin} {each.where}"
