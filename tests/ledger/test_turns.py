"""When a group takes turns: a pure matter of conflicts and time."""

from __future__ import annotations

from tidegate.ledger.transaction import Turns


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def spell_of(turns: Turns, clock: Clock) -> float:
    """How long turns are taken from now on."""
    began = clock.now
    while turns.taken_by("billing"):
        clock.now += 0.5
    return clock.now - began


def test_a_group_takes_turns_after_a_conflict_and_others_do_not() -> None:
    clock = Clock()
    turns = Turns(clock)
    assert not turns.taken_by("billing")
    turns.conflicted("billing", in_turn=False)
    assert turns.taken_by("billing")
    assert not turns.taken_by("shipping")
    assert spell_of(turns, clock) == 10.0


def test_spells_become_longer_while_conflicts_go_on_and_begin_short_again() -> None:
    clock = Clock()
    turns = Turns(clock)
    spells = []
    for _ in range(7):
        turns.conflicted("billing", in_turn=False)
        spells.append(spell_of(turns, clock))
    assert spells == [10, 20, 40, 80, 120, 120, 120]
    clock.now += 121
    turns.conflicted("billing", in_turn=False)
    assert spell_of(turns, clock) == 10


def test_conflicts_of_several_threads_begin_one_spell() -> None:
    clock = Clock()
    turns = Turns(clock)
    for _ in range(3):
        turns.conflicted("billing", in_turn=False)
    assert spell_of(turns, clock) == 10


def test_turns_that_are_no_help_are_not_taken_for_longer() -> None:
    clock = Clock()
    turns = Turns(clock)
    for _ in range(3):
        turns.conflicted("billing", in_turn=False)
        clock.now += 1
        turns.conflicted("billing", in_turn=True)
        assert spell_of(turns, clock) == 9


def test_a_group_whose_turn_did_not_come_does_without() -> None:
    turns = Turns(Clock())
    turns.conflicted("billing", in_turn=False)
    turns.missed("billing")
    assert not turns.taken_by("billing")
    turns.conflicted("billing", in_turn=True)  # the same attempt
    assert not turns.taken_by("billing")


def test_whether_others_take_turns_is_looked_at_now_and_then_as_long_as_no_conflict_tells() -> None:
    clock = Clock()
    turns = Turns(clock)
    assert [turns.should_look("billing"), turns.should_look("billing")] == [True, False]
    assert turns.should_look("shipping")
    clock.now += 0.5
    assert turns.should_look("billing")
    turns.conflicted("billing", in_turn=False)
    assert spell_of(turns, clock) == 10
    clock.now += 100
    assert not turns.should_look("billing")
    clock.now += 20
    assert turns.should_look("billing")
