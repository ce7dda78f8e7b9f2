"""Elements: the arrays in records, read as one row for each element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.tables.column import Column
from tidegate.tables.connect_format import ConnectJsonFormat
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, FieldReader, Fields, Format, Wanted
from tidegate.tables.json_format import JsonFormat
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName
from tidegate.tables.values import Converted

__all__ = ["ElementFormat"]

_ARRAY = Column("array", ColumnType(TypeName.JSON), "")
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_OF_RECORD = "value"
_TYPED = "its elements have types of Kafka Connect, such as Decimal, which are not read in arrays of a route"


class ElementFormat:
    """A format whose rows are the elements of an array in each record, which another format reads.

    A record without the field, or with null there, has no rows. If the columns are mapped, their paths begin with
    ``each`` for an element, ``index`` for its number, or ``value`` for a field of the record; otherwise a path is one
    within the element.
    """

    def __init__(self, form: Format, array: tuple[str, ...], *, is_mapped: bool, ignore_case: bool) -> None:
        self._form = form
        self._array = array
        self._is_mapped = is_mapped
        self._match = FieldMatch(ignore_case)
        self._texts = form.reader([Wanted(_ARRAY, array)], watch=self._match)

    def reader(self, wanted: Sequence[Wanted], *, part: str = "value", watch: FieldMatch | None = None) -> FieldReader:
        """Return a reader of these columns; ``watch`` sets how the fields of elements are matched."""
        of_record = [each for each in wanted if self._is_of_record(each.path)]
        of_element = [each for each in wanted if not self._is_of_record(each.path)]
        outer = [Wanted(column, path[1:]) for column, path in of_record]
        return _Elements(
            self,
            JsonFormat().reader(of_element, watch=_within(watch) if self._is_mapped else watch) if of_element else None,
            self._form.reader(outer, watch=self._match) if outer else None,
        )

    def infer(self, feed: Feed, paths: Sequence[tuple[str, ...]] | None) -> dict[tuple[str, ...], ColumnType | None]:
        """Infer the types of the fields at these paths, or of all fields of the elements."""
        elements, _, _ = self.elements(feed)
        if paths is None:
            return JsonFormat().infer(Feed(value=elements), None)
        outer = [path[1:] for path in paths if self._is_of_record(path)]
        inner = [path for path in paths if not self._is_of_record(path)]
        found = JsonFormat().infer(Feed(value=elements), inner) if inner else {}
        of_record = self._form.infer(feed, outer) if outer else {}
        return found | {(_OF_RECORD, *path): kind for path, kind in of_record.items()}

    def elements(self, feed: Feed) -> tuple[list[bytes | None], list[int], list[Misfit]]:
        """Return the elements of all records as JSON, the places of their records, and the records without an array."""
        texts = self._texts.read(feed)
        array, problems = texts.converted[_ARRAY.name]
        name = ".".join(self._array)
        misfits = list(texts.misfits)
        misfits += [Misfit(texts.places[row], None, f"field {name!r}: {why}") for row, why in problems.items()]
        if isinstance(self._form, ConnectJsonFormat):
            unread = self._form.unread_elements(feed, self._array)
            misfits += [Misfit(place, None, f"field {name!r}: {_TYPED}") for place in unread]
        elements: list[bytes | None] = []
        places: list[int] = []
        for row, text in enumerate(array.to_pylist()):
            if text is None:
                continue
            try:
                found = _ELEMENTS.decode(text)
            except (msgspec.MsgspecError, RecursionError):
                misfits.append(Misfit(texts.places[row], None, f"field {name!r}: expected an array"))
                continue
            elements += _wrapped(found) if self._is_mapped else map(bytes, found)
            places += [texts.places[row]] * len(found)
        return elements, places, misfits

    def _is_of_record(self, path: tuple[str, ...]) -> bool:
        return self._is_mapped and path[0] == _OF_RECORD


class _Elements:
    def __init__(self, form: ElementFormat, inner: FieldReader | None, outer: FieldReader | None) -> None:
        self._form = form
        self._inner = inner
        self._outer = outer

    def read(self, feed: Feed) -> Fields:
        elements, places, misfits = self._form.elements(feed)
        converted: dict[str, Converted] = {}
        lacking: dict[str, Any] = {}
        if self._inner is not None:
            inner = self._inner.read(Feed(value=elements))
            converted |= inner.converted
            lacking |= inner.lacking
            misfits += [misfit._replace(place=places[misfit.place]) for misfit in inner.misfits]
        if self._outer is not None:
            outer = self._outer.read(feed)
            has_rows = set(places)
            misfits += [misfit for misfit in outer.misfits if misfit.place in has_rows]
            row_of = dict(zip(outer.places, range(len(outer.places)), strict=True))
            spread = pa.array([row_of.get(place) for place in places], pa.int64())
            for name, (array, problems) in outer.converted.items():
                whys = {outer.places[row]: why for row, why in problems.items()}
                misfits += [Misfit(place, name, why) for place, why in whys.items() if place in has_rows]
                converted[name] = Converted(array.take(spread), {})
            lacking |= {name: mask.take(spread) for name, mask in outer.lacking.items()}
        return Fields(converted, places, misfits, lacking)


def _within(watch: FieldMatch | None) -> FieldMatch | None:
    return None if watch is None else replace(watch, left_out=watch.left_out | {"each", "index"})


def _wrapped(elements: Iterable[msgspec.Raw]) -> chain[bytes]:
    """Return each element in an object, beside its number."""
    return chain(b'{"index":%d,"each":%b}' % (number, element) for number, element in enumerate(elements))
