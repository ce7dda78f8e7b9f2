"""What may happen to a position."""

from __future__ import annotations

from tidegate.core.journal import Kind
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim, Move, Span, Step, Work

TP = TopicPartition("orders", 0)
ROW = Position(TP, 5, 3, "me", "token", 9)
CLAIM = Claim("billing", TP, 5, 3, "me")


def step(start: int = 5, epoch: int = 3, owner: str = "me") -> Step:
    return Step(CLAIM._replace(epoch=epoch, owner=owner), Span(TP, start, 8, 2))


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
    change = ROW.advanced(work.steps[0], work)
    assert (change.position.next_offset, change.position.token, change.position.epoch) == (8, work.token, 3)
    entry = change.entries[0]
    assert (entry.kind, entry.start, entry.end, entry.records, entry.token) == (Kind.ADVANCE, 5, 8, 2, work.token)


def test_a_loss_is_journalled_as_one_with_its_note() -> None:
    work = Work.of({TP: CLAIM}, [Span(TP, 5, 8)], move=Move.LOSS, note="retention")
    entry = ROW.advanced(work.steps[0], work).entries[0]
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
