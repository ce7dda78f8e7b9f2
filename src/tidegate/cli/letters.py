"""Dead letters, as people and programs see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from tidegate.cli.output import Column, table
from tidegate.cli.payload import harmless, lines_of
from tidegate.cli.shown_records import members
from tidegate.core.letters import ParkedLetter
from tidegate.operate import plain

__all__ = ["letter_text", "listed", "show_letters", "whole"]

_LONGEST_ERROR = 80
_COLUMNS = (
    Column("id", is_number=True),
    Column("group"),
    Column("topic"),
    Column("partition", is_number=True),
    Column("offset", is_number=True),
    Column("attempts", is_number=True),
    Column("at"),
    Column("error"),
)


def listed(parked: ParkedLetter) -> dict[str, Any]:
    """A letter without its payload."""
    record, error, attempts = parked.letter
    return {
        "id": parked.id,
        "group": parked.group,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempts": attempts,
        "error": error,
        "at": parked.at,
        "key_bytes": None if record.key is None else len(record.key),
        "value_bytes": None if record.value is None else len(record.value),
    }


def whole(parked: ParkedLetter) -> dict[str, Any]:
    """A letter with everything that it has."""
    return {**listed(parked), "record": members(parked.letter.record)}


def show_letters(letters: Sequence[dict[str, Any]]) -> None:
    """Print a table of letters as :func:`listed` has them."""
    shown = ({**letter, "error": _cut(letter["error"])} for letter in letters)
    table(_COLUMNS, [[letter[column.name] for column in _COLUMNS] for letter in shown])


def letter_text(parked: ParkedLetter) -> str:
    """Everything about one letter, its payload as text if it is some."""
    record, error, attempts = parked.letter
    stamp = record.timestamp
    facts = {
        "dead letter": parked.id,
        "group": parked.group,
        "record": f"{record.source} offset {record.offset}",
        "timestamp": "none" if stamp is None else plain(datetime.fromtimestamp(stamp / 1000, UTC)),
        "parked": plain(parked.at),
        "attempts": attempts,
        "error": error,
    }
    lines = [_fact(name, harmless(str(said))) for name, said in facts.items()]
    for name, value in record.headers:
        lines += _block(f"header {harmless(name)}", *lines_of(value))
    for name, content in (("key", record.key), ("value", record.value)):
        lines += _block(name, *lines_of(content))
    return "\n".join(lines)


def _block(name: str, what: str, shown: Iterable[str]) -> list[str]:
    return [_fact(name, what), *(f"    {line}" for line in shown)]


def _fact(name: str, said: str) -> str:
    return f"{name + ':':<12} {said}"


def _cut(error: str) -> str:
    shown = harmless(error)
    return shown if len(shown) <= _LONGEST_ERROR else f"{shown[: _LONGEST_ERROR - 1]}…"
