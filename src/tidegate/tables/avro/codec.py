"""The codec of an Avro schema, and writing of values: one function per type, which appends bytes.

Nothing is rounded or left out silently.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from tidegate.core.schemas import Schema
from tidegate.tables.avro.reader import EPOCH, EXACT, FIRST_DAY, LOCAL_EPOCH, AvroReader, under
from tidegate.tables.avro.schema import AvroSchema, Tree
from tidegate.tables.codec import Codec, Mismatched
from tidegate.tables.types import ColumnType

if TYPE_CHECKING:
    from tidegate.tables.format import FieldMatch, FieldReader, Wanted

__all__ = ["AvroCodec"]

_Write: TypeAlias = Callable[[Any, bytearray], None]
_Convert: TypeAlias = Callable[[Any], Any]

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class AvroCodec(Codec):
    """Reads and writes the values of one Avro schema.

    They are read by the schema that they were written with. fastavro is not used: it rounds decimals that have too many
    digits, reads some damaged values as others, and a value that is nested a few thousand levels deep ends the process.
    """

    def __init__(self, schema: Schema) -> None:
        self.source = schema
        self._schema = AvroSchema(schema)
        try:
            self._reader, self._writer = AvroReader(self._schema), _Writer(self._schema)
        except (ValueError, LookupError, TypeError, RecursionError):
            raise Mismatched("the schema is not one of Avro that is understood here") from None
        tree = self._schema.tree
        self.name: str = tree.get("name", "") if isinstance(tree, dict) else ""
        self.fields = self._schema.fields
        self.whole = self._schema.whole

    def inside(self, name: str) -> Mapping[str, ColumnType | None] | None:
        """Return the column types of the fields of a nested record; ``None`` if it is not a record."""
        return self._schema.inside(name)

    def aliases(self, path: tuple[str, ...]) -> Mapping[str, Sequence[str]] | None:
        """Return all fields of the record at a path with their aliases; ``None`` if no field of the schema has any."""
        return self._schema.aliases(path) if self._schema.has_aliases else None

    def selected(self, data: bytes) -> tuple[Codec, bytes]:
        """Return this codec and the same bytes: Avro has one message per schema."""
        return self, data

    def decode(self, data: bytes) -> Any:
        """Return the value of all of these bytes; raises :class:`Mismatched`."""
        return self._reader.read(data)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value, without the id of its schema; raises :class:`Mismatched`."""
        return self._writer.write(value)

    def columns(self, wanted: Sequence[Wanted], watch: FieldMatch | None) -> FieldReader | None:
        """Return a reader of columns, which reads each field from all records at once."""
        from tidegate.tables.avro.columns import AvroColumns  # noqa: PLC0415 - needs numpy and pyarrow
        from tidegate.tables.feed import Clash  # noqa: PLC0415

        try:
            return AvroColumns(self, self._schema, wanted, watch)
        except (Clash, Mismatched):
            return None


class _Writer:
    """Writes values by one schema; refuses those that do not fit it. Times are cut off at the unit of their type."""

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._writers: dict[str, _Write] = {}
        self._write = self._writer(schema.tree)

    def write(self, value: Any) -> bytes:
        """Return the bytes of a value; raises :class:`Mismatched`."""
        out = bytearray()
        try:
            self._write(value, out)
        except RecursionError:
            raise Mismatched("a value that is nested too deep") from None
        return bytes(out)

    def _writer(self, tree: Tree) -> _Write:
        if isinstance(tree, list):
            return _union_writer([(self._schema.known(each), self._writer(each)) for each in tree])
        if isinstance(tree, str):
            return _WRITERS[tree]
        if tree["type"] == "name":
            writers, name = self._writers, tree["name"]
            if name not in writers:  # of a referenced schema; those around this one are there, not yet complete
                self._writer(self._schema.names[name])
            return lambda value, out: writers[name](value, out)  # noqa: PLW0108 - looked up late
        if tree["type"] == "record":
            self._writers[tree["name"]] = _incomplete
        write = self._plain_writer(tree)
        if "logicalType" in tree:
            write = _logical_writer(tree, write)
        if "name" in tree:
            self._writers[tree["name"]] = write
        return write

    def _plain_writer(self, tree: Tree) -> _Write:
        """Return the writer of a type without its logical type."""
        match tree["type"]:
            case "array":
                return _array_writer(self._writer(tree["items"]))
            case "map":
                return _map_writer(self._writer(tree["values"]))
            case "record":
                return _record_writer(
                    [(each["name"], self._writer(each["type"]), self._default(each)) for each in tree["fields"]]
                )
            case "enum":
                return _enum_writer(tree["symbols"])
            case "fixed":
                return _fixed_writer(tree["size"])
            case kind:
                return _WRITERS[kind]

    def _default(self, of_field: dict[str, Any]) -> Callable[[], bytes] | None:
        """Return what makes the bytes of a field's default, ``None`` if it has none."""
        if "default" not in of_field:
            return None
        known: list[bytes] = []

        def default() -> bytes:  # made late: the writers of types that contain themselves are not known before
            if not known:
                out = bytearray()
                self._write_default(of_field["type"], of_field["default"], out)
                known.append(bytes(out))
            return known[0]

        return default

    def _write_default(self, tree: Tree, value: Any, out: bytearray) -> None:
        """Write a default, which is JSON: numbers for dates, and text for bytes."""
        tree = self._schema.known(tree)
        if isinstance(tree, list):
            for branch, each in enumerate(tree):
                part = bytearray()
                try:
                    self._write_default(each, value, part)
                except Mismatched:
                    continue
                _write_long(branch, out)
                out += part
                return
            raise Mismatched("its default fits no branch of the union")
        kind = tree if isinstance(tree, str) else tree["type"]
        match kind:
            case "bytes" | "fixed":
                if not isinstance(value, str):
                    raise Mismatched("its default is not the text that stands for bytes")
                raw = value.encode("latin-1", "replace")
                (_WRITERS["bytes"] if kind == "bytes" else _fixed_writer(tree["size"]))(raw, out)
            case "enum":
                _enum_writer(tree["symbols"])(value, out)
            case "array":
                _array_writer(lambda each, to: self._write_default(tree["items"], each, to))(value, out)
            case "map":
                _map_writer(lambda each, to: self._write_default(tree["values"], each, to))(value, out)
            case "record":
                parts = [
                    (
                        each["name"],
                        lambda item, to, of=each["type"]: self._write_default(of, item, to),
                        self._default(each),
                    )
                    for each in tree["fields"]
                ]
                _record_writer(parts)(value, out)
            case _:
                _WRITERS[kind](value, out)


def _incomplete(*_: Any) -> Any:
    """Stand for the reader or writer of a record whose fields are being looked at."""
    raise Mismatched("the schema is not complete")


# Primitive values: writing


def _write_long(value: int, out: bytearray) -> None:
    left = (value << 1) ^ (value >> 63)
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)


def _whole_writer(bits: int) -> _Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _expected("a whole number", value)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise Mismatched(f"a number of more than {bits} bits")
        _write_long(value, out)

    return write


def _write_null(value: Any, _: bytearray) -> None:
    if value is not None:
        raise _expected("null", value)


def _write_boolean(value: Any, out: bytearray) -> None:
    if not isinstance(value, bool):
        raise _expected("a boolean", value)
    out.append(value)


def _number_writer(form: struct.Struct) -> _Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _expected("a number", value)
        try:
            out += form.pack(value)
            is_exact = isinstance(value, float) or form.unpack(form.pack(value))[0] == value
        except OverflowError:
            is_exact = False
        if not is_exact:
            raise Mismatched("a number that has too many digits, or is too large")

    return write


def _write_bytes(value: Any, out: bytearray) -> None:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _expected("bytes", value)
    raw = bytes(value)
    _write_long(len(raw), out)
    out += raw


def _write_string(value: Any, out: bytearray) -> None:
    if not isinstance(value, str):
        raise _expected("text", value)
    try:
        _write_bytes(value.encode(), out)
    except UnicodeEncodeError:
        raise Mismatched("text with half of a surrogate pair in it") from None


_WRITERS: dict[str, _Write] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _whole_writer(32),
    "long": _whole_writer(64),
    "float": _number_writer(_FLOAT),
    "double": _number_writer(_DOUBLE),
    "bytes": _write_bytes,
    "string": _write_string,
}


# Complex values: writing


def _enum_writer(symbols: Sequence[str]) -> _Write:
    numbers = {symbol: number for number, symbol in enumerate(symbols)}

    def write(value: Any, out: bytearray) -> None:
        value = value.value if isinstance(value, Enum) else value
        number = numbers.get(value) if isinstance(value, str) else None
        if number is None:
            raise Mismatched("no symbol of the enum")
        _write_long(number, out)

    return write


def _fixed_writer(size: int) -> _Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise _expected("bytes", value)
        if len(raw := bytes(value)) != size:
            raise Mismatched(f"{len(raw)} bytes instead of {size}")
        out += raw

    return write


def _array_writer(item: _Write) -> _Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, (list, tuple, set, frozenset)):
            raise _expected("a list", value)
        if value:
            _write_long(len(value), out)
        for number, each in enumerate(value):
            try:
                item(each, out)
            except Mismatched as mismatch:
                raise under(f"[{number}]", mismatch) from None
        out.append(0)

    return write


def _map_writer(item: _Write) -> _Write:
    def write(value: Any, out: bytearray) -> None:
        if not isinstance(value, Mapping):
            raise _expected("a mapping", value)
        if value:
            _write_long(len(value), out)
        for name, each in value.items():
            try:
                _write_string(name, out)
                item(each, out)
            except Mismatched as mismatch:
                raise under("{}", mismatch) from None
        out.append(0)

    return write


def _record_writer(parts: Sequence[tuple[str, _Write, Callable[[], bytes] | None]]) -> _Write:
    names = {name for name, _, _ in parts}

    def write(value: Any, out: bytearray) -> None:
        found = _mapping(value)
        if not found.keys() <= names:
            unknown = next(name for name in found if name not in names)
            raise Mismatched("the schema has no such field", str(unknown))
        for name, part, default in parts:
            try:
                if name in found:
                    part(found[name], out)
                elif default is not None:
                    out += default()
                else:
                    raise Mismatched("it is missing, and has no default")
            except Mismatched as mismatch:
                raise under(name, mismatch) from None

    return write


def _mapping(value: Any) -> Mapping[Any, Any]:
    """Return the fields of a mapping, a dataclass or a model."""
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value)}
    if hasattr(value, "model_dump"):
        found: Mapping[Any, Any] = value.model_dump()
        return found
    raise _expected("a mapping, a dataclass or a model", value)


def _union_writer(branches: Sequence[tuple[Tree, _Write]]) -> _Write:
    numbered = list(enumerate(branches))
    # A whole number goes into a branch of whole numbers, if there is one: a double would round large ones.
    numbered.sort(key=lambda each: each[1][0] in ("float", "double"))
    numbered.sort(key=lambda each: each[1][0] == "float")

    def write(value: Any, out: bytearray) -> None:
        failures = []
        for branch, (kind, part) in numbered:
            made = bytearray()
            try:
                part(value, made)
            except Mismatched as mismatch:
                if kind != "null":
                    failures.append(mismatch)
                continue
            _write_long(branch, out)
            out += made
            return
        raise failures[0] if len(failures) == 1 else Mismatched("the value fits no branch of the union")

    return write


# Logical values: writing


def _logical_writer(tree: Mapping[str, Any], write: _Write) -> _Write:
    convert = _RAW[tree["logicalType"]](tree)
    return lambda value, out: write(convert(value), out)


def _raw_decimal(tree: Mapping[str, Any]) -> _Convert:
    precision, scale, size = tree["precision"], tree["scale"], tree.get("size")

    def convert(value: Any) -> bytes:
        if not isinstance(value, (Decimal, int)) or isinstance(value, bool):
            raise _expected("a decimal", value)
        try:
            scaled = Decimal(value).scaleb(scale, EXACT)
            is_whole = scaled.is_finite() and scaled == scaled.to_integral_value(context=EXACT)
        except InvalidOperation:
            is_whole = False
        if not is_whole or scaled.adjusted() >= precision:
            raise Mismatched(f"a decimal that does not fit {precision} digits, {scale} of them after the point")
        number = int(scaled)
        needed = (number.bit_length() if number >= 0 else (number + 1).bit_length()) // 8 + 1
        if size is not None and needed > size:
            raise Mismatched(f"a decimal that does not fit {size} bytes")
        return number.to_bytes(size or needed, "big", signed=True)

    return convert


def _raw_uuid(tree: Mapping[str, Any]) -> _Convert:
    def convert(value: Any) -> str | bytes:
        try:
            found = value if isinstance(value, UUID) else UUID(value)
        except (ValueError, TypeError, AttributeError):
            raise _expected("a UUID", value) from None
        return found.bytes if tree["type"] == "fixed" else str(found)

    return convert


def _raw_date(tree: Mapping[str, Any]) -> _Convert:
    def convert(value: Any) -> int:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise _expected("a date", value)
        return (value - FIRST_DAY).days

    return convert


def _raw_time(tree: Mapping[str, Any]) -> _Convert:
    ticks = 1_000 if tree["logicalType"] == "time-millis" else 1

    def convert(value: Any) -> int:
        if not isinstance(value, time) or value.tzinfo is not None:
            raise _expected("a time without a zone", value)
        seconds = value.hour * 3600 + value.minute * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) // ticks

    return convert


def _raw_timestamp(tree: Mapping[str, Any]) -> _Convert:
    ticks = timedelta(milliseconds=1) if tree["logicalType"].endswith("millis") else timedelta(microseconds=1)
    is_local = tree["logicalType"].startswith("local")

    def convert(value: Any) -> int:
        if not isinstance(value, datetime) or (value.tzinfo is None) is not is_local:
            raise _expected(f"a datetime {'without' if is_local else 'with'} a zone", value)
        return (value - (LOCAL_EPOCH if is_local else EPOCH)) // ticks

    return convert


_RAW: dict[str, Callable[[Mapping[str, Any]], _Convert]] = {
    "decimal": _raw_decimal,
    "uuid": _raw_uuid,
    "date": _raw_date,
    "time-millis": _raw_time,
    "time-micros": _raw_time,
    "timestamp-millis": _raw_timestamp,
    "timestamp-micros": _raw_timestamp,
    "local-timestamp-millis": _raw_timestamp,
    "local-timestamp-micros": _raw_timestamp,
}


def _expected(what: str, value: Any) -> Mismatched:
    return Mismatched(f"expected {what}, got {'null' if value is None else type(value).__name__}")
