"""Tries: what is known of records before their transaction, from an earlier one or from a pool."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.records import TopicPartition
from tidegate.core.recovery import Park, StepOver

__all__ = ["NO_TRIES", "Computed", "Done", "Tried", "Tries"]


class Done(NamedTuple):
    """The record was processed, by a handler whose work nobody can undo: it is not handed to it again."""


class Computed(NamedTuple):
    """A pool has run the handler: this is what the transaction is to write."""

    writes: Any


class Tried(NamedTuple):
    """What is known of one record: the attempts that failed, and what was settled about it, if anything was.

    What is settled holds, and is carried out by the transaction that commits; otherwise two bad records of a batch
    would each begin anew whenever the other one waits.
    """

    failed: int
    settled: Computed | Done | StepOver | Park | None = None


Tries: TypeAlias = Mapping[tuple[TopicPartition, int], Tried]
"""By partition and offset. They go with their batch: whatever drops or commits it forgets them."""

NO_TRIES: Tries = MappingProxyType({})
