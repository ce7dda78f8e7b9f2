"""Clients of librdkafka, opened so that wrong settings are told as such, and not as a cluster that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from tidegate.core.errors import ConfigurationError

__all__ = ["open_client"]

T = TypeVar("T")


def open_client(kind: Callable[[dict[str, Any]], T], config: Mapping[str, Any], what: str) -> T:
    """A client; raises :class:`ConfigurationError` if librdkafka does not know or take one of the settings."""
    try:
        return kind(dict(config))
    except (KafkaException, ValueError, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigurationError(f"librdkafka refused the {what}'s settings: {reason}") from None
