"""What happens to a topic while a pipeline reads it."""

from __future__ import annotations

import pytest
from tests.app.member.stage import GROUP, numbered
from tests.spark.loop.stage import PipelineStage, wait_until

from tidegate.core.journal import Kind
from tidegate.core.policies import Latest, OutOfRange, Recreated, StartStrategy
from tidegate.core.records import TopicPartition
from tidegate.core.work import Span
from tidegate.errors import IdentityChanged, PipelineStopped
from tidegate.observe.events import Skipped


def test_partitions_added_while_it_runs_are_read_from_their_beginning(stage: PipelineStage) -> None:
    topic = stage.topic()
    stage.send(topic, ["before"])
    running = stage.pipe(topic, start=StartStrategy(Latest()))
    wait_until(lambda: TopicPartition(topic, 0) in stage.ledger.read(GROUP).positions, "the claim")

    stage.add_partitions(topic, 3)
    for partition in (1, 2):
        stage.send(topic, numbered(10), partition=partition)

    wait_until(lambda: len(stage.rows()) == 20, "the rows of the new partitions")
    running.stop()
    assert stage.offsets(partition=1) == stage.offsets(partition=2) == list(range(10))
    assert stage.offsets(partition=0) == []


def test_a_topic_recreated_while_it_runs_stops_it_and_nothing_old_is_read_again(stage: PipelineStage) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    running = stage.pipe(topic)
    wait_until(lambda: len(stage.rows()) == 5, "all rows")

    stage.delete_topic(topic)
    with pytest.raises(IdentityChanged, match=f"group '{GROUP}': topic '{topic}' was (deleted|recreated)"):
        running.ended()
    assert stage.position(TopicPartition(topic, 0)).owner is None

    stage.topic(name=topic)
    stage.send(topic, numbered(9, first=100))
    with pytest.raises(IdentityChanged, match="recreated"):
        stage.pipe_through(topic)
    assert stage.payloads() == numbered(5)

    stage.pipe_through(topic, recreated=Recreated.RESTART)  # whose executors know the old topic's records
    assert stage.payloads() == numbered(5) + numbered(9, first=100)
    stage.verify()


def test_retention_that_passes_its_position_stops_it_and_it_says_what_was_lost(stage: PipelineStage) -> None:
    tp = behind_retention(stage)

    with pytest.raises(PipelineStopped) as stopped:
        stage.pipe_through(tp.topic)

    for part in (GROUP, str(tp), "offsets 10 to 24 are gone", "move the position to 25"):
        assert part in str(stopped.value)
    assert stage.position(tp).next_offset == 10
    assert stage.position(tp).owner is None
    assert stage.offsets() == list(range(10))


def test_by_policy_the_loss_is_journalled_and_it_goes_on(stage: PipelineStage) -> None:
    tp = behind_retention(stage)
    told: list[object] = []

    stage.pipe_through(tp.topic, out_of_range=OutOfRange.SKIP, observers=[told.append])

    assert stage.offsets() == [*range(10), *range(25, 30)]
    (loss,) = stage.journal(tp, Kind.LOSS)
    assert (loss.start, loss.end) == (10, 25)
    assert [(event.span, event.kind) for event in told if isinstance(event, Skipped)] == [(Span(tp, 10, 25), "loss")]
    stage.verify()


def test_retention_may_pass_it_while_it_runs(stage: PipelineStage) -> None:
    topic = stage.topic()
    tp = TopicPartition(topic, 0)
    stage.send(topic, numbered(10))
    running = stage.pipe(topic, out_of_range=OutOfRange.SKIP)
    wait_until(lambda: len(stage.rows()) == 10, "all rows")

    stage.ledger.pause(GROUP)
    stage.send(topic, numbered(20, first=10))
    stage.delete_records(tp, before=25)
    running.wait_for(Skipped)
    stage.ledger.resume(GROUP)

    wait_until(lambda: len(stage.rows()) == 15, "the rows behind the loss")
    running.stop()
    assert stage.offsets() == [*range(10), *range(25, 30)]
    stage.verify()


def behind_retention(stage: PipelineStage) -> TopicPartition:
    """A partition whose position is 10, and whose log begins at 25 and ends at 30."""
    topic = stage.topic()
    stage.send(topic, numbered(10))
    stage.catch_up(topic)
    stage.send(topic, numbered(20, first=10))
    stage.delete_records(TopicPartition(topic, 0), before=25)
    return TopicPartition(topic, 0)
