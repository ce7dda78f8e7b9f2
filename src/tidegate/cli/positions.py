"""``tidegate positions``, ``pause`` and ``resume``: list positions, move them by hand, and pause a whole group."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from tidegate.cli.options import (
    Config,
    Debug,
    Group,
    Json,
    Kafka,
    LedgerUrl,
    NoKafka,
    Topic,
    app,
    complete_topics,
    known_group,
    opened_ledger,
    reported,
    surveyed,
)
from tidegate.cli.output import Heading, counted, document, said, table, unbroken
from tidegate.core.positions import Position
from tidegate.errors import BrokerUnavailable
from tidegate.ledger.transaction import NOT_KNOWN
from tidegate.operate import Action, EditPreview, Operator, PausePreview, Survey, plain, target

__all__ = [
    "Execute",
    "Force",
    "Reason",
    "User",
    "interruptible",
    "list_positions",
    "login",
    "pause",
    "positions",
    "resume",
    "rewind",
    "show_edit",
    "show_pause",
    "skip",
]


Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, only show what would be done.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the journal.")]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Your name, for the journal; by default the login.")]
Force = Annotated[bool, typer.Option("--force", help="Do what would be refused because it may be a mistake.")]

_SHIFT = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("old", is_number=True),
    Heading("new", is_number=True),
    Heading("records", is_number=True),
    Heading("fenced owner"),
)


def login(user: str | None) -> str:
    """Return the user's name for the journal: the given one, or else the login."""
    if user is not None:
        return user
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return "unknown"


def show_edit(preview: EditPreview, *, executed: bool) -> None:
    """Show which positions move or have moved, and which owners are fenced."""
    table(_SHIFT, [(s.topic, s.partition, s.old, s.new, s.records, s.owner) for s in preview.shifts])
    for sentence in preview.unmoved:
        said(f"not moved: {sentence}")
    for sentence in preview.warnings:
        said(f"warning: {sentence}")
    done = "to be read again" if preview.action is Action.REWIND else "stepped over"
    facts = f"{counted(preview.records, 'record')} {done}, {counted(len(preview.owners), 'owner')} fenced"
    said(f"{preview.group}: {facts}")
    said("done, and journalled" if executed else "nothing was changed; add --execute to do it")


def show_pause(preview: PausePreview, *, execute: bool, changed: bool) -> None:
    """Show the effect on the group. ``changed``: it was paused or resumed just now."""
    word = f"{preview.action}d"
    facts = f"{counted(preview.partitions, 'partition')}, {counted(len(preview.owners), 'owner')}"
    if changed:
        said(f"{preview.group}: was {word} ({facts}), and that was journalled")
    elif execute or not preview.changes:
        said(f"{preview.group}: is {'paused' if preview.action is Action.PAUSE else 'not paused'} already")
    else:
        said(f"{preview.group}: would be {word} ({facts})")
        said("nothing was changed; add --execute to do it")


@contextmanager
def interruptible() -> Iterator[None]:
    """Wrap a change: an interrupt during it raises an error that says that its outcome is unknown."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(NOT_KNOWN) from None


positions = typer.Typer(no_args_is_help=True, help="List the positions of a group, and move them by hand.")
app.add_typer(positions, name="positions")

_Only = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="Of this topic only.", autocompletion=complete_topics)
]
_Partition = Annotated[
    list[int] | None, typer.Option(min=0, metavar="N", help="Only this partition; may be given again.")
]
_Back = Annotated[
    str, typer.Option("--to", metavar="PLACE", help="An offset, -N records, a time with its zone, earliest, or latest.")
]
_Forward = Annotated[
    str, typer.Option("--to", metavar="PLACE", help="An offset, +N records, a time with its zone, or latest.")
]
_COLUMNS = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("position", is_number=True),
    Heading("epoch", is_number=True),
    Heading("owner", spare=1),
    Heading("deployment", spare=3),
    Heading("updated at", spare=2),
)


@positions.command("list")
def list_positions(
    group: Group,
    *,
    topic: _Only = None,
    no_kafka: NoKafka = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """List the stored positions of a group, and the partitions of its topics that have none.

    Example: tidegate positions list billing --topic orders
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        state = known_group(store, group)
        found = [row for tp, row in sorted(state.positions.items()) if topic in {None, tp.topic}]
        trouble, unstored = _unstored(surveyed(kafka, config, no_kafka=no_kafka), found)
        if json:
            shown = {"positions": map(_members, found), "unstored": unstored, "kafka": trouble}
            document({"group": group, "paused": state.paused, **shown})
            return
        rows = [(*r.partition, r.next_offset, r.epoch, r.owner, r.deployment, r.updated_at) for r in found]
        table(_COLUMNS, rows)
        if unstored:
            said(f"no position is stored for: {', '.join(unstored)}")
        if trouble:
            said(f"whether other partitions lack a position is not known: {trouble}")


@positions.command("rewind")
def rewind(
    group: Group,
    topic: Topic,
    *,
    to: _Back,
    partition: _Partition = None,
    force: Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    no_kafka: NoKafka = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Move positions back, so that records are read again. Without --execute, this is a preview.

    Examples: tidegate positions rewind billing orders --to 2026-11-01T00:00:00Z;
    tidegate positions rewind billing orders --partition 3 --to -100 --execute --reason "wrong prices"
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        operator = Operator(store, surveyed(kafka, config, no_kafka=no_kafka))
        preview = operator.rewind(group, topic, target(to), partitions=partition or None, force=force)
        _carry_out(operator, preview, json=json, execute=execute, user=user, reason=reason)


@positions.command("skip")
def skip(
    group: Group,
    topic: Topic,
    *,
    to: _Forward,
    partition: _Partition = None,
    force: Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    no_kafka: NoKafka = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Move positions forward, past records that will not be read. Without --execute, this is a preview.

    Examples: tidegate positions skip billing orders --to latest;
    tidegate positions skip billing orders --partition 3 --to +1 --execute --reason "cannot be parsed"
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        operator = Operator(store, surveyed(kafka, config, no_kafka=no_kafka))
        preview = operator.skip(group, topic, target(to), partitions=partition or None, force=force)
        _carry_out(operator, preview, json=json, execute=execute, user=user, reason=reason)


def _carry_out(
    operator: Operator, preview: EditPreview, *, json: bool, execute: bool, user: str | None, reason: str | None
) -> None:
    shown = preview
    if execute:
        with interruptible():
            shown = operator.execute(preview, user=login(user), reason=reason)
    if json:
        document({"executed": execute, **plain(shown)})
    else:
        show_edit(shown, executed=execute)


def _unstored(survey: Survey | None, rows: Sequence[Position]) -> tuple[str | None, list[str]]:
    """Return why Kafka could not be asked, or the partitions of the rows' topics that have no position."""
    if survey is None:
        return "Kafka was not asked", []
    stored = {row.partition for row in rows}
    try:
        counts = survey.partitions({tp.topic for tp in stored})
    except BrokerUnavailable as error:
        return str(error), []
    return None, [f"{name}[{n}]" for name, count in counts.items() for n in range(count) if (name, n) not in stored]


def _members(row: Position) -> dict[str, Any]:
    return {
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "position": row.next_offset,
        "epoch": row.epoch,
        "owner": row.owner,
        "deployment": row.deployment,
        "cluster_id": row.identity.cluster_id,
        "topic_id": row.identity.topic_id,
        "updated_at": row.updated_at,
    }


@app.command("pause")
def pause(
    group: Group,
    *,
    force: Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Pause a group, for all its consumers and across restarts. Without --execute, this is a preview.

    Example: tidegate pause billing --execute --reason "the bank is closed"
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        operator = Operator(store, None)
        _change(operator, operator.pause(group, force=force), json=json, execute=execute, user=user, reason=reason)


@app.command("resume")
def resume(
    group: Group,
    *,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Let a paused group continue. Without --execute, this is a preview.

    Example: tidegate resume billing --execute
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        operator = Operator(store, None)
        _change(operator, operator.resume(group), json=json, execute=execute, user=user, reason=reason)


def _change(
    operator: Operator, preview: PausePreview, *, json: bool, execute: bool, user: str | None, reason: str | None
) -> None:
    changed = False
    if execute:
        with interruptible():
            changed = operator.set_paused(preview, user=login(user), reason=reason)
    if json:
        document({"executed": changed, **plain(preview)})
    else:
        show_pause(preview, execute=execute, changed=changed)
