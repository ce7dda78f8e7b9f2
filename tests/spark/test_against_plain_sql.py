"""The rule, through pipelines in every commit mode: see :mod:`tests.tables.test_against_plain_sql`."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from sqlalchemy import Engine
from tests.spark.orders import Place
from tests.tables.cells import KINDS, Kind
from tests.tables.plain import Sent
from tests.tables.specs import Spec, random_spec
from tests.tables.trial import Generator, Step, Twins, database_of, open_engine, told_difference

from tidegate.errors import ConfigurationError
from tidegate.sandbox import Kafka
from tidegate.spark import Pipeline

GROUP = "etl"
RECORDS = 60

SCHEMA = {"INTEGER": "integer", "INT": "integer", "BIGINT": "integer"}
WAYS: dict[str, dict[str, Any]] = {
    "by partition": {"collect": 0},
    "by the driver": {"collect": 100_000},
    "by batch": {"collect": 0, "commit": "batch"},
    "by batch, small": {"collect": 100_000, "commit": "batch", "transform": True},
    "by batch, staged": {"collect": 0, "commit": "batch", "transform": True},
}
HARMLESS = {
    "changing trigger",
    "counting after",
    "counting before",
    "statement trigger",
    "serial",
    "identity",
    "volatile",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", range(1))
def test_a_pipeline_leaves_what_plain_statements_would_have_left(
    way: str, number: int, place: Place, kafka: Kafka, spark: SparkSession
) -> None:
    database = database_of(place.url)
    rng = random.Random(f"spark {way} {database} {number}")
    options = dict(WAYS[way])
    is_made = "transform" in options
    if database == "sqlite" and options["collect"] == 0:
        pytest.skip("SQLite is written by the driver")
    engine = open_engine(place.url)
    twins = _twins(rng, database, engine, is_made)
    steps = list(_steps(rng, twins.spec, is_made))
    expected = twins.expected(steps)
    topic = f"rule-{secrets.token_hex(6)}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0})
    for place_, step in enumerate(steps):
        record = twins.record(place_, step.sent)
        producer.produce(topic, record.value, record.key, partition=0)
    producer.flush(30)
    if is_made:
        options["schema"] = {each.name: SCHEMA.get(each.kind.sql, "text") for each in twins.spec.fields}
        options["transform"] = f"select {', '.join(options['schema'])} from records"
    Pipeline(
        *(topic, twins.spec.table(twins.ours)),
        group=GROUP,
        kafka=kafka.bootstrap,
        ledger=place.ledger,
        spark=spark,
        max_records=rng.choice((7, 25, 1000)),
        **options,
    ).run(available_now=True)
    parked = {each.letter.record.offset for each in place.ledger.dead_letters(GROUP, limit=10_000)}
    found = twins.committed(parked)
    engine.dispose()
    assert not (difference := told_difference(twins, steps, found, expected)), difference


def _twins(rng: random.Random, database: str, engine: Engine, is_made: bool) -> Twins:
    """Of a table that is not refused, and whose refusals say that they are about values."""
    while True:
        spec = random_spec(rng, database)
        if is_made:
            spec = _simple(spec)
        if spec.has_unnamed_errors or (database == "sqlite" and spec.refers):
            continue
        try:
            return Twins(engine, spec)
        except ConfigurationError:
            continue


def _simple(spec: Spec) -> Spec:
    """A table that takes any whole numbers and texts: a row of a transform that does not fit stops a pipeline."""
    kinds = KINDS[spec.database]
    fields = [each for each in spec.fields if each.name in ("k", "k2", "n", "t")]
    fields = [replace(each, nullable=each.name in ("n", "t"), default=None) for each in fields]
    fields = [replace(each, kind=_simple_kind(each.kind, kinds["text"])) for each in fields]
    fields = [replace(each, kind=kinds["integer"]) if each.name == "n" else each for each in fields]
    return replace(
        spec,
        fields=tuple(fields),
        constraint="" if spec.mode == "append" else spec.constraint,
        extras=tuple(name for name in spec.extras if name in HARMLESS),
        tombstones="refuse",
        unknown="ignore",
    )


def _simple_kind(kind: Kind, other: Kind) -> Kind:
    name = kind.sql.split("(")[0].split()[0]
    return kind if name in (*SCHEMA, "VARCHAR", "TEXT", "CITEXT") and kind.sql != "BIGINT" else other


def _steps(rng: random.Random, spec: Spec, is_made: bool) -> Iterator[Step]:
    generator, count = Generator(rng, spec), 0
    while count < RECORDS:
        for step in generator.steps(12):
            sent = step.sent
            if is_made:
                if sent.is_tombstone or sent.rubbish is not None or sent.names or not _fits(sent, spec):
                    continue
                sent = Sent({each.name: sent.cells.get(each.name) for each in spec.fields})
            count += 1
            yield Step(sent)


def _fits(sent: Sent, spec: Spec) -> bool:
    if any(sent.cells.get(name) is None for name in spec.key):
        return False
    cells = [(spec.by_name[name].kind, cell) for name, cell in sent.cells.items() if cell is not None]
    return not any(cell in kind.bad or cell.is_converted for kind, cell in cells)
