"""Rows: what was made of records, ready to be written."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.tables.misfit import Misfit

__all__ = ["Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """The records that fit, as one Arrow record batch with the target's columns, and those that do not.

    ``places`` tells for each row which record it came from. ``tombstones`` marks the rows that delete; only their key
    columns count.
    """

    batch: Any
    places: Sequence[int]
    misfits: tuple[Misfit, ...] = ()
    tombstones: Any = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def among(self, places: Sequence[int]) -> Rows:
        """The part that came from the records at these places, which are in order."""
        found = self.between(places[0], places[-1] + 1) if places else self.between(0, 0)
        wanted = set(places)
        kept = [row for row, place in enumerate(found.places) if place in wanted]
        if len(kept) == len(found):
            return found
        taken = pa.array(kept, pa.int64())
        return Rows(
            found.batch.take(taken),
            [found.places[row] for row in kept],
            tuple(misfit for misfit in found.misfits if misfit.place in wanted),
            None if found.tombstones is None else found.tombstones.take(taken),
        )

    def between(self, start: int, end: int) -> Rows:
        """The part that came from the records at places ``start`` to ``end``, the last one left out."""
        first, last = bisect_left(self.places, start), bisect_left(self.places, end)
        return Rows(
            self.batch.slice(first, last - first),
            self.places[first:last],
            tuple(misfit for misfit in self.misfits if start <= misfit.place < end),
            None if self.tombstones is None else self.tombstones.slice(first, last - first),
        )
