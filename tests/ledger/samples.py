"""Values that the tests of the ledgers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate.core.journal import Entry
from tidegate.core.records import TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.ledger.ledger import Ledger

from .stores import Row, Store

GROUP = "billing"
FIRST, SECOND, THIRD = PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
OTHER = TopicPartition("payments", 0)


def span(start: int, end: int, partition: TopicPartition = FIRST) -> Span:
    return Span(partition, start, end, end - start)


def rows_of(*spans: Span) -> list[Row]:
    """The data of some spans: one row for each offset."""
    return [Row(*s.partition, offset, f"{s.partition} {offset}") for s in spans for offset in range(s.start, s.end)]


def writing(store: Store, *spans: Span) -> Callable[[Any], None]:
    """A handler that writes the data of some spans."""

    def handler(tx: Any) -> None:
        for row in rows_of(*spans):
            store.write(tx, row)

    return handler


def advance(
    store: Store, claims: Mapping[TopicPartition, Claim], *spans: Span, ledger: Ledger[Any] | None = None
) -> Any:
    """Move positions together with the data of their spans."""
    return (ledger or store.ledger).transact(claims, spans, writing(store, *spans))


def offsets(ledger: Ledger[Any], group: str = GROUP) -> dict[TopicPartition, int]:
    """Where each position of a group is."""
    return {tp: row.next_offset for tp, row in ledger.read(group).positions.items()}


def kinds(entries: Iterable[Entry]) -> list[str]:
    return [str(entry.kind) for entry in entries]
