"""Checkpoints of Structured Streaming, as Spark 3.5 to 4.2 writes them: what is adopted, and what is refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app.member.stage import GROUP, Stage, numbered
from tests.operate.leading import led_topic

from tidegate import TopicPartition
from tidegate.errors import ChangeRefused, PositionsMoved
from tidegate.kafka.cluster import Survey
from tidegate.operate import Adoption, Checkpoint

CONF = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "200"}})
ORDERS = TopicPartition("orders", 0)


class Writer:
    """Writes a checkpoint as Spark does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("offsets", "commits", "sources/0"):
            (directory / name).mkdir(parents=True)
        (directory / "metadata").write_text('{"id":"6ba189b4-386e-4d8e-b1fc-1c868ca3979c"}')

    def plan(self, number: int, *sources: Any, version: str = "v1") -> None:
        lines = [each if isinstance(each, str) else json.dumps(each) for each in sources]
        if version == "v2":
            lines = [f"{place}:{line}" for place, line in enumerate(lines)]
        self.write(f"offsets/{number}", "\n".join([version, CONF, *lines]))

    def done(self, number: int, version: str = "v1") -> None:
        self.write(f"commits/{number}", f'{version}\n{{"nextBatchWatermarkMs":0}}')

    def write(self, name: str, text: str) -> None:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.with_name(f".{file.name}.crc").write_bytes(b"crc")

    def age(self, seconds: float = 3600.0) -> None:
        for file in [*self.directory.rglob("*"), *self.directory.rglob(".*")]:
            os.utime(file, (time.time() - seconds,) * 2)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "checkpoint")


def found(writer: Writer, *topics: str, **options: Any) -> tuple[dict[Any, int], dict[Any, int], tuple[str, ...]]:
    each = Checkpoint(writer.directory, **options).found(topics)
    assert each.ends is not None
    return dict(each.offsets), dict(each.ends), each.warnings


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_committed_batch_gives_its_end_and_one_that_is_not_its_range(writer: Writer, version: str) -> None:
    writer.plan(0, {"orders": {"0": 5, "1": 7}}, version=version)
    writer.done(0, version)
    assert found(writer) == ({ORDERS: 5, TopicPartition("orders", 1): 7}, {}, ())
    writer.plan(1, {"orders": {"0": 9, "1": 7}}, version=version)
    begin, end, _ = found(writer)
    assert (begin, end) == ({ORDERS: 5, ("orders", 1): 7}, {ORDERS: 9, ("orders", 1): 7})
    writer.done(1, version)
    assert found(writer)[:2] == ({ORDERS: 9, ("orders", 1): 7}, {})


def test_the_first_batch_begins_where_its_source_began(writer: Writer) -> None:
    writer.write("sources/0/0", '\0v1\n{"orders":{"0":3}}')
    writer.plan(0, {"orders": {"0": 5}})
    assert found(writer)[:2] == ({ORDERS: 3}, {ORDERS: 5})
    (writer.directory / "sources/0/0").unlink()
    with pytest.raises(ChangeRefused, match=r"sources/0/0 cannot be read"):
        found(writer)


def test_several_sources_and_sources_of_others_are_told_apart(writer: Writer) -> None:
    writer.plan(0, {"logOffset": 4}, {"orders": {"0": 5}}, "-")
    writer.done(0)
    with pytest.raises(ChangeRefused, match=r"0: not of Kafka; 1: orders; 2: no topic so far.*--source N"):
        found(writer)
    offsets, _, warnings = found(writer, source=1)
    assert offsets == {ORDERS: 5}
    assert warnings == (
        "source 0 of the query is not Kafka's: what it has read is not carried over",
        "source 2 of the query is not carried over: no topic so far",
    )
    for wrong in (0, 3):
        with pytest.raises(ChangeRefused, match=f"has no source {wrong} of Kafka"):
            found(writer, source=wrong)
    writer.plan(1, {"orders": {"0": 6}}, {"orders": {"0": 5}, "returns": {"0": 1}})
    writer.done(1)
    assert found(writer, source=0)[2] == ("source 1 of the query reads orders too, and is not carried over",)
    assert found(writer, "returns", source=1)[0] == {("returns", 0): 1}
    with pytest.raises(ChangeRefused, match="no offsets of nosuch; it has: orders, returns"):
        found(writer, "nosuch", source=1)
    writer.plan(2, {"logOffset": 4})
    writer.done(2)
    with pytest.raises(ChangeRefused, match="none of the query's sources is Kafka's"):
        found(writer)


def test_state_is_left_behind_only_on_request(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 5}})
    writer.done(0, "v2")
    (writer.directory / "state").mkdir()
    assert found(writer)[2] == ()
    writer.write("state/0/0/1.delta", "x")
    with pytest.raises(ChangeRefused, match=r"has state: sums, windows, joins .*--without-state"):
        found(writer)
    assert found(writer, without_state=True)[2] == (
        "the state of the query stays behind: sums, windows, joins and seen keys begin anew",
    )


def empty(writer: Writer) -> None:
    pass


def torn(writer: Writer) -> None:
    writer.plan(0, '{"orders":{"0":')
    writer.done(0)


def torn_commit(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 5}})
    writer.write("commits/0", "")


def torn_metadata(writer: Writer) -> None:
    writer.write("offsets/0", "v1")
    writer.done(0)


def newer(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 5}}, version="v9")
    writer.done(0)


def two_behind(writer: Writer) -> None:
    for number in range(3):
        writer.plan(number, {"orders": {"0": number}})
    writer.done(0)


def commits_ahead(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 5}})
    writer.done(1)


def asynchronous(writer: Writer) -> None:
    for number in (0, 5, 9):
        writer.plan(number, {"orders": {"0": number}})
        writer.done(number)


def without_the_batch_before(writer: Writer) -> None:
    writer.plan(7, {"orders": {"0": 5}})
    writer.done(6)


def recreated(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 50}})
    writer.done(0)
    writer.plan(1, {"orders": {"0": 3}})


def nested(writer: Writer) -> None:
    writer.plan(0, "[" * 100_000)
    writer.done(0)


def binary(writer: Writer) -> None:
    (writer.directory / "offsets/0").write_bytes(b"\xff\xfe")
    writer.done(0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (empty, "no batch in offsets/"),
        (torn, r"offsets/0 is not complete: the offsets of a source are not JSON"),
        (torn_commit, "commits/0 is not complete"),
        (torn_metadata, "offsets/0 is not complete, or its version"),
        (newer, "its version is not known; it begins with 'v9'"),
        (two_behind, r"last batch is 2 in offsets/ and 0 in commits/"),
        (commits_ahead, r"last batch is 0 in offsets/ and 1 in commits/"),
        (asynchronous, "tracked its progress asynchronously"),
        (without_the_batch_before, r"last batch is 7 in offsets/ and 6 in commits/"),
        (recreated, r"batch 1 ends at offset 3 of orders\[0\], before it begins \(50\)"),
        (nested, "offsets of a source are not JSON"),
        (binary, "offsets/0 cannot be read"),
    ],
)
def test_what_is_not_whole_is_refused(writer: Writer, make: Callable[[Writer], None], said: str) -> None:
    make(writer)
    with pytest.raises(ChangeRefused, match=said):
        found(writer)


@pytest.mark.parametrize("offset", ["7", -1, 1.5, True, None, 1 << 63])
def test_an_offset_that_is_none_is_not_of_kafka(writer: Writer, offset: object) -> None:
    for offsets in ({"orders": {"0": offset}}, {"orders": {"9" * 5000: 1}}, {"a/b": {"0": 1}}, {"orders": {"x": 1}}):
        writer.plan(0, offsets)
        writer.done(0)
        with pytest.raises(ChangeRefused, match="none of the query's sources is Kafka's"):
            found(writer)


def test_a_directory_may_be_written_as_spark_writes_it(writer: Writer, tmp_path: Path) -> None:
    writer.plan(0, {"orders": {"0": 5}})
    writer.done(0)
    for name in (f"file:{writer.directory}", f"file://{writer.directory}", str(writer.directory)):
        assert dict(Checkpoint(name).found(()).offsets) == {ORDERS: 5}
    for remote in ("s3a://shop/ck", "hdfs://nn/ck", "abfss://c@a.dfs.core.windows.net/ck", "dbfs:/ck"):
        with pytest.raises(ChangeRefused, match="is not on this machine: copy the checkpoint"):
            Checkpoint(remote)
    with pytest.raises(ChangeRefused, match="is not a directory"):
        Checkpoint(tmp_path / "nosuch")


def test_a_query_that_may_run_is_refused(writer: Writer) -> None:
    writer.plan(0, {"orders": {"0": 5}})
    writer.done(0)
    with pytest.raises(ChangeRefused, match="--stopped"):
        Checkpoint(writer.directory).check_stopped()
    with pytest.raises(ChangeRefused, match="was changed 0 s ago: the query may still run"):
        Checkpoint(writer.directory, stopped=True).check_stopped()
    writer.age(59)
    with pytest.raises(ChangeRefused, match="was changed 59 s ago"):
        Checkpoint(writer.directory, stopped=True).check_stopped()
    writer.age(61)
    Checkpoint(writer.directory, stopped=True).check_stopped()
    os.utime(writer.directory / "commits/0", (time.time() + 500,) * 2)  # a clock that runs ahead
    with pytest.raises(ChangeRefused, match="was changed 0 s ago"):
        Checkpoint(writer.directory, stopped=True).check_stopped()


@pytest.mark.parametrize(("in_doubt", "position"), [("repeat", 4), ("skip", 6)])
def test_records_in_doubt_are_repeated_or_skipped_as_chosen(
    stage: Stage, survey: Survey, writer: Writer, in_doubt: str, position: int
) -> None:
    topic = led_topic(stage, survey, 2)
    stage.send(topic, numbered(10))
    stage.send(topic, numbered(3), partition=1)
    writer.plan(0, {topic: {"0": 4}})
    writer.done(0)
    writer.plan(1, {topic: {"0": 6, "1": 2}})  # the second partition was added
    writer.age()

    def adoption(**options: Any) -> Adoption:
        return Adoption(stage.ledger, survey, Checkpoint(writer.directory, stopped=True), GROUP, **options)

    undecided = adoption()
    preview = undecided.preview()
    assert preview.exact
    assert [(d.partition, d.start, d.end) for d in preview.doubts] == [(0, 4, 6), (1, 0, 2)]
    with pytest.raises(ChangeRefused, match="4 records are in doubt; .*--in-doubt repeat or --in-doubt skip"):
        undecided.execute(preview, user="ada")
    assert not stage.ledger.read(GROUP).positions
    decided = adoption(in_doubt=in_doubt)
    shown = decided.preview()
    decided.execute(shown, user="ada")
    rows = stage.ledger.read(GROUP).positions
    assert {tp.partition: row.next_offset for tp, row in rows.items()} == {0: position, 1: position - 4}
    (entry,) = stage.ledger.journal(GROUP, TopicPartition(topic, 0))
    assert entry.note == (
        f"adopted from checkpoint {writer.directory}, batch 0 (batch 1 is not committed), in doubt: {in_doubt} by ada"
    )
    assert adoption(in_doubt=in_doubt).preview().done
    stage.verify()


def test_a_batch_that_is_committed_after_the_preview_is_noticed(stage: Stage, survey: Survey, writer: Writer) -> None:
    topic = led_topic(stage, survey)
    stage.send(topic, numbered(10))
    writer.plan(0, {topic: {"0": 4}})
    writer.done(0)
    writer.age()
    adoption = Adoption(stage.ledger, survey, Checkpoint(writer.directory, stopped=True), GROUP)
    preview = adoption.preview()
    writer.plan(1, {topic: {"0": 6}})
    writer.done(1)
    with pytest.raises(ChangeRefused, match="was changed 0 s ago"):
        adoption.execute(preview, user="ada")
    writer.age()
    with pytest.raises(PositionsMoved, match="has changed since the preview"):
        adoption.execute(preview, user="ada")
