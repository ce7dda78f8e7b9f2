"""Member: one consumer of a listener, which polls, commits batches to the ledger, and reacts to rebalances."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, TypeVar, assert_never

from tidegate.app.commit import Commit, InParts
from tidegate.app.handler import Handler, HandlerFailed, Postponed, stopped_by
from tidegate.app.health import Pulse
from tidegate.app.intake import Intake
from tidegate.app.pool import PoolQueue
from tidegate.app.spec import ListenerSpec
from tidegate.core.assignment import (
    Assignment,
    Claiming,
    ClaimPartitions,
    Command,
    LedgerCommand,
    PausePartitions,
    Reading,
    Reclaiming,
    ReclaimPartitions,
    ReleaseClaims,
    SeekTo,
)
from tidegate.core.batches import Batch, Portion, Tries
from tidegate.core.policies import Lose, Stop, out_of_range
from tidegate.core.records import TopicPartition
from tidegate.core.runtime import Job, Runtime
from tidegate.core.work import Claim, Move, Span
from tidegate.errors import (
    BrokerUnavailable,
    Fenced,
    HeldTooLong,
    LedgerBusy,
    LedgerConflict,
    LedgerError,
    LedgerUnavailable,
    ListenerStopped,
    NotCommitted,
    PositionMissing,
    RegistryUnavailable,
    StatementTooLong,
    WritesRefused,
)
from tidegate.kafka.broker import Cluster, RecordSource
from tidegate.kafka.claims import Claimer, Lookout, SeenGroup
from tidegate.ledger import Reclaimed, Result
from tidegate.ledger.position_store import PositionStore
from tidegate.ledger.threads import THREADS
from tidegate.ledger.upkeep import Upkeep
from tidegate.observe.events import Claimed, Conflicted, Event, FencedOff, LagSeen, Outages, Paused, Rebalanced, Skipped

__all__ = ["Absence", "Jobs", "Member"]


T = TypeVar("T")
_LOOK = 0.005  # seconds


class Jobs:
    """Runs one job at a time on a second thread, and reports its result on the thread that asks.

    So polling continues while a handler runs, however long it takes, and all decisions stay on one thread.
    """

    def __init__(self, name: str, meanwhile: Callable[[], object], runtime: Runtime = THREADS) -> None:
        """Create the thread. :meth:`wait` calls ``meanwhile`` repeatedly, as the job may need the waiting thread."""
        self._worker = runtime.worker(name)
        self._meanwhile = meanwhile
        self._job: tuple[Job[Any], Callable[[Any], None], Callable[[Exception], None]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running, or has ended and its result was not reported yet."""
        return self._job is not None

    def start(self, work: Callable[[], T], done: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Start a job. :meth:`settle` or :meth:`wait` will call ``done`` or ``failed`` with its result."""
        if self._job is not None:
            raise RuntimeError("a job is under way")
        self._job = self._worker.submit(work), done, failed

    def settle(self, within: float = 0.0) -> None:
        """Report the result of the job if it has ended, or ends within so many seconds."""
        if self._job is not None and self._worker.has_ended(self._job[0], within):
            self.wait()

    def wait(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait for the job, if there is one, and report its result; give up waiting once ``unless`` returns true."""
        if self._job is None:
            return
        job, done, failed = self._job
        while not self._worker.has_ended(job, _LOOK):
            if unless():
                return
            self._meanwhile()
        error = job.exception()
        self._job = None
        if error is None:
            done(job.result())
        elif isinstance(error, Exception):
            failed(error)
        else:
            raise error

    def close(self) -> None:
        """Wait for the running job, and end the thread."""
        self._worker.close()


_EVERY = 1.0  # seconds between two checks of a silent ledger
_LONGEST = 600.0


class Absence:
    """Decides when a member leaves its group because the ledger is silent, and when it returns.

    If the ledger falls silent again before the member has committed anything, each absence is longer than the one
    before. Otherwise the group would keep rebalancing to a member that cannot serve its partitions.
    """

    def __init__(self, ledger: PositionStore[Any], session_timeout: float, rng: Random) -> None:
        self._ledger = ledger
        self._session_timeout = session_timeout
        self._rng = rng
        self._until = self._ask_at = 0.0
        self._in_vain = 0
        self.is_away = False

    @property
    def silence(self) -> float:
        """The seconds since the ledger stopped answering; 0 if it answers."""
        return self._ledger.silence

    @property
    def is_due(self) -> bool:
        """Whether the ledger has been silent for longer than one statement may take: other members may reach it."""
        return self.silence >= self._ledger.limits.answer

    def begin(self, now: float) -> None:
        """Record that the member leaves the group, and choose how long it stays away at least."""
        stay = min(self._session_timeout * (2**self._in_vain - 1), _LONGEST)
        self._until = now + stay * self._rng.uniform(0.5, 1.0)
        self._in_vain = min(self._in_vain + 1, 16)
        self._ask_at = now
        self.is_away = True

    def asks(self, now: float) -> bool:
        """Return whether to check the ledger now; true about once a second after the minimum absence."""
        if now < max(self._ask_at, self._until):
            return False
        self._ask_at = now + _EVERY * self._rng.uniform(0.5, 1.5)
        return True

    def end(self) -> None:
        """Record that the ledger answers, so that the member returns."""
        self.is_away = False

    def committed(self) -> None:
        """Record a commit: the next absence is a short one again."""
        self._in_vain = 0


_log = logging.getLogger("tidegate")
_AWAY = (LedgerUnavailable, LedgerBusy, NotCommitted, BrokerUnavailable)
_WATCH = 1.0  # seconds between two reads of the group's rows, which show edits and pauses even if the topic is idle
_CLOSE = 15.0
_FIRST_UPKEEP = (5.0, 20.0)  # seconds until the first upkeep, random: not while a whole group starts
_SAY_AFTER = 2.0  # seconds of waiting for other members before it is reported
_LONGEST_PAUSE = 5.0  # seconds, at most, between two attempts at a write that the ledger refuses


class Member:
    """The loop of one consumer. It does the I/O; :class:`~tidegate.core.assignment.Assignment` makes the decisions."""

    def __init__(
        self,
        spec: ListenerSpec,
        ledger: PositionStore[Any],
        admin: Cluster,
        open_source: Callable[[Member], RecordSource],
        *,
        handler: Handler,
        first_portion: int | None = None,
        computing: PoolQueue | None = None,
        tell: Callable[[Event], None],
        until_caught_up: bool = False,
        runtime: Runtime = THREADS,
    ) -> None:
        self._spec = spec
        self._runtime = runtime
        self._clock = runtime.monotonic
        self._rng = runtime.random()
        self._ledger = ledger
        self._admin = admin
        self._handler = handler
        self._portion = Portion(ledger.limits.hold / 2, first_portion)
        # For each partition its epoch, and the results of records that were handled but perhaps not committed.
        self._settled: dict[TopicPartition, tuple[int, Tries]] = {}
        self._tell = tell
        self._until_caught_up = until_caught_up
        self._assignment = Assignment(spec.session_timeout, runtime.random())
        self._todo: list[LedgerCommand] = []
        subscribes = not spec.topics.partitions
        self._claimer = Claimer(
            spec.group, ledger, admin, start=spec.start, recreated=spec.recreated, subscribes=subscribes
        )
        self._outages = Outages(spec.group, tell, runtime.monotonic)
        self._absence = Absence(ledger, spec.session_timeout, runtime.random())
        self._write_at, self._refusals = 0.0, 0  # when to write next, while the ledger refuses writes
        self._unread = 0  # failures of the schema registry in a row
        self._lookout = Lookout(spec.group, ledger, admin, runtime)
        first = 0.0 if until_caught_up else self._rng.uniform(*_FIRST_UPKEEP)
        self._upkeep = Upkeep(ledger, spec.group, first, runtime=runtime)
        self._watch_at = self._guard_at = 0.0
        self._was_assigned = False
        self._others_ask_at = self._others_since = 0.0
        self._has_told_of_others = False
        # The partitions held here when the group's other partitions were found to be read to their ends.
        self._done_apart_from: frozenset[TopicPartition] | None = None
        self._has_looked = True  # whether it is known if the group is paused; until then no record is handled
        self._stopping = runtime.signal()
        self._hurry = runtime.signal()  # tells the job to end as soon as possible, without waiting for anything
        self._error: Exception | None = None
        self._source = self.source = open_source(self)
        self._jobs = Jobs(f"tidegate-{spec.group}", meanwhile=self._meanwhile, runtime=runtime)
        self._intake = Intake(
            spec, self._source, self._assignment, tell, self._outages, computing=computing, runtime=runtime
        )
        self.pulse = Pulse(spec.group, self._assignment, self._intake.read_to, runtime)

    # The loop

    def run(self) -> None:
        """Consume until :meth:`stop` is called, until caught up, or until a permanent error, which is raised."""
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
            if stopped := stopped_by(self._error, self._handler.name, self._spec.group):
                raise stopped from self._error
            raise self._error

    def stop(self) -> None:
        """Make :meth:`run` finish the current record, commit, release and leave; may be called from any thread."""
        self._stopping.set()

    def _meanwhile(self) -> None:
        """Serve the job's calls to the consumer and beat, while the polling thread waits for the job."""
        self._source.serve()
        self.pulse.beat(self._outages.reasons)

    def _step(self) -> None:
        self.pulse.beat(self._outages.reasons)
        self._obey(self._intake.fetch(0 if self._jobs.busy or self._intake.is_computing else 0.1))
        self._compute()
        self._jobs.settle(within=0.0 if self._intake.is_flowing else 0.01)
        now = self._clock()
        self._leave_or_return(now)
        if not (self._jobs.busy or self._absence.is_away):
            if not self._todo and now >= self._write_at:
                self._obey(self._assignment.tick(now))
            self._next_job(now)
        self._intake.settle()

    def _leave_or_return(self, now: float) -> None:
        """Leave the group if the ledger is silent, or return to it once the ledger answers.

        The ledger may be unreachable from this process alone. Then other members can take over the partitions.
        """
        if self._absence.is_away:
            if not (self._jobs.busy or self._assignment.partitions) and self._absence.asks(now):
                self._jobs.start(lambda: self._ledger.read(self._spec.group, ()), self._return, self._not_now)
        elif self._absence.is_due and not self._spec.topics.partitions:
            silence = f"it has not answered for {self._absence.silence:.0f} s"
            self._outages.begin("ledger", f"{silence}; its partitions are left to other members until it does")
            self._absence.begin(now)
            self._source.subscribe([])

    def _return(self, _: object) -> None:
        self._outages.end("ledger")
        self._absence.end()
        self._source.subscribe(self._spec.topics.subscription)

    def _compute(self) -> None:
        if not self._has_looked:
            return
        try:
            self._intake.compute(0 if self._jobs.busy else 0.01)
        except HandlerFailed as error:
            self._error = error

    def _next_job(self, now: float) -> None:
        """Start the most urgent job on the ledger: a command, a refused position, a read of the rows, or a commit."""
        if self._todo:
            self._carry_out(self._todo.pop(0))
        elif (refused := self._intake.next_refused()) is not None:
            self._step_over_what_is_gone(refused)
        elif now >= self._watch_at:
            self._watch_at = now + _WATCH
            self._watch()
        elif self._has_looked and not self._assignment.paused and now >= self._write_at:
            self._commit(self._intake.ready(now))
        if self._until_caught_up and now >= self._others_ask_at and self._is_at_ends() and not self._caught_up():
            self._others_ask_at = now + _WATCH
            self._ask_for_others(now)

    def _is_at_ends(self) -> bool:
        reading = dict(self._assignment.reading())
        return bool(
            not self._absence.is_away
            and (reading or self._was_assigned)
            and len(reading) == len(self._assignment.partitions)
            and not (self._jobs.busy or self._todo)
            and self._intake.is_settled
            and all(self._intake.is_at_end(tp, state.position) for tp, state in reading.items())
        )

    def _caught_up(self) -> bool:
        """Whether the partitions held here are read, and the group's others: one may be on its way to this member."""
        if not self._is_at_ends():
            return False
        return bool(self._spec.topics.partitions) or self._done_apart_from == frozenset(self._assignment.partitions)

    def _ask_for_others(self, now: float) -> None:
        own = frozenset(self._assignment.partitions)
        self._others_since = self._others_since or now

        def answered(behind: dict[TopicPartition, int] | None) -> None:
            if behind == {}:
                self._done_apart_from = own
            elif behind and self._clock() - self._others_since >= _SAY_AFTER and not self._has_told_of_others:
                self._has_told_of_others = True
                tp, count = next(iter(behind.items()))
                more = f" and {len(behind) - 1} more partitions" if len(behind) > 1 else ""
                _log.info(
                    *("group %r: caught up here; waiting for other members: %s", self._spec.group),
                    f"{tp} is {count:,} behind{more}",
                )

        topics = self._spec.topics
        self._jobs.start(lambda: self._lookout.behind(topics.names, topics.covers, own), answered, self._not_now)

    def _leave(self) -> None:
        self._intake.close()
        self._finish_job()
        if self._error is None or isinstance(self._error, HandlerFailed):
            self._commit_computed(self._assignment.partitions)
        self._until_closed(self._source.close)  # calls revoked(), which releases the partitions of a group
        rest = self._assignment.revoked(self._assignment.partitions)  # named partitions are never revoked: release here
        self._release(claims for command in rest if isinstance(command, ReleaseClaims) for claims in [command.claims])
        self._jobs.close()
        self._upkeep.close()

    def _finish_job(self) -> None:
        """Wait until the job has finished the current record. Do not wait for a retry, nor for a silent ledger.

        If an abandoned job still tries to commit, the claim of the next owner fences it.
        """
        self._hurry.set()
        self._jobs.wait(unless=lambda: self._absence.is_due and not self._stopping.is_set())

    def _commit_computed(self, partitions: list[TopicPartition]) -> None:
        """Commit what the pool has computed, so that the next owner need not compute it again."""
        if self._has_looked and not (self._assignment.paused or self._jobs.busy):
            self._commit(self._intake.computed(partitions))
            self._finish_job()

    def _until_closed(self, close: Callable[[], None]) -> None:
        """Close the consumer, but wait only for a limited time: closing can hang on an unstable broker.

        The broker then removes the member after its session timeout.
        """
        self._runtime.start(close, f"tidegate-{self._spec.group}-close").join(_CLOSE)

    # Work on the ledger

    def _commit(self, batches: list[Batch]) -> None:
        if not batches:
            return
        batches, rest = self._portion.of(batches)
        self._take_back(rest)
        claims = self._assignment.claims(batches)
        if self._settled:
            batches = [self._with_what_is_settled(batch, claims[batch.span.partition]) for batch in batches]
        self._hurry.clear()
        commit = Commit(
            self._spec,
            self._ledger,
            claims,
            batches,
            handler=self._handler,
            hurry=self._hurry,
            runtime=self._runtime,
        )
        self._jobs.start(commit.run, partial(self._committed, commit), partial(self._not_committed, commit))

    def _with_what_is_settled(self, batch: Batch, claim: Claim) -> Batch:
        """Add the results from before an outage, so that records are not handled twice.

        They are valid only if the epoch is the same: then no other member has claimed the partition since.
        """
        epoch, tries = self._settled.pop(batch.span.partition, (claim.epoch, batch.tries))
        return batch._replace(tries={**tries, **batch.tries}) if epoch == claim.epoch else batch

    def _forget_settled(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._settled.pop(tp, None)

    def _committed(self, commit: Commit, result: Result) -> None:
        self._assignment.committed(commit.advanced)
        self._intake.committed(commit.advanced, commit.turn(result))
        self._wrote()
        self._outages.end("registry")
        self._unread = 0
        self._absence.committed()
        handled = sum(span.records for span in commit.advanced)
        self._portion.took([span.partition for span in commit.advanced], handled, commit.seconds)
        for event in commit.events(result):
            self._tell(event)
        self._mirror(commit.advanced)
        if commit.error is not None:
            self._not_committed(commit, commit.error)
            return
        self._take_back(commit.rest())

    def _take_back(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._intake.take_back(batch)

    def _not_committed(self, commit: Commit, error: Exception) -> None:
        if isinstance(error, Postponed | RegistryUnavailable):
            self._postpone(commit, error)
        elif isinstance(error, Fenced):
            self._tell(FencedOff(self._spec.group, error.owners, str(error)))
            self._take_back(batch for batch in commit.rest() if batch.span.partition not in error.owners)
            self._obey(self._assignment.fenced(error.owners))
        elif isinstance(error, LedgerConflict | InParts):
            self._try_less(commit, error)
        elif isinstance(error, HeldTooLong | StatementTooLong):
            if not commit.may_be_cut:
                self._error = commit.too_slow(error)
                return
            self._portion.was_too_much(commit.begun or len(commit.records), commit.seconds)
            self._take_back(commit.rest())
            _log.warning("a batch took too long, and is handled in smaller ones: %s", error)
        elif isinstance(error, _AWAY):
            self._not_now(error)
            if self._handler.is_apart:
                epochs = {tp: claim.epoch for tp, claim in commit.claims.items()}
                self._settled |= {(tp := batch.span.partition): (epochs[tp], batch.tries) for batch in commit.rest()}
            self._obey(self._assignment.fenced(commit.claims))  # a reclaim reads from the rows whether it was committed
        else:
            self._error = error

    def _try_less(self, commit: Commit, error: LedgerConflict | InParts) -> None:
        """Hand out the same batches again in smaller parts; it is certain that nothing of them was committed."""
        rest = list(commit.rest())
        if isinstance(error, LedgerConflict):
            spans = tuple(batch.span for batch in rest)
            self._tell(Conflicted(self._spec.group, spans, error.conflicts, str(error)))
        less = self._intake.conflicted if isinstance(error, LedgerConflict) else self._intake.refused_in_part
        for batch in rest:
            less(batch)

    def _postpone(self, commit: Commit, error: Postponed | RegistryUnavailable) -> None:
        """Hand out batches again after a while: those of the partition with the record to retry, or all of them."""
        waits = None
        if isinstance(error, Postponed):
            waits, after = error.partition, error.after
        else:
            self._outages.begin("registry", str(error))
            after = min(0.25 * 2**self._unread, _LONGEST_PAUSE) * self._rng.uniform(0.5, 1.0)
            self._unread = min(self._unread + 1, 16)
        until = self._clock() + after
        for batch in commit.rest():
            if waits in (None, batch.span.partition):
                self._intake.postpone(batch, until)
            else:
                self._intake.take_back(batch)

    def _wrote(self) -> None:
        self._outages.end("ledger", wrote=True)
        self._write_at, self._refusals = 0.0, 0

    def _mirror(self, spans: Iterable[Span]) -> None:
        if self._spec.mirror:
            self._source.mirror({span.partition: span.end for span in spans})

    def _carry_out(self, command: LedgerCommand) -> None:
        # A rebalance since the command may have moved its partitions to another member. Claiming them would fence it.
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
        self._wrote()
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
        commands = self._assignment.reclaimed(reclaimed.claims, reclaimed.owners, self._clock())
        self._obey(commands)

    def _not_reclaimed(self, claims: dict[TopicPartition, Claim], error: Exception) -> None:
        if isinstance(error, PositionMissing):  # the row was deleted: claim the partition as if it were new
            self._obey(self._assignment.claim_anew(claims))
        else:
            self._not_now(error)

    def _not_now(self, error: Exception) -> None:
        """Report a failed job. A temporary error is reported as an outage or a conflict; any other error stops.

        No retry is needed here: the assignment requests unfinished work again.
        """
        if isinstance(error, LedgerConflict):  # this is not an outage
            self._tell(Conflicted(self._spec.group, (), error.conflicts, str(error)))
        elif isinstance(error, WritesRefused):
            self._outages.begin("ledger", str(error), of_writes=True)
            pause = min(0.25 * 2**self._refusals, _LONGEST_PAUSE)
            self._write_at = self._clock() + pause * self._rng.uniform(0.5, 1.0)
            self._refusals = min(self._refusals + 1, 16)
        elif isinstance(error, _AWAY):
            self._outages.begin("broker" if isinstance(error, BrokerUnavailable) else "ledger", str(error))
        else:
            self._error = error

    def _watch(self) -> None:
        partitions = self._assignment.partitions
        if partitions:
            self._upkeep.look()
        for tp, state in self._assignment.reading():
            if (end := self._source.end(tp)) is not None:
                self._tell(LagSeen(self._spec.group, tp, state.position, end))
        if self._has_looked and "broker" in self._outages:  # polling an idle topic does not show that it is back
            self._jobs.start(
                self._admin.unanswered, lambda why: self._outages.end("broker") if why is None else None, self._not_now
            )
        elif not self._guarded() and partitions:
            self._jobs.start(lambda: self._lookout.look(partitions), self._observed, self._not_now)

    def _observed(self, seen: SeenGroup) -> None:
        if seen.recreated:  # depending on the policy, a new claim raises, or starts over
            self._obey(self._assignment.claim_anew(seen.recreated))
            return
        self._outages.end("ledger")
        self._has_looked = True
        before = self._assignment.paused
        self._obey(self._assignment.observed(seen.group))
        if self._assignment.paused != before:
            self._tell(Paused(self._spec.group, seen.group.paused))

    def _guarded(self) -> bool:
        """Skip records if the lag guard is due and finds too large a lag; return whether a job was started."""
        guard, now = self._spec.lag_guard, self._clock()
        if guard is None or now < self._guard_at or self._assignment.paused or not self._has_looked:
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
            # In this order: if the topic is still the same one afterwards, the log is its log.
            log = self._admin.logs([partition]).get(partition)
            seen = self._lookout.look([partition], identify=True)
        except _AWAY as error:
            self._intake.refuse(partition)
            self._not_now(error)
            return
        if seen.recreated:  # the position is of another topic, so its offsets cannot be compared with this log
            self._obey(self._assignment.claim_anew(seen.recreated))
            return
        row, claim = seen.group.positions.get(partition), state.claim
        if row is not None and (row.epoch > claim.epoch or (row.epoch == claim.epoch and row.owner != claim.owner)):
            self._obey(self._assignment.fenced([partition]))  # the stored identity is no longer that of this claim
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
        """Advance positions over records without reading them, and continue reading after them."""
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
                _log.warning("partitions could not be released; their next owner claims them all the same: %s", error)

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, LedgerCommand):
                self._todo.append(command)
            else:
                self._intake.obey(command)

    # Rebalance callbacks, called by the source while it polls

    def assigned(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Claim partitions that were assigned, and return the offsets to read from, as stored in the ledger."""
        began = self._clock()
        self._finish_job()
        self._was_assigned = True
        starts: dict[TopicPartition, int] = {}
        for command in self._assignment.assigned(partitions):
            assert isinstance(command, ClaimPartitions)  # noqa: S101 - it returns no other command
            if self._absence.is_due:
                continue  # the rebalance would block the whole group while this member waits for the ledger
            try:
                commands = self._claimed(self._claimer.claim(command.partitions))
            except Exception as error:
                self._not_now(error)
                continue
            for each in commands:
                if isinstance(each, SeekTo):
                    self._intake.begin(each)
                    starts[each.partition] = each.offset
                elif not isinstance(each, PausePartitions):  # partitions cannot be paused before they are assigned
                    self._obey([each])
        if partitions:
            self._outages.end("topic")
        self._watch_at = 0.0  # the group may be paused: read its rows before the next commit
        self._has_looked = False
        self._rebalanced("assigned", partitions, began)
        self._intake.pause_when_assigned(starts if self._assignment.paused else ())
        return starts

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish and commit the work in flight, but nothing more, and release partitions that are being revoked."""
        if self._absence.is_away:
            self.lost(partitions)
            return
        began = self._clock()
        self._finish_job()
        self._commit_computed(partitions)
        commands = self._assignment.revoked(partitions)
        self._forget_settled(partitions)
        self._obey(command for command in commands if not isinstance(command, ReleaseClaims))
        if not self._absence.is_due:
            self._release(command.claims for command in commands if isinstance(command, ReleaseClaims))
        self._rebalanced("revoked", partitions, began)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop partitions that belong to another member already; commit and release nothing."""
        began = self._clock()
        self._hurry.set()
        self._forget_settled(partitions)
        self._obey(self._assignment.lost(partitions))
        self._rebalanced("lost", partitions, began)

    def _rebalanced(self, kind: str, partitions: list[TopicPartition], began: float) -> None:
        self._tell(Rebalanced(self._spec.group, kind, tuple(partitions), self._clock() - began))
        spec = self._spec
        callback = {"assigned": spec.on_assigned, "revoked": spec.on_revoked, "lost": spec.on_lost}[kind]
        if callback is not None:
            try:
                callback(partitions)
            except Exception:
                _log.exception("group %s: the callback for %s partitions failed", spec.group, kind)
