"""Commit: passes batches to the handler and commits them in the ledger, for :class:`~tidegate.app.member.Member`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, assert_never

from tidegate.app.handler import Handled, Handler, HandlerFailed, Outdated, Postponed, Prepared
from tidegate.app.spec import ListenerSpec
from tidegate.core.batches import TURN, Batch, Done, Refused, Tried, Tries, split
from tidegate.core.policies import Backoff, Delivery, Park, StepOver
from tidegate.core.records import FailedRecord, Record, Records, TopicPartition
from tidegate.core.runtime import Runtime, Signal
from tidegate.core.work import Claim, Span, Work
from tidegate.errors import (
    CommitRefused,
    HeldTooLong,
    LedgerConflict,
    LedgerError,
    NotCommitted,
    StatementTooLong,
)
from tidegate.ledger import Outcome, Result
from tidegate.ledger.blame import Blame, fault_of
from tidegate.ledger.ledger import deliver
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.threads import THREADS
from tidegate.ledger.transaction import NoTransaction, Transaction
from tidegate.observe.events import Committed, DeadLettered, Event, Skipped

__all__ = ["Commit", "InParts"]

_MOST_OUTDATED = 5
_WAITS = Backoff(0.04, 2.0, 1.0)  # upper bounds of the waits after conflicts
_MOST_CONFLICTS = 1  # per commit: then the group's members take turns, and the next commit has fewer records
_NOTHING = Handled(0, (), ())

T = TypeVar("T")


class InParts(Exception):
    """The database refused COMMIT because of some of the records; smaller commits will show which."""


class Commit:
    """One job that handles and commits batches.

    The polling thread creates it and reads its results; another thread runs it in between.

    A commit may cover only a part of its batches: after half of the limit ``hold`` (sooner if other members wait for
    their turn), or when ``hurry`` is set, it commits the records that are handled by then. A handler that takes no
    transaction runs outside the transaction. Its effects cannot be rolled back, so a record that it has handled is not
    handled again if a later step fails.
    """

    def __init__(
        self,
        spec: ListenerSpec,
        ledger: PositionStore[Any],
        claims: dict[TopicPartition, Claim],
        batches: Sequence[Batch],
        *,
        handler: Handler,
        hurry: Signal,
        runtime: Runtime = THREADS,
    ) -> None:
        self.claims = claims
        self.advanced: tuple[Span, ...] = ()
        """The spans that were committed."""
        self.error: Exception | None = None
        """The error of the first record after the committed ones, if its handling failed."""
        self.seconds = 0.0
        """The duration of handling in the last attempt."""
        self.begun = 0
        """The number of records that the last attempt has passed to the handler."""
        self._spec = spec
        self._ledger = ledger
        self._batches = batches
        self.records = Records.joined([batch.records for batch in batches])
        """All records of the batches."""
        self._records = self.records  # those to handle now
        self._tries: Tries = {place: tried for batch in batches for place, tried in batch.tries.items()}
        self._handler = handler
        self._hurry = hurry
        self._runtime = runtime
        self._clock = runtime.monotonic
        self._may_leave = spec.delivery is not Delivery.AT_MOST_ONCE
        self._prepared: Prepared | None = None
        self._held: set[tuple[TopicPartition, int]] = set()  # records that exceeded hold in the last attempt
        self._blamed = False  # whether COMMIT was refused because of a single record: a second refusal is raised
        self._last = _NOTHING
        self._outcomes: list[Handled] = []
        self._deadline = 0.0
        self._began = self._clock()

    def run(self) -> Result:
        """Handle and commit the batches.

        Raises :class:`Postponed`, :class:`~tidegate.errors.RegistryUnavailable`, or the errors of
        :meth:`Ledger.transact`.
        """
        if not self._records:
            result = self._ledger.transact(self.claims, self._spans)
        else:
            # First, because at most once the position moves before the handling.
            self._handler.look_up(self._records, self._check_hurry)
            result = self._run_apart() if self._handler.is_apart else self._run_inside()
        self.advanced = result.spans
        return result

    def _check_hurry(self) -> None:
        """Hand all records back if there is no time to ask for their schemas; no position has moved yet."""
        if self._hurry.is_set():
            first = self._records[0]
            raise Postponed(first.source, first.offset, 0.0, self._tries)

    @property
    def may_be_cut(self) -> bool:
        """Whether a new commit can try fewer records. At most once, it cannot: the position has already passed them."""
        return self._may_leave and len(self.records) > 1

    def rest(self) -> Iterator[Batch]:
        """Return the batches, or parts of them, that were not committed, with the results of the attempts so far."""
        ends = {span.partition: span.end for span in self.advanced}
        for batch in self._batches:
            tp, start, end, *_ = batch.span
            if (reached := ends.get(tp, start)) < end:
                tries = {place: tried for place, tried in self._tries.items() if place[0] == tp}
                yield batch._replace(tries=tries).behind(reached)

    def too_slow(self, error: HeldTooLong | StatementTooLong) -> LedgerError:
        """Return the error that stops the listener if even a single record takes too long."""
        if isinstance(error, StatementTooLong):
            return error
        record = self._records[0]
        return HeldTooLong(
            f"group {self._spec.group!r}, {record.source} offset {record.offset}",
            "Let the handler take no Transaction: it is then run before the transaction opens",
            seconds=error.seconds,
            hold=error.hold,
        )

    @property
    def _spans(self) -> list[Span]:
        return [batch.span for batch in self._batches]

    # Handlers that run inside the transaction

    def _run_inside(self) -> Result:
        delivery, spans = self._spec.delivery, self._spans

        def once() -> Result:
            return deliver(
                *(self._ledger, delivery, self.claims, spans, self._run),
                written=lambda: self._spans_of(self._last) if self._last.left else spans,
                last=self._persist,
                conflicts=_MOST_CONFLICTS,
            )

        while True:
            try:
                result = self._up_to_date(once)
                break
            except CommitRefused as refused:
                if not self._is_blamed(refused):
                    raise InParts(str(refused)) from refused
            except HeldTooLong:
                if delivery is not Delivery.AT_LEAST_ONCE or self._is_held_again(self._records):
                    raise
        if self._may_leave and self._last is not _NOTHING:
            self._handled()
        return result

    def _spans_of(self, handled: Handled) -> list[Span]:
        done, _ = split(self._batches, len(self._records) - handled.left)
        return [batch.span for batch in done]

    def _persist(self, once: Callable[[], object]) -> None:
        """Handle all records now, because their positions have already moved: they will not be read again."""
        try:
            self._handle_all(once)
        except HandlerFailed as failed:
            failed.has_moved = True
            raise

    def _handle_all(self, once: Callable[[], object]) -> None:
        left, most, seconds, conflicts = self._records, len(self._records), 0.0, 0
        at = len(left), most
        while left:
            some = left[:most]
            if at != (at := (len(left), len(some))):
                self._records, self._prepared = some, None
            try:
                self._up_to_date(once)
            except Postponed as postponed:
                self._blamed = False
                self._hurry.wait(postponed.after)
            except LedgerConflict:
                conflicts += 1
                if conflicts > 1:
                    most = max(1, len(some) // 2)
                self._wait_out(conflicts)
            except CommitRefused as refused:
                if not self._is_blamed(refused):
                    most = max(1, len(some) // 2)
            except (HeldTooLong, StatementTooLong) as error:
                if len(some) == 1 and (isinstance(error, StatementTooLong) or self._is_held_again(some)):
                    raise self.too_slow(error) from error
                most = max(1, len(some) // 2)
            else:
                seconds, conflicts, self._blamed = seconds + self.seconds, 0, False
                handled = self._handled()
                left = left[len(some) - handled.left :]
                if isinstance(handled.error, Postponed):
                    self._hurry.wait(handled.error.after)
                elif handled.error is not None:
                    raise handled.error
        self.seconds = seconds

    def _is_held_again(self, records: Sequence[Record]) -> bool:
        """Return whether to give up on records that exceeded ``hold``.

        A single record gets a second attempt, because the process itself may have been frozen during the first one.
        """
        places = set(map(_place, records))
        held, self._held = self._held, places
        return len(places) > 1 or held == places

    def _wait_out(self, conflicts: int) -> None:
        self._hurry.wait(self._runtime.random().random() * _WAITS.after(conflicts))

    @property
    def _suspects(self) -> list[tuple[TopicPartition, int]]:
        """The records that may have caused a refused COMMIT: all that are not settled as done before."""
        is_done = {place for place, tried in self._tries.items() if isinstance(tried.settled, Done)}
        return [place for place in map(_place, self._records) if place not in is_done]

    def _is_blamed(self, refused: CommitRefused) -> bool:
        """Return whether a single record caused the refused COMMIT, and note that for its next run.

        Raises ``refused`` if the cause is not a record, or if a record was blamed before.
        """
        error = refused.__cause__
        if self._blamed or not isinstance(error, Exception) or fault_of(error).blame is not Blame.RECORD:
            raise refused
        if len(self._suspects) != 1:
            return False
        self._blamed = True
        (place,) = self._suspects
        failed = self._tries[place].failed if place in self._tries else 0
        self._tries = {**self._tries, place: Tried(failed, Refused(error))}
        return True

    def _up_to_date(self, deliver: Callable[[], T]) -> T:
        """Prepare the records and call ``deliver``; repeat both while the preparation is outdated."""
        for _ in range(_MOST_OUTDATED):
            self._prepare()
            try:
                return deliver()
            except Outdated as outdated:
                self._prepared, why = None, outdated
        raise NotCommitted(f"group {self._spec.group!r}, {self._spans[0]}: {why}, time and again") from why

    # Handlers that run outside the transaction

    def _run_apart(self) -> Result:
        ledger, delivery = self._ledger, self._spec.delivery
        match delivery:
            case Delivery.AT_MOST_ONCE:
                result = ledger.transact(self.claims, self._spans)
                if result.outcome is Outcome.COMMITTED:
                    self._persist(self._handle_and_park)
                return result
            case Delivery.EXACTLY_ONCE | Delivery.AT_LEAST_ONCE:
                if not ledger.confirm(self.claims, self._spans):
                    return ledger.transact(self.claims, self._spans)
                return self._handle_and_advance()
            case other:
                assert_never(other)

    def _handle_and_advance(self) -> Result:
        handled = self._run_outside()
        self.error = handled.error
        if handled.error is not None and handled.left == len(self._records):
            raise handled.error
        parks = [partial(_park, handled.parked)] if handled.parked else []
        try:
            result = self._ledger.transact(self.claims, self._spans_of(handled), *parks)
        except Exception:
            self._tries = {**self._tries, **_settled(self._records, handled)}
            raise
        self._handled()
        return result

    def _handle_and_park(self) -> None:
        handled, conflicts = self._run_outside(), 0
        # If parking fails in a way that a smaller attempt may avoid, that attempt handles none of these records again.
        self._tries = {**self._tries, **_settled(self._records, handled)}
        while handled.parked:
            try:
                with self._ledger.detached(self.claims, self._spans) as tx:
                    _park(handled.parked, tx)
                return
            except LedgerConflict:  # the records are handled: retry only the parking
                conflicts += 1
                self._wait_out(conflicts)

    def _run_outside(self) -> Handled:
        handled = self._run(NoTransaction(Work.of(self.claims, self._spans)))
        if isinstance(handled.error, Postponed):
            self._tries = handled.error.tries
        elif handled.error is not None:
            # The handler may use the ledger's database on a connection of its own: then this can be an outage.
            error = self._ledger.passing(handled.error, f"group {self._spec.group!r}: the handler") or handled.error
            self._last = handled._replace(error=error)
        return self._last

    # The handler

    def _prepare(self) -> Prepared:
        if self._prepared is None:
            self._prepared = self._handler.prepare(self._records)
        return self._prepared

    def _run(self, tx: Transaction) -> Handled:
        """Handle the records in a transaction. If it advances positions and some records were left, cut it."""
        prepared, began = self._prepare(), self._clock()
        is_awaited = self._may_leave and tx.in_turn
        self.begun, self._deadline = 0, began + (TURN if is_awaited else self._ledger.limits.hold / 2)
        try:
            handled = self._last = prepared.run(tx, self._tries, self._is_over)
        except Postponed as postponed:
            self._tries = dict(postponed.tries)
            raise
        finally:
            self.seconds = self._clock() - began
        if handled.left and tx.steps:
            tx.cut(self._spans_of(handled))
        return handled

    def _is_over(self, records: int) -> bool:
        """Count ``records`` as begun, and return whether to stop before them.

        If the position moves first (at most once), ``hurry`` is ignored, because records left out would be lost.
        """
        self.begun += records
        return self._clock() >= self._deadline or (self._hurry.is_set() and self._may_leave)

    def turn(self, result: Result) -> float:
        """Return for how many seconds other members of the group waited for this commit's turn to end."""
        return self.seconds if result.in_turn else 0.0

    def _handled(self) -> Handled:
        """Record the outcome of the last attempt as committed, and return it."""
        self._outcomes.append(self._last)
        return self._last

    def events(self, result: Result) -> Iterator[Event]:
        """Return the events to emit after the commit."""
        group, took = self._spec.group, self._clock() - self._began
        already = result.outcome is Outcome.ALREADY_DONE
        seconds = self.seconds if self._outcomes else None
        known = result.attempts, result.unknown_outcomes, already, seconds, result.conflicts
        yield Committed(group, self.advanced, took, *known, tuple(batch.records for batch in self._batches))
        for handled in self._outcomes:
            for letter in handled.parked:
                yield DeadLettered(group, letter.record.source, letter.record.offset, letter.error)
            for record, note in handled.skipped:
                yield Skipped(group, Span(record.source, record.offset, record.offset + 1, 1), "skip", note)


def _place(record: Record) -> tuple[TopicPartition, int]:
    return record.source, record.offset


def _park(letters: Iterable[FailedRecord], tx: Transaction) -> None:
    for letter in letters:
        tx.park(letter)


def _settled(records: Sequence[Record], handled: Handled) -> Tries:
    """Return the results of handled records whose positions have not moved, so that they are not handled again."""
    settled: dict[tuple[TopicPartition, int], Tried] = {
        _place(record): Tried(0, Done()) for record in records[: len(records) - handled.left]
    }
    for record, error, attempts in handled.parked:
        settled[_place(record)] = Tried(attempts, Park(error, attempts))
    for record, note in handled.skipped:
        settled[_place(record)] = Tried(1, StepOver(note))
    return settled
