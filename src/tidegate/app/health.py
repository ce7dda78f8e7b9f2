"""The health of an app: its loops turn, its ledger and its broker answer, its partitions are claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from tidegate.app.vitals import Pulse
from tidegate.core.errors import TidegateError
from tidegate.observe.health import ReadPosition

__all__ = ["AppHealth"]

_STUCK = 60.0  # seconds: a loop waits for handlers and for the ledger, and beats meanwhile
_PATIENCE = 3.0
_MOST_NAMED = 5


class Beating(Protocol):
    """A member, as far as its health goes."""

    pulse: Pulse


class AppHealth:
    """See :class:`~tidegate.observe.health.Health`; ``questions`` are asked of the stores when somebody asks here."""

    def __init__(self, members: Callable[[], Sequence[Beating]], questions: dict[str, Callable[[], object]]) -> None:
        self._members = members
        self._inquiries = {what: _Inquiry(ask) for what, ask in questions.items()}

    def failing(self) -> list[str]:
        """See :meth:`~tidegate.observe.health.Health.failing`."""
        return [
            f"group {member.pulse.vitals.group!r}: its loop has not gone round for {member.pulse.age:.0f} s"
            for member in self._members()
            if member.pulse.age > _STUCK
        ]

    def unready(self) -> list[str]:
        """See :meth:`~tidegate.observe.health.Health.unready`."""
        members = self._members()
        if not members:
            return ["no listener is running yet"]
        reasons = self.failing()
        for inquiry in self._inquiries.values():
            inquiry.begin()
        for what, inquiry in self._inquiries.items():
            if said := inquiry.objection():
                reasons.append(f"the {what} does not answer: {said}")
        for member in members:
            vitals = member.pulse.vitals
            where, unclaimed = f"group {vitals.group!r}", vitals.unclaimed
            reasons += [f"{where}: the {what} is away: {reason}" for what, reason in vitals.away.items()]
            if unclaimed:
                more = f" and {len(unclaimed) - _MOST_NAMED} more" if len(unclaimed) > _MOST_NAMED else ""
                reasons.append(f"{where}: not claimed yet: {', '.join(map(str, unclaimed[:_MOST_NAMED]))}{more}")
        return list(dict.fromkeys(reasons))  # several threads of a group say the same

    def positions(self) -> list[ReadPosition]:
        """See :meth:`~tidegate.observe.health.Health.positions`."""
        return sorted(position for member in self._members() for position in member.pulse.vitals.positions)


class _Inquiry:
    """One question at a time: a store that does not answer holds up one thread, however often somebody asks."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        self._answer: Future[str] | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Ask, unless the last question is still open."""
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
        """What it said against it; empty if it answered well."""
        with self._lock:
            answer = self._answer
        try:
            return "" if answer is None else answer.result(_PATIENCE)
        except TimeoutError:
            return f"no answer within {_PATIENCE:g} s"
