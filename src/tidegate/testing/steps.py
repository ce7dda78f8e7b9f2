"""The steps of a listener's work, at which faults can be made to strike."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["IN_TRANSACTION", "ON_A_JOB", "Step"]


class Step(StrEnum):
    """What has just happened when a fault strikes."""

    CLAIMED = "claimed"
    """Partitions were claimed, or claimed again: the ledger has this owner now."""

    POLLED = "polled"
    """Records have come in; nothing was done with them."""

    ADVANCED = "advanced"
    """The transaction has begun and the positions are moved in it; the handler is next."""

    WRITTEN = "written"
    """The handler has returned: everything is written in the open transaction, and COMMIT is next."""

    COMMITTED = "committed"
    """COMMIT was carried out; nobody here knows yet."""

    ACKNOWLEDGED = "acknowledged"
    """The listener knows that it was committed."""

    RELEASED = "released"
    """Partitions were given back."""


IN_TRANSACTION = {Step.ADVANCED, Step.WRITTEN}
"""Here the rows are locked: whoever else wants them waits."""

ON_A_JOB = IN_TRANSACTION | {Step.COMMITTED, Step.ACKNOWLEDGED}
"""Here the polling goes on beside, and is not to be waited for by itself."""
