"""What there is to see: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.audit import Audit
from demo.trial import Trial
from demo.watch import count_rows
from tidegate import Delivery

_COLOURS = {
    Delivery.EXACTLY_ONCE: "cyan",
    Delivery.AT_LEAST_ONCE: "yellow",
    Delivery.AT_MOST_ONCE: "red",
}


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


class Screen:
    """Speaks to whoever started the demo."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._began = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        """A paragraph."""
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)

    def step(self, text: str) -> None:
        """What is done now, with the time that has passed."""
        self.console.print(Text.assemble((f"{self.elapsed:5.1f} s  ", "dim"), (text, "bold")), soft_wrap=True)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def counting(self, total: int, what: str) -> Iterator[Callable[[int], None]]:
        """A bar that grows to ``total``."""
        if not self.console.is_terminal:
            yield lambda _: None
            return
        columns = (TextColumn("         "), BarColumn(40), MofNCompleteColumn(), TextColumn(what, style="dim"))
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda count: progress.update(task, completed=count)

    def told(self, trial: Trial) -> None:
        """A trial has come to something new. That it starts something, the live view of a terminal shows."""
        if self.console.is_terminal and "starting" in trial.state:
            return
        line = Text.assemble(
            (f"{self.elapsed:5.1f} s  ", "dim"),
            (f"{trial.delivery.value:<13}", _COLOURS[trial.delivery]),
            f"  {count_rows(trial.database):>9,} rows  {trial.state}",
        )
        self.console.print(line, soft_wrap=True)

    @contextmanager
    def watching(self, trials: Sequence[Trial], produced: int) -> Iterator[None]:
        """Show the trials while they run."""
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=lambda: self._drawn(trials, produced), console=self.console, refresh_per_second=5):
            yield

    def _drawn(self, trials: Sequence[Trial], produced: int) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        bar = max(8, min(32, self.console.width - 92))
        for width in (13, bar, 9, 6):
            grid.add_column(no_wrap=True, min_width=width)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        for trial in trials:
            colour = _COLOURS[trial.delivery]
            rows = trial.watch.rows
            kills = "".join("✖" if kill.aimed else "✕" for kill in trial.kills)
            grid.add_row(
                Text(trial.delivery.value, style=f"bold {colour}"),
                ProgressBar(produced, min(rows, produced), width=bar, complete_style=colour, finished_style=colour),
                Text(f"{rows:>9,}", style="bold"),
                Text(f"{kills:<6}", style="bold magenta"),
                Text(trial.state, style="dim"),
            )
        clock = Text(f"{self.elapsed:5.1f} s  rows of {produced:,}    ✖ aimed kill   ✕ random kill", style="dim")
        return Group(clock, Padding(grid, (0, 0, 0, 2)))

    def table(self, audits: Sequence[Audit]) -> None:
        """The audit."""
        gap = 1 if self.console.width < 100 else 3
        table = Table(header_style="dim", box=None, padding=(0, gap, 0, 0), pad_edge=False)
        table.add_column("")
        for name in ("produced", "in table", "lost", "twice", "sum produced", "sum in table"):
            table.add_column(name, justify="right", no_wrap=True)
        for found in audits:
            good, bad = "green", "bold red"
            table.add_row(
                Text(found.delivery.value, style=f"bold {_COLOURS[found.delivery]}"),
                f"{found.produced.count:,}",
                Text(f"{found.rows:,}", style=good if found.rows == found.produced.count else bad),
                Text(f"{found.lost:,}", style=bad if found.lost else good),
                Text(f"{found.twice:,}", style=bad if found.twice else good),
                f"{found.produced.total:,.2f}",
                Text(f"{found.total:,.2f}", style=good if found.total == found.produced.total else bad),
            )
        self.console.print()
        self.console.print(Padding(table, (0, 0, 0, 2)))
        self.console.print()
