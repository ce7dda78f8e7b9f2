"""Two ways to read columns: all records of a schema at once, and one after the other. Both give the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

from tidegate.tables.codec import ODD, Codec, odd
from tidegate.tables.column import Column, Form
from tidegate.tables.feed import Feed
from tidegate.tables.format import FieldMatch, FieldReader, Fields, MappedRows, NewFields, Wanted
from tidegate.tables.rows import Misfit
from tidegate.tables.types import ColumnType, TypeName

IGNORED = FieldMatch()


def one_by_one(
    read: Codec, data: Sequence[bytes | None], wanted: Sequence[Wanted], watch: FieldMatch = IGNORED
) -> Fields:
    rows: list[Any] = []
    misfits: list[Misfit] = []
    for place, each in enumerate(data):
        try:
            rows.append({} if each is None else read.decode(each))
        except ODD as error:
            rows.append({})
            misfits.append(Misfit(place, None, str(odd(error, "the value"))))
    return MappedRows(wanted, watch).fields(rows, range(len(data)), misfits)


def compared(found: Fields) -> dict[str, Any]:
    """All that there is to compare, with NaN as text and without masks that are empty."""
    return {
        "arrays": {name: repr(array.to_pylist()) for name, (array, _) in found.converted.items()},
        "types": {name: array.type for name, (array, _) in found.converted.items()},
        "problems": {name: dict(problems) for name, (_, problems) in found.converted.items() if problems},
        "misfits": sorted((misfit.place, misfit.column or "", misfit.why) for misfit in found.misfits),
        "lacking": {name: mask.to_pylist() for name, mask in found.lacking.items() if mask.true_count},
        "places": list(found.places),
    }


def same(
    read: Codec, data: Sequence[bytes | None], wanted: Sequence[Wanted], watch: FieldMatch = IGNORED
) -> FieldReader | None:
    """Check that both ways give the same; return the reader of columns, if there is one."""
    reader = read.columns(wanted, watch)
    if reader is None:
        return None
    try:
        expected = compared(one_by_one(read, data, wanted, watch))
    except NewFields:
        with pytest.raises(NewFields):
            reader.read(Feed(value=data))
        return reader
    found = reader.read(Feed(value=data))
    for _, (array, _) in found.converted.items():
        array.validate(full=True)
    assert compared(found) == expected
    return reader


TYPES = [ColumnType(name) for name in TypeName if name is not TypeName.TIMESTAMP]
TYPES += [ColumnType.of("timestamp"), ColumnType.of("timestamp(ms)"), ColumnType.decimal(9, 1)]
TYPES += [ColumnType.decimal(38, 10), ColumnType.decimal(60, 2)]


@st.composite
def columns(draw: st.DrawFn, names: Sequence[tuple[str, ...]]) -> list[Wanted]:
    """Columns of any type from some of the fields, and from one that is not there."""
    found = []
    for number, path in enumerate(draw(st.lists(st.sampled_from([*names, ("none",)]), max_size=6))):
        kind = draw(st.sampled_from(TYPES))
        form = draw(st.sampled_from([Form.ANY, Form.UUID])) if kind.name is TypeName.TEXT else Form.ANY
        is_unsigned = kind.name is TypeName.INTEGER and draw(st.booleans())
        low, high = (0, 2**64 - 1) if is_unsigned else (-(2**63), 2**63 - 1)
        is_exact = draw(st.booleans())
        first = path[0].upper() if draw(st.integers(0, 9)) == 0 else path[0]
        column = Column(f"c{number}", kind, "", form=form, low=low, high=high, exact=is_exact)
        found.append(Wanted(column, (first, *path[1:])))
    return found


def natural(read: Codec) -> list[Wanted]:
    """A column for each field, of the type that the schema gives it."""
    return [Wanted(Column(name, kind or ColumnType(TypeName.TEXT), ""), (name,)) for name, kind in _fields(read)]


def _fields(read: Codec) -> list[tuple[str, ColumnType | None]]:
    return list((read.fields or {}).items())
