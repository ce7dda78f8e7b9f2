"""Putting arrays together: the rows that fit on one side, the misfits on the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.checks import problems_of
from tidegate.tables.layout import Layout
from tidegate.tables.misfit import Misfit
from tidegate.tables.rows import Rows
from tidegate.tables.types import TypeName
from tidegate.tables.values import Converted

__all__ = ["assemble"]


def assemble(
    layout: Layout,
    converted: Mapping[str, Converted],
    places: Sequence[int],
    *,
    misfits: Iterable[Misfit] = (),
    tombstones: Any = None,
) -> Rows:
    """Check each column and leave out the records that do not fit; of a record with several rows all of them.

    ``places`` tells for each row which record it came from, ``misfits`` are those found before, ``tombstones`` marks
    the rows that delete.
    """
    unfit: dict[int, Misfit] = {}
    arrays = {}
    for name, (array, problems) in converted.items():
        column = layout.by_name[name]
        found = {**problems_of(array, column, required=layout.must_not_be_null(column)), **problems}
        if tombstones is not None and name not in layout.table.key:  # of a tombstone only the key counts
            found = {row: why for row, why in found.items() if not tombstones[row].as_py()}
        for row, why in found.items():
            unfit.setdefault(places[row], Misfit(places[row], name, why))
        arrays[name] = _cut(array, column.fraction) if column.type.name is TypeName.TIMESTAMP else array
    unfit |= {misfit.place: misfit for misfit in misfits}
    batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    if not unfit:
        return Rows(batch, places, (), tombstones)
    kept = [row for row, place in enumerate(places) if place not in unfit]
    return Rows(
        batch.take(pa.array(kept, pa.int64())),
        [places[row] for row in kept],
        tuple(unfit[place] for place in sorted(unfit)),
        None if tombstones is None else tombstones.take(pa.array(kept, pa.int64())),
    )


def _cut(array: Any, fraction: int) -> Any:
    """Cut a timestamp's fraction off where the column ends; the database would round it, into the future."""
    if fraction >= 6:
        return array
    bare = array.cast(pa.timestamp("us"))  # without the zone it takes a tenth of the time
    return pc.floor_temporal(bare, 10 ** (6 - fraction), "microsecond").cast(array.type)
