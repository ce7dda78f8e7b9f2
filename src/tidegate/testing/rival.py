"""A rival: another owner, who claims partitions while a listener is at work on them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from tidegate.core.records import TopicPartition
from tidegate.ledger import Ledger

__all__ = ["Rival"]

_ELBOW_ROOM = 0.03  # seconds in which a claim is answered by a store that locks nothing


class Rival:
    """Claims in a thread of its own, for the store may make it wait for the listener's transaction."""

    def __init__(self, ledger: Ledger[Any]) -> None:
        self._ledger = ledger
        self._waiting: list[threading.Thread] = []
        self._errors: list[Exception] = []

    def claim(self, group: str, partitions: Iterable[TopicPartition], *, locked: bool) -> None:
        """Claim partitions; if they are ``locked``, without waiting for it."""
        wanted = list(partitions)
        claiming = threading.Thread(target=self._claim, args=(group, wanted), name="tidegate-rival", daemon=True)
        claiming.start()
        claiming.join(_ELBOW_ROOM if locked else None)
        self._waiting.append(claiming)

    def settle(self) -> None:
        """Wait for claims that had to wait."""
        for claiming in list(self._waiting):
            claiming.join()

    def failure(self) -> Exception | None:
        """What a claim failed with, if one did."""
        self.settle()
        return self._errors[0] if self._errors else None

    def _claim(self, group: str, partitions: list[TopicPartition]) -> None:
        try:
            self._ledger.claim(group, partitions)
        except Exception as error:
            self._errors.append(error)
