"""The transaction that a handler is given: the positions have been advanced in it, and its writes commit with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import NamedTuple

from tidegate.core.letters import Letter
from tidegate.core.spans import Work

__all__ = ["Outcome", "Result", "Transaction"]


class Transaction:
    """What every store's transaction offers; the stores add the way to write data."""

    undoes = True
    """Whether what was done in it is undone if it does not commit; only where there is no store at all, it is not."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.letters: list[Letter] = []

    def park(self, letter: Letter) -> None:
        """Keep a record whose handling failed for good; stored by this transaction, or not at all."""
        self.letters.append(letter)

    def returned(self, value: object) -> None:
        """What the handler returned, if that is not ``None``: nothing that a store of data has a use for."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A block that is undone by itself if it raises, letters included: for work that may fail without ending the
        transaction. Blocks may be nested.
        """
        parked = len(self.letters)
        try:
            with self._savepoint():
                yield
        except BaseException:
            del self.letters[parked:]
            raise

    def _savepoint(self) -> AbstractContextManager[object]:
        """The same for the data: what a store implements."""
        raise NotImplementedError


class Outcome(Enum):
    """How a piece of work ended."""

    COMMITTED = "committed"
    ALREADY_DONE = "already done"


class Result(NamedTuple):
    """How a piece of work ended, and what it took: tries in all, and tries whose COMMIT was not answered."""

    outcome: Outcome
    attempts: int
    unknown_outcomes: int
