"""What an assignment asks of the runtime around it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim

__all__ = [
    "ClaimPartitions",
    "Command",
    "DropBuffers",
    "LedgerCommand",
    "PausePartitions",
    "ReadCommand",
    "ReclaimPartitions",
    "ReleaseClaims",
    "ResumePartitions",
    "SeekTo",
]


class ClaimPartitions(NamedTuple):
    """Claim them in one transaction and report the claims."""

    partitions: tuple[TopicPartition, ...]


class ReclaimPartitions(NamedTuple):
    """Find out where these claims stand, claim again what may be claimed, and report; ``take``: from others too."""

    claims: dict[TopicPartition, Claim]
    take: bool


class ReleaseClaims(NamedTuple):
    """Give these back. Best effort: whoever claims them next does not depend on it."""

    claims: dict[TopicPartition, Claim]


class SeekTo(NamedTuple):
    """Read the partition from here on, and collect batches under this generation.

    While a rebalance is being answered, it is assigned with the offset; at any other time it is a seek.
    """

    partition: TopicPartition
    offset: int
    generation: int


class DropBuffers(NamedTuple):
    """Forget what was read of these partitions and not committed."""

    partitions: tuple[TopicPartition, ...]


class PausePartitions(NamedTuple):
    """Fetch nothing from these for now."""

    partitions: tuple[TopicPartition, ...]


class ResumePartitions(NamedTuple):
    """Fetch from these again."""

    partitions: tuple[TopicPartition, ...]


LedgerCommand: TypeAlias = ClaimPartitions | ReclaimPartitions | ReleaseClaims
"""What is done in the ledger, one after the other."""

ReadCommand: TypeAlias = SeekTo | DropBuffers | PausePartitions | ResumePartitions
"""What is done at once, to where and whether a partition is read."""

Command: TypeAlias = LedgerCommand | ReadCommand
