"""Previews: what a change would do, shown before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Action", "EditPreview", "PausePreview", "Shift"]


class Action(StrEnum):
    """What an operator does to a group."""

    REWIND = "rewind"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Shift:
    """One position that is to move from ``old`` to ``new``: ``records`` offsets are read again, or stepped over.

    ``owner`` is fenced by it, and goes on from the new position.
    """

    topic: str
    partition: int
    old: int
    new: int
    records: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class EditPreview:
    """Positions that are to be moved by hand; ``unmoved`` and ``warnings`` are sentences about what to mind."""

    action: Action
    group: str
    shifts: tuple[Shift, ...]
    records: int
    owners: tuple[str, ...]
    unmoved: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PausePreview:
    """A group that is to be paused or resumed; ``changes`` is whether it is not so already."""

    action: Action
    group: str
    changes: bool
    partitions: int
    owners: tuple[str, ...]
