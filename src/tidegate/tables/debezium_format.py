"""The Debezium format: change events of a database, as JSON with or without the schema envelope."""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import md5
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
import pyarrow as pa

from tidegate.core.arguments import Label, argument
from tidegate.core.columns import BASE64, PLACEHOLDER, DecimalText
from tidegate.tables.column import Column
from tidegate.tables.connect_format import UNKNOWN, ConnectFields, ConnectSchema, new_types, schema_of
from tidegate.tables.envelope import AT_ONCE, UNREADABLE, Enveloped, Envelopes
from tidegate.tables.feed import Feed, Unread, fold
from tidegate.tables.format import FieldMatch, FieldReader, Fields, NewOrigin, Unmatched, Wanted
from tidegate.tables.inference import is_plain, json_fields
from tidegate.tables.rows import Misfit, Truncate
from tidegate.tables.types import ColumnType
from tidegate.tables.values import array_of

__all__ = ["DebeziumFormat", "RowGuard"]


class DebeziumFormat:
    """A format in which each value is a change event of Debezium, as JSON with or without its schema.

    Columns come from the fields of the changed row. ``decimals`` says what text stands for in a column of decimals if
    the events have no schema: base64, Debezium's default, or digits, with ``decimal.handling.mode=string``.
    ``placeholder`` is what the connector writes for a value that it did not get (``unavailable.value.placeholder``).
    """

    parts = ("key",)

    def __init__(self, *, decimals: DecimalText | str = BASE64, placeholder: str = PLACEHOLDER) -> None:
        self.decimals: DecimalText = argument("decimals", DecimalText, decimals)
        self.placeholder: str = argument("placeholder", Label, placeholder)

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns that also needs to know which of them are the key: :meth:`keyed_reader`."""
        return self.keyed_reader(wanted, (), watch)

    def keyed_reader(
        self,
        wanted: Sequence[Wanted],
        key: Sequence[tuple[str, ...]],
        watch: FieldMatch | None,
        guard: RowGuard | None = None,
    ) -> FieldReader:
        """Return a reader of these columns for a table whose key comes from the fields at the paths in ``key``.

        ``guard`` says how the position of each event is stored. Raises :class:`NewOrigin` if the server, or the first
        snapshot, must be stored before.
        """
        return _ChangeFields(self, wanted, key, watch or FieldMatch(), guard)

    def has_effect(self, value: bytes | None) -> bool:
        """Whether a record may change a row. Tombstones, heartbeats and the like do not."""
        event = None if value is None else _opened(value)
        return value is not None and (event is None or event.op not in _OTHERS)

    def changes_rows(self, value: bytes | None) -> bool:
        """Whether a record is a change event: neither one without effect nor one that is not understood."""
        event = None if value is None else _opened(value)
        return event is not None and event.op not in _OTHERS

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Return the types of the fields by the schemas of the events; those without a schema show none."""
        opened = (_opened(value) for value in feed.value if value is not None)
        return new_types([event.schema for event in opened if event is not None and event.after is not None], paths)


_NULL = msgspec.Raw(b"null")


class _Payload(Enveloped, gc=False):
    op: str | None = None
    before: msgspec.Raw = _NULL
    after: msgspec.Raw = _NULL
    source: msgspec.Raw = _NULL
    status: Any = None
    id: Any = None
    ddl: Any = None
    ts_ms: Any = None


class _Message(_Payload, gc=False):
    payload: _Payload | None = None


def _schema_of_row(raw: bytes) -> ConnectSchema:
    return schema_of(raw).fields.get("after", UNKNOWN)


_EVENTS = Envelopes(_Message, _schema_of_row)


_Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Source(msgspec.Struct, gc=False):
    lsn: _Int64 | None = None
    file: str | None = None
    pos: _Int64 | None = None
    server_id: _Int64 | None = None


_LOG_FILE = re.compile(r".+\.([0-9]{1,18})")
_MOST_FILES, _LONGEST_FILE = 9_223_371, 10**12  # such positions have 63 bits


def _position_in_files(source: _Source) -> int | None:
    """Return the number of the log's file and the position in it, as one number."""
    found = None if source.file is None else _LOG_FILE.fullmatch(source.file)
    if found is None or source.pos is None or not 0 <= source.pos < _LONGEST_FILE:
        return None
    number = int(found[1])
    return number * _LONGEST_FILE + source.pos if number <= _MOST_FILES else None


class RowGuard(NamedTuple):
    """How positions are stored: in which column, and whether there is a table for truncates and the server."""

    column: Column
    has_table: bool = False
    server: int | None = None
    """The server that the stored positions are of; ``None`` if it is not known yet."""
    snapshot: int | None = None
    """The position of the snapshot before the first event that names a server; all events of a snapshot have it."""

    def check(self, server: int | None, position: int) -> None:
        """Raise if a position cannot be compared with those that are stored; 0 is an unknown server."""
        if not self.has_table:
            raise _Unusable(_NO_GUARD_TABLE)
        if self.server is None:
            if server:
                raise NewOrigin("server", server)
            if self.snapshot is None:
                raise NewOrigin("snapshot", position)
        elif server != self.server and (server or position != self.snapshot):
            raise _Unusable(_OTHER_SERVER.format(server or "an unknown server", self.server))


_SOURCE = msgspec.json.Decoder(_Source)


_OTHERS = (None, "m")
"""The operations of records that change no row: none, or a message of the application."""


_WHOLE = {"c", "r", "u", "d"}
"""The operations on one row."""
_KEYED = {"u", "d"}
"""Those that look at the record's key."""
_op_of, _after_of = attrgetter("op"), attrgetter("after")


class _Event(NamedTuple):
    op: str | None
    before: bytes | None
    after: bytes | None
    schema: ConnectSchema
    source: msgspec.Raw


def _opened(value: bytes) -> _Event | None:
    """Return the event in a value; ``None`` if the value is not JSON with the fields of an event."""
    found = _EVENTS.open(value)
    if found is None:
        return None
    message, schema = found
    payload: _Payload | None = message.payload
    if payload is None:
        payload, schema = message, UNKNOWN
    if payload.op is None and not _is_other(value, payload):
        return None
    before, after = bytes(payload.before), bytes(payload.after)
    return _Event(
        payload.op,
        None if before == b"null" else before,
        None if after == b"null" else after,
        schema,
        payload.source,
    )


def _object(raw: msgspec.Raw) -> bytes | None:
    return None if (found := bytes(raw)) == b"null" else found


def _is_other(value: bytes, payload: _Payload) -> bool:
    """Whether a record without an operation is one of those that connectors send beside the events."""
    if payload.status in ("BEGIN", "END") and isinstance(payload.id, str):
        return True
    if isinstance(payload.ddl, str) and _object(payload.source) is not None:
        return True
    fields = json_fields(value) or {}
    if fields.keys() == {"schema", "payload"}:
        fields = json_fields(bytes(fields["payload"])) or {}
    return fields.keys() == {"ts_ms"}


class _Change(NamedTuple):
    """What one record does to one row: its fields as a JSON object."""

    row: bytes
    deletes: bool = False
    exists: bool = False
    """Whether the row must exist: a value is missing from the event, and stays as it is."""


class _Changes:
    """What records do: to rows, as one list for each part, and to the whole table; and those that do nothing."""

    def __init__(self) -> None:
        self.passed: list[int] = []
        self.truncates: list[Truncate] = []
        self.misfits: list[Misfit] = []
        self.places: list[int] = []
        self.rows: list[bytes] = []
        self.schemas: list[ConnectSchema] = []
        self.deletes: list[bool] = []
        self.exists: list[bool] = []
        self.positions: list[int | None] = []
        """Where the events are in the log of the source."""

    def add(self, place: int, change: _Change, schema: ConnectSchema, position: int | None) -> None:
        self.places.append(place)
        self.rows.append(change.row)
        self.schemas.append(schema)
        self.deletes.append(change.deletes)
        self.exists.append(change.exists)
        self.positions.append(position)


class _Unusable(Exception):
    """The record cannot be used; the message is the reason."""


_FULL = "alter the source table to REPLICA IDENTITY FULL, so that events have whole rows"
_NO_EVENT = (
    "not a change event: it has no 'op'; rows that a transformation has unwrapped are read by format='json' or "
    "format='connect-json'"
)
_NO_OLD_ROW = f"column {{!r}}: its value is not in the event, and a new row has no older one; {_FULL}"
_KEY_UNKNOWN = f"the event does not tell which row it changes: the table's key is not that of the source; {_FULL}"
_NO_POSITION = (
    "the event has neither 'lsn' nor 'file' and 'pos' in its 'source', the position in the log of the database, which "
    "the table's guard needs; leave out guard for such sources"
)
_NO_GUARD_TABLE = (
    "positions in files are those of one server, and the table has no guard_table to keep which; set guard_table"
)
_OTHER_SERVER = (
    "the event is of {}, and the positions in the table's guard are of server {}, so that it cannot tell which are "
    "older; set the column of the guard to NULL, empty the table of the guard, and start again"
)
_GONE_UNKNOWN = (
    "the event does not tell which row is gone: the table's key is not that of the source; set the connector's "
    "message.key.columns to the table's key"
)


class _ChangeFields:
    def __init__(
        self,
        form: DebeziumFormat,
        wanted: Sequence[Wanted],
        key: Sequence[tuple[str, ...]],
        watch: FieldMatch,
        guard: RowGuard | None,
    ) -> None:
        self._guard = guard
        self._has_order = guard is not None and guard.has_table
        self._fields = ConnectFields(wanted, watch, has_text_decimals=form.decimals is DecimalText.DIGITS)
        self._key = [path[0] for path in key]
        self._decode_key = _decoder_of(self._key)
        self._ignores_case = watch.ignore_case
        self._missing = _Missing(form.placeholder)
        self._takes_all = watch.unmatched is not Unmatched.IGNORED
        self._taken = {self._folded(each.path[0]) for each in wanted}

    def read(self, feed: Feed) -> Fields:
        changes = _Changes()
        keys = feed.part("key")
        for start in range(0, len(feed), AT_ONCE):
            those = feed.value[start : start + AT_ONCE], keys[start : start + AT_ONCE]
            if not self._add_all(changes, start, *those):
                self._add_each(changes, start, *those)
        fields = self._fields.read(changes.rows, changes.schemas)
        converted = dict(fields.converted)
        if self._guard is not None:
            column = self._guard.column
            converted[column.name] = array_of(changes.positions, column)
        unread = (misfit._replace(place=changes.places[misfit.place]) for misfit in fields.misfits)
        is_each = changes.places == list(range(len(feed)))
        return replace(
            fields,
            converted=converted,
            places=range(len(feed)) if is_each else changes.places,
            misfits=[*changes.misfits, *unread],
            deletes=_mask(changes.deletes),
            existing=_mask(changes.exists),
            passed=changes.passed,
            truncates=changes.truncates,
        )

    def _add_all(
        self, changes: _Changes, start: int, values: Sequence[bytes | None], keys: Sequence[bytes | None]
    ) -> bool:
        """Add the changes of all records, of which the first is at place ``start``, as :meth:`_add_each` does.

        This takes a fraction of the time, for records of which each is a tombstone or a change of one whole row that
        its key names, all of one schema. If there are others, it adds nothing and returns ``False``.
        """
        places = [place for place, value in enumerate(values) if value is not None]
        opened = _EVENTS.open_all([value for value in values if value is not None])
        if opened is None:
            return False
        events, schema = opened
        payloads: list[_Payload] = [event.payload for event in events if event.payload is not None]
        if not payloads:
            payloads, schema = [*events], UNKNOWN
        ops = list(map(_op_of, payloads))
        kinds = set(ops)
        if len(payloads) < len(places) or not kinds <= _WHOLE:
            return False
        rows = list(map(bytes, map(_after_of, payloads)))
        if kinds & _KEYED:
            named = [keys[place] for place, op in zip(places, ops, strict=True) if op in _KEYED]
            if not self._are_keys(named):
                return False
            if "d" in kinds:
                rows = [keys[at] or b"" if op == "d" else row for at, op, row in zip(places, ops, rows, strict=True)]
        if b"null" in rows or self._missing.may_be_in(rows):
            return False
        try:
            positions = [None] * len(rows) if self._guard is None else list(map(self._position, payloads))
        except _Unusable:
            return False
        if len(places) < len(values):
            changes.passed += [start + place for place, value in enumerate(values) if value is None]
        changes.places += [start + place for place in places]
        changes.rows += rows
        changes.schemas += [schema] * len(rows)
        changes.deletes += [op == "d" for op in ops] if "d" in kinds else [False] * len(rows)
        changes.exists += [False] * len(rows)
        changes.positions += positions
        return True

    def _are_keys(self, keys: Sequence[bytes | None]) -> bool:
        """Whether all keys have exactly the fields that the table's key comes from, and no others."""
        if self._decode_key is None or None in keys:
            return False
        try:
            deque(map(self._decode_key, keys), maxlen=0)
        except UNREADABLE:
            return False
        return True

    def _add_each(
        self, changes: _Changes, start: int, values: Sequence[bytes | None], keys: Sequence[bytes | None]
    ) -> None:
        """Add what records do, one by one; the first is at place ``start``."""
        may_miss = self._missing.may_be_in(values)
        for place, (value, key) in enumerate(zip(values, keys, strict=True), start):
            event = None if value is None else _opened(value)
            if value is None:  # a tombstone is for Kafka's compaction; the event before it has deleted the row
                changes.passed.append(place)
            elif isinstance(value, Unread):
                changes.misfits.append(Misfit(place, None, value.why))
            elif event is None:
                why = _NO_EVENT if json_fields(value) is not None else "not a JSON object"
                changes.misfits.append(Misfit(place, None, why))
            elif event.op in _OTHERS:
                changes.passed.append(place)
            else:
                try:
                    position = self._position(event)
                    if event.op == "t":
                        changes.truncates.append(Truncate(place, position, has_order=self._has_order))
                        continue
                    for change in self._changes(event, key, may_miss=may_miss):
                        changes.add(place, change, event.schema, position)
                except _Unusable as why:
                    changes.misfits.append(Misfit(place, None, str(why)))

    def _position(self, event: _Event | _Payload) -> int | None:
        """Return the position of an event in the log of its source, if the table has a guard."""
        if self._guard is None:
            return None
        try:
            source = _SOURCE.decode(event.source)
        except UNREADABLE:
            source = _Source()
        position = _position_in_files(source) if source.lsn is None else source.lsn
        if position is None:
            raise _Unusable(_NO_POSITION)
        if source.lsn is None:
            self._guard.check(source.server_id, position)
        return position

    def _folded(self, name: str) -> str:
        return fold(name) if self._ignores_case else name

    def _takes(self, name: str) -> bool:
        """Whether a column may come from a field."""
        return self._takes_all or self._folded(name) in self._taken

    def _changes(self, event: _Event, key: bytes | None, *, may_miss: bool) -> Sequence[_Change]:
        """Return the changes of rows, in order: a change of the key deletes one row and writes another."""
        match event.op:
            case "c" | "r" | "u" if event.after is not None:
                row, missing = self._missing.without(event.after) if may_miss else (event.after, ())
                unknown = next(filter(self._takes, missing), None)
                if unknown is not None and event.op != "u":
                    raise _Unusable(_NO_OLD_ROW.format(unknown))
                written = _Change(row, exists=unknown is not None)
                return [written] if event.op != "u" else [*self._old_key(event, key), written]
            case "d":
                return [_Change(self._deleted(event, key), deletes=True)]
        raise _Unusable("a change event whose operation is unknown or lacks its row")

    def _deleted(self, event: _Event, key: bytes | None) -> bytes:
        """Return the key of a deleted row: from the record's key, as only that is sure to be all there.

        The rest of ``before`` may be made up: null, or an empty text where the source column is NOT NULL.
        """
        fields = None if key is None else json_fields(key)
        if fields is not None and self._has_key(fields):
            return self._only_key(fields)
        before = None if event.before is None else json_fields(event.before)
        if key is not None or before is None or not self._has_key(before):
            raise _Unusable(_GONE_UNKNOWN)
        return self._only_key(before)

    def _old_key(self, event: _Event, key: bytes | None) -> Iterator[_Change]:
        """Yield the deletion of the row with the old key, if an update changes a key that is not the source's."""
        fields = None if key is None else json_fields(key)
        if fields is not None and self._has_key(fields):
            return  # a change of the source's key comes as two events
        if event.before is None:
            raise _Unusable(_KEY_UNKNOWN)
        before, after = json_fields(event.before) or {}, json_fields(event.after) or {}
        if not self._has_key(before):
            raise _Unusable(_KEY_UNKNOWN)
        old, new = self._only_key(before), self._only_key(after)
        if old != new:
            yield _Change(old, deletes=True)

    def _has_key(self, fields: Mapping[str, Any]) -> bool:
        return bool(self._key) and all(self._named(name, fields) is not None for name in self._key)

    def _only_key(self, fields: Mapping[str, msgspec.Raw]) -> bytes:
        found = {name: self._named(name, fields) for name in self._key}
        return msgspec.json.encode({name: fields[named] for name, named in found.items() if named is not None})

    def _named(self, name: str, fields: Mapping[str, Any]) -> str | None:
        """Return the field that a column of the key comes from."""
        if name in fields or not self._ignores_case:
            return name if name in fields else None
        alike = [each for each in fields if fold(each) == fold(name)]
        return alike[0] if len(alike) == 1 else None


_RARE = (b"[", b"=", b"_")


class _Missing:
    """Finds the values that the connector did not get, such as long values that an update has not changed."""

    def __init__(self, placeholder: str) -> None:
        text = msgspec.json.encode(placeholder)
        coded = msgspec.json.encode(base64.b64encode(placeholder.encode()).decode())
        numbers = msgspec.json.encode(list(placeholder.encode()))
        inside = msgspec.json.encode({placeholder: placeholder})
        digest = md5(placeholder.encode(), usedforsecurity=False).digest()
        uuid = msgspec.json.encode(str(UUID(bytes=digest, version=3)))  # as Java's nameUUIDFromBytes
        in_arrays = {b"[%b]" % each for each in (text, coded, uuid)}
        signs = (text[1:-1], coded, b"[%b]" % uuid, numbers)
        self._signs = [(next((each for each in _RARE if each in sign), sign[:1]), sign) for sign in signs]
        """What one of them is part of, each with a byte of it that most rows do not have and is found much faster."""
        self._raw = {text, coded, numbers, inside, msgspec.json.encode(inside.decode()), *in_arrays}

    def may_be_in(self, values: Iterable[bytes | None]) -> bool:
        """Whether one of them may have such values; looked for in all of them at once, which is much faster."""
        joined = b"\n".join(filter(None, values))
        return any(byte in joined and sign in joined for byte, sign in self._signs)

    def without(self, row: bytes) -> tuple[bytes, Sequence[str]]:
        """Return a row without such values, and the names of the fields that have them."""
        if not any(byte in row and sign in row for byte, sign in self._signs):
            return row, ()
        fields = json_fields(row) or {}
        kept = {name: raw for name, raw in fields.items() if bytes(raw) not in self._raw}
        if len(kept) == len(fields):
            return row, ()
        return msgspec.json.encode(kept), [name for name in fields if name not in kept]


def _decoder_of(key: Sequence[str]) -> Callable[[Any], Any] | None:
    """Return a decoder that refuses whatever is not an object of exactly these fields; ``None`` if there is none."""
    if not key or not all(map(is_plain, key)):
        return None
    names = {f"f{number}": name for number, name in enumerate(dict.fromkeys(key))}
    fields = [(attribute, msgspec.Raw) for attribute in names]
    return msgspec.json.Decoder(
        msgspec.defstruct("Key", fields, rename=names, gc=False, forbid_unknown_fields=True)
    ).decode


def _mask(flags: Sequence[bool]) -> Any:
    return pa.array(flags, pa.bool_()) if any(flags) else None
