"""``tidegate journal``: what happened to the positions of a group."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any

import typer

from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.failures import reported
from tidegate.cli.names import Group, complete_topics, known_group
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import Column, line, said, table, unbroken
from tidegate.cli.root import app
from tidegate.core.durations import seconds_of
from tidegate.core.errors import ConfigurationError
from tidegate.core.journal import Entry, Kind
from tidegate.core.records import TopicPartition
from tidegate.ledger import Ledger

__all__ = ["journal"]

_Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Entries of this topic only.", autocompletion=complete_topics)
]
_Partition = Annotated[int | None, typer.Option(min=0, metavar="N", help="With --topic: of this partition only.")]
_Kind = Annotated[list[Kind] | None, typer.Option(help="Entries of this kind only; may be given again.")]
_Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="From this time on, with its zone, or for so long: 90s, 30m, 24h.")
]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, the newest.")]
_Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until SIGINT.")]
_COLUMNS = (
    Column("at"),
    Column("topic"),
    Column("partition", is_number=True),
    Column("seq", is_number=True, spare=4),
    Column("kind"),
    Column("start", is_number=True),
    Column("end", is_number=True),
    Column("records", is_number=True, spare=1),
    Column("epoch", is_number=True, spare=3),
    Column("owner", spare=2),
    Column("note"),
)
_EVERY = 1.0  # seconds, while following
_OVERLAP = timedelta(seconds=60)  # transactions of different partitions may commit in another order than they began


@app.command("journal")
def journal(
    group: Group,
    *,
    topic: _Topic = None,
    partition: _Partition = None,
    kind: _Kind = None,
    since: _Since = None,
    limit: _Limit = 50,
    follow: _Follow = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show what happened to the positions of a group, the newest entries last; with --json one object in each line.

    Examples: tidegate journal billing --kind edit --kind skip; tidegate journal billing --since 1h --follow
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        known_group(store, group)
        wanted = _Wanted(topic, partition, frozenset(kind or ()), _time(since))
        if follow:
            with suppress(KeyboardInterrupt):  # stopped as asked
                _follow(store, group, wanted, limit, json=json)
            return
        found = list(islice(wanted.newest(store, group), limit))[::-1]
        _show(found, json=json, follow=False)
        if not found and not json:
            said("there are no such entries")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which entries to show."""

    topic: str | None
    partition: int | None
    kinds: frozenset[Kind]
    since: datetime | None

    def __post_init__(self) -> None:
        if self.partition is not None and self.topic is None:
            raise ConfigurationError("--partition is a number within a topic; give --topic as well")

    def newest(self, ledger: Ledger[Any], group: str, since: datetime | None = None) -> Iterator[Entry]:
        """The entries that are wanted, the newest first; those before ``since`` are not looked at."""
        only = TopicPartition(self.topic, self.partition) if self.topic and self.partition is not None else None
        earliest = since or self.since
        for entry in ledger.newest(group, only):
            if earliest is not None and entry.at is not None and entry.at < earliest:
                return
            if self._is_one(entry):
                yield entry

    def _is_one(self, entry: Entry) -> bool:
        of_topic = self.topic is None or (entry.partition is not None and entry.partition.topic == self.topic)
        return of_topic and (not self.kinds or entry.kind in self.kinds)


def _follow(store: Ledger[Any], group: str, wanted: _Wanted, limit: int, *, json: bool) -> None:
    """Show the newest entries, and then whatever is new when the newest ones are looked at again."""
    found: list[Entry] = []
    for entry in wanted.newest(store, group):
        if len(found) >= limit and _at(entry) < _at(found[0]) - _OVERLAP:
            break
        found.append(entry)
    shown = {(entry.partition, entry.seq): _at(entry) for entry in found}
    since = _at(found[0]) if found else datetime.now(UTC)
    _show(found[:limit][::-1], json=json, follow=True)
    while True:
        sys.stdout.flush()
        time.sleep(_EVERY)
        newest = wanted.newest(store, group, since - _OVERLAP)
        new = [entry for entry in newest if (entry.partition, entry.seq) not in shown]
        _show(new[::-1], json=json, follow=True)
        shown |= {(entry.partition, entry.seq): _at(entry) for entry in new}
        since = max([since, *map(_at, new)])
        shown = {key: at for key, at in shown.items() if at >= since - _OVERLAP}


def _at(entry: Entry) -> datetime:
    return entry.at or datetime.now(UTC)


def _show(entries: list[Entry], *, json: bool, follow: bool) -> None:
    if json:
        for entry in entries:
            line(_members(entry))
    elif follow:
        for entry in entries:
            said(_sentence(entry))
    elif entries:
        table(_COLUMNS, [tuple(_members(entry)[column.name] for column in _COLUMNS) for entry in entries])


def _members(entry: Entry) -> dict[str, Any]:
    topic, partition = entry.partition or (None, None)
    return {
        "at": entry.at,
        "topic": topic,
        "partition": partition,
        "seq": entry.seq,
        "kind": entry.kind,
        "start": entry.start,
        "end": entry.end,
        "records": entry.records,
        "epoch": entry.epoch,
        "owner": entry.owner,
        "note": entry.note,
    }


def _sentence(entry: Entry) -> str:
    where = "the group" if entry.partition is None else f"{entry.partition} {entry.start} -> {entry.end}"
    who = f" by {entry.owner}" if entry.owner else ""
    note = f" ({entry.note})" if entry.note else ""
    at = "" if entry.at is None else f"{entry.at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z "
    return f"{at}{entry.kind} {where}{who}{note}"


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds_of(text))
    except ConfigurationError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(
            f"--since: {text!r} is no time; write it with its zone, as 2026-11-01T00:00:00Z, or how long ago, as 30m"
        )
    return at
