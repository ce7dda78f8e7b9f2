"""Output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.payload import harmless
from tidegate.core.verdicts import State
from tidegate.operate import plain

__all__ = ["Column", "counted", "document", "line", "said", "table", "unbroken"]

_COLOURS = {
    State.OK: "green",
    State.LAGGING: "yellow",
    State.STALLED: "bold red",
    State.STOPPED: "red",
    State.REWOUND: "cyan",
    State.PAUSED: "magenta",
    State.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers stand on the right.

    ``spare`` is how well a narrow terminal can do without it: the greatest goes first, and those of 0 stay.
    """

    name: str
    is_number: bool = False
    spare: int = 0


def document(value: Any) -> None:
    """Print a value as one JSON document, in ASCII, which no terminal obeys."""
    typer.echo(json.dumps(plain(value), indent=2))


def line(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(plain(value)))


def said(text: str) -> None:
    """Print a sentence."""
    typer.echo(harmless(text))


def counted(count: int, noun: str) -> str:
    """So many of something: ``1 owner``, ``2 owners``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: by Rich on a terminal, and elsewhere as lines whose columns are two spaces apart."""
    if sys.stdout.isatty():
        _print_rich(columns, rows)
        return
    cells = [[column.name.upper() for column in columns], *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for row in cells:
        fitted = (
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        )
        typer.echo("  ".join(fitted).rstrip())


@contextmanager
def unbroken() -> Iterator[None]:
    """Whoever reads may stop reading, as head does: that is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_rich(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    console = Console()
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
    kept = _fitting(columns, rows, console.width)
    for place in kept:
        column = columns[place]
        shown.add_column(column.name, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(_cell(row[place]), style=_style(row[place])) for place in kept))
    console.print(shown)
    if len(kept) < len(columns):
        left = ", ".join(column.name for place, column in enumerate(columns) if place not in kept)
        console.print(Text(f"the terminal is too narrow for: {left}", style="dim"))


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[Any]], width: int) -> list[int]:
    """Which columns to show: all of them, or as many as fit."""
    widths = [
        max([len(column.name), *(len(_cell(row[place])) for row in rows)]) + 2 for place, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while sum(widths[place] for place in kept) > width:
        place = max(kept, key=lambda place: columns[place].spare)
        if columns[place].spare == 0:
            break
        kept.remove(place)
    return kept


def _style(value: Any) -> str:
    return _COLOURS[value] if isinstance(value, State) else ""


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return _duration(value)
        case datetime():
            return str(plain(value))
        case tuple() | list():
            return ", ".join(map(_cell, value)) or "-"
    return harmless(str(value))


def _duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
