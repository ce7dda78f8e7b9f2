"""A handle of a record that was sent: to be waited for, given a callback, or ignored."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.kafka.blame import blamed
from tidegate.kafka.errors import ProducerError
from tidegate.kafka.outgoing import Delivered

if TYPE_CHECKING:
    from tidegate.kafka.hooks import Hooks
    from tidegate.kafka.outgoing import Outgoing
    from tidegate.kafka.reports import Reports

__all__ = ["Handle", "TrackedHandle"]

_log = logging.getLogger("tidegate")
_lock = threading.Lock()
"""For all handles: it is taken for those only that somebody waits for."""


class Handle:
    """What became of one record.

    There is one for every record, so it is small: what it takes to wait is made when somebody waits.
    """

    __slots__ = ("_outcome", "_reports", "_waiting")

    def __init__(self, reports: Reports) -> None:
        self._outcome: Any = None  # a tuple, or an error
        self._waiting: list[Callable[[Handle], object]] | None = None
        self._reports = reports

    @property
    def done(self) -> bool:
        """Whether it was delivered, or given up."""
        return self._outcome is not None

    @property
    def error(self) -> ProducerError | None:
        """Why it was given up; ``None`` if it was not, or not yet."""
        return self._outcome if isinstance(self._outcome, ProducerError) else None

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait until the record is delivered, and say where.

        Raises the :class:`ProducerError` if it was given up, or :class:`TimeoutError` if neither has happened within
        ``timeout`` seconds. Waiting is not possible in callbacks, since those are what would have to go on.
        """
        if self._outcome is None:
            self._wait(timeout)
        if isinstance(self._outcome, ProducerError):
            raise self._outcome
        return Delivered(*self._outcome)

    def add_callback(self, callback: Callable[[Handle], object]) -> None:
        """Call ``callback`` with this handle once it is done: on the thread that serves delivery reports, so it has to
        be quick; or at once, here, if it is done already. An error in it is logged.
        """
        with _lock:
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(callback)
        if self._outcome is not None:
            self._call_back()

    def __call__(self, error: Any, message: Any) -> None:
        """The client's delivery report."""
        if error is None:
            self._outcome = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        else:
            self._outcome = self._reports.given_up(error, message)
        if self._waiting is not None:
            self._call_back()

    def _call_back(self) -> None:
        with _lock:  # whoever comes first, the report or somebody who is late, takes them all
            waiting, self._waiting = self._waiting, None
        for callback in waiting or ():
            try:
                callback(self)
            except Exception as error:
                _log.error("a callback of a record that was sent failed with %s", blamed(error))

    def _wait(self, timeout: float | None) -> None:
        self._reports.refuse_to_wait("result()")
        event = threading.Event()
        self.add_callback(lambda _: event.set())
        if not event.wait(timeout):
            raise TimeoutError(f"nothing is known of the record after {timeout} s; it may still be delivered")


class TrackedHandle(Handle):
    """A handle that knows its record, for those who have to be told about it."""

    __slots__ = ("_hooks", "_record")

    def __init__(self, reports: Reports, record: Outgoing, hooks: Hooks) -> None:
        super().__init__(reports)
        self._record = record
        self._hooks = hooks

    def __call__(self, error: Any, message: Any) -> None:
        """The client's delivery report."""
        outcome: Any
        if error is None:
            told = Delivered(message.topic(), message.partition(), message.offset(), message.timestamp()[1])
            outcome = tuple(told)[:-1]
            self._hooks.delivered(self._record, told._replace(seconds=message.latency()))
        else:
            outcome = self._reports.given_up(error, message, self._record)
            self._hooks.failed(self._record, outcome)
        self._outcome = outcome
        if self._waiting is not None:
            self._call_back()
