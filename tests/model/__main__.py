"""Check the model: ``python -m tests.model``, with ``--mutants`` its mutants too, with ``--deep`` the longest check."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .checks import CHECKS, DEEP
from .mutants import MUTANTS
from .tlc import Checked, check


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--mutants", action="store_true", help="also check that each mutant is caught")
    parser.add_argument("--deep", action="store_true", help="also check two faults together with an edit")
    options = parser.parse_args()
    jobs: dict[str, tuple[Callable[[], Checked], str | None]] = {}
    for config in (DEEP, *CHECKS) if options.deep else CHECKS:
        jobs[config] = partial(check, config), None
    for name, mutant in MUTANTS.items() if options.mutants else ():
        jobs[f"mutant: {name}"] = mutant.check, mutant.violates
    started = time.monotonic()
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {name: pool.submit(run) for name, (run, _) in jobs.items()}
        for name, future in running.items():
            checked, expected = future.result(), jobs[name][1]
            verdict = "holds" if checked.violated is None else f"{checked.violated} is violated"
            print(f"{name:<50} {checked.states:>8,} states {checked.seconds:>6.1f} s   {verdict}", flush=True)
            if checked.violated != expected:
                failed += 1
                print(checked.output)
    print(f"{len(jobs)} checks in {time.monotonic() - started:.0f} s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
