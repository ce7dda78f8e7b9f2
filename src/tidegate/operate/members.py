"""Members: what running consumers say about themselves, at the port of their metrics."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from tidegate.core.errors import ConfigurationError
from tidegate.core.records import TopicPartition

__all__ = ["Members", "ask_members"]

_SECONDS = 2.0
_MOST_BYTES = 16 << 20


class Members(NamedTuple):
    """Where consumers of a group have read to, and which of them could not be asked, and why."""

    current: dict[TopicPartition, int]
    silent: tuple[str, ...]


def ask_members(group: str, addresses: Iterable[str]) -> Members:
    """Ask the consumers at ``host:port`` for ``/positions``; of two who read a partition the one further on counts."""
    current: dict[TopicPartition, int] = {}
    silent = []
    for address in addresses:
        host, port = _parsed(address)
        try:
            found = _positions(group, host, port)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            silent.append(f"{address}: {_reason(error)}")
            continue
        for tp, offset in found.items():
            current[tp] = max(offset, current.get(tp, offset))
    return Members(current, tuple(silent))


def _positions(group: str, host: str, port: int) -> dict[TopicPartition, int]:
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/positions")
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ValueError(f"it answered {response.status}")
        told: dict[str, Any] = json.loads(response.read(_MOST_BYTES))
    finally:
        connection.close()
    return {
        TopicPartition(str(each["topic"]), int(each["partition"])): int(each["current"])
        for each in told["positions"]
        if each["group"] == group and each["current"] is not None
    }


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{address!r} is no address of a member; write host:port, the port of its metrics")
    return host.strip("[]"), int(port)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error) or type(error).__name__).lower()
    return str(error) if isinstance(error, ValueError) and "answered" in str(error) else "it has no /positions"
