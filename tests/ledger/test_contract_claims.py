"""The contract of a ledger: claiming, claiming again and releasing."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tidegate.core.positions import Identity
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError, Fenced, IdentityChanged, PositionMissing
from tidegate.ledger import Subscription
from tidegate.ledger.ledger import new_owner

from .samples import FIRST, GROUP, OTHER, PARTITIONS, SECOND, THIRD, advance, kinds, offsets, span
from .stores import Store


def test_a_partition_that_is_not_known_starts_at_0(store: Store) -> None:
    assert store.ledger.claim(GROUP, [FIRST])[FIRST].position == 0


def test_the_start_is_stored_before_anything_is_read(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS, 7)
    assert {tp: claim.position for tp, claim in claims.items()} == dict.fromkeys(PARTITIONS, 7)
    assert offsets(store.open()) == dict.fromkeys(PARTITIONS, 7)


def test_each_partition_may_have_a_start_of_its_own(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND], {FIRST: 3, SECOND: 5, THIRD: 9})
    assert {tp: claim.position for tp, claim in claims.items()} == {FIRST: 3, SECOND: 5}


def test_a_start_is_looked_up_for_partitions_without_a_position_only(store: Store) -> None:
    asked: list[list[TopicPartition]] = []

    def look_up(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(partitions)
        return dict.fromkeys(partitions, 11)

    store.ledger.claim(GROUP, [SECOND], 4)
    claims = store.ledger.claim(GROUP, PARTITIONS, look_up)
    assert asked == [[FIRST, THIRD]]
    assert {tp: claim.position for tp, claim in claims.items()} == {FIRST: 11, SECOND: 4, THIRD: 11}
    store.ledger.claim(GROUP, PARTITIONS, look_up)
    assert len(asked) == 1


def test_a_partition_without_position_and_start_is_refused_and_nothing_is_claimed(store: Store) -> None:
    with pytest.raises(PositionMissing, match=r"orders\[1\]"):
        store.ledger.claim(GROUP, [FIRST, SECOND], {FIRST: 3})
    assert not store.ledger.read(GROUP).positions


def test_a_position_is_kept_over_claims(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST], 5)
    advance(store, claims, span(5, 8))
    assert store.open().claim(GROUP, [FIRST], 0)[FIRST].position == 8


def test_every_claim_has_a_new_epoch_and_an_owner_of_its_own(store: Store) -> None:
    claims = [store.ledger.claim(GROUP, [FIRST])[FIRST] for _ in range(3)]
    assert [claim.epoch for claim in claims] == [1, 2, 3]
    assert len({claim.owner for claim in claims}) == 3
    row = store.ledger.read(GROUP).positions[FIRST]
    assert (row.epoch, row.owner) == (3, claims[-1].owner)


def test_a_claim_clears_the_token(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(0, 2))
    assert store.ledger.read(GROUP).positions[FIRST].token is not None
    store.ledger.claim(GROUP, [FIRST])
    assert store.ledger.read(GROUP).positions[FIRST].token is None


def test_rows_with_histories_of_their_own_are_taken_together_each_from_where_it_is(store: Store) -> None:
    store.ledger.claim(GROUP, [SECOND], 3)
    earlier = store.ledger.claim(GROUP, [FIRST, SECOND], 7)
    advance(store, earlier, span(7, 9))
    claims = store.ledger.claim(GROUP, PARTITIONS, 5)
    assert {tp: (claim.position, claim.epoch) for tp, claim in claims.items()} == {
        FIRST: (9, 2),
        SECOND: (3, 3),
        THIRD: (5, 1),
    }
    rows = store.open().read(GROUP).positions
    assert {tp: (row.owner, row.token, row.seq) for tp, row in rows.items()} == {
        FIRST: (claims[FIRST].owner, None, 4),
        SECOND: (claims[FIRST].owner, None, 4),
        THIRD: (claims[FIRST].owner, None, 2),
    }
    assert store.ledger.verify(GROUP) == (3, 4 + 4 + 2, ())


def test_a_claim_fences_the_owner_before(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST])
    new = store.open().claim(GROUP, [FIRST])
    with pytest.raises(Fenced) as fenced:
        advance(store, old, span(0, 3))
    assert fenced.value.owners == {FIRST: new[FIRST].owner}
    advance(store, new, span(0, 3))


def test_groups_do_not_see_each_other(store: Store) -> None:
    mine = store.ledger.claim(GROUP, [FIRST], 3)
    theirs = store.ledger.claim("shipping", [FIRST], 9)
    advance(store, mine, span(3, 4))
    advance(store, theirs, span(9, 12))
    assert offsets(store.ledger, GROUP) == {FIRST: 4}
    assert offsets(store.ledger, "shipping") == {FIRST: 12}


def test_claiming_nothing_is_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="no partition"):
        store.ledger.claim(GROUP, [])


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_number_that_no_partition_has_is_refused(store: Store, number: int) -> None:
    with pytest.raises(ConfigurationError, match=str(number)):
        store.ledger.claim(GROUP, [TopicPartition("orders", number)])
    assert not store.ledger.read(GROUP).positions


@pytest.mark.parametrize("start", [-1, 2**63])
def test_a_start_that_is_no_offset_is_refused_and_nothing_is_claimed(store: Store, start: int) -> None:
    for start_at in (start, {FIRST: start}, lambda _: {FIRST: start}):
        with pytest.raises((ConfigurationError, PositionMissing), match=r"orders\[0\]"):
            store.ledger.claim(GROUP, [FIRST], start_at)
    assert not store.ledger.read(GROUP).positions


def test_the_highest_partition_number_can_be_claimed(store: Store) -> None:
    last = TopicPartition("orders", 2**31 - 1)
    assert set(store.ledger.claim(GROUP, [last])) == set(store.ledger.read(GROUP).positions) == {last}


# Identity and deployments


def test_a_recreated_topic_is_refused_and_nothing_is_claimed(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST, OTHER], 5, identities={"orders": Identity("cluster", "id-1")})
    before = store.ledger.read(GROUP)
    with pytest.raises(IdentityChanged, match=r"id-1.*recreated as id-2"):
        store.ledger.claim(GROUP, [FIRST, OTHER], identities={"orders": Identity("cluster", "id-2")})
    assert store.ledger.read(GROUP) == before


def test_another_cluster_is_refused(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST], identities={"orders": Identity("cluster-1", "id")})
    with pytest.raises(IdentityChanged, match=r"cluster-1.*cluster-2"):
        store.ledger.claim(GROUP, [FIRST], identities={"orders": Identity("cluster-2", "id")})


def test_a_recreated_topic_starts_again_if_that_is_allowed(store: Store) -> None:
    advance(store, store.ledger.claim(GROUP, [FIRST], identities={"orders": Identity("cluster", "id-1")}), span(0, 9))
    new = {"orders": Identity("cluster", "id-2")}
    claims = store.ledger.claim(GROUP, [FIRST], 2, identities=lambda: new, restart=True)
    assert claims[FIRST].position == 2
    assert store.ledger.read(GROUP).positions[FIRST].identity == new["orders"]
    assert kinds(store.ledger.journal(GROUP)) == ["start", "claim", "advance", "edit", "claim"]
    assert store.ledger.claim(GROUP, [FIRST], 0, identities=lambda: new, restart=True)[FIRST].position == 2


def test_an_identity_is_filled_in_once_it_is_known(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST], 5)
    known = Identity("cluster", "id-1")
    assert store.ledger.claim(GROUP, [FIRST], identities={"orders": known})[FIRST].position == 5
    assert store.ledger.read(GROUP).positions[FIRST].identity == known
    store.ledger.claim(GROUP, [FIRST])
    assert store.ledger.read(GROUP).positions[FIRST].identity == known


def test_a_deployment_forces_the_start_of_a_whole_topic_once(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND, OTHER])
    advance(store, claims, span(0, 9), span(0, 8, SECOND))
    assert store.ledger.claim(GROUP, [FIRST], 4, deployment="v2")[FIRST].position == 4
    assert offsets(store.ledger) == {FIRST: 4, SECOND: 4, OTHER: 0}
    again = store.ledger.claim(GROUP, [FIRST, SECOND], 3, deployment="v2")
    assert {tp: claim.position for tp, claim in again.items()} == {FIRST: 4, SECOND: 4}
    assert store.ledger.claim(GROUP, [FIRST], 0)[FIRST].position == 4
    assert store.ledger.claim(GROUP, [OTHER], 2, deployment="v2")[OTHER].position == 2, "another topic is another thing"
    assert store.ledger.claim(GROUP, [FIRST], 1, deployment="v3")[FIRST].position == 1
    assert store.ledger.verify(GROUP).ok


def test_going_back_to_an_older_deployment_forces_nothing(store: Store) -> None:
    for name, start, expected in [("v1", 3, 3), ("v2", 5, 5), ("v1", 7, 5), ("v2", 9, 5), ("v1", 0, 5)]:
        assert store.open().claim(GROUP, [FIRST], start, deployment=name)[FIRST].position == expected, name
    assert store.ledger.claim("another group", [FIRST], 1, deployment="v1")[FIRST].position == 1
    assert store.ledger.claim("another group", [FIRST], 2, deployment="v2")[FIRST].position == 2


def test_a_deployment_is_stored_byte_for_byte_or_refused(store: Store) -> None:
    name = "é" * 127 + "x"
    store.ledger.claim(GROUP, [FIRST], 3, deployment=name)
    for other in (name.upper(), name[:-1] + "X", name[:-1], name[:-1] + " "):
        assert store.ledger.claim(GROUP, [FIRST], 3, deployment=other)[FIRST].position == 3
        store.ledger.edit(GROUP, {FIRST: 8})
    assert store.ledger.claim(GROUP, [FIRST], 0, deployment=name)[FIRST].position == 8
    for wrong in ("", "x" * 256, "é" * 128, "a\0b"):
        with pytest.raises(ConfigurationError, match="deployment"):
            store.ledger.claim(GROUP, [FIRST], deployment=wrong)


def test_two_members_of_one_deployment_force_its_start_once_between_them(store: Store) -> None:
    """Both have found the name unused when the first of them claims."""
    advance(store, store.ledger.claim(GROUP, [FIRST, SECOND]), span(0, 9), span(0, 8, SECOND))
    other = store.open()

    def starts(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if len(asked) == 0:
            asked.append(True)
            claims = other.claim(GROUP, [SECOND], 5, deployment="v2")
            advance(store, claims, span(5, 7, SECOND))
        return dict.fromkeys(partitions, 1)

    asked: list[bool] = []
    assert store.ledger.claim(GROUP, [FIRST], starts, deployment="v2")[FIRST].position == 5
    assert offsets(store.ledger) == {FIRST: 5, SECOND: 7}
    edits = [entry for entry in store.ledger.journal(GROUP) if entry.kind.value == "edit"]
    assert len(edits) == 2, "one for each partition"
    assert store.ledger.verify(GROUP).ok


# Whole topics


def whole(*partitions: TopicPartition, beginning: int = 0) -> Subscription:
    def all_of(topics: Collection[str]) -> set[TopicPartition]:
        return {tp for tp in partitions if tp.topic in topics}

    return Subscription(all_of, lambda added: dict.fromkeys(added, beginning))


KNOWN = {"orders": Identity("cluster", "id-1"), "returns": Identity("cluster", "id-2")}


def test_the_first_claim_of_a_topic_stores_a_position_for_each_of_its_partitions(store: Store) -> None:
    topics = whole(FIRST, SECOND, THIRD)
    claims = store.ledger.claim(GROUP, [SECOND], 7, identities=KNOWN, subscription=topics)
    assert set(claims) == {SECOND}
    rows = store.ledger.read(GROUP).positions
    assert {tp: (row.next_offset, row.owner, row.epoch) for tp, row in rows.items()} == {
        FIRST: (7, None, 0),
        SECOND: (7, claims[SECOND].owner, 1),
        THIRD: (7, None, 0),
    }
    assert {row.identity for row in rows.values()} == {KNOWN["orders"]}
    later = store.open().claim(GROUP, [FIRST, THIRD], 9, identities=KNOWN, subscription=topics)
    assert {tp: claim.position for tp, claim in later.items()} == {FIRST: 7, THIRD: 7}
    advance(store, {**claims, **later}, span(7, 9), span(7, 8, SECOND), span(7, 9, THIRD))
    assert store.ledger.verify(GROUP).ok


def test_a_partition_that_a_topic_got_later_begins_at_its_beginning(store: Store) -> None:
    store.ledger.claim(GROUP, [FIRST], 7, identities=KNOWN, subscription=whole(FIRST, SECOND))
    grown = whole(FIRST, SECOND, THIRD, beginning=2)
    claims = store.ledger.claim(GROUP, [SECOND, THIRD], 9, identities=KNOWN, subscription=grown)
    assert {tp: claim.position for tp, claim in claims.items()} == {SECOND: 7, THIRD: 2}


def test_two_members_that_begin_at_once_store_each_start_once(store: Store) -> None:
    """Each has found no row when the other one claims, and one of them knows of a partition more."""
    other = store.open()

    def starts(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if len(asked) == 0:
            asked.append(True)
            other.claim(GROUP, [SECOND], 5, identities=KNOWN, subscription=whole(FIRST, SECOND))
        return dict.fromkeys(partitions, 8)

    asked: list[bool] = []
    grown = whole(FIRST, SECOND, THIRD, beginning=1)
    claims = store.ledger.claim(GROUP, [FIRST, THIRD], starts, identities=KNOWN, subscription=grown)
    assert {tp: claim.position for tp, claim in claims.items()} == {FIRST: 5, THIRD: 1}
    assert offsets(store.ledger) == {FIRST: 5, SECOND: 5, THIRD: 1}


def test_a_position_that_an_operator_stored_ahead_is_kept_and_the_others_begin_at_their_start(store: Store) -> None:
    store.ledger.edit(GROUP, {FIRST: 40})
    store.ledger.edit(GROUP, {FIRST: 30})
    topics = whole(FIRST, SECOND, THIRD, beginning=1)
    claims = store.ledger.claim(GROUP, [FIRST, SECOND], 7, identities=KNOWN, subscription=topics)
    assert {tp: claim.position for tp, claim in claims.items()} == {FIRST: 30, SECOND: 7}
    assert offsets(store.ledger) == {FIRST: 30, SECOND: 7, THIRD: 7}


def test_a_recreated_topic_begins_again_with_all_of_its_partitions(store: Store) -> None:
    old = store.ledger.claim(GROUP, [FIRST, SECOND], 7, identities=KNOWN, subscription=whole(FIRST, SECOND))
    new = {"orders": Identity("cluster", "id-3")}
    topics = whole(FIRST, SECOND, THIRD)
    with pytest.raises(IdentityChanged, match="recreated as id-3"):
        store.open().claim(GROUP, [THIRD], 0, identities=new, subscription=topics)
    claims = store.open().claim(
        GROUP, [THIRD], 2, identities=lambda: new, restart=True, subscription=topics, deployment="v2"
    )
    assert claims[THIRD].position == 2
    assert offsets(store.ledger) == {FIRST: 2, SECOND: 2, THIRD: 2}
    assert {row.identity for row in store.ledger.read(GROUP).positions.values()} == {new["orders"]}
    with pytest.raises(Fenced):
        advance(store, old, span(7, 8))


def test_partitions_that_a_recreated_topic_gets_later_begin_at_their_beginning_whatever_was_stored(
    store: Store,
) -> None:
    """It is recreated with fewer partitions, and then gets more than it had: rows of the old ones remain."""
    fourth = TopicPartition("orders", 3)
    all_four = (FIRST, SECOND, THIRD, fourth)
    store.ledger.claim(GROUP, PARTITIONS, 7, identities=KNOWN, subscription=whole(*PARTITIONS))
    new = {"orders": Identity("cluster", "id-3")}
    store.ledger.claim(GROUP, [FIRST], 5, identities=lambda: new, restart=True, subscription=whole(FIRST))
    grown = whole(*all_four, beginning=1)
    claims = store.ledger.claim(
        GROUP, [FIRST, SECOND, fourth], 9, identities=lambda: new, restart=True, subscription=grown
    )
    assert {tp: claim.position for tp, claim in claims.items()} == {FIRST: 5, SECOND: 1, fourth: 1}
    third = store.open().claim(GROUP, [THIRD], 9, identities=lambda: new, restart=True, subscription=grown)
    assert third[THIRD].position == 1
    assert {row.identity for row in store.ledger.read(GROUP).positions.values()} == {new["orders"]}
    assert store.ledger.verify(GROUP).ok


def test_a_position_that_an_operator_sets_in_a_recreated_topic_is_kept(store: Store) -> None:
    new = {"orders": Identity("cluster", "id-3")}
    for restart in (False, True):
        store.ledger.claim(GROUP, [FIRST], 7, identities=KNOWN if not restart else new)
        store.ledger.edit(GROUP, {FIRST: 3}, identities=new)
        claims = store.ledger.claim(GROUP, [FIRST], 9, identities=lambda: new, restart=restart)
        assert claims[FIRST].position == 3
    store.ledger.edit(GROUP, {FIRST: 4})
    assert store.ledger.read(GROUP).positions[FIRST].identity == new["orders"], "it stays what it was"


def test_only_the_rows_of_a_claim_are_locked_once_the_topic_is_known(store: Store) -> None:
    topics = whole(FIRST, SECOND)
    first = store.ledger.claim(GROUP, [FIRST], 0, identities=KNOWN, subscription=topics)
    if store.has_one_writer:
        return
    with store.ledger.transaction(first, [span(0, 1)]):
        assert store.open().claim(GROUP, [SECOND], 0, identities=KNOWN, subscription=topics)


# Claiming again


def test_what_is_still_mine_goes_on_from_the_row(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(0, 4))
    before = store.ledger.read(GROUP).positions[FIRST]
    held, owners = store.open().reclaim(claims)
    assert held == {FIRST: claims[FIRST]._replace(position=4)}
    assert not owners
    assert store.ledger.read(GROUP).positions[FIRST] == before


def test_what_nobody_owns_is_claimed_again(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    store.ledger.edit(GROUP, {FIRST: 30})
    held, owners = store.ledger.reclaim(claims)
    assert (held[FIRST].position, held[FIRST].epoch, held[SECOND]) == (30, 3, claims[SECOND])
    assert held[FIRST].owner != claims[FIRST].owner
    assert not owners
    advance(store, held, span(30, 31), span(0, 1, SECOND))


def test_what_another_owner_has_is_left_to_it(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    other = store.open().claim(GROUP, [FIRST])
    held, owners = store.ledger.reclaim(claims)
    assert set(held) == {SECOND, THIRD}
    assert owners == {FIRST: other[FIRST].owner}
    advance(store, other, span(0, 1))


def test_what_another_owner_has_can_be_taken(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    other = store.open().claim(GROUP, [FIRST])
    held, owners = store.ledger.reclaim(claims, take=True)
    assert not owners
    with pytest.raises(Fenced):
        advance(store, other, span(0, 1))
    advance(store, held, span(0, 1))


def test_claims_that_belong_together_are_not_made_beside_those_of_another_owner(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    other = store.open().claim(GROUP, [FIRST])
    store.ledger.edit(GROUP, {SECOND: 30})
    before = store.ledger.read(GROUP).positions
    held, owners = store.ledger.reclaim(claims, together=True)
    assert (set(held), owners) == ({THIRD}, {FIRST: other[FIRST].owner})
    assert store.ledger.read(GROUP).positions == before


def test_a_second_call_under_the_same_owner_finds_what_the_first_has_claimed(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    store.ledger.edit(GROUP, {FIRST: 30})
    owner = new_owner()
    first = store.ledger.reclaim(claims, together=True, owner=owner)
    assert store.open().reclaim(claims, together=True, owner=owner) == first
    assert first.claims[FIRST].owner == owner


def test_claiming_again_nothing_is_nothing(store: Store) -> None:
    assert store.ledger.reclaim({}) == ({}, {})


# Releasing


def test_a_released_partition_has_no_owner_and_cannot_be_advanced(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    assert store.ledger.release({FIRST: claims[FIRST]}) == {FIRST}
    rows = store.ledger.read(GROUP).positions
    assert (rows[FIRST].owner, rows[SECOND].owner) == (None, claims[SECOND].owner)
    with pytest.raises(Fenced) as fenced:
        advance(store, claims, span(0, 1))
    assert fenced.value.owners == {FIRST: None}


def test_only_what_is_mine_is_released(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    other = store.open().claim(GROUP, [SECOND])
    store.ledger.edit(GROUP, {THIRD: 5})
    before = store.ledger.read(GROUP).positions
    assert store.ledger.release(claims) == {FIRST}
    after = store.ledger.read(GROUP).positions
    assert (after[SECOND], after[THIRD]) == (before[SECOND], before[THIRD])
    assert after[SECOND].owner == other[SECOND].owner
    assert store.ledger.release(claims) == set()


def test_what_was_claimed_by_two_claims_is_released_together(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST]) | store.ledger.claim(GROUP, [SECOND])
    advance(store, claims, span(0, 4))
    token = store.ledger.read(GROUP).positions[FIRST].token
    assert store.ledger.release(claims) == {FIRST, SECOND}
    rows = store.ledger.read(GROUP).positions
    assert [(rows[tp].owner, rows[tp].token, rows[tp].epoch) for tp in (FIRST, SECOND)] == [
        (None, token, 1),
        (None, None, 1),
    ]
    released = {entry.partition: entry.owner for entry in store.ledger.journal(GROUP) if entry.kind == "release"}
    assert released == {tp: claim.owner for tp, claim in claims.items()}
    assert store.ledger.verify(GROUP).ok


def test_a_release_leaves_epoch_and_token_alone(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST, SECOND])
    advance(store, claims, span(0, 4), span(0, 2, SECOND))
    before = store.ledger.read(GROUP).positions
    store.ledger.release(claims)
    after = store.ledger.read(GROUP).positions
    for tp in (FIRST, SECOND):
        assert before[tp].token
        expected = before[tp]._replace(owner=None, seq=4, updated_at=None, open=None, bucket=after[tp].bucket)
        assert after[tp]._replace(updated_at=None) == expected
    assert {entry.owner for entry in store.ledger.journal(GROUP) if entry.kind == "release"} == {claims[FIRST].owner}


def test_releasing_nothing_is_nothing(store: Store) -> None:
    assert store.ledger.release({}) == set()


def test_a_released_partition_keeps_its_position_for_the_next_owner(store: Store) -> None:
    claims = store.ledger.claim(GROUP, [FIRST])
    advance(store, claims, span(0, 6))
    store.ledger.release(claims)
    assert store.open().claim(GROUP, [FIRST])[FIRST].position == 6
    assert store.ledger.verify(GROUP).ok
