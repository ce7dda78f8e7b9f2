"""Lines of text for bulk loads: tab between fields, newline after each row, ``\\N`` for null, backslash to escape.

PostgreSQL's COPY and MySQL's LOAD DATA read the same, and Arrow makes it without touching single values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.tables.checks import has_byte

__all__ = ["escaped", "hexadecimal", "joined", "moments"]

_NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def joined(fields: Sequence[Any]) -> memoryview:
    """The bytes of all rows, made of one array of texts for each field."""
    *others, last = fields
    ended = pc.binary_join_element_wise(last, "\n", "", null_handling="replace", null_replacement=_NULL)
    rows = pc.binary_join_element_wise(*others, ended, "\t", null_handling="replace", null_replacement=_NULL)
    if isinstance(rows, pa.ChunkedArray):
        rows = rows.combine_chunks()
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def escaped(texts: Any) -> Any:
    """Texts with the characters escaped that would end a field or a row."""
    for plain, escape in _ESCAPES:
        if has_byte(texts, plain.encode()):
            texts = pc.replace_substring(texts, plain, escape)
    return texts


def hexadecimal(array: Any, prefix: str = "") -> Any:
    """Bytes as digits."""
    return pa.array([None if each is None else prefix + each.hex() for each in array.to_pylist()], pa.string())


def moments(array: Any, suffix: str = "") -> Any:
    """Timestamps as text, in UTC."""
    texts = array.cast(pa.timestamp("us")).cast(pa.string())  # with a zone it takes thirty times as long
    return pc.binary_join_element_wise(texts, suffix, "") if suffix else texts
