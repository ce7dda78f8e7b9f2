"""The contract of a ledger: many contenders, large numbers, and every span once."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from time import monotonic

import pytest
from tests.processes import CONTEXT

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import Fenced

from . import contention
from .contention import PARTITIONS, Score
from .samples import GROUP, advance, offsets, span, writing
from .stores import Store

CONTENDERS = 8
SECONDS = 3.0


def assert_every_span_once(store: Store) -> None:
    """The data is exactly what lies below each position, in order, and the journal explains it."""
    written: dict[TopicPartition, list[int]] = defaultdict(list)
    for row in store.rows():
        written[TopicPartition(row.topic, row.partition)].append(row.offset)
    reached = offsets(store.ledger)
    assert {tp: list(range(offset)) for tp, offset in reached.items() if offset} == dict(written)
    verification = store.ledger.verify(GROUP)
    assert verification.ok, verification.breaks


def fought(executor: Executor, recipe: Callable[[], Store], seconds: float) -> Score:
    with executor:
        contenders = [executor.submit(contention.fight, recipe, seconds, seed) for seed in range(CONTENDERS)]
        scores = [contender.result() for contender in contenders]
    return Score(*(sum(column) for column in zip(*scores, strict=True)))


@pytest.mark.parametrize("seconds", [SECONDS, pytest.param(60.0, marks=pytest.mark.chaos)])
def test_eight_processes_fight_over_four_partitions_and_every_span_is_committed_once(
    store: Store, seconds: float
) -> None:
    executor: Executor
    if store.in_process:
        contention.prepare(threading.Barrier(CONTENDERS), CONTEXT.Value("i"))
        executor = ThreadPoolExecutor(CONTENDERS)
    else:
        executor = ProcessPoolExecutor(
            CONTENDERS,
            mp_context=CONTEXT,
            initializer=contention.prepare,
            initargs=(CONTEXT.Barrier(CONTENDERS), CONTEXT.Value("i")),
        )
    score = fought(executor, store.recipe(), seconds)
    assert_every_span_once(store)
    assert set(offsets(store.ledger)) == set(PARTITIONS)
    assert min(offsets(store.ledger).values()) > 0
    assert score.commits >= CONTENDERS
    assert score.fences >= CONTENDERS


def test_eight_threads_share_a_ledger_and_every_span_is_committed_once(store: Store) -> None:
    claims = store.ledger.claim(GROUP, PARTITIONS)
    won: list[Span] = []

    def race(number: int) -> None:
        mine = PARTITIONS[number % len(PARTITIONS)]
        for start in range(0, 20, 2):
            deadline = monotonic() + 30
            while store.ledger.read(GROUP, [mine]).positions[mine].next_offset < start + 2 and monotonic() < deadline:
                try:
                    store.ledger.transact(
                        claims, [span(start, start + 2, mine)], writing(store, span(start, start + 2, mine))
                    )
                    won.append(span(start, start + 2, mine))
                except Fenced:
                    pass

    with ThreadPoolExecutor(CONTENDERS) as executor:
        for contender in [executor.submit(race, number) for number in range(CONTENDERS)]:
            contender.result()
    assert set(won) == {span(start, start + 2, tp) for tp in PARTITIONS for start in range(0, 20, 2)}
    assert offsets(store.ledger) == dict.fromkeys(PARTITIONS, 20)
    assert_every_span_once(store)


def test_two_claims_of_the_same_new_partitions_both_succeed_and_one_of_them_holds(store: Store) -> None:
    barrier = threading.Barrier(CONTENDERS)

    def claim() -> dict[TopicPartition, str]:
        ledger = store.open()
        ledger.read(GROUP)
        barrier.wait(30)
        return {tp: claim.owner for tp, claim in ledger.claim(GROUP, PARTITIONS).items()}

    with ThreadPoolExecutor(CONTENDERS) as executor:
        claims = [future.result() for future in [executor.submit(claim) for _ in range(CONTENDERS)]]
    rows = store.ledger.read(GROUP).positions
    assert {tp: row.owner for tp, row in rows.items()} in claims
    assert {row.epoch for row in rows.values()} == {CONTENDERS}
    assert store.ledger.verify(GROUP).ok


def test_a_thousand_partitions_are_claimed_and_five_hundred_advanced_at_once(store: Store) -> None:
    many = [TopicPartition("orders", number) for number in range(1000)]
    claims = store.ledger.claim(GROUP, many, {tp: tp.partition for tp in many})
    assert len(claims) == 1000
    spans = [span(tp.partition, tp.partition + 1, tp) for tp in many[:500]]
    advance(store, claims, *spans)
    assert offsets(store.ledger) == {tp: tp.partition + (tp.partition < 500) for tp in many}
    assert len(store.rows()) == 500
    assert store.ledger.release(claims) == set(many)
    assert store.ledger.verify(GROUP) == (1000, 3500, ())
