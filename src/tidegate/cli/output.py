"""Output of commands: tables for people, JSON for programs. Payloads are escaped, so no terminal interprets them."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from tidegate.core.records import Record
from tidegate.core.text import harmless
from tidegate.operate import plain
from tidegate.operate.states import State

__all__ = [
    "Heading",
    "as_json",
    "as_text",
    "counted",
    "document",
    "harmless",
    "line",
    "lines_of",
    "members",
    "said",
    "table",
    "unbroken",
]


_MOST_LINES = 200
_LONGEST_LINE = 2000


def lines_of(content: bytes | None) -> tuple[str, list[str]]:
    """Return a description of the bytes and the lines to show them: UTF-8 text or else base64, shortened if long."""
    if content is None:
        return "none", []
    try:
        kind, lines = "text", content.decode().split("\n")
    except UnicodeDecodeError:
        encoded = base64.b64encode(content).decode()
        kind, lines = "base64", [encoded[at : at + 76] for at in range(0, len(encoded), 76)]
    shown = [_cut(harmless(line.removesuffix("\r"))) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        shown.append(f"… and {len(lines) - _MOST_LINES} lines more; --json has all of it")
    return f"{len(content)} byte{'' if len(content) == 1 else 's'}, {kind}", shown


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}… and {len(line) - _LONGEST_LINE} characters more; --json has all of it"


_COLOURS = {
    State.OK: "green",
    State.LAGGING: "yellow",
    State.STALLED: "bold red",
    State.STOPPED: "red",
    State.IDLE: "dim",
    State.REWOUND: "cyan",
    State.PAUSED: "magenta",
    State.UNKNOWN: "dim",
}


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of a table. Numbers are aligned right.

    ``spare`` says which columns a narrow terminal leaves out: the largest first; columns with 0 always stay.
    """

    name: str
    is_number: bool = False
    spare: int = 0


def document(value: Any) -> None:
    """Print a value as one JSON document, in ASCII, so that no terminal interprets it."""
    typer.echo(json.dumps(plain(value), indent=2))


def line(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(json.dumps(plain(value)))


def said(text: str) -> None:
    """Print a sentence, with unprintable characters escaped."""
    typer.echo(harmless(text))


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural: ``1 owner``, ``2 owners``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(columns: Sequence[Heading], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: with Rich on a terminal, otherwise as lines with two spaces between columns."""
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
    """Ignore a broken pipe: a reader such as ``head`` may stop reading early."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_rich(columns: Sequence[Heading], rows: Sequence[Sequence[Any]]) -> None:
    from rich import box  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

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


def _fitting(columns: Sequence[Heading], rows: Sequence[Sequence[Any]], width: int) -> list[int]:
    """Return the columns to show: all, or as many as fit the width."""
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
    """Format seconds in units for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def as_text(record: Record, *, with_key: bool) -> bytes:
    """Return a line with the value, after the key and a tab if ``with_key``. Missing parts are empty."""
    value = record.value or b""
    return (record.key or b"") + b"\t" + value + b"\n" if with_key else value + b"\n"


def as_json(record: Record) -> bytes:
    """Return the whole record as one line of JSON."""
    return json.dumps(members(record), ensure_ascii=False).encode() + b"\n"


def members(record: Record) -> dict[str, Any]:
    """Return the whole record for JSON. Bytes that are not UTF-8 are base64, in a member named ``…_base64``."""
    at = record.timestamp
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(),
        **_bytes("key", record.key),
        **_bytes("value", record.value),
        "headers": [{"name": name, **_bytes("value", content)} for name, content in record.headers],
    }


def _bytes(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
