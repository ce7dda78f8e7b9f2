"""The page for users of JDBC sink connectors and `tidegate adopt connect` have the same answer for each property."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegate.errors import ChangeRefused
from tidegate.operate.connector import ADVICE, Connector
from tidegate.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-connect.md").read_text()

CONFLUENT = [
    "connection.url",
    "connection.attempts",
    "connection.backoff.ms",
    "insert.mode",
    "batch.size",
    "delete.enabled",
    "table.types",
    "table.name.format",
    "pk.mode",
    "pk.fields",
    "fields.whitelist",
    "db.timezone",
    "date.timezone",
    "auto.create",
    "auto.evolve",
    "quote.sql.identifiers",
    "max.retries",
    "retry.backoff.ms",
    "mssql.",
    "trim.sensitive.log",
    "dialect.name",
    "replace.null.with.default",
    "timestamp.precision.mode",
]
AIVEN = ["table.name.normalize", "topics.to.tables.mapping"]
DEBEZIUM = [
    "connection.pool.",
    "use.time.zone",
    "delete.enabled",
    "truncate.enabled",
    "primary.key.mode",
    "primary.key.fields",
    "quote.identifiers",
    "schema.evolution",
    "collection.name.format",
    "dialect.postgres.postgis.schema",
    "dialect.sqlserver.identity.insert",
    "batch.size",
    "use.reduction.buffer",
    "column.naming.",
    "collection.naming.",
    "field.include.list",
    "field.exclude.list",
    "flush.max.retries",
    "flush.retry.delay.ms",
    "hibernate.",
]
CONNECT = [
    "topics",
    "topics.regex",
    "tasks.max",
    "errors.tolerance",
    "errors.retry.timeout",
    "errors.deadletterqueue.",
    "errors.log.enable",
    "consumer.override.",
]

CLASS = "io.confluent.connect.jdbc.JdbcSinkConnector"
CONVERTERS = {
    "JsonConverter": "org.apache.kafka.connect.json.JsonConverter",
    "AvroConverter": "io.confluent.connect.avro.AvroConverter",
    "ProtobufConverter": "io.confluent.connect.protobuf.ProtobufConverter",
    "JsonSchemaConverter": "io.confluent.connect.json.JsonSchemaConverter",
    "StringConverter": "org.apache.kafka.connect.storage.StringConverter",
    "ByteArrayConverter": "org.apache.kafka.connect.converters.ByteArrayConverter",
}
TRANSFORMS = "org.apache.kafka.connect.transforms."
VALUES = {
    "connection.url": "jdbc:postgresql://db/shop",
    "topics.regex": "shop[.].*",
    "schema.evolution": "basic",
    "delete.enabled": "true",
    "table.types": "VIEW",
    "auto.create": "true",
    "auto.evolve": "true",
}
EFFECTS = {  # of properties whose answer on the page does not spell out the settings
    "connection.url": 'url = "postgresql+psycopg://db/shop"',
    "connection.user": 'url = "postgresql+psycopg://x@db/shop"',
    "connection.username": 'url = "postgresql+psycopg://x@db/shop"',
    "connection.password": ":${DB_PASSWORD}@",
    "topics": 'topics = "orders"',
    "topics.regex": 'topics = "^shop[.].*$"',
    "table.name.format": 'table = "x"',
    "collection.name.format": 'table = "x"',
    "fields.whitelist": 'columns = { x = "value.x" }',
    "field.include.list": 'columns = { x = "value.x" }',
    "pk.fields": 'key = ["x"]',
    "primary.key.fields": 'key = ["x"]',
    "value.converter.schema.registry.url": "[registry]",
    "AvroConverter": 'format = "avro"',
    "ProtobufConverter": 'format = "protobuf"',
    "JsonSchemaConverter": 'format = "json-schema"',
}


class Line(NamedTuple):
    """A property of the page, with its value if the page has one, and the page's answer."""

    name: str
    value: str | None
    answer: str


def plain(cell: str) -> str:
    return (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell.replace("[ledger]", "<ledger>"))
        .replace("`", "")
        .replace("<ledger>", "[ledger]")
    )


def lines() -> list[Line]:
    """Each property in the tables of the page."""
    found = []
    for left, right in re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE):
        last = ""
        if left.startswith("Debezium's events"):
            continue  # what is in a topic is not in the configuration
        for token in re.findall(r"`([^`]+)`", left.replace("`JsonConverter`, ", "")):
            name, _, value = token.partition("=")
            name = last.rpartition(".")[0] + name if name.startswith(".") else name
            last = name
            found.append(Line(name, value or None, right))
    return found


def config(line: Line) -> dict[str, Any]:
    """The configuration of a connector with this property."""
    base = {
        "name": "orders",
        "connector.class": CLASS,
        "topics": "orders",
        "connection.url": "jdbc:postgresql://db/shop",
    }
    name = line.name.replace("*", "some")
    if name in CONVERTERS:
        return {**base, "value.converter": CONVERTERS[name]}
    if name == "schemas.enable":
        return {**base, "value.converter": CONVERTERS["JsonConverter"], "value.converter.schemas.enable": line.value}
    if name[0].isupper():
        kind = "Filter" if name.startswith("Filter") else name
        return {**base, "transforms": "t", "transforms.t.type": f"{TRANSFORMS}{kind}$Value"}
    value = line.value or VALUES.get(name, "x")
    more = {"insert.mode": "upsert", "pk.mode": "record_value"} if name in ("pk.fields", "delete.enabled") else {}
    more |= {"primary.key.mode": "record_value"} if name == "primary.key.fields" else {}
    more |= {"insert.mode": "upsert"} if value.startswith("record_") else {}
    more |= {"value.converter": CONVERTERS["AvroConverter"]} if name.startswith("value.converter.") else {}
    if name == "topics.regex":
        del base["topics"]
    return {**base, **more, name: value if name != "topics" else "orders"}


def connector(properties: dict[str, Any], tmp_path: Path) -> Connector:
    file = tmp_path / "orders.json"
    file.write_text(json.dumps(properties))
    return Connector.read(file)


@pytest.mark.parametrize("name", sorted({*CONFLUENT, *AIVEN, *DEBEZIUM, *CONNECT}))
def test_a_property_has_its_counterpart(name: str) -> None:
    assert f"`{name}" in PAGE


@pytest.mark.parametrize("line", lines(), ids=lambda line: f"{line.name}={line.value}")
def test_the_command_has_the_answer_of_the_page(line: Line, tmp_path: Path) -> None:
    properties = config(line)
    converted = connector(properties, tmp_path)
    left, text = converted.left_out(), converted.toml("orders")
    named = [advice for name, advice in left.items() if properties.get(name) and name != "connection.password"]
    if named:
        assert plain(line.answer).startswith(named[0]) or named[0] == plain(line.answer)
        return
    effects = re.findall(r"`(\w+ = (?:true|false|\"[^\"]*\"))`", line.answer)
    expected = EFFECTS.get(line.name, effects[0] if effects else None)
    assert expected is not None or line.name.endswith(".mode"), "neither converted nor named"
    assert (expected or "key") in text


def test_every_advice_of_the_command_is_on_the_page() -> None:
    listed = {line.name for line in lines()}
    assert [name for name in ADVICE if name not in listed and name != "errors.log.*"] == []


def test_the_connector_on_the_page_becomes_the_settings_beside_it(tmp_path: Path) -> None:
    shown = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    converted = connector(json.loads(shown[0]), tmp_path)
    (beside,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    wanted, found = tomllib.loads(beside), tomllib.loads(converted.toml("sink-orders"))
    assert found["ledger"] == wanted["ledger"]
    sink = wanted["sink"]["orders"]
    del sink["into"]["types"], sink["columns"]  # which the configuration does not have
    assert found["sink"]["orders"] == {
        **sink,
        "group": "sink-orders",
        "on_error": "dead-letter",
        "into": {**sink["into"], "evolve": True},
    }
    assert set(converted.left_out()) == {
        "connection.password",
        "errors.deadletterqueue.topic.name",
        "pk.mode",
    }


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"topics": "a,b"}, {"route": {"parts": {"all": {"table": "{topic}", "mode": "append"}}}}),
        (
            {"table.name.format": "audit.raw_${topic}"},
            {"into": {"schema": "audit", "table": "raw_t", "mode": "append"}},
        ),
        (
            {"topics": "a,b", "table.name.format": "audit.raw_${topic}"},
            {"route": {"parts": {"all": {"schema": "audit", "table": "raw_{topic}", "mode": "append"}}}},
        ),
        (
            {"topics": "a,b", "pk.mode": "record_key", "insert.mode": "upsert", "delete.enabled": True},
            {"route": {"parts": {"all": {"table": "{topic}", "key": "{key}", "mode": "upsert"}}}},
        ),
        (
            {"pk.mode": "record_key", "pk.fields": "id", "insert.mode": "upsert", "fields.whitelist": "a, b"},
            {
                "columns": {"id": "key.id", "a": "value.a", "b": "value.b"},
                "into": {"table": "t", "key": ["id"], "mode": "upsert", "tombstones": "refuse"},
            },
        ),
        (
            {"pk.mode": "kafka", "insert.mode": "upsert", "fields.whitelist": "a", "delete.enabled": "true"},
            {
                "columns": {
                    "__connect_topic": "topic",
                    "__connect_partition": "partition",
                    "__connect_offset": "offset",
                    "a": "value.a",
                },
                "into": {
                    "table": "t",
                    "key": ["__connect_topic", "__connect_partition", "__connect_offset"],
                    "mode": "upsert",
                },
            },
        ),
    ],
)
def test_properties_work_together(more: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    text = connector({"name": "c", "connector.class": CLASS, "topics": "t", **more}, tmp_path).toml("c")
    sink = tomllib.loads(text)["sink"]["c"]
    assert {
        key: value for key, value in sink.items() if key not in ("topics", "group", "format", "on_error")
    } == expected
    (tmp_path / "tidegate.toml").write_text(text)
    assert "c" in Settings.load(tmp_path / "tidegate.toml", {}).sink


def test_debeziums_sink_has_its_own_ways(tmp_path: Path) -> None:
    properties = {
        "name": "sink 1",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": "shop.orders",
        "connection.url": "jdbc:mysql://root:pl4nted@db:3306/shop?password=pl4nted",
        "connection.username": "${file:/secrets:user}",
        "connection.password": "pl4nted",
        "insert.mode": "upsert",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "field.include.list": "shop.orders:id,shop.orders:total",
        "transforms": "unwrap,mine",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.mine.type": "com.example.Mine",
        "transforms.mine.password": "pl4nted",
        "some.unknown.token": "pl4nted",
    }
    converted = connector(properties, tmp_path)
    text = converted.toml("g")
    found = tomllib.loads(text)
    assert found["ledger"] == {"url": "mysql+pymysql://${DB_USER}:${DB_PASSWORD}@db:3306/shop"}
    into = found["sink"]["sink 1"]["into"]
    assert into == {
        "table": "shop_orders", "key": [], "mode": "upsert", "tombstones": "ignore", "create": True, "evolve": True
    }  # fmt: skip
    (tmp_path / "tidegate.toml").write_text(text)
    with pytest.raises(Exception, match="needs 'key'"):  # the configuration does not say which
        Settings.load(tmp_path / "tidegate.toml", {"DB_USER": "u", "DB_PASSWORD": "p"})
    left = converted.left_out()
    assert set(left) == {
        "connection.password",
        "some.unknown.token",
        "transforms.mine.type",
        "transforms.unwrap.type",
    }
    assert "pl4nted" not in text + json.dumps(left)
    assert converted.group == "connect-sink 1"


def test_texts_of_the_configuration_stay_texts(tmp_path: Path) -> None:
    odd = 'a"b\\c ${HOME}\n\x7f'
    text = connector(
        {"name": "c.d", "connector.class": CLASS, "topics": "t", "consumer.override.group.id": odd, "pk.fields": odd,
         "pk.mode": "record_value", "table.name.format": 'o"r'},
        tmp_path,
    ).toml(odd)  # fmt: skip
    (tmp_path / "tidegate.toml").write_text(text)
    sink = Settings.load(tmp_path / "tidegate.toml", {"HOME": "/leaked"}).sink["c.d"]
    assert sink.group == odd
    assert sink.into is not None
    assert (sink.into.table, sink.into.key) == ('o"r', (odd.strip(),))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "null",
        "7",
        "{}",
        '{"config": {}}',
        '{"name": 7, "config": {}}',
        '{"name": "a", "config": []}',
        '{"name": "", "config": {}}',
        '{"name": "a", "config": {"topics": "\\ud800"}}',
        "[" * 100_000,
        "\xff",
    ],
    ids=range(11),
)
def test_what_is_no_configuration_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ChangeRefused, match=r"orders.json: is not (JSON|the configuration)"):
        Connector.read(file)
    with pytest.raises(ChangeRefused, match="cannot be read"):
        Connector.read(tmp_path)


def test_values_of_other_types_are_read(tmp_path: Path) -> None:
    given = {
        "name": "c",
        "connector.class": CLASS,
        "topics": "t",
        "auto.create": True,
        "pk.fields": None,
        "batch.size": 5,
    }
    converted = connector(given, tmp_path)
    assert "create = true" in converted.toml("g")
    assert set(converted.left_out()) == {"batch.size"}


def test_the_file_begins_with_where_it_comes_from(tmp_path: Path) -> None:
    text = connector({"name": "a\nb", "connector.class": CLASS, "topics": "t"}, tmp_path).toml("g")
    assert list(takewhile(lambda each: each.startswith("#"), text.splitlines())) == [
        '# from connector "a\\nb"; [kafka] bootstrap is the bootstrap.servers of its worker'
    ]
