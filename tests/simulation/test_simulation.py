"""Schedules of faults, a hundred thousand in `make chaos`: nothing lost, twice, out of order, or stuck."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .faults import Tally
from .mutants import MUTANTS
from .runner import Summary, run_many, run_seeds
from .world import Protocol, World, run_schedule

SCHEDULES = int(os.environ.get("SCHEDULES", "20000"))
SHARE = SCHEDULES / 100_000
MUTANT_SCHEDULES = 2_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def all_schedules() -> Summary:
    started = time.perf_counter()
    summary = run_many(SCHEDULES)
    print(f"\n{time.perf_counter() - started:.0f} s: {summary}")
    return summary


def test_no_schedule_breaks_an_invariant(all_schedules: Summary) -> None:
    assert all_schedules.schedules == SCHEDULES
    assert all_schedules.fewest_steps >= 100
    assert not all_schedules.failures, f"\n{all_schedules.explain()}"


def test_each_fault_strikes_at_each_step_at_least_a_hundred_times(all_schedules: Summary) -> None:
    assert not all_schedules.tally.rare(int(100 * SHARE)), f"\n{all_schedules.tally}"


@pytest.mark.parametrize(
    "event",
    ["fence", "stood down", "taken back", "claimed again", "went on from the row", "already done", "unknown outcome"],
)
def test_every_way_out_of_a_fence_is_taken_many_times(all_schedules: Summary, event: str) -> None:
    assert all_schedules.events[event] >= 500 * SHARE, all_schedules.events


@pytest.mark.parametrize("kind", ["start", "claim", "release", "advance", "edit", "loss", "pause", "resume"])
def test_everything_that_is_journalled_happens_many_times(all_schedules: Summary, kind: str) -> None:
    assert all_schedules.events[kind] >= 1_000 * SHARE, all_schedules.events


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_with_one_rule_left_out_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    outcome = mutant.caught(MUTANT_SCHEDULES)
    assert outcome is not None, f"no {mutant.caught_by} violation in {MUTANT_SCHEDULES} schedules"
    shown = next(violation for violation in outcome.violations if violation.kind == mutant.caught_by)
    print(f"\n{name}: caught by {mutant.caught_by} in schedule {outcome.seed + 1}: {shown.text}")


def test_the_protocol_itself_passes_the_schedules_that_catch_mutants() -> None:
    summary = run_seeds(range(MUTANT_SCHEDULES))
    assert not summary.failures, f"\n{summary.explain()}"


def test_a_group_has_at_least_three_members_and_three_partitions() -> None:
    worlds = [World(seed, Protocol(), Tally()) for seed in range(200)]
    assert min(len(world.awake) for world in worlds) == 3
    assert min(len(world.logs) for world in worlds) == 3
    assert {world.coordinator.cooperative for world in worlds} == {False, True}


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_the_same_seed_gives_the_same_trace_in_another_process(seed: int) -> None:
    trace: list[str] = []
    run_schedule(seed, Protocol(), Tally(), trace)
    replayed = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(trace) >= 100
    assert replayed.stdout.splitlines()[: len(trace)] == trace


def test_a_failure_names_its_seed_and_how_to_replay_it() -> None:
    with MUTANTS["unconditional update"].applied() as protocol:
        outcomes = [run_schedule(seed, protocol, Tally()) for seed in range(50)]
    summary = Summary(failures=[outcome for outcome in outcomes if outcome.violations])
    assert f"python -m tests.simulation --seed {summary.failures[0].seed}" in summary.explain()
