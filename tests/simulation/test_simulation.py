"""Schedules of faults, a hundred thousand in `make chaos`: nothing lost, twice, out of order, or stuck."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tidegate.app.member import Member
from tidegate.ledger.memory import MemoryLedger

from .faults import Tally
from .group import FAULTS, GroupWorld, Protocol
from .mutants import MUTANTS
from .runner import Summary, run_many
from .store import Store
from .world import run_schedule

SCHEDULES = int(os.environ.get("SCHEDULES", "20000"))
PARTS = 20
SHARE = SCHEDULES / PARTS / 100_000
CORES = os.cpu_count() or 1
MUTANT_SCHEDULES = 2_000
ROOT = Path(__file__).resolve().parents[2]


WAYS_OUT = (
    *("fence", "stood down", "taken back", "claimed again", "went on from the row", "found out"),
    *("unknown outcome", "operator tried again", "stopped"),
)
JOURNALLED = ("start", "claim", "release", "advance", "edit", "loss", "pause", "resume")


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_an_invariant_and_all_that_can_happen_does_so_many_times(part: int) -> None:
    """In parts, so that the workers of a test run share them; a run without workers takes all cores for each part."""
    assert SCHEDULES >= MUTANT_SCHEDULES, "the protocol itself passes the schedules that catch mutants"
    started = time.perf_counter()
    count = SCHEDULES // PARTS
    seeds = range(part * count, (part + 1) * count)
    found = run_many(seeds, 1 if "PYTEST_XDIST_WORKER" in os.environ else CORES, Protocol())
    print(f"\n{time.perf_counter() - started:.0f} s: {found}")
    assert found.schedules == count
    assert found.fewest_steps >= 200
    assert not found.failures, f"\n{found.explain()}"
    assert not found.tally.rare(int(100 * SHARE), FAULTS), f"\n{found.tally}"
    assert [each for each in WAYS_OUT if found.events[each] < int(250 * SHARE)] == [], found.events
    assert [each for each in JOURNALLED if found.events[each] < int(1_000 * SHARE)] == [], found.events


@pytest.mark.parametrize("name", MUTANTS)
def test_a_protocol_with_one_rule_left_out_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    outcome = mutant.caught(MUTANT_SCHEDULES)
    assert outcome is not None, f"no {mutant.caught_by} violation in {MUTANT_SCHEDULES} schedules"
    shown = next(violation for violation in outcome.violations if violation.kind == mutant.caught_by)
    print(f"\n{name}: caught by {mutant.caught_by} in schedule {outcome.seed + 1}: {shown.text}")


def test_a_group_has_at_least_three_members_and_three_partitions() -> None:
    worlds = [GroupWorld(seed, Protocol(), Tally()) for seed in range(200)]
    assert min(len(world.awake) for world in worlds) == 3
    assert min(len(world.logs) for world in worlds) == 3
    assert {world.coordinator.cooperative for world in worlds} == {False, True}


def _digest(seeds: range) -> str:
    """A digest of everything that happens in these schedules."""
    trace: list[str] = []
    for seed in seeds:
        run_schedule(seed, Protocol(), Tally(), trace)
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()


def test_schedules_run_the_member_and_the_ledger_that_ship() -> None:
    protocol = Protocol()
    assert protocol.member is Member
    ours = {name for cls in (Store, MemoryLedger) for name in vars(cls)}
    names = {"_advanced", "_patiently", "_once", "_done_or_fenced"}
    assert names & ours == set(), "retries and fences are the ledger's own"
    assert all(hasattr(MemoryLedger, name) for name in names)


def test_the_same_seed_gives_the_same_trace_again_and_in_another_process() -> None:
    """Texts have other hashes in another process, so that sets of partitions have another order."""
    seeds = range(40)
    digest = _digest(seeds)
    assert _digest(seeds) == digest
    code = f"from tests.simulation.test_simulation import _digest; print(_digest({seeds!r}))"
    for hash_seed in ("1", "2"):
        replayed = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert replayed.stdout.strip() == digest


def test_a_seed_is_replayed_step_by_step_on_the_command_line() -> None:
    trace: list[str] = []
    run_schedule(3, Protocol(), Tally(), trace)
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3"]
    replayed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(trace) >= 100
    assert replayed.stdout.splitlines()[: len(trace)] == trace


def test_all_kinds_of_handlers_are_simulated() -> None:
    assert {GroupWorld(seed, Protocol(), Tally()).kind for seed in range(50)} == {"record", "batch", "pool"}


def test_a_process_that_was_killed_has_no_effect_any_more() -> None:
    """A dead greenlet runs its ``finally`` blocks when the schedule ends: they find a store that takes nothing."""
    for seed in range(20):
        world = GroupWorld(seed, Protocol(), Tally())
        for _ in range(60):
            world.step()
        for process in list(world.awake):
            process.crash()
        rows = dict(world.store.read_now().positions)
        locks = dict(world.server.locks)
        world.scheduler.end()
        assert (dict(world.store.read_now().positions), dict(world.server.locks)) == (rows, locks)


def test_a_failure_names_its_seed_and_how_to_replay_it() -> None:
    with MUTANTS["unconditional update"].applied() as protocol:
        outcomes = [run_schedule(seed, protocol, Tally()) for seed in range(50)]
    summary = Summary(failures=[outcome for outcome in outcomes if outcome.violations])
    assert f"python -m tests.simulation --seed {summary.failures[0].seed}" in summary.explain()
