"""Schedules of faults for pipelines: drivers that crash and are replaced, tasks that die, repeat and overtake."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time

import pytest

from tidegate.spark import driver as drivers
from tidegate.spark.claims import ClaimedTopics
from tidegate.spark.driver import Driver
from tidegate.spark.executor import ExecutorCommit
from tidegate.spark.loop import Loop, MicroBatches

from .faults import Tally
from .mutants import PIPELINE_MUTANTS
from .pipeline import FAULTS, MODES, Batches, PipelineParts, PipelineWorld
from .runner import Summary, run_many
from .test_simulation import CORES, JOURNALLED, ROOT, SCHEDULES
from .world import run_schedule

PARTS = 4
MUTANT_SCHEDULES = 1_000
COUNT = max(SCHEDULES // 4, MUTANT_SCHEDULES) // PARTS
"""Schedules of each part; together, the pipeline itself passes all that catch mutants."""
OFTEN = (
    *("fence", "already done", "found out", "unknown outcome", "claimed again", "went on from the row"),
    *("attempt failed", "job failed", "speculated", "overtaken", "row refused", "looked at the table"),
    *("replaced", "topic recreated", "operator tried again"),
    *("task committed", "task already done", "task fenced", "task unavailable", "task refused", "task outdated"),
    *("zombie committed", "zombie already done", "zombie fenced"),
)
"""What has to happen at least once in a hundred schedules, or they would prove nothing about it."""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_of_a_pipeline_breaks_an_invariant_and_all_that_can_happen_does_so_many_times(part: int) -> None:
    started = time.perf_counter()
    seeds = range(part * COUNT, (part + 1) * COUNT)
    found = run_many(seeds, 1 if "PYTEST_XDIST_WORKER" in os.environ else CORES, PipelineParts())
    print(f"\n{time.perf_counter() - started:.0f} s: {found}")
    assert found.schedules == COUNT
    assert found.fewest_steps >= PipelineWorld.length
    assert not found.failures, f"\n{found.explain()}"
    assert not found.tally.rare(COUNT // 1_000, FAULTS), f"\n{found.tally}"
    assert [each for each in (*OFTEN, *JOURNALLED) if found.events[each] < COUNT // 100] == [], found.events


@pytest.mark.parametrize("name", PIPELINE_MUTANTS)
def test_a_pipeline_with_one_rule_left_out_is_caught(name: str) -> None:
    mutant = PIPELINE_MUTANTS[name]
    outcome = mutant.caught(MUTANT_SCHEDULES)
    assert outcome is not None, f"no {mutant.caught_by} violation in {MUTANT_SCHEDULES} schedules"
    shown = next(violation for violation in outcome.violations if violation.kind == mutant.caught_by)
    print(f"\n{name}: caught by {mutant.caught_by} in schedule {outcome.seed + 1}: {shown.text}")


def test_schedules_run_the_loop_the_claims_the_driver_and_the_task_that_ship() -> None:
    parts = PipelineParts()
    assert (parts.loop, parts.claims, parts.driver) == (Loop, ClaimedTopics, Driver)
    assert drivers.ExecutorCommit is ExecutorCommit
    assert MicroBatches.run is Batches.run


def test_executors_and_drivers_commit_in_different_schedules() -> None:
    assert {PipelineWorld(seed, PipelineParts(), Tally()).mode for seed in range(50)} == set(MODES)


def _digest(seeds: range) -> str:
    """A digest of everything that happens in these schedules."""
    trace: list[str] = []
    for seed in seeds:
        run_schedule(seed, PipelineParts(), Tally(), trace)
    return hashlib.sha256("\n".join(trace).encode()).hexdigest()


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    """Texts have other hashes in another process, so that sets of partitions have another order."""
    seeds = range(40)
    code = f"from tests.simulation.test_pipelines import _digest; print(_digest({seeds!r}))"
    replayed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert replayed.stdout.strip() == _digest(seeds)


def test_a_seed_of_a_pipeline_is_replayed_step_by_step_on_the_command_line() -> None:
    trace: list[str] = []
    run_schedule(3, PipelineParts(), Tally(), trace)
    command = [sys.executable, "-m", "tests.simulation", "--seed", "3", "--pipeline"]
    replayed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(trace) >= 100
    assert replayed.stdout.splitlines()[: len(trace)] == trace


def test_a_failure_names_its_seed_and_how_to_replay_it() -> None:
    with PIPELINE_MUTANTS["part taken for the whole"].applied() as parts:
        outcome = run_schedule(0, parts, Tally())
    summary = Summary(failures=[outcome], option=parts.option)
    assert "python -m tests.simulation --seed 0 --pipeline" in summary.explain()
