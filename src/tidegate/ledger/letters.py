"""Dead letters, as operators read and drop them: the part of a ledger's contract that is about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator

from tidegate.core.records import LetterErrors, LetterHead, StoredLetter

__all__ = ["LETTER_HEAD", "LetterStore", "find_heads"]


LETTER_HEAD = 200
"""How many characters or bytes of a dead letter's texts and payloads a list needs."""

_HEADS_AT_ONCE = 500
_MOST_LOOKED_AT = 10_000


class LetterStore(ABC):
    """The dead letters of all groups. Transactions park them, and :meth:`Ledger.replay` handles them again."""

    @abstractmethod
    def dead_letters(self, group: str, *, after: int = 0, limit: int = 100) -> list[StoredLetter]:
        """Return up to ``limit`` dead letters of a group in the order they were parked, with ids above ``after``."""

    @abstractmethod
    def letter_heads(
        self, group: str, *, after: int = 0, limit: int = 100, most: int = LETTER_HEAD
    ) -> list[LetterHead]:
        """Return the beginnings of dead letters, in the order of :meth:`dead_letters`.

        Of each text and payload, no more than ``most`` characters or bytes are read from the store.
        """

    def letter_head(self, group: str, number: int, *, most: int = LETTER_HEAD) -> LetterHead | None:
        """Return the beginning of the dead letter with this id, or ``None``."""
        found = self.letter_heads(group, after=number - 1, limit=1, most=most) if 0 < number < 1 << 63 else []
        return found[0] if found and found[0].id == number else None

    @abstractmethod
    def count_letters(self) -> dict[str, int]:
        """Return how many dead letters each group has; groups without any are left out."""

    def letter_errors(self, group: str, *, most: int = LETTER_HEAD, limit: int = 1000) -> list[LetterErrors]:
        """Return the errors of a group's dead letters, most frequent first, at most ``limit`` different ones.

        Errors that begin with the same ``most`` characters count as the same. Of very many letters, only the oldest are
        looked at: 100,000, or 10,000 in a store that cannot group them itself.
        """
        found: dict[str, LetterErrors] = {}
        after = looked_at = 0
        while looked_at < _MOST_LOOKED_AT and (
            page := self.letter_heads(group, after=after, limit=_HEADS_AT_ONCE, most=most)
        ):
            for head in page:
                known = found.get(head.error)
                first, count = (known.first, known.letters) if known else (head.id, 0)
                found[head.error] = LetterErrors(head.error, count + 1, first, head.id)
            looked_at += len(page)
            after = page[-1].id
        return sorted(found.values(), key=lambda each: (-each.letters, each.first))[:limit]

    def dead_letter(self, group: str, number: int) -> StoredLetter | None:
        """Return the dead letter of a group with this id, or ``None``."""
        found = self.dead_letters(group, after=number - 1, limit=1) if 0 < number < 1 << 63 else []
        return found[0] if found and found[0].id == number else None

    @abstractmethod
    def drop_letters(self, group: str, ids: Iterable[int]) -> int:
        """Delete dead letters and return how many were deleted."""

    @abstractmethod
    def failed_again(self, parked: StoredLetter, error: str) -> bool:
        """Note that a replay failed: count an attempt and store the new error. Returns whether the letter exists."""


def find_heads(
    letters: LetterStore,
    group: str,
    ids: Collection[int] | None = None,
    topic: str | None = None,
    *,
    most: int = LETTER_HEAD,
) -> Iterator[LetterHead]:
    """Iterate over the beginnings of a group's dead letters, oldest first: those with the given ids that exist, or all.

    ``topic`` limits them to one topic. ``most`` is how much of each text and payload is read.
    """
    found: Iterable[LetterHead]
    if ids is None:
        found = _all_heads(letters, group, most)
    else:
        named = (letters.letter_head(group, number, most=most) for number in sorted(set(ids)))
        found = (head for head in named if head is not None)
    return (head for head in found if topic in (None, head.topic))


def _all_heads(letters: LetterStore, group: str, most: int) -> Iterator[LetterHead]:
    after = 0
    while page := letters.letter_heads(group, after=after, limit=_HEADS_AT_ONCE, most=most):
        yield from page
        after = page[-1].id
