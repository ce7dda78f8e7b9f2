"""The journal proves that nothing was skipped or repeated unsaid."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.journal import WRITTEN_LATE, Break, Entry, Kind, Trail, Verification
from tidegate.core.positions import Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Advance, Move, Span, Work

TP = TopicPartition("orders", 0)
NOW = datetime(2026, 11, 16, tzinfo=UTC)


def history(seed: int, length: int = 12) -> tuple[Position, list[Entry]]:
    """A position to which things have happened that may happen to one, and its journal."""
    rng = Random(seed)
    change = Position.start(TP, 5, Identity(), None)
    row, entries = change.position, list(change.entries)
    for number in range(length):
        kinds = ["claim", "edit"] + (["release", "advance", "skip", "loss"] * 3 if row.owner else [])
        match rng.choice(kinds):
            case "claim":
                change = row.claimed(f"owner {number}")
            case "edit":
                change = row.edited(rng.randrange(50), None)
            case "release":
                change = row.released()
            case move:
                claim = row.claim("billing")
                span = Span(TP, row.next_offset, row.next_offset + rng.randint(1, 9))
                now = NOW + timedelta(seconds=rng.choice((0, 30, 90)) * number)
                change = row.advanced(Advance(claim, span), Work.of({TP: claim}, [span], move=Move(move)), now)
        row = change.position
        entries += [change.closed] if change.closed else []
        entries += change.entries
    return row, [*entries, row.open.entry(row)] if row.open else entries


def followed(
    entries: list[Entry], *, next_offset: int, epoch: int, seq: int, owner: str | None = "me"
) -> tuple[int, Break | None]:
    trail = Trail(TP)
    for entry in entries:
        trail.follow(entry)
    trail.end(next_offset=next_offset, epoch=epoch, owner=owner, seq=seq)
    return trail.count, trail.broken


def verified(row: Position, entries: list[Entry]) -> tuple[int, Break | None]:
    return followed(entries, next_offset=row.next_offset, epoch=row.epoch, owner=row.owner, seq=row.seq)


@given(st.integers(0, 10_000))
def test_whatever_may_happen_to_a_position_is_proven(seed: int) -> None:
    row, entries = history(seed)
    assert verified(row, entries) == (len(entries), None)


@given(st.integers(0, 10_000), st.integers(0, 12))
def test_a_pruned_journal_is_proven_from_its_first_entry_on(seed: int, pruned: int) -> None:
    row, entries = history(seed)
    pruned = min(pruned, len(entries) - 1)
    assert verified(row, entries[pruned:]) == (len(entries) - pruned, None)


@given(st.integers(0, 10_000), st.integers(1, 11))
def test_an_entry_that_is_missing_is_named(seed: int, missing: int) -> None:
    row, entries = history(seed)
    missing = min(missing, len(entries) - 2)
    _, fault = verified(row, entries[:missing] + entries[missing + 1 :])
    assert fault is not None
    assert fault.seq == missing + 2
    assert "missing" in fault.reason


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["start", "end", "epoch", "seq"]))
def test_an_entry_that_was_changed_is_found(seed: int, index: int, what: str) -> None:
    row, entries = history(seed)
    index = min(index, len(entries) - 1)
    entries[index] = entries[index]._replace(**{what: getattr(entries[index], what) + 1})
    assert verified(row, entries)[1] is not None


def entry(seq: int, kind: Kind, start: int, end: int, epoch: int = 1, owner: str | None = "me") -> Entry:
    return Entry(TP, seq, kind, start, end, 0, epoch, owner, None, None)


CLAIMED = entry(2, Kind.CLAIM, 5, 5)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (entry(3, Kind.ADVANCE, 6, 8), "starts at offset 6, but the entry before it ended at 5"),
        (entry(3, Kind.ADVANCE, 4, 8), "starts at offset 4, but the entry before it ended at 5"),
        (entry(3, Kind.ADVANCE, 5, 5), "goes from offset 5 to 5"),
        (entry(3, Kind.RELEASE, 5, 8), "moves the position from 5 to 8"),
        (entry(3, Kind.CLAIM, 5, 5), "has epoch 1 after epoch 1"),
        (entry(3, Kind.EDIT, 5, 0), "has epoch 1 after epoch 1"),
        (entry(3, Kind.ADVANCE, 5, 8, epoch=2), "has epoch 2 after epoch 1"),
        (entry(3, Kind.ADVANCE, 5, 8, owner="you"), "by you, but the owner was me"),
        (entry(5, Kind.ADVANCE, 5, 8), "entries 3 to 4 are missing"),
    ],
)
def test_a_break_says_what_does_not_add_up(second: Entry, said: str) -> None:
    _, fault = followed([CLAIMED, second], next_offset=8, epoch=1, seq=second.seq)
    assert fault is not None
    assert said in str(fault)


def test_an_advance_of_what_nobody_owns_is_a_break() -> None:
    released = entry(3, Kind.RELEASE, 5, 5)
    _, fault = followed([CLAIMED, released, entry(4, Kind.ADVANCE, 5, 8)], next_offset=8, epoch=1, seq=4)
    assert fault is not None
    assert "the owner was None" in fault.reason


@pytest.mark.parametrize(("stored", "said"), [((9, 1, 2), "offset 5"), ((5, 2, 2), "epoch 1"), ((5, 1, 3), "entry 2")])
def test_a_journal_has_to_end_at_the_position(stored: tuple[int, int, int], said: str) -> None:
    next_offset, epoch, seq = stored
    _, fault = followed([CLAIMED], next_offset=next_offset, epoch=epoch, seq=seq)
    assert fault is not None
    assert f"ends at {said}" in fault.reason


def test_a_journal_has_to_end_with_the_owner() -> None:
    _, fault = followed([CLAIMED], next_offset=5, epoch=1, seq=2, owner="you")
    assert fault is not None
    assert "the journal ends at owner me, but the position is at you" in fault.reason


def test_entries_without_a_position_are_a_break() -> None:
    trail = Trail(TP)
    trail.follow(CLAIMED)
    assert trail.broken == (TP, 2, "the journal has entries, but the position is gone")


def test_an_entry_that_comes_again_is_a_break() -> None:
    _, fault = followed([CLAIMED, CLAIMED], next_offset=5, epoch=1, seq=2)
    assert fault == (TP, 2, "it comes behind entry 2")


def test_what_was_written_late_may_be_all_that_pruning_has_left_of_its_time() -> None:
    late = entry(3, Kind.ADVANCE, 5, 8)._replace(note=WRITTEN_LATE)
    later = entry(6, Kind.CLAIM, 9, 9, epoch=3)
    assert followed([late, later], next_offset=9, epoch=3, seq=6) == (2, None)
    _, fault = followed([CLAIMED, late, later], next_offset=9, epoch=3, seq=6)
    assert fault is not None
    assert "entries 4 to 5 are missing" in fault.reason


def test_a_journal_begins_with_a_start() -> None:
    _, fault = followed([CLAIMED._replace(seq=1)], next_offset=5, epoch=1, seq=1)
    assert fault is not None
    assert "'claim', not 'start'" in fault.reason


def test_a_position_without_a_journal_is_a_break() -> None:
    count, fault = followed([], next_offset=5, epoch=1, seq=1)
    assert count == 0
    assert fault is not None
    assert not Verification(1, 0, (fault,)).ok
    assert Verification(1, 5, ()).ok
