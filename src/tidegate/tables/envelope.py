"""Kafka Connect's envelopes of a schema and a payload: the schema, which repeats, is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

import msgspec

__all__ = ["AT_ONCE", "UNREADABLE", "Enveloped", "Envelopes"]

UNREADABLE = (msgspec.MsgspecError, RecursionError, ValueError)
"""What a decoder raises for a value that it cannot read."""

AT_ONCE = 1000
"""Values to open together: few enough that one of another kind leaves most of a batch to its quick way."""

_NONE = msgspec.Raw(b"")  # no JSON is empty, so that this equals no schema
_SCHEMA, _PAYLOAD = b'{"schema":', b',"payload":'
_REST = b'{"payload":'
_MOST = 16  # schemas that are known by their bytes
_LONGEST = 1 << 18  # bytes of such a schema


class Enveloped(msgspec.Struct, gc=False):
    """A value that may have a schema. Kinds of envelopes add their payload."""

    schema: msgspec.Raw = _NONE


_Kind = TypeVar("_Kind", bound=Enveloped)
_Schema = TypeVar("_Schema")


class _KnownSchema(NamedTuple, Generic[_Schema]):
    """The bytes up to a payload, and the schema in them."""

    start: bytes
    schema: _Schema


class Envelopes(Generic[_Kind, _Schema]):
    """Opens envelopes of one kind; knows the last schemas by their bytes, and then reads only what comes after them.

    An envelope is the same without its first member, the schema, but for the schema. So a value that begins with a
    known one is read as an envelope without a schema, by the same decoder: nothing is taken that would not be
    otherwise. If another schema comes later in the value, it is read as a whole. Threads may share it.
    """

    def __init__(self, kind: type[_Kind], read: Callable[[bytes], _Schema]) -> None:
        """``read`` reads a schema; it gets no bytes if there is none."""
        self._decode = msgspec.json.Decoder(kind).decode
        self._read = read
        self._known: tuple[_KnownSchema[_Schema], ...] = ()

    def open(self, value: bytes) -> tuple[_Kind, _Schema] | None:
        """Return the envelope and its schema; ``None`` if the value cannot be read."""
        known = self._known_of(value)
        try:
            if known is not None:
                found = self._decode(_REST + value[len(known.start) :])
                if found.schema is _NONE:
                    return found, known.schema
            found = self._decode(value)
        except UNREADABLE:
            return None
        return found, self._learned(value, found)

    def open_all(self, values: Sequence[bytes]) -> tuple[list[_Kind], _Schema] | None:
        """Return the envelopes of values with the same schema; ``None`` if they have to be opened one by one."""
        first = self.open(values[0]) if values else None
        if first is None:
            return None
        known = self._known_of(values[0])
        try:
            if known is None:
                found = list(map(self._decode, values))
                return (found, first[1]) if _schemas(found).count(found[0].schema) == len(found) else None
            start, length = known.start, len(known.start)
            rest = [_REST + value[length:] for value in values if value.startswith(start)]
            if len(rest) < len(values):
                return None
            found = list(map(self._decode, rest))
        except UNREADABLE:
            return None
        return (found, known.schema) if _schemas(found).count(_NONE) == len(found) else None

    def _known_of(self, value: bytes) -> _KnownSchema[_Schema] | None:
        for known in self._known:
            if value.startswith(known.start):
                return known
        return None

    def _learned(self, value: bytes, found: _Kind) -> _Schema:
        """Return the schema of an envelope; remember it if it stands at the start, with no space around it."""
        raw = bytes(found.schema)
        schema = self._read(raw)
        start = _SCHEMA + raw + _PAYLOAD
        if raw and len(raw) <= _LONGEST and value.startswith(start) and self._known_of(value) is None:
            self._known = (_KnownSchema(start, schema), *self._known)[:_MOST]
        return schema


def _schemas(found: Sequence[Enveloped]) -> list[msgspec.Raw]:
    return list(map(attrgetter("schema"), found))
