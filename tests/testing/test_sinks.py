"""The kit with sinks: they are listeners, so all of it holds for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from tests.testing.shop import KAFKA

from tidegate import App, Table
from tidegate.testing import Fence, LostAnswer, Rebalance, Step, TestKit, crash_everywhere


@pytest.mark.parametrize("mode", ["append", "accumulate"])
def test_a_sink_writes_every_record_once_whatever_happens_anywhere(make_kit: Callable[..., TestKit], mode: str) -> None:
    app = App(KAFKA, "sqlite:///nowhere/unused.db")
    columns = {"customer": int, "total": int}
    key = ["customer"] if mode == "accumulate" else []
    app.sink("orders", into=Table("totals", key=key, mode=mode, create=True, evolve=True, columns=columns), group="g")

    def make() -> TestKit:
        kit = make_kit(app, batch=2)
        for number in range(3):
            kit.send("orders", {"customer": number % 2, "total": 10 + number})
        kit.send("orders", {"customer": 0, "total": "many"})
        kit.send("orders", {"customer": 0, "total": 1, "note": "a new field"})
        return kit

    def check(kit: TestKit) -> None:
        with kit.engine.connect() as conn:
            found = conn.execute(text("SELECT customer, sum(total), count(note) FROM totals GROUP BY customer")).all()
        assert sorted(map(tuple, found)) == [(0, 10 + 12 + 1, 1), (1, 11, 0)]
        assert [parked.letter.record.offset for parked in kit.dead_letters("g")] == [3]

    assert len(crash_everywhere(make, check)) > 10
    kit = make()
    kit.run(
        Fence(Step.POLLED),
        LostAnswer(committed=False),
        LostAnswer(committed=True, turn=2),
        Rebalance(Step.WRITTEN, 3, to_another=True),
    )
    kit.run()
    check(kit)
