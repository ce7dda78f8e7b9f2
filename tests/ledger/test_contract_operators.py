"""The contract of a ledger: reading, editing, pausing, and the journal that proves it all."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.core.positions import GroupState, Identity
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError, Fenced, IdentityChanged

from .samples import FIRST, GROUP, OTHER, PARTITIONS, SECOND, THIRD, advance, kinds, offsets, span
from .stores import Store

# Reading


def test_an_unknown_group_is_empty(store: Store) -> None:
    state = store.ledger.read("nobody")
    assert (state.group, state.paused, state.positions) == ("nobody", False, {})
    assert list(store.ledger.journal("nobody")) == []
    assert store.ledger.dead_letters("nobody") == []
    assert store.ledger.verify("nobody") == (0, 0, ())


def test_reading_tells_stored_positions_from_missing_ones(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST, SECOND], 3)
    state = store.open().read(GROUP, [FIRST, THIRD, OTHER])
    assert set(state.positions) == {FIRST}
    assert state.missing({FIRST, THIRD, OTHER}) == {THIRD, OTHER}
    assert store.ledger.read(GROUP, []).positions == {}


def test_a_position_is_read_as_it_was_stored(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], 3)
    began = datetime.now(UTC) - timedelta(seconds=5)
    advance(store, claims, span(3, 9))
    row = store.open().read(GROUP).positions[FIRST]
    assert (row.partition, row.next_offset, row.epoch, row.owner) == (FIRST, 9, 1, claims[FIRST].owner)
    assert (row.seq, row.deployment) == (3, None)
    assert row.updated_at is not None
    assert began < row.updated_at < datetime.now(UTC) + timedelta(seconds=5)


def test_reading_all_gives_every_group(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST, OTHER], 3)
    store.ledger.claim("shipping", [SECOND], 5)
    store.ledger.pause("audit")
    states = store.open().read_all()
    assert list(states) == ["audit", GROUP, "shipping"]
    assert [state.paused for state in states.values()] == [True, False, False]
    assert {group: set(state.positions) for group, state in states.items()} == {
        "audit": set(),
        GROUP: {FIRST, OTHER},
        "shipping": {SECOND},
    }
    assert states[GROUP] == store.ledger.read(GROUP)


def test_looking_at_a_group_does_not_make_it(store: Store) -> None:
    store.ledger.read(GROUP)
    store.ledger.verify(GROUP)
    store.ledger.drop_letters(GROUP, [1])
    assert store.ledger.read_all() == {}


# Editing


def test_an_edit_moves_the_position_and_fences_the_owner(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    edited = store.open().edit(GROUP, {FIRST: 40}, note="skip the flood")
    assert edited[FIRST].next_offset == 40
    row = store.ledger.read(GROUP).positions[FIRST]
    assert (row.next_offset, row.epoch, row.owner, row.token) == (40, 2, None, None)
    with pytest.raises(Fenced):
        advance(store, claims, span(40, 41))
    advance(store, claims, span(0, 1, SECOND))
    last = list(store.ledger.journal(GROUP, FIRST))[-1]
    assert (last.kind, last.start, last.end, last.note) == ("edit", 0, 40, "skip the flood")


def test_an_edit_can_store_a_position_before_anybody_claimed_it(store: Store) -> None:
    store.ledger.edit(GROUP, {FIRST: 12})
    assert store.ledger.claim(GROUP, [FIRST], 0)[FIRST].position == 12
    assert store.ledger.verify(GROUP).ok


def test_an_edit_stores_a_new_position_as_one_of_its_topic(store: Store) -> None:
    known, other = Identity("cluster", "id-1"), Identity("cluster", "id-2")
    store.ledger.edit(GROUP, {FIRST: 3, SECOND: 4}, identities={"orders": known}, note="adopted")
    rows = store.ledger.read(GROUP).positions
    assert {tp: (row.next_offset, row.identity) for tp, row in rows.items()} == {FIRST: (3, known), SECOND: (4, known)}
    with pytest.raises(IdentityChanged, match="was recreated"):
        store.ledger.claim(GROUP, [FIRST], identities={"orders": other})
    assert store.ledger.claim(GROUP, [FIRST], 9, identities={"orders": known})[FIRST].position == 3
    assert store.ledger.verify(GROUP).ok


def test_an_edit_to_where_the_position_is_fences_too(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], 4)
    store.ledger.edit(GROUP, {FIRST: 4})
    with pytest.raises(Fenced):
        advance(store, claims, span(4, 5))


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_an_edit_to_what_is_no_offset_is_refused_and_nothing_is_edited(store: Store, offset: int) -> None:
    store.ledger.claim(GROUP, [FIRST, SECOND])
    before = store.ledger.read(GROUP)
    with pytest.raises(ConfigurationError, match=str(offset)):
        store.ledger.edit(GROUP, {FIRST: 3, SECOND: offset})
    assert store.ledger.read(GROUP) == before


# Pausing


def test_a_pause_is_seen_by_everybody_until_the_group_is_resumed(store: Store) -> None:
    other = store.open()
    assert store.ledger.pause(GROUP) is True
    assert other.read(GROUP).paused is True
    assert other.read(GROUP, [FIRST]).paused is True
    assert other.read(GROUP, []) == GroupState(GROUP, True, {})
    assert other.resume(GROUP) is True
    assert store.ledger.read(GROUP).paused is False


def test_pausing_and_resuming_twice_changes_and_journals_nothing_more(store: Store) -> None:
    assert store.ledger.resume(GROUP) is False
    assert [store.ledger.pause(GROUP) for _ in range(2)] == [True, False]
    assert [store.ledger.resume(GROUP) for _ in range(2)] == [True, False]
    assert kinds(store.ledger.journal(GROUP)) == ["pause", "resume"]


def test_a_pause_is_journalled_with_its_reason(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST])
    store.ledger.pause(GROUP, note="maintenance")
    store.ledger.resume(GROUP)
    pause, resume = (entry for entry in store.ledger.journal(GROUP) if entry.partition is None)
    assert (pause.seq, pause.kind, pause.note) == (1, "pause", "maintenance")
    assert (resume.seq, resume.kind, resume.note) == (2, "resume", None)
    assert kinds(store.ledger.journal(GROUP, FIRST)) == ["start", "claim"]
    assert store.ledger.verify(GROUP).ok


def test_a_pause_leaves_the_positions_alone(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    before = store.ledger.read(GROUP).positions
    store.ledger.pause(GROUP)
    assert store.ledger.read(GROUP).positions == before
    advance(store, claims, span(0, 1))


def test_a_group_is_paused_alone(store: Store) -> None:
    store.ledger.pause(GROUP)
    assert store.ledger.read("shipping").paused is False


# The journal


def test_the_journal_tells_what_happened_to_a_position_without_gaps(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], 5)
    advance(store, claims, span(5, 9))
    store.ledger.release(claims)
    store.ledger.edit(GROUP, {FIRST: 2}, note="why")
    entries = list(store.open().journal(GROUP, FIRST))
    assert [(e.seq, e.kind, e.start, e.end, e.records, e.epoch) for e in entries] == [
        (1, "start", 5, 5, 0, 0),
        (2, "claim", 5, 5, 0, 1),
        (3, "advance", 5, 9, 4, 1),
        (4, "release", 9, 9, 0, 1),
        (5, "edit", 9, 2, 0, 2),
    ]
    assert [e.owner for e in entries] == [None, *[claims[FIRST].owner] * 3, None]
    assert [bool(e.token) for e in entries] == [False, False, True, False, False]
    assert [e.note for e in entries] == [None, None, None, None, "why"]
    assert all(e.at is not None and abs(datetime.now(UTC) - e.at) < timedelta(minutes=1) for e in entries)


def test_the_journal_of_a_group_comes_partition_by_partition(store: Store) -> None:
    numbers = [TopicPartition("orders", number) for number in (10, 9, 2)]
    store.ledger.claim(GROUP, [OTHER, *numbers])
    store.ledger.claim("shipping", [FIRST])
    sources = [entry.partition for entry in store.ledger.journal(GROUP)]
    assert sources == [tp for tp in sorted([OTHER, *numbers]) for _ in range(2)]


def test_a_note_may_be_any_text(store: Store) -> None:
    note = "Ünïcode 🌊, 'quotes', \"more\", `ticks`, 100 %, :name, \\ and\na line\t\x01\x1f\x7f"
    store.ledger.edit(GROUP, {FIRST: 1})
    store.ledger.edit(GROUP, {FIRST: 2}, note=note)
    assert list(store.ledger.journal(GROUP, FIRST))[-1].note == note


def test_a_long_history_is_proven(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    for turn in range(20):
        advance(store, claims, *(span(3 * turn, 3 * turn + 3, tp) for tp in PARTITIONS))
        if turn % 7 == 6:
            claims = store.ledger.claim(GROUP, PARTITIONS)
    verification = store.open().verify(GROUP)
    assert verification.ok
    assert (verification.partitions, verification.entries) == (3, 3 * (1 + 3 + 3)), "an advance for each claim"


def test_the_first_break_is_named(store: Store) -> None:
    for start in range(4):
        claims = store.ledger.claim(GROUP, [FIRST, SECOND])
        advance(store, claims, span(start, start + 1), span(start, start + 1, SECOND))
    store.falsify(GROUP, SECOND, seq=5, end=3)
    verification = store.ledger.verify(GROUP)
    assert not verification.ok
    (found,) = verification.breaks
    assert (found.partition, found.seq) == (SECOND, 6)
    assert "starts at offset 2, but the entry before it ended at 3" in str(found)


def test_a_position_that_the_journal_does_not_explain_is_a_break(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 4))
    store.falsify(GROUP, FIRST, seq=3, end=5)
    (found,) = store.ledger.verify(GROUP).breaks
    assert "the journal ends at offset 5, but the position is at 4" in str(found)


# Pruning


def test_pruning_keeps_what_is_young(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 4))
    assert store.ledger.prune(timedelta(minutes=5)) == 0
    assert len(list(store.ledger.journal(GROUP))) == 3


def test_pruning_keeps_the_last_entry_and_the_proof(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    for start in range(5):
        advance(store, claims, span(start, start + 1))
    time.sleep(0.01)
    assert store.ledger.prune(timedelta(0)) == 1 + 1
    assert kinds(store.ledger.journal(GROUP)) == ["claim", "advance", "claim"], "and what an open one begins behind"
    assert store.ledger.verify(GROUP).ok
    assert store.ledger.prune(timedelta(0)) == 0
    advance(store, claims, span(5, 6), span(0, 1, SECOND))
    assert store.ledger.verify(GROUP) == (2, 4, ())


def test_pruning_takes_what_is_older_than_an_age(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 1))
    store.age(GROUP, 3600)
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(1, 2))
    advance(store, claims, span(2, 3))
    assert store.ledger.prune(timedelta(minutes=30)) == 3
    assert [(entry.kind, entry.start, entry.end) for entry in store.ledger.journal(GROUP)] == [
        ("claim", 1, 1),
        ("advance", 1, 3),
    ]
    assert store.ledger.verify(GROUP).ok


def test_an_age_that_is_none_is_refused_by_its_name(store: Store) -> None:
    wrong: list[Any] = [-1, "soon", timedelta(days=-1), timedelta.max, 1 << 60, None]
    for age in wrong:
        with pytest.raises(ConfigurationError, match="older_than"):
            store.ledger.prune(age)
    assert store.ledger.prune("30d") == store.ledger.prune(3600) == 0


def test_pruning_can_be_limited_to_a_group(store: Store) -> None:
    for group in (GROUP, "shipping"):
        advance(store, store.ledger.claim(group, [FIRST]), span(0, 1))
    time.sleep(0.01)
    assert store.ledger.prune(timedelta(0), GROUP) == 1
    assert [len(list(store.ledger.journal(group))) for group in (GROUP, "shipping")] == [2, 3]
    assert store.ledger.prune(timedelta(0), "nobody") == 0


def test_pauses_are_counted_on_after_pruning(store: Store) -> None:
    store.ledger.pause(GROUP)
    store.ledger.resume(GROUP)
    time.sleep(0.01)
    store.ledger.prune(timedelta(0))
    store.ledger.pause(GROUP)
    assert [entry.seq for entry in store.ledger.journal(GROUP)][-1] == 3


def test_positions_are_not_touched_by_pruning(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, PARTITIONS), span(0, 4))
    before = store.ledger.read_all()
    time.sleep(0.01)
    store.ledger.prune(timedelta(0))
    assert store.ledger.read_all() == before
    assert offsets(store.ledger)[FIRST] == 4
