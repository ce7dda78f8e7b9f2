"""Where each kind of reader begins, by each start strategy, with one member and with four.

A broker with Kafka's own rebalance delay (shorter, but long enough for all members to join) shares the partitions out
before anyone has read: that is when members begin with parts of a topic at the same time. Pipelines are tried in
``tests/spark/loop/test_starts.py``; they have one member, their driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from tests.app.member.history import Topic
from tests.app.member.readers import KafkaOffsets, Listener, OwnLoops, Reader, TopicToTopic
from tests.app.member.scenarios import SCENARIOS, STARTS, Scenario, difference

from tidegate.core.policies import Start
from tidegate.sandbox import Kafka

KINDS: list[type[Reader]] = [Listener, OwnLoops, KafkaOffsets, TopicToTopic]
AT_ONCE = 8


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with Kafka(settings={"group.initial.rebalance.delay.ms": 1500}) as server:
        yield server


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exactly_the_records_that_the_strategy_promises_are_read(
    broker: Kafka, tmp_path: Path, scenario: Scenario
) -> None:
    def cell(kind: type[Reader], start: Start, members: int) -> str | None:
        topic = Topic(broker.bootstrap)
        return difference(scenario, kind(broker.bootstrap, topic, start, members, tmp_path), topic, start)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = list(filter(None, pool.map(lambda each: cell(*each), product(KINDS, STARTS, (1, 4)))))
    assert not wrong, "\n".join(wrong)
