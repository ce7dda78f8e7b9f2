"""A member of the group: the runtime's loop around the core, cut into the steps between which it may fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from random import Random
from typing import TYPE_CHECKING

from tidegate.core.assignment import Assignment, Reading
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
from tidegate.core.errors import AlreadyDone, Fenced, LedgerError, LedgerUnavailable, NotCommitted, TransactionBroken
from tidegate.core.positions import Identity
from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Lose, OutOfRange, out_of_range
from tidegate.core.spans import Claim, Move, Span
from tidegate.core.start import LogOffsets
from tidegate.ledger.base import Reclaimed
from tidegate.ledger.trouble import ConnectionLost

from .coordinator import Notice
from .log import TOPIC
from .reader import Reader
from .steps import Step
from .store import GROUP, Cut, StoreTransaction

if TYPE_CHECKING:
    from .world import World

OBSERVE = 12
"""Steps after which a member reads its rows again."""


class Member:
    """One process. ``step`` is what it does when it is next scheduled; faults strike in front of that."""

    def __init__(self, world: World, name: str, assignment: Assignment, batching: Batching) -> None:
        self.world = world
        self.store = world.store
        self.rng: Random = world.rng
        self.name = name
        self.assignment = assignment
        self.batching = batching
        self.step = Step.FETCH
        self.cut = Cut.NONE
        self.crashed = False
        # as the coordinator sees it
        self.joined = False
        self.last_seen = 0
        self.asked_at: int | None = None
        self.inbox: deque[tuple[Notice, list[TopicPartition]]] = deque()
        self.deaf_until = 0
        # reading
        self.reader = Reader()
        self.observed_at = -OBSERVE
        # work in hand
        self.todo: ClaimPartitions | ReclaimPartitions | None = None
        self.revoking: list[TopicPartition] = []
        self.batches: list[Batch] = []
        self.claims: dict[TopicPartition, Claim] = {}
        self.block: AbstractContextManager[StoreTransaction] | None = None
        self.tx: StoreTransaction | None = None
        self.reply: Exception | None = None
        self.in_doubt: set[TopicPartition] = set()

    def told(self, notice: Notice, partitions: list[TopicPartition]) -> None:
        self.inbox.append((notice, partitions))

    def run(self) -> None:
        """Take one step."""
        if self.world.now >= self.deaf_until:
            self.last_seen = self.world.now
        RUN[self.step](self)

    def crash(self) -> None:
        """The process is gone. Its store notices at once, or holds the locks of an open transaction for a while."""
        self.crashed = True
        if self.tx is not None:
            if self.rng.random() < 0.5:
                self.store.end(self.tx)
            elif not self.tx.ended:
                self.store.linger(self.tx)
        self.tx = self.block = None

    # The steps

    def claim(self) -> None:
        assert isinstance(self.todo, ClaimPartitions)
        wanted = self.todo.partitions
        topic_id = self.current_topic_id()
        self._connect()
        try:
            claims = self.store.claim(
                GROUP,
                wanted,
                self.world.starts,
                identities=lambda: {TOPIC: Identity("here", str(topic_id))},
                restart=True,
            )
        except LedgerError:
            if self.rng.random() < 0.3:
                self._go_on()
            return
        self.todo = None
        self.reader.topic_ids.update(dict.fromkeys(claims, topic_id))
        self._go_on()
        self._obey(self.assignment.claimed(claims))

    def current_topic_id(self) -> int:
        return self.world.topic_id

    def fetch(self) -> None:
        """Poll: answer the coordinator, do what is due, take what the last fetch returned, send the next one."""
        now = self.world.now
        if self.inbox and now >= self.deaf_until:
            self._heed(*self.inbox.popleft())
            return
        if due := self.assignment.tick(now):
            self._obey(due)
        if self.step is Step.FETCH and now >= self.observed_at + OBSERVE:
            self.observed_at = now
            self._obey(self.assignment.observed(self.store.read(GROUP)))
        if self.step is not Step.FETCH or self.assignment.paused:
            return
        if not self.batches:
            self._receive(now)
            self._send_fetch()
            if self.step is Step.FETCH:
                self.batches = self.batching.ready(now)
        if self.batches and self.step is Step.FETCH:
            self.step = Step.BEGIN

    def begin(self) -> None:
        self.batches = [batch for batch in self.batches if self.assignment.holds(batch)]
        if not self.batches or self.assignment.paused:
            self._go_on()
            return
        self.claims = self.assignment.claims(self.batches)
        self._connect()
        block = self.store.transaction(self.claims, [batch.span for batch in self.batches])
        try:
            self.tx = block.__enter__()
        except Fenced as fenced:
            self._fenced(fenced)
        except AlreadyDone:
            self.world.events["already done"] += 1
            self._committed()
        except NotCommitted:
            self._go_on()
        else:
            self.world.check_paused(self)
            self.block = block
            self.step = Step.WRITE

    def write(self) -> None:
        assert self.tx is not None
        if self.cut:
            if self.cut == Cut.LANDS_LATE:
                self.store.linger(self.tx)
            self._abort(ConnectionLost("the connection broke"))
        elif self.inbox and self.inbox[0][0] is Notice.LOST and self.world.now >= self.deaf_until:
            self._abort(KeyboardInterrupt())
        else:
            try:
                for batch in self.batches:
                    self._write(self.tx, batch)
            except ConnectionLost as lost:
                self._abort(lost)
            else:
                self.step = Step.COMMIT

    def _write(self, tx: StoreTransaction, batch: Batch) -> None:
        table = str(batch.span.partition)
        for record in batch.records:
            tx.append(table, record)

    def commit(self) -> None:
        assert self.block is not None
        self._connect()
        self.store.away = self.rng.random() < 0.5
        self.reply = None
        try:
            self.block.__exit__(None, None, None)
        except LedgerError as error:
            self.reply = error
        self.block = self.tx = None
        self.step = Step.ACKNOWLEDGE

    def acknowledge(self) -> None:
        reply, self.reply = self.reply, None
        if self.cut and reply is None:
            reply = LedgerUnavailable("the reply was lost")
        self.cut = Cut.NONE
        match reply:
            case None:
                self._committed()
            case Fenced():
                self._fenced(reply)
            case NotCommitted():
                self.world.check_not_committed(self.claims, self.batches)
                self.step = Step.BEGIN
            case TransactionBroken():
                self._discard()
            case _:
                self._unknown()

    def release(self) -> None:
        commands = self.assignment.revoked(self.revoking)
        self.world.coordinator.gave_up(self, self.revoking)
        self.batches = [batch for batch in self.batches if batch.span.partition not in self.revoking]
        self.revoking = []
        self._go_on()
        self._obey(commands)

    def reclaim(self) -> None:
        assert isinstance(self.todo, ReclaimPartitions)
        todo, self.todo = self.todo, None
        self._connect()
        self._go_on()
        try:
            reclaimed = self.store.reclaim(todo.claims, take=todo.take)
        except LedgerError:
            return
        self.in_doubt.difference_update(todo.claims)
        self._count(todo, reclaimed)
        self._obey(self.assignment.reclaimed(reclaimed.claims, reclaimed.owners, self.world.now))

    def _count(self, todo: ReclaimPartitions, reclaimed: Reclaimed) -> None:
        events = self.world.events
        events["stood down"] += len(reclaimed.owners)
        for tp, claim in reclaimed.claims.items():
            if claim.owner == todo.claims[tp].owner:
                events["went on from the row"] += 1
            else:
                events["taken back" if todo.take else "claimed again"] += 1

    # What the steps are made of

    def _connect(self) -> None:
        """Send the next request over a connection that is as good as the faults have left it."""
        self.store.cut, self.cut = self.cut, Cut.NONE

    def _go_on(self) -> None:
        self.step = Step.RELEASE if self.revoking else Step.FETCH

    def _heed(self, notice: Notice, partitions: list[TopicPartition]) -> None:
        if notice is Notice.ASSIGNED:
            self._obey(self.assignment.assigned(partitions))
        elif notice is Notice.LOST:
            self._lost()
            self.world.coordinator.join(self, self.world.now)
            self.world.coordinator.rebalance(self.world.now)
        else:
            self.revoking = partitions
            self._drain()

    def _drain(self) -> None:
        """Finish what is in hand, or discard it: either is right."""
        self.step = Step.BEGIN if self.batches and self.rng.random() < 0.5 else Step.RELEASE

    def _discard(self) -> None:
        """Drop the batches in hand, and read them again."""
        commands = self.assignment.discarded([batch.span.partition for batch in self.batches])
        self.batches = []
        self._go_on()
        self._obey(commands)

    def _lost(self) -> None:
        self.batches = []
        self._obey(self.assignment.lost(self.assignment.partitions))

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case SeekTo(tp, offset, generation):
                    self.batching.start(tp, offset, generation)
                    self.reader.positions[tp] = offset
                case DropBuffers(partitions):
                    self.batching.drop(partitions)
                    self.reader.forget(partitions)
                case PausePartitions(partitions):
                    self.reader.stopped.update(partitions)
                case ResumePartitions(partitions):
                    self.reader.stopped.difference_update(partitions)
                case ClaimPartitions():
                    self.todo = command
                    self.step = Step.CLAIM
                case ReclaimPartitions():
                    if self.step is not Step.CLAIM:  # one at a time; the next tick asks for the rest
                        self.todo = command
                        self.step = Step.RECLAIM
                case ReleaseClaims(claims):
                    self._give_back(claims)

    def _give_back(self, claims: dict[TopicPartition, Claim]) -> None:
        self._connect()
        with suppress(LedgerError):  # best effort: whoever claims next does not depend on it
            self.store.release(claims)

    def _receive(self, now: int) -> None:
        fetched = self.reader.take()
        if fetched is None:
            return
        since, records, reached = fetched
        received = self.assignment.received(records, since)
        if received.commands:
            self._obey(received.commands)
        self.batching.add(received.records, now)
        for tp, offset in reached:
            if self.assignment.reads_since(tp, since):
                self.batching.reached(tp, offset, now)

    def _send_fetch(self) -> None:
        if self.cut:
            self.cut = Cut.NONE
            return
        refused = self.reader.send(self.assignment.generation, self.world.logs, self.world.topic_id)
        if refused:
            self._out_of_range(*refused)

    def _out_of_range(self, tp: TopicPartition, at: int) -> None:
        state = self.assignment.state(tp)
        if type(state) is not Reading or state.position != at:
            return  # what was read before is committed first
        log = self.world.logs[tp]
        decision = out_of_range(OutOfRange.SKIP, GROUP, tp, at, LogOffsets(log.start, log.end))
        assert isinstance(decision, Lose)
        self._connect()
        try:
            self.store.transact({tp: state.claim}, [decision.span], move=Move.LOSS, note=decision.note)
        except Fenced as fenced:
            self._explain(fenced, {tp: state.claim}, [decision.span])
            self._obey(self.assignment.fenced([tp]))
        except LedgerError:
            self.in_doubt.add(tp)
            self._obey(self.assignment.fenced([tp]))
        else:
            self._obey(self.assignment.moved([decision.span]))

    def _abort(self, reason: BaseException) -> None:
        """Leave the block by an error: nothing is committed."""
        assert self.block is not None
        self.cut = Cut.NONE
        with suppress(NotCommitted, KeyboardInterrupt):
            self.block.__exit__(type(reason), reason, None)
        self.block = self.tx = None
        self._go_on()

    def _committed(self) -> None:
        self.world.check_committed(self.claims, self.batches)
        self.assignment.committed([batch.span for batch in self.batches])
        self.batches = []
        self._go_on()

    def _fenced(self, fenced: Fenced) -> None:
        self._explain(fenced, self.claims, [batch.span for batch in self.batches])
        self._go_on()
        self._look_again(fenced.owners)

    def _explain(self, fenced: Fenced, claims: dict[TopicPartition, Claim], spans: Sequence[Span]) -> None:
        self.world.check_cause(self, fenced, claims, spans)

    def _unknown(self) -> None:
        """Nobody can tell whether it was committed: try the same work again, or go on from what the row says."""
        partitions = [batch.span.partition for batch in self.batches]
        self.in_doubt.update(partitions)
        self.world.events["unknown outcome"] += 1
        if self.rng.random() < 0.5:
            self.step = Step.BEGIN
            return
        self.batches = []
        self._go_on()
        self._look_again(partitions)

    def _look_again(self, partitions: Iterable[TopicPartition]) -> None:
        self._obey(self.assignment.fenced(partitions))
        if self.revoking:
            self.step = Step.RELEASE  # first; the next tick asks for what is left to reclaim


RUN: tuple[Callable[[Member], None], ...] = (
    lambda member: member.claim(),
    lambda member: member.fetch(),
    lambda member: member.begin(),
    lambda member: member.write(),
    lambda member: member.commit(),
    lambda member: member.acknowledge(),
    lambda member: member.release(),
    lambda member: member.reclaim(),
)
