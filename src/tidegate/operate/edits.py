"""An operator's changes to a group: the target of a move, the preview of a change, and its execution."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeAlias, assert_never

from tidegate.core.arguments import Accepts, Amount, argument, convert_arguments, several
from tidegate.core.policies import Earliest, Latest, Start, Timestamp
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition, check_group, check_topic, is_query
from tidegate.core.text import is_text
from tidegate.errors import ChangeRefused, ConfigurationError, PositionsMoved
from tidegate.kafka.cluster import LogEnds, Survey
from tidegate.ledger.ledger import Ledger, Rows

__all__ = [
    "Action",
    "By",
    "Destination",
    "EditPreview",
    "Operator",
    "PausePreview",
    "Shift",
    "Target",
    "TargetArgument",
    "To",
    "destination",
    "note",
    "start_offset",
    "target",
]


@dataclass(frozen=True, slots=True)
class To:
    """Target: this offset."""

    offset: Amount

    def __post_init__(self) -> None:
        convert_arguments(self)


@dataclass(frozen=True, slots=True)
class By:
    """Target: ``count`` offsets forward from the position, or back if negative."""

    count: int

    def __post_init__(self) -> None:
        convert_arguments(self)


Target: TypeAlias = To | By | Earliest | Latest | Timestamp


_MOST_DIGITS = 19  # of a 64-bit offset


def target(text: str) -> Target:
    """Parse a target: ``earliest``, ``latest``, an offset, ``-N`` or ``+N``, or a time with a time zone."""
    text = argument("target", str, text).strip()
    is_relative = text[:1] in {"+", "-"}
    digits = text[1:] if is_relative else text
    if digits.isdecimal():
        if len(digits) > _MOST_DIGITS:
            raise ChangeRefused(f"an offset has {_MOST_DIGITS} digits at most, and this one has {len(digits):,}")
        return By(int(text)) if is_relative else To(int(text))
    try:
        start: Start = argument("target", Start, text)
    except ConfigurationError:
        raise ChangeRefused(
            f"{text!r} is not a position in a log; write an offset, -N or +N relative to the current position, "
            "earliest, latest, or a time with its zone, such as 2026-11-01T00:00:00Z"
        ) from None
    return start


def _target(given: Any) -> Target | None:
    if isinstance(given, (To, By, Earliest, Latest, Timestamp)):
        return given
    return target(given) if is_text(given) else None


TargetArgument: TypeAlias = Annotated[
    Target, Accepts("a Target, or the text of one, such as 'earliest' or '-100'", _target)
]
"""A target as an argument; text is parsed by :func:`target`."""


class Destination(NamedTuple):
    """The new offset of a position; ``None`` if it does not move. ``why`` is the reason for that, or else a warning."""

    offset: int | None
    why: str | None = None


def destination(
    action: Action, row: Position, target: Target, log: LogEnds | None, *, checked: bool, force: bool
) -> Destination:
    """Return where ``target`` is for the position ``row``; raise :class:`ChangeRefused` if it is invalid.

    ``checked`` says whether Kafka was asked for the log. ``force`` allows an offset before the beginning of the log, or
    one that was not checked.
    """
    if log is None:
        return _unchecked(action, row, target, checked=checked, force=force)
    offset, why = _offset(row, target, log)
    if offset > log.log_end:
        raise ChangeRefused(
            f"{row.partition} ends at offset {log.log_end}, so {offset} is beyond it: records that arrive before "
            "that offset would never be read"
        )
    if offset < log.begin and not force:
        raise ChangeRefused(
            f"{row.partition} begins at offset {log.begin}: the records before it were deleted. If {offset} is "
            "forced, the listener's 'out_of_range' decides what happens"
        )
    return _directed(action, row, offset, why)


def _unchecked(action: Action, row: Position, target: Target, *, checked: bool, force: bool) -> Destination:
    if checked:
        raise ChangeRefused(f"Kafka has no {row.partition}; was the topic deleted?")
    if not force or not isinstance(target, (To, By)):
        raise ChangeRefused(
            f"without Kafka, it is not known where the log of {row.partition} begins and ends; an offset can be forced"
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
        case _:
            return start_offset(target, log), None


def start_offset(start: Start, log: LogEnds) -> int:
    """Return where ``start`` is in a log; ``log`` has the offset of its time."""
    match start:
        case Earliest():
            return log.begin
        case Latest():
            return log.stable_end
        case Timestamp():
            return log.stable_end if log.at_time is None else max(log.at_time, log.begin)
        case other:
            assert_never(other)


def _directed(action: Action, row: Position, offset: int, why: str | None) -> Destination:
    at = row.next_offset
    if offset == at:
        return Destination(None, f"is at {at} already")
    if action is Action.REWIND and offset > at:
        return Destination(None, f"is at {at}, before {offset}: moving there is a skip, not a rewind")
    if action is Action.SKIP and offset < at:
        return Destination(None, f"is at {at}, past {offset}: moving there is a rewind, not a skip")
    return Destination(offset, why)


class Action(StrEnum):
    """A change that an operator makes to a group."""

    REWIND = "rewind"
    SKIP = "skip"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Shift:
    """The move of one position from ``old`` to ``new``; ``records`` offsets are read again or skipped.

    The move fences ``owner``, which then continues from the new position.
    """

    topic: str
    partition: int
    old: int
    new: int
    records: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class EditPreview:
    """The preview of a rewind or a skip.

    ``unmoved`` says which positions stay and why; ``warnings`` says what the operator should know before the change.
    """

    action: Action
    group: str
    shifts: tuple[Shift, ...]
    records: int
    owners: tuple[str, ...]
    unmoved: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PausePreview:
    """The preview of a pause or a resume; ``changes`` is false if the group is in that state already."""

    action: Action
    group: str
    changes: bool
    partitions: int
    owners: tuple[str, ...]


_Partitions: TypeAlias = Annotated[Collection[int], several(Amount, "the number of a partition")] | None


class Operator:
    """Creates previews of changes and executes them.

    A preview changes nothing. Its execution sets exactly the new positions that it shows, all or none of them, and only
    if they still move in the same direction.
    """

    def __init__(self, ledger: Ledger[Any], survey: Survey | None) -> None:
        """``survey`` queries the cluster; without it, offsets cannot be checked against the logs."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey: Survey | None = argument("survey", Survey | None, survey)

    def rewind(
        self, group: str, topic: str, target: Target, *, partitions: Collection[int] | None = None, force: bool = False
    ) -> EditPreview:
        """Preview moving positions back, of ``partitions`` or of the whole topic.

        ``force`` allows an offset before the beginning of the log, or one that cannot be checked without Kafka.
        """
        return self._edit(Action.REWIND, group, topic, target, partitions=partitions, force=force)

    def skip(
        self, group: str, topic: str, target: Target, *, partitions: Collection[int] | None = None, force: bool = False
    ) -> EditPreview:
        """Preview moving positions forward over records that will not be read; parameters as for :meth:`rewind`."""
        return self._edit(Action.SKIP, group, topic, target, partitions=partitions, force=force)

    def pause(self, group: str, *, force: bool = False) -> PausePreview:
        """Preview pausing a group; ``force`` allows a group that the ledger does not know yet."""
        return self._pause(Action.PAUSE, group, force)

    def resume(self, group: str) -> PausePreview:
        """Preview resuming a paused group."""
        return self._pause(Action.RESUME, group, False)

    def execute(self, preview: EditPreview, *, user: str, reason: str | None = None) -> EditPreview:
        """Move the positions; return the preview with the old positions as they were at the time of the move.

        Raise :class:`PositionsMoved`, and change nothing, if since the preview a position was deleted, was moved back,
        or has passed its new offset.
        """
        rows: dict[TopicPartition, Position] = {}

        def check(found: Rows) -> None:
            rows.clear()
            rows.update(found)
            for shift in preview.shifts:
                if reason := _moved(preview.action, shift, found.get(_partition(shift))):
                    raise PositionsMoved(
                        f"group {preview.group!r}: {_partition(shift)} {reason}. Nothing was changed; make a new "
                        "preview"
                    )

        offsets = {_partition(shift): shift.new for shift in preview.shifts}
        # The preview looked the offsets up in the current topics. If one was recreated, its positions now belong to the
        # new topic, so its identity is stored with them.
        identities = {} if self._survey is None else self._survey.identities({shift.topic for shift in preview.shifts})
        noted = note(preview.action, user, reason)
        self._ledger.edit(preview.group, offsets, note=noted, check=check, identities=identities)
        done = _shifts({tp: rows[tp] for tp in offsets}, offsets)
        return replace(preview, shifts=done, records=_records(done), owners=_owners(rows.values()))

    def set_paused(self, preview: PausePreview, *, user: str, reason: str | None = None) -> bool:
        """Pause or resume the group; return whether that changed anything."""
        noted = note(preview.action, user, reason)
        match preview.action:
            case Action.PAUSE:
                return self._ledger.pause(preview.group, note=noted)
            case Action.RESUME:
                return self._ledger.resume(preview.group, note=noted)
            case Action.REWIND | Action.SKIP:
                raise ChangeRefused(f"a {preview.action} moves positions; give its preview to execute()")
            case other:
                assert_never(other)

    def _edit(
        self, action: Action, group: str, topic: str, target: Target, *, partitions: Collection[int] | None, force: bool
    ) -> EditPreview:
        check_group(group)
        if is_query(topic):
            raise ChangeRefused(
                f"{topic} is no topic: group {group!r} is a query of Structured Streaming, and Spark decides what its "
                "batches read; Ledger.edit sets its number"
            )
        check_topic(topic)
        target = argument("target", TargetArgument, target)
        partitions = argument("partitions", _Partitions, partitions)
        force = argument("force", bool, force)
        if partitions is not None and not partitions:  # a list that happens to be empty must not move a whole topic
            raise ChangeRefused(f"{topic}: 'partitions' is empty; name partitions, or leave it out for all of them")
        state = self._ledger.read(group)
        chosen = _chosen(state, topic, partitions)
        logs = self._logs(topic, target)
        found: dict[TopicPartition, Destination] = {
            tp: destination(action, row, target, logs.get(tp), checked=self._survey is not None, force=force)
            for tp, row in chosen.items()
        }
        offsets = {tp: each.offset for tp, each in found.items() if each.offset is not None}
        unmoved = tuple(f"{tp} {each.why}" for tp, each in found.items() if each.offset is None)
        if not offsets:
            raise ChangeRefused(f"group {group!r}: there is nothing to {action}: {'; '.join(unmoved[:3])}")
        warnings = [f"{tp} {each.why}" for tp, each in found.items() if each.offset is not None and each.why]
        rows = {tp: chosen[tp] for tp in offsets}
        shifts = _shifts(rows, offsets)
        warnings = [*self._recreated(topic, rows), *warnings]
        return EditPreview(action, group, shifts, _records(shifts), _owners(rows.values()), unmoved, tuple(warnings))

    def _logs(self, topic: str, target: Target) -> dict[TopicPartition, LogEnds]:
        if self._survey is None:
            return {}
        return self._survey.logs([topic], target.at if isinstance(target, Timestamp) else None)

    def _recreated(self, topic: str, rows: Mapping[TopicPartition, Position]) -> list[str]:
        identity = self._survey.identities([topic]).get(topic) if self._survey is not None else None
        if identity is None:
            return []
        other = {part for row in rows.values() if (part := row.identity.conflict(identity))}
        return [
            f"the {part} is not the one that the positions were stored for: those were offsets of another log, and the "
            "number of records is not known"
            for part in sorted(other)
        ]

    def _pause(self, action: Action, group: str, force: bool) -> PausePreview:
        force = argument("force", bool, force)
        state = self._ledger.read(check_group(group))
        if not (state.positions or state.paused or force):
            raise ChangeRefused(f"the ledger has no group {group!r}; `tidegate status` lists those that it has")
        changes = state.paused is (action is Action.RESUME)
        return PausePreview(action, group, changes, len(state.positions), _owners(state.positions.values()))


def _chosen(state: GroupState, topic: str, partitions: Collection[int] | None) -> dict[TopicPartition, Position]:
    stored = {tp: row for tp, row in sorted(state.positions.items()) if tp.topic == topic}
    if not stored:
        topics = ", ".join(sorted({tp.topic for tp in state.positions})) or "none"
        raise ChangeRefused(f"group {state.group!r} has no position in topic {topic!r}; it has positions in: {topics}")
    if missing := set(partitions or ()) - {tp.partition for tp in stored}:
        raise ChangeRefused(f"group {state.group!r} has no position in {topic}[{min(missing)}]")
    return {tp: row for tp, row in stored.items() if partitions is None or tp.partition in partitions}


def _shifts(rows: Mapping[TopicPartition, Position], offsets: Mapping[TopicPartition, int]) -> tuple[Shift, ...]:
    return tuple(
        Shift(*tp, row.next_offset, offsets[tp], abs(offsets[tp] - row.next_offset), row.owner)
        for tp, row in sorted(rows.items())
    )


def _records(shifts: Collection[Shift]) -> int:
    return sum(shift.records for shift in shifts)


def _moved(action: Action, shift: Shift, row: Position | None) -> str | None:
    """Return why a shift is no longer valid; ``None`` if it still is."""
    if row is None:
        return "has no position any more"
    if row.next_offset < shift.old:
        return f"was moved back from {shift.old} to {row.next_offset} meanwhile"
    if action is Action.SKIP and row.next_offset >= shift.new:
        return f"has passed {shift.new} meanwhile and is at {row.next_offset}"
    return None


def _partition(shift: Shift) -> TopicPartition:
    return TopicPartition(shift.topic, shift.partition)


def _owners(rows: Collection[Position]) -> tuple[str, ...]:
    return tuple(sorted({row.owner for row in rows if row.owner is not None}))


def note(what: str, user: str, reason: str | None) -> str:
    """Return the note of a change for the journal."""
    return f"{what} by {user}: {reason}" if reason else f"{what} by {user}"
