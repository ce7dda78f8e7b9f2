"""A converter for tests: writes Connect's JSON as Avro, with the schemas that Connect's converters register."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate import Record
from tidegate.core.schemas import Schema, SchemaKind, UnknownSchema, framed
from tidegate.tables.avro.codec import AvroCodec

PRIMITIVES = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    **dict.fromkeys(("float", "float32"), "float"),
    **dict.fromkeys(("double", "float64"), "double"),
    "int64": "long",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
DECIMAL = "org.apache.kafka.connect.data.Decimal"
LOGICAL = {
    DECIMAL: "decimal",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


class Converter:
    """Keeps the schemas by their ids, as a registry."""

    def __init__(self) -> None:
        self.schemas: list[Schema] = []

    def by_id(self, number: int) -> Schema:
        if not 0 < number <= len(self.schemas):
            raise UnknownSchema(f"the schema registry does not know the id {number}")
        return self.schemas[number - 1]

    def registered(self, schema: Any, kind: SchemaKind = SchemaKind.AVRO) -> int:
        made = Schema(kind, json.dumps(schema))
        if made not in self.schemas:
            self.schemas.append(made)
        return self.schemas.index(made) + 1

    def records(self, records: Sequence[Record]) -> list[Record]:
        """The same records of JSON in envelopes as Avro."""
        return [each._replace(key=self.converted(each.key), value=self.converted(each.value)) for each in records]

    def converted(self, data: bytes | None) -> bytes | None:
        if data is None:
            return None
        envelope = json.loads(data)
        tree = avro_of(envelope["schema"], {})
        return self.framed(tree, raw_of(envelope["schema"], envelope["payload"]))

    def framed(self, tree: Any, value: Any) -> bytes:
        """A value of bytes and numbers as Avro, after the id of its schema."""
        return framed(self.registered(tree), encoded_by(tree, value))


def encoded_by(tree: Any, value: Any) -> bytes:
    return AvroCodec(Schema(SchemaKind.AVRO, json.dumps(without_logical_types(tree)))).encode(value)


def without_logical_types(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: without_logical_types(each) for name, each in tree.items() if name != "logicalType"}
    return [without_logical_types(each) for each in tree] if isinstance(tree, list) else tree


def avro_of(schema: Mapping[str, Any], names: dict[str, Any]) -> Any:
    """The schema of Avro for one of Connect. A struct that comes again is named only."""
    kind, name = schema["type"], schema.get("name")
    found: dict[str, Any]
    if kind == "struct":
        full = name or f"ConnectDefault{len(names)}"
        if full in names:
            return optional(schema, full)
        names[full] = schema
        fields = [{"name": each["field"], "type": avro_of(each, names)} for each in schema["fields"]]
        space, _, last = full.rpartition(".")
        found = {"type": "record", "name": last, "fields": fields, **({"namespace": space} if space else {})}
    elif kind == "array":
        found = {"type": "array", "items": avro_of(schema["items"], names)}
    elif kind == "map":
        found = {"type": "map", "values": avro_of(schema["values"], names)}
    else:
        found = {"type": PRIMITIVES[kind]}
    if name is not None:
        found["connect.name"] = name
        if parameters := schema.get("parameters"):
            found["connect.parameters"] = parameters
        if name in LOGICAL:
            found["logicalType"] = LOGICAL[name]
        if name == DECIMAL:
            found["scale"] = int(schema["parameters"]["scale"])
            found["precision"] = int(schema["parameters"].get("connect.decimal.precision", 64))
    return optional(schema, found)


def optional(schema: Mapping[str, Any], tree: Any) -> Any:
    return ["null", tree] if schema.get("optional") else tree


def raw_of(schema: Mapping[str, Any], value: Any) -> Any:
    """A value of JSON as the bytes, numbers and records that Avro writes."""
    if value is None:
        return None
    match schema["type"]:
        case "struct":
            return {each["field"]: raw_of(each, value.get(each["field"])) for each in schema["fields"]}
        case "array":
            return [raw_of(schema["items"], each) for each in value]
        case "map":
            return {name: raw_of(schema["values"], each) for name, each in value.items()}
        case "bytes":
            return base64.b64decode(value)
        case "double" | "float":
            return float(value)
    return value


ROW = {
    "type": "struct",
    "name": "shop.t.Value",
    "optional": True,
    "fields": [
        {"field": "id", "type": "int32"},
        {"field": "n", "type": "int32"},
        {"field": "big", "type": "string", "optional": True},
    ],
}
EVENT = {
    "type": "struct",
    "name": "shop.t.Envelope",
    "fields": [
        {**ROW, "field": "before"},
        {**ROW, "field": "after"},
        {
            "field": "source",
            "type": "struct",
            "name": "Source",
            "optional": True,
            "fields": [{"field": "lsn", "type": "int64"}],
        },
        {"field": "op", "type": "string"},
    ],
}
KEY = {"type": "struct", "name": "shop.t.Key", "fields": [{"field": "id", "type": "int32"}]}
HEARTBEAT = {"type": "struct", "name": "Heartbeat", "fields": [{"field": "ts_ms", "type": "int64"}]}


def with_schema(record: Record) -> Record:
    """A record of :class:`~tests.tables.events.Story` in envelopes."""

    def wrapped(data: bytes | None, of_value: bool) -> bytes | None:
        if data is None:
            return None
        payload = json.loads(data)
        schema = KEY if not of_value else EVENT if "op" in payload else HEARTBEAT
        return json.dumps({"schema": schema, "payload": payload}).encode()

    return record._replace(key=wrapped(record.key, False), value=wrapped(record.value, True))
