"""The steps of a process, between which anything may happen."""

from __future__ import annotations

from enum import IntEnum


class Step(IntEnum):
    """What a process does next: a request to the store, the use of its answer, or a poll."""

    CLAIM = 0
    FETCH = 1
    BEGIN = 2
    WRITE = 3
    COMMIT = 4
    ACKNOWLEDGE = 5
    RELEASE = 6
    RECLAIM = 7
    READ = 8
