"""When the store can be told of many changes in the words of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidegate.core.journal import Kind
from tidegate.core.positions import Change, Identity, Position
from tidegate.core.records import TopicPartition
from tidegate.ledger.sql.ledger import Handover

ROWS = {
    tp: Position(tp, 10 * tp.partition, tp.partition, "before", "token", 2 + tp.partition, Identity("cluster", "topic"))
    for tp in (TopicPartition("orders", number) for number in range(3))
}


def handover(changes: list[Change]) -> Handover | None:
    return Handover.of(changes, ROWS)


def test_rows_that_one_owner_claims_are_handed_over_whatever_their_offsets_and_epochs() -> None:
    assert handover([row.claimed("after") for row in ROWS.values()]) == (Kind.CLAIM, "after", "after")


def test_rows_that_their_owner_releases_are_handed_over() -> None:
    assert handover([row.released() for row in ROWS.values()]) == (Kind.RELEASE, None, "before")


def test_no_change_is_no_handover() -> None:
    assert handover([]) is None


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(lambda row: row.claimed("another"), id="another owner"),
        pytest.param(lambda row: row.released(), id="released"),
        pytest.param(lambda row: row.edited(7, None), id="edited"),
        pytest.param(lambda row: row.edited(7, None).then(row.claimed("after")), id="edited before"),
        pytest.param(lambda row: row._replace(identity=Identity("cluster", "new")).claimed("after"), id="identity"),
        pytest.param(lambda row: row._replace(deployment="new").claimed("after"), id="deployment"),
    ],
)
def test_one_row_to_which_something_else_happens_is_enough_to_spell_out_all(last: Callable[[Position], Change]) -> None:
    *others, row = ROWS.values()
    assert handover([*(other.claimed("after") for other in others), last(row)]) is None


def test_edits_are_always_spelled_out() -> None:
    assert handover([row.edited(7, None) for row in ROWS.values()]) is None
