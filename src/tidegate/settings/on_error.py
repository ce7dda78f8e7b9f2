"""What becomes of a record whose handling failed for good, by its name."""

from __future__ import annotations

from enum import StrEnum

from tidegate.core.arguments import argument
from tidegate.core.recovery import FailurePolicy

__all__ = ["OnError"]


class OnError(StrEnum):
    """What becomes of a record whose handling failed for good."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"

    @property
    def policy(self) -> FailurePolicy:
        """The same as the core has it."""
        policy: FailurePolicy = argument("on_error", FailurePolicy, self.value)
        return policy
