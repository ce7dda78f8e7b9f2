"""What has to hold at the end of every schedule, whatever happened in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from tidegate.core.journal import OPEN_FOR, Kind
from tidegate.core.positions import Position
from tidegate.core.records import Record, TopicPartition

from .log import reel
from .scheduler import HASTE
from .store import GROUP, HOLD, Jump

if TYPE_CHECKING:
    from .world import World

_THEN = datetime(1970, 1, 1, tzinfo=UTC)
_LATE = timedelta(seconds=HASTE * 4 * HOLD)  # a commit is stored some time after it was judged


class Violation(NamedTuple):
    """Which invariant was broken (content, journal, jump, report, fence, pause, liveness, error), and how."""

    kind: str
    text: str


def check(world: World) -> Iterator[Violation]:
    """The invariants of the sink and of the journal."""
    store = world.store
    for broken in store.verify(GROUP).breaks:
        yield Violation("journal", str(broken))
    for tp, row in store.read(GROUP).positions.items():
        rows = store.data.get(str(tp), [])
        jumps = store.server.jumps.get(tp, [])
        yield from _unjustified(world, tp, jumps)
        if fault := _content(world, tp, row, rows, jumps):
            yield Violation("content", f"{tp}: {fault}")
        if fault := _written_otherwise(world, tp, rows) or _put_together_otherwise(world, tp):
            yield Violation("journal", f"{tp}: {fault}")
    moved = sum(each.span.records for moves in store.server.moves.values() for each in moves)
    if (coarse := sum(bucket.records for bucket in store.history(GROUP, _THEN))) != moved:
        yield Violation("journal", f"the coarse history has {coarse} records of {moved}")


def _content(world: World, tp: TopicPartition, row: Position, rows: list[object], jumps: list[Jump]) -> str | None:
    """The sink, row by row, is the log below the position: each record once and in order, apart from the jumps.

    Nothing that the journal says about advances is used here.
    """
    at, tape, pending = 0, None, iter(jumps)
    jump = next(pending, None)
    for i in range(len(rows) + 1):
        while jump is not None and jump.rows == i:
            if tape is not None and tape.between(at, jump.entry.start):
                return f"the position was {jump.entry.start}, but the sink had got to {at} only"
            tape = reel(tp, int(jump.identity.topic_id or 0), world.variant)
            at = jump.entry.end
            jump = next(pending, None)
        if tape is None:
            return "there was no starting position"
        if i == len(rows):
            break
        index = tape.below[at]
        expected = tape.records[index] if index < len(tape.records) else None
        if rows[i] != expected:
            return f"row {i} is {_short(rows[i])}, and should be {_short(expected)}"
        at = tape.records[index].offset + 1
    if at > row.next_offset or tape.between(at, row.next_offset):
        return f"the position is {row.next_offset}, but the sink has got to {at}"
    return None


def _written_otherwise(world: World, tp: TopicPartition, rows: list[object]) -> str | None:
    """The sink is what the journalled advances say, one after the other."""
    expected: list[Record] = []
    tape = reel(tp, int(world.store.server.jumps[tp][0].identity.topic_id or 0), world.variant)
    restarts = (jump for jump in world.store.server.jumps[tp] if jump.entry.kind is Kind.EDIT)
    for entry in world.store.journal(GROUP, tp):
        if entry.kind is Kind.ADVANCE:
            records = tape.between(entry.start, entry.end)
            expected += records
            if len(records) != entry.records:
                return f"the journal has {entry.records} records for [{entry.start}, {entry.end}): {len(records)}"
        elif entry.kind is Kind.EDIT:
            tape = reel(tp, int(next(restarts).identity.topic_id or 0), world.variant)
    return None if rows == expected else f"the sink has {len(rows)} rows, the journal says {len(expected)}"


def _put_together_otherwise(world: World, tp: TopicPartition) -> str | None:
    """Each advance of the journal is the advances of one claim, one behind the other, within a minute."""
    moves = iter(world.store.server.moves.get(tp, ()))
    for entry in world.store.journal(GROUP, tp):
        if entry.kind is not Kind.ADVANCE:
            continue
        at, records = entry.start, 0
        while at < entry.end:
            span, claim = next(moves)
            if (span.start, claim.epoch, claim.owner) != (at, entry.epoch, entry.owner):
                return f"entry {entry.seq} stands for {span} by {claim.owner} in epoch {claim.epoch}: {entry}"
            at, records = span.end, records + span.records
        if (at, records) != (entry.end, entry.records):
            return f"entry {entry.seq} should end at {at} with {records} records: {entry}"
        if entry.at is None or entry.since is None or not timedelta(0) <= entry.at - entry.since < OPEN_FOR + _LATE:
            return f"entry {entry.seq} was open for too long: {entry}"
    return f"the journal lacks {left}" if (left := next(moves, None)) else None


def _unjustified(world: World, tp: TopicPartition, jumps: list[Jump]) -> Iterator[Violation]:
    """Positions jump only where an operator, retention or a recreated topic made them."""
    edits = iter(world.edits.get(tp, ()))
    incarnation: str | None = None
    for jump in jumps:
        entry = jump.entry
        if entry.kind is Kind.EDIT and entry.note == "operator":
            if entry.end != next(edits, None):
                yield Violation("jump", f"{tp}: an edit to {entry.end} that no operator made")
        elif entry.kind is Kind.EDIT:
            if incarnation is None or int(jump.identity.topic_id or 0) <= int(incarnation):
                yield Violation("jump", f"{tp}: restarted from incarnation {incarnation} to {jump.identity.topic_id}")
        elif entry.kind is Kind.LOSS and (tp, jump.identity.topic_id, entry.end) not in world.cut_off:
            yield Violation("jump", f"{tp}: offsets {entry.start} to {entry.end} were not lost")
        incarnation = jump.identity.topic_id
    if next(edits, None) is not None:
        yield Violation("jump", f"{tp}: an operator's edit came to nothing")


def _short(row: object) -> str:
    return f"{row.offset} of {row.value!r}" if isinstance(row, Record) else str(row)
