"""A watch over a ledger's connections: it breaks off waits that last too long, and knows how long a store is silent."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from tidegate.core.runtime import Runtime, Strand
from tidegate.ledger.threads import THREADS

__all__ = ["GRACE", "LINE", "Line", "Watch", "line_of"]

GRACE = 10.0
"""Seconds that a silent store has left to answer once a process begins to shut down."""

LINE = "tidegate_line"
"""The key of a connection's line among what its pool notes about it."""

_MOST = 1.0  # seconds between two checks of the waits
_LEAST = 0.02


class Watch:
    """Watches the connections of one ledger, in a thread that starts with the first connection.

    A server may never answer although the connection is established and it acknowledges every packet. Then only a
    timeout ends the wait. Shutting down the socket wakes the waiting thread with the error of a lost connection.
    """

    def __init__(self, answer: float, runtime: Runtime = THREADS) -> None:
        """``answer``: the timeout of one wait, in seconds."""
        self.answer = answer
        self.clock = runtime.monotonic
        self.waiting: dict[Line, float] = {}
        """The connections that wait for an answer, each with the time at which its wait began."""
        self._unheard: float | None = None  # when the first unanswered request was sent
        self._hurry: tuple[float, float] | None = None  # when the hurry began, and the timeout since then
        self._runtime = runtime
        self._thread: Strand | None = None
        self._starting = threading.Lock()

    # Whether the store answers

    @property
    def silence(self) -> float:
        """How many seconds the store has not answered; 0 if it answered the last request."""
        unheard = self._unheard
        return 0.0 if unheard is None else self.clock() - unheard

    def heard(self) -> None:
        """Note that the store has answered."""
        self._unheard = None

    def unheard(self, since: float) -> None:
        """Note that a request sent at ``since`` has not been answered."""
        if self._unheard is None:
            self._unheard = since

    # Ending waits

    def hurry(self, within: float | None) -> None:
        """Limit every wait to ``within`` seconds from now on; ``None`` restores the normal timeout."""
        self._hurry = None if within is None else (self.clock(), within)

    @property
    def is_hurried(self) -> bool:
        """Whether :meth:`hurry` has shortened the timeout of waits."""
        return self._hurry is not None

    @property
    def is_over(self) -> bool:
        """Whether to send the store no more requests: waits are hurried, and it was silent for longer than that."""
        hurry = self._hurry
        return hurry is not None and self.silence >= hurry[1]

    def bound(self, since: float) -> float:
        """Return the time at which a wait that began at ``since`` is broken off."""
        end = since + self.answer
        if (hurry := self._hurry) is not None:
            end = min(end, max(since, hurry[0]) + hurry[1])
        return end

    def line(self, fileno: Callable[[], int], lost: Callable[[str], Exception]) -> Line:
        """Return a watched line for a connection, given its socket and the driver's error for a lost connection."""
        if self._thread is None or not self._thread.is_alive():  # after a fork, the thread is gone
            self._start()
        return Line(self, fileno, lost)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                look = partial(_look, weakref.ref(self), self._runtime)
                self._thread = self._runtime.start(look, "tidegate-watch")

    def look(self) -> float:
        """Break off overdue waits; return after how many seconds to check again."""
        now = self.clock()
        for line, since in list(self.waiting.items()):
            if now >= self.bound(since):
                line.break_off(since, now)
        within = self.answer if self._hurry is None else min(self.answer, self._hurry[1])
        return min(_MOST, max(_LEAST, within / 20))


def line_of(info: Mapping[Any, Any]) -> Line | None:
    """Return the line of a connection, given what its pool notes about it; ``None`` for SQLite, which has no server."""
    return info.get(LINE)


def _look(watch: Callable[[], Watch | None], runtime: Runtime) -> None:
    """Check the waits repeatedly, until the ledger has been garbage-collected."""
    pause = _LEAST
    while True:
        runtime.sleep(pause)
        watched = watch()
        if watched is None:
            return
        pause = watched.look()
        del watched


class Line:
    """A watched connection."""

    __slots__ = ("__weakref__", "_answered", "_fileno", "_idle", "_lock", "_lost", "_watch", "reason")

    def __init__(self, watch: Watch, fileno: Callable[[], int], lost: Callable[[str], Exception]) -> None:
        self._watch = watch
        self._fileno = fileno
        self._lost = lost
        self._lock = threading.Lock()
        self.reason: str | None = None
        """Why its wait was broken off; ``None`` if it was not."""
        self.rest()

    def rest(self) -> None:
        """Start to measure the longest pause between two requests."""
        self._idle, self._answered = 0.0, self._watch.clock()

    @property
    def idle(self) -> float:
        """The longest pause between two requests since :meth:`rest`, in seconds, including the present one."""
        return max(self._idle, self._watch.clock() - self._answered)

    def watched(self, wait: Callable[..., Any], *, tells: bool = True) -> Callable[..., Any]:
        """Wrap a driver's function that waits for the server, so that the watch can end the wait.

        ``tells``: its return means that the server has answered.
        """
        watch, waiting, lock, clock = self._watch, self._watch.waiting, self._lock, self._watch.clock

        def bounded(*args: Any, **kwargs: Any) -> Any:
            waiting[self] = since = clock()
            self._idle = max(self._idle, since - self._answered)
            if watch._unheard is None:
                watch._unheard = since
            try:
                answer = wait(*args, **kwargs)
            except Exception as error:
                if self.reason is not None:
                    raise self._lost(self.reason) from error
                if getattr(error, "sqlstate", None) is not None:  # an error from the server is an answer
                    watch._unheard = None
                raise
            finally:
                with lock:  # if the watch is breaking off this wait, let it finish before the next wait begins
                    waiting.pop(self, None)
                self._answered = clock()
            if tells:
                watch._unheard = None
            return answer

        return bounded

    def break_off(self, since: float, now: float) -> None:
        """Shut down the socket, if the wait that began at ``since`` is still going on."""
        with self._lock:
            if self._watch.waiting.get(self) != since:
                return
            why = "and this process is shutting down" if self._watch.is_hurried else "which is the limit 'answer'"
            self.reason = f"the server has not answered for {now - since:.0f} s, {why}"
            # A driver that has lost the connection meanwhile may raise anything; the other lines still need the watch.
            with suppress(Exception), socket.socket(fileno=os.dup(self._fileno())) as shut:
                shut.shutdown(socket.SHUT_RDWR)
