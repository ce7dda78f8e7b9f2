"""Running and checking a pipeline from the command line: the part of the commands that needs Spark."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from types import FrameType, TracebackType
from typing import Any, Protocol, Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidegate.observe import Observer
from tidegate.settings import PipelineSettings
from tidegate.spark.doctor import checked
from tidegate.spark.pipeline import configured, opened
from tidegate.spark.report import BatchReport, Report

__all__ = [
    "LiveProgress",
    "LoggedProgress",
    "Progress",
    "check_pipeline",
    "progress_for",
    "run_pipeline",
    "run_until_stopped",
]


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger("tidegate")
T = TypeVar("T")


def run_until_stopped(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run ``work`` in a thread while the main thread handles signals. On a signal, call ``stop``, which asks it to end.

    In the main thread, a Spark context would replace our handler for SIGINT. The thread is a daemon so that an error
    here, such as a closed terminal, ends the process without waiting for ``work``.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # the main thread raises it
            failed.append(error)

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        _log.info(
            "stopping on %s: finishing the work in progress; send it again to stop at once", signal.Signals(number).name
        )
        stop()

    before: dict[int, Any] = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        thread = threading.Thread(target=run, name="tidegate-work", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failed:
        raise failed[0]
    return done[0]


_LOG_EVERY = 10.0  # seconds between two log lines
_WINDOW = 10.0  # seconds that the rate is averaged over
_RECENT = 32  # batches whose rates are drawn as bars
_BARS = "▁▂▃▄▅▆▇█"


class Progress(Protocol):
    """Shows the progress of micro-batches as they are reported."""

    def __call__(self, batch: BatchReport) -> None:
        """Add a finished micro-batch."""

    def __enter__(self) -> Self:
        """Begin to show progress."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and leave the last figures on the screen."""


def progress_for(console: Console, group: str, what: str) -> Progress:
    """Return live progress for a terminal, logged progress otherwise."""
    return LiveProgress(console, group, what) if console.is_terminal else LoggedProgress(group)


class LoggedProgress:
    """Logs the sums since the last line, at most every ten seconds; each micro-batch is logged at level DEBUG."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = Report(group)
        self._next = clock()

    def __call__(self, batch: BatchReport) -> None:
        """Add a finished micro-batch, and log if it is time."""
        group = self._since.group
        _log.debug("group %r: batch %d: %s", group, batch.number, _figures(batch))
        self._since.add(batch)
        if self._clock() >= self._next and self._since.records:
            self._tell()

    def _tell(self) -> None:
        since = self._since
        _log.info(
            "group %r: %d batches: %d records, %d rows, %d dead letters, lag %d",
            *(since.group, since.batches, since.records, since.rows, since.dead_letters, since.lag),
        )
        self._since, self._next = Report(since.group), self._clock() + _LOG_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._since.records:
            self._tell()


class LiveProgress:
    """Shows figures on a terminal that refresh in place. Log lines appear above them."""

    def __init__(self, console: Console, group: str, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._what = what
        self._clock = clock
        self._began = self._reading_since = clock()
        self._total = Report(group)
        self._last: BatchReport | None = None
        self._rates: deque[float] = deque(maxlen=_RECENT)
        self._recent: deque[tuple[float, BatchReport]] = deque()
        self._live = Live(console=console, get_renderable=self.drawn, refresh_per_second=4)
        self._handler = _AboveIt(console)

    def __call__(self, batch: BatchReport) -> None:
        """Add a finished micro-batch to the figures."""
        if self._last is None:
            self._reading_since = self._clock() - batch.seconds
        self._total.add(batch)
        self._last = batch
        self._recent.append((self._clock(), batch))
        if batch.records:
            self._rates.append(batch.records / max(batch.seconds, 0.001))

    def drawn(self) -> RenderableType:
        """Return the current figures for Rich to draw."""
        total, last, seconds = self._total, self._last, self._clock() - self._began
        head = Text.assemble(
            (total.group, "bold"), ("  ", ""), (self._what, "dim"), ("  ", ""), (_clock(seconds), "dim")
        )
        if last is None:
            return Group(head, Text("  starting Spark, then the first batch", style="dim"))
        rate = self._rate()
        grid = Table.grid(padding=(0, 3))
        grid.add_row(
            _figure("records", f"{total.records:,}"),
            _figure("a second", f"{rate:,.0f}"),
            Text(_drawn(self._rates), style="cyan"),
            _figure("lag", f"{last.lag:,}"),
        )
        grid.add_row(
            _figure("rows", f"{total.rows:,}"),
            _figure("batch", f"{last.seconds:.2f} s, {last.mode}"),
            _figure("dead letters", f"{total.dead_letters:,}", alarming=total.dead_letters > 0),
            _figure("fenced", f"{total.fenced:,}", alarming=total.fenced > 0),
        )
        return Group(head, grid)

    def _rate(self) -> float:
        """Return records per second over the last ten seconds, since a single micro-batch varies too much."""
        now = self._clock()
        while self._recent and self._recent[0][0] < now - _WINDOW:
            self._recent.popleft()
        records = sum(batch.records for _, batch in self._recent)
        return records / max(0.001, min(_WINDOW, now - self._reading_since))

    def __enter__(self) -> Self:
        root = logging.getLogger()
        self._before, root.handlers = root.handlers, [self._handler]
        if self._before:
            self._handler.setFormatter(self._before[0].formatter)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        logging.getLogger().handlers = self._before


class _AboveIt(logging.Handler):
    """A log handler that prints through the console, which keeps the figures below the log lines."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line literally: brackets are not markup."""
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def _figure(name: str, value: str, *, alarming: bool = False) -> Text:
    return Text.assemble((f"{value} ", "bold yellow" if alarming else "bold"), (name, "dim"))


def _drawn(rates: deque[float]) -> str:
    most = max(rates, default=0.0) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(rate / most * len(_BARS)))] for rate in rates)


def _figures(batch: BatchReport) -> str:
    return (
        f"{batch.records} records, {batch.rows} rows, {batch.dead_letters} dead letters, lag {batch.lag}, "
        f"{batch.fenced} fenced, {batch.seconds:.3f} s, {batch.mode}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def run_pipeline(settings: PipelineSettings, turns: Mapping[str, Any], observers: Sequence[Observer]) -> Report:
    """Run the pipeline and show its progress, until it is done or a signal stops it."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs every connection that it closes
    progress = progress_for(Console(stderr=True), settings.group, f"{', '.join(settings.topics)} → {settings.target()}")
    with closing(opened(settings.ledger)) as ledger:
        pipeline = configured(settings, ledger, observers=observers, on_batch=progress)
        with progress:
            return run_until_stopped(lambda: pipeline.run(**turns), pipeline.stop)


def check_pipeline(settings: PipelineSettings) -> Iterator[str]:
    """Yield a line for each check that passes; raise at the first that fails."""
    with closing(opened(settings.ledger)) as ledger:
        pipeline = configured(settings, ledger)
        yield from checked(settings, pipeline.spec.into, ledger)
