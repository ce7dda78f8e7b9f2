"""A running pipeline, shown: a few lines that renew themselves on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidegate.spark.report import BatchReport, Report

__all__ = ["LiveProgress", "LoggedProgress", "Progress", "progress_for"]

_LOG_EVERY = 10.0  # seconds
_WINDOW = 10.0  # seconds that the rate is of
_RECENT = 32  # batches whose rates are drawn
_BARS = "▁▂▃▄▅▆▇█"
_log = logging.getLogger("tidegate")


class Progress(Protocol):
    """Shows micro-batches, as they are reported."""

    def __call__(self, batch: BatchReport) -> None:
        """One more is done."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last figures where they are."""


def progress_for(console: Console, group: str, what: str) -> Progress:
    """The kind of progress that the console can show."""
    return LiveProgress(console, group, what) if console.is_terminal else LoggedProgress(group)


class LoggedProgress:
    """A line every ten seconds at most, of all that was done since the last one; each batch at the level of debug."""

    def __init__(self, group: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = Report(group)
        self._next = clock()

    def __call__(self, batch: BatchReport) -> None:
        """One more is done."""
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
    """Figures that renew themselves; log lines go above them."""

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
        """One more is done."""
        if self._last is None:
            self._reading_since = self._clock() - batch.seconds
        self._total.add(batch)
        self._last = batch
        self._recent.append((self._clock(), batch))
        if batch.records:
            self._rates.append(batch.records / max(batch.seconds, 0.001))

    def drawn(self) -> RenderableType:
        """All of it, as it is now."""
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
        """Records a second, over the last ten seconds: a single batch says little."""
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
    """Prints log lines through the console, which keeps the figures below them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print it as it is: brackets are no markup."""
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
