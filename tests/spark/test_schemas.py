"""Pipelines of records that name a schema of a registry, which executors ask with the login of the driver."""

from __future__ import annotations

import secrets
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from tests.spark.orders import Place
from tests.tables.avro.values import logical

from tidegate import ConfigurationError, Producer, Table
from tidegate.kafka import RegistrySettings, SchemaSerializer
from tidegate.sandbox import Kafka, Postgres, Registry
from tidegate.spark import Pipeline
from tidegate.tables import SchemaFormat

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "total", "type": logical("bytes", "decimal", precision=9, scale=2)},
    {"name": "place", "type": {"type": "record", "name": "P", "fields": [{"name": "city", "type": "string"}]}},
]
FIRST = {"type": "record", "name": "Order", "fields": FIELDS}
SECOND = {**FIRST, "fields": [*FIELDS, {"name": "note", "type": ["null", "string"], "default": None}]}


def order(number: int) -> dict[str, Any]:
    return {"id": number, "total": Decimal(number), "place": {"city": "Köln"}}


def test_executors_and_the_driver_read_records_by_their_schemas(
    kafka: Kafka, postgres: Postgres, spark: SparkSession
) -> None:
    topic = f"avro-{secrets.token_hex(4)}"
    client = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    place = Place(postgres.url)
    with Registry(login=True) as server:
        registry = RegistrySettings(server.url, user=server.user, password=server.password)

        def send(schema: Any, *values: Any) -> None:
            serializer = SchemaSerializer(schema)
            with Producer(client, registry=registry, value_serializer=serializer) as producer:
                for number, value in enumerate(values):
                    producer.send(topic, value, partition=number % 2)

        def run(**more: Any) -> None:
            Pipeline(
                topic,
                Table(place.name, key=["id"], mode="upsert", create=True, evolve=True),
                **{"group": place.name, "format": SchemaFormat(flatten="_"), **more},
                registry=registry,
                kafka=kafka.bootstrap,
                ledger=place.ledger,
                spark=spark,
            ).run(once=True)

        send(FIRST, *map(order, range(4)))
        run()
        send(SECOND, *({**order(number), "note": f"n{number}"} for number in range(3, 6)))
        with Producer(client) as producer:
            producer.send(topic, b"\0\0\0\0\x63secret")
        run(collect=0)
        assert place.rows("id, total, place_city, note", "ORDER BY id") == [
            (number, Decimal(number), "Köln", f"n{number}" if number >= 3 else None) for number in range(6)
        ]
        (letter,) = place.ledger.dead_letters(place.name)
        assert letter.letter.error == "the schema registry does not know the id 99"
        with pytest.raises(ConfigurationError, match="do not read them yet"):
            run(where="value.id > 1")
        with pytest.raises(ConfigurationError, match="would lose them"):
            run(delivery="at-most-once")
        with pytest.raises(ConfigurationError, match="needs a schema registry"):
            Pipeline(topic, place.name, group="g", format="avro", kafka=kafka.bootstrap, ledger=place.ledger)
    place.close()
