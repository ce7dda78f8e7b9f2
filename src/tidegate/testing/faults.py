"""Faults that a test can inject, and the steps of a listener's work at which they strike."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidegate.core.arguments import Count, convert_arguments
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.ledger.transaction import OutcomeUnknown

__all__ = [
    "IN_TRANSACTION",
    "ON_A_JOB",
    "CheckFailed",
    "Crash",
    "Died",
    "Fault",
    "FaultImpossible",
    "FaultMissed",
    "FaultyProcess",
    "Fence",
    "LostAnswer",
    "NotCaughtUp",
    "Rebalance",
    "Step",
    "Strike",
]


class NotCaughtUp(TidegateError):
    """A run did not reach the end of its topics in time."""


class FaultMissed(TidegateError):
    """A run ended before it reached the step of a fault, so the fault was not tested."""


class FaultImpossible(ConfigurationError):
    """A fault cannot strike in this setup: on a real broker, without a ledger, or on partitions that are named."""


class CheckFailed(AssertionError):
    """A check failed after one or more faults; the first error is the ``__cause__``."""


class Step(StrEnum):
    """A step of a listener's work; a fault strikes right after it."""

    CLAIMED = "claimed"
    """Partitions were claimed or reclaimed: the ledger names this owner now."""

    POLLED = "polled"
    """Records were fetched and not yet handled."""

    ADVANCED = "advanced"
    """The transaction has begun and has moved the positions; the handler runs next, if it takes a transaction."""

    WRITTEN = "written"
    """The handler has returned and everything is written in the open transaction; COMMIT is next."""

    COMMITTED = "committed"
    """The database has committed; the listener does not know it yet."""

    ACKNOWLEDGED = "acknowledged"
    """The listener knows that the transaction was committed."""

    RELEASED = "released"
    """Partitions were released."""


IN_TRANSACTION = {Step.ADVANCED, Step.WRITTEN}
"""Steps inside a transaction, where the rows are locked and other owners wait for them."""

ON_A_JOB = IN_TRANSACTION | {Step.COMMITTED, Step.ACKNOWLEDGED}
"""Steps on a job's thread, beside the polling thread: only here may a fault wait for the polling thread."""


@dataclass(frozen=True, slots=True)
class _AtStep:
    step: Step
    turn: Count = 1

    def __post_init__(self) -> None:
        convert_arguments(self)

    def __str__(self) -> str:
        again = f", {self.turn}" if self.turn > 1 else ""
        return f"{type(self).__name__}(Step.{self.step.name}{again})"


@dataclass(frozen=True, slots=True)
class Crash(_AtStep):
    """The process dies when it reaches ``step`` for the ``turn``-th time: after that, nothing is committed, released or
    closed."""


@dataclass(frozen=True, slots=True)
class Fence(_AtStep):
    """Another owner claims the step's partitions. If a transaction has locked them, that owner waits until it ends, as
    it would in production."""


@dataclass(frozen=True, slots=True)
class Rebalance(_AtStep):
    """The step's partitions are taken away and given back. With ``to_another``, they go to another member, which runs
    the same listener and joins the group now. With ``lost``, the partitions are lost instead of revoked: the member is
    notified after they are gone and cannot finish first."""

    to_another: bool = False
    lost: bool = False

    def __str__(self) -> str:
        options = "".join(f", {name}=True" for name in ("to_another", "lost") if getattr(self, name))
        return _AtStep.__str__(self)[:-1] + options + ")"


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The connection to the ledger breaks during the ``turn``-th COMMIT; ``committed`` says if it took effect."""

    committed: bool
    turn: Count = 1

    def __post_init__(self) -> None:
        convert_arguments(self)

    @property
    def step(self) -> Step:
        """The step after which the connection breaks."""
        return Step.COMMITTED if self.committed else Step.WRITTEN

    def __str__(self) -> str:
        again = f", turn={self.turn}" if self.turn > 1 else ""
        return f"LostAnswer(committed={self.committed}{again})"


Fault: TypeAlias = Crash | Fence | Rebalance | LostAnswer


Strike = Callable[[Fault, str, list[TopicPartition]], None]
"""Makes a fault happen that does not end the process; called with the fault, the group and the step's partitions."""


class Died(BaseException):
    """The process is dead. It is not an :class:`Exception`, because no handler of those would run in a real crash."""


class FaultyProcess:
    """The simulated process that the consumers and the ledger of a run share: is it alive, and which faults are due."""

    def __init__(self, faults: Sequence[Fault], strike: Strike) -> None:
        self._pending = list(faults)
        self._strike = strike
        self._turns: Counter[Step] = Counter()
        self._lock = threading.Lock()
        self._dead = False
        self.steps: list[Step] = []
        self.joined = threading.Event()
        """Set once a consumer has subscribed."""
        self.told = threading.Event()
        """Set once a consumer is notified that partitions were revoked or lost."""

    @property
    def dead(self) -> bool:
        """Whether the process has died."""
        return self._dead

    @property
    def missed(self) -> list[Fault]:
        """The faults that have not struck."""
        return list(self._pending)

    def live(self) -> None:
        """Raise :class:`Died` if the process is dead."""
        if self._dead:
            raise Died

    def reached(self, step: Step, group: str, partitions: Sequence[TopicPartition]) -> None:
        """Record that a step was reached, and let the faults that are due here strike."""
        for fault in self._due(step):
            if isinstance(fault, Crash):
                self._dead = True
                raise Died
            if isinstance(fault, LostAnswer):
                raise OutcomeUnknown("the test kit lost the answer")
            self._strike(fault, group, list(partitions))

    def _due(self, step: Step) -> list[Fault]:
        with self._lock:
            self.live()
            self.steps.append(step)
            self._turns[step] += 1
            due = [fault for fault in self._pending if fault.step is step and fault.turn == self._turns[step]]
            self._pending = [fault for fault in self._pending if fault not in due]
        return sorted(due, key=lambda fault: isinstance(fault, Crash | LostAnswer))  # those that raise come last
