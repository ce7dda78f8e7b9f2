"""Readers: convert records to rows of one table."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, assert_never

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.columns import AddedColumns, Evolution
from tidegate.core.records import Record
from tidegate.errors import ConfigurationError
from tidegate.tables.column import Column
from tidegate.tables.connect_avro import translation
from tidegate.tables.connect_format import ConnectJsonFormat, with_plain_keys
from tidegate.tables.debezium_format import DebeziumFormat, RowGuard
from tidegate.tables.feed import Feed, Source
from tidegate.tables.fit import assemble
from tidegate.tables.format import FieldMatch, FieldReader, Fields, Format, Unmatched, Wanted
from tidegate.tables.inference import ENVELOPE, is_envelope, json_fields
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.layout import Layout, check_writable, refuse_generated
from tidegate.tables.own_format import OwnFormat
from tidegate.tables.rows import Misfit, Rows
from tidegate.tables.schema_format import SchemaFormat
from tidegate.tables.table import Tombstones
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted, array_of, array_of_bytes

__all__ = ["REFUSED_TOMBSTONE", "Reader", "check_metadata", "new_fields", "read_keys", "read_metadata", "type_of"]


_NO_TIME = -1  # the timestamp that Kafka gives a record without one
_NUMBERS = {TypeName.INTEGER, TypeName.DECIMAL, TypeName.DOUBLE}
_HOLDS: dict[str, set[TypeName]] = {
    "topic": {TypeName.TEXT},
    "partition": _NUMBERS,
    "offset": _NUMBERS,
    "timestamp": {TypeName.TIMESTAMP, TypeName.INTEGER},
}


def type_of(source: Source) -> ColumnType:
    """Return the type of a new column that is filled from a source other than a field of the value."""
    if source.part == "headers" and not source.path:
        return ColumnType(TypeName.JSON)
    names = {"partition": TypeName.INTEGER, "offset": TypeName.INTEGER, "timestamp": TypeName.TIMESTAMP}
    return ColumnType(names.get(source.part, TypeName.TEXT))


def check_metadata(column: Column, source: Source) -> None:
    """Raise if the column's type cannot hold the values of a source such as ``offset`` or ``headers``."""
    holds = {TypeName.JSON} if source == Source("headers") else _HOLDS.get(source.part)
    if holds is not None and column.type.name not in holds:
        wanted = " or ".join(sorted(name.value for name in holds))
        raise ConfigurationError(f"column {column.name!r} is {column.type}, and {source} needs {wanted}")


def read_metadata(feed: Feed, column: Column, source: Source) -> Converted:
    """Convert the values of a column whose source is metadata, a header, or a whole key or value."""
    found = feed.part(source.part)
    if source.part == "timestamp":
        found = [None if moment == _NO_TIME else moment for moment in found] if _NO_TIME in found else found
    match source:
        case Source("key" | "value", ()):
            return array_of_bytes(found, column)
        case Source("headers", (name,)):
            return array_of_bytes([_last(headers, name) for headers in found], column)
        case Source("headers", ()):
            return array_of([headers and [_shown(header) for header in headers] for headers in found], column)
        case Source("timestamp", ()) if column.type.name is TypeName.TIMESTAMP:
            moments = pc.multiply(pa.array(found, pa.int64()), 1000)
            return Converted(moments.cast(column.arrow), {})
    return array_of(found, column)


def _last(headers: Sequence[tuple[str, bytes | None]] | None, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers or ()) if name == wanted), None)


def _shown(header: tuple[str, bytes | None]) -> list[Any]:
    """Return a header as a JSON pair, since names may repeat; a value that is not UTF-8 becomes ``{"base64": …}``."""
    name, value = header
    try:
        return [name, value and str(value, "utf-8")]
    except UnicodeDecodeError:
        return [name, {"base64": str(base64.b64encode(value or b""), "ascii")}]


_TEXT = msgspec.json.Decoder(str)


def read_keys(
    feed: Feed, wanted: Sequence[Wanted], *, ignore_case: bool, form: SchemaFormat | None = None
) -> tuple[dict[str, Converted], list[Misfit]]:
    """Read the key columns of tombstones from record keys; other records have them as fields of their value.

    A record key is an object with these fields, each named by the last part of its path, or by the whole path if two
    last parts are equal. If there is only one key column, the record key may also be its bare value, as JSON or text.
    ``form`` is the format of keys, by default JSON. Returns the values by column name, and the misfits.
    """
    fields = [Wanted(column, path[-1:]) for column, path in wanted]
    if len({path for _, path in fields}) < len(fields):
        fields = list(wanted)
    keys = feed.part("key")
    if form is not None:
        return _schema_keys(feed, fields, form, ignore_case=ignore_case)
    is_object = [key is not None and json_fields(key) is not None for key in keys]
    named = (
        JsonFormat()
        .reader(fields, part="key", watch=FieldMatch(ignore_case=ignore_case))
        .read(Feed(value=keys, key=[key if whole else None for key, whole in zip(keys, is_object, strict=True)]))
    )
    misfits = list(named.misfits)
    if len(fields) > 1:
        why = f"a tombstone whose key is no JSON object with {', '.join('.'.join(path) for _, path in fields)}"
        misfits += [Misfit(place, None, why) for place, whole in enumerate(is_object) if not whole]
        return dict(named.converted), misfits
    misfits += [Misfit(place, None, "a tombstone without a key") for place, key in enumerate(keys) if key is None]
    column, _ = fields[0]
    bare = array_of_bytes(
        [None if whole else _unquoted(key) for key, whole in zip(keys, is_object, strict=True)], column
    )
    array = pc.if_else(pa.array(is_object), named.converted[column.name].array, bare.array)
    return {column.name: Converted(array, {**named.converted[column.name].problems, **bare.problems})}, misfits


def _schema_keys(
    feed: Feed, fields: Sequence[Wanted], form: SchemaFormat, *, ignore_case: bool
) -> tuple[dict[str, Converted], list[Misfit]]:
    """Read the key columns of tombstones from keys that name a schema."""
    watch = FieldMatch(ignore_case=ignore_case)
    reader = form.bare_reader(fields[0]) if len(fields) == 1 else form.reader(fields, part="key", watch=watch)
    found = reader.read(feed)
    keyless = [place for place, key in enumerate(feed.part("key")) if key is None]
    misfits = [*found.misfits, *(Misfit(place, None, "a tombstone without a key") for place in keyless)]
    return dict(found.converted), misfits


def _unquoted(key: bytes | None) -> bytes | None:
    """Remove the quotes that a JSON serializer has put around a key."""
    if key is not None and key[:1] == b'"' == key[-1:]:
        try:
            return _TEXT.decode(key).encode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return key
    return key


REFUSED_TOMBSTONE = "a tombstone, and the table does not delete"
"""The reason why a record without a value is a misfit."""

_LISTED = 8  # number of field names that an error lists


class Reader:
    """Converts records to rows of one table: each column takes its source, by default the field of its name.

    It needs no database connection and keeps no state between batches. Threads may share it.
    """

    def __init__(
        self,
        layout: Layout,
        form: Format,
        sources: dict[str, Source] | None = None,
        *,
        keys: Format | None = None,
        watch: FieldMatch | None = None,
        needs_field: bool = True,
    ) -> None:
        """Check the sources against the layout.

        ``keys`` is the format of keys, by default JSON. ``watch`` overrides how fields are matched with columns; by
        default, the table's settings decide. ``needs_field`` makes a record a misfit if it has none of the fields that
        columns come from.
        """
        self.layout = layout
        self._sources = _checked(layout, sources)
        self._key_form = keys if isinstance(keys, SchemaFormat) else None
        table = layout.table
        form, self._translated = translation(form)
        self._takes_tombstones = isinstance(form, OwnFormat) and table.tombstones is None and not table.deletes
        is_own = isinstance(form, OwnFormat) and not self._takes_tombstones
        self._form = form.without_tombstones() if isinstance(form, OwnFormat) and is_own else form
        table.check_format(form)
        of = {part: self._wanted(part) for part in ("value", "key")}
        watch = watch or self._watch()
        self._key_fields = [wanted for wanted in of["value"] if wanted.column.name in table.key]
        self._fields: FieldReader | None = self._reader_of(of["value"], watch) if of["value"] else None
        in_key = FieldMatch(ignore_case=table.ignore_case)
        in_keys = self._key_form or JsonFormat()
        self._keys = in_keys.reader(of["key"], part="key", watch=in_key) if of["key"] else None
        self._needed = {wanted.column.name: ".".join(wanted.path) for wanted in of["value"]} if needs_field else {}
        self._has_others = any(source.part in ("key", "headers") for source in self._sources.values())
        self._has_others |= Source("value") in self._sources.values()
        self._plain = [
            (layout.by_name[name], source)
            for name, source in self._sources.items()
            if _is_plain(source) and not self._decodes_whole(source)
        ]

    def read(self, records: Feed | Sequence[Record]) -> Rows:
        """Convert records to rows; those that do not fit become misfits."""
        feed = records if isinstance(records, Feed) else Feed.of(records)
        feed = self._translated(feed)
        feed = with_plain_keys(feed) if isinstance(self._form, ConnectJsonFormat | DebeziumFormat) else feed
        found = self._fields.read(feed) if self._fields else Fields({}, range(len(feed)))
        converted, misfits, lacking = dict(found.converted), list(found.misfits), dict(found.lacking)
        self._add_the_rest(feed, found, converted, misfits, lacking)
        misfits += self._empty(feed, found)
        deleting, passed = found.deletes, list(found.passed)
        if deleting is not None:
            lacking = _elsewhere(lacking, deleting)
        if None in feed.value and not isinstance(self._form, DebeziumFormat):
            gone = [row for row, place in enumerate(found.places) if feed.value[place] is None]
            match self.layout.table.on_tombstone:
                case Tombstones.DELETE:
                    deleting = self._deleting(feed, found.places, gone, converted, misfits)
                    lacking = _elsewhere(lacking, deleting)
                case Tombstones.IGNORE:
                    passed = [found.places[row] for row in gone]
                case Tombstones.REFUSE:
                    if self.layout.table.tombstones or (self._fields and not self._takes_tombstones):
                        misfits += [Misfit(found.places[row], None, REFUSED_TOMBSTONE) for row in gone]
                case other:
                    assert_never(other)
        ordered = {name: converted[name] for name in self.layout.by_name if name in converted}
        return assemble(
            self.layout,
            ordered,
            found.places,
            misfits=misfits,
            tombstones=deleting,
            lacking=lacking,
            passed=passed,
            existing=found.existing,
            truncates=found.truncates,
        )

    def _reader_of(self, wanted: Sequence[Wanted], watch: FieldMatch) -> FieldReader:
        if not isinstance(self._form, DebeziumFormat):
            return self._form.reader(wanted, watch=watch)
        table, names = self.layout.table, {each.column.name for each in self._key_fields}
        table.check_changes(has_key=names == set(table.key))
        guard = None
        if table.guard is not None:
            column, has_table = self.layout.by_name[table.guard], table.guard_table is not None
            guard = RowGuard(column, has_table, self.layout.server, self.layout.snapshot)
        return self._form.keyed_reader(wanted, [each.path for each in self._key_fields], watch, guard)

    def _watch(self) -> FieldMatch:
        """Return how fields are matched with columns, by the table's settings."""
        refuses = (
            self.layout.table.evolution.add is AddedColumns.REFUSE and Source("value") not in self._sources.values()
        )
        return replace(
            new_fields(self.layout),
            unmatched=Unmatched.REFUSED if refuses else Unmatched.IGNORED,
            why=f"no column comes from it, and the table has {self._refusal}",
        )

    @property
    def _refusal(self) -> str:
        return "add='refuse'" if isinstance(self.layout.table.evolve, Evolution) else "unknown='refuse'"

    def _empty(self, feed: Feed, found: Fields) -> list[Misfit]:
        """Return misfits for records that have none of the fields that columns come from.

        Such a record is not a misfit if other columns come from its key, its headers or its whole value, unless it is
        an envelope of Kafka Connect.
        """
        if not self._needed or not self._needed.keys() <= found.lacking.keys():
            return []
        rows = pc.indices_nonzero(reduce(pc.and_, (found.lacking[name] for name in self._needed))).to_pylist()
        places = [place for row in rows if feed.value[place := found.places[row]] is not None]
        names = list(self._needed.values())
        listed = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
        why = f"the record has none of the fields that columns come from: {listed}"
        is_json = not isinstance(self._form, OwnFormat | ConnectJsonFormat | DebeziumFormat | SchemaFormat)
        unread = {misfit.place for misfit in found.misfits}
        misfits = []
        for place in places:
            if place not in unread:
                in_envelope = is_json and is_envelope(feed.value[place])
                if in_envelope or not self._has_others:
                    misfits.append(Misfit(place, None, ENVELOPE if in_envelope else why))
        return misfits

    def _add_the_rest(
        self,
        feed: Feed,
        found: Fields,
        converted: dict[str, Converted],
        misfits: list[Misfit],
        lacking: dict[str, Any],
    ) -> None:
        """Add the columns that do not come from fields of the value.

        They have one value per record, which is repeated if the record has several rows.
        """
        other: dict[str, Converted] = {}
        masks: Mapping[str, Any] = {}
        if self._keys is not None:
            keys = self._keys.read(feed)
            other |= keys.converted
            masks = keys.lacking
            misfits += [misfit._replace(why=f"key: {misfit.why}") for misfit in keys.misfits]
        other |= {column.name: read_metadata(feed, column, source) for column, source in self._plain}
        if isinstance(found.places, range):
            converted |= other
            lacking |= masks
            return
        spread = pa.array(found.places, pa.int64())
        for name, (array, problems) in other.items():
            misfits += [Misfit(place, name, why) for place, why in problems.items()]
            converted[name] = Converted(array.take(spread), {})
        lacking |= {name: mask.take(spread) for name, mask in masks.items()}

    def _deleting(
        self,
        feed: Feed,
        places: Sequence[int],
        gone: list[int],
        converted: dict[str, Converted],
        misfits: list[Misfit],
    ) -> Any:
        """Return a mask of the tombstones, and fill in their key columns, which other records have in their value."""
        if self._key_fields:
            table = self.layout.table
            keys, unread = read_keys(
                feed.at([places[row] for row in gone]),
                self._key_fields,
                ignore_case=table.ignore_case,
                form=self._key_form,
            )
            misfits += [misfit._replace(place=places[gone[misfit.place]]) for misfit in unread]
            slots = list(range(len(places)))
            for number, row in enumerate(gone):
                slots[row] = len(places) + number
            for name, (array, problems) in keys.items():
                both = pa.chunked_array([converted[name].array, array]).take(pa.array(slots, pa.int64()))
                whys = {**converted[name].problems, **{gone[place]: why for place, why in problems.items()}}
                converted[name] = Converted(both.combine_chunks(), whys)
        tombstones = set(gone)
        return pa.array([row in tombstones for row in range(len(places))], pa.bool_())

    def _decodes_whole(self, source: Source) -> bool:
        """Whether a column takes a key as a whole, decoded by its schema."""
        return source == Source("key") and self._key_form is not None

    def _wanted(self, part: str) -> list[Wanted]:
        chosen = (
            (name, source)
            for name, source in self._sources.items()
            if source.part == part and (source.path or self._decodes_whole(source))
        )
        return [Wanted(self.layout.by_name[name], source.path) for name, source in chosen]


def new_fields(layout: Layout, waiting: frozenset[str] = frozenset()) -> FieldMatch:
    """Return a match that raises :class:`NewFields` for new fields. Those in ``waiting`` have been null so far."""
    generated = layout.names.difference(layout.by_name).union(layout.table.filled)
    return FieldMatch(layout.table.ignore_case, Unmatched.NEW, left_out=generated, waiting=waiting)


def _elsewhere(masks: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Return the masks without these rows, leaving out those that are then empty."""
    left = {name: pc.and_not(mask, rows) for name, mask in masks.items()}
    return {name: mask for name, mask in left.items() if mask.true_count}


def _is_plain(source: Source) -> bool:
    return not source.path or source.part == "headers"


def _checked(layout: Layout, sources: dict[str, Source] | None) -> dict[str, Source]:
    """Return the source of each column; raise before the first record if a column can never be filled."""
    for name, column in layout.by_name.items():
        if name in sources if sources is not None else not column.reserved:
            check_writable(layout, column)
    filled = layout.table.filled
    if sources is None:
        return {name: Source("value", (name,)) for name in layout.by_name if name not in filled}
    if given := [name for name in filled if name in sources]:
        raise ConfigurationError(
            f"table {layout.table}: column {given[0]!r} is that of soft_delete or guard, and has no source"
        )
    if not sources:
        raise ConfigurationError(f"table {layout.table}: no column is given a source")
    for name, source in sources.items():
        refuse_generated(layout, name)
        if name not in layout.by_name:
            raise ConfigurationError(
                f"table {layout.table} has no column {name!r} that can be written to; it has "
                f"{', '.join(map(repr, layout.by_name))}"
            )
        check_metadata(layout.by_name[name], source)
    for name, column in layout.by_name.items():
        if name not in sources and name not in filled and layout.needs_value(column):
            raise ConfigurationError(
                f"table {layout.table}: column {name!r} needs a value in every row, and no source is given for it"
            )
    return sources
