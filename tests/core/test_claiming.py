"""What a claim does to a position."""

from __future__ import annotations

import pytest

from tidegate.core.journal import Kind
from tidegate.core.positions import ClaimRequest, Identity, Position, Standing, standing
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim
from tidegate.errors import IdentityChanged

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROW = Position(A, 5, 3, "other", "token", 9, Identity("c", "t"), "first")


def request(**changes: object) -> ClaimRequest:
    return ClaimRequest("billing", "me", **({"identities": {"orders": Identity("c", "t")}} | changes))  # type: ignore[arg-type]


def test_a_stored_position_is_kept() -> None:
    change = request().decide(A, ROW, {A: 0})
    assert (change.position.next_offset, change.position.owner, change.position.epoch) == (5, "me", 4)
    assert [entry.kind for entry in change.entries] == [Kind.CLAIM]
    assert not request().is_doubtful(A, ROW)


def test_a_position_that_is_not_stored_begins_at_its_start() -> None:
    assert request().is_doubtful(B, None)
    change = request(deployment="first").decide(B, None, {B: 7})
    assert change.is_new
    assert (change.position.next_offset, change.position.identity) == (7, Identity("c", "t"))
    assert (change.position.deployment, change.forced_by) == ("first", "first")
    assert [entry.kind for entry in change.entries] == [Kind.START, Kind.CLAIM]


def test_what_was_not_known_of_the_identity_is_filled_in() -> None:
    row = ROW._replace(identity=Identity("c", None))
    assert request().decide(A, row, {}).position.identity == Identity("c", "t")


@pytest.mark.parametrize(
    ("identity", "said"), [(Identity("d", "t"), "cluster d"), (Identity("c", "u"), "recreated as u")]
)
def test_another_cluster_or_topic_is_refused_with_what_changed(identity: Identity, said: str) -> None:
    other = request(identities={"orders": identity})
    with pytest.raises(IdentityChanged, match=said):
        other.begins("orders", [ROW])
    with pytest.raises(IdentityChanged, match=r"billing.*offset 5"):
        other.decide(A, ROW, {A: 0})


def test_another_topic_begins_again_at_its_start_if_told_so() -> None:
    restart = request(identities={"orders": Identity("c", "u")}, restart=True)
    assert restart.is_doubtful(A, ROW)
    assert restart.begins("orders", [ROW])
    change = restart.decide(A, ROW, {A: 2})
    assert (change.position.next_offset, change.position.identity) == (2, Identity("c", "u"))
    assert [(entry.kind, entry.start, entry.end) for entry in change.entries] == [(Kind.EDIT, 5, 2), (Kind.CLAIM, 2, 2)]
    assert not restart.is_doubtful(A, change.position)


def test_a_deployment_forces_its_start_in_a_topic_once() -> None:
    second = request(deployment="second")
    assert second.is_doubtful(A, ROW)
    assert second.begins("orders", [ROW])
    forced = second.decide(A, ROW, {A: 1})
    assert (forced.position.next_offset, forced.position.owner, forced.forced_by) == (1, "me", "second")
    again = request(deployment="second", used=frozenset({"orders"}))
    assert not again.is_doubtful(A, ROW)
    assert again.decide(A, ROW, {}).forced_by is None


def test_a_group_begins_with_a_topic_that_nobody_has_claimed() -> None:
    stored_ahead = Position.start(A, 7).position
    assert request().begins("orders", [])
    assert request().begins("orders", [stored_ahead]), "an operator stored it, no consumer took it"
    assert not request().begins("orders", [stored_ahead, ROW])
    assert not request().begins("orders", [ROW._replace(owner=None)])


def test_what_another_member_will_take_is_begun_and_not_taken() -> None:
    change = request().begun(B, None, {B: 7})
    assert change is not None
    assert (change.position.owner, change.position.epoch, change.position.next_offset) == (None, 0, 7)
    assert request().begun(A, ROW, {A: 7}) is None


@pytest.mark.parametrize(
    ("owner", "epoch", "expected"),
    [
        ("me", 3, Standing.MINE),
        (None, 4, Standing.FREE),
        (None, 3, Standing.FREE),
        ("other", 4, Standing.TAKEN),
        ("me", 4, Standing.TAKEN),
    ],
)
def test_a_fenced_claim_is_judged_by_owner_and_epoch(owner: str | None, epoch: int, expected: Standing) -> None:
    assert standing(ROW._replace(owner=owner, epoch=epoch), Claim("billing", A, 5, 3, "me")) is expected
