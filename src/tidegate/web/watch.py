"""The watch: looks at the ledger and at Kafka every few seconds, for all pages together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tidegate.core.errors import TidegateError
from tidegate.kafka.survey import Survey
from tidegate.ledger.base import Ledger
from tidegate.operate.figures import GroupStatus, Summaries
from tidegate.operate.overview import Overview
from tidegate.settings import masked
from tidegate.web.history import History
from tidegate.web.rounds import Rounds
from tidegate.web.tail import Tail

__all__ = ["GroupSeen", "SummariesSeen", "Watch"]

log = logging.getLogger(__name__)

_INTEREST = 20.0  # seconds that a group is looked at after a page asked for it
_PATIENCE = 0.7  # seconds that a page waits for Kafka
_PATIENCE_AT_FIRST = 0.3

T = TypeVar("T")


@dataclass(frozen=True)
class SummariesSeen:
    """All groups as they were seen last; ``trouble`` says why that is not now."""

    summaries: Summaries
    trouble: str | None = None


@dataclass(frozen=True)
class GroupSeen:
    """One group as it was seen last, and the tail of its journal."""

    status: GroupStatus
    tail: Tail
    trouble: str | None = None


class Watch:
    """Looks at all groups in sum, and in detail at those that a page shows.

    A page does not wait for a Kafka that does not answer: it gets what the ledger has.
    """

    def __init__(
        self, ledger: Ledger[Any], survey: Survey | None, members: Collection[str] = (), every: float = 2.0
    ) -> None:
        """``members``: addresses of consumers that are asked how far they have read."""
        self.history = History()
        self._ledger = ledger
        self._members = members
        self._stopping = False
        self._lock = threading.Lock()
        self._at_start: SummariesSeen | None = None
        self._summaries: SummariesSeen | None = None
        self._groups: dict[str, GroupSeen] = {}
        self._asked: dict[str, float] = {}
        self._listeners: set[Callable[[], object]] = set()
        # An overview belongs to one thread, and the sums of a large ledger must not keep a single group waiting.
        self._of_all = Overview(ledger, survey)
        self._of_each = Overview(ledger, survey)
        self._all_rounds = Rounds("tidegate-watch-all", self._look_at_all, every)
        self._group_rounds = Rounds("tidegate-watch-groups", self._look_at_groups, every)

    def start(self) -> None:
        """Begin to look. A ledger that cannot be read is an error now; later it is told on the pages."""
        self._at_start = SummariesSeen(Overview(self._ledger).groups())
        self._all_rounds.start()
        self._group_rounds.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopping = True
        self._all_rounds.stop()
        self._group_rounds.stop()

    def look(self) -> None:
        """Look now: something was changed."""
        self._all_rounds.soon()
        self._group_rounds.soon()

    def listen(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener``, in a thread of the watch, after every look; returns what ends that."""
        with self._lock:
            self._listeners.add(listener)

        def end() -> None:
            with self._lock:
                self._listeners.discard(listener)

        return end

    def summaries(self) -> SummariesSeen:
        """All groups, as they were seen last; at first, what the ledger has."""
        self._all_rounds.wait_for_first(_PATIENCE_AT_FIRST)
        seen = self._summaries or self._at_start
        return seen or SummariesSeen(Overview(self._ledger).groups())

    def group(self, name: str) -> GroupSeen | None:
        """A group as it was seen last, while a page shows it."""
        with self._lock:
            self._asked[name] = time.monotonic()
            return self._groups.get(name)

    def group_now(self, name: str) -> GroupSeen:
        """A group as it is now: with what Kafka says, if it says so soon."""
        self.group(name)
        seen = self._summaries
        kafka = seen.summaries.kafka if seen else None
        if kafka is None and self._group_rounds.wait(_PATIENCE) and (known := self.group(name)) is not None:
            return known
        known = self.group(name)
        tail = known.tail if known else Tail(self._ledger, name)
        tail.read(time.time())
        status = Overview(self._ledger).group(name)
        return GroupSeen(replace(status, kafka=kafka or status.kafka), tail)

    def _look_at_all(self) -> None:
        found, trouble = self._tried(self._of_all.groups)
        if found is not None:
            self._summaries = SummariesSeen(found)
            self.history.add(found.at.timestamp(), {each.group: each.lag_records for each in found.groups})
        elif self._summaries is not None:
            self._summaries = SummariesSeen(self._summaries.summaries, trouble)
        self._tell()

    def _look_at_groups(self) -> None:
        with self._lock:
            limit = time.monotonic() - _INTEREST
            self._asked = {name: at for name, at in self._asked.items() if at >= limit}
            self._groups = {name: seen for name, seen in self._groups.items() if name in self._asked}
            wanted = list(self._asked)
        for name in wanted:
            self._look_at(name)
        if wanted:
            self._tell()

    def _look_at(self, name: str) -> None:
        known = self._groups.get(name)
        tail = known.tail if known else Tail(self._ledger, name)

        def ask() -> GroupStatus:
            status = self._of_each.group(name, members=self._members)
            tail.read(status.at.timestamp())
            return status

        status, trouble = self._tried(ask)
        with self._lock:
            if status is not None:
                self._groups[name] = GroupSeen(status, tail)
            elif known is not None:
                self._groups[name] = GroupSeen(known.status, tail, trouble)

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _tried(self, ask: Callable[[], T]) -> tuple[T | None, str | None]:
        """What ``ask`` gives, or the trouble with it in words: the next look may succeed."""
        try:
            return ask(), None
        except Exception as error:
            told = masked(" ".join(str(error).split()))
            if not isinstance(error, TidegateError):
                told = f"{type(error).__name__}: {told}"
            if not self._stopping:
                log.warning("the dashboard cannot look at the ledger: %s", told)
            return None, told
