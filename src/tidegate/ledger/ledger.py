"""The base class :class:`Ledger`: claims, transactions and operators' commands, the same for every store."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import ClassVar, Generic, Self, TypeAlias, TypeVar, assert_never

from sqlalchemy import Engine

from tidegate.core.arguments import Age, Count, Label, Seconds, argument
from tidegate.core.findings import Clock, Finding
from tidegate.core.journal import Bucket, Entry, Kind, Trail, Verification
from tidegate.core.policies import Delivery
from tidegate.core.positions import Change, ClaimRequest, GroupState, Identity, Position, Standing, Totals, standing
from tidegate.core.records import (
    StoredLetter,
    TopicPartition,
    check_deployment,
    check_group,
    check_source,
)
from tidegate.core.runtime import Runtime
from tidegate.core.work import Advance, Claim, Move, Span, Work
from tidegate.errors import AlreadyDone, ConfigurationError, Fenced, LedgerError, NotCommitted, PositionMissing
from tidegate.ledger.claims import ClaimCall, Identities, StartAt, Subscription
from tidegate.ledger.letters import LetterStore
from tidegate.ledger.once import Once
from tidegate.ledger.position_store import PositionStore, Reclaimed
from tidegate.ledger.threads import THREADS
from tidegate.ledger.transaction import (
    NOT_KNOWN,
    Attempts,
    Conflict,
    HeldIdle,
    Limits,
    NotMoved,
    NoWrites,
    Outcome,
    OutcomeUnknown,
    Patience,
    Result,
    Retriable,
    Steps,
    Transaction,
)
from tidegate.ledger.watch import GRACE, Watch

__all__ = [
    "TABLE_PREFIX",
    "Claims",
    "Decide",
    "Ledger",
    "Rows",
    "deliver",
    "new_owner",
]


TABLE_PREFIX = "tidegate_"
"""What the names of a ledger's tables begin with, unless a prefix is passed."""

_HOST = socket.gethostname()[:100]


def new_owner(runtime: Runtime = THREADS) -> str:
    """Return a unique id for the holder of a claim: host and process id for people to read, and a random part."""
    return f"{_HOST}:{os.getpid()}:{runtime.token(6)}"


Claims: TypeAlias = Mapping[TopicPartition, Claim]
Rows: TypeAlias = Mapping[TopicPartition, Position]

T = TypeVar("T")
Decide: TypeAlias = Callable[[Rows], tuple[Sequence[Change], T]]
"""A function that takes the locked rows and returns how they change, and what the operation returns."""

Tx = TypeVar("Tx", bound=Transaction)


class Ledger(PositionStore[Tx], LetterStore, ABC, Generic[Tx]):
    """A store of positions that commits each position in the same transaction as the data.

    Each store implements the abstract methods at the end of this class. Retries, fencing and claims, which build on
    them, are implemented here once for all stores.
    """

    transaction_class: ClassVar[type[Transaction]] = Transaction
    """The class of the transactions that handlers get."""
    engine: Engine | None = None
    """The SQLAlchemy engine of a ledger in a SQL database."""
    prefix: str = ""
    """What the names of its tables in that database begin with."""

    def __init__(self, limits: Limits | None = None, runtime: Runtime = THREADS) -> None:
        self.limits: Limits = argument("limits", Limits | None, limits) or Limits()
        self._runtime: Runtime = argument("runtime", Runtime, runtime)
        self._watch = Watch(self.limits.answer, self._runtime)

    @property
    def silence(self) -> float:
        """How many seconds the store has not answered this ledger; 0 if it answered the last request.

        An error from the store counts as an answer.
        """
        return self._watch.silence

    def hurry(self, within: float | None = GRACE) -> None:
        """Shorten the wait for answers to ``within`` seconds, for a process that is about to end.

        If the store stays silent for that long, further requests fail at once. ``None`` restores the limits' timeouts.
        """
        self._watch.hurry(argument("within", Seconds | None, within))

    # The consumer's side

    def claim(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        start_at: StartAt = 0,
        *,
        identities: Identities | None = None,
        deployment: str | None = None,
        restart: bool = False,
        subscription: Subscription | None = None,
    ) -> dict[TopicPartition, Claim]:
        """Claim partitions in one transaction: increment their epochs, store the owner, return their positions.

        A partition without a stored position first gets one from ``start_at``; a function is called only if a start is
        needed. With a ``subscription``, the first claim of a topic stores a position for each of its partitions,
        including those of other members, in the same transaction. ``deployment`` names a deployment that forces its
        start once: the first claim of a topic under that name moves its positions to ``start_at``. ``restart`` lets a
        position begin again at its start if its topic was recreated or its cluster replaced; otherwise such a claim
        raises.
        """
        wanted = _in_lock_order(partitions)
        deployment = argument("deployment", Label | None, deployment)
        if deployment is not None:
            check_deployment(deployment)
        restart = argument("restart", bool, restart)
        request = ClaimRequest(check_group(group), new_owner(self._runtime), deployment=deployment, restart=restart)
        claiming = ClaimCall(request, wanted, start_at, identities or {}, subscription)

        def claim() -> dict[TopicPartition, Claim]:
            # A used deployment name stays used. The claim stores an unused one, and fails if another claim was faster.
            used = frozenset[str]() if deployment is None else self._forced_by(group, deployment)
            return self._change(once, group, claiming.partitions, lambda rows: claiming.decide(rows, used))

        while True:
            once = Once[dict[TopicPartition, Claim]](f"claim {_shown(wanted)} for group {group!r}", self._runtime)
            if claims := self._once(once, claim):
                return claims
            claiming.look_up(self.read(group).positions)

    def reclaim(
        self, claims: Claims, *, take: bool = False, together: bool = False, owner: str | None = None
    ) -> Reclaimed:
        """Check fenced claims against the stored rows and claim again where possible, in one transaction.

        A partition that this owner still holds continues from its stored row. A partition without an owner is claimed.
        A partition of another owner is left alone, unless ``take`` is true. With ``together``, nothing is claimed if
        another owner has one of the partitions. ``owner`` is the id for new claims, from :func:`new_owner`: if a call
        fails and it is not known whether it took effect, the next one with the same id finds what the first has
        claimed.
        """
        owner = new_owner(self._runtime) if owner is None else owner

        def decide(rows: Rows) -> tuple[list[Change], Reclaimed]:
            held: dict[TopicPartition, Claim] = {}
            owners: dict[TopicPartition, str] = {}
            changes = []
            for tp, claim in sorted(claims.items()):
                if (row := rows.get(tp)) is None:
                    raise PositionMissing(f"the position of group {claim.group!r} for {tp} was deleted; claim it again")
                verdict = standing(row, claim)
                if verdict is Standing.MINE or row.owner == owner:
                    held[tp] = row.claim(claim.group)
                elif verdict is Standing.FREE or take:
                    changes.append(row.claimed(owner))
                    held[tp] = changes[-1].position.claim(claim.group)
                else:
                    owners[tp] = str(row.owner)
            if together and owners:
                free = {change.position.partition for change in changes}
                return [], Reclaimed({tp: claim for tp, claim in held.items() if tp not in free}, owners)
            return changes, Reclaimed(held, owners)

        if not claims:
            return Reclaimed({}, {})
        return self._changed(_group_of(claims), sorted(claims), decide, "claim again")

    def release(self, claims: Claims) -> set[TopicPartition]:
        """Release claims and return the partitions released. Claims that were fenced meanwhile are left alone."""

        def decide(rows: Rows) -> tuple[list[Change], set[TopicPartition]]:
            changes = [row.released() for tp, row in sorted(rows.items()) if standing(row, claims[tp]) is Standing.MINE]
            return changes, {change.position.partition for change in changes}

        return self._changed(_group_of(claims), sorted(claims), decide, "release") if claims else set()

    def confirm(self, claims: Claims, spans: Iterable[Span]) -> bool:
        """Check without a lock whether the spans can be advanced, before work that precedes :meth:`transact`.

        Returns false if they are advanced already. Raises :class:`Fenced` if someone else moved or claimed one of the
        positions.
        """
        work = Work.of(claims, spans)
        rows = self.read(work.group, work.partitions).positions
        if all((row := rows.get(step.span.partition)) is not None and row.matches(step) for step in work.steps):
            return True
        self._done_or_fenced(work, NotMoved(rows))
        return False

    def transact(
        self,
        claims: Claims,
        spans: Iterable[Span],
        handler: Callable[[Tx], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
        conflicts: int | None = None,
    ) -> Result:
        """Advance the spans and run ``handler`` in the same transaction, and retry until it has committed once.

        ``handler`` may run several times; what it wrote in a failed attempt is rolled back. It may advance less than
        the spans by calling :meth:`Transaction.cut`; the result says what was advanced. An unanswered COMMIT needs no
        special case: the compare-and-set of the next attempt waits for the row's lock, and matches only if the
        unanswered COMMIT did not take effect.

        By default conflicts are retried for as long as the limits allow. With ``conflicts``, the conflict with that
        number raises :class:`LedgerConflict`, for a caller that prefers to retry with a smaller batch. Also raises
        :class:`Fenced` if someone else moved or claimed one of the positions, and :class:`CommitRefused` if the
        database refuses COMMIT because of what was written.
        """
        if conflicts is not None and not (type(conflicts) is int and conflicts > 0):
            conflicts = argument("conflicts", Count, conflicts)
        work = Work.of(claims, spans, move=move, note=note, hasty=conflicts is not None)
        patience = Patience(self.limits, work, conflicts=conflicts, runtime=self._runtime)
        attempts = Attempts(patience, lambda rows, unknown: self._advanced(work, rows, unknown))
        while attempts.result is None:
            with attempts, self._open(work) as tx:
                attempts.tx = tx
                if handler is not None:
                    handler(tx)
        return attempts.result

    def replay(self, parked: StoredLetter, handler: Callable[[Tx], object]) -> Result:
        """Run ``handler`` and remove a dead letter in the same transaction, and retry until it has committed once.

        No position moves. The letter's row serves as the lock: a second replay waits for it, finds it gone, and does
        not run the handler (``ALREADY_DONE``). The store keeps an id of the replay, so that a retry recognizes a COMMIT
        that took effect but was not answered.
        """
        work = Work.again(parked.group, parked.letter.record)
        once = Once[Tx](f"replay dead letter {parked.id} of {work}", self._runtime)
        patience = Patience(self.limits, once.what, runtime=self._runtime)
        attempts = Attempts(patience, lambda *_: (), once)
        while attempts.result is None:
            with attempts, _unsure(once), self._replaying(once, work, parked.id) as tx:
                attempts.tx = tx
                handler(tx)
        return attempts.result

    def _advanced(self, work: Work, not_moved: NotMoved, unknown: Sequence[Steps]) -> tuple[Span, ...]:
        """Return the spans that an earlier attempt at the same work advanced, judging by where the rows are now."""
        self._done_or_fenced(work, not_moved, unsure=bool(unknown))
        reached = {tp: not_moved.rows[tp].next_offset for tp in work.partitions}
        for steps in (*reversed(unknown), work.steps):
            ends = {span.partition: span.end for span in _spans(steps)}
            if all(reached[span.partition] == ends.get(span.partition, span.start) for span in work.spans):
                return _spans(steps)
        shorter = (span._replace(end=reached[span.partition]) for span in work.spans)  # another process cut it
        return tuple(span._replace(records=min(span.records, span.end - span.start)) for span in shorter)

    @contextmanager
    def transaction(self, claims: Claims, spans: Iterable[Span]) -> Iterator[Tx]:
        """Advance the spans in one transaction with the caller's ``with`` block; makes one attempt.

        Raises :class:`Fenced` if someone else moved or claimed a position, :class:`AlreadyDone` if the same work was
        committed before, and :class:`NotCommitted` if the caller may run the same block again.
        """
        work = Work.of(claims, spans)
        try:
            with self._open(work) as tx:
                yield tx
        except NotMoved as rows:
            self._done_or_fenced(work, rows)
            raise AlreadyDone(f"{work}: was committed before; continue after it") from None
        except OutcomeUnknown as unknown:
            if not self._landed(work, unknown):
                raise NotCommitted(
                    f"{work}: the connection broke and nothing was committed; run the block again"
                ) from None
        except (HeldIdle, NoWrites) as trouble:
            raise trouble.amounts_to(str(work)) from trouble
        except Retriable as trouble:
            raise NotCommitted(f"{work}: {trouble}; nothing was committed, run the block again") from trouble

    @contextmanager
    def detached(self, claims: Claims, spans: Iterable[Span]) -> Iterator[Tx]:
        """Open a transaction that does not move the positions; :meth:`transact` moves them separately.

        At-least-once runs it before the positions move, at-most-once after. So a crash between the two transactions
        repeats the spans, or loses them.
        """
        work = Work.of(claims, spans)
        try:
            with self._detached(work) as tx:
                yield tx
        except (Conflict, HeldIdle, NoWrites) as trouble:
            raise trouble.amounts_to(str(work)) from trouble
        except Retriable as trouble:
            raise NotCommitted(f"{work}: {trouble}; whether it was committed is not known") from trouble

    def passing(self, error: BaseException, what: str) -> LedgerError | None:
        """Return the public error for a temporary error of a handler's own statement on the ledger's database.

        Returns ``None`` for other errors, and if the store has no connection that handlers could use on their own.
        """
        return None

    def _landed(self, work: Work, unknown: OutcomeUnknown) -> bool:
        """Return whether an unanswered COMMIT took effect. Raises :class:`Fenced` if the rows do not tell any more."""
        patience = Patience(self.limits, work, unknown, runtime=self._runtime)
        while True:
            try:
                rows = self._locked(work)
            except Retriable as trouble:
                patience.again(trouble)
            else:
                if rows.keys() >= set(work.partitions) and all(rows[s.span.partition].matches(s) for s in work.steps):
                    return False
                self._done_or_fenced(work, NotMoved(rows), unsure=True)
                return True

    def _done_or_fenced(self, work: Work, not_moved: NotMoved, *, unsure: bool = False) -> None:
        """Raise :class:`Fenced`, unless the rows carry this work's token, which means that it was committed before.

        The token is checked only here, after the compare-and-set did not match. ``unsure``: a COMMIT was not answered,
        and the present owner may have claimed the row before or after it, so the error does not claim that nothing was
        written.
        """
        rows = not_moved.rows
        if all((row := rows.get(tp)) is not None and row.token == work.token for tp in work.partitions):
            return
        wrong = {
            step.span.partition: rows.get(step.span.partition)
            for step in work.steps
            if (row := rows.get(step.span.partition)) is None or not row.matches(step)
        }
        step = next(step for step in work.steps if step.span.partition in wrong)
        written = (
            "A COMMIT was not answered: it is not known whether this was committed" if unsure else "Nothing was written"
        )
        raise Fenced(
            f"group {work.group!r}: {step.span} was to be advanced in epoch {step.claim.epoch} by {step.claim.owner}, "
            f"but {_what_happened(step, wrong[step.span.partition])}. {written}; drop what was read, reclaim",
            {tp: row and row.owner for tp, row in wrong.items()},
        )

    # The operator's side

    def edit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        note: str | None = None,
        check: Callable[[Rows], object] | None = None,
        identities: Mapping[str, Identity] | None = None,
    ) -> dict[TopicPartition, Position]:
        """Set positions by hand. Their owners are fenced and continue from the new positions.

        ``check`` receives the locked rows and may raise, in which case nothing changes. It may run several times.
        ``identities`` tells which incarnation of each topic the offsets belong to. Without it, an existing position
        keeps its stored identity; if the topic was recreated since, the next claim refuses the position or restarts it.
        A new position that is stored with an identity begins its topic as a claim does: a partition without a position
        counts as added later, and is read from its beginning.
        """
        for tp, offset in offsets.items():
            if not 0 <= offset < 1 << 63:
                raise ConfigurationError(f"{offset} is not an offset that {tp} can have")

        def decide(rows: Rows) -> tuple[list[Change], dict[TopicPartition, Position]]:
            if check is not None:
                check(rows)
            changes = []
            for tp, offset in sorted(offsets.items()):
                row = rows.get(tp)
                identity = (identities or {}).get(tp.topic)
                if row is None:
                    changes.append(Position.start(tp, offset, identity or Identity(), note=note))
                else:
                    changes.append(row.edited(offset, note, identity))
            return changes, {change.position.partition: change.position for change in changes}

        return self._changed(check_group(group), _in_lock_order(offsets), decide, "edit")

    def verify(self, group: str) -> Verification:
        """Check in the journal that every advance starts where the previous one ended, and report the breaks."""
        trails: dict[TopicPartition, Trail] = {}
        positions = 0
        for item in self._evidence(group):
            if (tp := item.partition) is None:
                continue
            trail = trails.setdefault(tp, Trail(tp))
            if isinstance(item, Position):
                positions += 1
                trail.end(next_offset=item.next_offset, epoch=item.epoch, owner=item.owner, seq=item.seq)
            else:
                trail.follow(item)
        breaks = sorted(filter(None, (trail.broken for trail in trails.values())))
        return Verification(positions, sum(trail.count for trail in trails.values()), tuple(breaks))

    def pause(self, group: str, *, note: str | None = None) -> bool:
        """Pause all consumers of a group, until it is resumed, even across restarts. Returns whether it was running."""
        once = Once[bool](f"pause group {check_group(group)!r}", self._runtime)
        return self._once(once, lambda: self._set_paused(once, group, Kind.PAUSE, note))

    def resume(self, group: str, *, note: str | None = None) -> bool:
        """Resume a paused group. Returns whether it was paused."""
        once = Once[bool](f"resume group {check_group(group)!r}", self._runtime)
        return self._once(once, lambda: self._set_paused(once, group, Kind.RESUME, note))

    def _changed(self, group: str, partitions: list[TopicPartition], decide: Decide[T], what: str) -> T:
        once = Once[T](f"{what} {_shown(partitions)} for group {group!r}", self._runtime)
        return self._once(once, lambda: self._change(once, group, partitions, decide))

    def _once(self, once: Once[T], attempt: Callable[[], T]) -> T:
        """Run ``attempt`` until it succeeds, as often as the limits allow; ``once`` makes it take effect only once."""
        patience = Patience(self.limits, once.what, runtime=self._runtime)
        while True:
            try:
                with _unsure(once):
                    return attempt()
            except Retriable as trouble:
                if isinstance(trouble, OutcomeUnknown):
                    once.unknown = True
                elif not once.unknown:
                    patience.found_out()
                patience.again(trouble)

    def _patiently(self, what: str, work: Callable[[], T]) -> T:
        """Run ``work`` until it succeeds, as often as the limits allow; it has to be safe to repeat."""
        patience = Patience(self.limits, what, runtime=self._runtime)
        while True:
            try:
                return work()
            except Retriable as trouble:
                patience.again(trouble)

    @contextmanager
    def _pruning(self) -> Iterator[list[int]]:
        """Collect how many entries each transaction of a prune deletes, so that an error can tell how many are gone."""
        pruned: list[int] = []
        try:
            yield pruned
        except LedgerError as error:
            if not any(pruned):
                raise
            raise type(error)(f"{sum(pruned)} journal entries were pruned, and then: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stored(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stored positions of these partitions, no matter which member of the group moved them."""
        return {tp: row.next_offset for tp, row in self.read(group, partitions).positions.items()}

    # The methods that a store implements

    @abstractmethod
    def create(self) -> None:
        """Create the ledger's tables or keys, or upgrade them to this version. Safe to call at any time."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections that the ledger opened itself; those of a passed-in engine or client stay open."""

    @abstractmethod
    def examine(self, now: Clock) -> Iterator[Finding]:
        """Yield the findings of ``tidegate doctor`` about the store, and change nothing.

        They end after one that makes further checks pointless. ``now`` is this machine's clock.
        """

    @abstractmethod
    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """Read in one query whether a group is paused, and its stored positions: all, or those of ``partitions``."""

    @abstractmethod
    def read_all(self) -> dict[str, GroupState]:
        """Read the state of every group in the ledger, in one query."""

    @abstractmethod
    def totals(self) -> list[Totals]:
        """Return the totals of every group and topic, in order; the store adds them up, however many partitions."""

    @abstractmethod
    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate over the journal of a group or of one of its partitions, each partition's entries oldest first."""

    @abstractmethod
    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """Iterate backwards over the journal of a group or of one of its partitions, newest entries first.

        The journal is read in pages, so taking a few entries is cheap however long it is. Entries of different
        partitions are ordered by time, as far as they do not overlap.
        """

    @abstractmethod
    def _evidence(self, group: str) -> Iterator[Entry | Position]:
        """Iterate over what :meth:`verify` checks: each partition's entries oldest first, and then its position.

        The entries and the position of a partition come from the same snapshot.
        """

    @abstractmethod
    def history(self, group: str, since: datetime) -> list[Bucket]:
        """Return how many records a group has advanced since then, over all partitions, in buckets of ten minutes.

        This history is coarser than the journal and kept for longer; :meth:`verify` does not use it.
        """

    @abstractmethod
    def begin_pruning(self, group: str, every: timedelta) -> bool:
        """Return whether the caller should prune a group's journal: no process has begun to within ``every``.

        If so, the store notes that pruning begins now.
        """

    def prune(self, older_than: timedelta | float | str, group: str | None = None) -> int:
        """Delete journal entries older than ``older_than`` and return how many.

        The last entry of each position stays, so that :meth:`verify` still works. Coarse history is deleted if it is
        older than ``older_than`` and older than 90 days. An age is a timedelta, a number of seconds, or text such as
        ``"30d"``.
        """
        return self._delete_entries(timedelta(seconds=argument("older_than", Age, older_than)), group)

    @abstractmethod
    def _delete_entries(self, older_than: timedelta, group: str | None) -> int:
        """Delete journal entries and coarse history as :meth:`prune` describes, and return the number of entries."""

    @abstractmethod
    def _change(self, once: Once[T], group: str, partitions: list[TopicPartition], decide: Decide[T]) -> T:
        """Lock the rows in order and store the changes that ``decide`` returns for them, all or nothing.

        ``decide`` may run several times, but not after an earlier attempt took effect. Raises :class:`Conflict` if a
        change forces the start of a topic for a deployment that has already forced it.
        """

    @abstractmethod
    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        """Return the topics of a group in which this deployment has forced its start."""

    @abstractmethod
    def _open(self, work: Work) -> AbstractContextManager[Tx]:
        """Begin a transaction and advance the positions; on exit, check that it is still the same one, and commit.

        The letters that the handler parked are stored before the commit. Raises :class:`NotMoved` if the
        compare-and-set does not match every row, and :class:`Retriable` if a retry may help.
        """

    @abstractmethod
    def _detached(self, work: Work) -> AbstractContextManager[Tx]:
        """Open a transaction like :meth:`_open`, but without the advance."""

    @abstractmethod
    def _replaying(self, once: Once[Tx], work: Work, number: int) -> AbstractContextManager[Tx]:
        """Open a transaction like :meth:`_open`, which removes a dead letter instead of advancing positions.

        Raises :class:`DoneBefore` if an earlier attempt took effect, or :class:`NotMoved` if the letter is gone.
        """

    @abstractmethod
    def _locked(self, work: Work) -> Rows:
        """Read the rows of a piece of work under their locks, after waiting for transactions that hold them."""

    @abstractmethod
    def _set_paused(self, once: Once[bool], group: str, kind: Kind, note: str | None) -> bool:
        """Pause or resume the group and journal that, unless it is so already. Returns whether anything changed."""


def _in_lock_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    ordered = sorted({TopicPartition(*tp) for tp in partitions})
    if not ordered:
        raise ConfigurationError("no partition was given")
    for topic in {tp.topic for tp in ordered}:
        check_source(topic)
    for tp in ordered:
        if not 0 <= tp.partition < 1 << 31:
            raise ConfigurationError(f"{tp.partition} is not a partition number of topic {tp.topic!r}")
    return ordered


@contextmanager
def _unsure(once: Once[T]) -> Iterator[None]:
    """Add to a final error that an earlier attempt was not answered, so that its outcome is unknown."""
    try:
        yield
    except LedgerError as error:
        if not once.unknown:
            raise
        raise type(error)(f"{once.what}: an earlier attempt was not answered; then {error}; {NOT_KNOWN}") from error


def _group_of(claims: Claims) -> str:
    groups = {claim.group for claim in claims.values()}
    if len(groups) > 1:
        raise ConfigurationError(f"the claims belong to several groups: {', '.join(sorted(groups))}; pass one group's")
    return groups.pop()


def _spans(steps: Iterable[Advance]) -> tuple[Span, ...]:
    return tuple(step.span for step in steps)


def _what_happened(step: Advance, row: Position | None) -> str:
    if row is None:
        return "its position was deleted"
    now = f"its position is {row.next_offset} in epoch {row.epoch}"
    match standing(row, step.claim):
        case Standing.MINE:
            return f"{now}: an earlier transaction of the same owner has moved it"
        case Standing.FREE:
            return f"{now}: it was edited or released, and has no owner"
        case Standing.TAKEN:
            return f"{now}: {row.owner} has claimed it"
        case other:
            assert_never(other)


def _shown(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:4]))
    return shown if len(partitions) <= 4 else f"{shown} and {len(partitions) - 4} more"


def _at_once(write: Callable[[], object]) -> None:
    write()


def deliver(
    ledger: PositionStore[Tx],
    delivery: Delivery,
    claims: Claims,
    spans: Sequence[Span],
    write: Callable[[Tx], object],
    *,
    written: Callable[[], Sequence[Span]] | None = None,
    last: Callable[[Callable[[], object]], None] = _at_once,
    shared: bool = False,
    conflicts: int | None = None,
) -> Result:
    """Write the data and move the positions, in the order that ``delivery`` demands.

    ``write`` cuts a transaction that advances positions, if it stops early. If the positions move in another
    transaction, ``written`` returns the spans that it has written; by default all. At-most-once moves the positions
    first, so records that cannot be written then are never read again. Therefore ``last`` is called with the function
    that writes, and may retry it. Nothing is written if the positions had already moved before. ``shared``:
    other processes may do the same work with the same claims, as attempts at a Spark task do, so an unanswered COMMIT
    may have been theirs; at-most-once then writes nothing after one. ``conflicts`` applies to exactly-once only: raise
    at the conflict with that number instead of retrying.
    """

    def apart() -> Sequence[Span]:
        with ledger.detached(claims, spans) as tx:
            write(tx)
        return spans if written is None else written()

    match delivery:
        case Delivery.EXACTLY_ONCE:
            return ledger.transact(claims, spans, write, conflicts=conflicts)
        case Delivery.AT_LEAST_ONCE:
            return ledger.transact(claims, apart())
        case Delivery.AT_MOST_ONCE:
            result = ledger.transact(claims, spans)
            if result.outcome is Outcome.COMMITTED and not (shared and result.unknown_outcomes):
                last(apart)
            return result
        case other:
            assert_never(other)
