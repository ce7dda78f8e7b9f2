"""How groups are doing, on a real broker."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event
from tests.app.member.stage import GROUP, Stage, numbered, wait_until
from tests.ports import refused_port

from tidegate import ConfigurationError, Ledger, Span, TopicPartition, open_ledger
from tidegate.core.records import query_source
from tidegate.errors import ChangeRefused
from tidegate.kafka.cluster import Survey
from tidegate.ledger.sql.ledger import SqlLedger
from tidegate.operate import Operator, Overview, State, plain

from .leading import led_topic

NOWHERE = Survey({"bootstrap.servers": "127.0.0.1:1"}, seconds=0.3)


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


@contextmanager
def counted(ledger: Ledger[Any]) -> Iterator[list[str]]:
    """The statements that a SQL ledger runs."""
    assert isinstance(ledger, SqlLedger)
    engine: Engine = ledger.engine
    seen: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_a_group_is_shown_side_by_side_with_its_logs(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 3)
    now = time.time()
    stage.send(topic, numbered(10), partition=0, timestamp=int((now - 7200) * 1000))
    stage.send(topic, numbered(4), partition=1)
    first, second = partitions(topic, 2)
    claims = stage.ledger.claim(GROUP, [first, second], 0)
    stage.ledger.transact(claims, [Span(first, 0, 4, 4), Span(second, 0, 4, 4)])
    seen = Overview(stage.ledger, survey).group(GROUP)
    assert (seen.group, seen.paused, seen.owners, seen.kafka, seen.members) == (GROUP, False, 1, None, ())
    assert seen.unstored == (f"{topic}[2]",), "a partition that nobody has claimed"
    one, two = seen.partitions
    assert (one.topic, one.partition, one.committed, one.current) == (topic, 0, 4, None)
    assert (one.log_begin, one.stable_end, one.log_end, one.lag_records) == (0, 10, 10, 6)
    assert one.lag_seconds == pytest.approx(7200, abs=60), "the age of the oldest record that was not read"
    assert (one.owner, one.epoch) == (claims[first].owner, 1)
    assert (two.lag_records, two.lag_seconds, two.state) == (0, 0.0, State.OK)
    assert (seen.lag_records, seen.lag_seconds) == (6, one.lag_seconds)
    shown = json.loads(json.dumps(plain(seen)))
    assert shown["partitions"][0]["updated_at"].endswith("Z")
    assert shown["partitions"][0]["state"] == one.state.value


def test_an_open_transaction_holds_the_stable_end_back_and_an_aborted_one_is_no_lag(
    stage: Stage, survey: Survey
) -> None:
    topic = led_topic(stage, survey)
    (tp,) = partitions(topic, 1)
    stage.send(topic, numbered(3))
    stage.ledger.claim(GROUP, [tp], 3)
    producer = stage.transactions()
    producer.begin_transaction()
    producer.produce(topic, b"later", partition=0)
    producer.flush(20)
    (seen,) = Overview(stage.ledger, survey).group(GROUP).partitions
    assert (seen.stable_end, seen.log_end, seen.lag_records) == (3, 4, 0)
    producer.abort_transaction(20)
    wait_until(lambda: survey.stable_ends([topic]) == {tp: 5}, "the marker, which a broker may write a moment later")
    (seen,) = Overview(stage.ledger, survey).group(GROUP).partitions
    assert (seen.stable_end, seen.log_end, seen.lag_records) == (5, 5, 2)
    assert seen.lag_seconds == 0.0, "there is no record that was not read"


def test_records_that_wait_for_a_window_with_an_owner_are_a_stall(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 2)
    stage.send(topic, numbered(5), partition=0)
    stage.ledger.claim(GROUP, partitions(topic, 2), 0)
    assert Overview(stage.ledger, survey).group(GROUP).state is State.OK, "it has only begun"
    later = Overview(stage.ledger, survey, clock=lambda: time.time() + 120)
    seen = later.group(GROUP)
    assert [each.state for each in seen.partitions] == [State.STALLED, State.OK]
    assert seen.state is State.STALLED
    assert [each.state for each in later.groups().groups] == [State.STALLED]
    patient = Overview(stage.ledger, survey, window=600, clock=lambda: time.time() + 120)
    assert patient.group(GROUP).state is State.OK


def test_a_position_that_moves_while_its_end_runs_away_is_lagging_by_the_journals_account(
    stage: Stage, survey: Survey
) -> None:
    topic = led_topic(stage, survey)
    (tp,) = partitions(topic, 1)
    before = int((time.time() - 60) * 1000)
    stage.send(topic, numbered(10), timestamp=before)
    claims = stage.ledger.claim(GROUP, [tp], 0)
    claimed = stage.journal(tp)[-1].at
    assert claimed is not None
    wait_until(lambda: time.time() > claimed.timestamp() + 0.05)
    since = time.time()
    stage.send(topic, numbered(1000), timestamp=int((since + 1) * 1000))
    stage.ledger.transact(claims, [Span(tp, 0, 100, 100)])
    now = time.time()
    seen = Overview(stage.ledger, survey, window=now - since, clock=lambda: now).group(GROUP)
    assert seen.state is State.LAGGING
    stage.ledger.transact(claims, [Span(tp, 100, 1010, 910)])
    later = time.time()
    seen = Overview(stage.ledger, survey, window=later - since, clock=lambda: later).group(GROUP)
    assert seen.state is State.OK


def test_a_position_that_moves_while_its_end_runs_away_is_lagging_as_one_looks_on(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    (tp,) = partitions(topic, 1)
    claims = stage.ledger.claim(GROUP, [tp], 0)
    overview = Overview(stage.ledger, survey)
    assert overview.group(GROUP).state is State.OK
    assert overview.groups().groups[0].state is State.OK
    stage.send(topic, numbered(500))
    stage.ledger.transact(claims, [Span(tp, 0, 100, 100)])
    assert overview.group(GROUP).state is State.LAGGING
    assert overview.groups().groups[0].state is State.LAGGING
    stage.ledger.transact(claims, [Span(tp, 100, 500, 400)])
    assert overview.group(GROUP).state is State.OK


def test_stopped_paused_and_rewound_are_told_apart(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    (tp,) = partitions(topic, 1)
    stage.send(topic, numbered(10))
    claims = stage.ledger.claim(GROUP, [tp], 10)
    overview = Overview(stage.ledger, survey)
    stage.ledger.edit(GROUP, {tp: 2})
    assert overview.group(GROUP).state is State.REWOUND, "its owner is about to claim again"
    claims = stage.ledger.claim(GROUP, [tp])
    stage.ledger.transact(claims, [Span(tp, 2, 8, 6)])
    assert overview.group(GROUP).state is State.REWOUND
    stage.ledger.transact(claims, [Span(tp, 8, 10, 2)])
    assert overview.group(GROUP).state is State.OK
    stage.ledger.pause(GROUP)
    assert overview.group(GROUP).state is State.PAUSED
    assert overview.groups().groups[0].state is State.PAUSED
    stage.ledger.resume(GROUP)
    stage.ledger.release(claims)
    later = Overview(stage.ledger, survey, clock=lambda: time.time() + 30)
    assert later.group(GROUP).state is State.IDLE, "nothing is left to read"
    assert overview.groups().groups[0].state is State.IDLE
    stage.send(topic, numbered(1))
    assert later.group(GROUP).state is State.STOPPED
    assert overview.groups().groups[0].state is State.STOPPED


@pytest.mark.parametrize("asked", [None, NOWHERE], ids=["not asked", "unreachable"])
def test_without_kafka_there_is_what_the_ledger_knows(stage: Stage, asked: Survey | None) -> None:
    claims = stage.ledger.claim(GROUP, partitions("orders", 2), 7)
    stage.ledger.release({tp: claim for tp, claim in claims.items() if tp.partition == 1})
    overview = Overview(stage.ledger, asked)
    seen = overview.group(GROUP)
    assert seen.kafka is not None
    assert ("not asked" if asked is None else "cannot be asked") in seen.kafka
    assert [(each.committed, each.log_end, each.lag_records, each.state) for each in seen.partitions] == [
        (7, None, None, State.UNKNOWN),
        (7, None, None, State.STOPPED),
    ]
    assert (seen.lag_records, seen.lag_seconds) == (None, None)
    summaries = overview.groups()
    assert summaries.kafka == seen.kafka
    assert [(each.group, each.lag_records, each.owned) for each in summaries.groups] == [(GROUP, None, 1)]


def test_a_topic_that_was_deleted_leaves_its_columns_empty(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey)
    stage.ledger.claim(GROUP, [TopicPartition(topic, 0), TopicPartition("gone", 0)], 0)
    seen = Overview(stage.ledger, survey).group(GROUP)
    assert {each.topic: each.lag_records for each in seen.partitions} == {topic: 0, "gone": None}
    with counted(stage.ledger) as statements:
        (summary,) = Overview(stage.ledger, survey).groups().groups
    assert summary.lag_records is None
    assert len(statements) == 2, "the totals and the counts of letters; it would not help to read the positions"


def test_summaries_add_up_the_lag_of_whole_groups_also_of_those_that_lack_positions(
    stage: Stage, survey: Survey
) -> None:
    topic = led_topic(stage, survey, 2)
    stage.send(topic, numbered(10), partition=0)
    stage.send(topic, numbered(20), partition=1)
    stage.ledger.claim("whole", partitions(topic, 2), 3)
    stage.ledger.claim("half", partitions(topic, 1), 4)
    stage.ledger.pause("idle")
    found = {each.group: each for each in Overview(stage.ledger, survey).groups().groups}
    assert {name: each.lag_records for name, each in found.items()} == {"whole": 24, "half": 6, "idle": None}
    assert (found["whole"].partitions, found["whole"].owned, found["whole"].topics) == (2, 2, (topic,))
    assert (found["idle"].partitions, found["idle"].state) == (0, State.PAUSED)


def test_the_number_of_queries_does_not_grow_with_groups_partitions_or_the_journal(
    stage: Stage, survey: Survey
) -> None:
    topic = led_topic(stage, survey, 20)
    for number in range(30):
        stage.ledger.claim(f"group-{number:02}", partitions(topic, 20), 0)
    overview = Overview(stage.ledger, survey)
    with counted(stage.ledger) as statements:
        assert len(overview.groups().groups) == 30
    assert len(statements) == 2, statements
    claims = stage.ledger.claim("group-07", partitions(topic, 20))
    for tp in claims:
        stage.ledger.transact(claims, [Span(tp, 0, 1, 1)])
    with counted(stage.ledger) as statements:
        assert len(overview.group("group-07").partitions) == 20
    assert len(statements) == 4, "positions, letters; and as of one moment, open entries and the newest of the journal"
    with counted(stage.ledger) as statements:
        Overview(stage.ledger, survey, clock=lambda: time.time() + 3600).group("group-07")
    assert len(statements) == 2, "nothing has happened in the window, so the journal is not asked"


class _Positions(http.server.BaseHTTPRequestHandler):
    told: Any = None

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/positions" else 404)
        self.end_headers()
        self.wfile.write(json.dumps(self.told).encode())

    def log_message(self, *_: Any) -> None:
        """Nobody needs it."""


@contextmanager
def member(told: Any) -> Iterator[str]:
    """Something that answers as the port of a consumer's metrics does."""
    handler = type("Told", (_Positions,), {"told": told})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_members_say_how_far_they_have_read(stage: Stage) -> None:
    stage.ledger.claim(GROUP, partitions("orders", 3), 0)

    def told(group: str, partition: int, current: int | None) -> dict[str, Any]:
        return {"group": group, "topic": "orders", "partition": partition, "current": current, "committed": 0}

    one = {"positions": [told(GROUP, 0, 5), told("other", 1, 99), told(GROUP, 1, 4)]}
    two = {"positions": [told(GROUP, 1, 6), told(GROUP, 2, None)]}
    nobody = f"127.0.0.1:{refused_port()}"
    with member(one) as first, member(two) as second, member(["what"]) as other:
        seen = Overview(stage.ledger).group(GROUP, members=[first, second, other, nobody])
    assert [each.current for each in seen.partitions] == [5, 6, None]
    assert seen.members == (f"{other}: it has no /positions", f"{nobody}: connection refused")
    with pytest.raises(ConfigurationError, match="not the address of a member"):
        Overview(stage.ledger).group(GROUP, members=["localhost"])


def test_a_ledger_that_has_nothing_is_shown_as_such(survey: Survey) -> None:
    with open_ledger("memory://") as ledger:
        assert Overview(ledger, survey).groups().groups == ()
        seen = Overview(ledger, survey).group("nobody")
    assert (seen.partitions, seen.lag_records, seen.state) == ((), None, State.OK)


def test_a_query_has_a_number_and_no_lag(stage: Stage, survey: Survey) -> None:
    topic = led_topic(stage, survey, 1)
    query = query_source("6ba189b4-386e-4d8e-b1fc-1c868ca3979c")
    stage.ledger.transact(stage.ledger.claim("clicks", [query]), [Span(query, 0, 1, 5, "digest")])
    stage.ledger.claim(GROUP, [TopicPartition(topic, 0)])
    overview = Overview(stage.ledger, survey)
    (shown,) = overview.group("clicks").partitions
    assert (shown.committed, shown.lag_records, shown.log_end, shown.state) == (1, None, None, State.OK)
    summaries = overview.groups()
    assert summaries.kafka is None
    clicks, group = sorted(summaries.groups, key=lambda each: each.group != "clicks")
    assert (clicks.state, clicks.lag_records, clicks.topics) == (State.OK, None, (query.topic,))
    assert (group.group, group.lag_records) == (GROUP, 0)
    stage.ledger.release(stage.ledger.claim("clicks", [query]))
    assert overview.group("clicks").state is State.STOPPED
    with pytest.raises(ChangeRefused, match="Spark decides"):
        Operator(stage.ledger, survey).rewind("clicks", query.topic, 0)
