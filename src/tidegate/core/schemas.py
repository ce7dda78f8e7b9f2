"""Schemas of a schema registry: what a registry answers, how records name their schema, and the names of subjects."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, assert_never

from tidegate.errors import TidegateError

__all__ = [
    "CONNECT_AVRO",
    "SCHEMA_FORMATS",
    "Framed",
    "Reference",
    "Registered",
    "Schema",
    "SchemaKind",
    "SchemaRegistry",
    "SubjectName",
    "UnknownSchema",
    "WithoutSchema",
    "framed",
    "unframed",
]


class SchemaKind(StrEnum):
    """The language of a schema, as registries name it."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


SCHEMA_FORMATS = {"avro": SchemaKind.AVRO, "protobuf": SchemaKind.PROTOBUF, "json-schema": SchemaKind.JSON}
"""The names of the formats whose records name a schema of a registry."""

CONNECT_AVRO = ("connect-avro", "debezium-avro")
"""The names of the formats of Kafka Connect whose records do so, too."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one refers to by ``name``, and where the registry keeps it."""

    name: str
    subject: str
    version: int
    schema: Schema


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as text, with all schemas that it refers to, each with its own references."""

    kind: SchemaKind
    text: str
    references: tuple[Reference, ...] = ()


class Registered(NamedTuple):
    """A version of a subject."""

    id: int
    version: int
    schema: Schema


class UnknownSchema(TidegateError):
    """The registry answers that it has no such schema, subject or version, or has one that cannot be used.

    It may have it later.
    """


class SchemaRegistry(Protocol):
    """A schema registry. Answers are cached, also those that a schema is unknown, which are asked for again later.

    Every method raises :class:`~tidegate.errors.RegistryUnavailable` if the registry does not answer in time or refuses
    the login. Threads may share a registry, and pickling one keeps its address, login and TLS only.
    """

    def by_id(self, number: int) -> Schema:
        """Return a schema by its id, with its references; raises :class:`UnknownSchema`."""

    def latest(self, subject: str) -> Registered:
        """Return the latest version of a subject; raises :class:`UnknownSchema`. Cached for a while."""

    def id_of(self, subject: str, schema: Schema, *, register: bool) -> int:
        """Return the id of a schema under a subject.

        With ``register`` it is registered if it is new; without it, :class:`UnknownSchema` is raised if it is. Raises
        :class:`~tidegate.errors.SchemaRefused` if the registry refuses the schema, because it is invalid or not
        compatible.
        """


class SubjectName(StrEnum):
    """How the subject of a schema is named, as by Confluent's serializers."""

    TOPIC = "topic"
    """``<topic>-value`` and ``<topic>-key``."""
    RECORD = "record"
    """The full name of the record in the schema."""
    TOPIC_RECORD = "topic-record"
    """``<topic>-<full name of the record>``."""

    def of(self, topic: str, part: str, record: str) -> str:
        """Return the subject for a part (``key`` or ``value``) of records of a topic."""
        match self:
            case SubjectName.TOPIC:
                return f"{topic}-{part}"
            case SubjectName.RECORD:
                return record
            case SubjectName.TOPIC_RECORD:
                return f"{topic}-{record}"
            case other:
                assert_never(other)


class Framed(NamedTuple):
    """The id of a schema, and the bytes that were written by it.

    ``chosen`` is what a header has after the id: for Protobuf, which message of the schema it is. ``None`` if the id is
    in front of the bytes; then that is, too.
    """

    id: int
    data: bytes
    chosen: bytes | None = None


class WithoutSchema(ValueError):
    """A key or value does not name a schema; the message says why, and never quotes the bytes."""


_FRAME = struct.Struct(">bI")
_CONTENT_ID = struct.Struct(">q")
_MAGIC = 0
_MAGIC_GUID = 1


def framed(number: int, data: bytes) -> bytes:
    """Return the bytes with the id of their schema in front: a zero byte, and the id in four bytes."""
    return _FRAME.pack(_MAGIC, number) + data


def unframed(data: bytes, headers: Sequence[tuple[str, bytes | None]], part: str) -> Framed:
    """Return the id of the schema of a key or value, from its headers or its first bytes.

    Raises :class:`WithoutSchema` if there is none.

    The headers are ``__value_schema_id`` and ``__key_schema_id`` (Confluent: a zero byte and an id, and perhaps the
    choice of a message; GUIDs are not supported), and ``apicurio.value.contentId`` and ``apicurio.key.contentId``
    (Apicurio: the id in eight bytes). The last header of a name counts.
    """
    for name, value in reversed(headers or ()):
        if name == f"__{part}_schema_id":
            number, chosen = _id_in(name, value)
            return Framed(number, data, chosen)
        if name == f"apicurio.{part}.contentId":
            if value is None or len(value) != _CONTENT_ID.size or value[:4] != bytes(4):
                raise WithoutSchema(f"the header {name} is no id of a schema")
            return Framed(_CONTENT_ID.unpack(value)[0], data, b"")
    if len(data) < _FRAME.size:
        raise WithoutSchema(f"the {part} is too short to name its schema: {len(data)} bytes")
    magic, number = _FRAME.unpack_from(data)
    if magic != _MAGIC:
        raise WithoutSchema(
            f"the {part} does not begin with the id of a schema (a zero byte, and the id in four bytes)"
        )
    return Framed(number, data[_FRAME.size :])


def _id_in(name: str, value: bytes | None) -> tuple[int, bytes]:
    if value is not None and len(value) >= _FRAME.size and value[0] == _MAGIC:
        return int(_FRAME.unpack_from(value)[1]), value[_FRAME.size :]
    if value is not None and value[:1] == bytes([_MAGIC_GUID]):
        raise WithoutSchema(f"the header {name} has a GUID, and only ids of schemas are supported")
    raise WithoutSchema(f"the header {name} is no id of a schema")
