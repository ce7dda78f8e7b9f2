"""Offsets that hold no record: aborted transactions, their markers, compaction, and logs that are empty."""

from __future__ import annotations

from tests.app.member.stage import Stage, numbered, wait_until

from tidegate.core.records import TopicPartition


def transact(stage: Stage, topic: str, outcomes: list[bool]) -> list[str]:
    """Produce a transaction of three records for each outcome; returns the values of those that were committed."""
    producer = stage.transactions()
    committed: list[str] = []
    for number, commits in enumerate(outcomes):
        values = [f"{number}-{part}" for part in range(3)]
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction()
            committed += values
        else:
            producer.abort_transaction()
    return committed


def test_aborted_records_are_never_seen_and_the_position_ends_at_the_log_end(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    outcomes = [number % 3 != 2 for number in range(15)] + [False, False, False]
    committed = transact(stage, topic, outcomes)

    stage.catch_up(topic)

    assert stage.payloads() == committed
    assert stage.position(tp).next_offset == stage.log_end(tp) == len(outcomes) * 4
    stage.verify()


def test_lag_reaches_zero_when_a_running_member_sees_nothing_but_aborted_records(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    running = stage.start(topic)
    committed = transact(stage, topic, [True])
    wait_until(lambda: stage.payloads() == committed)

    transact(stage, topic, [False, False])

    wait_until(lambda: stage.position(tp).next_offset == stage.log_end(tp) == 12, "the position at the log's end")
    running.stop()
    assert stage.payloads() == committed


def test_a_topic_of_aborted_records_only_is_caught_up_with(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    transact(stage, topic, [False, False])

    stage.catch_up(topic)

    assert stage.rows() == []
    assert stage.position(tp).next_offset == stage.log_end(tp) == 8


def test_an_open_transaction_holds_the_position_back_until_it_is_decided(stage: Stage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    producer = stage.transactions()
    producer.begin_transaction()
    producer.produce(topic, "pending", partition=0)
    producer.flush()
    stage.send(topic, ["behind it"])

    stage.catch_up(topic)
    assert stage.rows() == []
    assert stage.position(tp).next_offset == 0

    producer.commit_transaction()
    stage.catch_up(topic)
    assert stage.payloads() == ["pending", "behind it"]
    assert stage.position(tp).next_offset == stage.log_end(tp)


def test_gaps_of_a_compacted_topic_are_stepped_over(stage: Stage) -> None:
    topic = stage.topic(
        cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001, max_compaction_lag_ms=100
    )
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(50), key="a")
    sent = 50

    def compacted() -> bool:
        nonlocal sent
        sent += len(stage.send(topic, ["roll"], key="b"))  # only segments that are not written any more are cleaned
        return len(stage.offsets_in(topic, sent)) < sent

    wait_until(compacted, "compaction")
    sent += len(stage.send(topic, numbered(5), key="c"))
    before = stage.offsets_in(topic, sent)

    stage.catch_up(topic)

    # Compaction goes on meanwhile: whatever is still there was read, and nothing that was not.
    assert set(stage.offsets_in(topic, sent)) <= set(stage.offsets()) <= set(before)
    assert stage.offsets() == sorted(set(stage.offsets()))
    assert stage.payloads()[-5:] == numbered(5)
    assert stage.position(tp).next_offset == stage.log_end(tp) == sent
    stage.verify()


def test_empty_partitions_are_caught_up_with(stage: Stage) -> None:
    topic = stage.topic(4)
    stage.send(topic, numbered(3), partition=2)

    stage.catch_up(topic)

    assert stage.payloads() == numbered(3)
    ends = [stage.position(TopicPartition(topic, number)).next_offset for number in range(4)]
    assert ends == [0, 0, 3, 0]
