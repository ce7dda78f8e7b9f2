"""Checks of Arrow arrays against their columns: one fast pass over all values, details only if it finds a problem."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.column import INFINITE_DAYS, INFINITE_TICKS, Column
from tidegate.tables.types import TypeName

__all__ = ["bytes_in", "has_byte", "problems_of"]

_LEAST = 2.3e-308  # smaller doubles have fewer digits


def problems_of(array: Any, column: Column) -> Mapping[int, str]:
    """Return, by place, the reasons why values do not fit their column. Nulls always fit here."""
    found: dict[int, str] = {}
    if column.reserved and array.null_count < len(array):
        found |= dict.fromkeys(_places(array.is_valid()), f"{column.reserved}; leave the field out")
    for why, bad in _CHECKS.get(column.type.name, _nothing)(array, column):
        found |= dict.fromkeys(bad, why)
    return found


def has_byte(array: Any, byte: bytes) -> bool:
    """Whether the byte occurs in an array's texts. Several bytes may also match across the border of two texts."""
    return byte in _bytes_of(array)


def bytes_in(array: Any, wanted: Iterable[bytes]) -> list[bytes]:
    """Return those of the bytes that :func:`has_byte` finds; they are all looked for in one copy of the texts."""
    data = _bytes_of(array)
    return [each for each in wanted if each in data]


def _bytes_of(array: Any) -> bytes:
    """Return the concatenated texts of an array."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return b""
    at = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[at[array.offset] : at[array.offset + len(array)]])


_Problems = Iterable[tuple[str, Iterable[int]]]


def _nothing(array: Any, column: Column) -> _Problems:
    return ()


def _integer(array: Any, column: Column) -> _Problems:
    least, most = _bounds(array)
    if least is not None and (least < column.low or most > column.high):
        low, high = (pa.scalar(bound, array.type) for bound in (column.low, column.high))
        outside = pc.or_(pc.less(array, low), pc.greater(array, high))
        yield f"a number outside of {column.low} to {column.high}", _places(outside)


def _double(array: Any, column: Column) -> _Problems:
    if not column.takes_nan and pc.any(pc.is_nan(array)).as_py():
        yield "NaN, which the column cannot hold", _places(pc.is_nan(array))
    if not column.takes_infinity and pc.any(pc.is_inf(array)).as_py():
        yield "an infinite number, which the column cannot hold", _places(pc.is_inf(array))
    if column.largest is not None:
        beyond = pc.and_(pc.greater(pc.abs(array), column.largest), pc.is_finite(array))
        if pc.any(beyond).as_py():
            yield "a number too large for the column", _places(beyond)
    if column.largest is not None and not column.rounds:
        single = array.cast(pa.float32(), safe=False).cast(pa.float64())
        yield (
            "a number that the column would round",
            _places(pc.and_(pc.not_equal(single, array), pc.is_finite(single))),
        )
    if column.places is not None:
        rounded = pc.not_equal(pc.round(array, column.places), array)
        long = [place for place in _places(rounded) if _is_rounded(array[place].as_py(), column)]
        yield f"a number with more than {column.places} digits after the point, which the column would round", long


def _is_rounded(number: float, column: Column) -> bool:
    """Whether rounding changes a number; in single precision the digits beyond that do not count."""
    kept = round(number, column.places)
    if kept == number or column.largest is None:
        return kept != number
    return struct.pack("f", kept) != struct.pack("f", number)


def _decimal(array: Any, column: Column) -> _Problems:
    if column.digits is not None:
        texts = [(place, text) for place, text in enumerate(array.cast(pa.string()).to_pylist()) if text is not None]
        long = [place for place, text in texts if _significant(text) > column.digits]
        yield f"a decimal with more than {column.digits} digits, which the column cannot hold", long
        far = [place for place, text in texts if not _is_double(text)]
        yield "a decimal that is too large or too small for the column", far


def _significant(text: str) -> int:
    digits = text.lower().partition("e")[0].replace(".", "").replace("-", "")
    return len(digits.strip("0"))


def _is_double(text: str) -> bool:
    """Whether a number is within the range in which a double keeps its digits."""
    number = abs(float(text))
    return _LEAST < number < math.inf or not _significant(text)


def _text(array: Any, column: Column) -> _Problems:
    if not column.takes_nul and has_byte(array, b"\0"):
        yield "text with the character NUL, which the column cannot hold", _places(pc.match_substring(array, "\0"))
    sizes = pc.binary_length(array)
    longest = pc.max(sizes).as_py() or 0
    if column.size is not None and longest > column.size:
        yield f"longer than {column.size} bytes", _places(pc.greater(sizes, column.size))
    if column.length is not None and longest > column.length:
        yield f"longer than {column.length} characters", _places(pc.greater(pc.utf8_length(array), column.length))
    if column.encoding is not None:
        bad = [place for place, text in _not_ascii(array) if not _encodable(text, column.encoding)]
        yield f"text with a character that the column's character set ({column.encoding}) does not have", bad
    if column.choices is not None:
        outside = pc.invert(pc.is_in(array, pa.array(sorted(column.choices), array.type)))
        outside = pc.and_(outside, pc.is_valid(array))
        if column.pattern is not None and outside.true_count:
            outside = pc.and_(outside, pc.invert(pc.match_substring_regex(array, column.pattern)))
        yield "none of the values that the column can have", _places(outside)
    elif column.pattern is not None:
        matched = pc.match_substring_regex(array, column.pattern)
        yield f"not what a column of type {column.sql_type} stores as it is", _places(pc.invert(matched))


def _json(array: Any, column: Column) -> _Problems:
    if not column.takes_nul and has_byte(array, b"\\u0000"):
        escaped = pc.match_substring_regex(array, _ESCAPED_NUL)
        yield "JSON with the character NUL, which the column cannot hold", _places(escaped)
    if column.digits is not None:
        numbers = _places(pc.match_substring_regex(array, _JSON_NUMBER))
        lossy = [place for place in numbers if not _is_kept(array[place].as_py(), column.digits)]
        yield "a number that the column would round or cannot hold", lossy
    yield from _text(array, column)


def _is_kept(number: str, digits: int) -> bool:
    """Whether SQLite keeps a number: as an integer of 64 bits, or as a double of so many digits or the same text."""
    number = number.strip()
    if _WHOLE.fullmatch(number) and -(2**63) <= int(number) < 2**63:
        return True
    return _is_double(number) and (_significant(number) <= digits or Decimal(repr(float(number))) == Decimal(number))


_JSON_NUMBER, _WHOLE = r"^\s*[-0-9]", re.compile(r"-?[0-9]{1,19}")
_ESCAPED_NUL = r"(^|[^\\])(\\\\)*\\u0000"


def _bytes(array: Any, column: Column) -> _Problems:
    if column.size is not None:
        yield f"longer than {column.size} bytes", _places(pc.greater(pc.binary_length(array), column.size))


def _date(array: Any, column: Column) -> _Problems:
    yield from _between(array, column, column.first, column.last)


def _timestamp(array: Any, column: Column) -> _Problems:
    first, last = column.first, column.last
    if not isinstance(first, datetime):
        first = datetime.combine(first, time.min, UTC)
    if not isinstance(last, datetime):
        last = datetime.combine(last, time.max, UTC)
    yield from _between(array, column, first, last)


def _between(array: Any, column: Column, first: Any, last: Any) -> _Problems:
    low, high = pa.scalar(first, array.type), pa.scalar(last, array.type)
    outside = pc.or_(pc.less(array, low), pc.greater(array, high))
    if pc.any(outside).as_py():
        if column.has_infinity:
            outside = pc.and_(outside, pc.invert(pc.is_in(array, _infinities(array.type))))
        days = f"{column.first.isoformat()} to {column.last.isoformat()}"
        yield f"a {column.type.name.value} outside of {days}", _places(outside)


def _infinities(kind: Any) -> Any:
    far = INFINITE_DAYS if pa.types.is_date(kind) else INFINITE_TICKS
    return pa.array([-far, far], kind)


def _bounds(array: Any) -> tuple[Any, Any]:
    both = pc.min_max(array).as_py()
    return both["min"], both["max"]


def _places(mask: Any) -> list[int]:
    """Return the places where a mask is true."""
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


def _not_ascii(array: Any) -> Iterable[tuple[int, str]]:
    if not _bytes_of(array).isascii():
        yield from ((place, text) for place, text in enumerate(array.to_pylist()) if text is not None)


def _encodable(text: str, encoding: str) -> bool:
    if encoding == "utf8mb3":
        return all(character <= "\uffff" for character in text)
    try:
        text.translate(_UNASSIGNED if encoding == "cp1252" else {}).encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


_UNASSIGNED = dict.fromkeys((0x81, 0x8D, 0x8F, 0x90, 0x9D), " ")  # MySQL's latin1 has what its model leaves open


_CHECKS: dict[TypeName, Callable[[Any, Column], _Problems]] = {
    TypeName.INTEGER: _integer,
    TypeName.DOUBLE: _double,
    TypeName.DECIMAL: _decimal,
    TypeName.TEXT: _text,
    TypeName.JSON: _json,
    TypeName.BYTES: _bytes,
    TypeName.DATE: _date,
    TypeName.TIMESTAMP: _timestamp,
}
