"""Stopping what runs: the first SIGTERM or SIGINT asks, the second ends the process as signals do."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

__all__ = ["run_until_stopped"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger("tidegate")
T = TypeVar("T")


def run_until_stopped(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run ``work`` on a thread of its own, while the main thread listens to signals; ``stop`` asks it to end.

    On the main thread a Spark context would put a handler for SIGINT in the place of ours. A daemon, so that an error
    here, such as a closed terminal's, does not wait for work that nobody asked to end.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # whatever it is: the main thread is to hear of it
            failed.append(error)

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        _log.info("stopping on %s: finishing what is under way; once more to stop at once", signal.Signals(number).name)
        stop()

    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        thread = threading.Thread(target=run, name="tidegate-work", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]
    return done[0]
