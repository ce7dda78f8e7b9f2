"""Change events for tests: samples of a real Debezium, and random events with what they leave."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tidegate import Record

SAMPLES = Path(__file__).with_name("debezium")
MISSING = "__debezium_unavailable_value"


def encoded(value: Any) -> bytes | None:
    return None if value is None else json.dumps(value, separators=(",", ":")).encode()


def samples(kind: str, topic: str, *steps: str) -> list[Record]:
    """The messages of a real Debezium, of these steps or of all, in the order in which they came."""
    found = [json.loads(line) for line in (SAMPLES / f"{kind}.jsonl").read_text().splitlines()]
    return [
        Record(topic, each["partition"], offset, encoded(each["key"]), encoded(each["value"]), (), 0)
        for offset, each in enumerate(found)
        if each["topic"].endswith(f".{topic}") and (not steps or each["step"][:2] in steps)
    ]


def event(op: str, after: Any = None, before: Any = None, **more: Any) -> bytes | None:
    return encoded({"op": op, "before": before, "after": after, "source": {"lsn": 1}, **more})


def sent(*events: tuple[Any, bytes | None]) -> list[Record]:
    return [Record("t", 0, place, encoded(key), value, (), 0) for place, (key, value) in enumerate(events)]


Rows = dict[int, tuple[int, str | None]]


class Story:
    """Random events, and what they leave one by one: the rows, and which of them are parked."""

    def __init__(self, seed: str, *, is_soft: bool = False) -> None:
        self._random = random.Random(seed)
        self._is_soft = is_soft
        self.rows: Rows = {}
        self.kept: dict[int, tuple[int, str | None, bool]] = {}
        """The rows if deleted ones are marked."""
        self.parked: set[int] = set()
        self.records: list[Record] = []

    def tell(self, count: int) -> None:
        while len(self.records) < count:
            key, new = self._random.randrange(5), self._random.randrange(5)
            number = len(self.records)
            match self._random.choices("cudkttmx", (5, 4, 5, 3, 0, 2, 1, 7))[0]:
                case "c" | "u" as op:
                    self._add(key, event(op, {"id": key, "n": number, "big": f"v{number}"}))
                    self._put(key, number, f"v{number}")
                case "x":  # an update without the long value
                    if (self._is_soft and key in self.kept) or key in self.rows:
                        self._put(key, number, self.kept[key][1])
                    else:
                        self.parked.add(number)
                    self._add(key, event("u", {"id": key, "n": number, "big": MISSING}))
                case "d":
                    self._add(key, event("d", None, {"id": key, "n": 0, "big": ""}))
                    self._drop(key)
                case "k":
                    self._add(key, event("d", None, {"id": key, "n": 0, "big": ""}))
                    self._add(key, None)
                    self._add(new, event("c", {"id": new, "n": number, "big": None}))
                    self._drop(key)
                    self._put(new, number, None)
                case "t":
                    self._add(None, event("t"))
                    for each in list(self.rows):
                        self._drop(each)
                case _:
                    self._add(key, encoded({"ts_ms": number}))

    def _put(self, key: int, n: int, big: str | None) -> None:
        self.rows[key] = n, big
        self.kept[key] = n, big, False

    def _drop(self, key: int) -> None:
        if self.rows.pop(key, None) is not None:
            self.kept[key] = *self.kept[key][:2], True

    def _add(self, key: int | None, value: bytes | None) -> None:
        place = len(self.records)
        self.records.append(Record("t", 0, place, None if key is None else encoded({"id": key}), value, (), 0))


def cuts(records: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    for start, end in pairwise([*range(0, len(records), size), len(records)]):
        yield records[start:end]
