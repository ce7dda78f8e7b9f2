"""A commit: batches on their way through the handler into the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from tidegate.app.handling import Handled, Postponed
from tidegate.app.spec import ListenerSpec
from tidegate.core.batching import Batch
from tidegate.core.errors import NotCommitted
from tidegate.core.records import Record, TopicPartition
from tidegate.core.spans import Claim, Span
from tidegate.core.tries import Tries
from tidegate.ledger import Outcome, Result
from tidegate.ledger.delivering import deliver
from tidegate.observe.observer import Committed, DeadLettered, Event, Skipped

__all__ = ["Commit", "Handle", "Outdated", "Process"]

_MOST_OUTDATED = 5

T = TypeVar("T")

Process: TypeAlias = Callable[[Any, Tries], Any]
"""What a listener does with records in a transaction, given what is known of them: see :meth:`Handling.run`."""

Handle: TypeAlias = Callable[[list[Record]], Process]
"""What it does with them before, which needs no transaction."""


class Outdated(Exception):
    """What was done before the transaction holds no more: nothing is committed, and it is to be done again."""


class Commit:
    """One job: made and asked about on the thread that polls, and run on another one in between."""

    def __init__(
        self,
        spec: ListenerSpec,
        ledger: Any,
        claims: dict[TopicPartition, Claim],
        batches: Sequence[Batch],
        *,
        handle: Handle,
        wait: Callable[[float], object],
    ) -> None:
        self.claims = claims
        self.spans = [batch.span for batch in batches]
        self._spec = spec
        self._ledger = ledger
        self._batches = batches
        self._records = [record for batch in batches for record in batch.records]
        self._tries = {place: tried for batch in batches for place, tried in batch.tries.items()}
        self._handle = handle
        self._process: Process | None = None
        self._wait = wait
        self._handled: Any = None
        self._took: float | None = None  # the handler, in the attempt that was the last
        self._began = time.monotonic()

    def run(self) -> Result:
        """Process and commit; raises :class:`Postponed`, or what :meth:`Ledger.transact` does."""
        if not self._records:
            result: Result = self._ledger.transact(self.claims, self.spans)
            return result
        delivery, spans = self._spec.delivery, self.spans
        return self._up_to_date(
            lambda: deliver(self._ledger, delivery, self.claims, spans, self._run, last=self._persist)
        )

    def _persist(self, apart: Callable[[], None]) -> None:
        """Their positions have moved: nobody hands out postponed records again, so they are waited for here."""
        while True:
            try:
                return self._up_to_date(apart)
            except Postponed as postponed:
                self._wait(postponed.after)

    def _up_to_date(self, deliver: Callable[[], T]) -> T:
        """Deliver what was done before the transaction; do that again if it was outdated by then."""
        for _ in range(_MOST_OUTDATED):
            self._prepared()
            try:
                return deliver()
            except Outdated as outdated:
                self._process, why = None, outdated
        raise NotCommitted(f"group {self._spec.group!r}, {self.spans[0]}: {why}, time and again") from why

    def _prepared(self) -> Process:
        if self._process is None:
            self._process = self._handle(self._records)
        return self._process

    def _run(self, tx: Any) -> None:
        process, began = self._prepared(), time.monotonic()
        try:
            self._handled = process(tx, self._tries)
            self._took = time.monotonic() - began
        except Postponed as postponed:
            self._tries = dict(postponed.tries)
            raise

    def batches(self) -> Iterator[Batch]:
        """The batches, each with what is known of its records by now."""
        for batch in self._batches:
            tries = {place: tried for place, tried in self._tries.items() if place[0] == batch.span.partition}
            yield batch._replace(tries=tries)

    def events(self, result: Result) -> Iterator[Event]:
        """What there is to tell, once it is committed."""
        group, took = self._spec.group, time.monotonic() - self._began
        already = result.outcome is Outcome.ALREADY_DONE
        known = result.attempts, result.unknown_outcomes, already, self._took
        yield Committed(group, tuple(self.spans), took, *known)
        if isinstance(self._handled, Handled):
            for letter in self._handled.parked:
                yield DeadLettered(group, letter.record.source, letter.record.offset, letter.error)
            for record, note in self._handled.skipped:
                yield Skipped(group, Span(record.source, record.offset, record.offset + 1, 1), "skip", note)
