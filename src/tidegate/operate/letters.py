"""Dead letters for operators: the kinds of their errors, and the preview of a drop or a replay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tidegate.core.records import LetterErrors, LetterHead
from tidegate.errors import ChangeRefused
from tidegate.ledger.ledger import Ledger
from tidegate.ledger.letters import find_heads

__all__ = ["LetterAction", "LetterKind", "LetterPreview", "error_kind", "kinds", "letter_preview"]


_MOST_LETTERS = 10_000
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
# What differs between records that fail for the same reason: quoted text, numbers, and words with digits.
# The apostrophe of "can't" begins no quotation, but that of b'' does.
_PARTICULAR = re.compile(r"""(?<!\w)[bru]?'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\b[\w.:+-]*\d[\w.:+-]*""")
_UNCLOSED = re.compile(r"""(?:(?<!\w)[bru]?'|").*$""", re.DOTALL)  # a quotation that was cut off


class LetterAction(StrEnum):
    """A change that an operator makes to dead letters."""

    DROP = "drop"
    REPLAY = "replay"


class LetterKind(NamedTuple):
    """Dead letters of a group whose errors differ only in values: how many there are, and the ids of first and last."""

    kind: str
    letters: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LetterPreview:
    """The preview of a drop or a replay: the ids of the letters, the beginnings of the first of them, and how many
    others are meant but too many for one change."""

    action: LetterAction
    group: str
    ids: tuple[int, ...]
    heads: tuple[LetterHead, ...]
    left: bool


def error_kind(error: str) -> str:
    """Return an error with an ellipsis for each quoted text and each number, and on one line."""
    line = " ".join(error.split())
    return _UNCLOSED.sub(_ELLIPSIS, _PARTICULAR.sub(_ELLIPSIS, line))[:160]


def kinds(errors: Iterable[LetterErrors]) -> list[LetterKind]:
    """Add up errors that differ only in values, the most frequent first."""
    found: dict[str, LetterKind] = {}
    for each in errors:
        kind = error_kind(each.error)
        known = found.get(kind, LetterKind(kind, 0, each.first, each.last))
        first, last = min(known.first, each.first), max(known.last, each.last)
        found[kind] = LetterKind(kind, known.letters + each.letters, first, last)
    return sorted(found.values(), key=lambda each: (-each.letters, each.first))


def letter_preview(
    ledger: Ledger[Any],
    action: LetterAction,
    group: str,
    *,
    number: int | None = None,
    kind: str | None = None,
    shown: int = 50,
    known: Callable[[str], object] = lambda topic: None,
) -> LetterPreview:
    """Return which letters a change would drop or replay: one, those of a kind of error, or all; at most 10,000.

    ``known`` is called with the topic of each letter, and raises if the change is not possible there.
    """
    ids: list[int] = []
    heads: list[LetterHead] = []
    left = False
    for head in find_heads(ledger, group, None if number is None else [number]):
        if kind not in (None, error_kind(head.error)):
            continue
        if len(ids) == _MOST_LETTERS:
            left = True
            break
        known(head.topic)
        ids.append(head.id)
        if len(heads) < shown:
            heads.append(head)
    if not ids:
        raise ChangeRefused(f"group {group!r} has no such dead letters; they were replayed or dropped meanwhile")
    return LetterPreview(action, group, tuple(ids), tuple(heads), left)
