"""What a running app prints: what it connects to, how far it is, what it waits for, and a summary at its end."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from tidegate.app.health import Vitals
from tidegate.core.masks import masked
from tidegate.core.records import TopicPartition
from tidegate.observe.events import (
    Claimed,
    Committed,
    DeadLettered,
    Event,
    LagSeen,
    Observer,
    Observers,
    Rebalanced,
    Skipped,
)
from tidegate.observe.log import LoggingObserver, StderrHandler, log_by_default

__all__ = ["GroupFigures", "GroupPlan", "Reporter", "RunFigures"]

_log = logging.getLogger("tidegate")
_LOG_EVERY = 10.0  # seconds between two lines of progress
_SAY_AFTER = 2.0  # seconds of waiting before it is reported
_LOOK = 0.25  # seconds between two looks at the members
_WINDOW = 10.0  # seconds that the rate of the live view is averaged over


@dataclass
class GroupFigures:
    """What a group has done in this process, and how far it is."""

    records: int = 0
    dead_letters: int = 0
    skipped: int = 0
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def lag(self) -> int:
        """The records between the positions and the ends of the logs, as far as these are known."""
        return sum(max(0, end - self.positions[tp]) for tp, end in self.ends.items() if tp in self.positions)


class RunFigures:
    """An observer that keeps the figures of each group; any thread may send events."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.groups = {group: GroupFigures() for group in groups}
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Add an event to the figures of its group."""
        with self._lock:
            self._take(self.groups.setdefault(event.group, GroupFigures()), event)

    @staticmethod
    def _take(group: GroupFigures, event: Event) -> None:
        match event:
            case Claimed():
                group.positions.update(zip(event.partitions, event.positions, strict=True))
            case Committed():
                if not event.already_done:
                    group.records += sum(span.records for span in event.spans)
                group.positions.update((span.partition, span.end) for span in event.spans)
            case LagSeen():
                group.positions[event.partition] = event.position
                group.ends[event.partition] = event.end
            case DeadLettered():
                group.dead_letters += 1
            case Skipped():
                group.skipped += event.span.records if event.kind == "skip" else event.span.end - event.span.start
                if event.kind == "loss":
                    group.positions[event.span.partition] = event.span.end
            case Rebalanced() if event.kind != "assigned":
                for tp in event.partitions:
                    group.positions.pop(tp, None)
                    group.ends.pop(tp, None)


class GroupPlan(NamedTuple):
    """A group that the app runs: its name, a description of its topics and what is done with them, its timeout."""

    group: str
    topics: str
    into: str
    session_timeout: float


class Reporter:
    """Context manager around a run: logs where it connects, its progress, what it waits for, and a summary.

    ``vitals`` returns the snapshots of the members. ``obstacle`` returns why a group may have no partitions; it may ask
    the broker, so it is called on the reporter's own thread.
    """

    def __init__(
        self,
        observers: Observers,
        plans: Sequence[GroupPlan],
        where: str,
        vitals: Callable[[], Sequence[Vitals]],
        obstacle: Callable[[GroupPlan], str | None],
        *,
        is_live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observers = observers
        self._plans = plans
        self._where = where
        self._vitals = vitals
        self._obstacle = obstacle
        self._is_live = is_live
        self._clock = clock
        self._figures = RunFigures(plan.group for plan in plans)
        self._waits = {plan.group: _Wait(clock()) for plan in plans}
        self._step: tuple[str, float] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._report, name="tidegate-report", daemon=True)
        self._live: Any = None

    def __enter__(self) -> Self:
        self._handler = log_by_default()
        theirs = next((each for each in self._observers if isinstance(each, LoggingObserver)), None)
        self._logging = theirs or LoggingObserver()
        self._added: list[Observer] = [self._figures] if theirs else [self._logging, self._figures]
        for observer in self._added:
            self._observers.add(observer)
        self._began = self._since = self._clock()
        self._before: dict[str, int] = {}
        for plan in self._plans:
            _log.info("group %r: %s %s; %s", plan.group, plan.topics, plan.into, self._where)
        if self._is_live:
            self._live = _live_view(self._plans, self._figures, self.waits_for, self._clock)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(5)
        if self._live is not None:
            self._live.close()
        for observer in self._added:
            self._observers.remove(observer)
        self._logging.flush()
        if (
            kind is None
            or not issubclass(kind, Exception)
            or any(each.records for each in self._figures.groups.values())
        ):
            self._sum_up()
        if self._handler is not None:
            _log.removeHandler(self._handler)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Mark a step of the start that may have to wait for ``what``."""
        self._step = what, self._clock()
        try:
            yield
        finally:
            self._step = None

    def waits_for(self, group: str) -> str | None:
        """Return what a group waits for, if it was reported."""
        wait = self._waits.get(group)
        return None if wait is None else wait.told

    def _report(self) -> None:
        told: str | None = None
        while not self._done.wait(_LOOK):
            now = self._clock()
            step = self._step
            if step is not None and now - step[1] >= _SAY_AFTER and step[0] != told:
                told = step[0]
                _log.warning("waiting for %s", masked(told))
            elif step is None and told is not None:
                _log.info("no longer waiting for %s", masked(told))
                told = None
            if step is None:
                self._look_for_waits(now)
            if now - self._since >= _LOG_EVERY:
                self._tell_progress(now)

    def _look_for_waits(self, now: float) -> None:
        reading: set[str] = set()
        away: dict[str, Mapping[str, str]] = {}
        for vitals in self._vitals():
            if vitals.positions or vitals.unclaimed:
                reading.add(vitals.group)
            if vitals.away:
                away[vitals.group] = vitals.away
        for plan in self._plans:
            wait = self._waits[plan.group]
            if plan.group in reading or plan.group in away:  # an outage has its own event
                if wait.told is not None and plan.group in reading:
                    _log.info("group %r: it has partitions after %.1f s", plan.group, now - wait.since)
                self._waits[plan.group] = _Wait(now)
            elif wait.told is None and now - wait.since >= _SAY_AFTER and now >= wait.ask_at:
                wait.ask_at = now + _SAY_AFTER
                if (obstacle := self._obstacle(plan)) is not None and not self._done.is_set():
                    wait.told = obstacle
                    _log.warning("group %r: waiting: %s", plan.group, masked(obstacle))

    def _tell_progress(self, now: float) -> None:
        seconds, self._since = now - self._since, now
        if self._live is not None:
            return
        for group, figures in self._figures.groups.items():
            fresh = figures.records - self._before.get(group, 0)
            self._before[group] = figures.records
            lag = figures.lag
            if fresh or lag:
                _log.info(
                    "group %r: %s records in %.0f s, %s a second, %s in all; lag %s",
                    *(group, f"{fresh:,}", seconds, f"{fresh / seconds:,.0f}", f"{figures.records:,}", f"{lag:,}"),
                )

    def _sum_up(self) -> None:
        seconds = self._clock() - self._began
        for group, figures in self._figures.groups.items():
            rest = [f"{figures.dead_letters:,} dead letters"] if figures.dead_letters else []
            rest += [f"{figures.skipped:,} skipped"] if figures.skipped else []
            _log.info(
                "group %r: ended after %.1f s: %s records, %s a second%s",
                *(group, seconds, f"{figures.records:,}", f"{figures.records / max(seconds, 0.001):,.0f}"),
                "".join(f", {each}" for each in rest),
            )


@dataclass
class _Wait:
    """Since when a group has no partitions, and what has been reported about it."""

    since: float
    ask_at: float = 0.0
    told: str | None = None


def _live_view(
    plans: Sequence[GroupPlan],
    figures: RunFigures,
    waits_for: Callable[[str], str | None],
    clock: Callable[[], float],
) -> Any | None:
    """Return a live view if standard error is a terminal, this process logs to it by default, and Rich is installed."""
    handler = next(
        (each for each in [*_log.handlers, *logging.getLogger().handlers] if type(each) is StderrHandler), None
    )
    if handler is None or not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console  # noqa: PLC0415 - comes with Typer; only a terminal needs it
        from rich.live import Live  # noqa: PLC0415
    except ImportError:
        return None
    return LiveRun(handler, Console(stderr=True), Live, figures, plans=plans, waits_for=waits_for, clock=clock)


class LiveRun:
    """The figures of the groups on a terminal, refreshed in place. Log lines appear above them."""

    def __init__(
        self,
        handler: StderrHandler,
        console: Any,
        live: Callable[..., Any],
        figures: RunFigures,
        *,
        plans: Sequence[GroupPlan],
        waits_for: Callable[[str], str | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plans = plans
        self._figures = figures
        self._waits_for = waits_for
        self._clock = clock
        self._began = clock()
        self._recent: dict[str, deque[tuple[float, int]]] = {plan.group: deque() for plan in plans}
        self._handler = handler
        handler.console = console
        self._live = live(console=console, get_renderable=self.drawn, refresh_per_second=4)
        self._live.start()

    def drawn(self) -> Any:
        """Return the current figures for Rich to draw."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        now = self._clock()
        grid = Table.grid(padding=(0, 3))
        for plan in self._plans:
            figures = self._figures.groups[plan.group]
            waits = self._waits_for(plan.group)
            count = len(figures.positions)
            state = Text(f"waiting: {waits}", style="yellow") if waits else Text(f"{count} partitions", style="dim")
            letters = figures.dead_letters
            grid.add_row(
                Text.assemble((plan.group, "bold"), ("  " + plan.topics, "dim")),
                _figure("records", f"{figures.records:,}"),
                _figure("a second", f"{self._rate(plan.group, figures.records, now):,.0f}"),
                _figure("lag", f"{figures.lag:,}"),
                _figure("dead letters", f"{letters:,}", alarming=True) if letters else Text(""),
                state,
            )
        return grid

    def _rate(self, group: str, records: int, now: float) -> float:
        recent = self._recent[group]
        recent.append((now, records))
        while recent[0][0] < now - _WINDOW:
            recent.popleft()
        since, before = recent[0]
        return (records - before) / max(now - since, 1.0)

    def close(self) -> None:
        """Leave the last figures on the screen."""
        self._live.stop()
        self._handler.console = None


def _figure(name: str, value: str, *, alarming: bool = False) -> Any:
    from rich.text import Text  # noqa: PLC0415

    return Text.assemble((f"{value} ", "bold yellow" if alarming else "bold"), (name, "dim"))
