"""Replay one schedule, step by step: ``python -m tests.simulation --seed 17``."""

from __future__ import annotations

import argparse
import sys

from .faults import Tally
from .mutants import MUTANTS
from .world import Protocol, run_schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="the schedule")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="run it with this fault in the protocol itself")
    options = parser.parse_args()
    trace: list[str] = []
    if options.mutant:
        with MUTANTS[options.mutant].applied() as protocol:
            outcome = run_schedule(options.seed, protocol, Tally(), trace)
    else:
        outcome = run_schedule(options.seed, Protocol(), Tally(), trace)
    print("\n".join(trace))
    print(f"{outcome.steps} steps, settled in {outcome.settled_in}: {dict(outcome.events)}")
    for violation in outcome.violations:
        print(f"{violation.kind}: {violation.text}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
