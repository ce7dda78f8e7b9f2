"""The health of an app: whether its loops run, its ledger and broker answer, and its partitions are claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from tidegate.core.assignment import Assignment, Claiming, Reclaiming
from tidegate.core.records import TopicPartition
from tidegate.core.runtime import Runtime
from tidegate.errors import TidegateError
from tidegate.ledger.threads import THREADS
from tidegate.observe.health import ReadPosition

__all__ = ["AppHealth", "Pulse", "Vitals"]


_EVERY = 0.2  # seconds between two snapshots


@dataclass(frozen=True)
class Vitals:
    """A snapshot of a member. ``away`` maps each unavailable store to the reason."""

    group: str
    positions: tuple[ReadPosition, ...] = ()
    unclaimed: tuple[TopicPartition, ...] = ()
    away: Mapping[str, str] = field(default_factory=dict)


class Pulse:
    """The heartbeat of a member, with its last snapshot.

    Only the member's own thread may read its state: it calls :meth:`beat`, and other threads read the snapshot.
    """

    def __init__(
        self,
        group: str,
        assignment: Assignment,
        read_to: Callable[[TopicPartition], int | None],
        runtime: Runtime = THREADS,
    ) -> None:
        """Start the heartbeat. ``read_to`` returns the offset up to which a partition is read, committed or not."""
        self._assignment = assignment
        self._read_to = read_to
        self._clock = runtime.monotonic
        self._at = self._next = self._clock()
        self.vitals = Vitals(group)

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return self._clock() - self._at

    def beat(self, away: Mapping[str, str]) -> None:
        """Record that the loop of the member is running, and take a snapshot if it is due."""
        self._at = now = self._clock()
        if now >= self._next:
            self._next = now + _EVERY
            self.vitals = self._snapshot(away)

    def _snapshot(self, away: Mapping[str, str]) -> Vitals:
        group, assignment = self.vitals.group, self._assignment
        positions = tuple(
            ReadPosition(group, *tp, max(self._read_to(tp) or 0, state.position), state.position)
            for tp, state in sorted(assignment.reading())
        )
        unclaimed = tuple(
            tp for tp in assignment.partitions if isinstance(assignment.state(tp), (Claiming, Reclaiming))
        )
        return Vitals(group, positions, unclaimed, dict(away))


_STUCK = 60.0  # seconds without a beat; a loop beats even while it waits for a handler or the ledger
_PATIENCE = 3.0
_MOST_NAMED = 5


class Beating(Protocol):
    """A member, reduced to its heartbeat."""

    pulse: Pulse


class AppHealth:
    """The :class:`~tidegate.observe.health.Health` of an app.

    ``questions`` check the stores, each time :meth:`unready` is called.
    """

    def __init__(self, members: Callable[[], Sequence[Beating]], questions: dict[str, Callable[[], object]]) -> None:
        self._members = members
        self._inquiries = {what: _Inquiry(ask) for what, ask in questions.items()}

    def failing(self) -> list[str]:
        """Return one reason for each member whose loop is stuck; empty if all loops run."""
        return [
            f"group {member.pulse.vitals.group!r}: its loop has not run for {member.pulse.age:.0f} s"
            for member in self._members()
            if member.pulse.age > _STUCK
        ]

    def unready(self) -> list[str]:
        """Return why the app cannot work now: stuck loops, unavailable stores, unclaimed partitions; empty if ready."""
        members = self._members()
        if not members:
            return ["no listener is running yet"]
        reasons = self.failing()
        for inquiry in self._inquiries.values():
            inquiry.begin()
        for what, inquiry in self._inquiries.items():
            if said := inquiry.objection():
                reasons.append(f"the {what} is not available: {said}")
        for member in members:
            vitals = member.pulse.vitals
            where, unclaimed = f"group {vitals.group!r}", vitals.unclaimed
            reasons += [f"{where}: the {what} is away: {reason}" for what, reason in vitals.away.items()]
            if unclaimed:
                more = f" and {len(unclaimed) - _MOST_NAMED} more" if len(unclaimed) > _MOST_NAMED else ""
                reasons.append(f"{where}: not claimed yet: {', '.join(map(str, unclaimed[:_MOST_NAMED]))}{more}")
        return list(dict.fromkeys(reasons))  # several threads of a group report the same reason

    def positions(self) -> list[ReadPosition]:
        """Return the read and committed position of each partition that this process reads."""
        return sorted(position for member in self._members() for position in member.pulse.vitals.positions)


class _Inquiry:
    """Asks a store one question at a time, so that a silent store blocks at most one thread."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._answer: Future[str] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask on a new thread, unless the last question is still unanswered."""
        with self._lock:
            if self._answer is None or self._answer.done():
                self._answer = Future()
                threading.Thread(target=self._run, args=(self._answer,), name="tidegate-health", daemon=True).start()

    def _run(self, answer: Future[str]) -> None:
        try:
            self._ask()
        except TidegateError as error:
            answer.set_result(str(error))
        except Exception as error:
            answer.set_result(type(error).__name__)
        else:
            answer.set_result("")

    def objection(self) -> str:
        """Wait for the answer and return the error message; empty if the store answered."""
        with self._lock:
            answer = self._answer
        try:
            return "" if answer is None else answer.result(_PATIENCE)
        except TimeoutError:
            return f"no answer within {_PATIENCE:g} s"
