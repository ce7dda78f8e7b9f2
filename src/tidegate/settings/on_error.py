"""What becomes of a record whose handling failed for good, by its name."""

from __future__ import annotations

from enum import StrEnum

from tidegate.core.recovery import DeadLetter, Fail, FailurePolicy, Skip

__all__ = ["OnError"]


class OnError(StrEnum):
    """What becomes of a record whose handling failed for good."""

    FAIL = "fail"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"

    @property
    def policy(self) -> FailurePolicy:
        """The same as the core has it."""
        match self:
            case OnError.FAIL:
                return Fail()
            case OnError.SKIP:
                return Skip()
            case OnError.DEAD_LETTER:
                return DeadLetter()
