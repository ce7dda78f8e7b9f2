"""``tidegate positions``: list them, and move them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.changing import Execute, Force, Reason, User, login, show_edit
from tidegate.cli.connecting import Config, Debug, Json, Kafka, NoKafka, surveyed
from tidegate.cli.failures import reported
from tidegate.cli.names import Group, Topic, complete_topics, known_group
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import Column, document, said, table, unbroken
from tidegate.cli.root import app
from tidegate.core.errors import BrokerUnavailable
from tidegate.core.positions import Position
from tidegate.operate import EditPreview, Operator, Survey, plain, target

__all__ = ["list_positions", "positions", "rewind", "skip"]

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
    Column("topic"),
    Column("partition", is_number=True),
    Column("position", is_number=True),
    Column("epoch", is_number=True),
    Column("owner", spare=1),
    Column("deployment", spare=3),
    Column("updated at", spare=2),
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
    """Move positions back, so that records are read again; a preview, unless --execute is given.

    Examples: tidegate positions rewind billing orders --to 2026-11-01T00:00:00Z;
    tidegate positions rewind billing orders --partition 3 --to -100 --execute --reason "wrong prices"
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        operator = Operator(store, surveyed(kafka, config, no_kafka=no_kafka))
        preview = operator.rewind(group, topic, target(to), partitions=partition or (), force=force)
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
    """Move positions forward, past records that will not be read; a preview, unless --execute is given.

    Examples: tidegate positions skip billing orders --to latest;
    tidegate positions skip billing orders --partition 3 --to +1 --execute --reason "cannot be parsed"
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        operator = Operator(store, surveyed(kafka, config, no_kafka=no_kafka))
        preview = operator.skip(group, topic, target(to), partitions=partition or (), force=force)
        _carry_out(operator, preview, json=json, execute=execute, user=user, reason=reason)


def _carry_out(
    operator: Operator, preview: EditPreview, *, json: bool, execute: bool, user: str | None, reason: str | None
) -> None:
    shown = operator.execute(preview, user=login(user), reason=reason) if execute else preview
    if json:
        document({"executed": execute, **plain(shown)})
    else:
        show_edit(shown, executed=execute)


def _unstored(survey: Survey | None, rows: Sequence[Position]) -> tuple[str | None, list[str]]:
    """Why Kafka does not tell, or the partitions of the topics of these rows that have none."""
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
