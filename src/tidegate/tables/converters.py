"""Converters: convert single values for their columns, or raise :class:`Unfit` with the reason."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pyarrow as pa

from tidegate.tables.checks import problems_of
from tidegate.tables.codec import is_finite
from tidegate.tables.column import INFINITE_DAYS, INFINITE_TICKS, Column, Form
from tidegate.tables.statements import days, moments, truncated
from tidegate.tables.types import EpochUnit, TypeName

__all__ = [
    "TICKS",
    "Converter",
    "Unfit",
    "checked_json",
    "converter",
    "decimal_of",
    "finite_json",
    "json_text",
    "lenient",
    "parser",
]

Converter: TypeAlias = Callable[[Any], Any]

_BEFORE_POINT, _AFTER_POINT = 131072, 16383  # digits of PostgreSQL's numeric, the widest type
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
_LIST, _OBJECT = msgspec.json.Decoder(list[msgspec.Raw]), msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
_DECODERS: dict[TypeName, Any] = {
    TypeName.BOOLEAN: msgspec.json.Decoder(bool),
    TypeName.INTEGER: msgspec.json.Decoder(int),
    TypeName.DOUBLE: msgspec.json.Decoder(float),
    TypeName.TEXT: msgspec.json.Decoder(str),
    TypeName.BYTES: msgspec.json.Decoder(bytes),
    TypeName.DATE: msgspec.json.Decoder(str),
    TypeName.TIMESTAMP: msgspec.json.Decoder(str),
}
_STRING = _DECODERS[TypeName.TEXT]
_NUMBER = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\s*")
_LONGEST = 40  # digits; longer numbers fit no integer and no timestamp
_DIMENSIONS = 6  # PostgreSQL's arrays have no more
_FLOOR = Context(prec=60, rounding=ROUND_FLOOR)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

finite_json: Callable[[Any], bytes] = _ENCODER.encode
"""Encodes a value as JSON, with decimals as numbers, of which none may be NaN or infinite."""

TICKS = {EpochUnit.SECONDS: 10**6, EpochUnit.MILLISECONDS: 10**3, EpochUnit.MICROSECONDS: 1}
"""Microseconds per unit, for numbers that stand for a time."""


class Unfit(Exception):
    """A value does not fit. The message is the reason, and never contains the value."""


def json_text(value: Any) -> str:
    """Encode a value as JSON, with decimals as numbers."""
    try:
        encoded = _ENCODER.encode(value)
        # For NaN and Infinity, the encoder writes null if they are floats, and invalid JSON if they are decimals.
        if b"null" in encoded and not is_finite(value):
            raise Unfit(_NO_NUMBER)
        return str(bytes(_ANY_JSON.decode(encoded)), "utf-8")
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Unfit(_NO_NUMBER if not is_finite(value) else "a value that JSON cannot express") from None


_NO_NUMBER = "a value that JSON cannot express: NaN or Infinity is in it"


def checked_json(text: str | bytes) -> str | None:
    """Check JSON given as text or bytes, and return it as text; ``None`` for a JSON null."""
    try:
        found = str(bytes(_ANY_JSON.decode(text)), "utf-8")
        return None if found == "null" else found
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise Unfit("text that is not JSON") from None


def lenient(raw: bytes, column: Column) -> Any:
    """Convert one raw JSON value, not null, for a column, also from another type if nothing is lost.

    Raises :class:`Unfit`. Times stay text, as they do in the decoders of whole records.
    """
    try:
        return _lenient(raw, column)
    except RecursionError:
        raise Unfit("a value that is nested too deep") from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Unfit("text that is not UTF-8") from None


def _lenient(raw: bytes, column: Column) -> Any:
    match column.type.name:
        case TypeName.JSON:
            return checked_json(raw)
        case TypeName.DECIMAL:
            return decimal_of(_number_or_text(raw), column)
        case TypeName.TEXT:
            return _text_of_json(raw, column)
        case name:
            try:
                return _DECODERS[name].decode(raw)
            except _UNREADABLE:
                if raw[:1] == b'"' and name is TypeName.BYTES:
                    raise Unfit("text that is not base64") from None
                return converter(column)(_plain(raw))


def _plain(raw: bytes) -> Any:
    """Decode a JSON value, except the contents of arrays and objects; numbers keep all their digits."""
    match raw[:1]:
        case b'"':
            try:
                return _STRING.decode(raw)
            except _UNREADABLE:
                raise Unfit("text that is not UTF-8") from None
        case b"t" | b"f":
            return raw == b"true"
        case b"[":
            return []
        case b"{":
            return {}
    text = str(raw, "ascii")
    try:
        return int(text) if text.lstrip("-").isdigit() and len(text) < _LONGEST else Decimal(text)
    except InvalidOperation:
        raise Unfit("a number with too large an exponent") from None


def _text_of_json(raw: bytes, column: Column) -> str:
    """Convert raw JSON for a text column: a string is its text, anything else its raw JSON or the column's syntax."""
    kind = raw[:1]
    if kind == b'"':
        text = _plain(raw)
        return _uuid(text) if column.form is Form.UUID else _text(text)
    if column.exact:
        raise Unfit(f"expected text, got {_named(_plain(raw))}")
    match column.form:
        case Form.UUID:
            raise Unfit(f"expected text, got {_named(_plain(raw))}")
        case Form.BITS:
            return str(int(_boolean(_plain(raw))))
        case Form.ARRAY if kind == b"[" and column.element is not None:
            return _array_literal(raw, column.element)
        case Form.MAP if kind == b"{":
            pairs = _OBJECT.decode(raw).items()
            return ", ".join(f"{_quoted(key)}=>{_value_of_map(bytes(value))}" for key, value in pairs)
        case Form.SET if kind == b"[":
            return _joined_labels(raw)
        case Form.ARRAY | Form.MAP | Form.SET:
            raise Unfit(f"expected {_FORMS[column.form]}, got {_named(_plain(raw))}")
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        raise Unfit("text that is not UTF-8") from None


def _array_literal(raw: bytes, element: Column, dimensions: int = 1) -> str:
    """Convert a JSON array to a PostgreSQL literal; nested arrays are dimensions, unless the elements are JSON."""
    if dimensions > _DIMENSIONS:
        raise Unfit(f"an array of more than {_DIMENSIONS} dimensions")
    parts = [bytes(part) for part in _LIST.decode(raw)]
    if element.type.name is not TypeName.JSON and any(part[:1] == b"[" for part in parts):
        if not all(part[:1] == b"[" for part in parts):
            raise Unfit("an array whose elements are arrays and others")
        return "{" + ",".join(_array_literal(part, element, dimensions + 1) for part in parts) + "}"
    found = [None if part == b"null" else lenient(part, element) for part in parts]
    if element.type.name is not TypeName.JSON:  # which is text already: the converter would make a JSON string of it
        convert = converter(element)
        found = [None if value is None else convert(value) for value in found]
    try:
        values = pa.array(found, element.arrow)
    except (pa.ArrowException, OverflowError):
        raise Unfit("an array with an element that does not fit") from None
    for why in problems_of(values, element).values():
        raise Unfit(f"an array with an element that does not fit: {why}")
    if element.type.name is TypeName.DATE:
        values = days(values)
    elif element.type.name is TypeName.TIMESTAMP:
        values = moments(truncated(values, element.fraction), "+00")
    return "{" + ",".join(map(_element, values.to_pylist())) + "}"


def _element(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bytes():
            return f'"\\\\x{value.hex()}"'
        case bool():
            return "true" if value else "false"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _value_of_map(raw: bytes) -> str:
    if raw == b"null":
        return "NULL"
    return _quoted(_plain(raw) if raw[:1] == b'"' else str(raw, "utf-8"))


def _joined_labels(raw: bytes) -> str:
    labels = [_plain(bytes(part)) for part in _LIST.decode(raw)]
    if not all(isinstance(label, str) and "," not in label for label in labels):
        raise Unfit("an array with an element that is not a label")
    return ",".join(labels)


def _number_or_text(raw: bytes) -> str:
    value = _plain(raw)
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise Unfit(f"expected a decimal number, got {_named(value)}")
    return str(raw, "ascii")


def converter(column: Column) -> Converter:
    """Return a function that converts a Python value for a column, or raises :class:`Unfit`."""
    match column.type.name:
        case TypeName.BOOLEAN:
            return _exact_boolean if column.exact else _boolean
        case TypeName.INTEGER:
            return lambda value: _integer(value, column)
        case TypeName.DOUBLE:
            return lambda value: _double(value, column)
        case TypeName.DECIMAL:
            return lambda value: decimal_of(value, column)
        case TypeName.TEXT:
            return lambda value: _text_for(value, column)
        case TypeName.DATE:
            return lambda value: _date(value, column)
        case TypeName.TIMESTAMP:
            return lambda value: _timestamp(value, column)
        case TypeName.BYTES:
            return _bytes
        case TypeName.JSON:
            return json_text


def parser(column: Column) -> Converter | None:
    """Return a function that parses text for :func:`converter`; ``None`` if that accepts text itself."""
    if column.form in _STARTS and not column.exact:
        return lambda text: _literal_of(text, column)
    if column.type.unit is not None:
        return lambda text: Decimal(text.strip()) if _NUMBER.fullmatch(text) else text
    if column.type.name is TypeName.INTEGER:
        return lambda text: _integer_of(text, exact=column.exact)
    return _FROM_TEXT.get(column.type.name)


def _literal_of(text: str, column: Column) -> str:
    """Convert text for an array, map or set: from JSON if it is JSON, otherwise it is the database's own syntax."""
    if text[:1] == _STARTS[column.form]:
        try:
            raw = bytes(_ANY_JSON.decode(text.strip()))
        except _UNREADABLE:
            return text
        return str(lenient(raw, column))
    return text


def _exact_boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Unfit(f"expected a boolean, got {_named(value)}")


def _boolean(value: Any) -> bool:
    if isinstance(value, int | float | Decimal) and value in (0, 1):
        return bool(value)
    return _exact_boolean(value)


def _integer(value: Any, column: Column) -> int:
    if isinstance(value, float | Decimal) and not column.exact:
        value = _whole(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit(f"expected a whole number, got {_named(value)}")
    if not column.low <= value <= column.high:
        raise Unfit(f"a number outside of {column.low} to {column.high}")
    return int(value)


def _whole(value: float | Decimal) -> int | float | Decimal:
    """Return a number without a fraction as an integer, any other unchanged; a huge one as 10**40, out of range."""
    number = Decimal(value)
    if not number.is_finite():
        return value
    before, after = _digits(number)
    return value if after else 10**_LONGEST if before > _LONGEST else int(number)


def _double(value: Any, column: Column) -> float:
    kinds = int | float if column.exact else int | float | Decimal
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise Unfit(f"expected a number, got {_named(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise Unfit("a number too large for a double") from None
    if math.isinf(number) and not isinstance(value, float) and (isinstance(value, int) or value.is_finite()):
        raise Unfit("a number too large for a double")
    return number


def decimal_of(value: Any, column: Column) -> Any:
    """Return a value as a decimal that fits the column; as text if Arrow's decimals are too short."""
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise Unfit(f"expected a decimal number, got {_named(value)}")
    try:
        if isinstance(value, str) and "_" in value:
            raise ValueError("Python's own way of writing numbers")
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
    """Return how many digits a number needs before and after the point, without trailing zeros."""
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
    if isinstance(value, time):
        return value.isoformat()
    if not isinstance(value, str):
        raise Unfit(f"expected text, got {_named(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Unfit("text with half of a surrogate pair in it") from None
    return value


def _text_for(value: Any, column: Column) -> str:
    if column.form is Form.UUID:
        return _uuid(value)
    if column.exact or isinstance(value, str | UUID) or not isinstance(value, _AS_JSON):
        return _text(value)
    return str(lenient(json_text(value).encode(), column))


_AS_JSON = (bool, int, float, Decimal, list, tuple, Mapping)


def _uuid(value: Any) -> str:
    try:
        return str(UUID(_text(value)))
    except ValueError:
        raise Unfit("text that is not a UUID") from None


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise Unfit(f"expected bytes, got {_named(value)}")


def _date(value: Any, column: Column) -> date | int:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            sign = _infinity(value) if column.has_infinity else 0
            if not sign:
                raise Unfit("text that is not a date") from None
            return sign * INFINITE_DAYS
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unfit(f"expected a date, got {_named(value)}")
    return value


def _timestamp(value: Any, column: Column) -> datetime | int:
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            sign = _infinity(value) if column.has_infinity else 0
            if not sign:
                raise Unfit("text that is not a timestamp") from None
            return sign * INFINITE_TICKS
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        moment = _since_the_epoch(value, column.type.unit)
    if not isinstance(moment, datetime):
        raise Unfit(f"expected a timestamp, got {_named(value)}")
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise Unfit(_OUTSIDE) from None


_OUTSIDE = "a timestamp outside of the years 1 to 9999"


def _since_the_epoch(value: int | float | Decimal, unit: EpochUnit | None) -> datetime:
    """Convert a number to a point in time, truncated to microseconds."""
    if unit is None:
        raise Unfit("expected a timestamp, got a number; declare what it counts, as in timestamp(ms)")
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite() or number.adjusted() > _LONGEST:
        raise Unfit(_OUTSIDE)
    ticks = int(_FLOOR.to_integral_value(_FLOOR.multiply(number, TICKS[unit])))
    try:
        return _EPOCH + timedelta(microseconds=ticks)
    except OverflowError:
        raise Unfit(_OUTSIDE) from None


def _infinity(text: str) -> int:
    return {"infinity": 1, "-infinity": -1}.get(text.strip().lower(), 0)


def _named(value: Any) -> str:
    """Return what kind of value it is, in words for an error message."""
    return _NAMES.get(type(value), type(value).__name__)


def _boolean_of(text: str) -> bool:
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise Unfit("text that is not a boolean (true, false, 1 or 0)") from None


def _integer_of(text: str, *, exact: bool) -> Any:
    if not _NUMBER.fullmatch(text):
        raise Unfit("text that is not a whole number")
    number = text.strip()
    if number.lstrip("+-").isdigit():
        return int(number) if len(number) < _LONGEST else 10**_LONGEST
    if exact:
        raise Unfit("text that is not a whole number")
    return Decimal(number)


def _double_of(text: str) -> float:
    try:
        if "_" in text:
            raise ValueError("Python's own way of writing numbers")
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


_FROM_TEXT: dict[TypeName, Converter] = {
    TypeName.BOOLEAN: _boolean_of,
    TypeName.DOUBLE: _double_of,
    TypeName.BYTES: _bytes_of,
}
_STARTS = {Form.ARRAY: "[", Form.MAP: "{", Form.SET: "["}
_FORMS = {Form.ARRAY: "an array", Form.MAP: "an object", Form.SET: "an array of labels"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_NAMES: dict[type, str] = {dict: "an object", list: "an array", str: "text", bool: "a boolean", bytes: "bytes"}
_NAMES |= {int: "a whole number", float: "a number", Decimal: "a number"}
