"""Connecting to Kafka: the address on the command line, or the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.survey import Survey
from tidegate.settings import Settings

__all__ = ["Config", "Debug", "Json", "Kafka", "NoKafka", "cluster", "connection", "surveyed"]

Kafka = Annotated[str | None, typer.Option(metavar="ADDRESS", help="A broker; otherwise as the settings say.")]
NoKafka = Annotated[bool, typer.Option("--no-kafka", help="Ask the ledger alone.")]
Config = Annotated[Path | None, typer.Option(help="The settings; otherwise tidegate.toml here, if there is one.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def connection(kafka: str | None, config: Path | None) -> dict[str, Any]:
    """Settings of librdkafka for the cluster that is meant."""
    settings = _client_settings(kafka, config)
    if "bootstrap.servers" not in settings:
        raise ConfigurationError("no broker is named; give --kafka host:9092, or set it in tidegate.toml")
    return settings


def cluster(kafka: str | None, config: Path | None) -> Survey:
    """The cluster, for whoever cannot do without."""
    return Survey(connection(kafka, config))


def surveyed(kafka: str | None, config: Path | None, *, no_kafka: bool = False) -> Survey | None:
    """The cluster, if one is named and wanted."""
    settings = _client_settings(kafka, config)
    return Survey(settings) if "bootstrap.servers" in settings and not no_kafka else None


def _client_settings(kafka: str | None, config: Path | None) -> dict[str, Any]:
    settings = Settings.load(config).kafka.configuration()
    if kafka is not None:
        settings["bootstrap.servers"] = kafka
    return settings
