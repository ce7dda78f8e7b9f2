"""``tidegate consume``: the records of a topic to standard output."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import Annotated

import typer

from tidegate.cli.connecting import Config, Debug, Kafka, connection
from tidegate.cli.failures import reported
from tidegate.cli.root import app
from tidegate.cli.shown_records import as_json, as_text
from tidegate.cli.watching import LogLevel, log_to_stderr
from tidegate.core.start import Start
from tidegate.kafka.reader import Place, Reader
from tidegate.settings.values import converted

__all__ = ["consume"]

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.")]
_From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, an offset, -N for the last N of each partition, or a time: 2026-11-01T00:00:00Z.",
    ),
]
_Partition = Annotated[list[int] | None, typer.Option(min=0, help="Read this partition only; may be given again.")]
_Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until SIGINT.")]
_Count = Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after so many records.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON object for each record, with everything that it has.")]
_Keys = Annotated[bool, typer.Option("--keys", help="The key and a tab in front of the value.")]


@app.command("consume")
def consume(
    topic: _Topic,
    *,
    place: _From = "earliest",
    partition: _Partition = None,
    follow: _Follow = False,
    count: _Count = None,
    json: _Json = False,
    keys: _Keys = False,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Print the records of a topic, up to its end or for as long as there are more. No position is kept."""
    with reported(debug=debug):
        log_to_stderr(LogLevel.ERROR)
        start = _place(place)
        out = sys.stdout.buffer
        with Reader(connection(kafka, config), topic, partition or ()) as reader:
            try:
                for record in islice(reader.records(start, follow=follow), count):
                    out.write(as_json(record) if json else as_text(record, with_key=keys))
                    if follow:
                        out.flush()
                out.flush()
            except KeyboardInterrupt:
                out.flush()  # stopped as asked
            except BrokenPipeError:  # whoever was reading has enough, as head has
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place(text: str) -> Place:
    if text.removeprefix("-").isdecimal():
        return int(text)
    start: Start = converted(Start, text, "--from", from_text=True)
    return start
