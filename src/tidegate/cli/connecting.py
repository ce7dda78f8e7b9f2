"""Connecting to Kafka: the address on the command line, or the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.core.errors import ConfigurationError
from tidegate.settings import Settings

__all__ = ["Config", "Debug", "Kafka", "connection"]

Kafka = Annotated[str | None, typer.Option(metavar="ADDRESS", help="A broker; otherwise as the settings say.")]
Config = Annotated[Path | None, typer.Option(help="The settings; otherwise tidegate.toml here, if there is one.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def connection(kafka: str | None, config: Path | None) -> dict[str, Any]:
    """Settings of librdkafka for the cluster that is meant."""
    settings = Settings.load(config).kafka.configuration()
    if kafka is not None:
        settings["bootstrap.servers"] = kafka
    if "bootstrap.servers" not in settings:
        raise ConfigurationError("no broker is named; give --kafka host:9092, or set it in tidegate.toml")
    return settings
