"""What the dashboard remembers, and how it is drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.ledger import MemoryLedger
from tidegate.web.chart import Chart, Mark, nice_top, spark
from tidegate.web.history import History, Point, Ring
from tidegate.web.pages import _gaps
from tidegate.web.watch import Tail

TP = TopicPartition("orders", 0)
DAY_ONE = datetime(1970, 1, 1, tzinfo=UTC)


def test_a_ring_keeps_the_newest() -> None:
    ring = Ring(3)
    for number in range(5):
        ring.add(float(number), None if number == 3 else number)
    assert list(ring.points(0)) == [Point(2, 2), Point(3, None), Point(4, 4)]
    assert list(ring.points(3.5)) == [Point(4, 4)]


def test_an_hour_is_kept_in_steps_and_the_last_minutes_as_they_were() -> None:
    history = History()
    for at in range(0, 3600, 2):
        history.add(float(at), {"billing": at, "gone": 1} if at < 3598 else {"billing": at})
    points = history.lag("billing", 0.0, 3600.0)
    assert points[0] == Point(0, 0)
    assert points[-1] == Point(3598, 3598)
    assert [point.at for point in points] == sorted({point.at for point in points})
    assert 400 < len(points) < 500
    assert history.lag("gone", 0.0, 3600.0) == []


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (7, 10), (11, 20), (240, 250), (251, 500), (99_999, 100_000)]
)
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    points = [Point(0, 5), Point(1, 10), Point(2, None), Point(3, 0), Point(50, 0)]
    chart = Chart.of(points, 0, 100, gap=20)
    assert chart.path == "M0.0 50.0L10.0 0.0 M30.0 100.0h0.1 M500.0 100.0h0.1"
    assert [row[1] for row in chart.table()] == [0, 0, None, 10, 5]


def test_a_line_of_lag_that_is_not_whole_is_explained() -> None:
    whole = [Point(float(at), at) for at in range(0, 600, 20)]
    began = "Lag is known since 00:10:00 UTC: it is not stored, and the page began to look then."
    away = "Where the line is interrupted, the ledger or Kafka did not answer."
    assert _gaps(whole, 0) is None
    assert _gaps([], 0) is None, "a chart without a line says so itself"
    assert _gaps([Point(600.0, 1), Point(620.0, 1)], 0) == began
    assert _gaps([*whole[:10], *whole[15:]], 0) == away
    assert _gaps([*whole[:10], Point(200.0, None), Point(220.0, None), *whole[12:]], 0) == away
    assert _gaps([Point(600.0, 1), Point(700.0, 1)], 0) == f"{began} {away}"


def test_marks_that_would_cover_each_other_are_drawn_below_each_other() -> None:
    marks = [Mark(10, "claim", ""), Mark(11, "edit", ""), Mark(60, "claim", ""), Mark(200, "claim", "")]
    placed = Chart.of([], 0, 100, marks).marks
    assert [(mark.place, mark.level) for mark in placed] == [(10, 0), (11, 1), (60, 0)]


def test_a_small_line_is_drawn_from_means() -> None:
    assert spark([Point(float(at), 10.0 if at % 2 else 0.0) for at in range(300)]).count("L") == 49
    assert spark([Point(0, 0), Point(10, 10)]) == "M0.0 100.0L1000.0 9.1"


def test_too_little_is_not_drawn() -> None:
    assert spark([Point(0, 1), Point(1, None)]) == ""
    assert Chart.of([], 0, 1).path == ""


def test_a_tail_counts_every_entry_once_however_often_it_is_read() -> None:
    ledger = MemoryLedger()
    claims = ledger.claim("billing", [TP])
    tail = Tail(ledger, "billing")
    ledger.transact(claims, [Span(TP, 0, 30, 25)])
    at = max(entry.at.timestamp() for entry in ledger.journal("billing") if entry.at)
    tail.read(at)
    tail.read(at + 1)
    ledger.transact(claims, [Span(TP, 30, 40, 10)])
    ledger.pause("billing", note="pause by ann")
    tail.read(at + 2)
    points = tail.throughput(at - 60, at + 10, 5)
    assert sum((point.value or 0) * 5 for point in points) == pytest.approx(35)
    assert tail.rate(at + 10) == pytest.approx(35 / 60)
    marks = tail.marks(at - 60, 5)
    assert [mark.kind for mark in marks] == ["claim", "pause"]
    assert "pause by ann" in marks[1].text


class Clocked(MemoryLedger):
    """A ledger whose clock is set by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.time = datetime(2026, 11, 16, 12, 0, 2, tzinfo=UTC)

    def _now(self) -> datetime:
        return self.time

    def run(self, seconds: int, rate: int, every: int, partitions: int = 1) -> None:
        """Advance so many records a second, in all."""
        claims = self.claim("billing", [TopicPartition("orders", number) for number in range(partitions)])
        for _ in range(seconds // every):
            self.time += timedelta(seconds=every)
            rows = self.read("billing").positions
            count = rate * every // partitions
            self.transact(
                claims, [Span(tp, row.next_offset, row.next_offset + count, count) for tp, row in rows.items()]
            )


def values(points: list[Point]) -> list[float]:
    return [round(point.value or 0) for point in points]


def test_entries_of_a_minute_are_drawn_as_the_rate_that_they_had() -> None:
    ledger = Clocked()
    ledger.run(seconds=900, rate=400, every=2, partitions=4)
    now = ledger.time.timestamp()
    tail = Tail(ledger, "billing")
    tail.read(now)
    assert set(values(tail.throughput(now - 600, now, 5))[:-1]) <= set(range(390, 411)), "no peak each minute"
    assert tail.rate(now) == pytest.approx(400, rel=0.1)


def test_an_entry_that_grows_between_two_looks_is_counted_as_it_grows() -> None:
    ledger = Clocked()
    tail = Tail(ledger, "billing")
    began = ledger.time.timestamp()
    ledger.run(seconds=2, rate=50, every=2)
    for _ in range(59):
        _grow(ledger)
        tail.read(ledger.time.timestamp())
    now = ledger.time.timestamp()
    points = tail.throughput(began - 10, now + 10, 5)
    assert sum((point.value or 0) * 5 for point in points) == pytest.approx(60 * 100)
    assert max(values(points)) <= 75


def _grow(ledger: Clocked) -> None:
    ledger.time += timedelta(seconds=2)
    row = ledger.read("billing").positions[TP]
    ledger.transact({TP: row.claim("billing")}, [Span(TP, row.next_offset, row.next_offset + 100, 100)])


def test_a_day_of_a_busy_group_is_drawn_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.watch._MOST_ENTRIES", 200)
    ledger = Clocked()
    ledger.run(seconds=24 * 3600, rate=400, every=20, partitions=4)
    now = ledger.time.timestamp()
    tail = Tail(ledger, "billing")
    tail.read(now)
    assert tail.is_cut
    day = tail.throughput(now - 24 * 3600, now, 600)
    assert len(day) >= 142
    assert set(values(day)[1:]) <= set(range(380, 421))
    hours = tail.throughput(now - 3 * 3600, now, 60)
    assert hours[0].at <= now - 3 * 3600 + 1300, "the coarse history goes on where the journal was not read"
    assert set(values(hours)[1:-1]) <= set(range(350, 451))
    assert sum(bucket.records for bucket in ledger.history("billing", DAY_ONE)) == 24 * 3600 * 400


def test_a_tail_says_when_it_does_not_reach_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.watch._MOST_ENTRIES", 10)
    ledger = MemoryLedger()
    claims = ledger.claim("billing", [TP])
    for number in range(30):
        ledger.transact(claims, [Span(TP, number, number + 1, 1)])
        claims = ledger.claim("billing", [TP])
    tail = Tail(ledger, "billing")
    at = max(entry.at.timestamp() for entry in ledger.journal("billing") if entry.at)
    tail.read(at)
    assert tail.is_cut
    assert sum((point.value or 0) * 5 for point in tail.throughput(at - 60, at + 10, 5)) <= 10
