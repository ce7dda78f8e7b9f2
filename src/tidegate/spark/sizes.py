"""Sizes of records: what they were, and what those to come are expected to be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.spark.reading import RAW

__all__ = ["SIZE", "SIZE_OF_RECORD", "Sizes", "sizes_of"]

SIZE = "tidegate_size"
"""The bytes of a record's key and value."""

SIZE_OF_RECORD = " + ".join(f"coalesce(octet_length(`{RAW[part]}`), 0)" for part in ("key", "value")) + f" AS `{SIZE}`"
"""The same as an expression of Spark."""

_LATEST = 10  # records that show it first if records grow


def sizes_of(batch: Any) -> Any:
    """The sizes of the raw records of an Arrow batch."""
    lengths = (pc.coalesce(pc.binary_length(batch.column(RAW[part])), 0) for part in ("key", "value"))
    return pc.add(*(length.cast(pa.int64()) for length in lengths))


class Sizes:
    """The sizes of the records of one partition, in their order."""

    def __init__(self) -> None:
        self._sum = self._count = 0
        self._latest: list[int] = []

    def add(self, sizes: Any) -> None:
        """Those of some more records."""
        self._sum += pc.sum(sizes).as_py() or 0
        self._count += len(sizes)
        self._latest = [*self._latest, *sizes[-_LATEST:].to_pylist()][-_LATEST:]

    @property
    def expected(self) -> float:
        """How large the next records may be: the mean, or that of the latest if it is larger; 0 if there were none."""
        if not self._count:
            return 0.0
        return float(max(self._sum / self._count, sum(self._latest) / len(self._latest)))
