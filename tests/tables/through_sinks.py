"""A sink's own code beside plain statements: both have to leave the same table and park the same records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from tests.tables.handlers import sink_handler
from tests.tables.trial import write

from tidegate import Record, Table
from tidegate.app.sink import Sink

from .oracle import Case, Gone, Sent

Seen = Callable[[Connection, str], Any]


class Rule(Case):
    """A kind of table, with the mode that it is written in; each record of the oracle's commits by itself."""

    def check_rule(
        self, records: Sequence[Sent], *, given: str = "", seen: Seen | None = None, cuts: Sequence[int] = (1000, 2)
    ) -> tuple[Any, list[int]]:
        """What both leave. ``given`` are rows that are there, as in VALUES; ``seen`` is what is compared."""
        expected = self._by_plain_statements(records, given, seen)
        for size in cuts:
            assert self.by_a_sink(records, size, given=given, seen=seen) == expected, f"in batches of {size}"
        return expected

    def _by_plain_statements(self, records: Sequence[Sent], given: str, seen: Seen | None) -> tuple[Any, list[int]]:
        table, parked = self._filled(given), []
        with self.place.engine.connect() as conn:
            for place, record in enumerate(records):
                try:
                    with conn.begin():
                        self._plain(conn, table, record)
                except DBAPIError:
                    parked.append(place)
        return self._seen(table, seen), parked

    def by_a_sink(
        self, records: Sequence[Sent], size: int, *, given: str = "", seen: Seen | None = None
    ) -> tuple[Any, list[int]]:
        """What batches of this size leave, each in a transaction, and the places of the records that were parked."""
        table, parked = self._filled(given), set[int]()
        sink = sink_handler(Sink(table), self.place.engine)
        sent = [_record(place, record) for place, record in enumerate(records)]
        for start, end in pairwise([*range(0, len(sent), size), len(sent)]):
            with self.place.engine.begin() as conn:
                parked |= write(sink, conn, sent[start:end])
        return self._seen(table, seen), sorted(parked)

    def _filled(self, given: str) -> Table:
        table = self.table()
        if given:
            self.place.run(f"INSERT INTO {self.place.quote(table.name)} VALUES {given}")
        return table

    def _seen(self, table: Table, seen: Seen | None) -> Any:
        if seen is None:
            return self.found(table)
        with self.place.engine.connect() as conn:
            return seen(conn, self.place.quote(table.name))


def _record(offset: int, record: Sent) -> Record:
    written = json.dumps(record).encode()
    gone = isinstance(record, Gone)
    return Record("rule", 0, offset, written if gone else None, None if gone else written, (), 0)
