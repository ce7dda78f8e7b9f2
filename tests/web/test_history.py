"""What the dashboard remembers, and how it is drawn."""

from __future__ import annotations

import pytest

from tidegate.core.records import TopicPartition
from tidegate.core.spans import Span
from tidegate.ledger import MemoryLedger
from tidegate.web.chart import Chart, Mark, nice_top, spark
from tidegate.web.history import History, Point, Ring
from tidegate.web.tail import Tail

TP = TopicPartition("orders", 0)


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
    assert sum((point.value or 0) * 5 for point in points) == 35
    assert tail.rate(at + 10) == pytest.approx(35 / 60)
    marks = tail.marks(at - 60, 5)
    assert [mark.kind for mark in marks] == ["claim", "pause"]
    assert "pause by ann" in marks[1].text


def test_a_tail_says_when_it_does_not_reach_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.web.tail._MOST_ENTRIES", 10)
    ledger = MemoryLedger()
    claims = ledger.claim("billing", [TP])
    for number in range(30):
        ledger.transact(claims, [Span(TP, number, number + 1, 1)])
    tail = Tail(ledger, "billing")
    at = max(entry.at.timestamp() for entry in ledger.journal("billing") if entry.at)
    tail.read(at)
    assert tail.is_cut
    assert sum((point.value or 0) * 5 for point in tail.throughput(at - 60, at + 10, 5)) <= 10
