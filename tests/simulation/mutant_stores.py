"""Stores with one rule of the ledger left out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from tidegate.core import spans
from tidegate.core.journal import Entry, Kind
from tidegate.core.positions import Change, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Step, Work
from tidegate.ledger.base import StartAt
from tidegate.ledger.memory import MemoryTransaction
from tidegate.ledger.trouble import NotMoved, OutcomeUnknown

from .store import GROUP, Cut, Store, StoreTransaction

Rows = Mapping[TopicPartition, Position]


class _OtherCompare(Store):
    """The compare-and-set with another comparison."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        raise NotImplementedError

    def _advance(self, tx: MemoryTransaction) -> None:
        rows = self._locked_rows(tx.work)
        pairs = [(rows[step.span.partition], step) for step in tx.work.steps]
        if not all(self._matches(row, step, tx.work) for row, step in pairs):
            raise NotMoved(rows)
        tx.changes = [row.advanced(step, tx.work) for row, step in pairs]
        tx.sealed = True


class Unconditional(_OtherCompare):
    """The position is set, whatever it was."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        return True


class ForwardOnly(_OtherCompare):
    """The position is set if that moves it forward."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        return row.next_offset < step.span.end


class OffsetOnly(_OtherCompare):
    """The offset is compared, epoch and owner are not."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        return row.next_offset == step.span.start


class OwnerOnly(_OtherCompare):
    """Epoch and owner are compared, the offset is not."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        return row.owner == step.claim.owner and row.epoch == step.claim.epoch


class ReplaysBlindly(_OtherCompare):
    """What had an unknown outcome is written again by its owner, without looking where the position is."""

    def _matches(self, row: Position, step: Step, work: Work) -> bool:
        mine = row.owner == step.claim.owner and row.epoch == step.claim.epoch
        return mine and (row.next_offset == step.span.start or work.token in self.unknown)

    @property
    def unknown(self) -> set[str]:
        return self.__dict__.setdefault("_unknown", set())  # type: ignore[no-any-return]

    def _landed(self, work: Work, unknown: OutcomeUnknown) -> bool:
        return False

    def _commit_over_the_wire(self, tx: StoreTransaction) -> None:
        try:
            super()._commit_over_the_wire(tx)
        except OutcomeUnknown:
            self.unknown.add(tx.work.token)
            raise


class _WritesAtOnce(StoreTransaction):
    def append(self, table: str, row: object) -> None:
        super().append(table, row)
        self.rows.clear()
        self.store.data.setdefault(table, []).append(row)


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


class NoSentinel(Store):
    """COMMIT without a look at whether it is still the same transaction."""

    def _check_sentinel(self, tx: MemoryTransaction) -> None:
        pass


class EditUnseen(Store):
    """An edit that moves the offset, and neither bumps the epoch nor clears the owner."""

    def edit(
        self, group: str, offsets: Mapping[TopicPartition, int], *, note: str | None = None
    ) -> dict[TopicPartition, Position]:
        def decide(rows: Rows) -> list[Change]:
            return [_moved(rows[tp], offset, note) for tp, offset in offsets.items()]

        self._changed(group, sorted(offsets), decide, "edit")
        return {}


def _moved(row: Position, offset: int, note: str | None) -> Change:
    new = row._replace(next_offset=offset, seq=row.seq + 1)
    entry = Entry(row.partition, new.seq, Kind.EDIT, row.next_offset, offset, 0, row.epoch, row.owner, None, note)
    return Change(new, (entry,))


class ClaimShared(Store):
    """A claim of what has an owner leaves owner and epoch as they are: two members hold one claim."""

    def claim(
        self, group: str, partitions: Iterable[TopicPartition], start_at: StartAt = 0, **options: Any
    ) -> dict[TopicPartition, Claim]:
        rows = self._rows(group, partitions := sorted(partitions))
        if any(tp not in rows or rows[tp].owner is None for tp in partitions):
            return super().claim(group, partitions, start_at, **options)
        self.cut = Cut.NONE
        return {tp: rows[tp].claim(group) for tp in partitions}


class ReleaseByAnyone(Store):
    """A release that does not ask whether the claim still stands."""

    def release(self, claims: Mapping[TopicPartition, Claim]) -> set[TopicPartition]:
        def decide(rows: Rows) -> list[Change]:
            return [row.released() for row in rows.values() if row.owner is not None]

        self._changed(GROUP, sorted(claims), decide, "release")
        return set(claims)


def token_without_epoch() -> AbstractContextManager[object]:
    """The token names the spans only."""

    def token(group: str, steps: Iterable[Step]) -> str:
        name = repr((group, [(*step.span.partition, step.span.start, step.span.end) for step in steps]))
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    return patch.object(spans, "_token", token)
