"""Where each kind of reader begins, by each start strategy, with one member and with four.

A broker with Kafka's own rebalance delay (shorter, but long enough for all members to join) shares the partitions out
before anyone has read: that is when members begin with parts of a topic at the same time. Cells that do not exist: a
pipeline has one member, its driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from tests.starts.readers import KafkaOffsets, Listener, Reader, Refused, TopicToTopic
from tests.starts.topics import NOON, Topic

from tidegate.core.start import Earliest, Latest, Start, Timestamp
from tidegate.sandbox import Kafka

STARTS: list[Start] = [Earliest(), Latest(), Timestamp(NOON)]
KINDS: list[type[Reader]] = [Listener, KafkaOffsets, TopicToTopic]
AT_ONCE = 8


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with Kafka(settings={"group.initial.rebalance.delay.ms": 1500}) as server:
        yield server


def first_start(reader: Reader, topic: Topic, start: Start) -> set[str]:
    """Records that come once it has begun follow on what the strategy promises."""
    reader.start()
    reader.wait_for(reader.has_begun, "the start of every partition was stored")
    after = topic.send("after")
    reader.wait_for(lambda: after <= set(reader.seen()), "it has read on")
    reader.end()
    return topic.promised(start) | after


def crash_before_the_first_commit(reader: Reader, topic: Topic, start: Start) -> set[str]:
    """What came before the crash, and what comes until the next life, is read then."""
    reader.start(crashes=True)
    if isinstance(start, Latest):  # or it fails on the history, at once
        reader.wait_for(reader.has_begun, "the start of every partition was stored")
    first = topic.send("first")
    reader.ended()
    assert isinstance(getattr(reader.error, "__cause__", None), Refused), reader.error
    assert not reader.seen()
    meanwhile = topic.send("meanwhile")
    reader.start()
    reader.wait_for(lambda: meanwhile <= set(reader.seen()), "it has read on")
    reader.end()
    return topic.promised(start) | first | meanwhile


def added_partitions(reader: Reader, topic: Topic, start: Start) -> set[str]:
    """Partitions that the topic got later are read from their beginning, whatever the strategy."""
    promised = first_start(reader, topic, start)
    added = topic.add_partitions("added")
    reader.start()
    reader.wait_for(lambda: added <= set(reader.seen()), "it has read the new partitions")
    reader.end()
    return promised | added


@pytest.mark.parametrize("scenario", [first_start, crash_before_the_first_commit, added_partitions])
def test_exactly_the_records_that_the_strategy_promises_are_read(
    broker: Kafka, tmp_path: Path, scenario: Callable[[Reader, Topic, Start], set[str]]
) -> None:
    def cell(kind: type[Reader], start: Start, members: int) -> str | None:
        where = f"{kind.__name__}, {start}, {members} members"
        topic = Topic(broker.bootstrap)
        reader = kind(broker.bootstrap, topic, start, members, tmp_path)
        try:
            promised = scenario(reader, topic, start)
        except Exception as error:
            return f"{where}: {error!r}"
        finally:
            reader.end()
        seen = sorted(reader.seen())
        return None if seen == sorted(promised) else f"{where}: saw {seen}, promised were {sorted(promised)}"

    cells = list(product(KINDS, STARTS, (1, 4)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wrong = list(filter(None, pool.map(lambda each: cell(*each), cells)))
    assert not wrong, "\n".join(wrong)
