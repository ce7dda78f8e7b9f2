"""Conversion of Python values to Arrow arrays: all at once if they fit, one by one if some do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.checks import has_byte
from tidegate.tables.column import Column, Form
from tidegate.tables.converters import TICKS, Converter, Unfit, checked_json, converter, lenient, parser
from tidegate.tables.types import TypeName

__all__ = [
    "Converted",
    "array_of",
    "array_of_bytes",
    "array_of_json",
    "array_of_raw",
    "array_of_raw_decimals",
    "array_of_raw_values",
    "array_of_texts",
    "joined",
    "reads_raw",
]

_NOT_ARROWS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_PLAIN = r"^-?[0-9]+(\.[0-9]+)?$"
_FEW = 64
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_RAW_FORMS = (Form.ARRAY, Form.MAP, Form.SET)


class Converted(NamedTuple):
    """An array of the column's Arrow type, and by place the reasons why values did not fit; these are null in it."""

    array: Any
    problems: Mapping[int, str]


def joined(parts: Sequence[tuple[int, Converted]]) -> Converted:
    """Join the values of one column, which come in parts, each with the place of its first value."""
    problems = {start + place: why for start, part in parts for place, why in part.problems.items()}
    return Converted(pa.concat_arrays([part.array for _, part in parts]), problems)


def array_of(values: Sequence[Any], column: Column, kind: type | None = None) -> Converted:
    """Convert Python values. A decimal must be a ``Decimal``, an integer or text, never a float.

    ``kind`` is the type that all values are known to have, except nulls.
    """
    kinds = set(map(type, values)) - {NoneType} if kind is None else {kind}
    return _converted(values, _at_once(kinds, column), converter(column), column)


def array_of_texts(texts: Sequence[str | None], column: Column) -> Converted:
    """Convert values from text: CSV fields, keys, headers."""
    if column.type.name is TypeName.JSON:
        return array_of_json(texts, column)
    parse = parser(column)
    if parse is None:
        return array_of(texts, column)
    convert = converter(column)
    return _converted(texts, None, lambda text: convert(parse(text)), column)


def array_of_bytes(values: Sequence[bytes | None], column: Column) -> Converted:
    """Convert values from bytes: unchanged for a column of bytes, else from UTF-8 text or JSON."""
    if column.type.name in (TypeName.BYTES, TypeName.JSON):
        return array_of_json(values, column) if column.type.name is TypeName.JSON else array_of(values, column)
    if column.type.name is TypeName.TEXT and column.form is Form.ANY:
        try:
            return Converted(pa.array(values, pa.binary()).cast(pa.string()), {})
        except pa.ArrowException:
            pass  # the code below finds out which values are invalid
    problems: dict[int, str] = {}
    texts: list[str | None] = [None] * len(values)
    for place, value in enumerate(values):
        if value is not None:
            try:
                texts[place] = str(value, "utf-8")
            except UnicodeDecodeError:
                problems[place] = "not UTF-8"
    converted = array_of_texts(texts, column)
    return Converted(converted.array, {**converted.problems, **problems})


def array_of_raw(values: Sequence[msgspec.Raw | None], column: Column) -> Converted:
    """Convert raw JSON for a JSON column; its syntax has been checked before, its UTF-8 has not."""
    found = [None if value is None or (text := bytes(value)) == b"null" else text for value in values]
    try:
        return Converted(pa.array(found, pa.binary()).cast(pa.string()), {})
    except pa.ArrowException:
        return array_of_json(found, column)


def array_of_raw_decimals(values: Sequence[msgspec.Raw | None], column: Column) -> Converted:
    """Convert raw JSON to decimals, from numbers or quoted text: Arrow parses a whole column faster than Python can."""
    found = [None if value is None or (text := bytes(value)) == b"null" else text for value in values]

    def at_once(part: Sequence[bytes | None]) -> Any:
        texts = pa.array(part, pa.binary()).cast(pa.string())
        if has_byte(texts, b'"'):
            texts = pc.utf8_trim(texts, '"')
        if not column.is_unbounded:
            return texts.cast(column.arrow)
        plain = pc.and_(pc.match_substring_regex(texts, _PLAIN), pc.less(pc.binary_length(texts), 1000))
        return _matching(texts, plain)

    counted = column.is_unbounded and column.type.precision is not None
    return _converted(found, None if counted else at_once, lambda text: lenient(text, column), column)


def array_of_raw_values(values: Sequence[msgspec.Raw | None], column: Column) -> Converted:
    """Convert raw JSON for the other columns of :func:`reads_raw`: value by value, except numbers that count time."""
    found = [None if value is None or (text := bytes(value)) == b"null" else text for value in values]
    unit = column.type.unit
    if unit is None:
        return _converted(found, None, lambda raw: lenient(raw, column), column)

    def at_once(part: Sequence[bytes | None]) -> Any:
        numbers = pa.array(part, pa.binary()).cast(pa.string()).cast(pa.int64())
        return pc.multiply_checked(numbers, TICKS[unit]).cast(column.arrow)

    convert = converter(column)
    return _converted(found, at_once, lambda raw: convert(lenient(raw, column)), column)


def reads_raw(column: Column) -> bool:
    """Whether the values of a column stay raw JSON until the whole column is converted."""
    if column.type.name in (TypeName.DECIMAL, TypeName.JSON) or column.type.unit is not None:
        return True
    return column.form in _RAW_FORMS and not column.exact


def _matching(texts: Any, mask: Any) -> Any:
    if pc.all(mask).as_py() is False:
        raise pa.ArrowInvalid("not as expected")
    return texts


def array_of_json(texts: Sequence[Any], column: Column) -> Converted:
    """Check JSON given as text or bytes; a JSON null becomes NULL."""
    return _converted(texts, None, checked_json, column)


def _at_once(kinds: set[type], column: Column) -> Converter | None:
    """Return how Arrow converts values of these types for a column; ``None`` if it might not do it correctly."""
    if column.is_unbounded:
        return None
    if column.is_uuid:
        return _uuids if kinds <= {str} else None
    if kinds <= _DIRECT[column.type.name]:
        return partial(pa.array, type=column.arrow)
    return partial(_parsed, column) if kinds == {str} and column.type.name in _PARSED else None


def _converted(values: Sequence[Any], at_once: Converter | None, convert: Converter, column: Column) -> Converted:
    """Convert all values at once if possible; otherwise in small groups, and groups with a bad value one by one.

    Both ways must give the same result, so that a value's neighbours make no difference.
    """
    problems: dict[int, str] = {}

    def fitting(place: int) -> Any:
        try:
            return None if values[place] is None else convert(values[place])
        except Unfit as unfit:
            problems[place] = str(unfit)
            return None

    array = _tried(at_once, values)
    if array is None:
        parts = []
        for start in range(0, len(values), _FEW):
            end = min(start + _FEW, len(values))
            part = _tried(at_once, values[start:end])
            parts.append(pa.array(map(fitting, range(start, end)), column.arrow) if part is None else part)
        array = pa.concat_arrays(parts) if parts else pa.array([], column.arrow)
    return Converted(array, problems)


def _tried(at_once: Converter | None, values: Sequence[Any]) -> Any:
    """Return the values as Arrow converts them, or ``None`` if it cannot convert all of them."""
    try:
        return None if at_once is None else at_once(values)
    except _NOT_ARROWS:
        return None


def _uuids(values: Sequence[str]) -> Any:
    texts = pa.array(values, pa.string())
    return _matching(texts, pc.match_substring_regex(texts, _UUID))


def _parsed(column: Column, values: Sequence[str]) -> Any:
    """Parse text with Arrow, whose parsers accept less than those for single values."""
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(column.arrow)
    except pa.ArrowException:
        if column.type.name is not TypeName.TIMESTAMP:
            raise
    return texts.cast(pa.timestamp("us")).cast(column.arrow)  # a time without a zone is in UTC


_DIRECT: dict[TypeName, set[type]] = {
    TypeName.BOOLEAN: {bool},
    TypeName.INTEGER: {int},
    TypeName.DOUBLE: {float, int},
    TypeName.DECIMAL: {Decimal, int},
    TypeName.TEXT: {str},
    TypeName.BYTES: {bytes},
    TypeName.DATE: {date},
    TypeName.TIMESTAMP: {datetime},
    TypeName.JSON: set(),
}
_PARSED = (TypeName.DECIMAL, TypeName.DATE, TypeName.TIMESTAMP)
