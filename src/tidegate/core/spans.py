"""Spans, claims, and the work that one transaction does with them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.errors import ConfigurationError
from tidegate.core.records import Record, TopicPartition

__all__ = ["Claim", "Move", "Span", "Step", "Work"]


class Span(NamedTuple):
    """The half-open range ``[start, end)`` of one partition that one commit covers.

    ``end`` is where reading continues. Compacted topics and transaction markers leave gaps, so ``records`` may be
    smaller than ``end - start``, and even 0.
    """

    partition: TopicPartition
    start: int
    end: int
    records: int = 0

    def __str__(self) -> str:
        return f"{self.partition}@[{self.start}, {self.end})"


class Claim(NamedTuple):
    """The right to move one position, until someone else claims or edits it."""

    group: str
    partition: TopicPartition
    position: int
    epoch: int
    owner: str


class Move(StrEnum):
    """Why an owner moves its position; the journal says the same."""

    ADVANCE = "advance"
    SKIP = "skip"
    LOSS = "loss"


class Step(NamedTuple):
    """One span to be advanced under one claim."""

    claim: Claim
    span: Span


class Work(NamedTuple):
    """What one transaction advances: its steps in lock order, and the token that names them.

    The token names the piece of work, not the attempt: the same group, epochs and spans give the same token, so that
    whoever tries the same work again can see that it was done.
    """

    group: str
    steps: tuple[Step, ...]
    token: str
    move: Move
    note: str | None

    @classmethod
    def of(
        cls,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
    ) -> Work:
        """Pair each span with its claim; what cannot be paired is a programming error and is refused."""
        steps = []
        for span in sorted(spans):
            claim = claims.get(span.partition)
            if claim is None:
                raise ConfigurationError(f"{span} is not covered by a claim; claim {span.partition} first")
            if not 0 <= span.start < span.end < 1 << 63:
                raise ConfigurationError(f"{span} is not a range of offsets that moves forward")
            steps.append(Step(claim, span))
        if not steps:
            raise ConfigurationError("a transaction needs at least one span to advance")
        if len({step.span.partition for step in steps}) < len(steps):
            raise ConfigurationError("a transaction advances each partition once; join the spans of a partition")
        group = steps[0].claim.group
        if any(step.claim.group != group for step in steps):
            raise ConfigurationError("a transaction advances the partitions of one group")
        return cls(group, tuple(steps), _token(group, steps), move, note)

    @classmethod
    def again(cls, group: str, record: Record) -> Work:
        """One record that is handled once more, and advances nothing: it has no epoch, no owner and no token."""
        span = Span(record.source, record.offset, record.offset + 1, 1)
        return cls(group, (Step(Claim(group, record.source, record.offset, 0, ""), span),), "", Move.ADVANCE, None)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the steps, in lock order."""
        return [step.span.partition for step in self.steps]

    def __str__(self) -> str:
        shown = ", ".join(str(step.span) for step in self.steps[:4])
        more = f" and {len(self.steps) - 4} more" if len(self.steps) > 4 else ""
        return f"group {self.group!r}: {shown}{more}"


def _token(group: str, steps: list[Step]) -> str:
    name = repr((group, [(*step.span.partition, step.span.start, step.span.end, step.claim.epoch) for step in steps]))
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
