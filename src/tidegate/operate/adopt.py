"""Positions from other tools, and back to them: the preview of an adoption or a hand-back, and its execution."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from tidegate.core.arguments import Accepts, Label, argument, several
from tidegate.core.journal import Kind
from tidegate.core.policies import Earliest, Start, Timestamp
from tidegate.core.positions import GroupState, Identity, Position
from tidegate.core.records import TopicPartition, check_group, check_topic, is_query
from tidegate.errors import BrokerUnavailable, ChangeRefused, PositionsMoved
from tidegate.kafka.cluster import LogEnds, Survey
from tidegate.ledger.ledger import Ledger, Rows
from tidegate.operate.checkpoint import Found
from tidegate.operate.edits import note, start_offset

__all__ = [
    "AdoptPreview",
    "AdoptedPosition",
    "Adoption",
    "Doubt",
    "HandBack",
    "HandBackPreview",
    "HandedPosition",
    "InDoubt",
    "KafkaGroup",
    "Origin",
]


class InDoubt(StrEnum):
    """What becomes of records that the other tool may have written: they are read again, or skipped."""

    REPEAT = "repeat"
    SKIP = "skip"


class Origin(StrEnum):
    """Where an adopted position comes from: from the other tool, or from the start strategy."""

    STORED = "stored"
    START = "start"


@dataclass(frozen=True, slots=True)
class AdoptedPosition:
    """The position of one partition: ``old`` in the ledger so far, ``new`` after the adoption."""

    topic: str
    partition: int
    old: int | None
    new: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Doubt:
    """Records of which it is not known whether they were written: from ``start`` up to, not including, ``end``."""

    topic: str
    partition: int
    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class AdoptPreview:
    """The preview of an adoption.

    ``exact``: the records in doubt are exactly these; otherwise they are these at most. ``done``: the group has these
    positions already. ``warnings`` says what the operator should know before.
    """

    group: str
    title: str
    positions: tuple[AdoptedPosition, ...]
    doubts: tuple[Doubt, ...]
    records_in_doubt: int
    exact: bool
    in_doubt: InDoubt | None
    start: str
    done: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandedPosition:
    """The position of one partition for Kafka: ``old`` is the offset that the Kafka group has committed so far."""

    topic: str
    partition: int
    old: int | None
    new: int


@dataclass(frozen=True, slots=True)
class HandBackPreview:
    """The preview of a hand-back to a Kafka group. ``done``: it was carried out already."""

    group: str
    to: str
    positions: tuple[HandedPosition, ...]
    owners: tuple[str, ...]
    paused: bool
    done: bool
    warnings: tuple[str, ...] = ()


@runtime_checkable
class PositionSource(Protocol):
    """Where another tool keeps its positions."""

    def found(self, topics: Collection[str]) -> Found:
        """Return what is stored for ``topics``, or for all; raise :class:`ChangeRefused` if it cannot be adopted."""

    def check_stopped(self) -> None:
        """Raise :class:`ChangeRefused` if the tool may still run."""


_Source: TypeAlias = Annotated[
    PositionSource,
    Accepts(
        "a KafkaGroup or a Checkpoint",
        lambda given: given if isinstance(given, PositionSource) and not isinstance(given, type) else None,
    ),
]


class KafkaGroup:
    """The committed offsets of a consumer group without members."""

    def __init__(self, survey: Survey, group: str, what: str = "Kafka group") -> None:
        self._survey: Survey = argument("survey", Survey, survey)
        self._group = check_group(group)
        self._what: str = argument("what", Label, what)

    def check_stopped(self) -> None:
        """Raise if the group has members."""
        check_empty(self._survey, self._group)

    def found(self, topics: Collection[str]) -> Found:
        """Return the group's offsets; the consumer may have handled records behind them."""
        self.check_stopped()
        counts = self._survey.partitions(topics or [each.topic for each in self._survey.topics()])
        if missing := sorted(set(topics) - counts.keys()):
            raise ChangeRefused(f"Kafka has no topic {missing[0]!r}")
        wanted = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        offsets = self._survey.committed(self._group, wanted)
        if lacking := sorted(set(topics) - {tp.topic for tp in offsets}):
            raise ChangeRefused(f"Kafka's group {self._group!r} has no offset of topic {lacking[0]!r}")
        if not offsets:
            raise ChangeRefused(
                f"Kafka's group {self._group!r} has no offsets: it never committed, its offsets expired, or its name "
                "is another one; `tidegate groups list` lists the groups"
            )
        return Found(offsets, None, f"{self._what} {self._group!r}")


def check_empty(survey: Survey, group: str) -> None:
    """Raise :class:`ChangeRefused` if a consumer group of Kafka has members."""
    described = survey.group(group)
    if described is not None and (described.members or described.state not in ("empty", "dead")):
        members = ", ".join(f"{each.client_id} on {each.host}" for each in described.members[:3])
        raise ChangeRefused(
            f"Kafka's group {group!r} is {described.state} and has {len(described.members)} members"
            f"{f' ({members})' if members else ''}: stop all of its consumers first. One that was killed stays a "
            "member until its session times out"
        )


class _AdoptPlan(NamedTuple):
    preview: AdoptPreview
    identities: Mapping[str, Identity]
    found: Found


_Topics = Annotated[Collection[str], several(str, "the name of a topic")]


class Adoption:
    """Takes the positions of another tool over into a group of the ledger.

    The execution looks everything up again. It stores all positions in one transaction of the ledger, or none.
    """

    def __init__(
        self,
        ledger: Ledger[Any],
        survey: Survey,
        source: PositionSource,
        into: str,
        *,
        topics: Collection[str] = (),
        start: Start | None = None,
        in_doubt: InDoubt | str | None = None,
        replace: bool = False,
        force: bool = False,
    ) -> None:
        """``start`` is where partitions begin of which the other tool has no offset. ``replace`` allows that the group
        has positions in these topics; ``force`` allows an offset before the beginning of its log."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey: Survey = argument("survey", Survey, survey)
        self._source: PositionSource = argument("source", _Source, source)
        self._into = check_group(into)
        self._topics = [check_topic(topic) for topic in sorted(set(argument("topics", _Topics, topics)))]
        self._start: Start = argument("start", Start | None, start) or Earliest()
        self._in_doubt: InDoubt | None = argument("in_doubt", InDoubt | None, in_doubt)
        self._replace: bool = argument("replace", bool, replace)
        self._force: bool = argument("force", bool, force)

    def preview(self) -> AdoptPreview:
        """Show which positions would be stored, and which records are in doubt. Changes nothing."""
        return self._plan().preview

    def execute(self, preview: AdoptPreview, *, user: str, reason: str | None = None) -> AdoptPreview:
        """Store the positions that the preview shows.

        Raise :class:`PositionsMoved`, and change nothing, if the other tool's positions or the group's have changed
        since. A second execution finds that it was done.
        """
        plan = self._plan()
        if plan.preview.done:
            return plan.preview
        self._source.check_stopped()
        if plan.preview.exact and plan.preview.doubts and self._in_doubt is None:
            raise ChangeRefused(
                f"{plan.preview.title}: {plan.preview.records_in_doubt} records are in doubt; look whether they are in "
                "the table, and choose --in-doubt repeat or --in-doubt skip"
            )
        if _compared(plan.preview) != _compared(preview):
            raise PositionsMoved(
                f"{preview.title} or group {self._into!r} has changed since the preview. Nothing was changed; make a "
                "new preview"
            )
        if self._survey.identities(plan.identities) != plan.identities:
            raise PositionsMoved("a topic was recreated meanwhile. Nothing was changed; make a new preview")
        offsets = {TopicPartition(each.topic, each.partition): each.new for each in preview.positions}
        doubt = f", in doubt: {self._in_doubt or InDoubt.REPEAT}" if preview.doubts else ""
        self._ledger.edit(
            self._into,
            offsets,
            note=note(f"adopted from {preview.title}{doubt}", user, reason),
            check=lambda rows: self._check(preview, rows),
            identities=plan.identities,
        )
        return replace(preview, warnings=(*preview.warnings, *self._changed_since(plan.found)))

    def _check(self, preview: AdoptPreview, rows: Rows) -> None:
        """Raise if a row is not the one of the preview. Called with the rows locked."""
        for each in preview.positions:
            row = rows.get(TopicPartition(each.topic, each.partition))
            if (None if row is None else row.next_offset) != each.old or (row is not None and row.owner is not None):
                raise PositionsMoved(
                    f"group {self._into!r} has got another position in {each.topic}[{each.partition}] since the preview"
                    ". Nothing was changed; make a new preview"
                )

    def _changed_since(self, found: Found) -> Iterator[str]:
        """Yield what the other tool has done while the positions were stored: nothing prevents it from starting."""
        again = f"look at it before group {self._into!r} runs"
        try:
            if self._source.found(self._topics).offsets != found.offsets:
                yield f"{found.title} has moved on while its positions were adopted: it was started again; {again}"
        except (ChangeRefused, BrokerUnavailable) as error:
            yield f"{error}; that is since the positions were adopted: {again}"

    def _plan(self) -> _AdoptPlan:
        found = self._source.found(self._topics)
        if found.ends is None and self._in_doubt is InDoubt.SKIP:
            raise ChangeRefused(
                f"{found.title}: offsets of a group do not tell how far its consumer has written, so records that it "
                "has not written would be skipped; --in-doubt skip is for checkpoints"
            )
        topics = self._topics or sorted({tp.topic for tp in (*found.offsets, *(found.ends or ()))})
        identities = self._survey.identities(topics)
        state = self._ledger.read(self._into)
        self._refuse_others(state)
        logs = self._logs(topics)
        positions, doubts, unread = [], [], []
        for tp, log in sorted(logs.items()):
            origin, offset, doubt = self._place(tp, log, found)
            row = state.positions.get(tp)
            positions.append(AdoptedPosition(*tp, None if row is None else row.next_offset, offset, origin))
            if doubt is not None:
                doubts.append(doubt)
            if origin is Origin.START:
                starts = f"it starts at {_word(self._start)}, offset {offset}"
                unread.append(f"{found.title} has no offset of {tp}: {starts}")
        if missing := sorted({*found.offsets, *(found.ends or ())} - logs.keys()):
            raise ChangeRefused(
                f"{found.title} has an offset of {missing[0]}, which this Kafka does not have: is it the right "
                "cluster, or was the topic deleted? Choose the others with --topic"
            )
        stored = {tp: row for tp, row in sorted(state.positions.items()) if tp.topic in topics}
        done = self._is_done(positions, stored, identities)
        if stored and not (done or self._replace):
            tp, row = next(iter(stored.items()))
            raise ChangeRefused(
                f"group {self._into!r} has positions in {tp.topic} already, such as offset {row.next_offset} of {tp}. "
                "Choose another group, or let them be overwritten with --replace"
            )
        preview = AdoptPreview(
            self._into,
            found.title,
            tuple(positions),
            tuple(doubts),
            sum(each.records for each in doubts),
            found.ends is not None,
            self._in_doubt,
            _word(self._start),
            done,
            (*found.warnings, *unread, *self._remarks(state, stored, logs)),
        )
        return _AdoptPlan(preview, identities, found)

    def _place(self, tp: TopicPartition, log: LogEnds, found: Found) -> tuple[Origin, int, Doubt | None]:
        """Return where a position comes from, its offset, and which records are in doubt."""
        begin = found.offsets.get(tp)
        if begin is None and (found.ends is None or tp not in found.ends):
            return Origin.START, start_offset(self._start, log), None
        if begin is None:  # a partition that was added: its first batch begins at the beginning
            begin = log.begin
        end = log.log_end if found.ends is None else found.ends.get(tp, begin)
        offset = end if found.ends is not None and self._in_doubt is InDoubt.SKIP else begin
        if max(begin, end) > log.log_end:
            raise ChangeRefused(
                f"{found.title} is at offset {max(begin, end)} of {tp}, which ends at {log.log_end} here: is it the "
                "right cluster, or was the topic recreated?"
            )
        if offset < log.begin and not self._force:
            raise ChangeRefused(
                f"{found.title} is at offset {offset} of {tp}, which begins at {log.begin}: Kafka has deleted the "
                f"records {offset} to {log.begin - 1}. With --force the position is stored all the same, and "
                "'out_of_range' of the listener decides what happens"
            )
        return Origin.STORED, offset, Doubt(*tp, begin, end, end - begin) if end > begin else None

    def _logs(self, topics: Collection[str]) -> dict[TopicPartition, LogEnds]:
        counts = self._survey.partitions(topics)
        if missing := sorted(set(topics) - counts.keys()):
            raise ChangeRefused(f"Kafka has no topic {missing[0]!r}: is it the right cluster, or was it deleted?")
        logs = self._survey.logs(topics, self._start.at if isinstance(self._start, Timestamp) else None)
        for topic, count in counts.items():
            for number in range(count):
                if (topic, number) not in logs:
                    raise BrokerUnavailable(f"{topic}[{number}] has no leader now, so its offsets cannot be checked")
        return logs

    def _refuse_others(self, state: GroupState) -> None:
        _refuse_query(state)
        if owners := _owners(state):
            raise ChangeRefused(
                f"group {self._into!r} has an owner, {owners[0]}: stop its consumers first, or choose another group"
            )

    def _is_done(
        self, positions: Collection[AdoptedPosition], stored: Rows, identities: Mapping[str, Identity]
    ) -> bool:
        """Return whether the group has these positions: then an earlier execution has stored them."""
        return bool(stored) and all(
            each.old is not None
            and (each.old == each.new or each.origin is Origin.START)
            and stored[TopicPartition(each.topic, each.partition)].identity == identities.get(each.topic)
            for each in positions
        )

    def _remarks(self, state: GroupState, stored: Rows, logs: Collection[TopicPartition]) -> Iterator[str]:
        for tp in sorted(stored.keys() - set(logs)):
            yield f"group {self._into!r} has a position in {tp}, which Kafka does not have; it stays"
        if others := sorted({tp.topic for tp in state.positions} - {tp.topic for tp in logs}):
            yield f"group {self._into!r} has positions in other topics, which stay as they are: {', '.join(others[:5])}"
        if state.paused:
            yield f"group {self._into!r} is paused; `tidegate resume` lets it run"


class HandBack:
    """Gives the positions of a group back to a consumer group of Kafka.

    The execution pauses the group, commits the offsets to Kafka, and journals that. Each step may be repeated.
    """

    def __init__(
        self, ledger: Ledger[Any], survey: Survey, group: str, to: str, *, replace: bool = False, fence: bool = False
    ) -> None:
        """``replace`` allows that the Kafka group moves back; ``fence`` that owners are fenced, which may be gone."""
        self._ledger: Ledger[Any] = argument("ledger", Ledger, ledger)
        self._survey: Survey = argument("survey", Survey, survey)
        self._group = check_group(group)
        self._to = check_group(to)
        self._replace: bool = argument("replace", bool, replace)
        self._fence: bool = argument("fence", bool, fence)

    def preview(self) -> HandBackPreview:
        """Show which offsets the Kafka group would get. Changes nothing."""
        state = self._ledger.read(self._group)
        _refuse_query(state)
        if not state.positions:
            raise ChangeRefused(f"the ledger has no positions of group {self._group!r}")
        owners = _owners(state)
        if owners and not self._fence:
            raise ChangeRefused(
                f"group {self._group!r} has an owner, {owners[0]}: stop its consumers first. If that process is gone, "
                "--fence takes its partitions away from it"
            )
        check_empty(self._survey, self._to)
        self._check_logs(state)
        kept = self._survey.committed(self._to, list(state.positions))
        for tp, row in sorted(state.positions.items()):
            if kept.get(tp, 0) > row.next_offset and not self._replace:
                raise ChangeRefused(
                    f"Kafka's group {self._to!r} is at offset {kept[tp]} of {tp}, behind the position of group "
                    f"{self._group!r}, {row.next_offset}: its consumer would repeat what it has read. If it shall, "
                    "give --replace"
                )
        positions = tuple(
            HandedPosition(*tp, kept.get(tp), row.next_offset) for tp, row in sorted(state.positions.items())
        )
        done = state.paused and not owners and all(each.old == each.new for each in positions) and self._is_noted(state)
        return HandBackPreview(
            self._group, self._to, positions, owners, state.paused, done, tuple(self._left_out(state, kept))
        )

    def execute(self, preview: HandBackPreview, *, user: str, reason: str | None = None) -> HandBackPreview:
        """Pause the group, commit its positions to Kafka, and journal that.

        If a step fails or its answer is lost, the group stays paused; run it again. Raise :class:`PositionsMoved` if
        a position has changed since the preview.
        """
        if preview.done:
            return preview
        noted = note(self._words, user, reason)
        self._ledger.pause(self._group, note=noted)
        if preview.owners:
            # The edit fences them. Who claims after it reads that the group is paused before handling a record.
            self._edit({tp: row.next_offset for tp, row in self._ledger.read(self._group).positions.items()}, noted)
        try:
            now = self.preview()  # nobody moves a position after this, because the group is paused
        except ChangeRefused as error:
            raise ChangeRefused(
                f"{error}. Group {self._group!r} is paused now; `tidegate resume` lets it run"
            ) from None
        if _handed(now) != _handed(preview) and not (preview.owners and self._fence):
            raise PositionsMoved(
                f"group {self._group!r} has moved on since the preview, and is paused now. Kafka's group was not "
                "changed; make a new preview, or resume the group"
            )
        offsets = {TopicPartition(each.topic, each.partition): each.new for each in now.positions}
        self._survey.commit(self._to, offsets, noted)
        self._edit(offsets, noted)
        return replace(now, owners=preview.owners)

    @property
    def _words(self) -> str:
        return f"handed back to Kafka group {self._to!r}"

    def _edit(self, offsets: Mapping[TopicPartition, int], noted: str) -> None:
        """Store the same positions again, which fences their owners and journals the hand-back."""

        def check(rows: Rows) -> None:
            for tp, offset in offsets.items():
                if tp not in rows or rows[tp].next_offset != offset:
                    raise PositionsMoved(
                        f"group {self._group!r}: the position of {tp} was changed meanwhile. The group is paused; look "
                        "at it, and hand it back again"
                    )

        self._ledger.edit(self._group, offsets, note=noted, check=check)

    def _is_noted(self, state: GroupState) -> bool:
        """Return whether the last entry of each position is this hand-back."""
        last = (next(self._ledger.newest(self._group, tp), None) for tp in state.positions)
        return all(
            entry is not None and entry.kind is Kind.EDIT and (entry.note or "").startswith(self._words)
            for entry in last
        )

    def _check_logs(self, state: GroupState) -> None:
        topics = {tp.topic for tp in state.positions}
        identities, logs = self._survey.identities(topics), self._survey.logs(topics)
        for tp, row in sorted(state.positions.items()):
            if (log := logs.get(tp)) is None:
                raise ChangeRefused(f"group {self._group!r} has a position in {tp}, which this Kafka does not have")
            if conflict := row.identity.conflict(identities.get(tp.topic, Identity())):
                raise ChangeRefused(
                    f"the position of group {self._group!r} in {tp} belongs to another {conflict}: its offset means "
                    "nothing here"
                )
            if not log.begin <= row.next_offset <= log.log_end:
                raise ChangeRefused(
                    f"group {self._group!r} is at offset {row.next_offset} of {tp}, whose log has {log.begin} to "
                    f"{log.log_end}: a consumer would go where its auto.offset.reset says. Move the position first, "
                    "with `tidegate positions`"
                )

    def _left_out(self, state: GroupState, kept: Mapping[TopicPartition, int]) -> Iterator[str]:
        counts = self._survey.partitions({tp.topic for tp in state.positions})
        for topic, count in counts.items():
            for number in range(count):
                if (tp := TopicPartition(topic, number)) not in state.positions:
                    yield f"group {self._group!r} has no position in {tp}: a consumer starts where its settings say"
        for tp in sorted(kept):
            if kept[tp] > state.positions[tp].next_offset:
                yield f"Kafka's group {self._to!r} moves back in {tp}, from {kept[tp]}: its consumer repeats records"


def _compared(preview: AdoptPreview) -> tuple[object, ...]:
    """Return what may not change between preview and execution; where partitions start may, with the end of a log."""
    return (
        preview.title,
        preview.exact and preview.doubts,
        [
            (each.topic, each.partition, each.old, each.origin, each.origin is Origin.START or each.new)
            for each in preview.positions
        ],
    )


def _handed(preview: HandBackPreview) -> list[tuple[str, int, int]]:
    return [(each.topic, each.partition, each.new) for each in preview.positions]


def _refuse_query(state: GroupState) -> None:
    if any(is_query(tp.topic) for tp in state.positions):
        raise ChangeRefused(
            f"group {state.group!r} is a query of Structured Streaming: its position is the number of a batch, not an "
            "offset; choose another group"
        )


def _owners(state: GroupState) -> tuple[str, ...]:
    found: Collection[Position] = state.positions.values()
    return tuple(sorted({row.owner for row in found if row.owner is not None}))


def _word(start: Start) -> str:
    return f"time {start.at}" if isinstance(start, Timestamp) else type(start).__name__.lower()
