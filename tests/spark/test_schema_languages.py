"""Pipelines of Protobuf and of JSON with a schema, which executors read."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from tests.spark.orders import Place

from tidegate import Producer, Table
from tidegate.kafka import SchemaSerializer
from tidegate.sandbox import Kafka, Postgres, Registry
from tidegate.spark import Pipeline

PROTO = 'syntax = "proto3"; message Order { int64 id = 1; P place = 2; } message P { string city = 1; }'
JSON = {"properties": {"id": {"type": "integer"}, "place": {"properties": {"city": {"type": "string"}}}}}


@pytest.mark.parametrize(("name", "schema"), [("protobuf", PROTO), ("json-schema", JSON)])
def test_executors_read_records_by_their_schemas(
    kafka: Kafka, postgres: Postgres, registry: Registry, spark: SparkSession, name: str, schema: Any
) -> None:
    topic = f"{name}-{secrets.token_hex(4)}"
    client = {"bootstrap.servers": kafka.bootstrap}
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    serializer = SchemaSerializer(schema, name)
    with Producer(client, registry=registry.url, value_serializer=serializer) as producer:
        for number in range(4):
            producer.send(topic, {"id": number, "place": {"city": "Köln"}}, partition=number % 2)
    with Producer(client) as producer:
        producer.send(topic, b"\0\x7f\xff\xff\xffsecret", partition=0)
    place = Place(postgres.url)
    Pipeline(
        topic,
        Table(place.name, create=True, columns={"id": int, "city": str}),
        group=place.name,
        format=name,
        columns={"id": "value.id", "city": "value.place.city"},
        registry=registry.url,
        kafka=kafka.bootstrap,
        ledger=place.ledger,
        spark=spark,
        collect=0,
    ).run(once=True)
    assert place.rows("id, city", "ORDER BY id") == [(number, "Köln") for number in range(4)]
    (letter,) = place.ledger.dead_letters(place.name)
    assert letter.letter.error == "the schema registry does not know the id 2147483647"
    place.close()
