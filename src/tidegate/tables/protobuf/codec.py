"""The codec of Protobuf: reads and writes the messages of a schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from tidegate.core.schemas import Schema
from tidegate.core.text import is_utf8
from tidegate.tables.codec import Codec, Mismatched
from tidegate.tables.protobuf.schema import MessageTypes, read_index, written_index
from tidegate.tables.protobuf.values import MessageReader, MessageWriter, column_type, is_repeated
from tidegate.tables.types import ColumnType, TypeName

if TYPE_CHECKING:
    from tidegate.tables.format import FieldMatch, FieldReader, Wanted

__all__ = ["MessageCodec", "ProtobufCodec", "is_record"]


class MessageCodec(Codec):
    """Reads and writes one type of message."""

    whole: ColumnType | None = ColumnType(TypeName.JSON)

    def __init__(self, types: MessageTypes, message_type: type[Message], index: tuple[int, ...]) -> None:
        self._types = types
        self.type = message_type
        self.descriptor: Descriptor = message_type.DESCRIPTOR
        self.name: str = self.descriptor.full_name
        self._index = index
        self.fields: Mapping[str, ColumnType | None] = _types_of(self.descriptor)
        self._readers: dict[str, MessageReader] = {}
        self.reader = self.reader_of(self.descriptor)
        self._write = MessageWriter(self.descriptor)
        self.has_required = _has_required(self.descriptor, set())

    def inside(self, name: str) -> Mapping[str, ColumnType | None] | None:
        """Return the column types of the fields of a nested message, by the path to it."""
        at = self.descriptor
        for step in name.split("."):
            field = at.fields_by_name.get(step)
            if field is None or not is_record(field):
                return None
            at = field.message_type
        return _types_of(at)

    def selected(self, data: bytes) -> tuple[Codec, bytes]:
        """Return this codec: the message has been chosen."""
        return self, data

    def columns(self, wanted: Sequence[Wanted], watch: FieldMatch | None) -> FieldReader:
        """Return a reader of columns, which makes no dictionary for each message."""
        from tidegate.tables.protobuf.columns import MessageColumns  # noqa: PLC0415 - needs another extra

        return MessageColumns(self, wanted, watch)

    def reader_of(self, descriptor: Descriptor) -> MessageReader:
        """Return the reader of a type of message that the schema has."""
        found = self._readers.get(descriptor.full_name)
        if found is None:
            found = self._readers[descriptor.full_name] = MessageReader(descriptor)
        return found

    def parsed(self, data: bytes) -> Message:
        """Return the message; raises :class:`Mismatched` if the bytes are none, or a required field is missing."""
        try:
            message = self.type.FromString(data)
        except DecodeError:
            raise blamed(self.descriptor, data) from None
        if self.has_required and not self.type.IsInitialized(message):
            raise _lacking(message)
        return message

    def decode(self, data: bytes) -> Any:
        """Return the fields of a message."""
        try:
            return self.reader(self.parsed(data))
        except RecursionError:
            raise Mismatched("a message that is nested too deep") from None

    def encode(self, value: Any) -> bytes:
        """Return the index and the bytes of a message, from a mapping, a dataclass, a model or a message."""
        if isinstance(value, Message):
            index = self._index_of(value)
        else:
            index, given = self._index, value
            value = self.type()
            try:
                self._write(value, given)
            except RecursionError:
                raise Mismatched("a value that is nested too deep") from None
        try:
            data: bytes = type(value).SerializeToString(value)
        except EncodeError:
            raise _lacking(value) from None
        return written_index(index) + data

    def name_of(self, value: Any) -> str:
        """Return the full name of the message that a value is, or becomes."""
        return str(value.DESCRIPTOR.full_name) if isinstance(value, Message) else self.name

    def _index_of(self, message: Message) -> tuple[int, ...]:
        name = message.DESCRIPTOR.full_name
        try:
            return self._types.index_of(name)
        except KeyError:
            raise Mismatched(f"a message of the type {name}, which the schema does not have") from None


class ProtobufCodec(MessageCodec):
    """Reads and writes the messages of one schema.

    Bytes begin with the index of their message. Values that are no messages become the first message of the schema.
    """

    def __init__(self, schema: Schema) -> None:
        """Compile the schema; raises :class:`Mismatched` if it is invalid."""
        types = MessageTypes(schema)
        try:
            first = types.at((0,))
        except Mismatched:
            raise Mismatched("the Protobuf schema has no message") from None
        super().__init__(types, first, (0,))
        self._codecs: dict[tuple[int, ...], MessageCodec] = {}

    def selected(self, data: bytes) -> tuple[MessageCodec, bytes]:
        """Return the codec of the message that the bytes begin with the index of, and the message itself."""
        index, at = read_index(data)
        codec = self._codecs.get(index)
        if codec is None:
            codec = self._codecs[index] = MessageCodec(self._types, self._types.at(index), index)
        return codec, data[at:]

    def decode(self, data: bytes) -> Any:
        """Return the fields of a message, after its index."""
        codec, rest = self.selected(data)
        return codec.decode(rest)


def is_record(field: FieldDescriptor) -> bool:
    """Whether a field is a single nested message, and not one of those that stand for a value."""
    kind = column_type(field)
    return field.message_type is not None and not is_repeated(field) and kind == _NESTED and not _is_free(field)


_NESTED = ColumnType.of("json")


def _is_free(field: FieldDescriptor) -> bool:
    return str(field.message_type.full_name).startswith("google.protobuf.")


def _types_of(descriptor: Descriptor) -> dict[str, ColumnType | None]:
    return {field.name: column_type(field) for field in descriptor.fields}


def _has_required(descriptor: Descriptor, seen: set[str]) -> bool:
    """Whether a message or one within it has fields that are required, as in proto2."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        field.is_required or (field.message_type is not None and _has_required(field.message_type, seen))
        for field in descriptor.fields
    )


def _lacking(message: Message) -> Mismatched:
    """Return the error for a message without a required field. Its path ends before the key of a map, a value."""
    missing = type(message).FindInitializationErrors(message)  # not a method of the message: a field may have its name
    path, bracket, _ = (missing[0] if missing else "").partition("[")
    return Mismatched("missing within it, and the schema requires it" if bracket else _REQUIRED, path)


_REQUIRED = "missing, and the schema requires it"


# Finding the field that the decoder failed at: the decoder itself does not name it.

_FIXED = {1: 8, 5: 4}
_LENGTH = 2
_TOO_SHORT = "the bytes end within it"


def blamed(descriptor: Descriptor, data: bytes, depth: int = 100) -> Mismatched:
    """Return the error for bytes that are no message, with the path of the field that they fail at."""
    found = _failure(descriptor, data, depth)
    return found or Mismatched("the bytes are no message of this type")


def _failure(descriptor: Descriptor, data: bytes, depth: int) -> Mismatched | None:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = (tag or 0) >> 3, (tag or 0) & 7
        if tag is None or number == 0 or wire > 5:
            return Mismatched("the bytes are no message of this type")
        field = descriptor.fields_by_number.get(number)
        name = f"number {number}" if field is None else field.name
        size: int | None = _FIXED.get(wire, 0)
        if wire in (0, _LENGTH):
            size, at = _varint(data, at)
            if size is None:
                return Mismatched(_TOO_SHORT, name)
        if wire == 0:
            continue
        if wire in (3, 4):  # groups are rare; their fields follow without a length
            continue
        if size is None or at + size > len(data):
            return Mismatched(_TOO_SHORT, name)
        part, at = data[at : at + size], at + size
        if field is None or wire != _LENGTH:
            continue
        if field.type == FieldDescriptor.TYPE_STRING and not is_utf8(part):
            return Mismatched("text that is not UTF-8", name)
        if field.message_type is not None and field.type == FieldDescriptor.TYPE_MESSAGE and depth:
            inner = _failure(field.message_type, part, depth - 1)
            if inner is not None:
                return Mismatched(inner.why, f"{name}.{inner.path}".rstrip("."))
    return None


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    found = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            return found, at
    return None, at
