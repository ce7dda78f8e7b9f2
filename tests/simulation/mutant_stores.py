"""Stores with one rule of the ledger left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

from tidegate.core import work
from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import Change, OpenEntry, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Advance, Claim, Move, Work
from tidegate.ledger.claims import StartAt
from tidegate.ledger.memory import MemoryTransaction
from tidegate.ledger.once import Once
from tidegate.ledger.transaction import NotMoved, OutcomeUnknown

from .steps import Step
from .store import GROUP, Store, StoreTransaction

Rows = Mapping[TopicPartition, Position]


class _OtherCompare(Store):
    """The compare-and-set with another comparison."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        raise NotImplementedError

    def _advance(self, tx: MemoryTransaction) -> None:
        rows = self._locked_rows(tx.work)
        pairs = [(rows[step.span.partition], step) for step in tx.work.steps]
        if not all(self._matches(row, step, tx.work) for row, step in pairs):
            raise NotMoved(rows)
        tx.changes = [row.advanced(step, tx.work, self._now()) for row, step in pairs]
        tx.sealed = True


class Unconditional(_OtherCompare):
    """The position is set, whatever it was."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        return True


class ForwardOnly(_OtherCompare):
    """The position is set if that moves it forward."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        return row.next_offset < step.span.end


class OffsetOnly(_OtherCompare):
    """The offset is compared, epoch and owner are not."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        return row.next_offset == step.span.start


class OwnerOnly(_OtherCompare):
    """Epoch and owner are compared, the offset is not."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        return row.owner == step.claim.owner and row.epoch == step.claim.epoch


class ReplaysBlindly(_OtherCompare):
    """What had an unknown outcome is written again by its owner, without looking where the position is."""

    def _matches(self, row: Position, step: Advance, work: Work) -> bool:
        mine = row.owner == step.claim.owner and row.epoch == step.claim.epoch
        return mine and (row.next_offset == step.span.start or work.token in self.unknown)

    @property
    def unknown(self) -> set[str]:
        return self.__dict__.setdefault("_tokens", set())  # type: ignore[no-any-return]

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        try:
            super()._commit_over_the_wire(tx)
        except OutcomeUnknown:
            self.unknown.add(tx.work.token)
            raise


class _WritesAtOnce(StoreTransaction):
    def load(self, table: str, rows: Iterable[object]) -> None:
        super().load(table, rows)
        for _, row in self.rows:
            self.store.data.setdefault(table, []).append(row)
        self.rows.clear()


class DataOutside(Store):
    """Data written on a connection of its own, as it comes; the position behind it."""

    transaction_type = _WritesAtOnce


class PositionLater(Store):
    """The data is committed, and then the position in a second transaction."""

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        if tx.sealed and not tx.ended:
            for table, row in tx.rows:
                self.data.setdefault(table, []).append(row)
            tx.rows.clear()
        super()._commit_over_the_wire(tx)


class PositionFirst(Store):
    """The position is committed when the transaction begins, the data when it ends."""

    def _advance(self, tx: MemoryTransaction) -> None:
        super()._advance(tx)
        self._store(tx.work.group, tx.changes)
        tx.changes = []


class UnknownTakenForCommitted(Store):
    """An unanswered COMMIT is taken for a good one."""

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        with suppress(OutcomeUnknown):
            super()._commit_over_the_wire(tx)


class NoSentinel(Store):
    """COMMIT without a look at whether it is still the same transaction."""

    def _check_sentinel(self, tx: MemoryTransaction) -> None:
        pass


class EditUnseen(Store):
    """An edit that moves the offset, and neither bumps the epoch nor clears the owner."""

    def edit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, note: str | None = None, **_: Any
    ) -> dict[TopicPartition, Position]:
        def decide(rows: Rows) -> tuple[list[Change], None]:
            return [_moved(rows[tp], offset, note) for tp, offset in offsets.items()], None

        self._changed(group, sorted(offsets), decide, "edit")
        return {}


def _moved(row: Position, offset: int, note: str | None) -> Change:
    new = row._replace(next_offset=offset, seq=row.seq + 1)
    entry = Entry(row.partition, new.seq, Kind.EDIT, row.next_offset, offset, 0, row.epoch, row.owner, None, note)
    return Change(new, (entry,))


class EditRepeated(Store):
    """A change whose answer was lost is made again, whatever became of it."""

    def _was_made(self, once: Once[Any]) -> bool:
        return False


class ClaimShared(Store):
    """A claim of what has an owner leaves owner and epoch as they are: two members hold one claim."""

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        partitions = sorted(partitions)
        rows = self._rows(group, partitions)
        if any(tp not in rows or rows[tp].owner is None for tp in partitions):
            return super().claim(group, partitions, start_at, **options)
        self.request(Step.CLAIM)
        return {tp: rows[tp].claim(group) for tp in partitions}


class ReleaseByAnyone(Store):
    """A release that does not ask whether the claim still stands."""

    def release(self, claims: Mapping[TopicPartition, Claim]) -> set[TopicPartition]:
        def decide(rows: Rows) -> tuple[list[Change], None]:
            return [row.released() for row in rows.values() if row.owner is not None], None

        self._changed(GROUP, sorted(claims), decide, "release")
        return set(claims)


@contextmanager
def left_open(by: str) -> Iterator[None]:
    """A claim or an edit leaves the entry of the journal open, and whoever comes next extends it."""
    real = getattr(Position, by)

    def change(row: Position, *arguments: Any) -> Change:
        made: Change = real(row, *arguments)
        return made._replace(position=made.position._replace(open=row.open, bucket=row.bucket), closed=None, past=None)

    with patch.object(Position, by, change), patch.object(OpenEntry, "takes", lambda *_: True):
        yield


def never_closed() -> AbstractContextManager[object]:
    """An entry of the journal is extended for as long as its claim stands."""
    return patch.object(OpenEntry, "takes", lambda *_: True)


def token_without_epoch() -> AbstractContextManager[object]:
    """The token names the spans only."""

    def token(group: str, steps: Iterable[Advance], move: Move) -> str:
        name = repr((group, move.value, [(*step.span.partition, step.span.start, step.span.end) for step in steps]))
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    return patch.object(work, "_token", token)
