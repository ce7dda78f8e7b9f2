"""A loop of one's own has the rules of a listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine, event, text
from tests.app.member.stage import GROUP, Stage, numbered, wait_until
from tests.app.member.test_gaps_in_the_log import transact
from tests.app.member.test_topics import recreated
from tests.crash.test_kill import commits
from tests.kafka.loops import Loop, settings

from tidegate import (
    ConfigurationError,
    Fenced,
    GroupProtocol,
    Latest,
    Limits,
    OwnLoop,
    Record,
    Span,
    StartStrategy,
    TopicPartition,
    open_ledger,
)
from tidegate.app import OutOfRange, Recreated
from tidegate.errors import (
    AlreadyDone,
    BrokerUnavailable,
    CommitRefused,
    IdentityChanged,
    ListenerStopped,
    NotCommitted,
    TransactionBroken,
)
from tidegate.ledger import Kind
from tidegate.observe import Conflicted, Event, Paused, Skipped, StoreBack, StoreLost
from tidegate.sandbox import Kafka, MariaDB, MySQL, Postgres, Proxy

PROTOCOLS = [GroupProtocol.RANGE, GroupProtocol.COOPERATIVE, GroupProtocol.CONSUMER]


@pytest.fixture
def loops(stage: Stage) -> Iterator[Callable[..., Loop]]:
    """Starts loops, and ends those that still run."""
    started: list[Loop] = []

    def start(*topics: str, **options: Any) -> Loop:
        started.append(Loop(options.pop("stage", stage), *topics, **options))
        return started[-1]

    yield start
    for loop in started:
        loop._stopping.set()
    for loop in started:
        loop.thread.join(30)


Start = Callable[..., Loop]
Open = Callable[..., tuple[OwnLoop, Consumer]]


@pytest.fixture
def opened(stage: Stage) -> Iterator[Open]:
    """Makes loops that the test itself goes through, and closes them."""
    made: list[OwnLoop] = []

    def make(topic: str, protocol: GroupProtocol = GroupProtocol.COOPERATIVE, **more: Any) -> tuple[OwnLoop, Consumer]:
        kafka = settings(stage, protocol) | more
        consumer = Consumer(kafka)
        made.append(OwnLoop(consumer, stage.ledger, topic, kafka=kafka))
        return made[-1], consumer

    yield make
    for loop in made:
        loop.close()


def next_record(loop: OwnLoop, consumer: Consumer, offset: int | None = None) -> Record:
    """The next record, or the next one with an offset."""
    found: list[Record] = []

    def took() -> bool:
        record = loop.accept(consumer.poll(0.1))
        found.extend([record] if record is not None and offset in (None, record.offset) else [])
        return bool(found)

    wait_until(took, "a record")
    return found[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_record_leaves_one_row_and_the_next_loop_goes_on_behind_it(
    stage: Stage, loops: Start, protocol: GroupProtocol
) -> None:
    topic = stage.topic(2)
    for partition in (0, 1):
        stage.send(topic, numbered(20), partition=partition)
    first = loops(topic, protocol=protocol)
    first.until(lambda: len(stage.rows()) == 40)
    first.stop()
    assert all(row.owner is None for row in stage.ledger.read(GROUP).positions.values())
    stage.send(topic, ["on"])
    second = loops(topic, protocol=protocol)
    second.until(lambda: len(stage.rows()) == 41)
    second.stop()
    assert stage.offsets(partition=0) == list(range(21))
    assert stage.offsets(partition=1) == list(range(20))
    assert all(row.identity.topic_id for row in stage.ledger.read(GROUP).positions.values())
    stage.verify()


# Topics


def test_a_topic_recreated_between_two_runs_stops_the_loop(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    first = loops(topic)
    first.until(lambda: len(stage.rows()) == 5)
    first.stop()
    recreated(stage, topic, numbered(9, first=100))
    with pytest.raises(IdentityChanged, match="recreated as"):
        loops(topic).ended()
    assert stage.offsets() == list(range(5))
    assert stage.position(TopicPartition(topic, 0)).next_offset == 5


def test_by_policy_a_topic_recreated_between_two_runs_begins_again(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    first = loops(topic)
    first.until(lambda: len(stage.rows()) == 5)
    first.stop()
    recreated(stage, topic, numbered(9, first=100))
    second = loops(topic, recreated="restart")
    second.until(lambda: len(stage.rows()) == 14)
    second.stop()
    assert stage.payloads() == numbered(5) + numbered(9, first=100)
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [3, 9], ids=["shorter", "longer"])
def test_a_topic_recreated_under_a_running_loop_stops_it(
    stage: Stage, loops: Start, protocol: GroupProtocol, count: int
) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    loop = loops(topic, protocol=protocol)
    loop.until(lambda: len(stage.rows()) == 5)
    recreated(stage, topic, numbered(count, first=100))
    with pytest.raises(IdentityChanged, match="recreated as"):
        loop.ended()
    assert stage.payloads() == numbered(5)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [3, 9], ids=["shorter", "longer"])
def test_by_policy_a_topic_recreated_under_a_running_loop_begins_again(
    stage: Stage, loops: Start, protocol: GroupProtocol, count: int
) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    loop = loops(topic, protocol=protocol, recreated=Recreated.RESTART)
    loop.until(lambda: len(stage.rows()) == 5)
    recreated(stage, topic, numbered(count, first=100))
    loop.until(lambda: len(stage.rows()) == 5 + count)
    loop.stop()
    assert stage.payloads() == numbered(5) + numbered(count, first=100)
    stage.verify()


def behind_retention(stage: Stage) -> TopicPartition:
    """A partition whose position is 10, and whose log begins at 25 and ends at 30."""
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(30))
    stage.ledger.edit(GROUP, {tp: 10})
    stage.delete_records(tp, before=25)
    return tp


def test_a_loop_that_retention_has_passed_stops_and_says_what_was_lost(stage: Stage, loops: Start) -> None:
    tp = behind_retention(stage)
    with pytest.raises(ListenerStopped) as stopped:
        loops(tp.topic).ended()
    for part in (GROUP, str(tp), "offsets 10 to 24 are gone", "move the position to 25"):
        assert part in str(stopped.value)
    assert stage.position(tp).next_offset == 10
    assert stage.position(tp).owner is None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_by_policy_the_loss_is_journalled_and_the_loop_goes_on(
    stage: Stage, loops: Start, protocol: GroupProtocol
) -> None:
    tp = behind_retention(stage)
    loop = loops(tp.topic, protocol=protocol, out_of_range="skip")
    loop.until(lambda: len(stage.rows()) == 5)
    loop.stop()
    assert stage.offsets() == [*range(25, 30)]
    (loss,) = stage.journal(tp, Kind.LOSS)
    assert (loss.start, loss.end) == (10, 25)
    assert [event.kind for event in loop.told(Skipped)] == ["loss"]
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_loss_in_one_partition_does_not_disturb_the_others(
    stage: Stage, loops: Start, protocol: GroupProtocol
) -> None:
    topic = stage.topic(3)
    gone = TopicPartition(topic, 1)
    for partition in range(3):
        stage.send(topic, numbered(30), partition=partition)
    stage.delete_records(gone, before=20)
    stage.ledger.edit(GROUP, {gone: 10})
    loop = loops(topic, protocol=protocol, out_of_range=OutOfRange.SKIP)
    loop.until(lambda: len(stage.rows()) == 70)
    loop.stop()
    assert stage.offsets(partition=0) == stage.offsets(partition=2) == list(range(30))
    assert stage.offsets(partition=1) == list(range(20, 30))
    stage.verify()


def test_a_position_behind_the_end_of_the_log_stops_the_loop(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 50})
    with pytest.raises(ListenerStopped, match="position is 50, but the log ends at 10"):
        loops(topic, out_of_range=OutOfRange.SKIP).ended()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_position_reaches_the_end_of_a_log_that_ends_in_aborted_records(
    stage: Stage, opened: Open, protocol: GroupProtocol
) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    committed = transact(stage, topic, [True, False, True, False, False])
    loop, consumer = opened(topic, protocol, **{"enable.partition.eof": True})

    def reached() -> bool:
        record = loop.accept(consumer.poll(0.1))
        if record is not None:
            with loop.transaction(record) as tx:
                stage.write([record], tx)
        return (
            stage.position(tp).next_offset == stage.log_end(tp) if tp in stage.ledger.read(GROUP).positions else False
        )

    wait_until(reached, "the position at the log's end")
    assert stage.payloads() == committed
    stage.send(topic, ["on"])
    assert next_record(loop, consumer).offset == 20
    stage.verify()


def test_partitions_that_are_added_are_read_from_their_beginning(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, ["before"])
    loop = loops(topic, start=Latest())
    loop.until(lambda: TopicPartition(topic, 0) in stage.ledger.read(GROUP).positions)
    stage.add_partitions(topic, 2)
    stage.send(topic, numbered(5), partition=1)
    loop.until(lambda: len(stage.rows()) == 5)
    loop.stop()
    assert stage.offsets(partition=1) == list(range(5))


def test_a_deployment_forces_its_start_once(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    for expected in (5, 10, 11):
        if expected == 11:
            stage.send(topic, ["on"])
        start = StartStrategy(deployment=None if expected == 5 else "once more")
        loop = loops(topic, start=start)
        loop.until(lambda: len(stage.rows()) == expected)  # noqa: B023 - used at once
        loop.stop()
    assert stage.offsets() == [*range(5), *range(6)]


# Operators


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_paused_group_is_not_read_on_and_goes_on_where_it_was(
    stage: Stage, loops: Start, protocol: GroupProtocol
) -> None:
    topic = stage.topic(2)
    loop = loops(topic, protocol=protocol)
    for partition in (0, 1):
        stage.send(topic, numbered(5), partition=partition)
    loop.until(lambda: len(stage.rows()) == 10)
    stage.ledger.pause(GROUP)
    loop.until(lambda: loop.told(Paused), "a pause")
    for partition in (0, 1):
        stage.send(topic, numbered(5, first=5), partition=partition)
    late = loops(topic, protocol=protocol)  # which has a partition, and finds the group paused
    late.until(lambda: late.told(Paused), "a pause")
    late.stop()  # and its partition comes back
    assert not late.handed
    assert len(stage.rows()) == 10
    stage.ledger.resume(GROUP)
    loop.until(lambda: len(stage.rows()) == 20)
    loop.stop()
    for partition in (0, 1):
        assert stage.offsets(partition=partition) == list(range(10))
    stage.verify()


def test_a_busy_group_that_is_paused_stops_within_seconds_and_loses_nothing(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(600))
    loop = loops(topic)
    loop.until(stage.rows)
    stage.ledger.pause(GROUP)
    loop.until(lambda: loop.told(Paused), "a pause")
    done = len(loop.handed)
    assert done < 600, "it was over before the pause"
    wait_until(lambda: len(stage.rows()) == len(loop.handed))
    stage.ledger.resume(GROUP)
    loop.until(lambda: len(stage.rows()) == 600)
    loop.stop()
    assert stage.offsets() == list(range(600))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_edit_reaches_an_idle_loop(stage: Stage, loops: Start, protocol: GroupProtocol) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(10))
    loop = loops(topic, protocol=protocol)
    loop.until(lambda: len(stage.rows()) == 10)
    stage.ledger.edit(GROUP, {TopicPartition(topic, 0): 4})
    loop.until(lambda: len(stage.rows()) == 16)
    loop.stop()
    assert stage.offsets() == [*range(10), *range(4, 10)]
    stage.verify()


def test_a_record_from_before_an_edit_is_fenced_and_what_lies_in_front_of_it_is_read(
    stage: Stage, opened: Open
) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    stage.ledger.edit(GROUP, {tp: 5})
    loop, consumer = opened(topic)
    held = next_record(loop, consumer)
    stage.ledger.edit(GROUP, {tp: 2})
    again = next_record(loop, consumer, offset=2)
    with pytest.raises(Fenced, match="Drop the record"), loop.transaction(held):
        pytest.fail("it was let in")
    with loop.transaction(again) as tx:
        stage.write([again], tx)
    assert stage.position(tp).next_offset == 3
    stage.verify()


# Answers that are lost


@pytest.fixture(params=["mariadb", "mysql"])
def line(
    kafka: Kafka, request: pytest.FixtureRequest, stages: Callable[..., Stage]
) -> Iterator[tuple[Stage, Proxy, Any]]:
    """A stage, and a ledger of the same tables behind a proxy."""
    limits = Limits(hold=1.0, lock_wait=2.0)
    server: MariaDB | MySQL = request.getfixturevalue(request.param)
    stage = stages(kafka.bootstrap, server.url, limits)
    with Proxy(server.host, server.port) as proxy:
        ledger = open_ledger(server.url_for(port=proxy.port), prefix=f"{stage.name}_", limits=limits)
        yield stage, proxy, ledger
        ledger.close()


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_commit_on_its_way_that_is_lost_leaves_each_effect_once(
    line: tuple[Stage, Proxy, Any], loops: Start, lost: str
) -> None:
    stage, proxy, ledger = line
    topic = stage.topic()
    stage.send(topic, numbered(10))
    traps: list[Any] = []

    def inside(record: Record) -> None:
        if record.offset == 4 and not traps:
            trap = proxy.swallow_one_reply if lost == "answer" else proxy.swallow_one_request
            traps.append(trap(commits))

    loop = loops(topic, stage=stage, ledger=ledger, inside=inside)
    loop.until(lambda: len(stage.rows()) == 10)
    loop.stop()
    assert traps[0].fired
    assert stage.offsets() == list(range(10))
    assert [type(error) for error in loop.ledger_errors] == ([] if lost == "answer" else [NotCommitted])
    stage.verify()


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_database_that_stays_away_after_a_commit_is_waited_for_and_asked_what_became_of_it(
    line: tuple[Stage, Proxy, Any], loops: Start, lost: str
) -> None:
    stage, proxy, ledger = line
    topic = stage.topic()
    stage.send(topic, numbered(10))
    traps: list[Any] = []

    def inside(record: Record) -> None:
        if record.offset == 4 and not traps:
            trap = proxy.swallow_one_reply if lost == "answer" else proxy.swallow_one_request
            traps.append(trap(commits))
            cutter = threading.Thread(target=lambda: (traps[0].wait(30), proxy.cut()))
            cutter.start()

    loop = loops(topic, stage=stage, ledger=ledger, inside=inside)
    loop.until(lambda: loop.told(StoreLost), "an outage")
    proxy.restore()
    loop.until(lambda: len(stage.rows()) == 10)
    stage.send(topic, ["on"])
    loop.until(lambda: len(stage.rows()) == 11)
    loop.stop()
    assert stage.offsets() == list(range(11))
    assert loop.told(StoreBack)
    stage.verify()


def test_a_database_that_is_away_when_partitions_are_assigned_is_waited_for(
    line: tuple[Stage, Proxy, Any], loops: Start
) -> None:
    stage, proxy, ledger = line
    topic = stage.topic(2)
    for partition in (0, 1):
        stage.send(topic, numbered(5), partition=partition)
    proxy.cut()
    loop = loops(topic, stage=stage, ledger=ledger)
    loop.until(lambda: loop.told(StoreLost), "an outage")
    assert not loop.handed
    proxy.restore()
    loop.until(lambda: len(stage.rows()) == 10)
    loop.stop()
    assert stage.offsets(partition=0) == stage.offsets(partition=1) == list(range(5))
    assert [type(event) for event in loop.events if isinstance(event, StoreLost | StoreBack)] == [StoreLost, StoreBack]
    stage.verify()


def test_a_database_that_goes_away_under_a_running_loop_is_waited_for(
    line: tuple[Stage, Proxy, Any], loops: Start
) -> None:
    stage, proxy, ledger = line
    topic = stage.topic()
    stage.send(topic, numbered(5))
    loop = loops(topic, stage=stage, ledger=ledger)
    loop.until(lambda: len(stage.rows()) == 5)
    proxy.cut()
    stage.send(topic, numbered(5, first=5))
    loop.until(lambda: loop.told(StoreLost), "an outage")
    proxy.restore()
    loop.until(lambda: len(stage.rows()) == 10)
    loop.stop()
    assert stage.offsets() == list(range(10))
    stage.verify()


def test_a_database_that_goes_away_in_the_middle_of_a_block_is_waited_for(
    line: tuple[Stage, Proxy, Any], loops: Start
) -> None:
    stage, proxy, ledger = line
    topic = stage.topic()
    stage.send(topic, numbered(10))
    cuts: list[int] = []

    def inside(record: Record) -> None:
        if record.offset == 4 and not cuts:
            cuts.append(record.offset)
            proxy.cut()

    loop = loops(topic, stage=stage, ledger=ledger, inside=inside)
    loop.until(lambda: loop.told(StoreLost), "an outage")
    proxy.restore()
    loop.until(lambda: len(stage.rows()) == 10)
    loop.stop()
    assert stage.offsets() == list(range(10))
    assert [type(error) for error in loop.ledger_errors] == [NotCommitted]
    stage.verify()


def test_work_that_was_done_before_is_stepped_over(stage: Stage, opened: Open) -> None:
    """As when COMMIT was carried out although a locking read had not shown it: the token in the row says so."""
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(3))
    loop, consumer = opened(topic)
    record = next_record(loop, consumer)
    mine = {tp: stage.position(tp).claim(GROUP)}
    stage.ledger.transact(mine, [Span(tp, 0, 1, 1)], lambda tx: stage.write([record], tx))
    with pytest.raises(AlreadyDone), loop.transaction(record):
        pytest.fail("it was let in")
    record = next_record(loop, consumer)
    with loop.transaction(record) as tx:
        stage.write([record], tx)
    assert stage.offsets() == [0, 1]
    stage.verify()


# What users do


def test_a_block_that_ends_its_transaction_stops_the_loop(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(3))
    loop, consumer = opened(topic)
    with pytest.raises(TransactionBroken), loop.transaction(next_record(loop, consumer)) as tx:
        tx.connection.rollback()
    with pytest.raises(TransactionBroken):
        loop.accept(None)
    assert stage.position(TopicPartition(topic, 0)).next_offset == 0


def test_an_error_that_the_client_cannot_recover_from_names_the_group(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(3))
    first, polled = opened(topic, **{"group.instance.id": "one and the same"})
    next_record(first, polled)
    second, other = opened(topic, **{"group.instance.id": "one and the same"})
    next_record(second, other)
    with pytest.raises(BrokerUnavailable, match=f"group {GROUP!r}: the consumer of .* cannot go on.*start again"):
        wait_until(lambda: first.accept(polled.poll(0.1)) is first)  # for ever


def test_an_exception_in_the_block_rolls_back_and_the_record_is_read_again(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    loop, consumer = opened(topic)
    for offset in (0, 0, 0):
        record = next_record(loop, consumer)
        assert record.offset == offset
        with pytest.raises(ZeroDivisionError), loop.transaction(record) as tx:
            stage.write([record], tx)
            raise ZeroDivisionError
    for offset in range(5):
        record = next_record(loop, consumer)
        assert record.offset == offset
        with loop.transaction(record) as tx:
            stage.write([record], tx)
    assert stage.offsets() == list(range(5))


def test_messages_that_were_consumed_together_are_not_used_after_one_of_them_failed(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(20))
    loop, consumer = opened(topic)
    failures = 0

    def took() -> bool:
        nonlocal failures
        for message in consumer.consume(7, 0.2) or [None]:
            record = loop.accept(message)
            if record is None:
                continue
            try:
                with loop.transaction(record) as tx:
                    stage.write([record], tx)
                    if record.offset in (1, 9) and failures < 4:
                        failures += 1
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
        return len(stage.rows()) == 20

    wait_until(took)
    assert failures == 4
    assert stage.offsets() == list(range(20))
    stage.verify()


def test_a_record_that_was_accepted_and_left_out_is_missed(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(3))
    loop, consumer = opened(topic)
    first, second, third = (next_record(loop, consumer) for _ in range(3))
    for wrong in [(second,), (first, third), (second, first), (first, first)]:
        with (
            pytest.raises(ConfigurationError, match="Pass every accepted record to a transaction, in order"),
            loop.transaction(*wrong),
        ):
            pytest.fail("it was let in")
    with loop.transaction(first, second) as tx:
        stage.write([first, second], tx)
    with loop.transaction(third) as tx:
        stage.write([third], tx)
    with pytest.raises(Fenced, match="Drop the record"), loop.transaction(third):
        pytest.fail("it was let in")
    assert stage.offsets() == [0, 1, 2]
    stage.verify()


def test_records_of_several_partitions_go_into_one_transaction(stage: Stage, opened: Open) -> None:
    topic = stage.topic(3)
    for partition in range(3):
        stage.send(topic, numbered(10), partition=partition)
    loop, consumer = opened(topic)
    for attempt in range(6):
        records = [next_record(loop, consumer) for _ in range(6)]
        try:
            with loop.transaction(*records) as tx:
                stage.write(records, tx)
                if attempt == 2:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert len(stage.rows()) == 12
    for partition in range(3):
        assert stage.offsets(partition=partition) == list(range(10))
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rebalance_in_the_middle_of_a_block_commits_what_is_still_ours(
    stage: Stage, loops: Start, opened: Open, protocol: GroupProtocol
) -> None:
    topic = stage.topic(2)
    for partition in (0, 1):
        stage.send(topic, numbered(10), partition=partition)
    loop, consumer = opened(topic, protocol)
    record = next_record(loop, consumer)
    second: list[Loop] = []
    with loop.transaction(record) as tx:
        stage.write([record], tx)
        second.append(loops(topic, protocol=protocol))
        seen: list[int] = []
        wait_until(lambda: (consumer.poll(0.1), seen.append(len(consumer.assignment())), 1 in seen)[-1], "a rebalance")
    loop.close()
    second[0].until(lambda: len(stage.rows()) == 20)
    second[0].stop()
    for partition in (0, 1):
        assert sorted(stage.offsets(partition=partition)) == list(range(10))
    stage.verify()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_loops_and_a_listener_share_a_group(stage: Stage, loops: Start, protocol: GroupProtocol) -> None:
    topic = stage.topic(4)
    first = loops(topic, protocol=protocol)
    for partition in range(4):
        stage.send(topic, numbered(50), partition=partition)
    first.until(stage.rows)
    second = loops(topic, protocol=protocol)
    second.until(lambda: second.handed or len(stage.rows()) == 200)
    listener = stage.start(topic, protocol=protocol)
    for partition in range(4):
        stage.send(topic, numbered(50, first=50), partition=partition)
    wait_until(lambda: len(stage.rows()) > 200)
    first.stop()
    wait_until(lambda: len(stage.rows()) == 400)
    second.stop()
    listener.stop()
    for partition in range(4):
        assert stage.offsets(partition=partition) == list(range(100))
    stage.verify()


def test_a_partition_that_another_owner_has_taken_is_taken_back_after_a_while(stage: Stage, loops: Start) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    loop = loops(topic, session_timeout=1)
    stage.send(topic, numbered(5))
    loop.until(lambda: len(stage.rows()) == 5)
    stage.ledger.claim(GROUP, [tp])
    stage.send(topic, numbered(5, first=5))
    loop.until(lambda: len(stage.rows()) == 10)
    loop.stop()
    assert stage.offsets() == list(range(10))
    stage.verify()


# Arguments


def test_what_would_break_the_promise_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    good = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "billing",
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
    }
    ledger = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    consumer = Consumer(good)

    def refused(match: str, *, without: str | None = None, plus: dict[str, Any] | None = None, **options: Any) -> None:
        mapping = {key: value for key, value in good.items() if key != without} | (plus or {})
        given = {"consumer": consumer, "ledger": ledger, "topics": ["orders"], "kafka": mapping, **options}
        with pytest.raises(ConfigurationError, match=match):
            OwnLoop(**given)

    refused("enable.auto.commit=false", without="enable.auto.commit")
    refused("enable.auto.commit=false", plus={"enable.auto.commit": "true"})
    refused("auto.offset.reset=error", without="auto.offset.reset")
    refused("auto.offset.reset=error", plus={"auto.offset.reset": "earliest"})
    refused("auto.offset.reset=error", plus={"topic.auto.offset.reset": "latest"})
    refused("isolation.level=read_committed", plus={"isolation.level": "read_uncommitted"})
    refused("default.topic.config", plus={"default.topic.config": {"auto.offset.reset": "latest"}})
    refused("group.id", without="group.id")
    refused("mapping", kafka="localhost:9092")
    refused("ledger: expected a Ledger", ledger=f"sqlite:///{tmp_path / 'ledger.db'}")
    refused("Consumer", consumer=good)
    refused("out_of_range: expected one of 'stop', 'skip'", out_of_range="skipp")
    refused("recreated: expected one of 'stop', 'restart'", recreated="again")
    refused("start", start="soonest")
    refused("session_timeout", session_timeout="soon")
    refused("session_timeout", session_timeout=0)
    refused("topic", topics=[])
    refused("topic", topics=["or ders"])
    consumer.close()


def test_the_settings_of_another_cluster_are_noticed_before_anything_is_stored(stage: Stage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(3))
    kafka = settings(stage)
    with Kafka() as other:
        consumer = Consumer(kafka)
        elsewhere = kafka | {"bootstrap.servers": other.bootstrap}
        admin = AdminClient({"bootstrap.servers": other.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        loop = OwnLoop(consumer, stage.ledger, topic, kafka=elsewhere)
        with pytest.raises(ConfigurationError, match="the mapping that the consumer was created with"):
            wait_until(lambda: loop.accept(consumer.poll(0.1)))
        loop.close()
    assert not stage.ledger.read(GROUP).positions


def test_the_rest_of_the_consumers_settings_is_no_hindrance(stage: Stage, opened: Open) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(1))
    told: list[Any] = []
    more = {"on_commit": told.append, "error_cb": told.append, "stats_cb": told.append}
    more |= {"statistics.interval.ms": 100, "fetch.min.bytes": 1, "max.poll.interval.ms": 60_000}
    assert next_record(*opened(topic, **more)).offset == 0


# Conflicts, and what is refused at COMMIT


def test_a_conflict_is_told_and_is_no_outage_and_the_record_comes_again(
    kafka: Kafka, stages: Callable[..., Stage], postgres: Postgres
) -> None:
    stage = stages(kafka.bootstrap, postgres.url)
    topic = stage.topic()
    stage.send(topic, numbered(1))
    engine = create_engine(postgres.url, isolation_level="REPEATABLE READ")
    bump = text(f"UPDATE {stage.name}_hits SET n = n + 1")
    with engine.begin() as conn:
        conn.execute(text(f"CREATE TABLE {stage.name}_hits (n INT)"))
        conn.execute(text(f"INSERT INTO {stage.name}_hits VALUES (0)"))
    events: list[Event] = []
    config = settings(stage, GroupProtocol.COOPERATIVE)
    consumer = Consumer(config)
    ledger = open_ledger(engine, prefix=f"{stage.name}_")
    loop = OwnLoop(consumer, ledger, topic, kafka=config, observers=[events.append])
    record = next_record(loop, consumer)
    with pytest.raises(NotCommitted), loop.transaction(record) as tx:
        with engine.begin() as conn:
            conn.execute(bump)
        tx.execute(bump)
    with loop.transaction(next_record(loop, consumer)) as tx:
        tx.execute(bump)
    loop.close()
    ledger.close()
    assert [type(event) for event in events if isinstance(event, Conflicted | StoreLost)] == [Conflicted]
    with engine.connect() as conn:
        assert conn.execute(text(f"SELECT n FROM {stage.name}_hits")).scalar() == 2
    engine.dispose()
    stage.verify()


def test_what_is_refused_at_commit_is_the_blocks_own_error_and_the_record_comes_again(
    stage: Stage, opened: Open
) -> None:
    engine = stage.ledger.engine  # type: ignore[attr-defined]
    event.listen(engine, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    engine.dispose()
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE parents (id INTEGER PRIMARY KEY)"))
        conn.execute(text("CREATE TABLE children (id INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"))
    topic = stage.topic()
    stage.send(topic, numbered(1))
    loop, consumer = opened(topic)
    record = next_record(loop, consumer)
    with pytest.raises(CommitRefused), loop.transaction(record) as tx:
        tx.execute(text("INSERT INTO children VALUES (1)"))
    assert next_record(loop, consumer) == record
    with loop.transaction(record) as tx:
        tx.execute(text("INSERT INTO parents VALUES (1)"))
        tx.execute(text("INSERT INTO children VALUES (1)"))
    assert stage.position(TopicPartition(topic, 0)).next_offset == 1
    stage.verify()
