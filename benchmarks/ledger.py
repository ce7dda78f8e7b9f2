"""What the ledger itself takes: for one span, for many, and beside a bulk load."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from sqlalchemy import Connection

from benchmarks.report import Report
from benchmarks.stores import Store, sql_stores
from tidegate import Claim, Span, TopicPartition

PAIRS = 80
WARM = 15
ROWS = 20_000


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Partitions:
    """Partitions of one group, advanced in step."""

    def __init__(self, store: Store, group: str, count: int) -> None:
        self.ledger = store.ledger
        self.group = group
        self.all = [TopicPartition("orders", number) for number in range(count)]
        self.claims: dict[TopicPartition, Claim] = {}
        self.position = 0

    def claim(self) -> None:
        self.claims = self.ledger.claim(self.group, self.all)

    def advance(self, handler: Callable[..., object] | None = None) -> None:
        spans = [Span(tp, self.position, self.position + ROWS, ROWS) for tp in self.all]
        self.ledger.transact(self.claims, spans, handler)
        self.position += ROWS


def statements(store: Store, report: Report) -> None:
    """Whole transactions with nothing in them: begin, advance, journal, sentinel, commit on disk."""
    for count, bar in ((1, 2.0), (4, 4.0)):
        group = Partitions(store, f"statements-{count}", count)
        group.claim()
        for _ in range(30):
            group.advance()
        took = statistics.median(timed(group.advance) for _ in range(300)) * 1000
        name = f"{store.name}: transaction of {count} span{'s' * (count > 1)}"
        report.figure(name, took, "ms", at_most=bar * store.syncs)


def bulk(store: Store, report: Report) -> None:
    """The same load in a transaction of the bare engine and in one of the ledger, one after the other, in turns."""
    store.prepare([(n, f"customer-{n % 997}", n * 31 % 100_000, f"order number {n} of many") for n in range(ROWS)])
    group = Partitions(store, f"bulk-{time.monotonic_ns()}", 1)
    group.claim()

    def without() -> None:
        with store.engine.begin() as conn:
            store.load(conn)

    def through() -> None:
        group.advance(lambda tx: store.load(_connection(tx)))

    ratios, base = [], []
    gc.disable()
    for pair in range(PAIRS + WARM):
        took = {}
        for way in (without, through) if pair % 2 else (through, without):
            took[way] = timed(way)
            store.empty()
        if pair >= WARM:
            ratios.append(took[through] / took[without])
            base.append(took[without])
    gc.enable()
    report.figure(
        f"{store.name}: {ROWS} rows with the ledger / without",
        statistics.median(ratios),
        "x",
        at_most=1.08,
        detail=f"median of {len(ratios)} pairs; without: {statistics.median(base) * 1000:.1f} ms",
    )


def scale(store: Store, report: Report) -> None:
    """Many partitions in one call, against one."""

    def medians(count: int, times: int) -> tuple[float, float]:
        group = Partitions(store, f"scale-{count}", count)
        group.claim()
        group.advance()
        claims, advances = [], []
        for _ in range(times):
            claims.append(timed(group.claim))
            advances.append(timed(group.advance))
        return statistics.median(claims), statistics.median(advances)

    claim_one, advance_one = medians(1, 100)
    claim_many, _ = medians(1000, 20)
    _, advance_many = medians(500, 20)
    for what, many, one in (
        ("claim of 1,000 partitions / of 1", claim_many, claim_one),
        ("transaction of 500 spans / of 1", advance_many, advance_one),
    ):
        report.figure(
            f"{store.name}: {what}", many / one, "x", at_most=10, detail=f"{many * 1000:.1f} ms / {one * 1000:.2f} ms"
        )


def run(report: Report) -> None:
    with sql_stores() as stores:
        for title, measure in (
            ("The ledger's own statements", statements),
            ("A bulk load of 20,000 rows, with advance and journal", bulk),
            ("Many partitions at once", scale),
        ):
            report.heading(title)
            for store in stores:
                measure(store, report)


def _connection(tx: object) -> Connection:
    return tx.connection  # type: ignore[attr-defined, no-any-return]
