"""Scans of Protobuf: the fields of flat messages, each read from all messages of a batch at once.

Fields that a message has in the order of their numbers, as all libraries write them, are read so. All other messages
are left to be read one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidegate.tables.cursors import Cursors, Vector, signed
from tidegate.tables.protobuf.values import column_type, is_repeated, may_lack
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.vectors import MOMENTS, Values, texts_of, within

__all__ = ["FieldScan", "scanned", "scans_of"]

_Read: TypeAlias = Callable[[Cursors], Vector]
_Scan: TypeAlias = "Callable[[Cursors, Vector | None], Values]"

_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5  # the types on the wire
_LOW = np.uint64(2**32 - 1)
_MOMENT = ColumnType(TypeName.TIMESTAMP)


class FieldScan(NamedTuple):
    """How a field is read: the bytes in front of it, its values, and whether it can be missing."""

    field: FieldDescriptor
    tag: bytes
    scan: _Scan
    may_lack: bool


class _Scanned(NamedTuple):
    """The values of a field, and a mask of the messages that lack it, if there may be some."""

    values: Values
    missing: Vector | None


def scans_of(descriptor: Descriptor, as_numbers: Collection[str]) -> list[FieldScan] | None:
    """Return what reads the fields of a message, the enums in ``as_numbers`` as numbers; ``None`` if it is not flat."""
    found = []
    for field in sorted(descriptor.fields, key=lambda each: each.number):
        made = _scan_of(field, as_number=field.name in as_numbers)
        if made is None or field.is_required or (field.default_value and not may_lack(field)):
            return None
        found.append(FieldScan(field, _tag(field.number, made[0]), made[1], may_lack(field)))
    return found


def _tag(number: int, wire: int) -> bytes:
    left, tag = number << 3 | wire, bytearray()
    while left > 0x7F:
        tag.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*tag, left])


def scanned(scans: Sequence[FieldScan], cursors: Cursors) -> dict[str, _Scanned]:
    """Read all fields; a field that a message does not have is null or, if it cannot be missing, the default."""
    found = {}
    for each in scans:
        there = cursors.followed_by(each.tag)
        missing = ~there if each.may_lack and not there.all() else None
        with cursors.only(there):
            cursors.skip(len(each.tag))
            found[each.field.name] = _Scanned(each.scan(cursors, missing), missing)
    cursors.finish()
    return found


def _scan_of(field: FieldDescriptor, *, as_number: bool) -> tuple[int, _Scan] | None:
    """Return the type on the wire, and what reads the values."""
    if is_repeated(field):
        return None
    if field.message_type is not None:
        is_moment = field.message_type.full_name == "google.protobuf.Timestamp" and column_type(field) == _MOMENT
        return (_LENGTH, _moment) if is_moment and field.type == FieldDescriptor.TYPE_MESSAGE else None
    if field.enum_type is not None and not as_number:
        labels = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _VARINT, _enum(labels)
    known = _SCANS.get(field.type)
    if known is not None:
        return known
    wire, read = _NUMBERS[field.type]
    return wire, lambda cursors, nulls: Values(pa.array(read(cursors), mask=nulls))


def _wide(cursors: Cursors) -> Vector:
    return cursors.varints().astype(np.uint64, copy=False)


def _int32(cursors: Cursors) -> Vector:
    return _wide(cursors).astype(np.uint32).view(np.int32).astype(np.int64)


def _int64(cursors: Cursors) -> Vector:
    return _wide(cursors).view(np.int64)


def _enum(labels: dict[int, str]) -> _Scan:
    numbers = np.array(sorted(labels), np.int64)
    texts = pa.array([labels[number] for number in sorted(labels)], pa.string())

    def scan(cursors: Cursors, nulls: Vector | None) -> Values:
        found = _int32(cursors)
        place = np.minimum(np.searchsorted(numbers, found), len(numbers) - 1)
        cursors.leave(numbers[place] != found)
        return Values(texts.take(pa.array(place, mask=nulls)))

    return scan


def _string(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(texts_of(cursors, *cursors.parts(_int64(cursors)), nulls))


def _bytes(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(cursors.binary(*cursors.parts(_int64(cursors)), nulls))


def _moment(cursors: Cursors, nulls: Vector | None) -> Values:
    parts = []
    with cursors.inside(_int64(cursors)):
        for tag in (b"\x08", b"\x10"):
            with cursors.only(cursors.followed_by(tag)):
                cursors.skip(1)
                parts.append(_int64(cursors) if tag == b"\x08" else _int32(cursors))
    seconds = within(parts[0], (MOMENTS[0] // 10**6, MOMENTS[1] // 10**6), cursors)
    nanos = within(parts[1], (0, 10**9 - 1), cursors)
    ticks = seconds * 10**6 + nanos // 1000
    return Values(pa.array(ticks, mask=nulls).cast(pa.timestamp("us", "UTC")))


_NUMBERS: dict[int, tuple[int, _Read]] = {
    FieldDescriptor.TYPE_INT32: (_VARINT, _int32),
    FieldDescriptor.TYPE_ENUM: (_VARINT, _int32),
    FieldDescriptor.TYPE_INT64: (_VARINT, _int64),
    FieldDescriptor.TYPE_UINT32: (_VARINT, lambda cursors: (_wide(cursors) & _LOW).view(np.int64)),
    FieldDescriptor.TYPE_UINT64: (_VARINT, _wide),
    FieldDescriptor.TYPE_SINT32: (_VARINT, lambda cursors: signed(_wide(cursors) & _LOW)),
    FieldDescriptor.TYPE_SINT64: (_VARINT, lambda cursors: cursors.longs()),
    FieldDescriptor.TYPE_BOOL: (_VARINT, lambda cursors: cursors.varints() != 0),
    FieldDescriptor.TYPE_FIXED32: (_FIXED_32, lambda cursors: cursors.words(4).astype(np.int64)),
    FieldDescriptor.TYPE_SFIXED32: (_FIXED_32, lambda cursors: cursors.words(4).view(np.int32).astype(np.int64)),
    FieldDescriptor.TYPE_FLOAT: (_FIXED_32, lambda cursors: cursors.floats(4).astype(np.float64)),
    FieldDescriptor.TYPE_FIXED64: (_FIXED_64, lambda cursors: cursors.words(8)),
    FieldDescriptor.TYPE_SFIXED64: (_FIXED_64, lambda cursors: cursors.words(8).view(np.int64)),
    FieldDescriptor.TYPE_DOUBLE: (_FIXED_64, lambda cursors: cursors.floats(8)),
}
_SCANS: dict[int, tuple[int, _Scan]] = {
    FieldDescriptor.TYPE_STRING: (_LENGTH, _string),
    FieldDescriptor.TYPE_BYTES: (_LENGTH, _bytes),
}
