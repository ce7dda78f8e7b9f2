"""Conversion of Protobuf messages to plain Python values and back, and of their types to column types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from google.protobuf import any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from google.type import date_pb2, decimal_pb2, timeofday_pb2

from tidegate.tables.codec import Mismatched
from tidegate.tables.types import ColumnType, TypeName

__all__ = [
    "EMPTY",
    "FieldPlan",
    "MessageReader",
    "MessageWriter",
    "column_type",
    "foreign_fields",
    "is_repeated",
    "may_lack",
]

Converter: TypeAlias = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EMPTY = "a message with bytes, of which none belongs to a field of the schema"
"""Why a message does not fit that is most likely none."""
_LARGEST_FLOAT = 3.4028234663852886e38
_MOST_DIGITS = 100_000  # of a number in text: no larger integer is made from it
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}
_FLOATS = {FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE}


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether a field is a list or a map."""
    return bool(field.is_repeated)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def may_lack(field: FieldDescriptor) -> bool:
    """Whether a field can be told to be missing: then it has presence, and the schema names no default for it."""
    return bool(field.has_presence and not field.has_default_value)


def column_type(field: FieldDescriptor) -> ColumnType | None:
    """Return the column type of a field; ``None`` if nothing can be read from it."""
    if is_repeated(field):
        return ColumnType(TypeName.JSON)
    if field.message_type is not None:
        known = _known(field.message_type)
        if known is not None:
            return known.type
        inner = wrapped(field.message_type)
        return ColumnType(TypeName.JSON) if inner is None else column_type(inner)
    if field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64):
        return ColumnType.decimal(20, 0)  # beyond 63 bits
    if field.type == FieldDescriptor.TYPE_BYTES:
        return ColumnType(TypeName.BYTES)
    return ColumnType(_SCALARS[field.cpp_type])


_SCALARS = {
    **dict.fromkeys(_INTEGERS, TypeName.INTEGER),
    **dict.fromkeys(_FLOATS, TypeName.DOUBLE),
    FieldDescriptor.CPPTYPE_BOOL: TypeName.BOOLEAN,
    FieldDescriptor.CPPTYPE_STRING: TypeName.TEXT,
    FieldDescriptor.CPPTYPE_ENUM: TypeName.TEXT,
}


def wrapped(descriptor: Descriptor) -> FieldDescriptor | None:
    """Return the field of a wrapper, such as ``google.protobuf.StringValue``; ``None`` for other messages."""
    if descriptor.full_name not in _WRAPPERS:
        return None
    field = descriptor.fields_by_name.get("value")  # a schema may have a type of its own by that name
    is_own = field is None or len(descriptor.fields) != 1 or is_repeated(field) or field.message_type or field.enum_type
    return None if is_own else field


_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def foreign_fields(message: Message, descriptor: Descriptor) -> Iterator[int]:
    """Yield the numbers of fields that the schema does not have.

    Raises :class:`Mismatched` if bytes do not fit a field that it has, which the decoder sets aside: they are of
    another type, or name a value that an enum does not have.
    """
    for unknown in UnknownFieldSet(message):
        field = descriptor.fields_by_number.get(unknown.field_number)
        if field is None:
            yield unknown.field_number
        elif field.enum_type is not None and unknown.wire_type in (0, 2):
            raise Mismatched(f"a number that the enum {field.enum_type.name} does not have", field.name)
        else:
            raise Mismatched("bytes of another type than the schema has", field.name)


class FieldPlan(NamedTuple):
    """How a field is read: whether it may be missing, and how its value is converted, if it is."""

    field: FieldDescriptor
    may_lack: bool
    convert: Converter | None


class MessageReader:
    """Reads messages of one type into dictionaries. Fields with presence are left out if they are not set."""

    def __init__(self, descriptor: Descriptor, readers: dict[str, MessageReader] | None = None) -> None:
        """Plan how to read; ``readers`` are those of the types that it is within, which may contain themselves."""
        self._descriptor = descriptor
        self.has: Callable[[Any, str], bool] = GetMessageClass(descriptor).HasField
        """Whether a message has a field that may lack. Not a method of the message: a field may have its name."""
        known = {} if readers is None else readers
        known[descriptor.full_name] = self
        self.plans = {field.name: self._plan(field, known) for field in descriptor.fields}

    def __call__(self, message: Message) -> dict[str, Any]:
        """Return the fields of a message; raises :class:`Mismatched`."""
        found = {}
        foreign = list(foreign_fields(message, self._descriptor))
        for name, (_, lacks, convert) in self.plans.items():
            if lacks and not self.has(message, name):
                continue
            value = getattr(message, name)
            try:
                found[name] = value if convert is None else convert(value)
            except Mismatched as error:
                raise Mismatched(error.why, f"{name}.{error.path}".rstrip(".")) from None
        if foreign and not self.has_any(message):
            raise Mismatched(EMPTY)
        return found

    def has_any(self, message: Message) -> bool:
        """Whether any field of the schema is set."""
        return bool(type(message).ListFields(message))

    def _plan(self, field: FieldDescriptor, known: dict[str, MessageReader]) -> FieldPlan:
        return FieldPlan(field, may_lack(field), self._converter(field, known))

    def _converter(self, field: FieldDescriptor, known: dict[str, MessageReader]) -> Converter | None:
        if _is_map(field):
            return self._of_map(field, known)
        one = _single(field, known)
        if not is_repeated(field):
            return one
        return list if one is None else lambda values: _listed(values, one)

    def _of_map(self, field: FieldDescriptor, known: dict[str, MessageReader]) -> Converter:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        convert = _single(value, known)
        is_boolean = key.cpp_type == FieldDescriptor.CPPTYPE_BOOL

        def read(found: Any) -> dict[str, Any]:
            named = {}
            for each in sorted(found):
                name = str(each).lower() if is_boolean else str(each)
                try:
                    named[name] = found[each] if convert is None else convert(found[each])
                except Mismatched as error:  # without the key, which is a value
                    raise Mismatched(error.why, f"{{…}}.{error.path}".rstrip(".")) from None
            return named

        return read


def _listed(values: Any, convert: Converter) -> list[Any]:
    try:
        return [convert(value) for value in values]
    except Mismatched as error:
        raise Mismatched(error.why, f"[…].{error.path}".rstrip(".")) from None


def _single(field: FieldDescriptor, known: dict[str, MessageReader]) -> Converter | None:
    """Return the converter of a single value of a field; ``None`` if it is taken unchanged."""
    if field.enum_type is not None:
        labels = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: _label(number, labels, field.enum_type.name)
    if field.message_type is None:
        return None
    name = field.message_type.full_name
    stands_for = _known(field.message_type)
    if stands_for is not None:
        return stands_for.read
    inner = wrapped(field.message_type)
    if inner is not None:
        return lambda message: message.value
    return known.get(name) or MessageReader(field.message_type, known)


def _label(number: int, labels: Mapping[int, str], enum: str) -> str:
    try:
        return labels[number]
    except KeyError:
        raise Mismatched(f"a number that the enum {enum} does not have") from None


# Types that are known by name


class _Known(NamedTuple):
    """How messages of a type that is known by name are read and written, and the type of its column."""

    type: ColumnType | None
    read: Converter
    write: Callable[[Any, Any], None]


def _read_timestamp(message: Any) -> datetime:
    """Return the point in time, truncated to microseconds."""
    seconds, nanos = message.seconds, message.nanos
    if not 0 <= nanos < 10**9:
        raise Mismatched("a Timestamp whose nanos are out of bounds")
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
    except OverflowError:
        raise Mismatched("a timestamp outside of the years 1 to 9999") from None


def _write_timestamp(message: Any, value: Any) -> None:
    moment = _parsed(value, datetime, "a datetime")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    message.seconds = since // timedelta(seconds=1)
    message.nanos = since.microseconds * 1000


def _read_duration(message: Any) -> str:
    """Return ISO 8601, such as ``PT1.5S``: which databases with intervals and listeners with a timedelta read."""
    seconds, nanos = message.seconds, message.nanos
    if abs(nanos) >= 10**9 or seconds * nanos < 0:
        raise Mismatched("a Duration whose nanos are out of bounds")
    fraction = f".{abs(nanos):09d}".rstrip("0") if nanos else ""
    sign = "-" if seconds < 0 or nanos < 0 else ""
    return f"{sign}PT{abs(seconds)}{fraction}S"


_SECONDS_ALONE = re.compile(r"(-?)PT(\d{1,12})(?:\.(\d{1,9}))?S")


def _write_duration(message: Any, value: Any) -> None:
    if isinstance(value, str) and (match := _SECONDS_ALONE.fullmatch(value)):
        sign = -1 if match[1] else 1
        message.seconds = sign * int(match[2])
        message.nanos = sign * int((match[3] or "").ljust(9, "0"))
        return
    length = _parsed(value, timedelta, "a timedelta")
    sign = -1 if length < timedelta(0) else 1
    message.seconds = sign * (abs(length) // timedelta(seconds=1))
    message.nanos = sign * abs(length).microseconds * 1000


def _parsed(value: Any, kind: type, wanted: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError):
        raise Mismatched(f"expected {wanted}") from None


def _read_date(message: Any) -> date:
    try:
        return date(message.year, message.month, message.day)
    except (ValueError, OverflowError):
        raise Mismatched("a google.type.Date that is no full date") from None


def _write_date(message: Any, value: Any) -> None:
    if isinstance(value, datetime):
        raise Mismatched("expected a date")
    found = _parsed(value, date, "a date")
    message.year, message.month, message.day = found.year, found.month, found.day


def _read_time_of_day(message: Any) -> str:
    hours, minutes, seconds, nanos = message.hours, message.minutes, message.seconds, message.nanos
    if not (0 <= hours <= 24 and 0 <= minutes < 60 and 0 <= seconds <= 60 and 0 <= nanos < 10**9):
        raise Mismatched("a google.type.TimeOfDay that is out of bounds")
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}" + (f".{nanos:09d}".rstrip("0") if nanos else "")


_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")


def _write_time_of_day(message: Any, value: Any) -> None:
    match = _TIME.fullmatch(value.isoformat() if isinstance(value, time) else value) if _is_time(value) else None
    if match is None:
        raise Mismatched("expected a time of day")
    message.hours, message.minutes, message.seconds = int(match[1]), int(match[2]), int(match[3])
    message.nanos = int((match[4] or "").ljust(9, "0"))


def _is_time(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, time) and value.tzinfo is None)


_DECIMAL = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,5})?")


def _read_decimal(message: Any) -> Decimal:
    text = message.value or "0"
    if len(text) > _MOST_DIGITS or not _DECIMAL.fullmatch(text):
        raise Mismatched("a google.type.Decimal that is not a decimal number")
    return Decimal(text)


def _write_decimal(message: Any, value: Any) -> None:
    message.value = str(_decimal(value))


def _decimal(value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise Mismatched("expected a decimal number")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise Mismatched("expected a decimal number") from None
    if not number.is_finite():
        raise Mismatched("a decimal that is not a finite number")
    return number


def _read_unscaled(message: Any) -> Decimal:
    """Return Confluent's decimal: the digits as a signed number in big-endian bytes, and their scale."""
    if len(message.value) > _MOST_DIGITS // 3 or abs(message.scale) > _MOST_DIGITS:
        raise Mismatched("a decimal with too many digits")
    sign, digits, _ = Decimal(int.from_bytes(message.value, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -message.scale))


def _write_unscaled(message: Any, value: Any) -> None:
    sign, digits, exponent = _decimal(value).as_tuple()
    if not isinstance(exponent, int) or exponent > _MOST_DIGITS:
        raise Mismatched("a decimal with too many digits")
    scale = max(0, -exponent)
    unscaled = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale) * (-1 if sign else 1)
    message.value = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    message.precision, message.scale = len(str(abs(unscaled))), scale


def _read_struct(message: Any) -> dict[str, Any]:
    return {name: _read_any_json(message.fields[name]) for name in sorted(message.fields)}


def _read_list(message: Any) -> list[Any]:
    return [_read_any_json(value) for value in message.values]


def _read_any_json(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    match kind:
        case None | "null_value":
            return None
        case "struct_value":
            return _read_struct(message.struct_value)
        case "list_value":
            return _read_list(message.list_value)
        case "number_value":
            number = message.number_value
            return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return getattr(message, kind)


def _write_struct(message: Any, value: Any) -> None:
    message.SetInParent()
    for name, each in _mapping(value).items():
        _write_any_json(message.fields[_text(name)], each)


def _write_list(message: Any, value: Any) -> None:
    message.SetInParent()
    for each in _sequence(value):
        _write_any_json(message.values.add(), each)


def _write_any_json(message: Any, value: Any) -> None:
    match value:
        case None:
            message.null_value = 0
        case bool():
            message.bool_value = value
        case str():
            message.string_value = value
        case int() | float() | Decimal():
            message.number_value = _finite(value)
        case list() | tuple():
            _write_list(message.list_value, value)
        case _:
            _write_struct(message.struct_value, value)


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (not isinstance(value, float) and Decimal(number) != value):
        raise Mismatched("a number that a double cannot hold")
    return number


def _refuse_any(message: Any) -> Any:
    raise Mismatched("google.protobuf.Any is not supported")


def _refuse_to_write_any(message: Any, value: Any) -> None:
    raise Mismatched("google.protobuf.Any is not supported")


def _read_mask(message: Any) -> list[str]:
    return list(message.paths)


def _write_mask(message: Any, value: Any) -> None:
    message.paths.extend(map(_text, _sequence(value)))


_JSON, _TEXT, _DIGITS = ColumnType(TypeName.JSON), ColumnType(TypeName.TEXT), ColumnType(TypeName.DECIMAL)
_UNSCALED = _Known(_DIGITS, _read_unscaled, _write_unscaled)


def _shape(descriptor: Descriptor) -> dict[str, tuple[int, bool, str]]:
    """Return the types of the fields of a message, by name."""
    return {
        field.name: (
            field.type,
            is_repeated(field),
            "" if field.message_type is None else str(field.message_type.full_name),
        )
        for field in descriptor.fields
    }


_KNOWN: Mapping[str, _Known] = {
    "google.protobuf.Timestamp": _Known(ColumnType(TypeName.TIMESTAMP), _read_timestamp, _write_timestamp),
    "google.protobuf.Duration": _Known(_TEXT, _read_duration, _write_duration),
    "google.protobuf.Struct": _Known(_JSON, _read_struct, _write_struct),
    "google.protobuf.Value": _Known(_JSON, _read_any_json, _write_any_json),
    "google.protobuf.ListValue": _Known(_JSON, _read_list, _write_list),
    "google.protobuf.Any": _Known(None, _refuse_any, _refuse_to_write_any),
    "google.protobuf.FieldMask": _Known(_JSON, _read_mask, _write_mask),
    "google.type.Date": _Known(ColumnType(TypeName.DATE), _read_date, _write_date),
    "google.type.TimeOfDay": _Known(_TEXT, _read_time_of_day, _write_time_of_day),
    "google.type.Decimal": _Known(_DIGITS, _read_decimal, _write_decimal),
    "confluent.type.Decimal": _UNSCALED,
    "confluent.types.Decimal": _UNSCALED,
}
_STANDARD = {
    each.full_name: _shape(each)
    for module in (
        any_pb2,
        duration_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        date_pb2,
        decimal_pb2,
        timeofday_pb2,
    )
    for each in module.DESCRIPTOR.message_types_by_name.values()
}
_UNSCALED_SHAPE = {
    "value": (FieldDescriptor.TYPE_BYTES, False, ""),
    "precision": (FieldDescriptor.TYPE_UINT32, False, ""),
    "scale": (FieldDescriptor.TYPE_INT32, False, ""),
}


def _known(descriptor: Descriptor) -> _Known | None:
    """Return how messages of a type are read that stand for a value; ``None`` for all others.

    A schema may have a type of its own by the same name: it is one of those only if it has their fields.
    """
    name = descriptor.full_name
    if name not in _KNOWN:
        return None
    wanted = _STANDARD.get(name, _UNSCALED_SHAPE)
    return _KNOWN[name] if wanted.items() <= _shape(descriptor).items() else None


# Writing


class MessageWriter:
    """Fills messages of one type from mappings, dataclasses and models; ``None`` leaves a field unset."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._names = {field.json_name: field for field in descriptor.fields} | dict(descriptor.fields_by_name)

    def __call__(self, message: Any, value: Any) -> None:
        """Fill a message; raises :class:`Mismatched`, which never contains the value."""
        chosen: dict[str, str] = {}
        for name, each in _mapping(value).items():
            field = self._names.get(name) if isinstance(name, str) else None
            if field is None:
                raise Mismatched("the schema has no such field", name if isinstance(name, str) else "")
            if each is None and not _holds_null(field):
                continue
            if field.containing_oneof is not None:
                other = chosen.setdefault(field.containing_oneof.name, field.name)
                if other != field.name:
                    raise Mismatched(f"{other!r} is set as well, and the schema has either", field.name)
            try:
                _write(message, field, each)
            except Mismatched as error:
                raise Mismatched(error.why, f"{field.name}.{error.path}".rstrip(".")) from None


def _holds_null(field: FieldDescriptor) -> bool:
    known = None if field.message_type is None else _known(field.message_type)
    return known is _KNOWN["google.protobuf.Value"] and not is_repeated(field)


def _write(message: Any, field: FieldDescriptor, value: Any) -> None:
    if _is_map(field):
        _write_map(getattr(message, field.name), field, value)
    elif is_repeated(field):
        target = getattr(message, field.name)
        try:
            for each in _sequence(value):
                if field.message_type is None:
                    target.append(_scalar(field, each))
                else:
                    _write_message(target.add(), field.message_type, each)
        except Mismatched as error:
            raise Mismatched(error.why, f"[…].{error.path}".rstrip(".")) from None
    elif field.message_type is not None:
        target = getattr(message, field.name)
        type(target).SetInParent(target)
        _write_message(target, field.message_type, value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _write_message(target: Any, descriptor: Descriptor, value: Any) -> None:
    if isinstance(value, Message):
        if value.DESCRIPTOR.full_name != descriptor.full_name:
            raise Mismatched(f"expected a {descriptor.full_name}, got a {value.DESCRIPTOR.full_name}")
        type(target).MergeFromString(target, type(value).SerializeToString(value))
        return
    if (known := _known(descriptor)) is not None:
        known.write(target, value)
    elif (inner := wrapped(descriptor)) is not None:
        target.value = _scalar(inner, value)
    else:
        MessageWriter(descriptor)(target, value)


def _write_map(target: Any, field: FieldDescriptor, value: Any) -> None:
    key, inner = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for name, each in _mapping(value).items():
        try:
            at = _key(key, name)
            if inner.message_type is not None:
                _write_message(target[at], inner.message_type, each)
            else:
                target[at] = _scalar(inner, each)
        except Mismatched as error:  # without the key, which is a value
            raise Mismatched(error.why, f"{{…}}.{error.path}".rstrip(".")) from None


def _key(field: FieldDescriptor, name: Any) -> Any:
    """Return the key of a map, which may be given as text, as in JSON."""
    if isinstance(name, str) and field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            name = {"true": True, "false": False}.get(name, name)
        elif re.fullmatch(r"-?\d{1,20}", name):
            name = int(name)
    return _scalar(field, name)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    """Return a value as the library takes it; raises :class:`Mismatched` if it does not fit the type."""
    if field.enum_type is not None:
        return _number_of(field, value)
    kind = field.cpp_type
    if kind in _INTEGERS:
        return _whole(field, value)
    if kind in _FLOATS:
        return _real(field, value)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise Mismatched("expected a boolean")
        return value
    if field.type == FieldDescriptor.TYPE_BYTES:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Mismatched("expected bytes")
        return bytes(value)
    return _text(value)


_BITS = {
    FieldDescriptor.CPPTYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: range(2**32),
    FieldDescriptor.CPPTYPE_UINT64: range(2**64),
}


def _whole(field: FieldDescriptor, value: Any) -> int:
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < 40 and value == int(value):
        value = int(value)
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, int) or isinstance(value, bool):
        raise Mismatched("expected a whole number")
    bits = _BITS[field.cpp_type]
    if value not in bits:
        raise Mismatched(f"a number outside of {bits.start} to {bits.stop - 1}")
    return int(value)


def _real(field: FieldDescriptor, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Mismatched("expected a number")
    try:
        number = float(value)
    except OverflowError:
        raise Mismatched("a number too large for a double") from None
    if math.isinf(number) and not isinstance(value, float):
        raise Mismatched("a number too large for a double")
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT and _LARGEST_FLOAT < abs(number) < math.inf:
        raise Mismatched("a number too large for a float")
    return number


def _number_of(field: FieldDescriptor, value: Any) -> int:
    enum = field.enum_type
    for each in (value.name, value.value) if isinstance(value, Enum) else (value,):
        if isinstance(each, str) and each in enum.values_by_name:
            return int(enum.values_by_name[each].number)
        if isinstance(each, int) and not isinstance(each, bool) and each in enum.values_by_number:
            return each
    raise Mismatched(f"expected a value of the enum {enum.name}")


def _text(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str):
        raise Mismatched("expected text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Mismatched("text with half of a surrogate pair in it") from None
    return str(value)


def _mapping(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclass_fields(value)}
    if hasattr(value, "model_dump"):
        found: dict[str, Any] = value.model_dump()
        return found
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise Mismatched("expected an object: a mapping, a dataclass or a model")


def _sequence(value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, set | frozenset):
        return list(value)
    raise Mismatched("expected a list")
