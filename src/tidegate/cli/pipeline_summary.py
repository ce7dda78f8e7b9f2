"""What a pipeline did, told at its end: for people, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.spark.report import Report

__all__ = ["as_json", "summary", "write_text"]

_SHOWN = 12  # positions; a report in JSON has them all


def as_json(report: Report) -> str:
    """The report, as JSON."""
    return json.dumps(report.as_json(), indent=2)


def write_text(file: Path, text: str) -> None:
    """Write it into a file."""
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the report cannot be written to {file}: {error.strerror}") from None


def summary(report: Report) -> str:
    """The report, as a few lines."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    rate = report.records / report.seconds if report.seconds else 0.0
    yield f"{report.group}: {report.stopped}" if report.stopped else report.group
    took = f"{report.batches:,} batches and {report.seconds:.1f} s: {rate:,.0f} a second"
    yield f"  records       {report.records:,} in {took}"
    yield f"  rows          {report.rows:,}"
    yield f"  dead letters  {report.dead_letters:,}"
    yield f"  lag           {report.lag:,}"
    if report.fenced or report.already_done:
        yield f"  fenced        {report.fenced:,}, already done {report.already_done:,}"
    positions = sorted(report.positions.items())
    for number, (partition, position) in enumerate(positions[:_SHOWN]):
        yield f"  {'' if number else 'positions':<13} {partition} {position:,}"
    if len(positions) > _SHOWN:
        yield f"  {'':<13} and {len(positions) - _SHOWN:,} more"
