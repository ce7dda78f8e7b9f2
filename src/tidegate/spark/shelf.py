"""The shelf of a task: rows of one span until they are written, in memory or on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import BinaryIO

import pyarrow as pa

from tidegate.tables.rows import Rows

__all__ = ["Shelf"]

_TOMBSTONES = "tidegate_tombstones"
_PREFIX = 8  # bytes that tell how long the next rows are


class Shelf:
    """Takes rows in, and hands them out in order as often as the transaction is tried.

    Up to ``most`` bytes stay in memory. What comes after that goes into a temporary file without a name, in the folder
    that Spark has for such, so that no task needs more memory because its records are large.
    """

    def __init__(self, most: int = 32 << 20) -> None:
        self._left = most
        self._rows: list[Rows] = []
        self._file: BinaryIO | None = None

    def add(self, rows: Rows) -> None:
        """Some more."""
        if not len(rows):
            return
        self._left -= rows.batch.nbytes
        if self._left >= 0:
            self._rows.append(rows)
            return
        if self._file is None:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - goes with the shelf
        written = _written(rows)
        self._file.write(len(written).to_bytes(_PREFIX, "big"))
        self._file.write(written)

    def __iter__(self) -> Iterator[Rows]:
        yield from self._rows
        if self._file is not None:
            self._file.seek(0)
            while prefix := self._file.read(_PREFIX):
                yield _read(self._file.read(int.from_bytes(prefix, "big")))

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()


def _written(rows: Rows) -> memoryview:
    batch = rows.batch if rows.tombstones is None else rows.batch.append_column(_TOMBSTONES, rows.tombstones)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())


def _read(written: bytes) -> Rows:
    batch = pa.ipc.open_stream(written).read_next_batch()
    tombstones = None
    if _TOMBSTONES in batch.schema.names:
        tombstones = batch.column(_TOMBSTONES)
        batch = batch.drop_columns([_TOMBSTONES])
    return Rows(batch, range(batch.num_rows), tombstones=tombstones)
