"""What one member may read and commit."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate.core.assignment import (
    Assignment,
    Claiming,
    ClaimPartitions,
    Command,
    DropBuffers,
    PausePartitions,
    Reading,
    Reclaiming,
    ReclaimPartitions,
    ReleaseClaims,
    ResumePartitions,
    SeekTo,
    StoodDown,
)
from tidegate.core.batches import Batch
from tidegate.core.positions import GroupState, Position
from tidegate.core.records import Record, Records, TopicPartition
from tidegate.core.work import Claim, Span

A, B, C = (TopicPartition("orders", number) for number in range(3))
SESSION = 10.0


def claim(tp: TopicPartition, position: int = 5, epoch: int = 1, owner: str = "me") -> Claim:
    return Claim("billing", tp, position, epoch, owner)


def row(tp: TopicPartition, epoch: int = 1, owner: str | None = "me", offset: int = 5) -> Position:
    return Position(tp, offset, epoch, owner, None, 1)


def group(*rows: Position, paused: bool = False) -> GroupState:
    return GroupState("billing", paused, {row.partition: row for row in rows})


def reading(*partitions: TopicPartition) -> Assignment:
    """An assignment that reads these partitions from offset 5 on."""
    assignment = Assignment(SESSION, Random(1))
    assignment.assigned(partitions)
    assignment.claimed({tp: claim(tp) for tp in partitions})
    return assignment


def batch(assignment: Assignment, tp: TopicPartition, start: int = 5, end: int = 8) -> Batch:
    return Batch(assignment.generation, Span(tp, start, end), ())


def one(commands: list[Command], kind: type) -> Command:
    (found,) = [command for command in commands if isinstance(command, kind)]
    return found


def received(assignment: Assignment, records: list[Record], since: int) -> tuple[list[Record], list[Command]]:
    """What of these records is used, and what it leads to."""
    runs, commands = assignment.received(Records.of(records).runs, since)
    return [record for run in runs for record in run], commands


def test_what_is_assigned_is_claimed_and_cannot_be_read_before() -> None:
    assignment = Assignment(SESSION, Random(1))
    assert assignment.assigned([B, A]) == [ClaimPartitions((A, B))]
    assert assignment.state(A) == Claiming()
    assert not assignment.accepts(Record(*A, 5), assignment.generation)
    assert not list(assignment.reading())


def test_reading_begins_where_the_claim_says() -> None:
    assignment = Assignment(SESSION, Random(1))
    assignment.assigned([A, B])
    commands = assignment.claimed({A: claim(A, 5), B: claim(B, 7)})
    assert commands == [SeekTo(A, 5, 1), SeekTo(B, 7, 2)]
    assert assignment.state(B) == Reading(claim(B, 7), 7, 2)


def test_what_is_assigned_already_is_not_claimed_again() -> None:
    assignment = reading(A)
    assert assignment.assigned([A, B]) == [ClaimPartitions((B,))]
    assert assignment.assigned([A, B]) == []


def test_a_claim_that_was_not_answered_is_asked_for_again() -> None:
    assignment = reading(A)
    assert assignment.tick(0) == []
    assignment.assigned([B, C])
    assert assignment.tick(0) == assignment.tick(1) == [ClaimPartitions((B, C))]


def test_a_claim_of_what_is_not_assigned_any_more_is_given_back() -> None:
    assignment = Assignment(SESSION, Random(1))
    assignment.assigned([A, B])
    assignment.lost([A])
    assert assignment.claimed({A: claim(A), B: claim(B)}) == [SeekTo(B, 5, 1), ReleaseClaims({A: claim(A)})]
    assert assignment.partitions == [B]


def test_a_record_is_used_if_its_partition_is_claimed_and_its_offset_not_below_the_position() -> None:
    assignment = reading(A)
    records = [Record(*A, 4), Record(*A, 5), Record(*B, 5), Record(*A, 9)]
    assert [assignment.accepts(record, assignment.generation) for record in records] == [False, True, False, True]
    assert received(assignment, records, assignment.generation) == ([Record(*A, 5), Record(*A, 9)], [])


def test_a_record_fetched_before_reading_began_anew_would_hide_those_in_front_of_it() -> None:
    assignment = reading(A)
    since = assignment.generation
    assignment.revoked([A])
    assignment.assigned([A])
    assignment.claimed({A: claim(A, 3, epoch=2)})
    assert not assignment.accepts(Record(*A, 7), since)
    assert not assignment.reads_since(A, since)
    assert received(assignment, [Record(*A, 7), Record(*A, 3)], since) == ([], [SeekTo(A, 3, 2)])
    assert received(assignment, [Record(*A, 3)], assignment.generation) == ([Record(*A, 3)], [])


def test_a_batch_holds_until_its_stretch_of_reading_ends() -> None:
    assignment = reading(A, B)
    mine = Batch(1, Span(A, 5, 8), ())
    assert assignment.holds(mine)
    assert assignment.claims([mine, Batch(0, Span(C, 0, 1), ())]) == {A: claim(A)}
    assignment.fenced([A])
    assert not assignment.holds(mine)
    assignment.reclaimed({A: claim(A)}, {}, 0)
    assert not assignment.holds(mine), "the same position under another generation"
    assert assignment.holds(batch(assignment, A))


def test_a_commit_moves_the_position_of_what_is_read_and_of_nothing_else() -> None:
    assignment = reading(A, B)
    generation = assignment.generation
    assignment.revoked([B])
    assignment.committed([Span(A, 5, 8), Span(B, 5, 8)])
    assert assignment.state(A) == Reading(claim(A), 8, 1)
    assert assignment.state(B) is None
    assignment.committed([Span(A, 5, 8)])
    assert assignment.state(A) == Reading(claim(A), 8, 1)
    assert assignment.generation == generation


def test_a_revocation_drops_and_releases_only_what_is_revoked() -> None:
    assignment = reading(A, B)
    assert assignment.revoked([A, C]) == [DropBuffers((A,)), ReleaseClaims({A: claim(A)})]
    assert assignment.partitions == [B]


def test_what_is_lost_is_dropped_and_never_released() -> None:
    assignment = reading(A, B)
    assert assignment.lost([A]) == [DropBuffers((A,))]
    assert assignment.partitions == [B]


def test_what_another_owner_has_is_not_released() -> None:
    assignment = reading(A)
    assignment.fenced([A])
    assignment.reclaimed({}, {A: "other"}, 0)
    assert assignment.revoked([A]) == [DropBuffers((A,))]


def test_a_fenced_partition_is_stopped_and_looked_at() -> None:
    assignment = reading(A, B)
    assert assignment.fenced([A, C]) == [
        DropBuffers((A,)),
        PausePartitions((A,)),
        ReclaimPartitions({A: claim(A)}, take=False),
    ]
    assert assignment.state(A) == Reclaiming(claim(A), take=False)
    assert assignment.fenced([A]) == []
    assert assignment.tick(0) == [ReclaimPartitions({A: claim(A)}, take=False)]


def test_what_is_mine_or_free_goes_on_from_the_row() -> None:
    assignment = reading(A)
    assignment.fenced([A])
    assert assignment.reclaimed({A: claim(A, 9)}, {}, 0) == [SeekTo(A, 9, 2), ResumePartitions((A,))]
    assert assignment.tick(math.inf) == []


def test_what_another_owner_has_is_taken_back_after_a_session_timeout_and_jitter() -> None:
    assignment = reading(A)
    assignment.fenced([A])
    assert assignment.reclaimed({}, {A: "other"}, now=100.0) == []
    state = assignment.state(A)
    assert isinstance(state, StoodDown)
    assert 110.0 <= state.until < 115.0
    assert assignment.tick(state.until - 0.01) == []
    assert assignment.tick(state.until) == [ReclaimPartitions({A: claim(A)}, take=True)]
    assert assignment.tick(state.until) == [ReclaimPartitions({A: claim(A)}, take=True)], "until it is answered"
    assert assignment.reclaimed({A: claim(A, 7, 9, "me again")}, {}, 120.0)[0] == SeekTo(A, 7, 2)


def test_jitter_differs_between_members_and_not_between_runs() -> None:
    def until(seed: int) -> float:
        assignment = Assignment(SESSION, Random(seed))
        assignment.assigned([A])
        assignment.claimed({A: claim(A)})
        assignment.fenced([A])
        assignment.reclaimed({}, {A: "other"}, 0)
        state = assignment.state(A)
        assert isinstance(state, StoodDown)
        return state.until

    assert until(1) == until(1) != until(2)


def test_what_is_revoked_while_stood_down_is_not_taken_back() -> None:
    assignment = reading(A)
    assignment.fenced([A])
    assignment.reclaimed({}, {A: "other"}, 0)
    assignment.revoked([A])
    assert assignment.tick(math.inf) == []


def test_an_owner_that_is_idle_notices_an_edit() -> None:
    assignment = reading(A, B)
    commands = assignment.observed(group(row(A), row(B, epoch=2, owner=None, offset=0)))
    assert one(commands, ReclaimPartitions) == ReclaimPartitions({B: claim(B)}, take=False)
    assert isinstance(assignment.state(A), Reading)


def test_an_owner_that_is_idle_notices_that_its_claim_is_gone() -> None:
    assignment = reading(A)
    assert one(assignment.observed(group(row(A, owner=None))), ReclaimPartitions)


def test_rows_read_before_the_last_claim_say_nothing() -> None:
    assignment = Assignment(SESSION, Random(1))
    assignment.assigned([A])
    assignment.claimed({A: claim(A, epoch=4)})
    assert assignment.observed(group(row(A, epoch=3, owner="other"))) == []


def test_a_row_that_was_deleted_is_claimed_anew() -> None:
    assignment = reading(A)
    assert assignment.observed(group()) == [DropBuffers((A,)), PausePartitions((A,)), ClaimPartitions((A,))]
    assert assignment.tick(0) == [ClaimPartitions((A,))]


def test_a_paused_group_stops_reading_and_goes_on_when_it_is_resumed() -> None:
    assignment = reading(A, B)
    rows = row(A), row(B)
    assert assignment.observed(group(*rows, paused=True)) == [PausePartitions((A, B))]
    assert assignment.paused
    assert assignment.observed(group(*rows, paused=True)) == []
    assert assignment.observed(group(*rows)) == [ResumePartitions((A, B))]
    assert not assignment.paused


def test_what_is_claimed_while_the_group_is_paused_stays_stopped() -> None:
    assignment = reading(A)
    assignment.observed(group(row(A), paused=True))
    assignment.assigned([B])
    assert assignment.claimed({B: claim(B)}) == [SeekTo(B, 5, 2), PausePartitions((B,))]
    assignment.fenced([A])
    commands = assignment.reclaimed({A: claim(A)}, {}, 0)
    assert not [command for command in commands if isinstance(command, ResumePartitions)]


def test_a_skip_or_a_loss_begins_reading_anew_behind_it() -> None:
    assignment = reading(A)
    held = batch(assignment, A)
    assert assignment.moved([Span(A, 5, 20), Span(B, 0, 1)]) == [DropBuffers((A,)), SeekTo(A, 20, 2)]
    assert not assignment.holds(held)
    assert assignment.moved([Span(A, 5, 20)]) == []


def test_batches_that_were_dropped_although_they_held_are_read_again() -> None:
    assignment = reading(A)
    held = batch(assignment, A)
    assert assignment.discarded([A, B]) == [DropBuffers((A,)), SeekTo(A, 5, 2)]
    assert not assignment.holds(held)


PARTITIONS = st.sets(st.sampled_from([A, B, C]), min_size=1)


class AnyOrder(RuleBasedStateMachine):
    """Whatever is said in whatever order: a position is read only under the newest claim, and nothing stays unasked."""

    def __init__(self) -> None:
        super().__init__()
        self.assignment = Assignment(SESSION, Random(1))
        self.now = 0.0
        self.epoch = 0
        self.assigned: set[TopicPartition] = set()
        self.generations: set[int] = set()

    def fresh(self, partitions: set[TopicPartition]) -> dict[TopicPartition, Claim]:
        self.epoch += 1
        return {tp: claim(tp, self.epoch, self.epoch, f"owner {self.epoch}") for tp in partitions}

    @rule(partitions=PARTITIONS)
    def assign(self, partitions: set[TopicPartition]) -> None:
        self.assignment.assigned(partitions)
        self.assigned |= partitions

    @rule(partitions=PARTITIONS, lost=st.booleans())
    def take_away(self, partitions: set[TopicPartition], lost: bool) -> None:
        commands = self.assignment.lost(partitions) if lost else self.assignment.revoked(partitions)
        assert not (lost and any(isinstance(command, ReleaseClaims) for command in commands))
        self.assigned -= partitions

    @rule(partitions=PARTITIONS)
    def claim(self, partitions: set[TopicPartition]) -> None:
        commands = self.assignment.claimed(self.fresh(partitions))
        stray = [tp for command in commands if isinstance(command, ReleaseClaims) for tp in command.claims]
        assert set(stray) == partitions - self.assigned

    @rule(partitions=PARTITIONS)
    def fence(self, partitions: set[TopicPartition]) -> None:
        self.assignment.fenced(partitions)

    @rule(mine=PARTITIONS, others=PARTITIONS)
    def answer(self, mine: set[TopicPartition], others: set[TopicPartition]) -> None:
        self.assignment.reclaimed(self.fresh(mine - others), dict.fromkeys(others, "other"), self.now)

    @rule(partitions=PARTITIONS, paused=st.booleans(), epoch=st.integers(0, 9))
    def observe(self, partitions: set[TopicPartition], paused: bool, epoch: int) -> None:
        self.assignment.observed(group(*(row(tp, epoch, None) for tp in partitions), paused=paused))

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def every_assigned_partition_is_read_or_asked_for_or_waits(self) -> None:
        assert set(self.assignment.partitions) == self.assigned
        due: set[TopicPartition] = set()
        for command in self.assignment.tick(self.now):
            assert isinstance(command, ClaimPartitions | ReclaimPartitions)
            due |= set(command.partitions if isinstance(command, ClaimPartitions) else command.claims)
        for tp in self.assigned:
            state = self.assignment.state(tp)
            assert (tp in due) == isinstance(state, Claiming | Reclaiming)
            if isinstance(state, StoodDown):
                assert self.now < state.until <= self.now + 1.5 * SESSION

    @invariant()
    def generations_are_never_shared(self) -> None:
        generations = [state.generation for _, state in self.assignment.reading()]
        assert len(set(generations)) == len(generations)
        assert all(generation <= self.assignment.generation for generation in generations)


TestAnyOrder = pytest.mark.filterwarnings("default")(AnyOrder.TestCase)
