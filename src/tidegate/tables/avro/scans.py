"""Scans: each reads the values of one field of Avro from all records of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.avro.reader import DAY
from tidegate.tables.avro.schema import Tree
from tidegate.tables.cursors import Cursors, Vector
from tidegate.tables.vectors import MOMENTS, Values, texts_of, within

__all__ = ["Scan", "scan_of"]

Scan: TypeAlias = "Callable[[Cursors, Vector | None], Values]"
"""Reads the values of one field from all records; the mask says which of them are null, and are not read."""

_INT = 2**31
_DAYS = -719_162, 2_932_896  # of the years 1 to 9999
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES = (8, 13, 18, 23)
_MOST_DIGITS = 38


def scan_of(tree: Tree) -> Scan | None:
    """Return what reads the values of a type that is not nested; ``None`` if they are read one by one."""
    if isinstance(tree, str):
        return _SCANS[tree]
    match tree.get("logicalType"), tree["type"]:
        case None, "enum":
            return _enum(tree["symbols"])
        case None, "fixed":
            return _fixed(tree["size"])
        case "decimal", _ if tree["precision"] <= _MOST_DIGITS and tree.get("size", 0) <= 16:
            return _decimal(tree)
        case "uuid", "fixed":
            return _fixed_uuid
        case "uuid", _:
            return _uuid
        case "date", _:
            return _date
        case "time-millis" | "time-micros", _:
            return _time(1_000 if tree["logicalType"] == "time-millis" else 1, tree["type"])
        case str() as name, "long" if "timestamp-" in name:
            zone = None if name.startswith("local") else "UTC"
            return _timestamp(1_000 if name.endswith("millis") else 1, zone)
    return None


def _null(cursors: Cursors, _: Vector | None) -> Values:
    return Values(pa.nulls(len(cursors)))


def _boolean(cursors: Cursors, nulls: Vector | None) -> Values:
    found = cursors.octets()
    cursors.leave(found > 1)
    return Values(pa.array(found == 1, mask=nulls))


def _ints(cursors: Cursors) -> Vector:
    found = cursors.longs()
    if len(found) and (found.min() < -_INT or found.max() >= _INT):
        cursors.leave((found < -_INT) | (found >= _INT))
    return found


def _int(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(pa.array(_ints(cursors), mask=nulls))


def _long(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(pa.array(cursors.longs(), mask=nulls))


def _float(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(pa.array(cursors.floats(4).astype(np.float64), mask=nulls))


def _double(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(pa.array(cursors.floats(8), mask=nulls))


def _bytes(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(cursors.binary(*cursors.parts(cursors.longs()), nulls))


def _texts(cursors: Cursors, nulls: Vector | None) -> Any:
    return texts_of(cursors, *cursors.parts(cursors.longs()), nulls)


def _string(cursors: Cursors, nulls: Vector | None) -> Values:
    return Values(_texts(cursors, nulls))


def _enum(symbols: Sequence[str]) -> Scan:
    known = pa.array(symbols, pa.string())

    def scan(cursors: Cursors, nulls: Vector | None) -> Values:
        found = cursors.longs()
        outside = (found < 0) | (found >= len(symbols))
        cursors.leave(outside)
        unread = outside if nulls is None else outside | nulls
        return Values(known.take(pa.array(found, mask=unread)))

    return scan


def _fixed(size: int) -> Scan:
    return lambda cursors, nulls: Values(cursors.binary(*cursors.parts(size), nulls))


def _decimal(tree: Mapping[str, Any]) -> Scan:
    precision, scale, size = tree["precision"], tree["scale"], tree.get("size")
    kind = pa.decimal128(precision, scale)
    most_high, most_low = np.int64(10**precision >> 64), np.uint64(10**precision & 2**64 - 1)

    def scan(cursors: Cursors, nulls: Vector | None) -> Values:
        begin, end = cursors.parts(cursors.longs() if size is None else size)
        sizes = end - begin
        cursors.leave((sizes == 0) | (sizes > 16))
        high, low = cursors.integers(begin, end)
        is_below = high < 0
        upper = np.where(is_below, ~high + (low == 0), high)
        lower = np.where(is_below, ~low + np.uint64(1), low)
        cursors.leave((upper > most_high) | ((upper == most_high) & (lower >= most_low)))
        numbers = np.empty((len(low), 2), np.int64)
        numbers[:, 0], numbers[:, 1] = low.view(np.int64), high
        unread = cursors.alone if nulls is None else cursors.alone | nulls
        there = pa.array(~unread).buffers()[1] if unread.any() else None
        return Values(pa.Array.from_buffers(kind, len(low), [there, pa.py_buffer(numbers)]))

    return scan


def _uuid(cursors: Cursors, nulls: Vector | None) -> Values:
    texts = pc.ascii_lower(_texts(cursors, nulls))
    is_plain = pc.fill_null(pc.match_substring_regex(texts, _UUID), True)
    odd = pc.invert(is_plain)
    if odd.true_count:
        cursors.leave(odd.to_numpy(zero_copy_only=False))
        texts = pc.if_else(odd, pa.scalar(None, pa.string()), texts)
    return Values(texts, is_uuid=True)


def _fixed_uuid(cursors: Cursors, nulls: Vector | None) -> Values:
    begin, _ = cursors.parts(16)
    raw = cursors.octets_at(begin, 16)
    text = np.full((len(begin), 36), ord("-"), np.uint8)
    digits = [place for place in range(36) if place not in _DASHES]
    text[:, digits[0::2]], text[:, digits[1::2]] = _HEX[raw >> 4], _HEX[raw & 15]
    offsets = np.arange(0, 36 * len(begin) + 1, 36, dtype=np.int32)
    there = None if nulls is None else pa.array(~nulls).buffers()[1]
    parts = [there, pa.py_buffer(offsets), pa.py_buffer(text)]
    return Values(pa.Array.from_buffers(pa.string(), len(begin), parts), is_uuid=True)


def _date(cursors: Cursors, nulls: Vector | None) -> Values:
    found = within(_ints(cursors), _DAYS, cursors)
    return Values(pa.array(found.astype(np.int32), pa.date32(), mask=nulls))


def _time(ticks: int, kind: str) -> Scan:
    def scan(cursors: Cursors, nulls: Vector | None) -> Values:
        found = _ints(cursors) if kind == "int" else cursors.longs()
        found = within(found, (0, DAY // ticks - 1), cursors) * ticks
        return Values(pa.array(found, pa.int64(), mask=nulls).cast(pa.time64("us")))

    return scan


def _timestamp(ticks: int, zone: str | None) -> Scan:
    bounds = -(-MOMENTS[0] // ticks), MOMENTS[1] // ticks

    def scan(cursors: Cursors, nulls: Vector | None) -> Values:
        found = within(cursors.longs(), bounds, cursors) * ticks
        return Values(pa.array(found, pa.int64(), mask=nulls).cast(pa.timestamp("us", zone)))

    return scan


_SCANS: dict[str, Scan] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
