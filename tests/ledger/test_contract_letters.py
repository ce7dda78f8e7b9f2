"""The contract of a ledger: dead letters come back as they were parked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.core.records import FailedRecord, LetterErrors, Record

from .samples import FIRST, GROUP, advance, span
from .stores import Store

BYTES = bytes(range(256))


def park(store: Store, *letters: FailedRecord, group: str = GROUP) -> None:
    claims = store.ledger.claim(group, [FIRST])
    start = claims[FIRST].position

    def handler(tx: Any) -> None:
        for letter in letters:
            tx.park(letter)

    store.ledger.transact(claims, [span(start, start + 1)], handler)


@pytest.mark.parametrize(
    "record",
    [
        Record("orders", 0, 5),
        Record("orders", 0, 5, None, b""),
        Record("orders", 0, 5, b"", None),
        Record("orders", 0, 5, BYTES, BYTES * 4),
        Record("orders", 0, 5, b"k", b"v", (("trace", b"\xff\x00"), ("trace", None), ("empty", b""), ("ünï", b"x"))),
        Record("orders", 0, 5, b"k", b"v", (), 0),
        Record("orders", 0, 5, b"k", b"v", (), 1_700_000_000_123),
        Record("t" * 249, 2**31 - 1, 2**63 - 1, b"k", b"v"),
        Record("orders", 0, 5, b"k", b"v" * 300_000),
    ],
    ids=["nothing", "no key", "no value", "all bytes", "headers", "epoch", "time", "largest numbers", "large"],
)
def test_a_record_comes_back_as_it_was_parked(store: Store, record: Record) -> None:
    letter = FailedRecord(record, "cannot be read", attempts=7)
    park(store, letter)
    (parked,) = store.open().dead_letters(GROUP)
    assert (parked.group, parked.letter) == (GROUP, letter)
    assert abs(datetime.now(UTC) - parked.at) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "error", ["", "Ünïcode 🌊 'quoted' \"twice\" 100% \\ `x`\nline", "e" * 10_000], ids=["", "odd", "long"]
)
def test_an_error_may_be_any_text(store: Store, error: str) -> None:
    park(store, FailedRecord(Record("orders", 0, 5), error))
    assert store.ledger.dead_letters(GROUP)[0].letter.error == error


def test_letters_are_listed_in_the_order_in_which_they_were_parked(store: Store) -> None:
    letters = [FailedRecord(Record("orders", 0, offset), f"error {offset}") for offset in range(9, 0, -1)]
    park(store, *letters[:5])
    park(store, *letters[5:])
    parked = store.ledger.dead_letters(GROUP)
    assert [p.letter for p in parked] == letters
    ids = [p.id for p in parked]
    assert ids == sorted(set(ids))
    assert ids[0] > 0


def test_letters_are_listed_page_by_page(store: Store) -> None:
    park(store, *(FailedRecord(Record("orders", 0, offset), "error") for offset in range(7)))
    pages: list[list[int]] = []
    after = 0
    while page := store.ledger.dead_letters(GROUP, after=after, limit=3):
        pages.append([parked.letter.record.offset for parked in page])
        after = page[-1].id
    assert pages == [[0, 1, 2], [3, 4, 5], [6]]
    assert store.ledger.dead_letters(GROUP, limit=0) == []


def test_letters_of_another_group_are_not_listed(store: Store) -> None:
    park(store, FailedRecord(Record("orders", 0, 1), "mine"))
    park(store, FailedRecord(Record("orders", 0, 2), "theirs"), group="shipping")
    assert [p.letter.error for p in store.ledger.dead_letters(GROUP)] == ["mine"]


def test_dropped_letters_are_gone_and_their_ids_are_not_used_again(store: Store) -> None:
    park(store, *(FailedRecord(Record("orders", 0, offset), "error") for offset in range(3)))
    first, second, third = (parked.id for parked in store.ledger.dead_letters(GROUP))
    assert store.ledger.drop_letters(GROUP, [first, third]) == 2
    assert store.ledger.drop_letters(GROUP, [first, third + 1000]) == 0
    assert store.ledger.drop_letters(GROUP, []) == 0
    assert store.ledger.drop_letters("shipping", [second]) == 0
    assert [parked.id for parked in store.ledger.dead_letters(GROUP)] == [second]
    park(store, FailedRecord(Record("orders", 0, 9), "later"))
    assert store.ledger.dead_letters(GROUP)[-1].id > third


def test_a_letter_of_another_topic_can_be_parked(store: Store) -> None:
    park(store, FailedRecord(Record("payments", 3, 77), "a joined record"))
    assert store.ledger.dead_letters(GROUP)[0].letter.record.topic == "payments"


def test_parking_does_not_disturb_the_journal(store: Store) -> None:
    park(store, FailedRecord(Record("orders", 0, 1), "error"))
    advance(store, store.ledger.claim(GROUP, [FIRST]), span(1, 2))
    assert store.ledger.verify(GROUP).ok


LARGE = 3_000_001


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (Record("orders", 0, 5), ""),
        (Record("orders", 2**31 - 1, 2**63 - 1, b"", b"", (), 0), "short"),
        (Record("t" * 249, 0, 5, b"k", None, (("a", b'x"]['), ("a", None), ("ünï[", b"")), 17), 'a "quoted\\" [error'),
        (Record("orders", 0, 5, BYTES * 4, b"v" * LARGE, (("h", b"x" * 2000),), 1_700_000_000_123), "e" * LARGE),
        (Record("orders", 0, 5, b"k" * 200, b"v" * 199), "\N{WATER WAVE}" * 201),
        (Record("orders", 0, 5, b"k" * 201, b"v" * 202), "\\" * 300 + '"'),
    ],
    ids=["nothing", "empty", "odd", "large", "just", "over"],
)
def test_the_beginning_of_a_letter_is_read_without_the_rest(store: Store, record: Record, error: str) -> None:
    park(store, FailedRecord(record, error, attempts=7))
    (head,) = store.open().letter_heads(GROUP, most=200)
    (parked,) = store.ledger.dead_letters(GROUP)
    assert (head.id, head.group, head.at, head.attempts) == (parked.id, GROUP, parked.at, 7)
    assert (head.topic, head.partition, head.offset, head.timestamp) == (*record[:3], record.timestamp)
    assert (head.error, head.is_error_cut) == (error[:200], len(error) > 200)
    for cut, size, whole in ((head.key, head.key_bytes, record.key), (head.value, head.value_bytes, record.value)):
        assert (cut, size) == ((None, None) if whole is None else (whole[:200], len(whole)))
    assert head.headers == (None if head.headers_bytes > 1500 else record.headers)
    assert store.ledger.letter_head(GROUP, parked.id) == head
    assert store.ledger.letter_head(GROUP, parked.id + 1) is None
    assert store.ledger.letter_head(GROUP, 0) is None


def test_the_beginnings_are_listed_like_the_letters_and_tell_of_failed_replays(store: Store) -> None:
    park(store, *(FailedRecord(Record("orders", 0, offset), f"error {offset}") for offset in range(5)))
    park(store, FailedRecord(Record("orders", 0, 1), "theirs"), group="shipping")
    letters = store.ledger.dead_letters(GROUP)
    assert store.ledger.failed_again(letters[1], 'again "é" ' + "x" * 1000)
    heads = store.ledger.letter_heads(GROUP, after=letters[0].id, limit=3)
    assert [head.id for head in heads] == [letter.id for letter in letters[1:4]]
    assert (heads[0].attempts, heads[0].is_error_cut) == (2, True)
    assert heads[0].error.startswith('again "é" xxx')
    assert store.ledger.letter_heads(GROUP, limit=0) == []
    assert store.ledger.letter_heads("nobody") == []


def test_letters_are_counted_by_group_and_by_error(store: Store) -> None:
    assert store.ledger.count_letters() == {}
    assert store.ledger.letter_errors(GROUP) == []
    park(store, *(FailedRecord(Record("orders", 0, number), f"error {number % 2}") for number in range(5)))
    park(store, FailedRecord(Record("orders", 0, 5), "e" * 300), FailedRecord(Record("orders", 0, 6), "e" * 400))
    park(store, FailedRecord(Record("orders", 0, 1), "theirs"), group="shipping")
    assert store.ledger.count_letters() == {GROUP: 7, "shipping": 1}
    ids = [letter.id for letter in store.ledger.dead_letters(GROUP)]
    assert store.ledger.letter_errors(GROUP) == [
        LetterErrors("error 0", 3, ids[0], ids[4]),
        LetterErrors("error 1", 2, ids[1], ids[3]),
        LetterErrors("e" * 200, 2, ids[5], ids[6]),
    ]
    assert len(store.ledger.letter_errors(GROUP, limit=1)) == 1
    store.ledger.drop_letters(GROUP, ids)
    assert store.ledger.count_letters() == {"shipping": 1}
