"""The contract of a ledger, and the parts of it that are the same for every store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Generic, NamedTuple, Self, TypeAlias, TypeVar

from tidegate.core.arguments import Label, argument
from tidegate.core.claiming import ClaimRequest, Standing, standing
from tidegate.core.errors import AlreadyDone, ConfigurationError, Fenced, NotCommitted, PositionMissing
from tidegate.core.journal import Break, Entry, Kind, Trail, Verification
from tidegate.core.letters import ParkedLetter
from tidegate.core.names import check_deployment, check_group, check_topic
from tidegate.core.positions import Change, GroupState, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Step, Work
from tidegate.core.totals import Totals
from tidegate.ledger.claiming import Claiming, Identities, StartAt, Subscription
from tidegate.ledger.limits import Limits, Patience
from tidegate.ledger.owner import new_owner
from tidegate.ledger.transaction import Outcome, Result, Transaction
from tidegate.ledger.trouble import NotMoved, OutcomeUnknown, Trouble

__all__ = ["Claims", "Decide", "Ledger", "Reclaimed", "Rows"]

Claims: TypeAlias = Mapping[TopicPartition, Claim]
Rows: TypeAlias = Mapping[TopicPartition, Position]
Decide: TypeAlias = Callable[[Rows], Sequence[Change]]

T = TypeVar("T")
Tx = TypeVar("Tx", bound=Transaction)


class Reclaimed(NamedTuple):
    """What became of claims that were fenced: those held now, and the partitions that another owner has."""

    claims: dict[TopicPartition, Claim]
    owners: dict[TopicPartition, str]


class Ledger(ABC, Generic[Tx]):
    """Positions that move with the data.

    A store implements the methods at the end; what they add up to is written here, once.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Limits = argument("limits", Limits | None, limits) or Limits()

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
        """Take partitions, in one transaction: bump their epochs, name their owner, return their positions.

        A partition without a stored position gets one from ``start_at`` first; it is asked only then. With a
        ``subscription``, the first claim of a topic stores a position for each of its partitions, those of other
        members included, in the same transaction. See :class:`~tidegate.core.claiming.ClaimRequest` for ``deployment``
        and ``restart``.
        """
        wanted = _in_lock_order(partitions)
        deployment = argument("deployment", Label | None, deployment)
        if deployment is not None:
            check_deployment(deployment)
        restart = argument("restart", bool, restart)
        request = ClaimRequest(check_group(group), new_owner(), deployment=deployment, restart=restart)
        claiming = Claiming(request, wanted, start_at, identities or {}, subscription)

        def claim() -> None:
            # A name that is used stays so. One that is not is stored by the claim, which fails if another was quicker.
            used = frozenset[str]() if deployment is None else self._forced_by(group, deployment)
            self._change(group, claiming.partitions, lambda rows: claiming.decide(rows, used))

        while True:
            self._patiently(f"claim {_shown(wanted)} for group {group!r}", claim)
            if claiming.claims:
                return claiming.claims
            claiming.look_up(self.read(group).positions)

    def reclaim(self, claims: Claims, *, take: bool = False) -> Reclaimed:
        """Find out where fenced claims stand and claim again what may be claimed, in one transaction.

        What is still mine goes on from the row; what nobody owns is claimed; what another owner has is left to it,
        unless ``take`` is given.
        """
        held: dict[TopicPartition, Claim] = {}
        owners: dict[TopicPartition, str] = {}
        owner = new_owner()

        def decide(rows: Rows) -> list[Change]:
            held.clear()
            owners.clear()
            changes = []
            for tp, claim in sorted(claims.items()):
                if (row := rows.get(tp)) is None:
                    raise PositionMissing(f"the position of group {claim.group!r} for {tp} was deleted; claim it anew")
                verdict = standing(row, claim)
                if verdict is Standing.MINE:
                    held[tp] = row.claim(claim.group)
                elif verdict is Standing.FREE or take:
                    changes.append(row.claimed(owner))
                    held[tp] = changes[-1].position.claim(claim.group)
                else:
                    owners[tp] = str(row.owner)
            return changes

        if claims:
            self._changed(_group_of(claims), sorted(claims), decide, "claim again")
        return Reclaimed(held, owners)

    def release(self, claims: Claims) -> set[TopicPartition]:
        """Give partitions back. Those that were fenced meanwhile are not mine to release, and are left alone."""
        given_back: set[TopicPartition] = set()

        def decide(rows: Rows) -> list[Change]:
            changes = [row.released() for tp, row in sorted(rows.items()) if standing(row, claims[tp]) is Standing.MINE]
            given_back.clear()
            given_back.update(change.position.partition for change in changes)
            return changes

        if claims:
            self._changed(_group_of(claims), sorted(claims), decide, "release")
        return given_back

    def transact(
        self,
        claims: Claims,
        spans: Iterable[Span],
        handler: Callable[[Tx], object] | None = None,
        *,
        move: Move = Move.ADVANCE,
        note: str | None = None,
    ) -> Result:
        """Advance the spans and run ``handler`` in the same transaction, again if need be, until it is committed once.

        ``handler`` may be run several times; what it wrote in an attempt that failed is rolled back. An unanswered
        COMMIT needs no rule of its own: the next attempt's compare-and-set waits for the row, and matches only if the
        lost one was not carried out. Raises :class:`Fenced` if someone else moved or claimed one of the positions.
        """
        work = Work.of(claims, spans, move=move, note=note)
        return self._until_committed(
            str(work), lambda: self._open(work), handler, lambda rows: self._done_or_fenced(work, rows)
        )

    def replay(self, parked: ParkedLetter, handler: Callable[[Tx], object]) -> Result:
        """Run ``handler`` and remove a dead letter in the same transaction, again if need be, until it is committed
        once. No position moves.

        The letter's row is the mutex: whoever comes second waits for it, finds it gone, and runs nothing
        (``ALREADY_DONE``). An unanswered COMMIT is looked into the same way: a letter that is gone then was replayed.
        """
        work = Work.again(parked.group, parked.letter.record)
        return self._until_committed(
            f"dead letter {parked.id} of {work}", lambda: self._replaying(work, parked.id), handler, lambda _: None
        )

    def _until_committed(
        self,
        what: str,
        begin: Callable[[], AbstractContextManager[Tx]],
        handler: Callable[[Tx], object] | None,
        settle: Callable[[NotMoved], None],
    ) -> Result:
        """``settle`` raises if what did not move was not done before."""
        patience = Patience(self.limits, what)
        attempts = unknown = 0
        while True:
            attempts += 1
            try:
                with begin() as tx:
                    if handler is not None:
                        handler(tx)
                return Result(Outcome.COMMITTED, attempts, unknown)
            except NotMoved as rows:
                settle(rows)
                return Result(Outcome.COMMITTED if unknown else Outcome.ALREADY_DONE, attempts, unknown)
            except Trouble as trouble:
                unknown += isinstance(trouble, OutcomeUnknown)
                patience.again(trouble)

    @contextmanager
    def transaction(self, claims: Claims, spans: Iterable[Span]) -> Iterator[Tx]:
        """Like :meth:`transact`, for a block of the caller's own: one attempt.

        Raises :class:`Fenced`; or :class:`NotCommitted`, after which the caller may run the same block again.
        """
        work = Work.of(claims, spans)
        try:
            with self._open(work) as tx:
                yield tx
        except NotMoved as rows:
            self._done_or_fenced(work, rows)
            raise AlreadyDone(f"{work}: was committed before; go on behind it") from None
        except OutcomeUnknown as unknown:
            if not self._landed(work, unknown):
                raise NotCommitted(
                    f"{work}: the connection broke and nothing was committed; run the block again"
                ) from None
        except Trouble as trouble:
            raise NotCommitted(f"{work}: {trouble}; nothing was committed, run the block again") from trouble

    @contextmanager
    def detached(self, claims: Claims, spans: Iterable[Span]) -> Iterator[Tx]:
        """A transaction that does not move the positions: for at-least-once, before :meth:`transact` moves them alone,
        and for at-most-once, after it. A crash between the two repeats the spans, or loses them."""
        work = Work.of(claims, spans)
        try:
            with self._detached(work) as tx:
                yield tx
        except Trouble as trouble:
            raise NotCommitted(f"{work}: {trouble}; whether it was committed is not known") from trouble

    def _landed(self, work: Work, unknown: OutcomeUnknown) -> bool:
        """Whether a COMMIT that was not answered was carried out."""
        patience = Patience(self.limits, str(work), unknown)
        while True:
            try:
                rows = self._locked(work)
            except Trouble as trouble:
                patience.again(trouble)
            else:
                if rows.keys() >= set(work.partitions) and all(rows[s.span.partition].matches(s) for s in work.steps):
                    return False
                self._done_or_fenced(work, NotMoved(rows))
                return True

    def _done_or_fenced(self, work: Work, not_moved: NotMoved) -> None:
        """The token is looked at only here, after the compare-and-set matched no row: mine means done."""
        rows = not_moved.rows
        if all((row := rows.get(tp)) is not None and row.token == work.token for tp in work.partitions):
            return
        wrong = {
            step.span.partition: rows.get(step.span.partition)
            for step in work.steps
            if (row := rows.get(step.span.partition)) is None or not row.matches(step)
        }
        step = next(step for step in work.steps if step.span.partition in wrong)
        raise Fenced(
            f"group {work.group!r}: {step.span} was to be advanced in epoch {step.claim.epoch} by {step.claim.owner}, "
            f"but {_what_happened(step, wrong[step.span.partition])}. Nothing was written; drop what was read, reclaim",
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
        """Set positions by hand. Their owners are fenced and go on from the new position.

        ``check`` is given the rows as they are, locked, and may raise: nothing is changed then. It may be run again.
        ``identities``: the topics whose offsets these are; without them, a stored position stays that of the topic that
        it was stored for, and if that was recreated, a claim refuses it or begins again.
        """
        for tp, offset in offsets.items():
            if not 0 <= offset < 1 << 63:
                raise ConfigurationError(f"{offset} is not an offset that {tp} can have")
        edited: dict[TopicPartition, Position] = {}

        def decide(rows: Rows) -> list[Change]:
            if check is not None:
                check(rows)
            changes = []
            for tp, offset in sorted(offsets.items()):
                row = rows.get(tp)
                identity = (identities or {}).get(tp.topic)
                change = Position.start(tp, offset, note=note) if row is None else row.edited(offset, note, identity)
                edited[tp] = change.position
                changes.append(change)
            return changes

        self._changed(check_group(group), _in_lock_order(offsets), decide, "edit")
        return edited

    def verify(self, group: str) -> Verification:
        """Prove from the journal that every advance starts where the one before it ended, or name the breaks."""
        # The journal is read after the rows, and grows meanwhile: entries behind a row as it was read are not looked
        # at.
        positions = self.read(group).positions
        trails = {tp: _trail(row) for tp, row in positions.items()}
        late: dict[TopicPartition, Entry] = {}  # newer than the rows that were read, or pruned up to there since
        for entry in self._history(group):
            tp = entry.partition
            if tp is None or tp in late:
                continue
            if tp not in positions or (entry.seq > positions[tp].seq and not trails[tp].count):
                late[tp] = entry
            else:
                trails[tp].follow(entry)
        breaks = []
        for tp, entry in late.items():
            trails.pop(tp, None)
            if (trail := self._followed(group, tp)) is None:
                breaks.append(Break(tp, entry.seq, "the journal has entries, but the position is gone"))
            else:
                trails[tp] = trail
        breaks.extend(filter(None, (trail.end() for trail in trails.values())))
        return Verification(len(positions), sum(trail.count for trail in trails.values()), tuple(sorted(breaks)))

    def _followed(self, group: str, partition: TopicPartition) -> Trail | None:
        """One partition's entries, followed to its position; again if all of them were pruned since that was read."""
        while (row := self.read(group, [partition]).positions.get(partition)) is not None:
            trail, newest = _trail(row), 0
            for entry in self.journal(group, partition):
                trail.follow(entry)
                newest = entry.seq
            if trail.count or newest <= row.seq:
                return trail
        return None

    def pause(self, group: str, *, note: str | None = None) -> bool:
        """Pause a group, for every consumer of it and over restarts; whether it was running before."""
        return self._patiently(f"pause {group!r}", lambda: self._set_paused(check_group(group), Kind.PAUSE, note))

    def resume(self, group: str, *, note: str | None = None) -> bool:
        """Let a paused group go on; whether it was paused before."""
        return self._patiently(f"resume {group!r}", lambda: self._set_paused(check_group(group), Kind.RESUME, note))

    def _changed(self, group: str, partitions: list[TopicPartition], decide: Decide, what: str) -> None:
        shown = f"{what} {_shown(partitions)} for group {group!r}"
        self._patiently(shown, lambda: self._change(group, partitions, decide))

    def _patiently(self, what: str, work: Callable[[], T]) -> T:
        """Do something that may be done again, as often as the limits allow."""
        patience = Patience(self.limits, what)
        while True:
            try:
                return work()
            except Trouble as trouble:
                patience.again(trouble)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What a store implements

    @abstractmethod
    def create(self) -> None:
        """Create what the ledger needs in its store, or bring it up to this version. Safe to call at any time."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the ledger opened itself."""

    @abstractmethod
    def read(self, group: str, partitions: Collection[TopicPartition] | None = None) -> GroupState:
        """A group's positions, all or those of ``partitions`` that are stored, and whether it is paused: one query."""

    @abstractmethod
    def read_all(self) -> dict[str, GroupState]:
        """Every group of the ledger: one query."""

    @abstractmethod
    def totals(self) -> list[Totals]:
        """What every group has in each of its topics, added up, in order: one query, however many partitions."""

    @abstractmethod
    def journal(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """The journal of a group or of one of its partitions, each partition's entries oldest first."""

    @abstractmethod
    def newest(self, group: str, partition: TopicPartition | None = None) -> Iterator[Entry]:
        """The journal of a group or of one of its partitions backwards, each partition's newest entry first.

        It is read page by page, so that whoever takes a few entries costs little, however long the journal is. Entries
        of different partitions come in the order of time, as far as they do not overlap.
        """

    def _history(self, group: str) -> Iterator[Entry]:
        """Like :meth:`journal`, in whatever order of the partitions is the quickest."""
        return self.journal(group)

    @abstractmethod
    def prune(self, older_than: timedelta, group: str | None = None) -> int:
        """Delete journal entries of that age; how many. The last entry of each position stays, so that verify holds."""

    @abstractmethod
    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[ParkedLetter]:
        """Dead letters of a group in the order in which they were parked, from behind the one with the id ``after``."""

    def dead_letter(self, group: str, number: int) -> ParkedLetter | None:
        """The dead letter of a group with this id, if it is there."""
        found = self.dead_letters(group, after=number - 1, limit=1) if number > 0 else []
        return found[0] if found and found[0].id == number else None

    @abstractmethod
    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Remove dead letters for good; how many there were."""

    @abstractmethod
    def failed_again(self, parked: ParkedLetter, error: str) -> bool:
        """A replay failed: the letter counts another attempt and has a new error; whether it is still there."""

    @abstractmethod
    def _change(self, group: str, partitions: list[TopicPartition], decide: Decide) -> None:
        """Lock the rows in order, store what ``decide`` makes of them, all or nothing. ``decide`` may be run again.

        Raises :class:`Conflict` if a deployment that forces a start here has forced that topic's before.
        """

    @abstractmethod
    def _forced_by(self, group: str, deployment: str) -> frozenset[str]:
        """The topics of a group in which this deployment has forced its start."""

    @abstractmethod
    def _open(self, work: Work) -> AbstractContextManager[Tx]:
        """Begin, advance, and on leaving check that it is still the same transaction, park and commit.

        Raises :class:`NotMoved` if the compare-and-set does not match every row; :class:`Trouble` otherwise.
        """

    @abstractmethod
    def _detached(self, work: Work) -> AbstractContextManager[Tx]:
        """Like :meth:`_open`, without the advance."""

    @abstractmethod
    def _replaying(self, work: Work, number: int) -> AbstractContextManager[Tx]:
        """Like :meth:`_open`, with the removal of a dead letter instead of the advance.

        Raises :class:`NotMoved` if the letter is gone.
        """

    @abstractmethod
    def _locked(self, work: Work) -> Rows:
        """The rows of a piece of work, read under their locks: waits for whoever is about to change them."""

    @abstractmethod
    def _set_paused(self, group: str, kind: Kind, note: str | None) -> bool:
        """Store and journal it if it is not so already; whether it was not."""


def _in_lock_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    ordered = sorted({TopicPartition(*tp) for tp in partitions})
    if not ordered:
        raise ConfigurationError("no partition was given")
    for topic in {tp.topic for tp in ordered}:
        check_topic(topic)
    for tp in ordered:
        if not 0 <= tp.partition < 1 << 31:
            raise ConfigurationError(f"{tp.partition} is not a partition number of topic {tp.topic!r}")
    return ordered


def _group_of(claims: Claims) -> str:
    groups = {claim.group for claim in claims.values()}
    if len(groups) > 1:
        raise ConfigurationError(f"the claims belong to several groups: {', '.join(sorted(groups))}; pass one group's")
    return groups.pop()


def _what_happened(step: Step, row: Position | None) -> str:
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


def _trail(row: Position) -> Trail:
    return Trail(row.partition, next_offset=row.next_offset, epoch=row.epoch, seq=row.seq)


def _shown(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:4]))
    return shown if len(partitions) <= 4 else f"{shown} and {len(partitions) - 4} more"
