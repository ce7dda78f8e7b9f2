"""Destinations: which offset a target means for one partition, and whether it makes sense."""

from __future__ import annotations

from typing import NamedTuple, assert_never

from tidegate.core.positions import Position
from tidegate.core.start import Earliest, Latest, Timestamp
from tidegate.kafka.survey import LogEnds
from tidegate.operate.errors import ChangeRefused
from tidegate.operate.preview import Action
from tidegate.operate.target import By, Target, To

__all__ = ["Destination", "destination"]


class Destination(NamedTuple):
    """Where a position is to go; ``None`` if it stays, and ``why`` then says why, or else what to mind."""

    offset: int | None
    why: str | None = None


def destination(
    action: Action, row: Position, target: Target, log: LogEnds | None, *, checked: bool, force: bool
) -> Destination:
    """Where ``target`` is for the position ``row``; ``checked`` is whether Kafka was asked about the log."""
    if log is None:
        return _unchecked(action, row, target, checked=checked, force=force)
    offset, why = _offset(row, target, log)
    if offset > log.log_end:
        raise ChangeRefused(
            f"{row.partition} ends at offset {log.log_end}, so {offset} is beyond it: what comes in until there would "
            "never be read"
        )
    if offset < log.begin and not force:
        raise ChangeRefused(
            f"{row.partition} begins at offset {log.begin}: what was before it is gone. If {offset} is forced, the "
            "listener deals with that as its 'out_of_range' says"
        )
    return _directed(action, row, offset, why)


def _unchecked(action: Action, row: Position, target: Target, *, checked: bool, force: bool) -> Destination:
    if checked:
        raise ChangeRefused(f"Kafka has no {row.partition}; was the topic deleted?")
    if not force or not isinstance(target, (To, By)):
        raise ChangeRefused(
            f"without Kafka, nobody knows where the log of {row.partition} begins and ends; an offset can be forced"
        )
    offset = target.offset if isinstance(target, To) else max(0, row.next_offset + target.count)
    return _directed(action, row, offset, "was not compared with its log")


def _offset(row: Position, target: Target, log: LogEnds) -> tuple[int, str | None]:
    match target:
        case To(offset):
            return offset, None
        case By(count):
            wanted = row.next_offset + count
            if count < 0 and wanted < log.begin:
                return log.begin, f"begins at offset {log.begin}, so it cannot go back by {-count}"
            if count > 0 and wanted > log.stable_end:
                return log.stable_end, f"ends at offset {log.stable_end}, so it cannot go forward by {count}"
            return wanted, None
        case Earliest():
            return log.begin, None
        case Latest():
            return log.stable_end, None
        case Timestamp():
            return (log.stable_end if log.at_time is None else max(log.at_time, log.begin)), None
        case other:
            assert_never(other)


def _directed(action: Action, row: Position, offset: int, why: str | None) -> Destination:
    at = row.next_offset
    if offset == at:
        return Destination(None, f"is at {at} already")
    if action is Action.REWIND and offset > at:
        return Destination(None, f"is at {at}, before {offset}: to go there is a skip, not a rewind")
    if action is Action.SKIP and offset < at:
        return Destination(None, f"is at {at}, past {offset}: to go there is a rewind, not a skip")
    return Destination(offset, why)
