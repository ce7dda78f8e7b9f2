"""``tidegate topics``, ``groups``, ``consume`` and ``produce``: show topics and groups, read and send records."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO, Self, TextIO

import typer

from tidegate.cli.options import (
    Config,
    Debug,
    Group,
    Json,
    Kafka,
    LedgerUrl,
    Topic,
    app,
    cluster,
    complete_topics,
    connection,
    opened_ledger,
    reported,
)
from tidegate.cli.output import Heading, as_json, as_text, counted, document, said, table
from tidegate.cli.serve import LogLevel, log_to_stderr
from tidegate.core.policies import Start
from tidegate.core.positions import Totals
from tidegate.errors import ConfigurationError, ProducerError, TidegateError
from tidegate.kafka.cluster import Admin
from tidegate.kafka.config import admin_config
from tidegate.kafka.delivery import Delivered, Outgoing, SendListener
from tidegate.kafka.producer import Producer
from tidegate.kafka.reader import Place, TopicReader
from tidegate.kafka.topics import create_topic
from tidegate.settings_file import converted

__all__ = [
    "LineReader",
    "LineRefused",
    "Pace",
    "SendProgress",
    "consume",
    "create_new_topic",
    "describe_group",
    "describe_topic",
    "groups",
    "list_groups",
    "list_topics",
    "produce",
    "topics",
]


_BURST = 0.1  # seconds of delay that may be caught up


class Pace:
    """Limits a loop to a rate. Unused time is not saved up for later."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._gap = 1 / rate
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    def wait(self) -> None:
        """Wait until the next record may be sent."""
        now = self._clock()
        if self._next > now:
            self._sleep(self._next - now)
        self._next = max(self._next, now - _BURST) + self._gap


class LineRefused(TidegateError):
    """A line does not have the announced format. The lines before it were sent."""


class LineReader:
    """Reads keys and values from lines.

    The value is the line without its line ending. For plain lines, the key is what precedes the ``separator``, and the
    value the rest. For JSON, the key is at the path ``key``: text as it is, anything else as JSON.
    """

    def __init__(self, *, is_json: bool = False, key: str | None = None, separator: str | None = None) -> None:
        if key is not None and not is_json:
            raise ConfigurationError("--key names a field of JSON; for plain lines use --separator, or add --json")
        if separator is not None and is_json:
            raise ConfigurationError("--separator is for plain lines; in JSON the key is found with --key")
        if separator == "":
            raise ConfigurationError("--separator is empty; pass the text between key and value")
        self._is_json = is_json
        self._path = key.split(".") if key else []
        self._separator = None if separator is None else separator.replace("\\t", "\t").encode()

    def read(self, lines: Iterable[bytes]) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each line. Empty lines of JSON are skipped."""
        for number, line in enumerate(lines, 1):
            value = line.removesuffix(b"\n").removesuffix(b"\r")
            if self._is_json:
                if value.strip():
                    yield self._json_key(value, number), value
            elif self._separator is None:
                yield None, value
            else:
                key, found, rest = value.partition(self._separator)
                if not found:
                    raise LineRefused(f"line {number} has no separator; the lines before it were sent")
                yield key, rest

    def _json_key(self, line: bytes, number: int) -> bytes | None:
        try:
            content = json.loads(line)
        except ValueError as error:
            where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            raise LineRefused(f"line {number} is not JSON{where}; the lines before it were sent") from None
        if not self._path:
            return None
        found: Any = content
        for name in self._path:
            if not isinstance(found, dict) or name not in found:
                raise LineRefused(f"line {number} has no {'.'.join(self._path)}; the lines before it were sent")
            found = found[name]
        if found is None:
            return None
        return found.encode() if isinstance(found, str) else json.dumps(found, separators=(",", ":")).encode()


_EVERY = 0.2  # seconds between two updates of the display


class SendProgress:
    """Counts the records sent and delivered, and shows the count on a terminal."""

    def __init__(self, what: str, out: TextIO | None = None) -> None:
        self._what = what
        self._out = out or sys.stderr
        self._shows = self._out.isatty()
        self._began = time.monotonic()
        self._show_at = self._began + _EVERY
        self.sent_count = 0
        self.delivered_count = 0

    def sent(self) -> None:
        """Count a sent record."""
        self.sent_count += 1
        if self._shows and time.monotonic() >= self._show_at:
            self._show_at = time.monotonic() + _EVERY
            self._show()

    def delivered(self) -> None:
        """Count a delivered record."""
        self.delivered_count += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shows:
            self._show()
            self._out.write("\n")

    def _show(self) -> None:
        seconds = max(0.001, time.monotonic() - self._began)
        rate = self.delivered_count / seconds
        self._out.write(f"\r\x1b[K{self.delivered_count:,} {self._what}, {rate:,.0f} a second")
        self._out.flush()


topics = typer.Typer(no_args_is_help=True, help="Topics: their partitions, replicas and settings.")
app.add_typer(topics, name="topics")

_TOPIC_COLUMNS = (
    Heading("topic"),
    Heading("partitions", is_number=True),
    Heading("replicas", is_number=True),
    Heading("out of sync", is_number=True),
)
_PARTITION = (
    Heading("partition", is_number=True),
    Heading("leader", is_number=True),
    Heading("replicas"),
    Heading("in sync"),
    Heading("log begin", is_number=True),
    Heading("log end", is_number=True),
)


@topics.command("list")
def list_topics(*, json: Json = False, kafka: Kafka = None, config: Config = None, debug: Debug = False) -> None:
    """List the topics of the cluster, without its own."""
    with reported(debug=debug):
        found = cluster(kafka, config).topics()
        if json:
            document({"topics": found})
        else:
            table(_TOPIC_COLUMNS, found)


@topics.command("describe")
def describe_topic(
    topic: Topic, *, json: Json = False, kafka: Kafka = None, config: Config = None, debug: Debug = False
) -> None:
    """Show the partitions of a topic, where their logs begin and end, and its settings.

    Example: tidegate topics describe orders
    """
    with reported(debug=debug):
        found = cluster(kafka, config).topic(topic)
        if found is None:
            raise ConfigurationError(
                f"there is no topic {topic}; create it (tidegate topics create {topic}), or check its name"
            )
        if json:
            document(found)
            return
        said(f"{found.topic}: id {found.topic_id}, {len(found.partitions)} partitions")
        for setting, value in found.settings.items():
            said(f"  {setting} = {value}")
        table(_PARTITION, found.partitions)


_NewTopic = Annotated[str, typer.Argument(metavar="NAME", help="The new topic.")]
_Partitions = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="The number of partitions. Default: the broker's.")
]
_Replication = Annotated[int | None, typer.Option(min=1, help="The number of replicas of each. Default: the broker's.")]
_TopicConfig = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="KEY=VALUE", help="A setting of the topic; may be given again."),
]
_SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="The settings file. Default: tidegate.toml here, if it exists."),
]


@topics.command("create")
def create_new_topic(
    name: _NewTopic,
    *,
    partitions: _Partitions = None,
    replication: _Replication = None,
    config: _TopicConfig = None,
    kafka: Kafka = None,
    settings: _SettingsFile = None,
    debug: Debug = False,
) -> None:
    """Create a topic.

    Example: tidegate topics create orders --partitions 4 --config retention.ms=86400000
    """
    with reported(debug=debug):
        where = connection(kafka, settings)
        made = create_topic(
            where, name, partitions=partitions, replication=replication, config=dict(map(_pair, config or ()))
        )
        if made is None:
            raise ConfigurationError(f"there is a topic {name} already; tidegate topics describe {name} shows it")
        said(f"created {name} with {counted(made, 'partition')}")


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise ConfigurationError(f"--config {text}: expected KEY=VALUE, such as retention.ms=86400000")
    return key.strip(), value.strip()


groups = typer.Typer(no_args_is_help=True, help="Consumer groups: their members and assignments.")
app.add_typer(groups, name="groups")

_GROUP_COLUMNS = (
    Heading("group"),
    Heading("kafka"),
    Heading("protocol"),
    Heading("positions", is_number=True),
    Heading("owned", is_number=True),
    Heading("paused"),
)
_MEMBER = (Heading("member"), Heading("client"), Heading("host"), Heading("partitions"))


@groups.command("list")
def list_groups(
    *, json: Json = False, ledger: LedgerUrl = None, kafka: Kafka = None, config: Config = None, debug: Debug = False
) -> None:
    """List the groups that Kafka or the ledger knows."""
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        known = {each.group: each for each in cluster(kafka, config).groups()}
        stored = _stored(store.totals())
        found = []
        for name in sorted(known.keys() | stored.keys()):
            listing = known.get(name)
            in_kafka = None if listing is None else {"state": listing.state, "protocol": listing.protocol}
            found.append({"group": name, "kafka": in_kafka, "ledger": stored.get(name)})
        if json:
            document({"groups": found})
        else:
            table(_GROUP_COLUMNS, [_row(each) for each in found])


@groups.command("describe")
def describe_group(
    group: Group,
    *,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show the members of a group, where they are and what they were assigned.

    Example: tidegate groups describe billing
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        found = cluster(kafka, config).group(group)
        stored = _stored(store.totals()).get(group)
        if found is None and stored is None:
            raise ConfigurationError(f"neither Kafka nor the ledger knows a group {group!r}")
        if json:
            document({"group": group, "kafka": found, "ledger": stored})
            return
        if found is None:
            said(f"{group}: Kafka does not know it; no consumer has joined it")
        else:
            said(f"{group}: {found.state}, protocol {found.protocol}, assignor {found.assignor or 'none'}")
            said(f"coordinator: {found.coordinator}")
        if stored is None:
            said("ledger: no positions")
        else:
            paused = ", paused" if stored["paused"] else ""
            said(f"ledger: {stored['partitions']} positions, {stored['owned']} with an owner{paused}")
        if found is not None and found.members:
            table(_MEMBER, [(each.member_id, each.client_id, each.host, each.partitions) for each in found.members])


def _stored(totals: list[Totals]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for total in totals:
        each = found.setdefault(total.group, {"partitions": 0, "owned": 0, "paused": total.paused})
        each["partitions"] += total.partitions
        each["owned"] += total.owned
    return found


def _row(found: dict[str, Any]) -> tuple[Any, ...]:
    known, stored = found["kafka"] or {}, found["ledger"] or {}
    ours = (stored.get("partitions"), stored.get("owned"), stored.get("paused"))
    return (found["group"], known.get("state"), known.get("protocol"), *ours)


_FromTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="What to read.", autocompletion=complete_topics)]
_From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, an offset, -N for the last N of each partition, or a time: 2026-11-01T00:00:00Z.",
    ),
]
_FromPartitions = Annotated[list[int] | None, typer.Option(min=0, help="Read this partition only; may be given again.")]
_Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until SIGINT.")]
_Count = Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after so many records.")]
_JsonRecords = Annotated[
    bool, typer.Option("--json", help="One JSON object for each record, with everything that it has.")
]
_Keys = Annotated[bool, typer.Option("--keys", help="The key and a tab in front of the value.")]


@app.command("consume")
def consume(
    topic: _FromTopic,
    *,
    place: _From = "earliest",
    partition: _FromPartitions = None,
    follow: _Follow = False,
    count: _Count = None,
    json: _JsonRecords = False,
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
        with TopicReader(connection(kafka, config), topic, partition or ()) as reader:
            try:
                for record in islice(reader.records(start, follow=follow), count):
                    out.write(as_json(record) if json else as_text(record, with_key=keys))
                    if follow:
                        out.flush()
                out.flush()
            except KeyboardInterrupt:
                out.flush()  # stopped by the user
            except BrokenPipeError:  # the reader has stopped, as head does
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place(text: str) -> Place:
    if text.removeprefix("-").isdecimal():
        return int(text)
    start: Start = converted(Start, text, "--from", from_text=True)
    return start


_IntoTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where the lines go.", autocompletion=complete_topics)]
_JsonLines = Annotated[bool, typer.Option("--json", help="Every line is JSON, and is refused if it is not.")]
_Key = Annotated[
    str | None, typer.Option(metavar="PATH", help="With --json: where the key is in each line, such as customer.id.")
]
_Separator = Annotated[
    str | None, typer.Option(metavar="TEXT", help=r"Without --json: the text between key and value, such as \t.")
]
_IntoPartition = Annotated[int | None, typer.Option(min=0, help="Send everything to this partition.")]
_Rate = Annotated[
    float | None, typer.Option(min=0.001, metavar="N", help="The maximum number of records to send per second.")
]


@app.command("produce")
def produce(
    topic: _IntoTopic,
    *,
    json: _JsonLines = False,
    key: _Key = None,
    separator: _Separator = None,
    partition: _IntoPartition = None,
    rate: _Rate = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Send each line of standard input as a record; stop with an error if one is not delivered."""
    with reported(debug=debug):
        log_to_stderr(LogLevel.ERROR)
        lines = LineReader(is_json=json, key=key, separator=separator)
        # A missing topic is most likely a typo, so it is reported after 3 seconds instead of half a minute.
        cluster = connection(kafka, config)
        Admin(admin_config(cluster)).partitions([topic])  # reports an unreachable cluster first
        settings = {"enable.idempotence": True, "topic.metadata.propagation.max.ms": 3000, **cluster}
        with SendProgress(f"records to {topic}") as progress:
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
    """Counts delivered records and keeps the first error."""

    def __init__(self, progress: SendProgress) -> None:
        self.error: ProducerError | None = None
        self._progress = progress

    def on_success(self, record: Outgoing, delivered: Delivered) -> None:
        """Count the record."""
        self._progress.delivered()

    def on_error(self, record: Outgoing, error: ProducerError) -> None:
        """Keep the first error."""
        self.error = self.error or error


def _paced(records: Iterable[tuple[bytes | None, bytes]], rate: float | None) -> Iterator[tuple[bytes | None, bytes]]:
    pace = None if rate is None else Pace(rate)
    for record in records:
        if pace is not None:
            pace.wait()
        yield record


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer
