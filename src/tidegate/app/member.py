"""One consumer of a listener: it polls, hands batches to the ledger, and does what its assignment says."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never

from tidegate.app.commit import Commit, Handle
from tidegate.app.computing import Computing
from tidegate.app.handling import HandlerFailed, Postponed
from tidegate.app.intake import Intake
from tidegate.app.jobs import Jobs
from tidegate.app.spec import ListenerSpec
from tidegate.app.vitals import Pulse
from tidegate.core.assignment import Assignment, Claiming, Reading, Reclaiming
from tidegate.core.batching import Batch
from tidegate.core.commands import (
    ClaimPartitions,
    Command,
    LedgerCommand,
    PausePartitions,
    ReclaimPartitions,
    ReleaseClaims,
    SeekTo,
)
from tidegate.core.errors import (
    BrokerUnavailable,
    Fenced,
    LedgerBusy,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    NotCommitted,
    PositionMissing,
)
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Lose, Stop, out_of_range
from tidegate.core.spans import Claim, Move, Span
from tidegate.kafka.broker import Cluster, RecordSource
from tidegate.kafka.claimer import Claimer
from tidegate.kafka.lookout import Lookout, Seen
from tidegate.kafka.positions import KafkaPositions
from tidegate.ledger import Ledger, Reclaimed, Result
from tidegate.observe.observer import (
    Claimed,
    Event,
    FencedOff,
    LagSeen,
    Paused,
    Rebalanced,
    Skipped,
)
from tidegate.observe.outages import Outages

__all__ = ["Member"]

_log = logging.getLogger("tidegate")
_AWAY = (LedgerUnavailable, LedgerBusy, NotCommitted, BrokerUnavailable)
_WATCH = 1.0  # seconds between two looks at the rows: that is how edits and pauses reach a quiet topic
_CLOSE = 15.0


class Member:
    """The loop around :class:`~tidegate.core.assignment.Assignment`, which decides what can be decided purely."""

    def __init__(
        self,
        spec: ListenerSpec,
        ledger: Ledger[Any] | KafkaPositions,
        admin: Cluster,
        open_source: Callable[[Member], RecordSource],
        *,
        handle: Handle,
        computing: Computing | None = None,
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
        self._todo: list[LedgerCommand] = []
        subscribes = not spec.topics.partitions
        self._claimer = Claimer(
            spec.group, ledger, admin, start=spec.start, recreated=spec.recreated, subscribes=subscribes
        )
        self._outages = Outages(spec.group, tell)
        self._lookout = Lookout(spec.group, ledger, admin)
        self._watch_at = self._guard_at = 0.0
        self._was_assigned = False
        self._others_are_done = False
        self._has_looked = True  # whether it is known if the group is paused: then no handler is to begin
        self._stopping = threading.Event()
        self._hurry = threading.Event()  # what waits inside of a job does not wait any longer
        self._error: Exception | None = None
        self._source = self.source = open_source(self)
        self._jobs = Jobs(f"tidegate-{spec.group}", meanwhile=self._meanwhile)
        self._intake = Intake(spec, self._source, self._assignment, tell, self._outages, computing=computing)
        self.pulse = Pulse(spec.group, self._assignment, self._intake.read_to)

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

    def _meanwhile(self) -> None:
        """What the polling thread does while it waits for a job."""
        self._source.serve()
        self.pulse.beat(self._outages.reasons)

    def _step(self) -> None:
        self.pulse.beat(self._outages.reasons)
        self._obey(self._intake.fetch(0 if self._jobs.busy or self._intake.is_computing else 0.1))
        self._compute()
        self._jobs.settle(within=0.01)
        if not self._jobs.busy:
            now = time.monotonic()
            if not self._todo:
                self._obey(self._assignment.tick(now))
            self._next_job(now)
        self._intake.settle()

    def _compute(self) -> None:
        if not self._has_looked:
            return
        try:
            self._intake.compute(0 if self._jobs.busy else 0.01)
        except HandlerFailed as error:
            self._error = error

    def _next_job(self, now: float) -> None:
        """The most pressing thing that the ledger can do for us."""
        if self._todo:
            self._carry_out(self._todo.pop(0))
        elif (refused := self._intake.next_refused()) is not None:
            self._step_over_what_is_gone(refused)
        elif now >= self._watch_at:
            self._watch_at = now + _WATCH
            self._watch()
        elif not self._assignment.paused:
            self._commit(self._intake.ready(now))

    def _caught_up(self) -> bool:
        reading = dict(self._assignment.reading())
        return bool(
            (reading or self._others_are_done)  # what nobody has may be on its way to us
            and len(reading) == len(self._assignment.partitions)
            and not (self._jobs.busy or self._todo)
            and self._intake.is_settled
            and all(self._intake.is_at_end(tp, state.position) for tp, state in reading.items())
        )

    def _leave(self) -> None:
        self._intake.close()
        self._finish_job()
        self._until_closed(self._source.close)  # which revokes, and so releases
        rest = self._assignment.revoked(self._assignment.partitions)  # of a listener without a group's assignment
        self._release(claims for command in rest if isinstance(command, ReleaseClaims) for claims in [command.claims])
        self._jobs.close()

    def _finish_job(self) -> None:
        """Wait for what is under way, but not for the time between two attempts at a record."""
        self._hurry.set()
        self._jobs.wait()
        self._hurry.clear()

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
        commit = Commit(self._spec, self._ledger, claims, batches, handle=self._handle, wait=self._hurry.wait)
        self._jobs.start(commit.run, partial(self._committed, commit), partial(self._not_committed, commit))

    def _committed(self, commit: Commit, result: Result) -> None:
        self._assignment.committed(commit.spans)
        self._outages.end("ledger")
        for event in commit.events(result):
            self._tell(event)
        self._mirror(commit.spans)

    def _not_committed(self, commit: Commit, error: Exception) -> None:
        if isinstance(error, Postponed):
            until = time.monotonic() + error.after
            for batch in commit.batches():
                if batch.span.partition == error.partition:
                    self._intake.postpone(batch, until)
                else:
                    self._intake.take_back(batch)
        elif isinstance(error, Fenced):
            self._tell(FencedOff(self._spec.group, error.owners, str(error)))
            for batch in commit.batches():
                if batch.span.partition not in error.owners:
                    self._intake.take_back(batch)
            self._obey(self._assignment.fenced(error.owners))
        elif isinstance(error, _AWAY):
            self._outages.begin("ledger", str(error))
            self._obey(self._assignment.fenced(commit.claims))  # whether it was committed shows in the rows
        else:
            self._error = error

    def _mirror(self, spans: list[Span]) -> None:
        if self._spec.mirror:
            self._source.mirror({span.partition: span.end for span in spans})

    def _carry_out(self, command: LedgerCommand) -> None:
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
        elif self._until_caught_up and self._was_assigned and not partitions:
            covers = self._spec.topics.covers
            self._jobs.start(lambda: self._lookout.is_done(covers), self._others_done, self._not_now)

    def _others_done(self, done: bool) -> None:
        self._others_are_done = done

    def _observed(self, seen: Seen) -> None:
        if seen.recreated:  # the claim says what is wrong, or begins again, by policy
            self._obey(self._assignment.claim_anew(seen.recreated))
            return
        self._outages.end("ledger")
        self._has_looked = True
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
            recreated = self._lookout.look([partition], identify=True).recreated
            log = self._admin.logs([partition]).get(partition)
        except _AWAY as error:
            self._intake.refuse(partition)
            self._not_now(error)
            return
        if recreated:  # the offsets of another topic say nothing about this position
            self._obey(self._assignment.claim_anew(recreated))
            return
        if log is None:
            return
        verdict = out_of_range(self._spec.out_of_range, self._spec.group, partition, state.position, log)
        match verdict:
            case Stop(reason):
                self._error = ListenerStopped(reason)
            case Lose(span, note):
                self._move([span], Move.LOSS, note)
            case None:
                self._intake.read_from(partition, state.position)
            case other:
                assert_never(other)

    def _move(self, spans: list[Span], move: Move, note: str) -> None:
        """Advance over records that are not read, as the owner, and read on behind them."""
        states = dict(self._assignment.reading())
        claims = {span.partition: states[span.partition].claim for span in spans}

        def done(_: Result) -> None:
            for span in spans:
                self._tell(Skipped(self._spec.group, span, move.value, note))
            self._obey(self._assignment.moved(spans))
            self._mirror(spans)

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

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, LedgerCommand):
                self._todo.append(command)
            else:
                self._intake.obey(command)

    # What the source tells while it polls

    def assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """See :class:`~tidegate.kafka.source.Rebalance`: claim, and read where the ledger says."""
        began = time.monotonic()
        self._finish_job()
        self._was_assigned, self._others_are_done = True, False
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
                    self._intake.begin(each)
                    starts[each.partition] = each.offset
                elif not isinstance(each, PausePartitions):  # they cannot be paused before they are assigned
                    self._obey([each])
        if partitions:
            self._outages.end("topic")
        self._watch_at = 0.0  # the group may be paused: that is seen before anything of these is committed
        self._has_looked = False
        self._rebalanced("assigned", partitions, began)
        self._intake.pause_when_assigned(starts if self._assignment.paused else ())
        return starts

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """See :class:`~tidegate.kafka.source.Rebalance`: what is in flight is finished, and no more."""
        began = time.monotonic()
        self._finish_job()
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
