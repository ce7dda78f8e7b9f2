"""Replay: passes dead letters to their listener again; one transaction handles the record and removes the letter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tidegate.app.handler import Handler, HandlerFailed, Outdated, Prepared, stopped_by
from tidegate.app.listener import Listener
from tidegate.core.records import StoredLetter, TopicPartition, left_out
from tidegate.core.work import Work
from tidegate.errors import CommitRefused, ConfigurationError, NotCommitted
from tidegate.ledger import Ledger, Outcome, Result
from tidegate.ledger.blame import Blame, described, fault_of
from tidegate.ledger.transaction import NoTransaction, Transaction

__all__ = ["Replay", "ReplayOutcome", "Replayed"]

_MOST_OUTDATED = 5
_NOT_ALL = (
    "the letter does not hold all of its record, which was too large for the ledger's database ({}); make room for it "
    "there, move the position back to the record, and drop the letter"
)


class ReplayOutcome(StrEnum):
    """How the replay of a dead letter ended."""

    REPLAYED = "replayed"
    """The record was handled, and the letter removed."""

    GONE = "gone"
    """The letter no longer existed: it was replayed or dropped elsewhere."""

    FAILED = "failed"
    """Handling failed again, or the letter lacks a part of its record and was not tried; the letter remains."""


class Replayed(NamedTuple):
    """The result of replaying one dead letter; ``error`` is why it failed.

    ``parked_anew`` counts the commands that Redis refused in the replay. Each of them is a new dead letter.
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

    Each letter goes to the listener of its group and topic, which decodes and handles it like any other record, in the
    transaction that removes the letter. A handler that takes no transaction runs before it. If handling fails, the
    letter remains, whatever ``on_error`` says.
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
        self._handlers: dict[str, Handler] = {}

    def one(self, number: int) -> Replayed:
        """Replay one letter and return the result.

        Raises only errors that are not the record's fault: an error of the database, or a topic without a listener.
        """
        parked = self.ledger.dead_letter(self._group, number)
        if parked is None:
            return Replayed(number, None, None, ReplayOutcome.GONE, 0)
        if missing := left_out(parked.letter.record):
            return _told(parked, ReplayOutcome.FAILED)._replace(error=_NOT_ALL.format(missing))
        try:
            result, refused = self._replayed(parked)
        except (HandlerFailed, CommitRefused) as failed:
            cause = failed.__cause__
            if isinstance(failed, CommitRefused) and (cause is None or fault_of(cause).blame is not Blame.RECORD):
                raise
            error = described(cause or failed)
            if not self.ledger.failed_again(parked, error):
                return _told(parked, ReplayOutcome.GONE)
            return _told(parked, ReplayOutcome.FAILED)._replace(attempts=parked.letter.attempts + 1, error=error)
        except Exception as failed:
            if stopped := stopped_by(failed, self._handler(parked.letter.record.topic).name, self._group):
                raise stopped from failed
            raise
        is_done = result.outcome is Outcome.COMMITTED
        return _told(parked, ReplayOutcome.REPLAYED if is_done else ReplayOutcome.GONE)._replace(parked_anew=refused)

    def check(self, topic: str) -> None:
        """Raise if letters of this topic cannot be replayed, because not exactly one listener handles it."""
        self._listener(topic)

    def _replayed(self, parked: StoredLetter) -> tuple[Result, int]:
        """Run the replay transaction; return its result, and how many commands Redis refused in it."""
        record = parked.letter.record
        handler = self._handler(record.topic)
        for _ in range(_MOST_OUTDATED):
            handler.look_up([record])  # an outage of a schema registry is not the record's fault
            attempts = _Attempts(handler.prepare([record]))
            if handler.is_apart:  # it may take long, so it runs before the transaction opens
                attempts.run_before(NoTransaction(Work.again(self._group, record)))
            try:
                result = self.ledger.replay(parked, attempts)
            except Outdated as outdated:
                why = outdated
            else:
                return result, attempts.refused
        raise NotCommitted(f"dead letter {parked.id} of group {self._group!r}: {why}, time and again") from why

    def _listener(self, topic: str) -> Listener:
        fitting = [listener for listener in self._listeners if listener.spec.topics.covers(topic)]
        if len(fitting) != 1:
            what = f"{len(fitting)} listeners" if fitting else "no listener"
            raise ConfigurationError(
                f"group {self._group!r} has {what} for topic {topic}; a replay of its dead letters needs exactly one"
            )
        return fitting[0]

    def _handler(self, topic: str) -> Handler:
        listener = self._listener(topic)
        if topic not in self._handlers:
            self._handlers[topic] = listener.strict(self.ledger)
        return self._handlers[topic]


class _Attempts:
    """The attempts at the transaction of one replay: each handles the record, unless it was handled before."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared: Prepared | None = prepared
        self._tx: Transaction | None = None

    def run_before(self, tx: NoTransaction) -> None:
        """Handle the record now, so that there is nothing left to do in the transaction; raises what it fails with."""
        if self._prepared is not None and (error := self._prepared.run(tx).error) is not None:
            raise error
        self._prepared = None

    def __call__(self, tx: Transaction) -> None:
        self._tx = tx
        if self._prepared is not None:
            self._prepared.run(tx)

    @property
    def refused(self) -> int:
        """The number of commands that Redis refused in the last attempt."""
        return 0 if self._tx is None else self._tx.failed


def _told(parked: StoredLetter, outcome: ReplayOutcome) -> Replayed:
    record = parked.letter.record
    return Replayed(parked.id, record.source, record.offset, outcome, parked.letter.attempts)
