"""Replay: dead letters given to their listener once more, each in one transaction with its removal."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tidegate.app.commit import Handle, Outdated, Process
from tidegate.app.handling import HandlerFailed, described
from tidegate.app.listener import Listener
from tidegate.core.errors import ConfigurationError, NotCommitted
from tidegate.core.letters import ParkedLetter
from tidegate.core.records import TopicPartition
from tidegate.core.tries import NO_TRIES
from tidegate.ledger import Ledger, Outcome, Result

__all__ = ["Replay", "ReplayOutcome", "Replayed"]

_MOST_OUTDATED = 5


class ReplayOutcome(StrEnum):
    """What became of a dead letter."""

    REPLAYED = "replayed"
    """It was handled, and is gone."""

    GONE = "gone"
    """It was not there any more: somebody else has replayed or dropped it."""

    FAILED = "failed"
    """It failed again, and is still there, with one attempt more."""


class Replayed(NamedTuple):
    """What became of one dead letter; ``error`` is why it failed.

    ``parked_anew`` counts the commands that Redis refused: each of them is a dead letter of its own.
    """

    id: int
    partition: TopicPartition | None
    offset: int | None
    outcome: ReplayOutcome
    attempts: int
    error: str | None = None
    parked_anew: int = 0


class Replay:
    """Replays the dead letters of one group.

    Each goes to the listener of its group and topic, which handles it as any other record: decoded, bound, in the
    transaction that removes the letter. Whatever ``on_error`` says, a failure leaves the letter where it is.
    """

    def __init__(self, ledger: Ledger[Any] | None, listeners: Sequence[Listener], group: str) -> None:
        if ledger is None:
            raise ConfigurationError("the app has no ledger, and so it has no dead letters")
        self.ledger = ledger
        self._group = group
        self._listeners = [listener for listener in listeners if listener.spec.group == group]
        if not self._listeners:
            known = ", ".join(sorted({listener.spec.group for listener in listeners})) or "none"
            raise ConfigurationError(f"the app has no listener of group {group!r}; its groups are: {known}")
        self._handles: dict[str, Handle] = {}

    def one(self, number: int) -> Replayed:
        """Replay one letter.

        Raises what is no fault of the record: an error of the database, or that no listener reads its topic.
        """
        parked = self.ledger.dead_letter(self._group, number)
        if parked is None:
            return Replayed(number, None, None, ReplayOutcome.GONE, 0)
        try:
            result, refused = self._replayed(parked)
        except HandlerFailed as failed:
            error = described(failed.__cause__ or failed)
            if not self.ledger.failed_again(parked, error):
                return _told(parked, ReplayOutcome.GONE)
            return _told(parked, ReplayOutcome.FAILED)._replace(attempts=parked.letter.attempts + 1, error=error)
        is_done = result.outcome is Outcome.COMMITTED
        return _told(parked, ReplayOutcome.REPLAYED if is_done else ReplayOutcome.GONE)._replace(parked_anew=refused)

    def _replayed(self, parked: ParkedLetter) -> tuple[Result, int]:
        """How the transaction ended, and how many commands Redis refused in it."""
        record = parked.letter.record
        handle = self._handle(record.topic)
        for _ in range(_MOST_OUTDATED):
            process = handle([record])
            seen: list[Any] = []

            def handler(tx: Any, process: Process = process, seen: list[Any] = seen) -> None:
                seen.append(tx)
                process(tx, NO_TRIES)

            try:
                result = self.ledger.replay(parked, handler)
            except Outdated as outdated:
                why = outdated
            else:
                return result, getattr(seen[-1], "failed", 0) if seen else 0
        raise NotCommitted(f"dead letter {parked.id} of group {self._group!r}: {why}, time and again") from why

    def _handle(self, topic: str) -> Handle:
        if topic not in self._handles:
            fitting = [listener for listener in self._listeners if listener.spec.topics.covers(topic)]
            if len(fitting) != 1:
                what = f"{len(fitting)} listeners" if fitting else "no listener"
                raise ConfigurationError(
                    f"group {self._group!r} has {what} for topic {topic}, and a dead letter of it needs one to go to"
                )
            self._handles[topic] = fitting[0].strict(self.ledger)
        return self._handles[topic]


def _told(parked: ParkedLetter, outcome: ReplayOutcome) -> Replayed:
    record = parked.letter.record
    return Replayed(parked.id, record.source, record.offset, outcome, parked.letter.attempts)
