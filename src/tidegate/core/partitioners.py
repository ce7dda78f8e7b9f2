"""Partitioners: which partition of a topic a record goes to."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import count
from typing import Any, Protocol, TypeAlias

from tidegate.core.arguments import Count, argument, described
from tidegate.core.errors import ConfigurationError

__all__ = ["Partitioner", "PartitionerChoice", "Partitioning", "RoundRobin", "java_partition", "murmur2"]

_MIX = 0x5BD1E995
_SEED = 0x9747B28C
_WORD = 0xFFFFFFFF


class Partitioning(StrEnum):
    """The partitioners that come with Tidegate."""

    MURMUR2 = "murmur2"
    """As Java's default: by the hash of the key; records without a key stay with one partition for a batch."""

    ROUND_ROBIN = "round-robin"
    """One partition after the other, whatever the key."""


class Partitioner(Protocol):
    """A partitioner of the user's own. Called by every thread that sends, so it has to be thread-safe."""

    def __call__(self, key: Any, value: Any, partitions: int, /) -> int | None:
        """The partition, below ``partitions``, for a key and a value as they were sent; ``None``: as by default."""


PartitionerChoice: TypeAlias = Partitioning | str | Partitioner


class RoundRobin:
    """One partition after the other, for the records of one topic."""

    def __init__(self) -> None:
        self._next = count()

    def __call__(self, key: Any, value: Any, partitions: int, /) -> int:
        """See :class:`Partitioner`."""
        return next(self._next) % partitions


def java_partition(key: bytes, partitions: int) -> int:
    """The partition that Java's default partitioner gives a key."""
    if not isinstance(key, bytes):
        raise ConfigurationError(f"key: expected bytes, not {described(key)}")
    partitions = argument("partitions", Count, partitions)
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash that Kafka's Java client has for keys, as an unsigned 32-bit number."""
    whole = len(data) & ~3
    state = _SEED ^ len(data)
    for word in _words(data[:whole]):
        state = (state * _MIX & _WORD) ^ _stirred(word)
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MIX & _WORD
    state = (state ^ state >> 13) * _MIX & _WORD
    return state ^ state >> 15


def _words(data: bytes) -> Iterator[int]:
    for start in range(0, len(data), 4):
        yield int.from_bytes(data[start : start + 4], "little")


def _stirred(word: int) -> int:
    word = word * _MIX & _WORD
    return (word ^ word >> 24) * _MIX & _WORD
