"""A test kit for listeners: it runs them in the test's own process, with a real ledger and, by default, no broker."""

from __future__ import annotations

from tidegate.testing.everywhere import crash_everywhere, fault_everywhere
from tidegate.testing.faults import (
    CheckFailed,
    Crash,
    FaultImpossible,
    FaultMissed,
    Fence,
    LostAnswer,
    NotCaughtUp,
    Rebalance,
    Step,
)
from tidegate.testing.kit import TestKit
from tidegate.testing.run import Run

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
