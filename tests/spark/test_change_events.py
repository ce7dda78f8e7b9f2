"""Change events and Connect's JSON in pipelines: the rows that a sink leaves, or a refusal at the start."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as Client
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from tests.spark.orders import Orders, Place
from tests.tables.events import Story, encoded, event, sent

from tidegate import ConfigurationError, Record, Table, TopicPartition
from tidegate.core.policies import Delivery
from tidegate.core.work import Claim, Span
from tidegate.ledger.threads import THREADS
from tidegate.sandbox import Kafka, Postgres
from tidegate.settings import IntoSettings, KafkaSettings, PipelineSettings, TableMode
from tidegate.spark import Pipeline
from tidegate.spark.address import LedgerAddress
from tidegate.spark.doctor import checked
from tidegate.spark.executor import Ended, ExecutorCommit, TaskResult
from tidegate.spark.records import RAW, RAW_TYPES
from tidegate.spark.rows import FixedTable
from tidegate.spark.spec import PipelineSpec
from tidegate.spark.transforms import rowwise_of
from tidegate.spark.writer import Writing
from tidegate.tables import ConnectJsonFormat, DebeziumFormat, Target
from tidegate.tables.shape import look_at_shape

INTO = Table("t", key="id", mode="upsert")
FIRST = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"where": "value.id > 1"}, "where, transform and SQL expressions"),
        ({"transform": "select 1"}, "where, transform and SQL expressions"),
        ({"columns": {"id": "value.id + 1"}}, "where, transform and SQL expressions"),
        ({"into": Table("t")}, "change events need mode='upsert'"),
        ({"into": Table("t", key="id", mode="update")}, "change events need mode='upsert'"),
        ({"into": Table("t", key="id", mode="upsert", tombstones="ignore")}, "change events need mode='upsert'"),
    ],
)
@pytest.mark.parametrize("form", ["debezium", DebeziumFormat(decimals="digits")])
def test_what_would_lose_the_order_of_changes_is_refused_at_the_start(given: Any, match: str, form: Any) -> None:
    with pytest.raises(ConfigurationError, match=match):
        PipelineSpec(("t",), **{"into": INTO, "group": "g", "format": form, **given})


def test_only_rows_of_records_are_marked_as_deleted() -> None:
    into = Table("t", key="id", mode="upsert", soft_delete="gone")
    assert PipelineSpec(("t",), into, "g", "debezium").deletes
    with pytest.raises(ConfigurationError, match="soft_delete marks"):
        PipelineSpec(("t",), into, "g", "json", where="true")


class Shop:
    """A table in SQLite with one row, and tasks that commit change events to it."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(f"sqlite:///{folder / 'shop.db'}")
        self.place.run(f"CREATE TABLE {self.place.name} (id INTEGER PRIMARY KEY, n INTEGER CHECK (n < 9))")
        self.place.run(f"INSERT INTO {self.place.name} VALUES (7, 7)")

    def run(
        self, records: Sequence[Record], claimed: Sequence[TopicPartition], *, parks: bool = False, **how: Any
    ) -> TaskResult:
        spec = PipelineSpec(("t",), Table(self.place.name, key="id", mode="upsert", **how), "g", "debezium")
        ledger: Any = self.place.ledger
        layout = Target(ledger.engine, spec.into).layout
        claims: dict[TopicPartition, Claim] = ledger.claim("g", list(claimed))
        task = ExecutorCommit(
            LedgerAddress(self.place.url, {}, ledger.prefix, ledger.limits),
            Writing(layout, look_at_shape(ledger.engine, spec.into)),
            rowwise_of(spec, layout).of_partitions(len(claims)),
            FixedTable(layout, spec.form, None),
            Delivery.EXACTLY_ONCE,
            claims,
            {FIRST: Span(FIRST, 0, len(records), len(records))},
            parks,
            THREADS,
        )
        columns = {name: [getattr(record, part) for record in records] for part, name in RAW.items()}
        columns[RAW["headers"]] = [None] * len(records)
        arrays = [pa.array(columns[name], RAW_TYPES[part]) for part, name in RAW.items()]
        (result,) = task([pa.record_batch(arrays, list(RAW.values()))])
        (row,) = result.to_pylist()
        return TaskResult.of(row.values())

    def rows(self) -> list[tuple[Any, ...]]:
        return self.place.rows("id, n", "ORDER BY id")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path)
    yield opened
    opened.place.close()


TRUNCATE = (None, event("t"))


@pytest.mark.parametrize("parks", [False, True])
def test_a_batch_of_nothing_but_a_truncate_empties_the_table(shop: Shop, parks: bool) -> None:
    result = shop.run(sent(TRUNCATE), [FIRST], parks=parks)
    assert (result.ended, result.letters, shop.rows()) == (Ended.COMMITTED, 0, [])


@pytest.mark.parametrize("parks", [False, True])
def test_a_truncate_has_no_order_among_several_partitions(shop: Shop, parks: bool) -> None:
    result = shop.run(sent(TRUNCATE), [FIRST, OTHER], parks=parks)
    assert (result.ended, result.letters, shop.rows()) == (Ended.COMMITTED, 1, [(7, 7)])
    (letter,) = shop.place.ledger.dead_letters("g")
    assert "the group reads 2" in letter.letter.error


def test_a_truncate_keeps_its_place_among_rows_that_are_refused(shop: Shop) -> None:
    changes = [({"id": number}, event("c", {"id": number, "n": n})) for number, n in ((1, 1), (2, 99), (3, 3))]
    records = sent(*changes, TRUNCATE, TRUNCATE, ({"id": 4}, event("c", {"id": 4, "n": 99})), changes[0])
    assert shop.run(records, [FIRST]).ended is Ended.REFUSED
    assert shop.rows() == [(7, 7)]
    result = shop.run(records, [FIRST], parks=True)
    assert (result.ended, result.letters, shop.rows()) == (Ended.COMMITTED, 2, [(1, 1)])
    assert [letter.letter.record.offset for letter in shop.place.ledger.dead_letters("g")] == [1, 5]


def test_a_guard_gives_truncates_an_order_and_leaves_a_new_server_to_the_driver(shop: Shop) -> None:
    guarded: dict[str, Any] = {"guard": "at", "guard_table": f"{shop.place.name}_marks", "create": True}
    shop.place.run(f"ALTER TABLE {shop.place.name} ADD COLUMN at BIGINT")
    older = ({"id": 1}, event("c", {"id": 1, "n": 1}, source={"lsn": 3}))
    truncate = (None, event("t", source={"lsn": 5}))
    newer = ({"id": 2}, event("c", {"id": 2, "n": 2}, source={"lsn": 8}))
    assert shop.run(sent(truncate, older, newer), [FIRST, OTHER], **guarded).letters == 0
    assert shop.rows() == [(2, 2)]
    moved = ({"id": 2}, event("d", source={"file": "mysql-bin.000003", "pos": 1, "server_id": 7}))
    ledger: Any = shop.place.ledger
    with ledger.engine.begin() as conn:
        conn.exec_driver_sql(f"UPDATE {ledger.prefix}positions SET next_offset = 0")
    assert shop.run(sent(moved), [FIRST], **guarded).ended is Ended.OUTDATED
    Target(ledger.engine, Table(shop.place.name, key="id", mode="upsert", **guarded), format="debezium").read(
        sent(moved)
    )
    assert shop.run(sent(moved), [FIRST], **guarded).ended is Ended.COMMITTED
    assert shop.rows() == []


def test_the_check_of_a_pipeline_makes_no_table_of_the_guard(shop: Shop, orders: Orders) -> None:
    marks = f"{shop.place.name}_marks"
    shop.place.run(f"ALTER TABLE {shop.place.name} ADD COLUMN at BIGINT")

    def check(*, create: bool) -> list[str]:
        into = IntoSettings(
            shop.place.name, key=("id",), mode=TableMode.UPSERT, create=create, guard="at", guard_table=marks
        )
        settings = PipelineSettings((orders.name,), "g", into, kafka=KafkaSettings(orders.bootstrap))
        return list(checked(settings, into.described(), shop.place.ledger))

    assert check(create=True)[-1] == f"table {shop.place.name}: 3 columns"
    with pytest.raises(ConfigurationError, match=f"there is no table {marks}, which guard_table names"):
        check(create=False)
    assert marks not in shop.place.tables()


def envelope(number: int) -> bytes | None:
    fields = [{"field": "id", "type": "int32"}, {"field": "day", "type": "int32", "name": "io.debezium.time.Date"}]
    schema = {"type": "struct", "fields": fields}
    return encoded({"schema": schema, "payload": {"id": number, "day": number}})


def test_a_pipeline_leaves_what_the_events_leave_one_by_one(
    kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    story = Story("pipeline")
    story.tell(90)
    assert story.parked
    assert any(b'"op":"t"' in (record.value or b"") for record in story.records)
    names = {form: f"{form}-{secrets.token_hex(4)}" for form in ("debezium", "connect")}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1) for name in names.values()]).values():
        made.result(30)
    client = Client({"bootstrap.servers": kafka.bootstrap})
    for record in story.records:
        client.produce(names["debezium"], record.value, record.key)
    for number in range(4):
        client.produce(names["connect"], envelope(number), encoded({"id": number}))
    client.flush(30)
    place = Place(postgres.url)
    place.run(f"CREATE TABLE {place.name} (id INTEGER PRIMARY KEY, n INTEGER, big VARCHAR(20))")

    def run(topic: str, into: Table, form: Any, **more: Any) -> list[str]:
        modes: list[str] = []
        Pipeline(
            names[topic],
            into,
            **{"group": f"{place.name}-{secrets.token_hex(4)}", "format": form, **more},
            kafka=kafka.bootstrap,
            ledger=place.ledger,
            spark=spark,
            on_batch=lambda batch: modes.append(batch.mode),
        ).run(available_now=True)
        return modes

    into = Table(place.name, key="id", mode="upsert")
    for more in ({"collect": 0, "max_records": 30}, {}, {"commit": "batch"}):
        group = f"g{secrets.token_hex(4)}"
        place.run(f"DELETE FROM {place.name}")
        modes = run("debezium", into, "debezium", group=group, **more)
        assert set(modes) == ({"partition"} if "collect" in more else {"driver"})
        assert {key: (n, big) for key, n, big in place.rows("id, n, big")} == story.rows
        assert {offset for _, offset, _ in place.letters(group)} == story.parked
    days = Table(f"{place.name}d", key="id", mode="upsert", create=True, evolve=True)
    run("connect", days, ConnectJsonFormat())
    schema, columns = {"id": "integer", "day": "date"}, {"id": "value.id + 1", "day": "value.day"}
    there = Table(days.name, key="id", mode="upsert")
    run("connect", there, "connect-json", where="value.id > 2", columns=columns, schema=schema)
    with place.engine.connect() as conn:
        found = conn.exec_driver_sql(f"SELECT id, day::text FROM {days.name} ORDER BY id").all()
    assert [tuple(row) for row in found] == [*((n, f"1970-01-0{n + 1}") for n in range(4)), (4, "1970-01-04")]
    place.close()
