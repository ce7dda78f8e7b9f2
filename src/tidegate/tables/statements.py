"""Parts of SQL statements: the columns that an upsert changes, and lines of text for bulk loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.checks import bytes_in
from tidegate.tables.column import INFINITE_DAYS, INFINITE_TICKS
from tidegate.tables.layout import Layout
from tidegate.tables.table import Mode

__all__ = ["changed_columns", "days", "escaped", "hexadecimal", "joined", "moments", "truncated"]


def changed_columns(layout: Layout, names: Sequence[str]) -> list[str]:
    """Return the columns that an upsert of these columns changes in a row that exists: none in mode ignore."""
    return [name for name in names if name not in layout.table.key and layout.table.kind is not Mode.IGNORE]


_NULL = "\\N"
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}  # the backslash first: the others add some


def joined(fields: Sequence[Any]) -> memoryview:
    """Join arrays of texts, one per field, into lines: tabs between fields, a newline after each row."""
    *others, last = fields
    ended = pc.binary_join_element_wise(last, "\n", "", null_handling="replace", null_replacement=_NULL)
    rows = pc.binary_join_element_wise(*others, ended, "\t", null_handling="replace", null_replacement=_NULL)
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def escaped(texts: Any) -> Any:
    """Escape backslashes and the characters that would end a field or a row."""
    for plain in bytes_in(texts, _ESCAPES):
        texts = pc.replace_substring(texts, plain, _ESCAPES[plain])
    return texts


def hexadecimal(array: Any, prefix: str = "") -> Any:
    """Return bytes as hexadecimal text, each value after the prefix."""
    return pa.array([None if each is None else prefix + each.hex() for each in array.to_pylist()], pa.string())


def truncated(array: Any, fraction: int) -> Any:
    """Truncate timestamps to the column's decimal places; the database would round them, perhaps into the future."""
    if fraction >= 6:
        return array
    bare = array.cast(pa.timestamp("us"))  # ten times faster without the zone
    return pc.floor_temporal(bare, 10 ** (6 - fraction), "microsecond").cast(array.type)


def moments(array: Any, suffix: str = "") -> Any:
    """Return timestamps as text in UTC, with ``infinity`` for the values that stand for it."""
    bare = array.cast(pa.timestamp("us"))  # formatting with a zone takes thirty times as long
    texts = bare.cast(pa.string())
    if suffix:
        texts = pc.binary_join_element_wise(texts, suffix, "")
    return _with_infinity(texts, bare.cast(pa.int64()), INFINITE_TICKS)


def days(array: Any) -> Any:
    """Return dates as text, with ``infinity`` for the values that stand for it."""
    return _with_infinity(array.cast(pa.string()), array.cast(pa.int32()), INFINITE_DAYS)


def _with_infinity(texts: Any, numbers: Any, far: int) -> Any:
    """Replace the texts of values that stand for infinity by ``infinity`` or ``-infinity``."""
    extremes = pc.min_max(numbers).as_py()
    for sign, word in ((1, "infinity"), (-1, "-infinity")):
        if sign * far in extremes.values():
            texts = pc.if_else(pc.equal(numbers, sign * far), word, texts)
    return texts
