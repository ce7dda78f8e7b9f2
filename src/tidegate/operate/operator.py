"""The operator: changes to a group, as previews first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeAlias, assert_never

from tidegate.core.arguments import Amount, argument, several
from tidegate.core.names import check_group, check_topic
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import TopicPartition
from tidegate.core.start import Timestamp
from tidegate.kafka.survey import LogEnds, Survey
from tidegate.ledger.base import Ledger, Rows
from tidegate.operate.destination import Destination, destination
from tidegate.operate.errors import ChangeRefused, PositionsMoved
from tidegate.operate.preview import Action, EditPreview, PausePreview, Shift
from tidegate.operate.target import Target, TargetArgument

__all__ = ["Operator"]


_Partitions: TypeAlias = Annotated[Collection[int], several(Amount, "the number of a partition")]


class Operator:
    """Makes previews of changes, and carries them out.

    A preview changes nothing. What is carried out is exactly what it shows: the new positions in it, all or none of
    them, and only if that still moves them in the same direction.
    """

    def __init__(self, ledger: Ledger[Any], survey: Survey | None) -> None:
        """``survey``: the cluster, without which offsets cannot be checked against the logs."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey: Survey | None = argument("survey", Survey | None, survey)

    def rewind(
        self, group: str, topic: str, target: Target, *, partitions: Collection[int] = (), force: bool = False
    ) -> EditPreview:
        """What it would mean to move positions back: those of ``partitions``, or of the whole topic.

        ``force`` allows a position before the beginning of the log, or one that cannot be checked without Kafka.
        """
        return self._edit(Action.REWIND, group, topic, target, partitions=partitions, force=force)

    def skip(
        self, group: str, topic: str, target: Target, *, partitions: Collection[int] = (), force: bool = False
    ) -> EditPreview:
        """What it would mean to move positions forward, past records that will not be read."""
        return self._edit(Action.SKIP, group, topic, target, partitions=partitions, force=force)

    def pause(self, group: str, *, force: bool = False) -> PausePreview:
        """What it would mean to pause a group; ``force`` also pauses one that the ledger does not know yet."""
        return self._pause(Action.PAUSE, group, force)

    def resume(self, group: str) -> PausePreview:
        """What it would mean to let a paused group go on."""
        return self._pause(Action.RESUME, group, False)

    def execute(self, preview: EditPreview, *, user: str, reason: str | None = None) -> EditPreview:
        """Move the positions; returns the preview with the positions as they were at that moment.

        Raises :class:`PositionsMoved`, and changes nothing, if one of them was moved back by someone else meanwhile, or
        is not on the same side of its new place any more.
        """
        rows: dict[TopicPartition, Position] = {}

        def check(found: Rows) -> None:
            rows.clear()
            rows.update(found)
            for shift in preview.shifts:
                if reason := _moved(preview.action, shift, found.get(_partition(shift))):
                    raise PositionsMoved(
                        f"group {preview.group!r}: {_partition(shift)} {reason}. Nothing was changed; look at a new "
                        "preview"
                    )

        offsets = {_partition(shift): shift.new for shift in preview.shifts}
        # The offsets were looked up in these topics: the position of one that was recreated is the new one's from here.
        identities = {} if self._survey is None else self._survey.identities({shift.topic for shift in preview.shifts})
        note = _note(preview.action, user, reason)
        self._ledger.edit(preview.group, offsets, note=note, check=check, identities=identities)
        done = _shifts({tp: rows[tp] for tp in offsets}, offsets)
        return replace(preview, shifts=done, records=_records(done), owners=_owners(rows.values()))

    def set_paused(self, preview: PausePreview, *, user: str, reason: str | None = None) -> bool:
        """Pause or resume the group; whether that changed anything."""
        note = _note(preview.action, user, reason)
        match preview.action:
            case Action.PAUSE:
                return self._ledger.pause(preview.group, note=note)
            case Action.RESUME:
                return self._ledger.resume(preview.group, note=note)
            case Action.REWIND | Action.SKIP:
                raise ChangeRefused(f"a {preview.action} moves positions; give its preview to execute()")
            case other:
                assert_never(other)

    def _edit(
        self, action: Action, group: str, topic: str, target: Target, *, partitions: Collection[int], force: bool
    ) -> EditPreview:
        check_group(group)
        check_topic(topic)
        target = argument("target", TargetArgument, target)
        partitions = argument("partitions", _Partitions, partitions)
        force = argument("force", bool, force)
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


def _chosen(state: GroupState, topic: str, partitions: Collection[int]) -> dict[TopicPartition, Position]:
    stored = {tp: row for tp, row in sorted(state.positions.items()) if tp.topic == topic}
    if not stored:
        topics = ", ".join(sorted({tp.topic for tp in state.positions})) or "none"
        raise ChangeRefused(f"group {state.group!r} has no position in topic {topic!r}; it has positions in: {topics}")
    if missing := set(partitions) - {tp.partition for tp in stored}:
        raise ChangeRefused(f"group {state.group!r} has no position in {topic}[{min(missing)}]")
    return {tp: row for tp, row in stored.items() if not partitions or tp.partition in partitions}


def _shifts(rows: Mapping[TopicPartition, Position], offsets: Mapping[TopicPartition, int]) -> tuple[Shift, ...]:
    return tuple(
        Shift(*tp, row.next_offset, offsets[tp], abs(offsets[tp] - row.next_offset), row.owner)
        for tp, row in sorted(rows.items())
    )


def _records(shifts: Collection[Shift]) -> int:
    return sum(shift.records for shift in shifts)


def _moved(action: Action, shift: Shift, row: Position | None) -> str | None:
    """Why a shift is not what it was when it was previewed; ``None`` if it is."""
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


def _note(action: Action, user: str, reason: str | None) -> str:
    return f"{action} by {user}: {reason}" if reason else f"{action} by {user}"
