"""Vectors: the values of one field in all records of a batch, as Arrow arrays, and the columns that take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.text import is_utf8
from tidegate.tables.column import Column
from tidegate.tables.cursors import Cursors, Vector
from tidegate.tables.format import Fields, mask_of
from tidegate.tables.types import TypeName
from tidegate.tables.values import Converted, array_of

__all__ = ["MOMENTS", "Values", "column_of", "texts_of", "with_those_alone", "within"]

MOMENTS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The microseconds of the years 1 to 9999."""

_PLAIN_SCALE = 6  # a decimal with more places may become text with an exponent in Arrow


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a field. Texts may stand for UUIDs, or be JSON."""

    array: Any
    is_uuid: bool = False
    is_json: bool = False

    @property
    def nulls(self) -> Any:
        """A mask of the values that are null."""
        return self.array.is_null()

    def objects(self) -> list[Any]:
        """Return the values as the codec decodes them."""
        found: list[Any] = self.array.to_pylist()
        if self.is_uuid:
            return [None if each is None else UUID(each) for each in found]
        if pa.types.is_timestamp(self.array.type) and self.array.type.tz is not None:
            return [None if each is None else each.replace(tzinfo=UTC) for each in found]
        return found


def texts_of(cursors: Cursors, begin: Vector, end: Vector, nulls: Vector | None) -> Any:
    """Return the texts between positions; records with bytes that are not UTF-8 are left."""
    found = cursors.binary(begin, end, nulls)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        bad = np.array([each is not None and not is_utf8(each) for each in found.to_pylist()], np.bool_)
        cursors.leave(bad)
        return pc.if_else(pa.array(bad), b"", found).cast(pa.string())


def within(numbers: Vector, bounds: tuple[int, int], cursors: Cursors) -> Vector:
    """Return numbers within bounds; records with another one are left."""
    least, most = bounds
    if not len(numbers) or (numbers.min() >= least and numbers.max() <= most):
        return numbers
    outside = (numbers < least) | (numbers > most)
    cursors.leave(outside)
    return np.where(outside, 0, numbers)


def with_those_alone(found: Fields, others: Fields, alone: Sequence[int]) -> Fields:
    """Return what was read, with the records at these places as they were read alone."""
    slots = np.arange(len(found.places))
    slots[alone] = len(slots) + np.arange(len(alone))
    taken, skipped = pa.array(slots), set(alone)
    converted, lacking = {}, {}
    for name, (array, problems) in found.converted.items():
        other = others.converted[name]
        both = pa.chunked_array([array, other.array]).take(taken).combine_chunks()
        whys = {row: why for row, why in problems.items() if row not in skipped}
        converted[name] = Converted(both, whys | {alone[row]: why for row, why in other.problems.items()})
        if name in found.lacking or name in others.lacking:
            masks = pa.chunked_array([mask_of(name, found), mask_of(name, others)])
            lacking[name] = masks.take(taken).combine_chunks()
    misfits = [misfit for misfit in found.misfits if misfit.place not in skipped]
    misfits += [misfit._replace(place=alone[misfit.place]) for misfit in others.misfits]
    return Fields(converted, found.places, misfits, lacking)


def column_of(values: Values, column: Column) -> Converted:
    """Convert the values for a column: all at once if Arrow does as :func:`array_of` does with their objects."""
    try:
        found = _at_once(values, column)
    except pa.ArrowException:
        found = None
    return array_of(values.objects(), column) if found is None else Converted(found, {})


def _at_once(values: Values, column: Column) -> Any:
    array, kind = values.array, values.array.type
    if values.is_json:
        return array
    if column.is_unbounded:
        is_plain = pa.types.is_decimal(kind) and kind.scale <= _PLAIN_SCALE and column.type.precision is None
        return array.cast(pa.string()) if is_plain else None
    match column.type.name:
        case TypeName.TEXT if values.is_uuid or (pa.types.is_string(kind) and not column.is_uuid):
            return array
        case TypeName.TEXT if pa.types.is_time(kind) and not column.is_uuid:
            return pc.replace_substring_regex(array.cast(pa.string()), r"\.000000$", "")
        case TypeName.INTEGER if pa.types.is_integer(kind):
            return array.cast(column.arrow)
        case TypeName.DOUBLE if pa.types.is_floating(kind):
            return array
        case TypeName.DOUBLE if pa.types.is_integer(kind):
            return array.cast(column.arrow, safe=False)
        case TypeName.DECIMAL if pa.types.is_decimal(kind):
            return array.cast(column.arrow)
        case TypeName.TIMESTAMP if pa.types.is_timestamp(kind):
            return array.cast(column.arrow)
        case name if _SAME.get(name) == kind or pa.types.is_null(kind):
            return array.cast(column.arrow)
    return None


_SAME = {TypeName.BOOLEAN: pa.bool_(), TypeName.BYTES: pa.binary(), TypeName.DATE: pa.date32()}
