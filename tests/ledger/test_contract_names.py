"""The contract of a ledger: whatever Kafka allows as a name is kept, byte for byte; the rest is refused."""

from __future__ import annotations

import pytest

from tidegate.core.records import TopicPartition
from tidegate.errors import InvalidName

from .samples import FIRST, GROUP, advance, offsets, span
from .stores import Store

LONGEST_TOPIC = "t" * 249
GROUPS = [
    "orders",
    "Orders",
    "orders ",
    " orders",
    "ORDERS",
    "órders",
    "o\u0301rders",  # the same to the eye, composed of two characters
    "ordérs",
    "straße",
    "strasse",
    "Ⅷ",
    "注文",
    "🌊",
    "it's",
    'say "it"',
    "`tick`",
    "100%",
    "%s %(x)s",
    ":name",
    "a:b",
    "a::b",
    ":",
    "::orders:0:",
    "back\\slash",
    "tab\tand\nline",
    "{tag}",
    "}{",
    "*",
    "x; DROP TABLE positions; --",
    "null",
    "g" * 255,
    "é" * 127,
]


def test_groups_are_told_apart_byte_for_byte(store: Store) -> None:
    for number, group in enumerate(GROUPS):
        store.ledger.claim(group, [FIRST], number)
    other = store.open()
    assert [offsets(other, group) for group in GROUPS] == [{FIRST: number} for number in range(len(GROUPS))]
    assert set(other.read_all()) == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS, ids=ascii)
def test_a_group_may_have_any_name(store: Store, group: str) -> None:
    claims = store.ledger.claim(group, [FIRST])
    advance(store, claims, span(0, 3))
    store.ledger.edit(group, {FIRST: 1})
    store.ledger.pause(group)
    assert store.ledger.read(group).paused
    assert store.ledger.read(group).group == group
    assert [entry.kind for entry in store.ledger.journal(group)] == ["pause", "start", "claim", "advance", "edit"]
    assert store.ledger.verify(group) == (1, 4, ())
    assert not store.ledger.read(GROUP).positions


def test_topics_are_told_apart_byte_for_byte(store: Store) -> None:
    topics = ["orders", "Orders", "ORDERS", "orders.", "orders-", "orders_", "o.r-d_e.r-s", "0", "...", LONGEST_TOPIC]
    store.ledger.claim(GROUP, [TopicPartition(topic, 0) for topic in topics])
    claims = store.ledger.claim(GROUP, [TopicPartition("Orders", 0)])
    advance(store, claims, span(0, 3, TopicPartition("Orders", 0)))
    found = offsets(store.ledger)
    assert {tp.topic for tp in found} == set(topics)
    assert [tp.topic for tp, offset in found.items() if offset] == ["Orders"]


@pytest.mark.parametrize(
    "group",
    ["", "nul\0", "g" * 256, "é" * 128, "\ud800"],
    ids=["empty", "NUL", "256 bytes", "256 bytes in 128 characters", "half a character"],
)
def test_a_group_that_cannot_be_kept_is_refused_and_nothing_is_changed(store: Store, group: str) -> None:
    for attempt in (
        lambda: store.ledger.claim(group, [FIRST]),
        lambda: store.ledger.edit(group, {FIRST: 1}),
        lambda: store.ledger.pause(group),
        lambda: store.ledger.resume(group),
    ):
        with pytest.raises(InvalidName):
            attempt()
    assert store.ledger.read_all() == {}


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a b", "a/b", "a:b", "a'b", "naïve", "nul\0", "t" * 250, "line\n"], ids=ascii
)
def test_a_topic_that_kafka_does_not_allow_is_refused_and_nothing_is_changed(store: Store, topic: str) -> None:
    for attempt in (
        lambda: store.ledger.claim(GROUP, [FIRST, TopicPartition(topic, 0)]),
        lambda: store.ledger.edit(GROUP, {FIRST: 1, TopicPartition(topic, 0): 1}),
    ):
        with pytest.raises(InvalidName):
            attempt()
    assert store.ledger.read_all() == {}
