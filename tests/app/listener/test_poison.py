from __future__ import annotations

from collections import Counter

from tests.app.listener.books import GROUP, Books
from tests.app.listener.consumer import Order
from tests.app.listener.poison import BAD, EVERY, Entries, fill, value, work_through
from tests.app.listener.topic import Topic, amount
from tests.processes import finished, killed

from tidegate.sandbox import Kafka

PARTITIONS, RECORDS = 3, 100


def check(books: Books) -> int:
    """Up to the positions, good records are entries and bad ones are letters, each once; how far that is, in all."""
    good, bad = [], []
    for tp, position in books.positions().items():
        for offset in range(position):
            if offset % EVERY == EVERY - 1:
                bad.append((tp.partition, offset, value(tp.partition, offset)))
            else:
                good.append((tp.partition, offset, amount(tp.partition, offset)))
    assert sorted(Entries(books).read()) == sorted(good)
    with books.ledger() as ledger:
        records = [parked.letter.record for parked in ledger.dead_letters(GROUP, limit=1000)]
        assert ledger.verify(GROUP).ok
    assert Counter((r.partition, r.offset, r.value) for r in records) == Counter(bad)
    return len(good) + len(bad)


def test_bad_records_of_every_kind_are_parked_once_and_good_ones_written_once_whatever_is_killed(
    kafka: Kafka, store: str
) -> None:
    topic = Topic.create(kafka.bootstrap, PARTITIONS)
    books = Books.open(store, PARTITIONS)
    Entries(books).prepare()
    fill(topic, RECORDS)
    reached = [0]
    for step, turn in (("write", 4), ("acknowledge", 1), ("commit", 2)):
        if step == "commit" and books.is_redis:
            continue  # has no such step: the transaction is one script
        killed(work_through, Order(topic, books, step, turn))
        reached.append(check(books))
    finished(work_through, Order(topic, books))

    assert check(books) == PARTITIONS * RECORDS
    assert reached == sorted(reached)
    assert 0 < reached[-1] < PARTITIONS * RECORDS, "every kill came before the work, or after it"
    with books.ledger() as ledger:
        letters = [parked.letter for parked in ledger.dead_letters(GROUP, limit=1000)]
    assert {letter.record.value for letter in letters} == set(BAD.values())
    assert {letter.attempts for letter in letters} == {1}
    assert len({letter.error.partition(":")[0] for letter in letters}) > 2
