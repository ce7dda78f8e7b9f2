"""The JSON of Kafka Connect: its envelope of schema and payload, and the types that its schemas name."""

from __future__ import annotations

import base64
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import Any, assert_never

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.column import Column, Form
from tidegate.tables.converters import Unfit, checked_json, json_text, lenient
from tidegate.tables.envelope import AT_ONCE, UNREADABLE, Enveloped, Envelopes
from tidegate.tables.feed import Feed, Unread, fold
from tidegate.tables.format import FieldMatch, FieldReader, Fields, Wanted
from tidegate.tables.inference import json_fields
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.rows import EXACT, Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted, array_of, array_of_json

__all__ = [
    "ConnectFields",
    "ConnectJsonFormat",
    "ConnectSchema",
    "Semantic",
    "new_types",
    "schema_of",
    "with_plain_keys",
]


class Semantic(Enum):
    """What the JSON of a field stands for."""

    PLAIN = "plain"
    """Itself; bytes are in base64."""
    DECIMAL = "decimal"
    """An unscaled number in base64, with the scale in the schema, or ``{"scale": …, "value": …}``."""
    DAYS = "days"
    """Days since 1970."""
    INSTANT = "instant"
    """Units of time since 1970, in UTC."""
    ZONED = "zoned"
    """A point in time as text."""
    CLOCK = "clock"
    """Units of time since midnight."""
    DURATION = "duration"
    """Units of time."""
    JSON = "json"
    """JSON inside of text."""
    BITS = "bits"
    """Bits in base64, the lowest byte first."""
    SHAPE = "shape"
    """A geometry: ``{"wkb": …, "srid": …}``."""
    ITEMS = "items"
    """An array."""
    UNKNOWN = "unknown"
    """The record has no schema, so the type of the column decides."""


@dataclass(frozen=True, slots=True)
class ConnectSchema:
    """The schema of a field: how its JSON is read, and which column it could become.

    ``per_second`` is the number of units in a second. ``fields`` are those of a struct, ``items`` are the elements of
    an array.
    """

    semantic: Semantic = Semantic.UNKNOWN
    column: ColumnType | None = None
    per_second: int = 1
    scale: int | None = None
    length: int | None = None
    fields: Mapping[str, ConnectSchema] = field(default_factory=dict)
    items: ConnectSchema | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the JSON stands for itself, also in all that is inside."""
        inside = [*self.fields.values(), *(() if self.items is None else (self.items,))]
        return self.semantic is Semantic.PLAIN and all(each.is_plain for each in inside)

    def at(self, path: Sequence[str], *, ignore_case: bool = True) -> ConnectSchema:
        """Return the schema of a nested field; of one that it does not have, or may have twice, nothing is known."""
        found = self
        for name in path:
            if found.semantic is Semantic.UNKNOWN:
                return found
            alike = [each for each in found.fields if ignore_case and fold(each) == fold(name)]
            inner = found.fields.get(name) or (found.fields[alike[0]] if len(alike) == 1 else None)
            if inner is None:
                return ConnectSchema(Semantic.PLAIN)
            found = inner
        return found


UNKNOWN = ConnectSchema()

_MILLIS, _MICROS, _NANOS = 10**3, 10**6, 10**9
_KNOWN: dict[str, tuple[Semantic, TypeName, int]] = {
    "org.apache.kafka.connect.data.Date": (Semantic.DAYS, TypeName.DATE, 1),
    "org.apache.kafka.connect.data.Time": (Semantic.CLOCK, TypeName.TEXT, _MILLIS),
    "org.apache.kafka.connect.data.Timestamp": (Semantic.INSTANT, TypeName.TIMESTAMP, _MILLIS),
    "org.apache.kafka.connect.data.Decimal": (Semantic.DECIMAL, TypeName.DECIMAL, 1),
    "io.debezium.data.VariableScaleDecimal": (Semantic.DECIMAL, TypeName.DECIMAL, 1),
    "io.debezium.time.Date": (Semantic.DAYS, TypeName.DATE, 1),
    "io.debezium.time.Time": (Semantic.CLOCK, TypeName.TEXT, _MILLIS),
    "io.debezium.time.MicroTime": (Semantic.CLOCK, TypeName.TEXT, _MICROS),
    "io.debezium.time.NanoTime": (Semantic.CLOCK, TypeName.TEXT, _NANOS),
    "io.debezium.time.Timestamp": (Semantic.INSTANT, TypeName.TIMESTAMP, _MILLIS),
    "io.debezium.time.MicroTimestamp": (Semantic.INSTANT, TypeName.TIMESTAMP, _MICROS),
    "io.debezium.time.NanoTimestamp": (Semantic.INSTANT, TypeName.TIMESTAMP, _NANOS),
    "io.debezium.time.MicroDuration": (Semantic.DURATION, TypeName.TEXT, _MICROS),
    "io.debezium.time.NanoDuration": (Semantic.DURATION, TypeName.TEXT, _NANOS),
    "io.debezium.time.ZonedTimestamp": (Semantic.ZONED, TypeName.TIMESTAMP, 1),
    "io.debezium.time.IsoTimestamp": (Semantic.ZONED, TypeName.TIMESTAMP, 1),
    "io.debezium.time.IsoDate": (Semantic.PLAIN, TypeName.DATE, 1),
    "io.debezium.data.Json": (Semantic.JSON, TypeName.JSON, 1),
    "io.debezium.data.Bits": (Semantic.BITS, TypeName.TEXT, 1),
    "io.debezium.data.geometry.Geometry": (Semantic.SHAPE, TypeName.JSON, 1),
    "io.debezium.data.geometry.Geography": (Semantic.SHAPE, TypeName.JSON, 1),
    "io.debezium.data.geometry.Point": (Semantic.SHAPE, TypeName.JSON, 1),
}
_PLAIN: dict[str, TypeName] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), TypeName.INTEGER),
    **dict.fromkeys(("float", "double", "float32", "float64"), TypeName.DOUBLE),
    **dict.fromkeys(("struct", "map", "array"), TypeName.JSON),
    "boolean": TypeName.BOOLEAN,
    "string": TypeName.TEXT,
    "bytes": TypeName.BYTES,
}
_ANY = msgspec.json.Decoder()


@lru_cache(maxsize=256)
def schema_of(raw: bytes) -> ConnectSchema:
    """Read a schema as JSON; one that is null or cannot be read is :data:`UNKNOWN`."""
    try:
        return _schema(_ANY.decode(raw))
    except (*UNREADABLE, AttributeError, KeyError, TypeError):
        return UNKNOWN


def _schema(found: Any) -> ConnectSchema:
    if not isinstance(found, Mapping):
        return UNKNOWN
    name, kind, parameters = found.get("name"), found["type"], found.get("parameters") or {}
    if name in _KNOWN:
        semantic, column, per_second = _KNOWN[name]
        scale, length, precision = (
            None if (text := parameters.get(key)) is None else int(text)
            for key in ("scale", "length", "connect.decimal.precision")
        )
        made = ColumnType(column)
        if semantic is Semantic.DECIMAL and scale is not None and precision and 0 <= scale <= precision:
            made = ColumnType.decimal(precision, scale)
        return ConnectSchema(semantic, made, per_second, scale, length)
    fields = {str(each["field"]): _schema(each) for each in found.get("fields") or ()}
    items = _schema(found["items"]) if kind == "array" else None
    semantic = Semantic.ITEMS if items is not None and items.semantic is not Semantic.PLAIN else Semantic.PLAIN
    return ConnectSchema(semantic, ColumnType(_PLAIN.get(kind, TypeName.JSON)), fields=fields, items=items)


def new_types(
    schemas: Sequence[ConnectSchema], paths: Sequence[tuple[str, ...]] | None
) -> dict[tuple[str, ...], ColumnType | None]:
    """Return the types of new columns for the fields at these paths, or for all fields, by the records' schemas.

    A field without a schema has no type. One whose schemas differ has the type of the last.
    """
    found: dict[tuple[str, ...], ColumnType | None] = {}
    for schema in {id(each): each for each in schemas}.values():
        for path in [(name,) for name in schema.fields] if paths is None else paths:
            found[path] = schema.at(path).column or found.get(path)
    return found


class _Envelope(Enveloped, gc=False, forbid_unknown_fields=True, kw_only=True):
    payload: msgspec.Raw


_ENVELOPES = Envelopes(_Envelope, lambda raw: schema_of(raw) if raw else None)
_NO_ENVELOPE = "not the envelope of a schema and a payload that Kafka Connect writes with schemas.enable=true"
_NO_PAYLOAD = "an envelope whose payload is null"
_payload_of = attrgetter("payload")


def _opened(value: bytes | None) -> tuple[bytes, ConnectSchema] | None:
    """Return the payload and its schema; ``None`` if the value is no envelope."""
    found = None if value is None else _ENVELOPES.open(value)
    return None if found is None or found[1] is None else (bytes(found[0].payload), found[1])


def _all_opened(values: Sequence[bytes | None]) -> Iterator[tuple[Sequence[bytes | None], Sequence[ConnectSchema]]]:
    """Yield the payloads and schemas of values part by part, those of one schema at once; nulls for other values."""
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        present = [value for value in part if value is not None]
        found = _ENVELOPES.open_all(present)
        if found is not None and found[1] is not None:
            payloads = map(bytes, map(_payload_of, found[0]))
            whole = len(present) == len(part)
            yield list(payloads) if whole else [value and next(payloads) for value in part], [found[1]] * len(part)
        else:
            opened = [_opened(value) or (None, UNKNOWN) for value in part]
            yield [payload for payload, _ in opened], [schema for _, schema in opened]


def with_plain_keys(feed: Feed) -> Feed:
    """Return the feed with the payloads of those keys that are envelopes."""
    if feed.key is None or b'"payload"' not in b"\n".join(filter(None, feed.key)):
        return feed
    payloads = chain.from_iterable(part for part, _ in _all_opened(feed.key))
    return replace(
        feed, key=[key if payload is None else payload for key, payload in zip(feed.key, payloads, strict=True)]
    )


class ConnectJsonFormat:
    """A format in which each value is Kafka Connect's envelope of a schema and a payload, as JSON.

    Columns come from the fields of the payload; the schema says what a field stands for.
    """

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns from the payload."""
        return _PayloadFields(ConnectFields(wanted, watch))

    def unread_elements(self, feed: Feed, path: Sequence[str]) -> Iterator[int]:
        """Yield the places of records whose array at this path has elements that only its schema explains."""
        for place, value in enumerate(feed.value):
            found = _opened(value)
            if found is not None:
                items = found[1].at(path).items
                if items is not None and not items.is_plain:
                    yield place

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Return the types of the fields by the schemas of the records."""
        return new_types([found[1] for found in map(_opened, feed.value) if found is not None], paths)


class _PayloadFields:
    def __init__(self, fields: ConnectFields) -> None:
        self._fields = fields

    def read(self, feed: Feed) -> Fields:
        payloads: list[bytes | None] = []
        schemas: list[ConnectSchema] = []
        for some, theirs in _all_opened(feed.value):
            payloads += some
            schemas += theirs
        misfits = []
        if None in payloads or b"null" in payloads:
            for place, payload in enumerate(payloads):
                value = feed.value[place]
                if payload == b"null" or (payload is None and value is not None):
                    why = value.why if isinstance(value, Unread) else _NO_ENVELOPE if payload is None else _NO_PAYLOAD
                    misfits.append(Misfit(place, None, why))
                    payloads[place] = None
        fields = self._fields.read(payloads, schemas)
        return replace(fields, misfits=[*misfits, *fields.misfits])


class ConnectFields:
    """Reads columns from structs in Connect's JSON, each by its schema; reads all structs of a schema together."""

    def __init__(self, wanted: Sequence[Wanted], watch: FieldMatch | None, *, has_text_decimals: bool = False) -> None:
        self._wanted = wanted
        self._watch = watch or FieldMatch()
        self._has_text_decimals = has_text_decimals
        self._made: dict[tuple[int, bool], _StructFields] = {}

    def read(self, structs: Sequence[bytes | None], schemas: Sequence[ConnectSchema]) -> Fields:
        """Read all structs; ``None`` becomes a row of nulls."""
        if len(set(map(id, schemas))) <= 1:
            return self._read(structs, schemas[0] if schemas else UNKNOWN)
        of: dict[int, list[int]] = {}
        for place, schema in enumerate(schemas):
            of.setdefault(id(schema), []).append(place)
        parts = [self._read([structs[place] for place in places], schemas[places[0]]) for places in of.values()]
        return _together(parts, list(of.values()))

    def _read(self, structs: Sequence[bytes | None], schema: ConnectSchema) -> Fields:
        found = self._reader(schema, has_words=False).read(structs)
        is_whole = not found.misfits and not any(each.problems for each in found.converted.values())
        if is_whole or not _has_words(b"\n".join(filter(None, structs))):
            return found  # no column of floats takes text otherwise
        return self._reader(schema, has_words=True).read(structs)

    def _reader(self, schema: ConnectSchema, *, has_words: bool) -> _StructFields:
        found = self._made.get((id(schema), has_words))
        if found is None:
            if len(self._made) >= _MOST_SCHEMAS:
                self._made.clear()
            found = _StructFields(
                self._wanted, schema, self._watch, has_words=has_words, has_text_decimals=self._has_text_decimals
            )
            self._made[id(schema), has_words] = found  # the value keeps the schema, so that its id stays its own
        return found


_MOST_SCHEMAS = 64
_MOST_DIGITS = 200_000
_MOST_BITS = 1_000_000
_WORDS = {b'"NaN"': float("nan"), b'"Infinity"': float("inf"), b'"-Infinity"': float("-inf")}


def _has_words(structs: bytes) -> bool:
    """Whether structs may have a float that JSON writes as text."""
    return b'"NaN"' in structs or b'Infinity"' in structs


def _together(parts: Sequence[Fields], places: Sequence[Sequence[int]]) -> Fields:
    """Merge what was read schema by schema, in the order of the records."""
    order = [place for each in places for place in each]
    row_of = {place: row for row, place in enumerate(order)}
    taken = pa.array([row_of[place] for place in range(len(order))], pa.int64())
    starts = [sum(map(len, places[:number])) for number in range(len(places))]
    converted, lacking = {}, {}
    for name in parts[0].converted:
        arrays = [part.converted[name].array for part in parts]
        problems = {
            order[start + row]: why
            for start, part in zip(starts, parts, strict=True)
            for row, why in part.converted[name].problems.items()
        }
        converted[name] = Converted(pa.concat_arrays(arrays).take(taken), problems)
        if any(name in part.lacking for part in parts):
            masks = [
                part.lacking.get(name, pa.repeat(pa.scalar(False), len(each)))
                for part, each in zip(parts, places, strict=True)
            ]
            lacking[name] = pa.concat_arrays(masks).take(taken)
    misfits = [
        misfit._replace(place=order[start + misfit.place])
        for start, part in zip(starts, parts, strict=True)
        for misfit in part.misfits
    ]
    return Fields(converted, range(len(order)), misfits, lacking)


class _StructFields:
    """Reads structs of one schema: most columns as plain JSON, the others as raw JSON that is converted afterwards."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        schema: ConnectSchema,
        watch: FieldMatch,
        *,
        has_words: bool,
        has_text_decimals: bool,
    ) -> None:
        self.schema = schema
        self._converters: dict[str, tuple[Column, Callable[[Any], Any], _AtOnce | None]] = {}
        read = []
        for column, path in wanted:
            found = schema.at(path, ignore_case=watch.ignore_case)
            convert = _conversion(found, column, has_words=has_words, has_text_decimals=has_text_decimals)
            if convert is None:
                read.append(Wanted(column, path))
            else:
                at_once = _at_once(found, column, has_text_decimals=has_text_decimals)
                self._converters[column.name] = column, convert, at_once
                raw = Column(column.name, ColumnType(TypeName.JSON), "json")
                read.append(Wanted(raw, path))
        self._reader = JsonFormat().reader(read, watch=watch)

    def read(self, structs: Sequence[bytes | None]) -> Fields:
        fields = self._reader.read(Feed(value=structs))
        converted = dict(fields.converted)
        for name, (column, convert, at_once) in self._converters.items():
            converted[name] = _all(converted[name], column, convert, at_once)
        return replace(fields, converted=converted)


_AtOnce = Callable[[Any], Any]


def _all(raw: Converted, column: Column, convert: Callable[[bytes], Any], at_once: _AtOnce | None) -> Converted:
    """Convert raw JSON: a whole column at once if that is possible, otherwise value by value."""
    if at_once is not None and not raw.problems:
        try:
            return Converted(at_once(raw.array), {})
        except (pa.ArrowException, OverflowError):
            pass  # a value of another kind, or one that is out of range
    values: list[Any] = []
    problems = dict(raw.problems)
    for place, text in enumerate(raw.array.to_pylist()):
        try:
            values.append(None if text is None else convert(text.encode()))
        except Unfit as unfit:
            problems[place] = str(unfit)
            values.append(None)
        except UNREADABLE:
            problems[place] = "a value that is not what the schema says"
            values.append(None)
    found = array_of_json(values, column) if column.type.name is TypeName.JSON else array_of(values, column)
    return Converted(found.array, {**found.problems, **problems})


def _at_once(schema: ConnectSchema, column: Column, *, has_text_decimals: bool) -> _AtOnce | None:
    """Return how a whole column of raw JSON becomes dates, timestamps or decimals; ``None`` for other columns."""
    match schema.semantic, column.type.name:
        case Semantic.DAYS | Semantic.UNKNOWN, TypeName.DATE:
            return lambda raw: _in_range(raw.cast(pa.int64()), _DAYS).cast(pa.int32()).cast(pa.date32())
        case Semantic.INSTANT, TypeName.TIMESTAMP if schema.per_second < _NANOS:
            ticks = _MICROS // schema.per_second
            return lambda raw: _in_range(pc.multiply_checked(raw.cast(pa.int64()), ticks), _TICKS).cast(column.arrow)
        case Semantic.DECIMAL | Semantic.UNKNOWN, TypeName.DECIMAL:
            is_known = schema.semantic is Semantic.DECIMAL
            scale = schema.scale if is_known else column.type.scale
            most = _MOST_PLAIN if column.is_unbounded else _MOST_ARROW
            if scale is None or not 0 <= scale <= most or (has_text_decimals and not is_known):
                return None
            if column.is_unbounded and column.type.precision is not None:
                return None  # digits are counted value by value
            return lambda raw: _decimals(raw, scale).cast(column.arrow)
    return None


_MOST_PLAIN, _MOST_ARROW = 6, 38  # digits after the point: with more, Arrow writes small decimals with an exponent


def _decimals(raw: Any, scale: int) -> Any:
    """Return decimals of 64 bits from base64 in quotes; raise if there is anything else."""
    if pc.all(pc.starts_with(raw, '"')).as_py() is False:
        raise pa.ArrowInvalid("not text")
    texts = pc.utf8_trim(raw, '"').to_pylist()
    try:
        coded = [None if text is None else a2b_base64(text, strict_mode=True) for text in texts]
    except ValueError:
        raise pa.ArrowInvalid("not base64") from None
    unscaled = [None if each is None else int.from_bytes(each, "big", signed=True) for each in coded]
    whole = pa.array(unscaled, pa.int64()).cast(pa.decimal128(_MOST_ARROW, 0))
    return pa.Array.from_buffers(pa.decimal128(_MOST_ARROW, scale), len(whole), whole.buffers())


_DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal())
_TICKS = (_DAYS[0] * 86400 * _MICROS, (_DAYS[1] + 1) * 86400 * _MICROS - 1)


def _in_range(numbers: Any, bounds: tuple[int, int]) -> Any:
    least, most = pc.min_max(numbers).as_py().values()
    if least is not None and not (bounds[0] <= least and most <= bounds[1]):
        raise pa.ArrowInvalid("out of range")
    return numbers


def _conversion(
    schema: ConnectSchema, column: Column, *, has_words: bool, has_text_decimals: bool
) -> Callable[[bytes], Any] | None:
    """Return how raw JSON becomes a value of the column; ``None`` if the column reads it as plain JSON."""
    semantic, name = schema.semantic, column.type.name
    if semantic is Semantic.UNKNOWN:
        return _by_column(column, has_words=has_words, has_text_decimals=has_text_decimals)
    if semantic is Semantic.PLAIN or (semantic is Semantic.ZONED and name is TypeName.TIMESTAMP):
        return _double if name is TypeName.DOUBLE and has_words else None
    if semantic is Semantic.JSON:
        return lambda raw: _unwrapped(raw, column)
    if semantic is Semantic.SHAPE:
        return lambda raw: _shape(raw, column)
    if semantic is Semantic.ITEMS and schema.items is not None:
        items = schema.items
        return lambda raw: _for_column(_items(raw, items), column)
    if semantic is Semantic.BITS and name is TypeName.BYTES:
        return None
    if name is TypeName.INTEGER and semantic is not Semantic.DECIMAL:
        return None
    return lambda raw: _for_column(_value(raw, schema), column)


def _for_column(value: Any, column: Column) -> Any:
    """Return a value as the column takes it: JSON and text are written out, all others stay as they are."""
    if column.type.name is TypeName.JSON:
        return json_text(value)
    if column.type.name is not TypeName.TEXT:
        return value
    if isinstance(value, list):
        return lenient(json_text(value).encode(), column)
    if isinstance(value, Decimal) and abs(value.adjusted()) > _MOST_DIGITS:
        raise Unfit(f"a number of more than {_MOST_DIGITS} digits")
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _by_column(column: Column, *, has_words: bool, has_text_decimals: bool) -> Callable[[bytes], Any] | None:
    """Return how raw JSON without a schema is read: by the type of the column, as far as that leaves no doubt."""
    match column.type.name:
        case TypeName.DECIMAL:
            return lambda raw: _decimal_by_column(raw, column, has_text_decimals)
        case TypeName.DATE:
            return lambda raw: _for_column(_days(_whole(raw)) if _is_number(raw) else _text(raw), column)
        case TypeName.JSON if column.sql_type:  # what is no column of a table takes the JSON as it is
            return lambda raw: _unwrapped(raw, column)
        case TypeName.DOUBLE:
            return _double if has_words else None
        case TypeName.TEXT if column.form is Form.MAP:
            return lambda raw: _unwrapped(raw, column)
        case TypeName.TEXT if column.form is Form.BITS or column.sql_type.startswith(_CLOCKS):
            return lambda raw: _in_doubt(raw, column)
    return None


_CLOCKS = ("time", "interval", "bit", "varbit")
_DOUBT = (
    "only the record's schema tells what this stands for; let the connector's converters write it (schemas.enable=true)"
)


def _in_doubt(raw: bytes, column: Column) -> Any:
    if column.form is Form.BITS or _is_number(raw):
        raise Unfit(_DOUBT)
    return lenient(raw, column)


def _decimal_by_column(raw: bytes, column: Column, has_text_decimals: bool) -> Any:
    if raw[:1] == b'"' and has_text_decimals:
        return _text(raw)
    if _is_number(raw):
        return lenient(raw, column)
    if raw[:1] == b'"' and column.type.scale is None:
        raise Unfit(f"a decimal in base64, without its scale: {_DOUBT}")
    return _decimal(raw, column.type.scale)


def _value(raw: bytes, schema: ConnectSchema) -> Any:
    """Return what a field stands for, as a Python value."""
    match schema.semantic:
        case Semantic.DECIMAL:
            return _decimal(raw, schema.scale)
        case Semantic.DAYS:
            return _days(_whole(raw))
        case Semantic.INSTANT:
            return _instant(_whole(raw), schema.per_second)
        case Semantic.CLOCK | Semantic.DURATION:
            return _clock(_whole(raw), schema.per_second)
        case Semantic.BITS:
            return _bits(raw, schema.length)
        case Semantic.ITEMS if schema.items is not None:
            return _items(raw, schema.items)
        case Semantic.PLAIN | Semantic.ZONED | Semantic.JSON | Semantic.SHAPE | Semantic.ITEMS | Semantic.UNKNOWN:
            return _ANY.decode(raw)
        case other:
            assert_never(other)


def _items(raw: bytes, schema: ConnectSchema) -> list[Any]:
    try:
        parts = [bytes(part) for part in _LIST.decode(raw)]
    except UNREADABLE:
        raise Unfit("expected an array") from None
    return [None if part == b"null" else _value(part, schema) for part in parts]


_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_OUTSIDE = "a time outside of the years 1 to 9999"
_NOT_BASE64 = "text that is not base64"


def _is_number(raw: bytes) -> bool:
    return raw[:1] not in (b'"', b"{", b"[", b"t", b"f")


def _text(raw: bytes) -> str:
    try:
        return _TEXT.decode(raw)
    except UNREADABLE:
        raise Unfit("expected text") from None


def _whole(raw: bytes) -> int:
    try:
        return int(raw)
    except ValueError:
        raise Unfit("expected a whole number") from None


def _bytes(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise Unfit(_NOT_BASE64) from None


def _decimal(raw: bytes, scale: int | None) -> Decimal:
    text: Any
    if raw[:1] == b"{":
        fields = json_fields(raw) or {}
        if fields.keys() != {"scale", "value"}:
            raise Unfit("expected a decimal as scale and value")
        scale, text = _whole(bytes(fields["scale"])), _text(bytes(fields["value"]))
    elif raw[:1] == b'"':
        text = _text(raw)
    else:
        try:
            return Decimal(raw.decode())
        except (InvalidOperation, ValueError):
            raise Unfit("expected a decimal number") from None
    if scale is None or not -_MOST_SCALE <= scale <= _MOST_SCALE:
        raise Unfit("a decimal in base64 without its scale")
    return EXACT.scaleb(Decimal(int.from_bytes(_bytes(text), "big", signed=True)), -scale)


_MOST_SCALE = 20_000  # PostgreSQL's numeric has at most 16,383 digits after the point


# What Debezium writes for infinite timestamps. For infinite dates it writes numbers that tell no sign.
_INFINITE = {9223372036825200000: "infinity", -9223372036832400000: "-infinity"}


def _days(days: int) -> date:
    try:
        return date.fromordinal(_FIRST_DAY + days)
    except (OverflowError, ValueError):
        raise Unfit(_OUTSIDE) from None


def _instant(units: int, per_second: int) -> datetime | str:
    if units in _INFINITE:
        return _INFINITE[units]
    try:
        return _EPOCH + timedelta(microseconds=units * _MICROS // per_second)
    except OverflowError:
        raise Unfit(_OUTSIDE) from None


def _clock(units: int, per_second: int) -> str:
    """Return hours, minutes and seconds, to the microsecond; there may be more than 24 hours, or a minus."""
    seconds, rest = divmod(abs(units), per_second)
    fraction = f".{rest * _MICROS // per_second:06d}" if rest else ""
    return f"{'-' * (units < 0)}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def _bits(raw: bytes, length: int | None) -> str:
    number = int.from_bytes(_bytes(_text(raw)), "little")
    digits = f"{number:b}".zfill(min(length or 1, _MOST_BITS))
    if length is None or len(digits) > length or length > _MOST_BITS:
        raise Unfit("bits without their number")
    return digits


def _double(raw: bytes) -> Any:
    if raw in _WORDS:
        return _WORDS[raw]
    try:
        found = float(raw)
    except ValueError:
        raise Unfit("expected a number") from None
    if found in (_WORDS[b'"Infinity"'], _WORDS[b'"-Infinity"']):
        raise Unfit("a number that is out of range")
    return found


def _unwrapped(raw: bytes, column: Column) -> Any:
    """Return JSON that is inside of text: as it is for a column of JSON, as text for a column of text."""
    inner = _text(raw) if raw[:1] == b'"' else raw.decode()
    if column.type.name is TypeName.JSON:
        return checked_json(inner)
    if column.form in (Form.ARRAY, Form.MAP, Form.SET):
        checked_json(inner)
        return lenient(inner.encode(), column)
    return inner if column.type.name is TypeName.TEXT else _ANY.decode(raw)


def _shape(raw: bytes, column: Column) -> Any:
    """Return a geometry: as WKB for a column of bytes, as hexadecimal EWKB or ``(x,y)`` for text, else as JSON."""
    fields = json_fields(raw) or {}
    if column.type.name is TypeName.JSON:
        return raw.decode()
    if "wkb" not in fields:
        raise Unfit("expected a geometry with wkb")
    wkb = _bytes(_text(bytes(fields["wkb"])))
    if column.type.name is TypeName.BYTES:
        return wkb
    if column.sql_type == "point" and {"x", "y"} <= fields.keys():
        return f"({bytes(fields['x']).decode()},{bytes(fields['y']).decode()})"
    srid = bytes(fields.get("srid", b"null"))
    return (wkb if srid in (b"null", b"0") else _with_srid(wkb, _whole(srid))).hex()


_HAS_SRID = 0x20000000


def _with_srid(wkb: bytes, srid: int) -> bytes:
    """Return WKB as PostGIS extends it: with the number of its reference system after its type."""
    if len(wkb) < 5 or wkb[0] > 1:
        raise Unfit("a geometry that is not WKB")
    order: Any = "little" if wkb[0] else "big"
    kind = int.from_bytes(wkb[1:5], order)
    if kind & _HAS_SRID:
        return wkb
    return wkb[:1] + (kind | _HAS_SRID).to_bytes(4, order) + (srid & 0xFFFFFFFF).to_bytes(4, order) + wkb[5:]
