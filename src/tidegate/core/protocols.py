"""How the members of a group share its partitions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

from tidegate.core.arguments import span

__all__ = ["Protocol", "SessionTimeout"]

SessionTimeout: TypeAlias = Annotated[float, span(0.001, 3600)]
"""How long a member may be silent before its partitions go to others; Kafka counts it in milliseconds."""


class Protocol(StrEnum):
    """How the members of a group share its partitions: the eager ones, the incremental one, and KIP-848's."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    COOPERATIVE = "cooperative-sticky"
    CONSUMER = "consumer"

    @property
    def is_incremental(self) -> bool:
        """Whether partitions are added and taken away one by one, and not all at once."""
        return self in (Protocol.COOPERATIVE, Protocol.CONSUMER)
