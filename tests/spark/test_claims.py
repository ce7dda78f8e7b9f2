"""The claims of a pipeline, on a cluster and a ledger that change between two questions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.app.test_recreated_topic import ORDERS, Cluster

from tidegate import StartStrategy
from tidegate.app import OutOfRange, Recreated
from tidegate.core.policies import LogOffsets
from tidegate.core.records import TopicPartition
from tidegate.errors import IdentityChanged, LedgerUnavailable, PipelineStopped
from tidegate.kafka.claims import Claimer
from tidegate.ledger import MemoryLedger
from tidegate.spark.claims import ClaimedTopics

GROWN = TopicPartition("orders", 1)


def held_in(ledger: MemoryLedger, cluster: Any) -> ClaimedTopics:
    claimer = Claimer("etl", ledger, cluster, start=StartStrategy(), recreated=Recreated.STOP)
    return ClaimedTopics(
        "etl", ["orders"], ledger, cluster, claimer=claimer, policy=OutOfRange.SKIP, tell=lambda _: None
    )


def test_a_pipeline_that_was_replaced_claims_no_new_partition_before_it_stops() -> None:
    cluster: Any = Cluster()
    ledger = MemoryLedger()
    first, second = held_in(ledger, cluster), held_in(ledger, cluster)
    first.look()
    cluster.partitions = lambda topics: {ORDERS, GROWN}
    cluster.logs = lambda partitions, at=None: dict.fromkeys(partitions, LogOffsets(0, 5))
    second.look()
    with pytest.raises(PipelineStopped, match="was taken over"):
        first.look()
    second.look()
    assert ledger.read("etl").positions[GROWN].epoch == 1


def test_a_pipeline_that_was_replaced_claims_no_edited_partition_before_it_stops() -> None:
    cluster: Any = Cluster()
    ledger = MemoryLedger()
    cluster.partitions = lambda topics: {ORDERS, GROWN}
    cluster.logs = lambda partitions, at=None: dict.fromkeys(partitions, LogOffsets(0, 5))
    first, second = held_in(ledger, cluster), held_in(ledger, cluster)
    first.look()
    second.look()
    ledger.edit("etl", {GROWN: 2})
    with pytest.raises(PipelineStopped, match="was taken over"):
        first.look()
    assert ledger.read("etl").positions[GROWN].owner is None
    second.look()
    assert second.positions[GROWN] == 2


def test_a_pipeline_whose_claim_was_not_answered_does_not_take_itself_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster: Any = Cluster()
    cluster.logs = lambda partitions, at=None: dict.fromkeys(partitions, LogOffsets(0, 5))
    ledger = MemoryLedger()
    held = held_in(ledger, cluster)
    held.look()
    ledger.edit("etl", {ORDERS: 3})
    reclaim = ledger.reclaim

    def unanswered(*args: Any, **options: Any) -> Any:
        reclaim(*args, **options)
        raise LedgerUnavailable("the reply was lost")

    with monkeypatch.context() as patched:
        patched.setattr(ledger, "reclaim", unanswered)
        with pytest.raises(LedgerUnavailable):
            held.look()
    held.look()
    assert held.positions == {ORDERS: 3}


def test_a_topic_that_is_recreated_between_two_questions_is_not_taken_for_a_log_that_lost_records() -> None:
    cluster: Any = Cluster()
    ledger = MemoryLedger()
    held = held_in(ledger, cluster)
    held.look()
    assert held.positions == {ORDERS: 5}
    cluster.is_doomed = True
    with pytest.raises(IdentityChanged, match="was recreated"):
        held.look()
    assert ledger.read("etl").positions[ORDERS].next_offset == 5
