"""Finding dead letters among many."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tidegate.core.letters import ParkedLetter
from tidegate.ledger.base import Ledger

__all__ = ["find_letters"]

_PAGE = 100


def find_letters(
    ledger: Ledger[Any], group: str, ids: Collection[int] | None = None, topic: str | None = None
) -> Iterator[ParkedLetter]:
    """The dead letters of a group that are meant, oldest first: those with these ids that are there, or all; of one
    topic, if that is said. Few of them are in memory at a time."""
    if ids is None:
        found = _all(ledger, group)
    else:
        named = (ledger.dead_letter(group, number) for number in sorted(set(ids)))
        found = (parked for parked in named if parked is not None)
    return (parked for parked in found if topic in (None, parked.letter.record.topic))


def _all(ledger: Ledger[Any], group: str) -> Iterator[ParkedLetter]:
    after = 0
    while page := ledger.dead_letters(group, after=after, limit=_PAGE):
        yield from page
        after = page[-1].id
