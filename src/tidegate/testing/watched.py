"""Wrappers around the broker and the ledger of a run: they report steps, at which faults strike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import Bucket, Entry, Kind
from tidegate.core.positions import GroupState, KeptOffset, Position, Totals
from tidegate.core.records import LetterHead, StoredLetter, TopicPartition
from tidegate.core.work import Claim, Move, Span, Work
from tidegate.errors import LedgerError
from tidegate.kafka.broker import Broker, Cluster, Membership, RecordSource
from tidegate.kafka.consumer import Fetched, RebalanceListener
from tidegate.ledger import Ledger, Reclaimed, Result
from tidegate.ledger.claims import StartAt
from tidegate.ledger.ledger import Claims, Decide, Rows
from tidegate.ledger.letters import LETTER_HEAD
from tidegate.ledger.once import Once
from tidegate.ledger.threads import Threads
from tidegate.testing.faults import Died, FaultyProcess, Step

__all__ = ["IdleTime", "Rival", "WatchedBroker", "WatchedLedger"]


_SHORTEST, _LONGEST = 1.0, 600.0  # seconds that one idle poll skips


class IdleTime(Threads):
    """A runtime whose clock skips the time in which a listener would wait: for a retry, or for its next look at a row.

    Each thread has its own clock. That of a polling thread jumps ahead whenever a poll brings nothing, further each
    time in a row. Handlers and commits run on other threads, so the limits on their time are not affected.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    def monotonic(self) -> float:
        """Return the seconds of this thread's clock."""
        return time.monotonic() + getattr(self._thread, "ahead", 0.0)

    def skip(self) -> None:
        """Let this thread's clock jump ahead, since its poll was idle."""
        step: float = getattr(self._thread, "step", _SHORTEST)
        self._thread.ahead = getattr(self._thread, "ahead", 0.0) + step
        self._thread.step = min(2 * step, _LONGEST)

    def arrived(self) -> None:
        """Note that the poll of this thread returned something: the next jump is a short one."""
        self._thread.step = _SHORTEST


_ELBOW_ROOM = 0.03  # seconds in which a store without locks answers a claim


class Rival:
    """Another owner that claims partitions. It claims on its own threads: a claim may wait for the listener's locks."""

    def __init__(self, ledger: Ledger[Any]) -> None:
        self._ledger = ledger
        self._waiting: list[threading.Thread] = []
        self._errors: list[Exception] = []

    def claim(self, group: str, partitions: Iterable[TopicPartition], *, locked: bool) -> None:
        """Claim partitions; if a transaction has them ``locked``, return before the claim is done."""
        wanted = list(partitions)
        claiming = threading.Thread(target=self._claim, args=(group, wanted), name="tidegate-rival", daemon=True)
        claiming.start()
        claiming.join(_ELBOW_ROOM if locked else None)
        self._waiting.append(claiming)

    def settle(self) -> None:
        """Wait until all claims are done."""
        for claiming in list(self._waiting):
            claiming.join()

    def failure(self) -> Exception | None:
        """Wait until all claims are done; returns the first error, if any."""
        self.settle()
        return self._errors[0] if self._errors else None

    def _claim(self, group: str, partitions: list[TopicPartition]) -> None:
        try:
            self._ledger.claim(group, partitions)
        except Exception as error:
            self._errors.append(error)


class WatchedBroker:
    """Opens consumers that belong to a simulated process and stop working when it dies."""

    def __init__(self, broker: Broker, process: FaultyProcess, time: IdleTime) -> None:
        self._broker = broker
        self._process = process
        self._time = time
        self._sources: list[_WatchedSource] = []

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Return the cluster of the broker below."""
        return self._broker.cluster(settings)

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: RebalanceListener) -> RecordSource:
        """Open a consumer that reports its steps to the process."""
        told = _WatchedRebalance(rebalance, self._process)
        below = self._broker.source(settings, membership, told)
        source = _WatchedSource(below, membership.group, self._process, self._time)
        self._sources.append(source)
        return source

    def close(self) -> None:
        """Close the consumers that a dead process has left open."""
        for source in self._sources:
            source.close()


class _WatchedRebalance:
    """Passes rebalances to a listener while its process lives. Like any :class:`RebalanceListener`, it never raises."""

    def __init__(self, rebalance: RebalanceListener, process: FaultyProcess) -> None:
        self._rebalance = rebalance
        self._process = process

    def assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self._process.dead:
            return {}
        try:
            return self._rebalance.assigned(partitions)
        except Died:
            return {}

    def revoked(self, partitions: list[TopicPartition]) -> None:
        self._tell(self._rebalance.revoked, partitions)

    def lost(self, partitions: list[TopicPartition]) -> None:
        self._tell(self._rebalance.lost, partitions)

    def _tell(self, tell: Any, partitions: list[TopicPartition]) -> None:
        if self._process.dead:
            return
        self._process.told.set()
        try:
            tell(partitions)
        except Died:
            return


class _WatchedSource:
    """A consumer that reports its steps to the process. Once the process is dead, polls and commits raise ``Died``."""

    def __init__(self, source: RecordSource, group: str, process: FaultyProcess, time: IdleTime) -> None:
        self._source = source
        self._group = group
        self._process = process
        self._time = time
        self._closed = False
        self._polled: set[TopicPartition] = set()
        self.seek = source.seek
        self.pause = source.pause
        self.resume = source.resume
        self.end = source.end

    def subscribe(self, topics: list[str]) -> None:
        self._source.subscribe(topics)
        self._process.joined.set()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._source.assign(partitions)
        self._process.joined.set()

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        self._process.live()
        fetched = self._source.fetch(most, timeout, room)
        self._process.live()
        if any(fetched):
            self._time.arrived()
        elif timeout > 0:  # without a timeout, a handler or a commit is running
            self._time.skip()
        if fetched.records:
            polled = sorted({record.source for record in fetched.records})
            self._polled.update(polled)
            self._process.reached(Step.POLLED, self._group, polled)
        return fetched

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        self._process.live()
        self._source.mirror(positions)

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        self._process.live()
        written = [tp for tp in positions if tp in self._polled]  # a start is committed before any record is read
        if written:
            self._process.reached(Step.WRITTEN, self._group, written)
        self._source.commit(positions, asynchronous=asynchronous)
        if written:
            self._process.reached(Step.COMMITTED, self._group, written)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        self._process.live()
        return self._source.committed(partitions)

    def serve(self) -> None:
        self._source.serve()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._source.close()


T = TypeVar("T")


class WatchedLedger(Ledger[Any]):
    """Wraps a ledger and reports its steps to the process.

    The code of the base class :class:`Ledger` runs here, on the store of the wrapped ledger. A dead process no longer
    reaches the store: its requests raise :class:`Died`, and its claims are not released.
    """

    def __init__(self, ledger: Ledger[Any], process: FaultyProcess, settle: Callable[[], None]) -> None:
        """``settle`` waits for the claims of other owners that had to wait for a transaction of this process."""
        super().__init__(ledger.limits)
        self._ledger = ledger
        self._process = process
        self._settle = settle
        self.engine = ledger.engine
        self.prefix = ledger.prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    # Operations of listeners

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        """Claim, then report :attr:`Step.CLAIMED`."""
        claims = super().claim(group, partitions, start_at, **options)
        self._process.reached(Step.CLAIMED, group, list(claims))
        return claims

    def reclaim(
        self, claims: Claims, *, take: bool = False, together: bool = False, owner: str | None = None
    ) -> Reclaimed:
        """Reclaim, then report :attr:`Step.CLAIMED` if anything was claimed."""
        reclaimed = super().reclaim(claims, take=take, together=together, owner=owner)
        if reclaimed.claims:
            self._process.reached(Step.CLAIMED, _group(claims), list(reclaimed.claims))
        return reclaimed

    def release(self, claims: Claims) -> set[TopicPartition]:
        """Release, then report :attr:`Step.RELEASED`; a dead process releases nothing."""
        if self._process.dead or not claims:
            return set()
        released = super().release(claims)
        self._process.reached(Step.RELEASED, _group(claims), sorted(released))
        return released

    def transact(
        self,
        claims: Claims,
        spans: Iterable[Span],
        handler: Callable[[Any], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        """Run the transaction, then report :attr:`Step.ACKNOWLEDGED`."""
        wanted = list(spans)
        result = super().transact(claims, wanted, handler, move=move, note=note, conflicts=conflicts)
        self._process.reached(Step.ACKNOWLEDGED, _group(claims), [span.partition for span in wanted])
        return result

    # Operations of the store

    @contextmanager
    def _open(self, work: Work) -> Iterator[Any]:
        self._process.live()
        try:
            with self._ledger._open(work) as tx:
                self._process.reached(Step.ADVANCED, work.group, work.partitions)
                yield tx
                self._process.reached(Step.WRITTEN, work.group, work.partitions)
        finally:
            self._settle()
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    @contextmanager
    def _detached(self, work: Work) -> Iterator[Any]:
        self._process.live()
        with self._ledger._detached(work) as tx:
            yield tx
            self._process.reached(Step.WRITTEN, work.group, work.partitions)
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    @contextmanager
    def _replaying(self, once: Once[Any], work: Work, number: int) -> Iterator[Any]:
        self._process.live()
        try:
            with self._ledger._replaying(once, work, number) as tx:
                yield tx
                self._process.reached(Step.WRITTEN, work.group, work.partitions)
        finally:
            self._settle()
        self._process.reached(Step.COMMITTED, work.group, work.partitions)

    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        self._process.live()
        return self._ledger._change(once, group, partitions, decide)

    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        self._process.live()
        return self._ledger._forced_by(group, deployment)

    def _locked(self, work: Work) -> Rows:
        self._process.live()
        return self._ledger._locked(work)

    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        return self._ledger._set_paused(once, group, kind, note)

    def examine(self, now: Clock) -> Iterator[Finding]:
        """Yield the findings about the store."""
        return self._ledger.examine(now)

    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """Let the wrapped ledger judge the error."""
        return self._ledger.passing(error, what)

    def create(self) -> None:
        """Do nothing: the run has created the tables. A process that joins later would wait for open transactions."""

    def close(self) -> None:
        """Do nothing: the wrapped ledger belongs to the kit or the app."""

    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Read the group's rows, if the process lives."""
        self._process.live()
        return self._ledger.read(group, partitions)

    def read_all(self) -> dict[str, GroupState]:
        """Read every group from the wrapped ledger."""
        return self._ledger.read_all()

    def totals(self) -> list[Totals]:
        """Read the totals from the wrapped ledger."""
        return self._ledger.totals()

    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Read the journal backwards from the wrapped ledger."""
        return self._ledger.newest(group, partition)

    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Read the journal from the wrapped ledger."""
        return self._ledger.journal(group, partition)

    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        return self._ledger._evidence(group)

    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Read the coarse history from the wrapped ledger."""
        return self._ledger.history(group, since)

    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return false: a test run is too short to prune the journal."""
        return False

    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        return self._ledger._delete_entries(older_than, group)

    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Record a failed replay in the wrapped ledger."""
        return self._ledger.failed_again(parked, error)

    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Read dead letters from the wrapped ledger."""
        return self._ledger.dead_letters(group, after=after, limit=limit)

    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Read the beginnings of dead letters from the wrapped ledger."""
        return self._ledger.letter_heads(group, after=after, limit=limit, most=most)

    def count_letters(self) -> dict[str, int]:
        """Count dead letters in the wrapped ledger."""
        return self._ledger.count_letters()

    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters from the wrapped ledger."""
        return self._ledger.drop_letters(group, ids)


def _group(claims: Claims) -> str:
    return next(iter(claims.values())).group
