"""One consumer of a listener: it polls, hands batches to the ledger, and does what its assignment says."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from tidegate.app.claimer import Claimer
from tidegate.app.delivering import deliver
from tidegate.app.jobs import Jobs
from tidegate.app.lookout import Lookout, Seen
from tidegate.app.outages import Outages
from tidegate.app.spec import ListenerSpec
from tidegate.core.assignment import Assignment, Claiming, Reading, Reclaiming
from tidegate.core.batching import Batch, Batching
from tidegate.core.commands import (
    ClaimPartitions,
    Command,
    DropBuffers,
    PausePartitions,
    ReclaimPartitions,
    ReleaseClaims,
    ResumePartitions,
    SeekTo,
)
from tidegate.core.errors import (
    BrokerUnavailable,
    Fenced,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    PositionMissing,
)
from tidegate.core.letters import Letter
from tidegate.core.records import Record, TopicPartition
from tidegate.core.recovery import Lose, Stop, out_of_range
from tidegate.core.spans import Claim, Move, Span
from tidegate.kafka.admin import Admin
from tidegate.kafka.positions import KafkaPositions
from tidegate.kafka.source import Fetched, Source
from tidegate.ledger import Ledger, Outcome, Reclaimed, Result
from tidegate.observe.observer import (
    Claimed,
    Committed,
    DeadLettered,
    Event,
    FencedOff,
    LagSeen,
    Paused,
    Polled,
    Rebalanced,
    Skipped,
)

__all__ = ["Member"]

_log = logging.getLogger("tidegate")
_AWAY = (LedgerUnavailable, LedgerBusy, BrokerUnavailable)
_MOST = 10_000  # records that one poll takes
_WATCH = 1.0  # seconds between two looks at the rows: that is how edits and pauses reach a quiet topic
_CLOSE = 15.0

Handle = Callable[[list[Record], Any], Any]


class Member:
    """The loop around :class:`~tidegate.core.assignment.Assignment`, which decides what can be decided purely."""

    def __init__(
        self,
        spec: ListenerSpec,
        ledger: Ledger[Any] | KafkaPositions,
        admin: Admin,
        open_source: Callable[[Member], Source],
        *,
        handle: Handle,
        tell: Callable[[Event], None],
        until_caught_up: bool = False,
    ) -> None:
        self._spec = spec
        self._ledger: Any = ledger
        self._admin = admin
        self._handle = handle
        self._tell = tell
        self._until_caught_up = until_caught_up
        self._assignment = Assignment(spec.session_timeout, random.Random())  # noqa: S311 - jitter
        self._batching = Batching(spec.batch)
        self._jobs = Jobs(f"tidegate-{spec.group}")
        self._todo: list[Command] = []
        self._seeks: dict[TopicPartition, int] = {}
        self._retry: list[Batch] = []
        self._ends: dict[TopicPartition, int] = {}
        self._refused: set[TopicPartition] = set()
        self._claimer = Claimer(spec, ledger, admin)
        self._outages = Outages(spec.group, tell)
        self._lookout = Lookout(spec.group, ledger, admin)
        self._watch_at = self._guard_at = 0.0
        self._to_pause: set[TopicPartition] = set()
        self._throttled = False
        self._was_assigned = False
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._source = self.source = open_source(self)

    # The loop

    def run(self) -> None:
        """Consume until told to stop, until caught up, or until something fails for good, which is raised."""
        topics = self._spec.topics
        if topics.partitions:
            self._source.assign(topics.partitions)
        else:
            self._source.subscribe(topics.subscription)
        try:
            while not (self._stopping.is_set() or self._error or (self._until_caught_up and self._caught_up())):
                self._step()
        finally:
            self._leave()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Finish the transaction under way, release and leave; may be called from another thread."""
        self._stopping.set()

    def _step(self) -> None:
        since = self._assignment.generation
        room = self._spec.buffer_bytes - self._batching.bytes
        fetched = self._source.fetch(_MOST, 0 if self._jobs.busy else 0.1, room)
        now = time.monotonic()
        self._take(fetched, since, now)
        if self._to_pause:
            self._source.pause(self._to_pause)
            self._to_pause = set()
        self._jobs.settle(within=0.01)
        if not self._jobs.busy:
            if not self._todo:
                self._obey(self._assignment.tick(now))
            self._next_job(now)
        self._seek()
        self._throttle()

    def _take(self, fetched: Fetched, since: int, now: float) -> None:
        settled = [record for record in fetched.records if record.source not in self._seeks] if self._seeks else None
        received = self._assignment.received(fetched.records if settled is None else settled, since)
        if received.records:
            self._batching.add(received.records, now)
            size = sum(record.size for record in received.records)
            self._tell(Polled(self._spec.group, len(received.records), size))
        for tp, offset in fetched.ends:
            if tp in self._seeks:
                continue
            if self._assignment.reads_since(tp, since):
                self._batching.reached(tp, offset, now)
                self._ends[tp] = offset
            elif isinstance(state := self._assignment.state(tp), Reading):
                self._seeks[tp] = state.position  # of this stretch, or of the one before; the next one is of this
        self._refused.update(tp for tp in fetched.out_of_range if tp not in self._seeks)
        if fetched.troubles:
            self._outages.begin("broker", fetched.troubles[0])
        self._obey(received.commands)

    def _next_job(self, now: float) -> None:
        """The most pressing thing that the ledger can do for us."""
        if self._todo:
            self._carry_out(self._todo.pop(0))
        elif self._refused:
            self._step_over_what_is_gone(self._refused.pop())
        elif now >= self._watch_at:
            self._watch_at = now + _WATCH
            self._watch()
        elif not self._assignment.paused:
            batches = self._retry or self._batching.ready(now)
            self._retry = []
            self._commit([batch for batch in batches if self._assignment.holds(batch)])

    def _caught_up(self) -> bool:
        reading = dict(self._assignment.reading())
        return (
            self._was_assigned
            and len(reading) == len(self._assignment.partitions)
            and not (self._jobs.busy or self._todo or self._seeks or self._retry)
            and all(tp in self._ends and state.position >= self._ends[tp] for tp, state in reading.items())
        )

    def _leave(self) -> None:
        self._jobs.wait()
        self._until_closed(self._source.close)  # which revokes, and so releases
        rest = self._assignment.revoked(self._assignment.partitions)  # of a listener without a group's assignment
        self._release(claims for command in rest if isinstance(command, ReleaseClaims) for claims in [command.claims])
        self._jobs.close()

    @staticmethod
    def _until_closed(close: Callable[[], None]) -> None:
        """Closing can hang on an unstable broker: then the broker will find out by itself."""
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(_CLOSE)

    # Work on the ledger

    def _commit(self, batches: list[Batch]) -> None:
        if not batches:
            return
        claims = self._assignment.claims(batches)
        spans = [batch.span for batch in batches]
        records = [record for batch in batches for record in batch.records]
        began = time.monotonic()
        handled: list[Any] = []

        def handle(tx: Any) -> None:
            handled.append(self._handle(records, tx))

        def work() -> Result:
            if records:
                return deliver(self._ledger, self._spec.delivery, claims, spans, handle)
            result: Result = self._ledger.transact(claims, spans)
            return result

        def done(result: Result) -> None:
            self._assignment.committed(spans)
            self._outages.end("ledger")
            already = result.outcome is Outcome.ALREADY_DONE
            took = time.monotonic() - began
            group = self._spec.group
            self._tell(Committed(group, tuple(spans), took, result.attempts, result.unknown_outcomes, already))
            if handled:
                self._tell_of(handled[-1])
            if self._spec.mirror:
                self._source.mirror({span.partition: span.end for span in spans})

        def failed(error: Exception) -> None:
            if isinstance(error, Fenced):
                self._tell(FencedOff(self._spec.group, error.owners, str(error)))
                self._retry = [batch for batch in batches if batch.span.partition not in error.owners]
                self._obey(self._assignment.fenced(error.owners))
            elif isinstance(error, _AWAY):
                self._outages.begin("ledger", str(error))
                self._obey(self._assignment.fenced(claims))  # whether it was committed shows in the rows
            else:
                self._error = error

        self._jobs.start(work, done, failed)

    def _tell_of(self, handled: Any) -> None:
        for letter in getattr(handled, "parked", ()):
            if isinstance(letter, Letter):
                record = letter.record
                self._tell(DeadLettered(self._spec.group, record.source, record.offset, letter.error))
        for record, note in getattr(handled, "skipped", ()):
            span = Span(record.source, record.offset, record.offset + 1, 1)
            self._tell(Skipped(self._spec.group, span, "skip", note))

    def _carry_out(self, command: Command) -> None:
        # What was asked for before a rebalance may be another member's by now: claiming it would fence that one off.
        if isinstance(command, ClaimPartitions):
            wanted = [tp for tp in command.partitions if isinstance(self._assignment.state(tp), Claiming)]
            if wanted:
                self._jobs.start(
                    lambda: self._claimer.claim(wanted), lambda c: self._obey(self._claimed(c)), self._not_now
                )
        elif isinstance(command, ReclaimPartitions):
            take = command.take
            claims = {tp: c for tp, c in command.claims.items() if isinstance(self._assignment.state(tp), Reclaiming)}
            if claims:
                self._jobs.start(
                    lambda: self._ledger.reclaim(claims, take=take),
                    self._reclaimed,
                    lambda error: self._not_reclaimed(claims, error),
                )
        elif isinstance(command, ReleaseClaims):
            given = command.claims
            self._jobs.start(lambda: self._ledger.release(given), lambda _: None, self._not_now)

    def _claimed(self, claims: dict[TopicPartition, Claim]) -> list[Command]:
        self._outages.end("ledger")
        partitions = tuple(claims)
        self._tell(Claimed(self._spec.group, partitions, tuple(claims[tp].position for tp in partitions)))
        return self._assignment.claimed(claims)

    def _reclaimed(self, reclaimed: Reclaimed) -> None:
        self._outages.end("ledger")
        if reclaimed.owners and self._spec.topics.partitions:
            tp, owner = next(iter(reclaimed.owners.items()))
            self._error = ListenerStopped(
                f"group {self._spec.group!r}: {tp} was claimed by {owner}, which is running as well; partitions that "
                "are named and not shared out can have one consumer only. Stop one of the two"
            )
        commands = self._assignment.reclaimed(reclaimed.claims, reclaimed.owners, time.monotonic())
        self._obey(commands)

    def _not_reclaimed(self, claims: dict[TopicPartition, Claim], error: Exception) -> None:
        if isinstance(error, PositionMissing):  # a row was deleted: it begins at its start, as on the first day
            self._obey(self._assignment.claim_anew(claims))
        else:
            self._not_now(error)

    def _not_now(self, error: Exception) -> None:
        """What could not be done is asked for again by the assignment, unless it can never be done."""
        if isinstance(error, _AWAY):
            self._outages.begin("broker" if isinstance(error, BrokerUnavailable) else "ledger", str(error))
        else:
            self._error = error

    def _watch(self) -> None:
        partitions = self._assignment.partitions
        for tp, state in self._assignment.reading():
            if (end := self._source.end(tp)) is not None:
                self._tell(LagSeen(self._spec.group, tp, state.position, end))
        if "broker" in self._outages:  # an idle topic would not tell that it is back
            self._jobs.start(
                self._admin.answers, lambda yes: self._outages.end("broker") if yes else None, self._not_now
            )
        elif not self._guarded() and partitions:
            self._jobs.start(lambda: self._lookout.look(partitions), self._observed, self._not_now)

    def _observed(self, seen: Seen) -> None:
        if seen.recreated:  # the claim says what is wrong, or begins again, by policy
            self._obey(self._assignment.claim_anew(seen.recreated))
            return
        self._outages.end("ledger")
        before = self._assignment.paused
        self._obey(self._assignment.observed(seen.group))
        if self._assignment.paused != before:
            self._tell(Paused(self._spec.group, seen.group.paused))

    def _guarded(self) -> bool:
        """Skip over what is too far behind, if that is wanted and due; whether a job was begun."""
        guard, now = self._spec.lag_guard, time.monotonic()
        if guard is None or now < self._guard_at or self._assignment.paused:
            return False
        self._guard_at = now + guard.every
        spans = [
            Span(tp, state.position, end - guard.keep)
            for tp, state in self._assignment.reading()
            if (end := self._source.end(tp)) is not None and end - state.position > guard.limit
        ]
        if spans:
            self._move(spans, Move.SKIP, f"more than {guard.limit} records behind")
        return bool(spans)

    def _step_over_what_is_gone(self, partition: TopicPartition) -> None:
        state = self._assignment.state(partition)
        if not isinstance(state, Reading):
            return
        try:
            log = self._admin.logs([partition]).get(partition)
        except BrokerUnavailable as error:
            self._refused.add(partition)
            self._outages.begin("broker", str(error))
            return
        if log is None:
            return
        verdict = out_of_range(self._spec.out_of_range, self._spec.group, partition, state.position, log)
        if isinstance(verdict, Stop):
            self._error = ListenerStopped(verdict.reason)
        elif isinstance(verdict, Lose):
            self._move([verdict.span], Move.LOSS, verdict.note)
        else:
            self._seeks[partition] = state.position

    def _move(self, spans: list[Span], move: Move, note: str) -> None:
        """Advance over records that are not read, as the owner, and read on behind them."""
        states = dict(self._assignment.reading())
        claims = {span.partition: states[span.partition].claim for span in spans}

        def done(_: Result) -> None:
            for span in spans:
                self._tell(Skipped(self._spec.group, span, move.value, note))
            self._obey(self._assignment.moved(spans))

        def failed(error: Exception) -> None:
            if isinstance(error, (Fenced, *_AWAY)):
                self._obey(self._assignment.fenced(claims))
            else:
                self._error = error

        self._jobs.start(lambda: self._ledger.transact(claims, spans, move=move, note=note), done, failed)

    def _release(self, all_claims: Iterable[dict[TopicPartition, Claim]]) -> None:
        for claims in all_claims:
            try:
                self._ledger.release(claims)
            except LedgerError as error:
                _log.warning("partitions could not be released, their next owner will do without: %s", error)

    # Commands

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, SeekTo):
                self._batching.start(command.partition, command.offset, command.generation)
                self._seeks[command.partition] = command.offset
                self._ends.pop(command.partition, None)
            elif isinstance(command, DropBuffers):
                self._batching.drop(command.partitions)
                for tp in command.partitions:
                    self._seeks.pop(tp, None)
            elif isinstance(command, PausePartitions):
                self._source.pause(command.partitions)
            elif isinstance(command, ResumePartitions):
                self._source.resume(command.partitions)
            else:
                self._todo.append(command)

    def _seek(self) -> None:
        """Carry seeks out; until then nothing of their partitions is used, for it may be from before."""
        for tp, offset in list(self._seeks.items()):
            if self._source.seek(tp, offset):
                del self._seeks[tp]
                if not (self._assignment.paused or self._throttled):
                    self._source.resume([tp])

    def _throttle(self) -> None:
        """Fetch no more than the buffers may hold."""
        full = self._batching.bytes > self._spec.buffer_bytes // (2 if self._throttled else 1)
        if full == self._throttled or self._assignment.paused:
            return
        self._throttled = full
        reading = [tp for tp, _ in self._assignment.reading()]
        if full:
            self._source.pause(reading)
        else:
            self._source.resume(reading)

    # What the source tells while it polls

    def assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """See :class:`~tidegate.kafka.source.Rebalance`: claim, and read where the ledger says."""
        began = time.monotonic()
        self._jobs.wait()
        self._was_assigned = True
        starts: dict[TopicPartition, int] = {}
        for command in self._assignment.assigned(partitions):
            assert isinstance(command, ClaimPartitions)  # noqa: S101 - nothing else is ever asked for here
            try:
                commands = self._claimed(self._claimer.claim(command.partitions))
            except Exception as error:
                self._not_now(error)
                continue
            for each in commands:
                if isinstance(each, SeekTo):
                    self._batching.start(each.partition, each.offset, each.generation)
                    starts[each.partition] = each.offset
                else:
                    self._todo.append(each) if not isinstance(each, PausePartitions) else None
        for tp in partitions:
            self._ends.pop(tp, None)
        self._watch_at = 0.0  # the group may be paused: that is seen before anything of these is committed
        self._rebalanced("assigned", partitions, began)
        self._to_pause = set(starts) if self._assignment.paused else set()  # once they are assigned
        return starts

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """See :class:`~tidegate.kafka.source.Rebalance`: what is in flight is finished, and no more."""
        began = time.monotonic()
        self._jobs.wait()
        commands = self._assignment.revoked(partitions)
        self._obey(command for command in commands if not isinstance(command, ReleaseClaims))
        self._release(command.claims for command in commands if isinstance(command, ReleaseClaims))
        self._rebalanced("revoked", partitions, began)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """See :class:`~tidegate.kafka.source.Rebalance`."""
        began = time.monotonic()
        self._obey(self._assignment.lost(partitions))
        self._rebalanced("lost", partitions, began)

    def _rebalanced(self, kind: str, partitions: list[TopicPartition], began: float) -> None:
        self._tell(Rebalanced(self._spec.group, kind, tuple(partitions), time.monotonic() - began))
        spec = self._spec
        callback = {"assigned": spec.on_assigned, "revoked": spec.on_revoked, "lost": spec.on_lost}[kind]
        if callback is not None:
            try:
                callback(partitions)
            except Exception:
                _log.exception("group %s: the callback for %s partitions failed", spec.group, kind)
