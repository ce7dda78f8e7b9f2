"""Replay one schedule, step by step: ``python -m tests.simulation --seed 17``."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext

from .faults import Tally
from .group import Protocol
from .mutants import MUTANTS, PIPELINE_MUTANTS
from .pipeline import PipelineParts
from .world import run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the schedule")
    parser.add_argument("--pipeline", action="store_true", help="a schedule of a pipeline, not of a group of listeners")
    parser.add_argument("--mutant", help="run it with this fault in the protocol itself")
    options = parser.parse_args()
    mutants = PIPELINE_MUTANTS if options.pipeline else MUTANTS
    if options.mutant and options.mutant not in mutants:
        parser.error(f"--mutant is one of: {', '.join(sorted(mutants))}")
    parts = PipelineParts() if options.pipeline else Protocol()
    trace: list[str] = []
    with mutants[options.mutant].applied() if options.mutant else nullcontext(parts) as applied:
        outcome = run_schedule(options.seed, applied, Tally(), trace)
    print("\n".join(trace))
    print(f"{outcome.steps} steps, settled in {outcome.settled_in}: {dict(outcome.events)}")
    for violation in outcome.violations:
        print(f"{violation.kind}: {violation.text}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
