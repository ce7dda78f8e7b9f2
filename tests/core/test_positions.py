"""What may happen to a position."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.core.journal import WRITTEN_LATE, Kind
from tidegate.core.positions import Change, GroupState, Identity, OpenEntry, Position
from tidegate.core.records import TopicPartition
from tidegate.core.work import Advance, Claim, Move, Span, Work
from tidegate.errors import ConfigurationError

NOW = datetime(2026, 11, 16, tzinfo=UTC)
TP = TopicPartition("orders", 0)
ROW = Position(TP, 5, 3, "me", "token", 9)
CLAIM = Claim("billing", TP, 5, 3, "me")


def step(start: int = 5, epoch: int = 3, owner: str = "me") -> Advance:
    return Advance(CLAIM._replace(epoch=epoch, owner=owner), Span(TP, start, 8, 2))


def test_a_start_is_stored_before_anyone_owns_it() -> None:
    change = Position.start(TP, 7, Identity("c", "t"), "first")
    assert change.is_new
    assert change.position == Position(TP, 7, 0, None, None, 1, Identity("c", "t"), "first")
    assert [(entry.kind, entry.seq, entry.start, entry.end) for entry in change.entries] == [(Kind.START, 1, 7, 7)]


def test_a_claim_bumps_the_epoch_names_the_owner_and_clears_the_token() -> None:
    row = ROW.claimed("you").position
    assert (row.epoch, row.owner, row.token, row.seq, row.next_offset) == (4, "you", None, 10, 5)
    assert row.claim("billing") == Claim("billing", TP, 5, 4, "you")


def test_a_release_clears_the_owner_and_the_journal_says_whose_it_was() -> None:
    change = ROW.released()
    assert (change.position.owner, change.position.epoch, change.position.seq) == (None, 3, 10)
    assert change.entries[0].owner == "me"


def test_an_edit_fences_the_owner_and_clears_the_token() -> None:
    change = ROW.edited(2, "again")
    row = change.position
    assert (row.next_offset, row.epoch, row.owner, row.token) == (2, 4, None, None)
    entry = change.entries[0]
    assert (entry.kind, entry.start, entry.end, entry.note) == (Kind.EDIT, 5, 2, "again")


def test_the_comparison_is_of_offset_epoch_and_owner() -> None:
    assert ROW.matches(step())
    assert not ROW.matches(step(start=4))
    assert not ROW.matches(step(epoch=2))
    assert not ROW.matches(step(owner="you"))


def test_an_advance_moves_the_position_and_leaves_its_token() -> None:
    work = Work.of({TP: CLAIM}, [Span(TP, 5, 8, 2)])
    row = ROW.advanced(work.steps[0], work, NOW).position
    assert (row.next_offset, row.token, row.epoch, row.seq) == (8, work.token, 3, 10)
    assert row.open == OpenEntry(10, 5, 8, 2, 3, "me", NOW)
    entry = row.open.entry(row)
    assert (entry.kind, entry.start, entry.end, entry.records, entry.token) == (Kind.ADVANCE, 5, 8, 2, work.token)


def advanced(row: Position, now: datetime, claim: Claim = CLAIM) -> Change:
    """An advance by three offsets with two records."""
    span = Span(TP, row.next_offset, row.next_offset + 3, 2)
    work = Work.of({TP: claim}, [span])
    change = row.advanced(work.steps[0], work, now)
    return change._replace(position=change.position._replace(updated_at=now))


def test_advances_under_one_claim_extend_one_entry_for_a_minute() -> None:
    first = advanced(ROW, NOW).position
    second = advanced(first, NOW + timedelta(seconds=59))
    assert (second.position.open, second.closed) == (OpenEntry(10, 5, 11, 4, 3, "me", NOW), None)
    assert second.position.seq == 10
    later = NOW + timedelta(seconds=60)
    third = advanced(second.position, later)
    assert third.position.open == OpenEntry(11, 11, 14, 2, 3, "me", later)
    assert third.closed is not None
    assert (third.closed.seq, third.closed.start, third.closed.end, third.closed.records) == (10, 5, 11, 4)
    assert (third.closed.since, third.closed.at) == (NOW, NOW + timedelta(seconds=59))


def test_a_clock_that_was_set_back_closes_the_entry() -> None:
    change = advanced(advanced(ROW, NOW).position, NOW - timedelta(hours=1))
    assert change.opens
    assert change.closed is not None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"claim": CLAIM._replace(owner="you")}, id="owner"),
        pytest.param({"claim": CLAIM._replace(epoch=4)}, id="epoch"),
        pytest.param({"row": {"seq": 11}}, id="seq"),
        pytest.param({"row": {"next_offset": 9}}, id="offset"),
    ],
)
def test_what_is_not_the_same_opens_another_entry(other: dict[str, Any]) -> None:
    first = advanced(ROW, NOW).position._replace(**other.get("row", {}))
    assert advanced(first, NOW, other.get("claim", CLAIM)).opens


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda row: row.claimed("you"), id="claim"),
        pytest.param(lambda row: row.released(), id="release"),
        pytest.param(lambda row: row.edited(0, None), id="edit"),
        pytest.param(
            lambda row: row.advanced(
                Advance(CLAIM, span := Span(TP, 8, 9)), Work.of({TP: CLAIM}, [span], move=Move.LOSS), NOW
            ),
            id="loss",
        ),
    ],
)
def test_whatever_else_happens_closes_the_entry(happens: Callable[[Position], Change]) -> None:
    change = happens(advanced(ROW, NOW).position)
    assert change.closed is not None
    assert (change.closed.seq, change.closed.kind, change.closed.end) == (10, Kind.ADVANCE, 8)
    assert (change.position.seq, change.position.open) == (11, None)
    assert [entry.seq for entry in change.entries] == [11]


def test_what_an_older_version_did_behind_an_open_entry_is_told_from_it() -> None:
    row = advanced(ROW, NOW).position._replace(seq=12, epoch=4, owner="you", next_offset=20)
    closed = row.claimed("her").closed
    assert closed is not None
    assert (closed.seq, closed.end, closed.epoch, closed.owner) == (10, 8, 3, "me")
    assert (closed.at, closed.token, closed.note) == (NOW, None, WRITTEN_LATE)


def test_closed_entries_add_up_in_buckets_of_ten_minutes() -> None:
    first = advanced(advanced(ROW, NOW).position, NOW + timedelta(minutes=2)).position
    assert first.bucket == (int(NOW.timestamp()), 2)
    second = advanced(first, NOW + timedelta(minutes=4))
    assert (second.position.bucket, second.past) == ((int(NOW.timestamp()), 4), None)
    third = advanced(second.position, NOW + timedelta(minutes=11)).position
    assert third.bucket == (int(NOW.timestamp()), 6)
    fourth = third.claimed("you")
    assert fourth.past == (int(NOW.timestamp()), 6)
    assert fourth.position.bucket == (int(NOW.timestamp()) + 600, 2)


def test_a_loss_is_journalled_as_one_with_its_note() -> None:
    work = Work.of({TP: CLAIM}, [Span(TP, 5, 8)], move=Move.LOSS, note="retention")
    entry = ROW.advanced(work.steps[0], work, NOW).entries[0]
    assert (entry.kind, entry.records, entry.note) == (Kind.LOSS, 0, "retention")


def test_two_changes_of_one_position_are_stored_as_one() -> None:
    first = Position.start(TP, 0, Identity(), None)
    both = first.then(first.position.claimed("me"))
    assert both.is_new
    assert [entry.kind for entry in both.entries] == [Kind.START, Kind.CLAIM]
    assert both.position.owner == "me"


def test_identities_conflict_only_where_both_are_known() -> None:
    known = Identity("c", "t")
    assert known.conflict(Identity("c", "t")) is None
    assert known.conflict(Identity()) is None
    assert known.conflict(Identity("d", "t")) == "cluster"
    assert known.conflict(Identity("c", "u")) == "topic"
    assert Identity("c").filled(known) == known


def test_a_group_tells_which_partitions_have_no_position() -> None:
    other = TopicPartition("orders", 1)
    assert GroupState("billing", False, {TP: ROW}).missing({TP, other}) == {other}


PLANNED = Span(TP, 5, 20, 10)


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([], id="nothing"),
        pytest.param([PLANNED._replace(start=6, end=9)], id="begins elsewhere"),
        pytest.param([PLANNED._replace(end=21)], id="longer"),
        pytest.param([PLANNED._replace(end=5)], id="empty"),
        pytest.param([PLANNED._replace(records=11)], id="more records"),
        pytest.param([PLANNED._replace(records=-1)], id="less than none"),
        pytest.param([PLANNED._replace(partition=TopicPartition("orders", 1))], id="another partition"),
        pytest.param([PLANNED, PLANNED], id="twice"),
    ],
)
def test_work_is_cut_to_its_beginning_and_to_nothing_else(spans: list[Span]) -> None:
    with pytest.raises(ConfigurationError):
        Work.of({TP: CLAIM}, [PLANNED]).cut(spans)


def test_only_an_advance_is_cut() -> None:
    with pytest.raises(ConfigurationError, match="only an advance can be cut, and this is a skip"):
        Work.of({TP: CLAIM}, [PLANNED], move=Move.SKIP).cut([PLANNED])


def test_a_note_goes_with_what_is_stepped_over() -> None:
    with pytest.raises(ConfigurationError, match=r"goes with Move.SKIP or Move.LOSS"):
        Work.of({TP: CLAIM}, [PLANNED], note="why")
