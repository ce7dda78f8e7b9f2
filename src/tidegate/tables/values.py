"""Python values into Arrow arrays: all at once where they fit, one by one where one does not."""

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
from tidegate.tables.column import Column
from tidegate.tables.converters import Converter, Unfit, checked_json, converter, decimal_of, parser
from tidegate.tables.types import TypeName

__all__ = [
    "Converted",
    "array_of",
    "array_of_bytes",
    "array_of_json",
    "array_of_raw",
    "array_of_raw_decimals",
    "array_of_texts",
]

_NOT_ARROWS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_TEXT = msgspec.json.Decoder(str)
_PLAIN = r"^-?[0-9]+(\.[0-9]+)?$"
_FEW = 64
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_STARTS_OF_NUMBERS = {bytes([character]) for character in b"-0123456789"}


class Converted(NamedTuple):
    """An array with the column's Arrow type, null where a value did not fit, and by its place why not."""

    array: Any
    problems: Mapping[int, str]


def array_of(values: Sequence[Any], column: Column, kind: type | None = None) -> Converted:
    """Values as a handler or decoder has them: a ``Decimal`` or its text for decimals, never a float.

    ``kind``: the type that all of them are known to have, nulls apart.
    """
    kinds = set(map(type, values)) - {NoneType} if kind is None else {kind}
    return _converted(values, _at_once(kinds, column), converter(column), column)


def array_of_texts(texts: Sequence[str | None], column: Column) -> Converted:
    """Values that came as text: fields of CSV, keys, headers."""
    if column.type.name is TypeName.JSON:
        return array_of_json(texts, column)
    parse = parser(column)
    if parse is None:
        return array_of(texts, column)
    convert = converter(column)
    return _converted(texts, None, lambda text: convert(parse(text)), column)


def array_of_bytes(values: Sequence[bytes | None], column: Column) -> Converted:
    """Values that came as bytes: as they are for a column of bytes, as UTF-8 text or JSON for any other."""
    if column.type.name in (TypeName.BYTES, TypeName.JSON):
        return array_of_json(values, column) if column.type.name is TypeName.JSON else array_of(values, column)
    if column.type.name is TypeName.TEXT and not column.is_uuid:
        try:
            return Converted(pa.array(values, pa.binary()).cast(pa.string()), {})
        except pa.ArrowException:
            pass  # the way below tells which of them
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
    """The JSON of a field, as its decoder left it: its syntax has been checked, its UTF-8 has not."""
    found = [None if value is None or (text := bytes(value)) == b"null" else text for value in values]
    try:
        return Converted(pa.array(found, pa.binary()).cast(pa.string()), {})
    except pa.ArrowException:
        return array_of_json(found, column)


def array_of_raw_decimals(values: Sequence[msgspec.Raw | None], column: Column) -> Converted:
    """The same for decimals, as numbers or in quotes: Arrow reads a column of them faster than Python makes one."""
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
    return _converted(
        found, None if counted else at_once, lambda text: decimal_of(_number_or_text(text), column), column
    )


def _matching(texts: Any, mask: Any) -> Any:
    if pc.all(mask).as_py() is False:
        raise pa.ArrowInvalid("not as expected")
    return texts


def _number_or_text(raw: bytes) -> str:
    if raw[:1] in _STARTS_OF_NUMBERS:
        return str(raw, "ascii")
    try:
        return _TEXT.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Unfit("expected a decimal number, got something else") from None


def array_of_json(texts: Sequence[Any], column: Column) -> Converted:
    """JSON that came as text or bytes. Its null is the database's."""
    return _converted(texts, None, checked_json, column)


def _at_once(kinds: set[type], column: Column) -> Converter | None:
    """How Arrow takes values of these types for a column; ``None`` if it is not to be trusted with them."""
    if column.is_unbounded:
        return None
    if column.is_uuid:
        return _uuids if kinds <= {str} else None
    if kinds <= _DIRECT[column.type.name]:
        return partial(pa.array, type=column.arrow)
    return partial(_parsed, column) if kinds == {str} and column.type.name in _PARSED else None


def _converted(values: Sequence[Any], at_once: Converter | None, convert: Converter, column: Column) -> Converted:
    """All at once if that works; otherwise a few at once, and the few around a bad one by themselves.

    What goes at once goes one by one as well, with the same result: neighbours make no difference.
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
    """What Arrow makes of the values, or ``None`` if it does not take them all."""
    try:
        return None if at_once is None else at_once(values)
    except _NOT_ARROWS:
        return None


def _uuids(values: Sequence[str]) -> Any:
    texts = pa.array(values, pa.string())
    return _matching(texts, pc.match_substring_regex(texts, _UUID))


def _parsed(column: Column, values: Sequence[str]) -> Any:
    """Text by Arrow's parsers, which accept less than those that go one by one."""
    texts = pa.array(values, pa.string())
    try:
        return texts.cast(column.arrow)
    except pa.ArrowException:
        if column.type.name is not TypeName.TIMESTAMP:
            raise
    return texts.cast(pa.timestamp("us")).cast(column.arrow)  # without a zone means UTC


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
