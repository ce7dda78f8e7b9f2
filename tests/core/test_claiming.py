"""What a claim does to a position."""

from __future__ import annotations

import pytest

from tidegate.core.claiming import ClaimRequest, Standing, standing
from tidegate.core.errors import IdentityChanged
from tidegate.core.journal import Kind
from tidegate.core.positions import Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.core.spans import Claim

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROW = Position(A, 5, 3, "other", "token", 9, Identity("c", "t"), "first")


def request(**changes: object) -> ClaimRequest:
    return ClaimRequest("billing", "me", **({"identities": {"orders": Identity("c", "t")}} | changes))  # type: ignore[arg-type]


def test_a_stored_position_is_kept() -> None:
    change = request().decide(A, ROW, {A: 0})
    assert (change.position.next_offset, change.position.owner, change.position.epoch) == (5, "me", 4)
    assert [entry.kind for entry in change.entries] == [Kind.CLAIM]
    assert not request().wants_start(ROW)


def test_a_position_that_is_not_stored_begins_at_its_start() -> None:
    assert request().wants_start(None)
    change = request(deployment="first").decide(B, None, {B: 7})
    assert change.is_new
    assert (change.position.next_offset, change.position.identity) == (7, Identity("c", "t"))
    assert change.position.deployment == "first"
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
        other.wants_start(ROW)
    with pytest.raises(IdentityChanged, match=r"billing.*offset 5"):
        other.decide(A, ROW, {A: 0})


def test_another_topic_begins_again_at_its_start_if_told_so() -> None:
    restart = request(identities={"orders": Identity("c", "u")}, restart=True)
    assert restart.wants_start(ROW)
    change = restart.decide(A, ROW, {A: 2})
    assert (change.position.next_offset, change.position.identity) == (2, Identity("c", "u"))
    assert [(entry.kind, entry.start, entry.end) for entry in change.entries] == [(Kind.EDIT, 5, 2), (Kind.CLAIM, 2, 2)]
    assert not restart.wants_start(change.position)


def test_a_deployment_forces_its_start_once() -> None:
    second = request(deployment="second")
    assert second.wants_start(ROW)
    forced = second.decide(A, ROW, {A: 1}).position
    assert (forced.next_offset, forced.deployment) == (1, "second")
    assert not second.wants_start(forced)
    assert request().decide(A, forced, {}).position.deployment == "second", "a claim without a name keeps it"


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
