"""The Avro of Kafka Connect: records that name a schema of a registry, read as the JSON that Connect writes of them.

Connect's converters for Avro and for JSON write the same: structs, and schemas with the names of their types. So a
record of Avro is translated to the envelope of a schema and a payload, and the formats of that JSON read it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import msgspec

from tidegate.core.arguments import Label, argument
from tidegate.core.columns import PLACEHOLDER
from tidegate.core.schemas import Reference, Schema, SchemaKind, SchemaRegistry
from tidegate.errors import ConfigurationError
from tidegate.tables.avro.codec import AvroCodec
from tidegate.tables.avro.reader import READERS, AvroReader, Read
from tidegate.tables.avro.schema import AvroSchema
from tidegate.tables.codec import ODD, Codec, Codecs, Mismatched, odd
from tidegate.tables.connect_format import ConnectJsonFormat
from tidegate.tables.debezium_format import DebeziumFormat
from tidegate.tables.feed import Feed, Unread
from tidegate.tables.format import Format
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.types import FormatChoice

__all__ = ["ConnectAvroFormat", "DebeziumAvroFormat", "plain_keys", "translation"]


class ConnectAvroFormat:
    """A format in which values are Avro as Kafka Connect's converters write it, and name a schema of a registry.

    Columns come from the fields of the record, and the schema says what a field stands for, as in Connect's JSON.
    ``registry`` is by default that of the app or the pipeline.
    """

    parts: tuple[str, ...] = ()
    described: str | None = None
    """The only field whose schema is needed; ``None`` for all."""

    def __init__(self, *, registry: Any = None) -> None:
        self._schemas = SchemaFormat(SchemaKind.AVRO, registry=registry)
        self._known: dict[int, tuple[Codec, _Translation]] = {}

    @property
    def plain(self) -> Format:
        """The format that reads what :meth:`translated` returns."""
        return ConnectJsonFormat()

    @property
    def registry(self) -> SchemaRegistry | None:
        """The schema registry."""
        return self._schemas.registry

    @property
    def codecs(self) -> Codecs:
        """The codecs of the registry; raises if there is no registry."""
        return self._schemas.codecs

    def with_registry(self, registry: SchemaRegistry | None) -> ConnectAvroFormat:
        """Return the format with this registry, unless it has one."""
        return self if self.registry is not None else ConnectAvroFormat(registry=registry)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), {"registry": self.registry})

    def translated(self, feed: Feed) -> Feed:
        """Return the feed with values in Connect's JSON; those that cannot be read are :class:`Unread`."""
        return replace(feed, value=self._translated(feed, "value"))

    def _translated(self, feed: Feed, part: str) -> list[bytes | None]:
        found: list[bytes | None] = []
        for data, headers in zip(feed.part(part), feed.part("headers"), strict=True):
            if data is None:
                found.append(None)
                continue
            try:
                codec, number, rest = self.codecs.selected(data, headers or (), part)
                try:
                    found.append(self._translation(codec).of(rest, has_schema=part == "value"))
                except ODD as error:
                    raise odd(error, f"the {part}").of_schema(number) from None
            except Mismatched as mismatch:
                found.append(Unread(str(mismatch)))
        return found

    def _translation(self, codec: Codec) -> _Translation:
        known = self._known.get(id(codec))
        if known is None:
            assert isinstance(codec, AvroCodec)  # noqa: S101 - the registry's schemas of another kind are refused
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            known = self._known[id(codec)] = codec, _Translation(codec.source, self.described)
        return known[1]


class DebeziumAvroFormat(ConnectAvroFormat):
    """A format in which each value is a change event of Debezium, as Avro, and so is each key.

    Columns come from the fields of the changed row. ``placeholder`` is what the connector writes for a value that it
    did not get (``unavailable.value.placeholder``). ``registry`` is by default that of the app or the pipeline.
    """

    parts = ("key",)
    described = "after"

    def __init__(self, *, placeholder: str = PLACEHOLDER, registry: Any = None) -> None:
        super().__init__(registry=registry)
        self.placeholder: str = argument("placeholder", Label, placeholder)

    @property
    def plain(self) -> Format:
        """The format that reads what :meth:`translated` returns."""
        return DebeziumFormat(placeholder=self.placeholder)

    def with_registry(self, registry: SchemaRegistry | None) -> DebeziumAvroFormat:
        """Return the format with this registry, unless it has one."""
        if self.registry is not None:
            return self
        return DebeziumAvroFormat(placeholder=self.placeholder, registry=registry)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (type(self), {"placeholder": self.placeholder, "registry": self.registry})

    def translated(self, feed: Feed) -> Feed:
        """Return the feed with keys and values in Connect's JSON.

        A record whose key cannot be read is not used by half: its value is :class:`Unread`, too.
        """
        keys = self._translated(feed, "key")
        values = [
            Unread(f"key: {key.why}") if isinstance(key, Unread) and value is not None else value
            for key, value in zip(keys, self._translated(feed, "value"), strict=True)
        ]
        return replace(feed, key=keys, value=values)


def _made(kind: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    return kind(**given)


def translation(form: Format | ConnectAvroFormat) -> tuple[Format, Callable[[Feed], Feed]]:
    """Return the format that reads the records, and what has to be done to them before."""
    return (form.plain, form.translated) if isinstance(form, ConnectAvroFormat) else (form, _unchanged)


def _unchanged(feed: Feed) -> Feed:
    return feed


def plain_keys(form: Any, key_format: FormatChoice) -> FormatChoice:
    """Return the format of keys once the records are translated; raises if keys are to be read in two ways."""
    if form != "debezium-avro" and not isinstance(form, DebeziumAvroFormat):
        return key_format
    if key_format == "json" or getattr(key_format, "kind", key_format) in ("avro", SchemaKind.AVRO):
        return "json"
    raise ConfigurationError("key_format: the keys of change events in Avro are Avro, too; leave it out")


_MOST_SCHEMAS = 1_000
_MOST_TYPES = 20_000  # in a schema: types by name may contain each other, so that a short text can have any number
_ENCODE = msgspec.json.Encoder().encode


class _Translation:
    """Translates the records of one schema."""

    def __init__(self, schema: Schema, described: str | None) -> None:
        bare = AvroSchema(_without_logical_types(schema))
        self._read = AvroReader(bare, own=_NUMBERS).read
        self._head = b'{"schema":' + _ENCODE(_Describer(schema).described(described)) + b',"payload":'

    def of(self, data: bytes, *, has_schema: bool) -> bytes:
        """Return a record as JSON, perhaps in an envelope; raises an error of :data:`ODD`. Bytes become base64."""
        payload = _ENCODE(self._read(data))
        return b"".join((self._head, payload, b"}")) if has_schema else payload


_FLOAT = struct.Struct("<f")


def _number(read: Read, convert: Callable[[float], float]) -> Read:
    """Return a reader of numbers that gives those that JSON does not have as text, as Connect does."""

    def number(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        if not isfinite(value):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity", at  # noqa: PLR0124
        return convert(value), at

    return number


def _shortest(value: float) -> float:
    """Return the number of the fewest digits that stands for the same float of 32 bits, as JSON has it."""
    exact = _FLOAT.pack(value)
    return next(each for digits in range(6, 10) if _FLOAT.pack(each := float(f"{value:.{digits}g}")) == exact)


_NUMBERS: Mapping[str, Read] = {
    "float": _number(READERS["float"], _shortest),
    "double": _number(READERS["double"], lambda value: value),
}


def _without_logical_types(schema: Schema) -> Schema:
    """Return a schema whose values are numbers and bytes, as Connect's JSON has them."""
    references = tuple(
        Reference(each.name, each.subject, each.version, _without_logical_types(each.schema))
        for each in schema.references
    )
    return Schema(schema.kind, json.dumps(_bare(json.loads(schema.text))), references)


def _bare(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _bare(each) for name, each in tree.items() if name != "logicalType"}
    return [_bare(each) for each in tree] if isinstance(tree, list) else tree


_PRIMITIVES = {
    "null": "string",
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium.time."
_LOGICAL = {
    ("int", "date"): f"{_CONNECT}Date",
    ("int", "time-millis"): f"{_CONNECT}Time",
    ("long", "time-micros"): f"{_DEBEZIUM}MicroTime",
    ("long", "timestamp-millis"): f"{_CONNECT}Timestamp",
    ("long", "timestamp-micros"): f"{_DEBEZIUM}MicroTimestamp",
    ("long", "timestamp-nanos"): f"{_DEBEZIUM}NanoTimestamp",
    ("long", "local-timestamp-millis"): f"{_CONNECT}Timestamp",
    ("long", "local-timestamp-micros"): f"{_DEBEZIUM}MicroTimestamp",
    ("long", "local-timestamp-nanos"): f"{_DEBEZIUM}NanoTimestamp",
    ("bytes", "decimal"): f"{_CONNECT}Decimal",
    ("fixed", "decimal"): f"{_CONNECT}Decimal",
}
"""The names of Connect's types for Avro's, for converters that do not write the names (``connect.meta.data=false``)."""


class _Describer:
    """Makes the schema of Connect's JSON from one of Avro, with all that tells what a field stands for."""

    def __init__(self, schema: Schema) -> None:
        self._names: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._left = _MOST_TYPES
        for text in _texts(schema):
            self._tree = json.loads(text)
            self._collect(self._tree, "")

    def described(self, only: str | None) -> dict[str, Any]:
        """Return the schema of the record, perhaps with a single one of its fields."""
        tree = self._tree
        if only is not None and isinstance(tree, dict) and tree.get("type") == "record":
            tree = {**tree, "fields": [each for each in tree["fields"] if each["name"] == only]}
        return self._schema(tree, "", frozenset())

    def _collect(self, tree: Any, space: str) -> None:
        """Note all types that have a name, and the namespace that names within them belong to."""
        if isinstance(tree, list):
            for each in tree:
                self._collect(each, space)
        elif isinstance(tree, dict):
            inner = space
            if "name" in tree and tree.get("type") in _NAMED:
                full = _full_name(tree, space)
                inner = full.rpartition(".")[0]
                self._names[full] = tree, space
            for each in tree.get("fields") or ():
                self._collect(each["type"], inner)
            for part in ("items", "values", "type"):
                self._collect(tree.get(part), inner)

    def _schema(self, tree: Any, space: str, around: frozenset[str]) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            raise Mismatched(f"a schema of more than {_MOST_TYPES} types")
        if isinstance(tree, str):
            if tree in _PRIMITIVES:
                return {"type": _PRIMITIVES[tree]}
            full = f"{space}.{tree}" if space and f"{space}.{tree}" in self._names else tree
            return self._schema(*self._names[full], around)
        if isinstance(tree, list):
            others = [each for each in tree if each != "null"]
            return self._schema(others[0], space, around) if len(others) == 1 else {"type": "union"}
        kind = tree["type"]
        if not isinstance(kind, str) or kind not in _KINDS:
            return self._schema(kind, space, around)
        found: dict[str, Any] = {"type": _KINDS[kind]}
        name = tree.get("connect.name") or _LOGICAL.get((kind, str(tree.get("logicalType"))))
        if kind == "record":
            full = _full_name(tree, space)
            name = name or full
            inner, inside = full.rpartition(".")[0], around | {full}
            fields = [] if full in around else tree["fields"]
            found["fields"] = [{"field": each["name"], **self._schema(each["type"], inner, inside)} for each in fields]
        elif kind == "array":
            found["items"] = self._schema(tree["items"], space, around)
        if name is not None:
            found |= {"name": name, "parameters": _parameters(tree)}
        return found


_NAMED = ("record", "error", "enum", "fixed")
_KINDS = {**_PRIMITIVES, "record": "struct", "enum": "string", "fixed": "bytes", "array": "array", "map": "map"}


def _texts(schema: Schema) -> Iterator[str]:
    """Yield the texts of a schema and of all that it refers to, itself last."""
    for each in schema.references:
        yield from _texts(each.schema)
    yield schema.text


def _full_name(tree: Mapping[str, Any], space: str) -> str:
    name = str(tree["name"])
    given = tree.get("namespace")
    space = given if isinstance(given, str) else space
    return name if "." in name or not space else f"{space}.{name}"


def _parameters(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a type of Connect; those of a decimal without any are Avro's."""
    given = tree.get("connect.parameters")
    if isinstance(given, dict):
        return given
    names: Sequence[tuple[str, str]] = (("scale", "scale"), ("precision", "connect.decimal.precision"))
    found = {name: str(tree[of]) for of, name in names if isinstance(tree.get(of), int)}
    if tree.get("logicalType") == "decimal" and "connect.name" not in tree:
        found.setdefault("scale", "0")
    return found
