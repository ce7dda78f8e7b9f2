"""Converters: one value at a time into what its column takes, or the reason why not."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from tidegate.tables.column import Column
from tidegate.tables.types import TypeName

__all__ = ["Converter", "Unfit", "checked_json", "converter", "decimal_of", "parser"]

Converter: TypeAlias = Callable[[Any], Any]

_BEFORE_POINT, _AFTER_POINT = 131072, 16383  # what PostgreSQL's numeric holds, the widest there is
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)


class Unfit(Exception):
    """Why a value does not fit; never the value."""


def _json_text(value: Any) -> str:
    """A value as JSON, with decimals as numbers."""
    try:
        encoded = _ENCODER.encode(value)
        # The encoder makes null of a float that is no number, and text that is not JSON of such a decimal.
        if b"null" in encoded and not _is_finite(value):
            raise Unfit(_NO_NUMBER)
        return str(bytes(_ANY_JSON.decode(encoded)), "utf-8")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Unfit(_NO_NUMBER if not _is_finite(value) else "a value that JSON cannot express") from None


_NO_NUMBER = "a value that JSON cannot express: NaN or Infinity is in it"


def _is_finite(value: Any) -> bool:
    """Whether every number in a value is one."""
    rest = [value]
    while rest:
        match rest.pop():
            case float() as number if not math.isfinite(number):
                return False
            case Decimal() as number if not number.is_finite():
                return False
            case Mapping() as nested:
                rest += nested.keys()
                rest += nested.values()
            case list() | tuple() | set() | frozenset() as nested:
                rest += nested
    return True


def checked_json(text: str | bytes) -> str | None:
    """JSON that came as text or bytes; its null is the database's."""
    try:
        found = str(bytes(_ANY_JSON.decode(text)), "utf-8")
        return None if found == "null" else found
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise Unfit("text that is not JSON") from None


def converter(column: Column) -> Converter:
    """How a Python value becomes one of a column; raises :class:`Unfit`."""
    match column.type.name:
        case TypeName.INTEGER:
            return lambda value: _integer(value, column.low, column.high)
        case TypeName.DECIMAL:
            return lambda value: decimal_of(value, column)
        case TypeName.TEXT if column.is_uuid:
            return _uuid
        case name:
            return _CONVERTERS[name]


def parser(column: Column) -> Converter | None:
    """How text becomes a Python value first, for the types that are not read from text anyway."""
    return _FROM_TEXT.get(column.type.name)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Unfit(f"expected a boolean, got {_named(value)}")


def _integer(value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit(f"expected a whole number, got {_named(value)}")
    if not low <= value <= high:
        raise Unfit(f"a number outside of {low} to {high}")
    return int(value)


def _double(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unfit(f"expected a number, got {_named(value)}")
    try:
        return float(value)
    except OverflowError:
        raise Unfit("a number too large for a double") from None


def decimal_of(value: Any, column: Column) -> Any:
    """A decimal that its column can hold; as text if Arrow's decimals cannot."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise Unfit(f"expected a decimal number, got {_named(value)}")
    try:
        number = Decimal(value)
    except (InvalidOperation, ValueError):
        raise Unfit("text that is not a decimal number") from None
    if not number.is_finite():
        raise Unfit("a decimal that is not a finite number")
    precision, scale = column.type.precision, column.type.scale
    before, after = _digits(number)
    bounds = (_BEFORE_POINT, _AFTER_POINT) if precision is None else (precision - (scale or 0), scale or 0)
    for found, bound, where in ((before, bounds[0], "before"), (after, bounds[1], "after")):
        if found > bound:
            raise Unfit(f"a decimal with more than {bound} digits {where} the point")
    return f"{number:f}" if column.is_unbounded else number


def _digits(number: Decimal) -> tuple[int, int]:
    """How many digits a number needs before and after the point, zeros at the end left out."""
    _, digits, exponent = number.as_tuple()
    if not any(digits):
        return 0, 0
    trailing = 0
    while digits[-1 - trailing] == 0:
        trailing += 1
    exponent = int(exponent)
    return max(0, len(digits) + exponent), max(0, -(exponent + trailing))


def _text(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise Unfit(f"expected text, got {_named(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("text with half of a surrogate pair in it") from None
    return value


def _uuid(value: Any) -> str:
    try:
        return str(UUID(_text(value)))
    except ValueError:
        raise Unfit("text that is not a UUID") from None


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Unfit(f"expected bytes, got {_named(value)}")


def _date(value: Any) -> date:
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        raise Unfit("text that is not a date") from None
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unfit(f"expected a date, got {_named(value)}")
    return value


def _timestamp(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise Unfit("text that is not a timestamp") from None
    if not isinstance(moment, datetime):
        raise Unfit(f"expected a timestamp, got {_named(value)}")
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise Unfit("a timestamp outside of the years 1 to 9999") from None


def _named(value: Any) -> str:
    """What a value is, in the words of the user's data."""
    return _NAMES.get(type(value), type(value).__name__)


def _boolean_of(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise Unfit("text that is not a boolean (true, false, 1 or 0)") from None


def _integer_of(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Unfit("text that is not a whole number") from None


def _double_of(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise Unfit("text that is not a number") from None
    if math.isinf(number) and "n" not in text.lower():
        raise Unfit("a number too large for a double")
    return number


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise Unfit("text that is not base64") from None


_CONVERTERS: dict[TypeName, Converter] = {
    TypeName.BOOLEAN: _boolean,
    TypeName.DOUBLE: _double,
    TypeName.TEXT: _text,
    TypeName.BYTES: _bytes,
    TypeName.DATE: _date,
    TypeName.TIMESTAMP: _timestamp,
    TypeName.JSON: _json_text,
}
_FROM_TEXT: dict[TypeName, Converter] = {
    TypeName.BOOLEAN: _boolean_of,
    TypeName.INTEGER: _integer_of,
    TypeName.DOUBLE: _double_of,
    TypeName.BYTES: _bytes_of,
}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_NAMES: dict[type, str] = {dict: "an object", list: "an array", str: "text", bool: "a boolean", bytes: "bytes"}
_NAMES |= dict.fromkeys((int, float, Decimal), "a number")
