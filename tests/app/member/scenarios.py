"""What happens to a reader around its first start; each returns the records that its strategy promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tests.app.member.history import NOON, Topic
from tests.app.member.readers import Reader

from tidegate.core.policies import Earliest, Latest, Start, Timestamp

STARTS: list[Start] = [Earliest(), Latest(), Timestamp(NOON)]

Scenario: TypeAlias = Callable[[Reader, Topic, Start], set[str]]


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
    assert reader.has_crashed, reader.error
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


SCENARIOS: list[Scenario] = [first_start, crash_before_the_first_commit, added_partitions]


def difference(scenario: Scenario, reader: Reader, topic: Topic, start: Start) -> str | None:
    """What was read and not promised, or the other way round; ``None`` if it is the same."""
    where = f"{type(reader).__name__}, {start}, {reader.members} members"
    try:
        promised = sorted(scenario(reader, topic, start))
    except Exception as error:
        return f"{where}: {error!r}"
    finally:
        reader.end()
    seen = sorted(reader.seen())
    return None if seen == promised else f"{where}: saw {seen}, promised were {promised}"
