"""``tidegate journal``, ``verify`` and ``prune``: show the history of positions, check it, and delete old entries."""

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

from tidegate.cli.options import (
    Config,
    Debug,
    ExitCode,
    Group,
    Json,
    LedgerUrl,
    app,
    complete_groups,
    complete_topics,
    known_group,
    opened_ledger,
    reported,
)
from tidegate.cli.output import Heading, document, line, said, table, unbroken
from tidegate.cli.positions import Execute
from tidegate.core.arguments import Age, argument
from tidegate.core.journal import Entry, Kind, Verification
from tidegate.core.records import TopicPartition
from tidegate.errors import ConfigurationError
from tidegate.ledger import Ledger

__all__ = ["journal", "prune", "verify"]


_Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Entries of this topic only.", autocompletion=complete_topics)
]
_Partition = Annotated[int | None, typer.Option(min=0, metavar="N", help="With --topic: of this partition only.")]
_Kind = Annotated[list[Kind] | None, typer.Option(help="Entries of this kind only; may be given again.")]
_Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Since this time, with its zone, or since so long ago: 90s, 30m, 24h."),
]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many, the newest.")]
_Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue with new entries as they are written, until SIGINT.")
]
_ENTRY_COLUMNS = (
    Heading("at"),
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("seq", is_number=True, spare=4),
    Heading("kind"),
    Heading("start", is_number=True),
    Heading("end", is_number=True),
    Heading("records", is_number=True, spare=1),
    Heading("epoch", is_number=True, spare=3),
    Heading("owner", spare=2),
    Heading("note"),
)
_EVERY = 1.0  # seconds between two queries while following
_OVERLAP = timedelta(seconds=60)  # transactions of different partitions may commit in a different order than they began


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
            with suppress(KeyboardInterrupt):  # stopped by the user
                _follow(store, group, wanted, limit, json=json)
            return
        found = list(islice(wanted.newest(store, group), limit))[::-1]
        _show(found, json=json, follow=False)
        if not found and not json:
            said("there are no such entries")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The filter for entries to show."""

    topic: str | None
    partition: int | None
    kinds: frozenset[Kind]
    since: datetime | None

    def __post_init__(self) -> None:
        if self.partition is not None and self.topic is None:
            raise ConfigurationError("--partition is a number within a topic; give --topic as well")

    def newest(self, ledger: Ledger[Any], group: str, since: datetime | None = None) -> Iterator[Entry]:
        """Yield the matching entries, newest first. Stops at the first entry before ``since``."""
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
    """Show the newest entries. Then query again at intervals, and show what is new."""
    found: list[Entry] = []
    for entry in wanted.newest(store, group):
        if len(found) >= limit and _at(entry) < _at(found[0]) - _OVERLAP:
            break
        found.append(entry)
    shown = {_state(entry): _at(entry) for entry in found}
    since = _at(found[0]) if found else datetime.now(UTC)
    _show(found[:limit][::-1], json=json, follow=True)
    while True:
        sys.stdout.flush()
        time.sleep(_EVERY)
        newest = wanted.newest(store, group, since - _OVERLAP)
        new = [entry for entry in newest if _state(entry) not in shown]
        _show(new[::-1], json=json, follow=True)
        shown |= {_state(entry): _at(entry) for entry in new}
        since = max([since, *map(_at, new)])
        shown = {key: at for key, at in shown.items() if at >= since - _OVERLAP}


def _state(entry: Entry) -> tuple[TopicPartition | None, int, int]:
    """Return a key that identifies an entry with its extent.

    The end is part of it because an advance may be extended for a minute, and is shown again then.
    """
    return entry.partition, entry.seq, entry.end


def _at(entry: Entry) -> datetime:
    return entry.at or datetime.now(UTC)


def _show(entries: list[Entry], *, json: bool, follow: bool) -> None:
    if json:
        for entry in entries:
            line(_entry_members(entry))
    elif follow:
        for entry in entries:
            said(_sentence(entry))
    elif entries:
        table(
            _ENTRY_COLUMNS,
            [tuple(_entry_members(entry)[column.name] for column in _ENTRY_COLUMNS) for entry in entries],
        )


def _entry_members(entry: Entry) -> dict[str, Any]:
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
        "since": entry.since,
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
        return datetime.now(UTC) - timedelta(seconds=argument("a time", Age, text))
    except ConfigurationError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(
            f"--since: {text!r} is not a time; write it with its zone, as 2026-11-01T00:00:00Z, or how long ago, as 30m"
        )
    return at


_Verified = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="Only this group. Default: all groups.", autocompletion=complete_groups),
]
_BREAK_COLUMNS = (
    Heading("group"),
    Heading("verdict"),
    Heading("partitions", is_number=True),
    Heading("entries", is_number=True),
    Heading("first break"),
)


@app.command("verify")
def verify(
    group: _Verified = None,
    *,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Check in the journal that nothing was skipped or repeated without an entry; exit code 1 if it was.

    Example: tidegate verify billing
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        if group is not None:
            known_group(store, group)
        names = sorted({total.group for total in store.totals()}) if group is None else [group]
        found = {name: store.verify(name) for name in names}
        ok = all(each.ok for each in found.values())
        if json:
            document({"ok": ok, "groups": [_verification_members(name, each) for name, each in found.items()]})
        elif found:
            table(_BREAK_COLUMNS, [_row(name, each) for name, each in found.items()])
        else:
            said("the ledger has no groups")
        if not ok:
            raise typer.Exit(ExitCode.FAILED)


def _row(group: str, found: Verification) -> tuple[Any, ...]:
    verdict = "ok" if found.ok else f"{len(found.breaks)} broken"
    return group, verdict, found.partitions, found.entries, None if found.ok else str(found.breaks[0])


def _verification_members(group: str, found: Verification) -> dict[str, Any]:
    return {
        "group": group,
        "ok": found.ok,
        "partitions": found.partitions,
        "entries": found.entries,
        "breaks": [{**each.partition._asdict(), "seq": each.seq, "reason": each.reason} for each in found.breaks],
    }


_Pruned = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="Only this group. Default: all groups.", autocompletion=complete_groups),
]
_OlderThan = Annotated[
    str | None,
    typer.Option(metavar="AGE", help="Entries of this age, such as 36h or 30d; by default as in the settings."),
]
_PRUNED_COLUMNS = (Heading("group"), Heading("entries", is_number=True), Heading("old", is_number=True))


@app.command("prune")
def prune(
    group: _Pruned = None,
    *,
    older_than: _OlderThan = None,
    execute: Execute = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Delete old entries of the journal. Without --execute, this is a preview.

    Consumers delete them too, as set by ledger.limits.retention. The last entry of each position stays.

    Example: tidegate prune billing --older-than 30d --execute
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        if group is not None:
            known_group(store, group)
        age = _age(store, older_than)
        names = sorted({total.group for total in store.totals()}) if group is None else [group]
        if execute:
            found = [{"group": name, "pruned": store.prune(age, name)} for name in names]
        else:
            found = [_old(store, name, datetime.now(UTC) - age) for name in names]
        if json:
            document({"executed": execute, "older_than_seconds": age.total_seconds(), "groups": found})
        elif execute:
            for each in found:
                said(f"{each['group']}: {each['pruned']} entries were deleted")
        else:
            table(_PRUNED_COLUMNS, [tuple(each.values()) for each in found])
            said("nothing was changed; add --execute to delete what is old, but for the last entries of each position")


def _age(store: Ledger[Any], given: str | None) -> timedelta:
    seconds = store.limits.retention if given is None else argument("--older-than", Age, given)
    if given is None and not seconds:
        raise ConfigurationError("the settings keep the journal for ever; pass --older-than, such as 30d")
    return timedelta(seconds=seconds)


def _old(store: Ledger[Any], group: str, cutoff: datetime) -> dict[str, Any]:
    """Count the entries of a group, and those older than the cutoff."""
    entries = old = 0
    for entry in store.journal(group):
        entries += 1
        old += entry.at is not None and entry.at < cutoff
    return {"group": group, "entries": entries, "old": old}
