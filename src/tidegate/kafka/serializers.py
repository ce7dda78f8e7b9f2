"""Serializers: functions that turn keys and values into bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, TypeAlias, get_type_hints
from uuid import UUID

from tidegate.core.arguments import Accepts, argument
from tidegate.core.schemas import (
    SCHEMA_FORMATS,
    Reference,
    Schema,
    SchemaRegistry,
    SubjectName,
    UnknownSchema,
    framed,
)
from tidegate.core.text import is_text
from tidegate.errors import ConfigurationError, SchemaRefused
from tidegate.kafka.registry import open_registry
from tidegate.tables.codec import Mismatched, codec_of

__all__ = ["NotSerializable", "SchemaSerializer", "Serializer", "SerializerChoice", "serializer"]


class NotSerializable(TypeError):
    """A built-in serializer cannot convert a value. The message names the type and never quotes the value."""


Serializer: TypeAlias = Callable[[Any], bytes | None]
SerializerChoice: TypeAlias = "str | Serializer | SchemaSerializer | None"
"""The name of a built-in serializer, a function, or ``None`` to serialize each value by its type."""

_SCHEMAS = ", ".join(map(repr, SCHEMA_FORMATS))
_CHOICES = f"'bytes', 'str', 'json', {_SCHEMAS}, a SchemaSerializer or a function that returns bytes"


def serializer(name: str, choice: SerializerChoice, registry: SchemaRegistry | None) -> Serializer | SchemaSerializer:
    """Return the serializer for ``choice``; an error calls the argument ``name``."""
    found: Any = argument(name, _SerializerArgument, by_type if choice is None else choice)
    return found.with_registry(registry) if isinstance(found, SchemaSerializer) else found


def _serializer(given: Any) -> Serializer | SchemaSerializer | None:
    if is_text(given) and given in SCHEMA_FORMATS:
        return SchemaSerializer(format=given)
    if is_text(given):
        return _BY_NAME.get(given)
    return given if callable(given) or isinstance(given, SchemaSerializer) else None


def _schema_format(given: Any) -> str | None:
    return given if is_text(given) and given in SCHEMA_FORMATS else None


def _references(given: Any) -> tuple[Reference, ...] | None:
    is_listed = isinstance(given, (list, tuple)) and all(isinstance(each, Reference) for each in given)
    return tuple(given) if is_listed else None


def _schema_text(given: Any) -> str | None:
    if isinstance(given, (dict, list)):
        return json.dumps(given)
    return given if is_text(given) else None


@dataclass(frozen=True)
class SchemaSerializer:
    """Serializes keys or values by a schema, whose id it writes in front of them, as Confluent's serializers do.

    ``schema`` is its text, or a dictionary; without it, the latest version of the subject is used. ``subject`` is how
    the subject is named: ``topic``, ``record`` or ``topic-record``. With ``register``, a schema that is new is
    registered; otherwise it has to be there. ``references`` are the schemas that it refers to, as the registry has
    them. ``registry`` is by default that of the producer.
    """

    schema: Annotated[str, Accepts("a schema, as text or a dictionary", _schema_text)] | None = None
    format: Annotated[str, Accepts(" or ".join(map(repr, SCHEMA_FORMATS)), _schema_format, tuple(SCHEMA_FORMATS))] = (
        "avro"
    )
    subject: SubjectName = SubjectName.TOPIC
    register: bool = True
    references: Annotated[tuple[Reference, ...], Accepts("a list of References", _references)] = ()
    registry: Any = None

    def __post_init__(self) -> None:
        for name in ("schema", "format", "subject", "register", "references"):
            hint = get_type_hints(type(self), include_extras=True)[name]
            object.__setattr__(self, name, argument(name, hint, getattr(self, name)))
        object.__setattr__(self, "registry", open_registry(self.registry))
        if self.schema is None and self.subject is not SubjectName.TOPIC:
            raise ConfigurationError(
                "without a schema, the latest version of the subject is used, and only subject='topic' is known then"
            )
        if self.schema is not None:
            try:
                _ = codec_of(self._schema)
            except Mismatched as mismatch:
                raise ConfigurationError(f"schema: {mismatch}") from None

    def with_registry(self, registry: SchemaRegistry | None) -> SchemaSerializer:
        """Return the serializer with this registry, unless it has one; raises if there is none."""
        if self.registry is None and registry is None:
            raise ConfigurationError("a serializer of schemas needs a registry; pass registry='http://host:8081'")
        return self if self.registry is not None else replace(self, registry=registry)

    def serialize(self, value: Any, topic: str, part: str) -> bytes | None:
        """Return the bytes of a key or value; ``None`` is a tombstone.

        Raises :class:`NotSerializable` or :class:`~tidegate.errors.RegistryUnavailable`.
        """
        if value is None:
            return None
        try:
            if self.schema is None:
                number, _, schema = self.registry.latest(f"{topic}-{part}")
                if schema.kind is not SCHEMA_FORMATS[self.format]:
                    raise NotSerializable(f"the schema of the subject is of the kind {schema.kind.value}")
                return framed(number, codec_of(schema).encode(value))
            codec = codec_of(self._schema)
            data = codec.encode(value)
            subject = self.subject.of(topic, part, codec.name_of(value))
            return framed(self.registry.id_of(subject, self._schema, register=self.register), data)
        except (Mismatched, UnknownSchema, SchemaRefused) as error:
            raise NotSerializable(str(error)) from None

    @property
    def _schema(self) -> Schema:
        return Schema(SCHEMA_FORMATS[self.format], self.schema or "", self.references)


def by_type(value: Any) -> bytes | None:
    """Keep bytes, encode text as UTF-8 and models, dataclasses, dicts and lists as JSON; ``None`` is a tombstone."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict | list) or _is_model(value):
        return as_json(value)
    raise NotSerializable(
        f"a {type(value).__name__} is neither bytes, text, a dataclass, a model, a mapping nor a list; "
        f"choose a serializer: {_CHOICES}"
    )


def as_bytes(value: Any) -> bytes | None:
    """Accept bytes and ``None`` (a tombstone) only."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise NotSerializable(f"bytes are expected, not {type(value).__name__}")


def as_text(value: Any) -> bytes | None:
    """Encode ``str(value)`` as UTF-8; ``None`` is a tombstone."""
    return None if value is None else str(value).encode()


def as_json(value: Any) -> bytes | None:
    """Encode a value as compact JSON; ``None`` is a tombstone.

    Decimals, times and UUIDs become strings, which listeners read back without loss.
    """
    if value is None:
        return None
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    return _encode(value).encode()


def _plain(value: Any) -> Any:
    """Convert a value of a type that JSON lacks to one that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, datetime) and (offset := value.utcoffset()) and offset.total_seconds() % 60:
        value = value.astimezone(UTC)  # RFC 3339, and so a listener, knows no seconds in an offset
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotSerializable(f"JSON cannot represent a {type(value).__name__}")


def _is_model(value: Any) -> bool:
    return (is_dataclass(value) and not isinstance(value, type)) or hasattr(value, "model_dump_json")


_encode = json.JSONEncoder(default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_BY_NAME: dict[str, Serializer] = {"bytes": as_bytes, "str": as_text, "json": as_json}
_SerializerArgument: TypeAlias = Annotated[Any, Accepts(_CHOICES, _serializer, (*_BY_NAME, *SCHEMA_FORMATS))]
