"""The journal of a SQL store is numbered: entries are pruned from the front, in parts, and what is left is proof."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from tidegate import TopicPartition

from .samples import FIRST, GROUP, SECOND, THIRD, advance, kinds, span
from .stores import SqlStore

DAY = timedelta(days=1)


@pytest.fixture(params=["sqlite", "mariadb", "mysql", "postgres"])
def sql_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    sqlite = request.param == "sqlite"
    made = SqlStore(f"sqlite:///{tmp_path / 'ledger.db'}" if sqlite else request.getfixturevalue(request.param).url)
    made.ledger.create()
    yield made
    made.close()


def numbered(store: SqlStore) -> list[tuple[TopicPartition, int]]:
    """The journal as it is numbered."""
    statement = text(f"SELECT topic, partition_id, seq FROM {store.prefix}journal ORDER BY id")
    with store.engine.connect() as conn:
        return [(TopicPartition(row[0], row[1]), row[2]) for row in conn.execute(statement)]


def make_old(store: SqlStore, partition: TopicPartition, *seqs: int) -> None:
    """Set the time of journal entries back by years."""
    statement = text(
        f"UPDATE {store.prefix}journal SET at = '2020-02-02 02:02:02' "
        "WHERE topic = :topic AND partition_id = :partition AND seq = :seq"
    )
    with store.engine.begin() as conn:
        for seq in seqs:
            assert conn.execute(statement, {**partition._asdict(), "seq": seq}).rowcount == 1


def test_numbers_have_the_order_in_which_things_happened_to_a_partition(sql_store: SqlStore) -> None:
    claims = sql_store.ledger.claim(GROUP, [FIRST, SECOND])
    advance(sql_store, claims, span(0, 1), span(0, 1, SECOND))
    advance(sql_store, claims, span(1, 2, SECOND))
    sql_store.ledger.claim(GROUP, [FIRST, SECOND, THIRD])
    sql_store.ledger.edit(GROUP, {FIRST: 9, THIRD: 4})
    entries = numbered(sql_store)
    assert [seq for tp, seq in entries if tp == FIRST] == [1, 2, 3, 4, 5], "two advances of SECOND are one"
    assert [seq for tp, seq in entries if tp == SECOND] == [1, 2, 3, 4]
    assert [seq for tp, seq in entries if tp == THIRD] == [1, 2, 3]


def test_pruning_goes_on_from_part_to_part(sql_store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.ledger.sql.ledger._PRUNED_AT_ONCE", 3)
    sql_store.ledger.claim(GROUP, [SECOND])
    for start in range(3):
        claims = sql_store.ledger.claim(GROUP, [FIRST, THIRD])
        advance(sql_store, claims, span(start, start + 1), span(start, start + 1, THIRD))
        sql_store.ledger.release(claims)
    sql_store.ledger.pause(GROUP)
    for tp, last in ((FIRST, 10), (SECOND, 2), (THIRD, 9)):
        make_old(sql_store, tp, *range(1, last + 1))
    assert sql_store.ledger.prune(DAY) == 9 + 1 + 9
    assert numbered(sql_store) == [(SECOND, 2), (FIRST, 10), (THIRD, 10), (TopicPartition("", -1), 1)]
    assert sql_store.ledger.verify(GROUP) == (3, 3, ())
    assert sql_store.ledger.prune(DAY) == 0


def test_pruning_never_leaves_a_gap_when_the_clock_was_set_back(sql_store: SqlStore) -> None:
    claims = sql_store.ledger.claim(GROUP, [FIRST, SECOND])
    for start in range(2):
        advance(sql_store, claims, span(start, start + 1))
        claims |= sql_store.ledger.claim(GROUP, [FIRST])
    make_old(sql_store, FIRST, 1, 2, 4, 5)
    make_old(sql_store, SECOND, 1, 2)
    assert sql_store.ledger.prune(DAY) == 2 + 1
    assert [entry.seq for entry in sql_store.ledger.journal(GROUP, FIRST)] == [3, 4, 5, 6]
    assert kinds(sql_store.ledger.journal(GROUP, SECOND)) == ["claim"]
    assert sql_store.ledger.verify(GROUP).ok


def test_entries_of_a_position_that_is_gone_are_kept_as_evidence(sql_store: SqlStore) -> None:
    sql_store.ledger.claim(GROUP, [FIRST, SECOND])
    make_old(sql_store, FIRST, 1, 2)
    make_old(sql_store, SECOND, 1, 2)
    with sql_store.engine.begin() as conn:
        conn.execute(text(f"DELETE FROM {sql_store.prefix}positions WHERE partition_id = {SECOND.partition}"))
    assert sql_store.ledger.prune(DAY) == 1
    assert [entry.seq for entry in sql_store.ledger.journal(GROUP, SECOND)] == [1, 2]
    (found,) = sql_store.ledger.verify(GROUP).breaks
    assert (found.partition, found.reason) == (SECOND, "the journal has entries, but the position is gone")


def test_an_entry_that_is_written_late_survives_what_is_behind_it(sql_store: SqlStore) -> None:
    """As a member of the version before leaves it behind: it claims, and knows of no open entry."""
    advance(sql_store, sql_store.ledger.claim(GROUP, [FIRST]), span(0, 4))
    positions, journal = f"{sql_store.prefix}positions", f"{sql_store.prefix}journal"
    with sql_store.engine.begin() as conn:
        for epoch, seq in ((2, 4), (3, 5)):
            conn.execute(
                text(f"UPDATE {positions} SET epoch = {epoch}, seq = {seq}, owner = 'old', commit_token = NULL")
            )
            conn.execute(
                text(
                    f"INSERT INTO {journal} (consumer_group, topic, partition_id, seq, kind, start_offset, end_offset, "
                    f"records, epoch, owner, at) VALUES ('{GROUP}', 'orders', 0, {seq}, 'claim', 4, 4, 0, {epoch}, "
                    "'old', CURRENT_TIMESTAMP)"
                )
            )
    assert sql_store.ledger.verify(GROUP) == (1, 5, ())
    sql_store.ledger.claim(GROUP, [FIRST])
    assert [seq for _, seq in numbered(sql_store)] == [1, 2, 4, 5, 3, 6]
    assert sql_store.ledger.verify(GROUP) == (1, 6, ())
    make_old(sql_store, FIRST, 1, 2, 3, 4)
    assert sql_store.ledger.prune(DAY) == 3, "up to the first one that is young, in the order of writing"
    assert [entry.seq for entry in sql_store.ledger.journal(GROUP, FIRST)] == [3, 5, 6]
    assert sql_store.ledger.verify(GROUP).ok
