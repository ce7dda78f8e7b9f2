"""Changes by hand: previews first, and then exactly what they showed."""

from __future__ import annotations

import time

import pytest
from tests.app.member.stage import GROUP, Stage, numbered

from tidegate import Earliest, Latest, Span, Timestamp, TopicPartition
from tidegate.core.positions import Identity
from tidegate.errors import ChangeRefused, PositionsMoved
from tidegate.kafka.cluster import Survey
from tidegate.operate import Action, By, Operator, Shift, To, target


def held(stage: Stage, partitions: int = 2, *, at: int = 6, records: int = 10) -> tuple[str, str]:
    """A topic with records in each partition, claimed; its name, and the owner's."""
    topic = stage.topic(partitions)
    for number in range(partitions):
        stage.send(topic, numbered(records), partition=number)
    claims = stage.ledger.claim(GROUP, [TopicPartition(topic, number) for number in range(partitions)], at)
    return topic, claims[TopicPartition(topic, 0)].owner


def offsets(stage: Stage) -> list[int]:
    return [row.next_offset for _, row in sorted(stage.ledger.read(GROUP).positions.items())]


def test_a_preview_shows_what_would_move_and_changes_nothing(stage: Stage, survey: Survey) -> None:
    topic, owner = held(stage)
    preview = Operator(stage.ledger, survey).rewind(GROUP, topic, To(2))
    assert preview.action is Action.REWIND
    assert preview.shifts == (Shift(topic, 0, 6, 2, 4, owner), Shift(topic, 1, 6, 2, 4, owner))
    assert (preview.records, preview.owners, preview.unmoved, preview.warnings) == (8, (owner,), (), ())
    assert offsets(stage) == [6, 6]
    assert {entry.kind.value for entry in stage.ledger.journal(GROUP)} == {"start", "claim"}


def test_what_was_previewed_is_done_and_journalled_with_user_and_reason(stage: Stage, survey: Survey) -> None:
    topic, _ = held(stage)
    operator = Operator(stage.ledger, survey)
    done = operator.execute(
        operator.rewind(GROUP, topic, To(2), partitions=[1]), user="ada", reason="the prices were wrong"
    )
    assert [(shift.partition, shift.old, shift.new) for shift in done.shifts] == [(1, 6, 2)]
    assert offsets(stage) == [6, 2]
    last = stage.journal(TopicPartition(topic, 1))[-1]
    assert (last.kind, last.start, last.end, last.note) == ("edit", 6, 2, "rewind by ada: the prices were wrong")
    operator.execute(operator.skip(GROUP, topic, Latest(), partitions=[0]), user="ada")
    last = stage.journal(TopicPartition(topic, 0))[-1]
    assert (last.start, last.end, last.note) == (6, 10, "skip by ada")
    stage.verify()


@pytest.mark.parametrize(
    ("place", "new"), [(Earliest(), 0), (To(0), 0), (By(-2), 4), (By(-100), 0), (Timestamp(0), 0)], ids=str
)
def test_a_rewind_goes_to_every_kind_of_place(stage: Stage, survey: Survey, place: object, new: int) -> None:
    topic, _ = held(stage, 1)
    preview = Operator(stage.ledger, survey).rewind(GROUP, topic, place)  # type: ignore[arg-type]
    assert [shift.new for shift in preview.shifts] == [new]
    assert bool(preview.warnings) == (place == By(-100)), "that it cannot go so far back is said"


@pytest.mark.parametrize(
    ("place", "new"), [(Latest(), 10), (To(10), 10), (By(1), 7), (By(100), 10), (Timestamp(2**42), 10)], ids=str
)
def test_a_skip_goes_to_every_kind_of_place(stage: Stage, survey: Survey, place: object, new: int) -> None:
    topic, _ = held(stage, 1)
    preview = Operator(stage.ledger, survey).skip(GROUP, topic, place)  # type: ignore[arg-type]
    assert [shift.new for shift in preview.shifts] == [new]


def test_a_time_is_a_place_of_its_own_in_each_partition(stage: Stage, survey: Survey) -> None:
    topic = stage.topic(2)
    then = int(time.time() * 1000) - 3_600_000
    for number in range(2):
        stage.send(topic, numbered(3 + number), partition=number, timestamp=then - 1000)
        stage.send(topic, numbered(5), partition=number, timestamp=then + 1000)
    stage.ledger.claim(GROUP, [TopicPartition(topic, 0), TopicPartition(topic, 1)], 8)
    preview = Operator(stage.ledger, survey).rewind(GROUP, topic, Timestamp(then))
    assert [shift.new for shift in preview.shifts] == [3, 4]


def test_only_positions_that_go_the_same_way_move(stage: Stage, survey: Survey) -> None:
    topic, _ = held(stage)
    stage.ledger.edit(GROUP, {TopicPartition(topic, 1): 3})
    preview = Operator(stage.ledger, survey).rewind(GROUP, topic, To(4))
    assert [(shift.partition, shift.new) for shift in preview.shifts] == [(0, 4)]
    assert preview.unmoved == (f"{topic}[1] is at 3, before 4: moving there is a skip, not a rewind",)


def test_nonsense_is_refused_with_its_reason(stage: Stage, survey: Survey) -> None:
    topic, _ = held(stage)
    operator = Operator(stage.ledger, survey)
    stage.delete_records(TopicPartition(topic, 0), 2)
    with pytest.raises(ChangeRefused, match=r"ends at offset 10, so 11 is beyond it"):
        operator.skip(GROUP, topic, To(11))
    with pytest.raises(ChangeRefused, match="begins at offset 2: the records before it were deleted"):
        operator.rewind(GROUP, topic, To(1), partitions=[0])
    forced = operator.rewind(GROUP, topic, To(1), partitions=[0], force=True)
    assert [shift.new for shift in forced.shifts] == [1]
    with pytest.raises(ChangeRefused, match="there is nothing to skip.*is a rewind, not a skip"):
        operator.skip(GROUP, topic, To(3))
    with pytest.raises(ChangeRefused, match="is at 6 already"):
        operator.rewind(GROUP, topic, To(6))
    with pytest.raises(ChangeRefused, match=r"no position in .*\[5\]"):
        operator.rewind(GROUP, topic, To(1), partitions=[5])
    with pytest.raises(ChangeRefused, match="'partitions' is empty; name partitions, or leave it out"):
        operator.rewind(GROUP, topic, To(1), partitions=[])
    with pytest.raises(ChangeRefused, match="has positions in: none"):
        operator.rewind("nobody", topic, To(1))
    with pytest.raises(ChangeRefused, match="no group 'nobody'"):
        operator.pause("nobody")
    stage.ledger.claim(GROUP, [TopicPartition("gone", 0)], 5)
    with pytest.raises(ChangeRefused, match="was the topic deleted"):
        operator.rewind(GROUP, "gone", To(1))
    assert offsets(stage) == [5, 6, 6]


def test_without_kafka_only_an_offset_can_be_forced(stage: Stage) -> None:
    stage.ledger.claim(GROUP, [TopicPartition("orders", 0)], 9)
    operator = Operator(stage.ledger, None)
    for place in (To(3), Earliest()):
        with pytest.raises(ChangeRefused, match="without Kafka"):
            operator.rewind(GROUP, "orders", place)
    with pytest.raises(ChangeRefused, match="without Kafka"):
        operator.rewind(GROUP, "orders", Earliest(), force=True)
    preview = operator.rewind(GROUP, "orders", To(3), force=True)
    assert preview.warnings == ("orders[0] was not compared with its log",)
    assert operator.rewind(GROUP, "orders", By(-20), force=True).shifts[0].new == 0


def test_a_preview_that_does_not_hold_any_more_is_not_carried_out(stage: Stage, survey: Survey) -> None:
    topic, _ = held(stage)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    operator = Operator(stage.ledger, survey)
    back, forth = operator.rewind(GROUP, topic, To(2)), operator.skip(GROUP, topic, To(8))
    stage.ledger.edit(GROUP, {second: 5})
    for preview in (back, forth):
        with pytest.raises(PositionsMoved, match=r"was moved back from 6 to 5 meanwhile\. Nothing was changed"):
            operator.execute(preview, user="ada")
    assert offsets(stage) == [6, 5], "all or nothing"
    forth = operator.skip(GROUP, topic, To(8))
    stage.ledger.transact(stage.ledger.claim(GROUP, [first]), [Span(first, 6, 9, 3)])
    with pytest.raises(PositionsMoved, match="has passed 8 meanwhile and is at 9"):
        operator.execute(forth, user="ada")
    assert offsets(stage) == [9, 5]


def test_positions_that_only_went_on_are_moved_to_where_the_preview_said(stage: Stage, survey: Survey) -> None:
    topic, _ = held(stage, 1)
    tp = TopicPartition(topic, 0)
    operator = Operator(stage.ledger, survey)
    preview = operator.rewind(GROUP, topic, By(-3))
    stage.ledger.transact(stage.ledger.claim(GROUP, [tp]), [Span(tp, 6, 9, 3)])
    done = operator.execute(preview, user="ada")
    assert [(shift.old, shift.new, shift.records) for shift in done.shifts] == [(9, 3, 6)], "and it tells that they did"
    assert offsets(stage) == [3]


def test_a_topic_that_was_recreated_is_warned_of(stage: Stage, survey: Survey) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(5))
    tp = TopicPartition(topic, 0)
    stage.ledger.claim(GROUP, [tp], 3, identities={topic: Identity("another", "one")})
    preview = Operator(stage.ledger, survey).rewind(GROUP, topic, To(1))
    assert len(preview.warnings) == 1
    assert preview.warnings[0].startswith("the cluster is not the one that the positions were stored for: ")


def test_pausing_is_a_preview_too(stage: Stage) -> None:
    stage.ledger.claim(GROUP, [TopicPartition("orders", 0)])
    operator = Operator(stage.ledger, None)
    preview = operator.pause(GROUP)
    assert (preview.changes, preview.partitions, len(preview.owners)) == (True, 1, 1)
    assert not stage.ledger.read(GROUP).paused
    assert operator.set_paused(preview, user="ada", reason="lunch")
    assert stage.ledger.read(GROUP).paused
    assert not operator.pause(GROUP).changes
    assert operator.set_paused(operator.resume(GROUP), user="ada")
    assert not operator.set_paused(operator.resume(GROUP), user="ada"), "it was not paused"
    notes = [entry.note for entry in stage.ledger.journal(GROUP) if entry.partition is None]
    assert notes == ["pause by ada: lunch", "resume by ada"]
    assert operator.pause("new", force=True).changes


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("12", To(12)),
        ("-12", By(-12)),
        ("+3", By(3)),
        ("earliest", Earliest()),
        ("Latest", Latest()),
        ("1970-01-01T00:00:01Z", Timestamp(1000)),
    ],
)
def test_places_are_written_as_people_write_them(text: str, meant: object) -> None:
    assert target(text) == meant


@pytest.mark.parametrize("text", ["", "yesterday", "1.5", "--3", "2026-11-01T00:00:00"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ChangeRefused, match="is not a position in a log"):
        target(text)


@pytest.mark.parametrize("sign", ["", "+", "-"])
def test_a_number_longer_than_any_offset_is_refused(sign: str) -> None:
    assert target(f"{sign}{'9' * 19}")
    for digits in (20, 5_000):  # Python converts no text of more than 4,300 digits
        with pytest.raises(ChangeRefused, match=f"19 digits at most, and this one has {digits:,}"):
            target(sign + "9" * digits)
