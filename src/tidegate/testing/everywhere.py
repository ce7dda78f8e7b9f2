"""Runs the same scenario once for each step at which a fault can strike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from tidegate.core.arguments import argument
from tidegate.testing.faults import CheckFailed, Crash, Fault, FaultImpossible, Fence, LostAnswer, Rebalance, Step
from tidegate.testing.kit import TestKit

__all__ = ["crash_everywhere", "fault_everywhere"]

Kind: TypeAlias = Callable[[Step, int], Fault]

_REBALANCES: tuple[Kind, ...] = tuple(
    partial(Rebalance, to_another=to_another, lost=lost) for to_another in (False, True) for lost in (False, True)
)
_SHOWN = 10


def crash_everywhere(make: Callable[[], TestKit], check: Callable[[TestKit], object]) -> list[Fault]:
    """Crash at each step, restart, and check: once for every step that a run without a crash reaches.

    ``make`` returns a kit on an empty database, with the records sent and nothing run. ``check`` raises if the results
    are wrong. Returns the crashes that were tried; raises :class:`CheckFailed`, which names the crashes after which the
    check failed.
    """
    return _everywhere(make, check, [Crash])


def fault_everywhere(make: Callable[[], TestKit], check: Callable[[TestKit], object]) -> list[Fault]:
    """Like :func:`crash_everywhere`, also with fences, rebalances and lost answers, wherever each is possible."""
    return _everywhere(make, check, [Crash, Fence, *_REBALANCES])


def _everywhere(make: Callable[[], TestKit], check: Callable[[TestKit], object], kinds: Sequence[Kind]) -> list[Fault]:
    make = argument("make", Callable[[], TestKit], make)
    check = argument("check", Callable[[TestKit], object], check)
    with make() as kit:
        steps = kit.run().steps
        kit.check()
        check(kit)
    faults = [*_wherever(steps, kinds), *(_lost_answers(steps) if len(kinds) > 1 else ())]
    tried: list[Fault] = []
    failed: dict[Fault, Exception] = {}
    for fault in faults:
        with make() as kit:
            try:
                kit.run(fault, may_miss=True)
                kit.run()
                kit.check()
                check(kit)
            except FaultImpossible:
                continue
            except Exception as error:
                failed[fault] = error
            tried.append(fault)
    if failed:
        raise CheckFailed(_message(failed, len(tried))) from next(iter(failed.values()))
    return tried


def _wherever(reached: Sequence[Step], kinds: Iterable[Kind]) -> Iterator[Fault]:
    """Yield one fault of each kind for each time that a step was reached."""
    for kind in kinds:
        for index, step in enumerate(reached):
            yield kind(step, reached[: index + 1].count(step))


def _lost_answers(reached: Sequence[Step]) -> Iterator[Fault]:
    for turn in range(1, reached.count(Step.COMMITTED) + 1):
        yield LostAnswer(committed=True, turn=turn)
        yield LostAnswer(committed=False, turn=turn)


def _message(failed: dict[Fault, Exception], tried: int) -> str:
    lines = [f"  {fault}: {_first_line(error)}" for fault, error in failed.items()]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"  and {len(lines) - _SHOWN} more"]
    return "\n".join(
        [
            f"the check fails after {len(failed)} of {tried} faults; does the listener do something outside of its "
            "transaction?",
            *lines,
        ]
    )


def _first_line(error: Exception) -> str:
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
