"""The contract of a ledger: a dead letter is replayed once, whoever dies, fails or comes second."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.processes import CONTEXT

from tidegate.core.records import FailedRecord, Record, StoredLetter
from tidegate.errors import ConfigurationError, TransactionBroken
from tidegate.ledger.redis import RedisTransaction
from tidegate.ledger.transaction import Limits, Outcome

from .samples import FIRST, GROUP, kinds, offsets, span
from .stores import RedisStore, Row, SqlStore, Store

ROW = Row("orders", 0, 5, "replayed")


@pytest.fixture
def parked(store: Store) -> StoredLetter:
    """The first of two letters."""
    claims = store.ledger.claim(GROUP, [FIRST])

    def handler(tx: Any) -> None:
        for offset in (5, 6):
            tx.park(FailedRecord(Record("orders", 0, offset, b"k", b"\xff", (("h", None),), 7), "not JSON", attempts=3))

    store.ledger.transact(claims, [span(0, 7)], handler)
    return store.ledger.dead_letters(GROUP)[0]


def left(store: Store) -> list[int]:
    return [parked.letter.record.offset for parked in store.ledger.dead_letters(GROUP)]


def test_a_replay_writes_the_data_and_removes_the_letter(store: Store, parked: StoredLetter) -> None:
    before = offsets(store.ledger), kinds(store.ledger.journal(GROUP))
    result = store.ledger.replay(parked, lambda tx: store.write(tx, ROW))
    assert result[:3] == (Outcome.COMMITTED, 1, 0)
    assert (store.rows(), left(store)) == ([ROW], [6])
    assert (offsets(store.ledger), kinds(store.ledger.journal(GROUP))) == before
    assert store.ledger.verify(GROUP).ok


def test_a_letter_that_is_gone_is_not_replayed_again(store: Store, parked: StoredLetter) -> None:
    store.ledger.replay(parked, lambda tx: store.write(tx, ROW))
    result = store.open().replay(parked, lambda tx: pytest.fail("the handler ran"))
    assert result.outcome is Outcome.ALREADY_DONE
    assert store.rows() == [ROW]


def test_a_letter_of_another_group_is_not_touched(store: Store, parked: StoredLetter) -> None:
    other = parked._replace(group="shipping")
    assert store.ledger.replay(other, lambda tx: store.write(tx, ROW)).outcome is Outcome.ALREADY_DONE
    assert not store.ledger.failed_again(other, "no")
    assert (store.rows(), left(store)) == ([], [5, 6])


def test_a_handler_that_fails_leaves_everything_as_it_was(store: Store, parked: StoredLetter) -> None:
    def handler(tx: Any) -> None:
        store.write(tx, ROW)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.ledger.replay(parked, handler)
    assert store.rows() == []
    assert store.ledger.dead_letter(GROUP, parked.id) == parked


def test_a_failed_replay_counts_and_has_the_new_error_under_the_same_id(store: Store, parked: StoredLetter) -> None:
    assert store.ledger.failed_again(parked, "Ünïcode 🌊\0")
    assert store.ledger.failed_again(parked, "the second time 🌊")
    now = store.open().dead_letter(GROUP, parked.id)
    assert now == parked._replace(letter=parked.letter._replace(error="the second time 🌊", attempts=5))
    assert store.ledger.dead_letters(GROUP)[1].letter.attempts == 3
    assert store.ledger.replay(parked, lambda tx: store.write(tx, ROW)).outcome is Outcome.COMMITTED
    assert not store.ledger.failed_again(parked, "too late")
    assert store.ledger.dead_letter(GROUP, parked.id) is None


def test_a_handler_that_ends_the_transaction_replays_nothing(store: Store, parked: StoredLetter) -> None:
    def handler(tx: Any) -> None:
        store.write(tx, ROW)
        store.end_transaction(tx)
        store.write(tx, ROW)

    # On Redis there is no transaction to end: what would is refused by name.
    with pytest.raises(ConfigurationError if isinstance(store, RedisStore) else TransactionBroken):
        store.ledger.replay(parked, handler)
    assert (store.rows(), left(store)) == ([], [5, 6])


def test_a_handler_that_commits_replays_nothing(store: Store, parked: StoredLetter) -> None:
    if not isinstance(store, SqlStore):
        pytest.skip("there is no connection that could commit")

    def handler(tx: Any) -> None:
        store.write(tx, ROW)
        tx.connection.connection.commit()

    with pytest.raises(TransactionBroken):
        store.ledger.replay(parked, handler)
    assert (store.rows(), left(store)) == ([], [5, 6])


def test_a_handler_may_park_another_letter(store: Store, parked: StoredLetter) -> None:
    store.ledger.replay(parked, lambda tx: tx.park(FailedRecord(Record("payments", 1, 9), "a part of it")))
    assert left(store) == [6, 9]


def test_two_replays_at_once_write_once(store: Store, parked: StoredLetter) -> None:
    both_ready = threading.Barrier(2)
    outcomes: list[Outcome] = []

    def replay() -> None:
        ledger = store.open()
        both_ready.wait(30)
        outcomes.append(ledger.replay(parked, lambda tx: store.write(tx, ROW)).outcome)

    threads = [threading.Thread(target=replay) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes, key=str) == [Outcome.ALREADY_DONE, Outcome.COMMITTED]
    assert (store.rows(), left(store)) == ([ROW], [6])


def replay_and_die(recipe: Callable[[], Store], number: int, step: str) -> None:
    """What a process does that is killed between two steps of a replay."""
    store = recipe()
    parked = store.ledger.dead_letter(GROUP, number)
    assert parked is not None

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def handler(tx: Any) -> None:
        if step == "held":
            die()
        store.write(tx, ROW)
        if step == "written":
            die()

    if step == "commit" and isinstance(store, SqlStore):
        store.ledger._store().dialect.commit = lambda conn: die()  # type: ignore[attr-defined]
    store.ledger.replay(parked, handler)
    die()


@pytest.mark.parametrize("step", ["held", "written", "commit", "acknowledged"])
def test_a_kill_at_any_step_leaves_the_letter_or_its_data(store: Store, parked: StoredLetter, step: str) -> None:
    last = "commit" if isinstance(store, SqlStore) else "written"  # the last one before it is done
    if store.in_process or step not in ("held", last, "acknowledged"):
        pytest.skip("there is no such step, or a later one tells the same")
    victim = CONTEXT.Process(target=replay_and_die, args=(store.recipe(), parked.id, step))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    done = step == "acknowledged"
    ledger = store.open(Limits(hold=2, lock_wait=20))
    outcome = ledger.replay(parked, lambda tx: store.write(tx, ROW)).outcome
    assert outcome is (Outcome.ALREADY_DONE if done else Outcome.COMMITTED)
    assert (store.rows(), left(store)) == ([ROW], [6])


def test_a_command_that_redis_refuses_is_parked_anew(store: Store, parked: StoredLetter) -> None:
    if not isinstance(store, RedisStore):
        pytest.skip("statements are rolled back there")
    seen: list[RedisTransaction] = []

    def handler(tx: RedisTransaction) -> None:
        seen.append(tx)
        store.write(tx, ROW)
        tx.execute("INCR", f"{store.prefix}data", record=parked.letter.record)

    assert store.ledger.replay(parked, handler).outcome is Outcome.COMMITTED
    assert seen[0].failed == 1
    assert left(store) == [6, 5]
    assert "INCR failed" in store.ledger.dead_letters(GROUP)[1].letter.error
