"""Records as Kafka delivers them, the names of groups and topics, and dead letters."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import accumulate, chain, groupby, islice, pairwise, repeat
from operator import eq, lt
from typing import Any, NamedTuple, cast, overload

from tidegate.core.text import is_text
from tidegate.errors import InvalidName

__all__ = [
    "DEPLOYMENT_BYTES",
    "GROUP_BYTES",
    "LEFT_OUT",
    "TOPIC_LENGTH",
    "FailedRecord",
    "LetterErrors",
    "LetterHead",
    "Record",
    "RecordColumns",
    "Records",
    "StoredLetter",
    "TopicPartition",
    "check_deployment",
    "check_group",
    "check_source",
    "check_topic",
    "is_query",
    "left_out",
    "query_source",
    "without",
]


class TopicPartition(NamedTuple):
    """One partition of one topic. It sorts by topic, byte for byte, then by number; rows are locked in this order."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record(NamedTuple):
    """One record as Kafka delivered it. ``value`` is ``None`` for a tombstone; ``timestamp`` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None

    @property
    def source(self) -> TopicPartition:
        """The partition that the record came from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The bytes of key and value, which count towards the size of a buffer."""
        return len(self.key or b"") + len(self.value or b"")


_record = partial(tuple.__new__, Record)  # the named tuple's own constructor takes 1.5 times as long
_SMALL = 1000  # runs of fewer records are merged


@dataclass(slots=True, eq=False)  # not frozen: that would double the time to make one, and most have few records
class RecordColumns:
    """Records of one partition, in ascending order of their offsets, as one sequence per part; at least one record.

    It is never changed, so that many can share it. ``keys`` and ``headers`` are ``None`` if no record has any.
    """

    source: TopicPartition
    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[tuple[tuple[str, bytes | None], ...]] | None
    timestamps: Sequence[int | None]
    sizes: Sequence[int]

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Record]:
        topics, numbers = map(repeat, self.source)
        keys: Iterable[Any] = repeat(None) if self.keys is None else self.keys
        headers: Iterable[Any] = repeat(()) if self.headers is None else self.headers
        return map(
            _record, zip(topics, numbers, self.offsets, keys, self.values, headers, self.timestamps, strict=False)
        )

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.offsets[-1] + 1

    def cut(self, first: int, last: int) -> RecordColumns:
        """Return the records from place ``first`` up to, but not including, ``last``."""
        if first <= 0 and last >= len(self):
            return self
        return RecordColumns(
            self.source,
            self.offsets[first:last],
            self.keys and self.keys[first:last],
            self.values[first:last],
            self.headers and self.headers[first:last],
            self.timestamps[first:last],
            self.sizes[first:last],
        )

    def behind(self, offset: int) -> RecordColumns | None:
        """Return the records from ``offset`` on; ``None`` if there are none."""
        first = bisect_left(self.offsets, offset)
        return self.cut(first, len(self)) if first < len(self) else None

    def part(self, name: str) -> Sequence[Any]:
        """Return one part of all records, such as ``value``."""
        count = len(self)
        match name:
            case "topic":
                return [self.source.topic] * count
            case "partition":
                return [self.source.partition] * count
            case "offset":
                return self.offsets
            case "key":
                return [None] * count if self.keys is None else self.keys
            case "value":
                return self.values
            case "headers":
                return [()] * count if self.headers is None else self.headers
            case "timestamp":
                return self.timestamps
        raise ValueError(name)


class Records(Sequence[Record]):
    """Records as columns, one per part; a :class:`Record` is made when it is asked for, and not kept.

    Columns of bytes and numbers cost a fraction of as many records, above all because the garbage collector has little
    to look at. Slicing and joining copy nothing but the run that is cut.
    """

    __slots__ = ("_ends", "runs")

    def __init__(self, runs: Sequence[RecordColumns] = ()) -> None:
        """Make records of runs, in this order."""
        self.runs = runs
        """The records, split where the partition changes and where an offset is not above the one before it, and
        perhaps elsewhere."""
        self._ends = list(accumulate(map(len, runs)))

    @classmethod
    def of(cls, records: Iterable[Record]) -> Records:
        """Return the records as this type."""
        if isinstance(records, Records):
            return records
        columns = list(zip(*records, strict=True))
        return cls.of_columns(columns) if columns else cls()

    @classmethod
    def of_columns(cls, columns: Iterable[Sequence[Any]]) -> Records:
        """Make records of their parts, in the order of the fields of :class:`Record`; the sequences are not copied."""
        topics, partitions, offsets, keys, values, headers, timestamps = columns
        if not offsets:
            return cls()
        count, source = len(offsets), TopicPartition(topics[0], partitions[0])
        has_keys = keys[0] is not None or keys.count(None) < count
        rest = (
            keys if has_keys else None,
            values,
            headers if any(headers) else None,
            timestamps,
            _sizes(keys if has_keys else None, values),
        )
        is_one = topics.count(source.topic) == partitions.count(source.partition) == count
        if is_one and all(map(lt, offsets, islice(offsets, 1, None))):
            return cls((RecordColumns(source, _compact(offsets), *rest),))
        whole, runs, start = RecordColumns(source, offsets, *rest), list[RecordColumns](), 0
        for place, group in groupby(zip(topics, partitions, strict=True)):
            end = start + len(list(group))
            falls = [place for place in range(start + 1, end) if offsets[place] <= offsets[place - 1]]
            for first, last in pairwise([start, *falls, end]):
                cut = whole.cut(first, last)
                runs.append(replace(cut, source=TopicPartition(*place), offsets=_compact(cut.offsets)))
            start = end
        return cls(runs)

    @classmethod
    def joined(cls, parts: Iterable[Iterable[Record]]) -> Records:
        """Return the records of all parts, one part after the other."""
        runs: list[RecordColumns] = []
        for part in parts:
            for run in cls.of(part).runs:
                runs.append(run)  # one by one, because two small ones become one
                while len(runs) > 1 and _are_small(*runs[-2:]):
                    last, before = runs.pop(), runs.pop()
                    runs.append(_merged(before, last))
        return cls(runs)

    def part(self, name: str) -> Sequence[Any]:
        """Return one part of all records, such as ``value``."""
        return self.runs[0].part(name) if len(self.runs) == 1 else _flat(run.part(name) for run in self.runs)

    @property
    def sizes(self) -> Sequence[int]:
        """The size of each record, as :attr:`Record.size`."""
        return self.runs[0].sizes if len(self.runs) == 1 else _flat(run.sizes for run in self.runs)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.runs[-1].end

    def at(self, places: Sequence[int]) -> Records:
        """Return the records at these places."""
        columns = ([column[place] for place in places] for column in map(self.part, Record._fields))
        return Records.of_columns(columns)

    @overload
    def __getitem__(self, place: int) -> Record: ...

    @overload
    def __getitem__(self, place: slice) -> Records: ...

    def __getitem__(self, place: int | slice) -> Record | Records:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            return self._between(start, stop) if step == 1 else self.at(range(start, stop, step))
        at = range(len(self))[place]
        number = bisect_right(self._ends, at)
        at -= self._ends[number] - len(self.runs[number])
        return next(iter(self.runs[number].cut(at, at + 1)))

    def __iter__(self) -> Iterator[Record]:
        return chain.from_iterable(self.runs)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Records.of({list(self)!r})"

    def _between(self, start: int, stop: int) -> Records:
        runs = []
        for run, end in zip(self.runs, self._ends, strict=True):
            begin = end - len(run)
            if begin < stop and start < end and start < stop:
                runs.append(run.cut(max(start - begin, 0), stop - begin))
        return Records(runs)


def _compact(offsets: Sequence[int]) -> Sequence[int]:
    """Return ascending offsets as a range if they have no gaps: it takes no memory, and cutting it takes no time."""
    first, last = offsets[0], offsets[-1]
    return range(first, last + 1) if last - first == len(offsets) - 1 else offsets


def _are_small(one: RecordColumns, other: RecordColumns) -> bool:
    """Whether to merge two runs: small ones whose sizes are alike, so that a record is copied only a few times."""
    if len(one) + len(other) > _SMALL or len(one) > 2 * len(other):
        return False
    return one.source == other.source and one.end <= other.offsets[0]


def _merged(one: RecordColumns, other: RecordColumns) -> RecordColumns:
    keys, headers = None, None
    if one.keys or other.keys:
        keys = [*one.part("key"), *other.part("key")]
    if one.headers or other.headers:
        headers = [*one.part("headers"), *other.part("headers")]
    return RecordColumns(
        one.source,
        _compact([*one.offsets, *other.offsets]),
        keys,
        [*one.values, *other.values],
        headers,
        [*one.timestamps, *other.timestamps],
        [*one.sizes, *other.sizes],
    )


def _flat(columns: Iterable[Sequence[Any]]) -> list[Any]:
    found: list[Any] = []
    for column in columns:
        found += column
    return found


def _sizes(keys: Sequence[bytes | None] | None, values: Sequence[bytes | None]) -> list[int]:
    """Return the sizes of records, with a fast way for those that are no tombstones."""
    try:
        sizes = list(map(len, cast(Sequence[bytes], values)))
    except TypeError:
        sizes = [len(value or b"") for value in values]
    return sizes if keys is None else [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]


GROUP_BYTES = 255
DEPLOYMENT_BYTES = 255
TOPIC_LENGTH = 249

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_group(group: str) -> str:
    """Return ``group``, or raise :class:`InvalidName` if a ledger cannot store it byte for byte."""
    if not is_text(group):
        raise InvalidName(f"group: expected the name of a group, not a {type(group).__name__}")
    if not group.strip():
        raise InvalidName("the group name is empty; give the group a name, such as group='billing'")
    return _storable("group name", group, GROUP_BYTES)


def check_deployment(deployment: str) -> str:
    """Return ``deployment``, or raise :class:`InvalidName` if a ledger cannot store it byte for byte."""
    if not deployment:
        raise InvalidName("the deployment has no name; give it one, such as deployment='2026-11-replay'")
    return _storable("deployment", deployment, DEPLOYMENT_BYTES)


def _storable(what: str, name: str, most: int) -> str:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the {what} {name!a} is not valid Unicode; use text that UTF-8 can encode") from None
    if "\0" in name:
        raise InvalidName(f"the {what} {name!r} contains a NUL character, which databases cannot store; remove it")
    if length > most:
        raise InvalidName(f"the {what} {name[:40]!r}… has {length} bytes; at most {most} can be stored, so shorten it")
    return name


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise :class:`InvalidName` if Kafka does not allow it."""
    if not is_text(topic):
        raise InvalidName(f"topic: expected the name of a topic, not a {type(topic).__name__}")
    if _TOPIC_NAME.fullmatch(topic) and topic not in {".", ".."}:
        return topic
    shown = topic if len(topic) <= 60 else topic[:60] + "…"
    raise InvalidName(
        f"{shown!a} is not a Kafka topic name: 1 to {TOPIC_LENGTH} of letters, digits, '.', '_' and '-' are allowed"
    )


_OF_QUERY = "query:"


def query_source(query_id: str) -> TopicPartition:
    """Return where a ledger keeps the next batch number of a streaming query: a pseudo-topic, and no topic's name."""
    return TopicPartition(_OF_QUERY + query_id, 0)


def is_query(topic: str) -> bool:
    """Return whether a name is the pseudo-topic of a streaming query, which Kafka does not know."""
    return is_text(topic) and topic.startswith(_OF_QUERY)


def check_source(topic: str) -> str:
    """Return ``topic``, or raise :class:`InvalidName` if it is neither a topic of Kafka nor that of a query."""
    if is_query(topic) and len(topic) <= TOPIC_LENGTH:
        check_topic(topic.removeprefix(_OF_QUERY))
        return topic
    return check_topic(topic)


LEFT_OUT = "tidegate.left-out"
"""The header of a dead letter that lacks a part of its record. There is one per part, with its name and size."""


class FailedRecord(NamedTuple):
    """A record to park in the transaction that advances over it, with the error and the number of attempts."""

    record: Record
    error: str
    attempts: int = 1


class StoredLetter(NamedTuple):
    """A dead letter as stored in the ledger."""

    id: int
    group: str
    letter: FailedRecord
    at: datetime


class LetterHead(NamedTuple):
    """The beginning of a dead letter, which is small however large the letter is.

    ``key``, ``value`` and ``error`` are cut, and ``headers`` is ``None`` if they are too large to be read.
    ``headers_bytes`` is their size as the ledger stores them.
    """

    id: int
    group: str
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    attempts: int
    at: datetime
    error: str
    is_error_cut: bool
    key: bytes | None
    key_bytes: int | None
    value: bytes | None
    value_bytes: int | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    headers_bytes: int

    @property
    def size(self) -> int:
        """About how many bytes the whole letter has, without its error."""
        return (self.key_bytes or 0) + (self.value_bytes or 0) + self.headers_bytes


class LetterErrors(NamedTuple):
    """How many dead letters of a group have the same error, and the ids of the first and the last of them."""

    error: str
    letters: int
    first: int
    last: int


def without(letter: FailedRecord, part: str) -> FailedRecord:
    """Remove one part of the letter's record (``value``, ``key`` or ``headers``), and add a header that names it."""
    record, kept = letter.record, letter.record.headers
    match part:
        case "value":
            size, record = len(record.value or b""), record._replace(value=None)
        case "key":
            size, record = len(record.key or b""), record._replace(key=None)
        case _:
            kept = tuple(header for header in kept if header[0] == LEFT_OUT)
            size = sum(len(name) + len(value or b"") for name, value in record.headers if name != LEFT_OUT)
    return letter._replace(record=record._replace(headers=(*kept, (LEFT_OUT, f"{part}, {size} bytes".encode()))))


def left_out(record: Record) -> str | None:
    """Return the parts that a dead letter lacks, with their sizes; ``None`` if its record is complete."""
    parts = [(value or b"").decode(errors="replace") for name, value in record.headers if name == LEFT_OUT]
    return "; ".join(parts) or None
