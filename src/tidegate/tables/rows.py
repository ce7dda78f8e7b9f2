"""Rows: the result of reading records, ready to be written, with the misfits; and exact sums of their columns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import TidegateError
from tidegate.tables.column import Column
from tidegate.tables.types import TypeName

__all__ = ["EXACT", "DoesNotFit", "Misfit", "Rows", "Truncate", "can_sum", "signs", "summed"]


class Misfit(NamedTuple):
    """A record that cannot become a row: its place among the records read, the column, and the reason.

    ``column`` is ``None`` if the record as a whole is invalid. The reason never contains the value, because errors go
    to logs.
    """

    place: int
    column: str | None
    why: str

    def __str__(self) -> str:
        return self.why if self.column is None else f"column {self.column!r}: {self.why}"


_NO_ORDER = (
    "it empties the table, and has no order among the rows of other partitions: the group reads {}; a topic with one "
    "partition, in a group of its own, keeps the order, and so does a table with guard and guard_table"
)


class Truncate(NamedTuple):
    """A record that empties the table: its place and, if the table has a guard, its position in the source's log.

    ``has_order``: the table keeps the position, so that older rows of other partitions are told from newer ones.
    """

    place: int
    position: int | None = None
    has_order: bool = False


class DoesNotFit(TidegateError):
    """A row turns out not to fit only while it is written.

    A sum is out of its column's range, a row is too large for the server, or the server would change a value.
    """


@dataclass(frozen=True, slots=True)
class Rows:
    """The records that fit, as one Arrow record batch with the target's columns, and the misfits.

    ``places`` holds for each row the place of its record. ``tombstones`` is a mask of the rows that delete; only their
    key columns matter. ``lacking`` holds, by column, a mask of the rows whose record does not have the field, which
    differs from a null. If a column is not in ``lacking``, every record has its field. ``existing`` is a mask of the
    rows that only change a row that exists: what they lack has no default. ``truncates`` are the records
    that empty the table.
    """

    batch: Any
    places: Sequence[int]
    misfits: tuple[Misfit, ...] = ()
    tombstones: Any = None
    lacking: Mapping[str, Any] = field(default_factory=dict)
    existing: Any = None
    truncates: Sequence[Truncate] = ()

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def among(self, places: Sequence[int]) -> Rows:
        """Return the rows and misfits of the records at these places, which must be in ascending order."""
        found = self.between(places[0], places[-1] + 1) if places else self.between(0, 0)
        wanted = set(places)
        kept = [row for row, place in enumerate(found.places) if place in wanted]
        truncates = tuple(each for each in found.truncates if each.place in wanted)
        if len(kept) == len(found):
            return replace(found, truncates=truncates) if found.truncates else found
        taken = pa.array(kept, pa.int64())
        return Rows(
            found.batch.take(taken),
            [found.places[row] for row in kept],
            tuple(misfit for misfit in found.misfits if misfit.place in wanted),
            None if found.tombstones is None else found.tombstones.take(taken),
            {name: mask.take(taken) for name, mask in found.lacking.items()},
            None if found.existing is None else found.existing.take(taken),
            truncates,
        )

    def mix_numbers(self, columns: Iterable[str]) -> bool:
        """Whether some rows give a number in one of these columns, and others, or a 0, leave it to the database.

        Such rows must be tried one record at a time: see :attr:`~tidegate.tables.layout.Layout.counted`.
        """
        return any(0 < self._given(name) < len(self) for name in columns if name in self.batch.schema.names)

    def _given(self, name: str) -> int:
        array = self.batch.column(name)
        given = pc.is_valid(array)
        if not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            given = pc.fill_null(pc.not_equal(array, 0), False)
        if name in self.lacking:
            given = pc.and_not(given, self.lacking[name])
        return int(pc.sum(given).as_py() or 0)

    def parts(self, most: int) -> Iterator[Rows]:
        """Yield the rows in parts of at most ``most`` bytes; a single larger row is a part by itself."""
        if len(self) <= 1 or self.batch.nbytes <= most:
            yield self
            return
        half = len(self) // 2
        yield from self._sliced(0, half).parts(most)
        yield from self._sliced(half, len(self)).parts(most)

    def _sliced(self, first: int, last: int) -> Rows:
        return Rows(
            self.batch.slice(first, last - first),
            self.places[first:last],
            (),
            None if self.tombstones is None else self.tombstones.slice(first, last - first),
            {name: mask.slice(first, last - first) for name, mask in self.lacking.items()},
            None if self.existing is None else self.existing.slice(first, last - first),
        )

    def between(self, start: int, end: int) -> Rows:
        """Return the rows and misfits of the records from place ``start`` up to, but not including, ``end``."""
        found = self._sliced(bisect_left(self.places, start), bisect_left(self.places, end))
        return replace(
            found,
            misfits=tuple(misfit for misfit in self.misfits if start <= misfit.place < end),
            truncates=tuple(each for each in self.truncates if start <= each.place < end),
        )

    @property
    def changing(self) -> Sequence[int]:
        """The places of the records that change the table, in ascending order."""
        return sorted({*self.places, *(each.place for each in self.truncates)}) if self.truncates else self.places

    def of_partitions(self, count: int) -> Rows:
        """Return the rows for a group that reads so many partitions, or 0 if that is not known.

        Records that empty the table are misfits if it reads several, unless they have an order.
        """
        refused = [] if count == 1 else [each for each in self.truncates if not each.has_order]
        if not refused:
            return self
        misfits = [Misfit(each.place, None, _NO_ORDER.format(count)) for each in refused]
        kept = tuple(each for each in self.truncates if each.has_order)
        return replace(self, misfits=tuple(sorted((*self.misfits, *misfits))), truncates=kept)

    def runs(self) -> Iterator[tuple[Truncate | None, Rows]]:
        """Yield the rows between records that empty the table, each after the one that does so before them."""
        bounds = [0, *(bisect_left(self.places, each.place) for each in self.truncates), len(self)]
        for truncate, (first, last) in zip((None, *self.truncates), pairwise(bounds), strict=True):
            yield truncate, self._sliced(first, last)


EXACT = Context(prec=200_000)


def can_sum(column: Column) -> bool:
    """Whether values may be added here: not floats, nor decimals of limited digits, which round at each step."""
    return column.type.name is not TypeName.DOUBLE and column.digits is None


def signs(array: Any, column: Column) -> list[int] | None:
    """Return -1, 0 or 1 for each value; ``None`` if no two values have opposite signs, which is the usual case."""
    if column.is_unbounded:
        found = pc.if_else(pc.starts_with(array, "-"), -1, 1)
    else:
        found = pc.sign(array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array)
    low, high = pc.min_max(found).as_py().values()
    if low is None or low >= 0 or high <= 0:
        return None
    return [int(sign) for sign in pc.fill_null(found, 0).to_pylist()]


def summed(array: Any, groups: Sequence[int], count: int, column: Column) -> Any:
    """Return the sum of each group, ignoring nulls; raise :class:`DoesNotFit` if one is out of range."""
    if column.is_unbounded:
        return _summed_texts(array.to_pylist(), groups, count)
    if column.type.name is TypeName.INTEGER:
        array = array.cast(pa.decimal256(40, 0))
    elif column.type.name is TypeName.DECIMAL:
        array = array.cast(pa.decimal256(76, column.type.scale))
    table = pa.table({"group": pa.array(groups, pa.int64()), "value": array})
    sums = table.group_by("group", use_threads=False).aggregate([("value", "sum")]).sort_by("group")
    found = sums.column("value_sum").combine_chunks()
    try:
        return _narrowed(found, column)
    except pa.ArrowException:
        raise DoesNotFit(f"column {column.name!r}: the sum of a key's records does not fit {column.type}") from None


def _narrowed(sums: Any, column: Column) -> Any:
    if column.type.name is TypeName.INTEGER:
        outside = pc.or_(pc.less(sums, Decimal(column.low)), pc.greater(sums, Decimal(column.high)))
        if pc.any(outside).as_py():
            raise pa.ArrowInvalid("out of range")
    return sums.cast(column.arrow)


def _summed_texts(values: Sequence[str | None], groups: Sequence[int], count: int) -> Any:
    sums: list[Decimal | None] = [None] * count
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            sums[group] = EXACT.add(sums[group] or Decimal(), Decimal(value))
    return pa.array([None if each is None else f"{each:f}" for each in sums], pa.string())
