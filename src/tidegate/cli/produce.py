"""``tidegate produce``: lines from standard input to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, BinaryIO

import typer

from tidegate.cli.connecting import Config, Debug, Kafka, connection
from tidegate.cli.failures import reported
from tidegate.cli.lines import LineReader
from tidegate.cli.pace import Pace
from tidegate.cli.progress import Progress
from tidegate.cli.root import app
from tidegate.cli.watching import LogLevel, log_to_stderr
from tidegate.kafka.admin import Admin
from tidegate.kafka.config import admin_config
from tidegate.kafka.errors import ProducerError
from tidegate.kafka.hooks import SendListener
from tidegate.kafka.outgoing import Delivered, Outgoing
from tidegate.kafka.producer import Producer

__all__ = ["produce"]

_Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where the lines go.")]
_Json = Annotated[bool, typer.Option("--json", help="Every line is JSON, and is refused if it is not.")]
_Key = Annotated[
    str | None, typer.Option(metavar="PATH", help="With --json: where the key is in each line, such as customer.id.")
]
_Separator = Annotated[
    str | None, typer.Option(metavar="TEXT", help=r"Without --json: what stands between key and value, such as \t.")
]
_Partition = Annotated[int | None, typer.Option(min=0, help="Send everything to this partition.")]
_Rate = Annotated[float | None, typer.Option(min=0.001, metavar="N", help="Send at most so many records a second.")]


@app.command("produce")
def produce(
    topic: _Topic,
    *,
    json: _Json = False,
    key: _Key = None,
    separator: _Separator = None,
    partition: _Partition = None,
    rate: _Rate = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Send each line of standard input as a record, without losing any that it was told of."""
    with reported(debug=debug):
        log_to_stderr(LogLevel.ERROR)
        lines = LineReader(is_json=json, key=key, separator=separator)
        # A topic that is not there is most likely a slip of the pen: nobody wants to wait half a minute to hear so.
        cluster = connection(kafka, config)
        Admin(admin_config(cluster)).partitions([topic])  # a cluster that does not answer is told of before all else
        settings = {"enable.idempotence": True, "topic.metadata.propagation.max.ms": 3000, **cluster}
        with Progress(f"records to {topic}") as progress:
            tally = _Tally(progress)
            producer = Producer(settings, listeners=[tally])
            try:
                for read_key, value in _paced(lines.read(_standard_input()), rate):
                    producer.send(topic, value, key=read_key, partition=partition)
                    progress.sent()
                    if tally.error is not None:
                        break
            finally:
                undelivered = producer.close()
        error = tally.error or (undelivered[0].error if undelivered else None)
        if error is not None:
            typer.echo(f"{progress.delivered_count} records were delivered to {topic}", err=True)
            raise error


class _Tally(SendListener):
    """Counts what is delivered, and keeps the first error."""

    def __init__(self, progress: Progress) -> None:
        self.error: ProducerError | None = None
        self._progress = progress

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """Count it."""
        self._progress.delivered()

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """Keep the first."""
        self.error = self.error or error


def _paced(records: Iterable[tuple[bytes | None, bytes]], rate: float | None) -> Iterator[tuple[bytes | None, bytes]]:
    pace = None if rate is None else Pace(rate)
    for record in records:
        if pace is not None:
            pace.wait()
        yield record


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer
