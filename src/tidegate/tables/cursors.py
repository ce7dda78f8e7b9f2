"""Cursors: where each record of a batch is being read, as positions in the joined bytes of all records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["Cursors", "Vector", "signed"]

Vector: TypeAlias = Any
"""A numpy array with an element for each record."""

_BEFORE, _AFTER = bytes(16), bytes(16)  # a number is read from 8 or 16 bytes, which may be outside of the records
_ZEROS = bytes(32)
_FAR = 2**62  # the end of records that are not read
_TOPS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)
_SMALL = np.array([(byte >> 1) ^ -(byte & 1) for byte in range(256)], np.int64)
_SQUEEZES = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), _ONE),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


def signed(numbers: Vector) -> Vector:
    """Return the signed numbers that unsigned ones of 64 bits stand for, by their lowest bit."""
    return (numbers >> _ONE).view(np.int64) ^ -((numbers & _ONE).view(np.int64))


class Cursors:
    """Reads one value after the other from all records at once.

    ``alone`` marks the records that this cannot read, because their bytes do not fit or are unusual. They stay behind,
    in front of zeros, and what is read of them has no meaning.
    """

    def __init__(self, records: Sequence[bytes]) -> None:
        joined = b"".join((_BEFORE, *records, _AFTER, _ZEROS))
        self._bytes = np.frombuffer(joined, np.uint8)
        self._words = np.ndarray((len(joined) - 7,), "<u8", joined, strides=(1,))  # the one that begins at each byte
        self._buffer = pa.py_buffer(joined)
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        self._ends = np.cumsum(sizes) + len(_BEFORE)
        self._starts = self._ends - sizes
        self._at = self._starts.copy()
        self._zeros = len(joined) - len(_ZEROS)
        self._reads: Vector | None = None  # the records that are read; None for all
        self._parks = False  # whether some are in front of the zeros
        self.alone: Vector = np.zeros(len(records), np.bool_)

    def __len__(self) -> int:
        return len(self.alone)

    @contextmanager
    def only(self, chosen: Vector) -> Iterator[None]:
        """Read only the chosen records in this block; what is read of the others has no meaning."""
        if chosen.all():
            yield
            return
        before, at, ends = self._reads, self._at, self._ends
        parks, self._parks = self._parks, True
        self._reads = chosen if before is None else chosen & before
        self._at, self._ends = np.where(chosen, at, self._zeros), np.where(chosen, ends, _FAR)
        try:
            yield
        finally:
            reads = self._reads & ~self.alone
            self._reads, self._parks = before, parks or bool(self.alone.any())
            self._at = np.where(reads, self._at, np.where(self.alone, self._zeros, at))
            self._ends = np.where(self.alone, _FAR, ends)

    def followed_by(self, prefix: bytes) -> Vector:
        """Return which records go on with these bytes, at most 8."""
        mask = np.uint64((1 << 8 * len(prefix)) - 1)
        return ((self._words[self._at] & mask) == np.uint64(int.from_bytes(prefix, "little"))) & self._read_on()

    def _read_on(self) -> Vector:
        """Return which records are read and have not ended."""
        return (self._at < self._ends) & (self._at < self._zeros)

    @contextmanager
    def inside(self, sizes: Vector) -> Iterator[None]:
        """Read in this block only this many bytes of each record, and leave those that have not been read then."""
        rest = self._ends - self._at
        self.leave((sizes < 0) | (sizes > rest))
        ends, is_parked = self._ends, self._at >= self._zeros
        self._ends = np.where(is_parked, _FAR, self._at + sizes)
        yield
        self.leave((self._at != self._ends) & (self._at < self._zeros))
        self._ends = np.where(self._at >= self._zeros, _FAR, ends)

    def leave(self, some: Vector) -> None:
        """Leave records to be read alone."""
        if not some.any():
            return
        if self._reads is not None:
            some = some & self._reads
        self.alone |= some
        self._parks = True
        self._at[some] = self._zeros
        self._ends[some] = _FAR

    def finish(self) -> None:
        """Leave the records whose bytes have not all been read."""
        self.leave((self._at != self._ends) & ~self.alone)

    def offsets(self) -> list[int]:
        """Return where each record is read next, counted from its beginning."""
        found: list[int] = (self._at - self._starts).tolist()
        return found

    def move(self, offsets: Sequence[int], some: Vector) -> None:
        """Go on at other offsets, in some records."""
        self._at = np.where(some & ~self.alone, self._starts + np.array(offsets, np.int64), self._at)

    def longs(self) -> Vector:
        """Read signed numbers of variable length, whose lowest bit is the sign."""
        found = self.varints()
        if found.dtype == np.uint8:
            return _SMALL[found]
        return signed(found)

    def varints(self) -> Vector:
        """Read unsigned numbers of variable length; they are of 8 bits if all of them are below 128."""
        at = self._at
        first = self._bytes[at]
        if not len(first) or first.max() < 0x80:
            self._go_to(at + 1)
            return first
        return self._of_several_bytes(at)

    def _of_several_bytes(self, at: Vector) -> Vector:
        word = self._words[at]
        stops = ~word & _TOPS
        below = (stops & (~stops + _ONE)) - _ONE  # the bits below the one that says that a number ends
        found = word & below & ~_TOPS
        sizes = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        for kept, moved, by in _SQUEEZES:
            found = (found & kept) | ((found & moved) >> by)
        more = np.flatnonzero(stops == 0)
        if len(more):
            ninth, tenth = (self._bytes[at[more] + place].astype(np.uint64) for place in (8, 9))
            is_tenth = ninth >= 0x80
            found[more] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
            found[more] |= np.where(is_tenth, tenth & _ONE, 0).astype(np.uint64) << np.uint64(63)
            sizes[more] = np.where(is_tenth, 10, 9)
        self._go_to(at + sizes)
        if len(more):
            too_long = np.zeros(len(at), np.bool_)
            too_long[more] = is_tenth & (tenth > 1)
            self.leave(too_long)
        return found

    def octets(self) -> Vector:
        """Read single bytes."""
        begin, _ = self.parts(1)
        return self._bytes[begin]

    def words(self, size: int) -> Vector:
        """Read unsigned numbers of 4 or 8 bytes, the lowest first."""
        begin, _ = self.parts(size)
        found = self._words[begin]
        return found if size == 8 else found.astype(np.uint32)

    def floats(self, size: int) -> Vector:
        """Read numbers of 4 or 8 bytes."""
        return self.words(size).view(np.float64 if size == 8 else np.float32)

    def parts(self, sizes: Vector | int) -> tuple[Vector, Vector]:
        """Read this many bytes each; return where they begin and where they end."""
        begin, room = self._at, self._ends - self._at
        missing = (room < sizes) | (sizes < 0)
        if missing.any():
            sizes = np.where(missing, 0, sizes)
            self.leave(missing)
            begin = self._at
        if self._parks:
            sizes = np.where(begin >= self._zeros, 0, sizes)
        self._at = end = begin + sizes
        return begin, end

    def _go_to(self, at: Vector) -> None:
        """Go to a position in each record that is read, and leave those that have ended before it."""
        if self._parks:
            at = np.where(self._at >= self._zeros, self._zeros, at)
        self._at = at
        self.leave(at > self._ends)

    def skip(self, size: int) -> None:
        """Go on behind this many bytes."""
        self.parts(size)

    def integers(self, begin: Vector, end: Vector) -> tuple[Vector, Vector]:
        """Return signed numbers of up to 16 bytes, the highest first, as halves; the lower ones are unsigned."""
        size = end - begin
        low = self._words[end - 8].byteswap()
        high = self._words[end - 16].byteswap().view(np.int64)
        is_short = size <= 8
        cut = np.clip(8 * np.where(is_short, 8 - size, 16 - size), 0, 63)
        signed = (low << cut.astype(np.uint64)).view(np.int64) >> cut
        low = np.where(is_short, signed.view(np.uint64), low)
        high = np.where(is_short, signed >> 63, (high << cut) >> cut)
        return high, low

    def binary(self, begin: Vector, end: Vector, nulls: Vector | None) -> Any:
        """Return the bytes between positions as an Arrow array."""
        count = len(begin)
        is_void = begin >= self._zeros
        bounds = np.empty(2 * count, np.int32)
        bounds[0::2] = np.where(is_void, self._starts, begin)
        bounds[1::2] = np.where(is_void, self._starts, end)
        if not count:
            return pa.array([], pa.binary())
        every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), self._buffer])
        return every.take(pa.array(np.arange(0, 2 * count, 2), mask=nulls))

    def octets_at(self, begin: Vector, size: int) -> Vector:
        """Return this many bytes from each position, as rows."""
        found: Vector = self._bytes[begin[:, None] + np.arange(size)]
        return found
