"""Reading values of Avro: one function per type, which takes bytes and where to begin."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, TypeAlias
from uuid import UUID

from tidegate.tables.avro.schema import AvroSchema, Tree
from tidegate.tables.codec import Mismatched

__all__ = ["DAY", "EPOCH", "EXACT", "FIRST_DAY", "LOCAL_EPOCH", "READERS", "AvroReader", "Read", "under"]

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""Takes bytes and where a value begins in them; returns the value, and where it ends."""

_Convert: TypeAlias = Callable[[Any], Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOCAL_EPOCH = datetime(1970, 1, 1)  # without a zone, as local timestamps are
FIRST_DAY = date(1970, 1, 1)
DAY = 86_400_000_000
"""The microseconds of a day."""
EXACT = Context(prec=1_000_000)
"""Decimals of this context are never rounded."""

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_MOST_EMPTY = 65_536  # elements and fields of one value that take no bytes
_EMPTY_PER_BYTE = 8  # more of them, for each byte of the value
_ENDS = "the bytes end too early"
_SMALL = [(byte >> 1) ^ -(byte & 1) for byte in range(0x80)]  # the numbers of one byte


class AvroReader:
    """Reads the values of one schema. It refuses all bytes that Avro's specification does not allow."""

    def __init__(self, schema: AvroSchema, *, only_finite: bool = False, own: Mapping[str, Read] | None = None) -> None:
        """With ``only_finite``, values with infinite numbers in them are refused, too.

        ``own`` has readers of primitive types to use instead of :data:`READERS`.
        """
        self._schema = schema
        self._primitives = {**READERS, **(_FINITE if only_finite else {}), **(own or {})}
        self._readers: dict[str, Read] = {}
        self._left = threading.local()
        self.spends = False
        """Whether there may be elements or fields that take no bytes, which are counted."""
        self._read = self.reader_of(schema.tree)

    def read(self, data: bytes) -> Any:
        """Return the value of all of these bytes; raises :class:`Mismatched`."""
        self._left.empty = _MOST_EMPTY + _EMPTY_PER_BYTE * len(data)
        try:
            value, end = self._read(data, 0)
        except RecursionError:
            raise Mismatched("a value that is nested too deep") from None
        if end != len(data):
            raise Mismatched(f"{len(data) - end} bytes are left over")
        return value

    def _spend(self, count: int) -> None:
        """Count elements or fields that take no bytes: otherwise a few bytes could stand for any number of them."""
        self._left.empty -= count
        if self._left.empty < 0:
            raise Mismatched("more elements and fields that take no bytes than are allowed")

    def reader_of(self, tree: Tree) -> Read:
        """Return the reader of a type that the schema has. Not while others read."""
        if isinstance(tree, list):
            return self._union_reader([self.reader_of(each) for each in tree])
        if isinstance(tree, str):
            return self._primitives[tree]
        if tree["type"] == "name":
            readers, name = self._readers, tree["name"]
            if name not in readers:  # of a referenced schema; those around this one are there, not yet complete
                self.reader_of(self._schema.names[name])
            return lambda data, at: readers[name](data, at)  # noqa: PLW0108 - looked up late
        if tree["type"] == "record":
            self._readers[tree["name"]] = _incomplete
        read = self._plain_reader(tree)
        if "logicalType" in tree:
            read = _converting(read, _CONVERSIONS[tree["logicalType"]](tree))
        if "name" in tree:
            self._readers[tree["name"]] = read
        return read

    def _plain_reader(self, tree: Tree) -> Read:
        """Return the reader of a type without its logical type."""
        match tree["type"]:
            case "array":
                items = tree["items"]
                is_empty = self._schema.is_empty(items)
                self.spends |= is_empty
                return _array_reader(self.reader_of(items), self._spend if is_empty else None)
            case "map":
                return _map_reader(self.reader_of(tree["values"]))
            case "record":
                parts = [(each["name"], self.reader_of(each["type"])) for each in tree["fields"]]
                empty = sum(self._schema.is_empty(each["type"]) for each in tree["fields"])
                self.spends |= empty > 0
                return _spending(_record_reader(parts), self._spend, empty) if empty else _record_reader(parts)
            case "enum":
                return _enum_reader(tree["symbols"])
            case "fixed":
                return _fixed_reader(tree["size"])
            case kind:
                return self._primitives[kind]

    @staticmethod
    def _union_reader(branches: list[Read]) -> Read:
        count = len(branches)
        few = min(count, 0x40)  # whose numbers take one byte

        def read(data: bytes, at: int) -> tuple[Any, int]:
            if at < len(data) and (byte := data[at]) >> 1 < few and not byte & 1:
                return branches[byte >> 1](data, at + 1)
            branch, at = _long(data, at)
            if not 0 <= branch < count:
                raise Mismatched("no branch of the union")
            return branches[branch](data, at)

        return read


def _incomplete(*_: Any) -> Any:
    """Stand for the reader or writer of a record whose fields are being looked at."""
    raise Mismatched("the schema is not complete")


# Primitive values: reading


def _long(data: bytes, at: int) -> tuple[int, int]:
    try:
        found = data[at]
        at += 1
        if found < 0x80:
            return _SMALL[found], at
        found &= 0x7F
        for shift in range(7, 70, 7):
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        else:
            found = 1 << 64
    except IndexError:
        raise Mismatched(_ENDS) from None
    if found >> 64:
        raise Mismatched("a number of more than 64 bits")
    return (found >> 1) ^ -(found & 1), at


def _int(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and (byte := data[at]) < 0x80:
        return _SMALL[byte], at + 1
    found, at = _long(data, at)
    if not -(1 << 31) <= found < 1 << 31:
        raise Mismatched("a number of more than 32 bits")
    return found, at


def _null(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    raw, at = _raw(data, at, 1)
    if raw > b"\x01":
        raise Mismatched("a byte that is no boolean")
    return raw == b"\x01", at


def _float(data: bytes, at: int) -> tuple[float, int]:
    try:
        return _FLOAT.unpack_from(data, at)[0], at + 4
    except struct.error:
        raise Mismatched(_ENDS) from None


def _double(data: bytes, at: int) -> tuple[float, int]:
    try:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    except struct.error:
        raise Mismatched(_ENDS) from None


def _raw(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0:
        raise Mismatched("a length below zero")
    end = at + size
    if end > len(data):
        raise Mismatched(_ENDS)
    return data[at:end], end


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _raw(data, at, size)


def _string(data: bytes, at: int) -> tuple[str, int]:
    try:
        size = data[at]
        if size < 0x80 and not size & 1:  # as almost always: without a call for each part
            begin = at + 1
            end = begin + (size >> 1)
            if end <= len(data):
                return str(data[begin:end], "utf-8"), end
        raw, at = _bytes(data, at)
        return str(raw, "utf-8"), at
    except IndexError:
        raise Mismatched(_ENDS) from None
    except UnicodeDecodeError:
        raise Mismatched("text that is not UTF-8") from None


def _finite(read: Read) -> Read:
    def finite(data: bytes, at: int) -> tuple[float, int]:
        value, at = read(data, at)
        if value - value != 0:
            raise Mismatched("a number that is not finite")
        return value, at

    return finite


_FINITE: dict[str, Read] = {"float": _finite(_float), "double": _finite(_double)}
READERS: dict[str, Read] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
"""The readers of primitive types."""


# Complex values: reading


def _converting(read: Read, convert: _Convert) -> Read:
    def converting(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        return convert(value), at

    return converting


def _enum_reader(symbols: Sequence[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        number, at = _int(data, at)
        if not 0 <= number < len(symbols):
            raise Mismatched("a number that is no symbol of the enum")
        return symbols[number], at

    return read


def _fixed_reader(size: int) -> Read:
    return lambda data, at: _raw(data, at, size)


def _record_reader(parts: Sequence[tuple[str, Read]]) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, part in parts:
            try:
                found[name], at = part(data, at)
            except Mismatched as mismatch:
                raise under(name, mismatch) from None
        return found, at

    return read


def _spending(read: Read, spend: Callable[[int], None], empty: int) -> Read:
    def spending(data: bytes, at: int) -> tuple[Any, int]:
        spend(empty)
        return read(data, at)

    return spending


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Return how many elements a block has, and where they begin; a block without elements is the last."""
    if at < len(data) and (byte := data[at]) < 0x80 and not byte & 1:
        return byte >> 1, at + 1
    count, at = _long(data, at)
    if count < 0:
        _, at = _long(data, at)  # the bytes of the block
    return abs(count), at


def _array_reader(item: Read, spend: Callable[[int], None] | None) -> Read:
    """Return the reader of an array; ``spend`` counts its elements if they take no bytes."""

    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        count, at = _block(data, at)
        while count:
            if spend is not None:
                spend(count)
            elif count > len(data):
                raise Mismatched("more elements than there are bytes")
            for _ in range(count):
                try:
                    value, at = item(data, at)
                except Mismatched as mismatch:
                    raise under(f"[{len(found)}]", mismatch) from None
                found.append(value)
            if at < len(data) and not data[at]:  # there is one block, as almost always
                return found, at + 1
            count, at = _block(data, at)
        return found, at

    return read


def _map_reader(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        count, at = _block(data, at)
        while count:
            if count > len(data):
                raise Mismatched("more entries than there are bytes")
            for _ in range(count):
                try:
                    name, at = _string(data, at)
                    found[name], at = item(data, at)
                except Mismatched as mismatch:
                    raise under("{}", mismatch) from None
            count, at = _block(data, at)
        return found, at

    return read


def under(name: str, mismatch: Mismatched) -> Mismatched:
    """Return the mismatch with its path extended at the front."""
    below = mismatch.path
    return Mismatched(mismatch.why, f"{name}{'' if not below or below[0] in '[{' else '.'}{below}")


# Logical values: reading. Each function takes the type and returns what converts its values.


def _as_decimal(tree: Mapping[str, Any]) -> _Convert:
    precision, scale = tree["precision"], tree["scale"]
    most = 10**precision

    def convert(raw: bytes) -> Decimal:
        if not raw:
            raise Mismatched("a decimal without bytes")
        unscaled = int.from_bytes(raw, "big", signed=True)
        if not -most < unscaled < most:
            raise Mismatched(f"a decimal with more than {precision} digits")
        return Decimal(unscaled).scaleb(-scale, EXACT)

    return convert


def _as_uuid(tree: Mapping[str, Any]) -> _Convert:
    def convert(raw: str | bytes) -> UUID:
        try:
            return UUID(raw) if isinstance(raw, str) else UUID(bytes=raw)
        except ValueError:
            raise Mismatched("text that is not a UUID") from None

    return convert


def _as_date(tree: Mapping[str, Any]) -> _Convert:
    def convert(number: int) -> date:
        try:
            return FIRST_DAY + timedelta(number)
        except OverflowError:
            raise Mismatched("a date outside of the years 1 to 9999") from None

    return convert


def _as_time(tree: Mapping[str, Any]) -> _Convert:
    ticks = 1_000 if tree["logicalType"] == "time-millis" else 1

    def convert(number: int) -> time:
        if not 0 <= number * ticks < DAY:
            raise Mismatched("a time that is not within a day")
        return (LOCAL_EPOCH + timedelta(microseconds=number * ticks)).time()

    return convert


def _as_timestamp(tree: Mapping[str, Any]) -> _Convert:
    ticks = 1_000 if tree["logicalType"].endswith("millis") else 1
    epoch = LOCAL_EPOCH if tree["logicalType"].startswith("local") else EPOCH

    def convert(number: int) -> datetime:
        try:
            return epoch + timedelta(microseconds=number * ticks)
        except OverflowError:
            raise Mismatched("a timestamp outside of the years 1 to 9999") from None

    return convert


_CONVERSIONS: dict[str, Callable[[Mapping[str, Any]], _Convert]] = {
    "decimal": _as_decimal,
    "uuid": _as_uuid,
    "date": _as_date,
    "time-millis": _as_time,
    "time-micros": _as_time,
    "timestamp-millis": _as_timestamp,
    "timestamp-micros": _as_timestamp,
    "local-timestamp-millis": _as_timestamp,
    "local-timestamp-micros": _as_timestamp,
}
