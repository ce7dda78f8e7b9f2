"""Faults: what strikes, and at which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.core.arguments import Count, convert_arguments
from tidegate.testing.steps import Step

__all__ = ["Crash", "Fault", "Fence", "LostAnswer", "Rebalance"]


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
    """The process dies when ``step`` is reached for the ``turn``-th time: nothing is committed, released or closed
    after that."""


@dataclass(frozen=True, slots=True)
class Fence(_AtStep):
    """Another owner claims the partitions that the step is about. While a transaction has them locked it waits, as it
    would in life, and claims them as soon as that has ended."""


@dataclass(frozen=True, slots=True)
class Rebalance(_AtStep):
    """The partitions that the step is about are taken away and given back; or they go ``to_another`` member, which runs
    the same listener and joins the group now. With ``lost``, the member is not asked to finish first: it is told when
    they are gone."""

    to_another: bool = False
    lost: bool = False

    def __str__(self) -> str:
        options = "".join(f", {name}=True" for name in ("to_another", "lost") if getattr(self, name))
        return _AtStep.__str__(self)[:-1] + options + ")"


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The connection to the ledger breaks during the ``turn``-th COMMIT, which was ``committed`` or was not."""

    committed: bool
    turn: Count = 1

    def __post_init__(self) -> None:
        convert_arguments(self)

    @property
    def step(self) -> Step:
        """The step after which the answer is lost."""
        return Step.COMMITTED if self.committed else Step.WRITTEN

    def __str__(self) -> str:
        again = f", turn={self.turn}" if self.turn > 1 else ""
        return f"LostAnswer(committed={self.committed}{again})"


Fault: TypeAlias = Crash | Fence | Rebalance | LostAnswer
