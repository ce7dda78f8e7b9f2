"""The memory ledger with what a real store adds: row locks, idle limits, and connections that break."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import Change, GroupState, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Move, Span, Work
from tidegate.errors import Fenced, LedgerConflict, NotCommitted
from tidegate.ledger.ledger import Decide, Reclaimed
from tidegate.ledger.memory import MemoryLedger, MemoryTransaction, _Group
from tidegate.ledger.once import Once
from tidegate.ledger.transaction import ConnectionLost, Limits, LockWaitOver, Outcome, OutcomeUnknown, Result

from .scheduler import GreenRuntime, GreenStrand
from .steps import Step

if TYPE_CHECKING:
    from .process import Client
    from .world import World

T = TypeVar("T")

GROUP = "billing"
HOLD = 2.0
"""Seconds after which the store ends a transaction that its client has left idle."""
LOCK_WAIT = 3.0
LIMITS = [Limits(HOLD, LOCK_WAIT, attempts, answer=6.0) for attempts in (1, 1, 2, 20)]
SLOW = {Step.RECLAIM: 1.5, Step.BEGIN: 0.3, Step.RELEASE: 0.5, Step.COMMIT: 0.2, Step.ACKNOWLEDGE: 0.2}
"""Seconds that these requests take at most, before others make them wait."""
PERSISTENT = Limits(HOLD, 60.0, 1000, answer=70.0)


class Cut(IntEnum):
    """How the connection breaks under the next request."""

    NONE = 0
    REQUEST_LOST = 1
    REPLY_LOST = 2
    LANDS_LATE = 3


class Jump:
    """A move of a position over records that were not written: what it was, and how many rows the sink had then."""

    __slots__ = ("entry", "identity", "rows")

    def __init__(self, rows: int, entry: Entry, identity: Identity) -> None:
        self.rows = rows
        self.entry = entry
        self.identity = identity


class Moved(NamedTuple):
    """An advance that was committed, and under which claim: however the journal puts several together."""

    span: Span
    claim: Claim


class Lock:
    """Who holds rows: a transaction or a change. ``lingers``: its client is gone, and the server has not noticed."""

    __slots__ = ("lingers", "process")

    def __init__(self, process: Client | None) -> None:
        self.process = process
        self.lingers = False


class StoreTransaction(MemoryTransaction):
    """A transaction that the store may end."""

    def __init__(self, work: Work, store: Store) -> None:
        super().__init__(work, advances=True)
        self.store = store
        self.lock = Lock(store.process)
        self.idle_since = store.server.now
        self.ended = False

    @property
    def connection(self) -> StoreTransaction:
        """What a pipeline's table writes to."""
        return self

    def append(self, table: str, row: object) -> None:
        self.load(table, (row,))

    def load(self, table: str, rows: Iterable[object]) -> None:
        """Append rows in one request."""
        self._sent()
        for row in rows:
            super().append(table, row)

    def _sent(self) -> None:
        cut = self.store.request(Step.WRITE)
        if cut:
            if cut == Cut.LANDS_LATE:
                self.store.server.linger(self)
            raise ConnectionLost("the connection broke")
        if self.ended:
            raise ConnectionLost("the store ended the transaction")
        self.idle_since = self.store.server.now

    def rollback(self) -> None:
        super().rollback()
        self.store.server.end(self, noticed=False)


class Server:
    """The one store behind the ledgers of all processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.rng.random
        self.now = 0.0
        self.groups: dict[str, _Group] = {}
        self.data: dict[str, list[object]] = {}
        self.made: set[str] = set()
        self.locks: dict[TopicPartition, Lock] = {}
        self.waiting: list[GreenStrand] = []
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.transactions: list[StoreTransaction] = []
        self.jumps: dict[TopicPartition, list[Jump]] = {}
        self.moves: dict[TopicPartition, list[Moved]] = {}
        self.moved_at: dict[TopicPartition, float] = {}
        self.owners: dict[str, Client] = {}
        """Who made the claim of an owner."""

    def pass_time(self, now: float) -> None:
        """Carry out what lands late, and end transactions that sat idle for too long."""
        self.now = now
        if self.timers:
            due = [timer for timer in self.timers if timer[0] <= now]
            if due:
                self.timers = [timer for timer in self.timers if timer[0] > now]
                for _, act in due:
                    act()
        for tx in self.transactions:
            if now - tx.idle_since > HOLD and not tx.lock.lingers:
                self.end(tx)
                return

    def end(self, tx: StoreTransaction, *, noticed: bool = True) -> None:
        """Roll a transaction back on the server; its client notices when it next speaks, unless it swallows that."""
        tx.ended = tx.ended or noticed
        if tx in self.transactions:
            self.transactions.remove(tx)
        self.unlock(tx.lock)

    def unlock(self, lock: Lock) -> None:
        for tp in [tp for tp, held in self.locks.items() if held is lock]:
            del self.locks[tp]
        for strand in self.waiting:
            strand.until = 0.0

    def later(self, act: Callable[[], object]) -> None:
        """Do something after a while, which is at most as long as an idle transaction may last."""
        self.timers.append((self.now + 0.05 + self.random() * HOLD, act))

    def linger(self, tx: StoreTransaction, then: Callable[[], object] | None = None) -> None:
        """The client is gone and the server has not noticed: it holds the locks for a while, and may still commit."""
        tx.lock.lingers = True

        def over() -> None:
            if then is not None:
                then()
            self.end(tx)

        self.later(over)

    def lost(self, process: Client) -> None:
        """A process is dead. The server notices at once, or holds the locks of its open transactions for a while."""
        for tx in [tx for tx in self.transactions if tx.lock.process is process and not tx.lock.lingers]:
            if self.random() < 0.5:
                self.end(tx)
            else:
                self.linger(tx)
        for lock in {id(lock): lock for lock in self.locks.values()}.values():
            if lock.process is process and not lock.lingers:
                self.unlock(lock)


class Store(MemoryLedger):
    """The ledger of one process, over the shared store; of no process: that of the world, which nothing disturbs."""

    transaction_type = StoreTransaction

    def __init__(self, server: Server, process: Client, limits: Limits) -> None:
        super().__init__(limits, GreenRuntime(process))
        self.server = server
        self.world = server.world
        self.process = process
        self.data = server.data
        self._groups = server.groups
        self._made = server.made
        self.tx: StoreTransaction | None = None

    def request(self, step: Step) -> Cut:
        """Let others go on in front of a statement; return what becomes of its connection."""
        scheduler = self.world.scheduler
        if scheduler.current is None:
            return Cut.NONE
        # What is seldom requested takes longer, so that faults strike there as well.
        scheduler.pause(step, scheduler.now + SLOW[step] * self.server.random() if step in SLOW else 0.0)
        cut, self.process.cut = self.process.cut, Cut.NONE
        return cut

    @contextmanager
    def _rows_locked(self, step: Step, partitions: Iterable[TopicPartition], lock: Lock) -> Iterator[None]:
        """Lock rows one after the other, and wait for each; unlock them, unless the lock lingers."""
        server, scheduler = self.server, self.world.scheduler
        deadline = server.now + self.limits.lock_wait
        try:
            for tp in partitions:
                while server.locks.get(tp, lock) is not lock:
                    if server.now >= deadline:
                        raise LockWaitOver(f"{tp} is locked")
                    strand = scheduler.current
                    if strand is None:
                        raise LockWaitOver("the world does not wait")
                    server.waiting.append(strand)
                    try:
                        scheduler.pause(step, deadline)
                    finally:
                        server.waiting.remove(strand)
                server.locks[tp] = lock
            yield
        finally:
            if not (lock.lingers or scheduler.over):
                server.unlock(lock)

    # Reading

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        if self.world.scheduler.current is None:
            return super().read(group, partitions)

        def attempt() -> GroupState:
            if self.request(Step.READ):
                raise ConnectionLost("the connection broke")
            state = super(Store, self).read(group, partitions)
            if partitions is not None:
                self.process.saw(state)
            return state

        return self._patiently("read", attempt)

    # Changes

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        step = _STEPS.get(once.what.partition(" ")[0], Step.CLAIM)
        if once.what.startswith("claim again"):
            step = Step.RECLAIM
        return self._made_over_the_wire(
            once, step, partitions, lambda: decide(self._rows(group, partitions)), lambda made: self._store(group, made)
        )

    def _made_over_the_wire(
        self,
        once: Once[T],
        step: Step,
        partitions: list[TopicPartition],
        decide: Callable[[], tuple[Any, T]],
        make: Callable[[Any], object],
    ) -> T:
        cut = self.request(step)
        if cut == Cut.REQUEST_LOST:
            raise ConnectionLost("the request was lost")
        lock = Lock(self.process)
        with self._rows_locked(step, partitions, lock):
            if self._was_made(once):
                return once.result
            once.unknown = False
            changes, once.result = decide()

            def land() -> None:
                make(changes)
                self._made.add(once.id)
                self.server.unlock(lock)

            if cut == Cut.LANDS_LATE:
                lock.lingers = True
                self.server.later(land)
                raise OutcomeUnknown("the connection broke")
            land()
            if cut == Cut.REPLY_LOST:
                raise OutcomeUnknown("the reply was lost")
            return once.result

    def _was_made(self, once: Once[T]) -> bool:
        return once.id in self._made

    # Transactions

    @contextmanager
    def _open(self, work: Work) -> Iterator[StoreTransaction]:
        cut = self.request(Step.BEGIN)
        if cut == Cut.REQUEST_LOST:
            raise ConnectionLost("the request was lost")
        tx = self.transaction_type(work, self)
        with self._rows_locked(Step.BEGIN, work.partitions, tx.lock):
            tx.idle_since = self.server.now
            self._advance(tx)
            self.server.transactions.append(tx)
            try:
                if cut:
                    if cut == Cut.LANDS_LATE:
                        self.server.linger(tx)
                    raise ConnectionLost("the reply was lost")
                self.tx = tx
                yield tx
                self._commit_over_the_wire(tx)
            finally:
                if not self.world.scheduler.over:
                    self.tx = None
                    if not tx.lock.lingers and tx in self.server.transactions:
                        self.server.transactions.remove(tx)

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        cut = self.request(Step.COMMIT)
        if tx.ended:
            raise ConnectionLost("the store ended the transaction")
        if cut == Cut.REQUEST_LOST:
            self.server.linger(tx)
            raise self._unknown(tx, "the request was lost")
        self._check_sentinel(tx)
        if cut == Cut.LANDS_LATE:
            self.server.linger(tx, lambda: self._commit(tx))
            raise self._unknown(tx, "the connection broke")
        self._commit(tx)
        self.server.end(tx)
        self.tx = None
        if cut == Cut.REPLY_LOST or self.request(Step.ACKNOWLEDGE):
            raise self._unknown(tx, "the reply was lost")

    def _unknown(self, tx: StoreTransaction, why: str) -> OutcomeUnknown:
        self.world.events["unknown outcome"] += 1
        self.process.in_doubt.update(tx.work.partitions)
        return OutcomeUnknown(why)

    def _commit(self, tx: MemoryTransaction) -> None:
        super()._commit(tx)
        if tx.work.move is Move.ADVANCE:
            for claim, span in tx.steps:
                self.server.moves.setdefault(span.partition, []).append(Moved(span, claim))

    def _store(self, group: str, changes: Iterable[Change]) -> None:
        changes = list(changes)
        owners = self.server.owners
        new = [row for row, *_ in changes if row.owner is not None and row.owner not in owners]
        for position in new:
            self.process.claims(position.partition)
        super()._store(group, changes)
        owners.update((str(position.owner), self.process) for position in new)
        for change in changes:
            self.server.moved_at[change.position.partition] = self.server.now
            for entry in change.entries:
                if entry.kind in _JUMPS:
                    tp = change.position.partition
                    rows = len(self.data.get(str(tp), ()))
                    self.server.jumps.setdefault(tp, []).append(Jump(rows, entry, change.position.identity))

    # What a process is told has to be true

    def transact(
        self,
        claims: Mapping[TopicPartition, Claim],
        spans: Iterable[Span],
        handler: Any = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        spans = list(spans)
        world = self.world
        if move is Move.ADVANCE:
            world.check_paused(self.process)
        try:
            result = super().transact(claims, spans, handler, move=move, note=note, conflicts=conflicts)
        except Fenced as fenced:
            world.check_cause(self.process, fenced, claims, spans)
            raise
        except (NotCommitted, LedgerConflict):
            world.check_not_committed(claims, spans)
            raise
        if move is Move.ADVANCE:
            world.check_committed(claims, result.spans)
        if result.outcome is Outcome.ALREADY_DONE:
            world.events["already done"] += 1
        elif result.unknown_outcomes:
            world.events["found out"] += 1
        return result

    def reclaim(self, claims: Mapping[TopicPartition, Claim], *, take: bool = False, **options: Any) -> Reclaimed:
        began = self.server.now
        reclaimed = super().reclaim(claims, take=take, **options)
        self.process.reclaimed(began, reclaimed.owners)
        self.process.in_doubt.difference_update(claims)
        events = self.world.events
        events["stood down"] += len(reclaimed.owners)
        for tp, claim in reclaimed.claims.items():
            if claim.owner == claims[tp].owner:
                events["went on from the row"] += 1
            else:
                events["taken back" if take else "claimed again"] += 1
        return reclaimed

    def read_now(self) -> GroupState:
        """The group's rows, as the world sees them."""
        return super().read(GROUP)

    def row(self, partition: TopicPartition) -> Position | None:
        """The row, as the world sees it."""
        return self._groups[GROUP].positions.get(partition) if GROUP in self._groups else None


_JUMPS = {Kind.START, Kind.EDIT, Kind.LOSS, Kind.SKIP}
_STEPS = {"claim": Step.CLAIM, "release": Step.RELEASE, "edit": Step.CLAIM}
