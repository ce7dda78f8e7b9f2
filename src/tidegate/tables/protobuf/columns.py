"""Columns of Protobuf messages: read field by field from all messages, without a dictionary for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import UNSET

from tidegate.tables.codec import Mismatched
from tidegate.tables.column import Column
from tidegate.tables.cursors import Cursors
from tidegate.tables.feed import Clash, Feed, Known
from tidegate.tables.format import FieldMatch, Fields, Unmatched, Wanted, field_in, lacking_in, read_in_parts
from tidegate.tables.protobuf.codec import MessageCodec, is_record
from tidegate.tables.protobuf.scans import FieldScan, scanned, scans_of
from tidegate.tables.protobuf.values import EMPTY, column_type, foreign_fields, is_repeated, may_lack
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted, array_of
from tidegate.tables.vectors import Values, column_of, with_those_alone

__all__ = ["MessageColumns"]

_NUMERIC = (TypeName.INTEGER, TypeName.DOUBLE, TypeName.DECIMAL)
_AT_ONCE, _FLAT_AT_ONCE = 1_000, 10_000  # records
_TICKS = 10**6
_FIRST, _LAST = -62135596800, 253402300799  # seconds: the years 1 to 9999
_PYTHON: dict[int, type] = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), int),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), int),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE), float),
    FieldDescriptor.CPPTYPE_BOOL: bool,
}


class _FieldColumn(NamedTuple):
    """Where a column comes from: nested messages on the way, the last field, and what is looked up in its value."""

    column: Column
    way: tuple[FieldDescriptor, ...]
    rest: tuple[str, ...]


class MessageColumns:
    """Reads columns from messages of one type. The bytes of records are messages, without the index before them."""

    def __init__(self, codec: MessageCodec, wanted: Sequence[Wanted], watch: FieldMatch | None = None) -> None:
        self._codec = codec
        self._watch = watch or FieldMatch()
        known = Known([path for _, path in wanted if path], ignore_case=self._watch.ignore_case)
        self._clash: str | None = None
        try:
            self._places = [_FieldColumn(column, *self._found(path, known)) for column, path in wanted if path]
            names = known.matched({name: name for name in codec.descriptor.fields_by_name})
        except Clash as clash:
            self._clash, self._places, names = str(clash), [], {}
        self._unmatched = [] if self._watch.unmatched is Unmatched.IGNORED else list(self._without_column(names, known))

        self._scans = self._flat_scans()

    def _flat_scans(self) -> list[FieldScan] | None:
        """Return what reads all fields of all messages at once; ``None`` if the messages are read one by one."""
        fields = [(place.way[0], place.column) for place in self._places if place.way]
        is_deep = any(len(place.way) > 1 or place.rest for place in self._places)
        numbers = {field.name for field, column in fields if field.enum_type and column.type.name in _NUMERIC}
        labels = {field.name for field, column in fields if field.enum_type and column.type.name not in _NUMERIC}
        if is_deep or self._clash is not None or self._unmatched or self._codec.has_required or numbers & labels:
            return None
        return scans_of(self._codec.descriptor, numbers)

    def _without_column(self, names: Mapping[str, str], known: Known) -> Iterator[FieldDescriptor]:
        for name, given in names.items():
            is_left_out = name in known.inside or name in self._watch.left_out
            if not is_left_out and not (self._watch.spares_nulls and known.has_exactly(name, names)):
                yield self._codec.descriptor.fields_by_name[given]

    def _found(self, path: tuple[str, ...], known: Known | None) -> tuple[tuple[FieldDescriptor, ...], tuple[str, ...]]:
        """Return the fields on the way of a path, and the rest of the path, within the value of the last field."""
        at, way = self._codec.descriptor, []
        for depth, name in enumerate(path):
            given = {} if known is None else known.matched({each: each for each in at.fields_by_name})
            field = at.fields_by_name.get(given.get(name, name))
            if field is None:
                return (), ()
            way.append(field)
            if not is_record(field):
                return tuple(way), path[depth + 1 :]
            at, known = field.message_type, None if known is None else known.inside.get(name)
        return tuple(way), ()

    def read(self, feed: Feed) -> Fields:
        """Read all records; a record without a value becomes a row of nulls. May raise :class:`NewFields`."""
        if self._scans is None:
            return read_in_parts(self._read_messages, feed.value, _AT_ONCE)
        scans = self._scans
        return read_in_parts(lambda records: self._read_fields(records, scans), feed.value, _FLAT_AT_ONCE)

    def _read_fields(self, records: Sequence[bytes | None], scans: Sequence[FieldScan]) -> Fields:
        cursors = Cursors([each or b"" for each in records])
        if None in records:
            cursors.leave(np.array([each is None for each in records], np.bool_))
        found = scanned(scans, cursors)
        converted, lacking = {}, {}
        for column, way, _ in self._places:
            values, missing = found[way[0].name] if way else (Values(pa.nulls(len(records))), None)
            converted[column.name] = column_of(values, column)
            if missing is not None or not way:
                lacking[column.name] = (
                    pa.repeat(pa.scalar(True), len(records)) if missing is None else pa.array(missing)
                )
        alone = np.flatnonzero(cursors.alone).tolist()
        fields = Fields(converted, range(len(records)), (), lacking)
        if not alone:
            return fields
        return with_those_alone(fields, self._read_messages([records[place] for place in alone]), alone)

    def _read_messages(self, records: Sequence[bytes | None]) -> Fields:
        misfits: dict[int, Misfit] = {}
        messages = self._parsed(records, misfits)
        if self._clash is not None:
            misfits |= {place: Misfit(place, None, self._clash) for place, _ in enumerate(messages)}
        unmatched = {place: name for place, name in self._judged(messages).items() if place not in misfits}
        columns = []
        has_gaps = bool(misfits) or None in records
        for place in self._places:
            values, problems = self._values(messages, place, has_gaps=has_gaps)
            columns.append((place, values))
            for row, error in problems.items():
                misfits.setdefault(row, Misfit(row, None, str(error)))
        converted, lacking = {}, {}
        for place, values in columns:
            present, mask = lacking_in(values)
            converted[place.column.name] = self._array(present, place)
            if mask is not None:
                lacking[place.column.name] = mask
        found = [*misfits.values(), *self._watch.misfits(unmatched)]
        return Fields(converted, range(len(messages)), found, lacking)

    def _parsed(self, values: Sequence[bytes | None], misfits: dict[int, Misfit]) -> list[Any]:
        """Return the messages, with ``None`` for tombstones and for bytes that are no message."""
        try:
            one_by_one = None in values or self._codec.has_required
            found: list[Any] = [] if one_by_one else list(map(self._codec.type.FromString, values))
        except DecodeError:
            one_by_one = True
        if one_by_one:
            found = [self._parsed_alone(place, value, misfits) for place, value in enumerate(values)]
        there = [each for each in found if each is not None] if None in values or misfits else found
        if any(map(len, map(UnknownFieldSet, there))):
            for place, message in enumerate(found):
                why = None if message is None else self._foreign(message)
                if why is not None:
                    misfits[place] = Misfit(place, None, why)
        return found

    def _parsed_alone(self, place: int, value: bytes | None, misfits: dict[int, Misfit]) -> Any:
        try:
            return None if value is None else self._codec.parsed(value)
        except Mismatched as error:
            misfits[place] = Misfit(place, None, str(error))
            return None

    def _foreign(self, message: Any) -> str | None:
        """Return why a message does not fit that has bytes which belong to no field, if it does not."""
        try:
            foreign = list(foreign_fields(message, self._codec.descriptor))
        except Mismatched as error:
            return str(error)
        if foreign and not self._codec.reader.has_any(message):
            return EMPTY
        if foreign and self._watch.unmatched is Unmatched.REFUSED:
            return f"field number {foreign[0]}: the schema does not have it"
        return None

    def _judged(self, messages: list[Any]) -> dict[int, str]:
        """Return, by row, the names of fields without a column that are set."""
        found: dict[int, str] = {}
        for field in self._unmatched:
            if self._watch.unmatched is Unmatched.NEW and column_type(field) is not None:
                if field.name not in self._watch.waiting and messages:  # the schema alone makes it a column
                    return {0: field.name}
                continue
            for row, message in enumerate(messages):
                if message is not None and self._is_set(message, field):
                    found.setdefault(row, field.name)
        return found

    def _is_set(self, message: Any, field: FieldDescriptor) -> bool:
        if field.has_presence:
            return bool(self._codec.reader.has(message, field.name))
        value = getattr(message, field.name)
        return len(value) > 0 if is_repeated(field) else value != field.default_value

    def _values(
        self, messages: list[Any], place: _FieldColumn, *, has_gaps: bool
    ) -> tuple[list[Any], dict[int, Mismatched]]:
        """Return the values of a column, as Python values, and by row the reasons why some cannot be read."""
        if not place.way:
            return [UNSET] * len(messages), {}
        found: list[Any] = messages
        problems: dict[int, Mismatched] = {}
        owner = self._codec.descriptor
        for field in place.way:
            reader = self._codec.reader_of(owner)
            if _is_moment(place) and not has_gaps and len(place.way) == 1:
                found = list(map(attrgetter(field.name), found))  # a lacking one is empty, which is looked at below
                ticks = _all_ticks(found)
                if ticks is not None:
                    return _without_lacking(ticks, messages, reader.has, field.name), problems
                found = [
                    each if reader.has(message, field.name) else UNSET
                    for each, message in zip(found, messages, strict=True)
                ]
                has_gaps = True
            elif may_lack(field) and field.message_type is None and not has_gaps:
                values = list(map(attrgetter(field.name), found))
                found = _without_lacking(values, found, reader.has, field.name)
                has_gaps = True
            elif may_lack(field):
                found = [
                    getattr(each, field.name)
                    if each is not None and each is not UNSET and reader.has(each, field.name)
                    else UNSET
                    for each in found
                ]
                has_gaps = True
            elif not has_gaps:
                found = list(map(attrgetter(field.name), found))
            else:
                found = [UNSET if each is None or each is UNSET else getattr(each, field.name) for each in found]
            if field is not place.way[-1]:
                owner = field.message_type
                path = ".".join(each.name for each in place.way[: place.way.index(field) + 1])
                self._refuse_foreign(found, owner, path, problems)
        return self._converted(found, place, owner, problems), problems

    @staticmethod
    def _refuse_foreign(found: list[Any], owner: Any, path: str, problems: dict[int, Mismatched]) -> None:
        """Note nested messages whose bytes do not fit a field."""
        for row, message in enumerate(found):
            if message is not UNSET and len(UnknownFieldSet(message)):
                try:
                    list(foreign_fields(message, owner))
                except Mismatched as error:
                    problems.setdefault(row, Mismatched(error.why, f"{path}.{error.path}"))

    def _converted(
        self, found: list[Any], place: _FieldColumn, owner: Any, problems: dict[int, Mismatched]
    ) -> list[Any]:
        field = place.way[-1]
        if field.enum_type is not None and not is_repeated(field) and place.column.type.name in _NUMERIC:
            return found
        convert = self._codec.reader_of(owner).plans[field.name].convert
        if _is_moment(place):
            convert = _ticks
        if convert is None and not place.rest:
            return found
        values: list[Any] = []
        path = ".".join(each.name for each in place.way)
        for row, value in enumerate(found):
            try:
                made = value if value is UNSET or convert is None else convert(value)
                values.append(made if made is UNSET else field_in(made, place.rest) if place.rest else made)
            except Mismatched as error:
                problems.setdefault(row, Mismatched(error.why, f"{path}.{error.path}".rstrip(".")))
                values.append(None)
            except RecursionError:
                problems.setdefault(row, Mismatched("a message that is nested too deep", path))
                values.append(None)
        return values

    def _array(self, values: list[Any], place: _FieldColumn) -> Converted:
        if _is_moment(place):
            return Converted(pa.array(values, pa.int64()).cast(place.column.arrow), {})
        field = place.way[-1] if place.way else None
        kind = None if field is None or is_repeated(field) or place.rest else _PYTHON.get(field.cpp_type)
        return array_of(values, place.column, kind)


def _is_moment(place: _FieldColumn) -> bool:
    """Whether a column of timestamps takes a Timestamp, which then needs no object for each value."""
    field = place.way[-1] if place.way else None
    return (
        field is not None
        and field.message_type is not None
        and column_type(field) == ColumnType(TypeName.TIMESTAMP)
        and not is_repeated(field)
        and not place.rest
        and place.column.type.name is TypeName.TIMESTAMP
    )


def _without_lacking(values: list[Any], messages: list[Any], has: Any, name: str) -> list[Any]:
    """Replace the values of fields that are not set by ``UNSET``. Such values are false, so only those are checked."""
    return [value if value or has(message, name) else UNSET for value, message in zip(values, messages, strict=True)]


def _all_ticks(messages: list[Any]) -> list[Any] | None:
    """Return Timestamps in microseconds, all at once; ``None`` if one is out of bounds."""
    if not messages:
        return None
    seconds = pa.array(list(map(attrgetter("seconds"), messages)), pa.int64())
    nanos = pa.array(list(map(attrgetter("nanos"), messages)), pa.int64())
    (first, last), (least, most) = (pc.min_max(each).as_py().values() for each in (seconds, nanos))
    if first < _FIRST or last > _LAST or least < 0 or most >= 10**9:
        return None
    ticks = pc.add(pc.multiply(seconds, _TICKS), pc.divide(nanos, 1000))
    found: list[Any] = ticks.to_pylist()
    return found


def _ticks(message: Any) -> int:
    """Return a Timestamp in microseconds, truncated."""
    seconds, nanos = message.seconds, message.nanos
    if not 0 <= nanos < 10**9:
        raise Mismatched("a Timestamp whose nanos are out of bounds")
    if not _FIRST <= seconds <= _LAST:
        raise Mismatched("a timestamp outside of the years 1 to 9999")
    return int(seconds * _TICKS + nanos // 1000)
