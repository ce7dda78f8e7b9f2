"""A test kit for listeners: they run in the test's own process, with a real ledger and without a broker."""

from __future__ import annotations

from tidegate.testing.errors import CheckFailed, FaultImpossible, FaultMissed, NotCaughtUp
from tidegate.testing.everywhere import crash_everywhere, fault_everywhere
from tidegate.testing.faults import Crash, Fence, LostAnswer, Rebalance
from tidegate.testing.kit import TestKit
from tidegate.testing.run import Run
from tidegate.testing.steps import Step

__all__ = [
    "CheckFailed",
    "Crash",
    "FaultImpossible",
    "FaultMissed",
    "Fence",
    "LostAnswer",
    "NotCaughtUp",
    "Rebalance",
    "Run",
    "Step",
    "TestKit",
    "crash_everywhere",
    "fault_everywhere",
]
