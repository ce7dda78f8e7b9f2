"""The steps of the protocol, between which anything may happen."""

from __future__ import annotations

from enum import IntEnum


class Step(IntEnum):
    """What a member does next."""

    CLAIM = 0
    FETCH = 1
    BEGIN = 2
    WRITE = 3
    COMMIT = 4
    ACKNOWLEDGE = 5
    RELEASE = 6
    RECLAIM = 7
