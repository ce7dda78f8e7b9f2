"""Spans, claims, and the work of one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from tidegate.core.arguments import argument
from tidegate.core.records import Record, TopicPartition
from tidegate.errors import ConfigurationError

__all__ = ["Advance", "Claim", "Move", "Span", "Work", "lasting"]


class Span(NamedTuple):
    """The half-open range of offsets ``[start, end)`` of one partition that one commit covers.

    ``end`` is where reading continues. Compaction and transaction markers leave gaps, so ``records`` can be smaller
    than ``end - start``, even 0.

    ``digest`` identifies what the span covers where its numbers alone do not: the planned offsets of a query's batch.
    """

    partition: TopicPartition
    start: int
    end: int
    records: int = 0
    digest: str | None = None

    def __str__(self) -> str:
        return f"{self.partition}@[{self.start}, {self.end})"


class Claim(NamedTuple):
    """The right to move one position, valid until another owner claims it or an operator edits it."""

    group: str
    partition: TopicPartition
    position: int
    epoch: int
    owner: str


class Move(StrEnum):
    """Why an owner moves its position; also the kind of the journal entry."""

    ADVANCE = "advance"
    SKIP = "skip"
    LOSS = "loss"


class Advance(NamedTuple):
    """One span to advance over, under one claim."""

    claim: Claim
    span: Span


class Work(NamedTuple):
    """What one transaction advances: its steps in lock order, and the token that identifies them.

    The token identifies the work, not the attempt: the same group, epochs, spans and move give the same token, so that
    a retry can see that the work was already committed. The move is part of it, so that processed records are not
    mistaken for lost ones. Spans with a digest give the same token in every epoch, and claims keep it: the next run of
    a query has to recognize the batch that the last one committed. With ``hasty``, the transaction reports conflicts
    early instead of waiting for locks, so that the caller can retry with fewer records.
    """

    group: str
    steps: tuple[Advance, ...]
    token: str
    move: Move
    note: str | None
    hasty: bool = False

    @classmethod
    def of(
        cls,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        hasty: bool = False,
    ) -> Work:
        """Pair each span with its claim; raise a :class:`ConfigurationError` if that is not possible."""
        if not isinstance(move, Move):  # the check of an argument costs as much as the rest of this function
            move = argument("move", Move, move)
        if note is not None and move is Move.ADVANCE:
            raise ConfigurationError("a note says why a span is stepped over: it goes with Move.SKIP or Move.LOSS")
        steps = []
        for span in sorted(spans):
            claim = claims.get(span.partition)
            if claim is None:
                raise ConfigurationError(f"{span} is not covered by a claim; claim {span.partition} first")
            if not 0 <= span.start < span.end < 1 << 63:
                raise ConfigurationError(f"{span} is not a range of offsets that moves forward")
            steps.append(Advance(claim, span))
        if not steps:
            raise ConfigurationError("a transaction needs at least one span to advance")
        if len({step.span.partition for step in steps}) < len(steps):
            raise ConfigurationError("a transaction advances each partition once; join the spans of a partition")
        group = steps[0].claim.group
        if any(step.claim.group != group for step in steps):
            raise ConfigurationError("a transaction advances the partitions of one group")
        return cls(group, tuple(steps), _token(group, steps, move), move, note, hasty)

    @classmethod
    def again(cls, group: str, record: Record) -> Work:
        """Create work that handles one record again without advancing a position; it has no epoch, owner or token."""
        span = Span(record.source, record.offset, record.offset + 1, 1)
        return cls(group, (Advance(Claim(group, record.source, record.offset, 0, ""), span),), "", Move.ADVANCE, None)

    def cut(self, spans: Iterable[Span]) -> tuple[Advance, ...]:
        """Return the steps shortened to ``spans``, without those that have no span there.

        Raise a :class:`ConfigurationError` if a span is not a prefix of the one it shortens.
        """
        if self.move is not Move.ADVANCE:
            raise ConfigurationError(f"{self}: only an advance can be cut, and this is a {self.move}")
        given = list(spans)
        shorter = {span.partition: span for span in given}
        planned = {step.span.partition: step.span for step in self.steps}
        if not given or len(shorter) < len(given):
            raise ConfigurationError(f"{self}: to cut it, give at least one span, and one of each partition at most")
        for tp, span in shorter.items():
            whole = planned.get(tp)
            if (
                whole is None
                or span.start != whole.start
                or not span.start < span.end <= whole.end
                or not 0 <= span.records <= whole.records
            ):
                raise ConfigurationError(f"{span} with {span.records} records is not the beginning of a span of {self}")
        return tuple(step._replace(span=shorter[tp]) for step in self.steps if (tp := step.span.partition) in shorter)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of the steps, in lock order."""
        return tuple(step.span for step in self.steps)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of the steps, in lock order."""
        return [step.span.partition for step in self.steps]

    def __str__(self) -> str:
        shown = ", ".join(str(step.span) for step in self.steps[:4])
        more = f" and {len(self.steps) - 4} more" if len(self.steps) > 4 else ""
        return f"group {self.group!r}: {shown}{more}"


def _token(group: str, steps: list[Advance], move: Move) -> str:
    parts = [
        (*step.span.partition, step.span.start, step.span.end, step.span.digest or step.claim.epoch) for step in steps
    ]
    name = repr((group, move.value, parts))
    token = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return _LASTING + token if all(step.span.digest for step in steps) else token


_LASTING = "batch:"


def lasting(token: str | None) -> str | None:
    """Return the token if claims keep it: that of spans with a digest."""
    return token if token is not None and token.startswith(_LASTING) else None
