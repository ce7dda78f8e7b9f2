"""The keys of tombstones: a record without a value names the row that it deletes by its own key."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.feed import Feed
from tidegate.tables.format import Wanted
from tidegate.tables.inference import json_fields
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.misfit import Misfit
from tidegate.tables.values import Converted, array_of_bytes

__all__ = ["read_keys"]

_TEXT = msgspec.json.Decoder(str)


def read_keys(feed: Feed, wanted: Sequence[Wanted]) -> tuple[dict[str, Converted], list[Misfit]]:
    """Key columns whose values are fields of the value otherwise, from the keys of tombstones.

    A key is a JSON object with these fields; or, if there is but one, its bare value, as JSON or as text.
    """
    fields = [Wanted(column, path[-1:]) for column, path in wanted]
    keys = feed.part("key")
    is_object = [key is not None and json_fields(key) is not None for key in keys]
    named = (
        JsonFormat()
        .reader(fields, part="key")
        .read(Feed(value=keys, key=[key if whole else None for key, whole in zip(keys, is_object, strict=True)]))
    )
    misfits = list(named.misfits)
    if len(fields) > 1:
        why = f"a tombstone whose key is no JSON object with {', '.join(path[0] for _, path in fields)}"
        misfits += [Misfit(place, None, why) for place, whole in enumerate(is_object) if not whole]
        return dict(named.converted), misfits
    misfits += [Misfit(place, None, "a tombstone without a key") for place, key in enumerate(keys) if key is None]
    column, _ = fields[0]
    bare = array_of_bytes(
        [None if whole else _unquoted(key) for key, whole in zip(keys, is_object, strict=True)], column
    )
    array = pc.if_else(pa.array(is_object), named.converted[column.name].array, bare.array)
    return {column.name: Converted(array, {**named.converted[column.name].problems, **bare.problems})}, misfits


def _unquoted(key: bytes | None) -> bytes | None:
    """A key that a JSON serializer wrote in quotes, without them."""
    if key is not None and key[:1] == b'"' == key[-1:]:
        try:
            return _TEXT.decode(key).encode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return key
    return key
