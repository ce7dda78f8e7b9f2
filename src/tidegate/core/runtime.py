"""Runtime: the interface through which listeners, pipelines and ledgers reach time, randomness and threads.

:data:`tidegate.ledger.threads.THREADS` is the real one. The simulation passes another one, in which time is virtual, a
random seed decides everything, and threads take turns. So the code that ships is the code that the simulation runs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import Any, Protocol, TypeVar, runtime_checkable

__all__ = ["Condition", "Job", "Runtime", "Signal", "Strand", "Worker"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Signal(Protocol):
    """What a runtime needs of :class:`threading.Event`."""

    def is_set(self) -> bool:
        """Return whether it is set."""

    def set(self) -> None:
        """Set it, and wake all that wait for it."""

    def clear(self) -> None:
        """Reset it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for at most ``timeout`` seconds; return whether it is set."""


class Condition(Protocol):
    """What a runtime needs of :class:`threading.Condition`."""

    def __enter__(self) -> bool:
        """Acquire the lock."""

    def __exit__(self, *_: Any) -> None:
        """Release the lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified, for at most ``timeout`` seconds; return whether it was notified."""

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` of those that wait."""

    def notify_all(self) -> None:
        """Wake all that wait."""


class Strand(Protocol):
    """A started thread."""

    def is_alive(self) -> bool:
        """Return whether it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it ends, for at most ``timeout`` seconds."""


class Job(Protocol[T_co]):
    """A function that a :class:`Worker` runs."""

    def exception(self) -> BaseException | None:
        """Return the error that it raised, if any; it must have ended."""

    def result(self) -> T_co:
        """Return what it returned; it must have ended."""


class Worker(Protocol):
    """A second thread, which runs one job after the other."""

    def submit(self, work: Callable[[], T]) -> Job[T]:
        """Start a job."""

    def has_ended(self, job: Job[Any], within: float) -> bool:
        """Return whether a job has ended, or ends within so many seconds."""

    def close(self) -> None:
        """Wait for the running job, and end the thread."""


@runtime_checkable
class Runtime(Protocol):
    """Time, randomness and threads."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes backwards."""

    def sleep(self, seconds: float, /) -> None:
        """Let so many seconds pass."""

    def now(self) -> datetime:
        """Return the date and time, in UTC."""

    def random(self) -> Random:
        """Return a new source of randomness, for jitter."""

    def token(self, size: int) -> str:
        """Return a random text of ``size`` bytes in hexadecimal digits, which no other process has."""

    def signal(self) -> Signal:
        """Return a new event."""

    def condition(self) -> Condition:
        """Return a new condition variable."""

    def start(self, work: Callable[[], object], name: str) -> Strand:
        """Run a function on a new thread, which does not keep the process alive."""

    def worker(self, name: str) -> Worker:
        """Return a new worker; its thread starts with its first job."""
