"""An app without a program: the sinks that the settings name."""

from __future__ import annotations

from typing import Any, assert_never

from tidegate.app.app import App
from tidegate.core.errors import ConfigurationError
from tidegate.settings import Settings, SinkFormat, SinkSettings
from tidegate.tables.described import table_of

__all__ = ["configured"]


def configured(settings: Settings) -> App:
    """An app with a sink for each that the settings have."""
    if not settings.sink:
        raise ConfigurationError(
            "nothing to run: name an app, as in 'tidegate run shop:app', or describe a sink in tidegate.toml, under "
            "[sink.NAME]"
        )
    app = App(settings=settings)
    for name, said in settings.sink.items():
        try:
            _add(app, said)
        except ConfigurationError as error:
            raise ConfigurationError(f"sink.{name}: {error}") from None
    return app


def _add(app: App, said: SinkSettings) -> None:
    topics = said.topics[0] if said.topics[0].startswith("^") else said.topics
    app.sink(
        topics,
        into=table_of(said.into),
        group=said.group,
        format=_format(said),
        columns=said.columns or None,
        on_error=said.on_error.policy,
    )


def _format(said: SinkSettings) -> Any:
    match said.format:
        case SinkFormat.JSON:
            return "json"
        case SinkFormat.CSV:
            from tidegate.tables import CsvFormat  # noqa: PLC0415 - needs an extra

            return CsvFormat(said.fields)
        case other:
            assert_never(other)
