"""``tidegate status``: show state and lag of groups."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from tidegate.cli.options import (
    Config,
    Debug,
    ExitCode,
    Json,
    Kafka,
    LedgerUrl,
    NoKafka,
    app,
    complete_groups,
    known_group,
    opened_ledger,
    reported,
    surveyed,
)
from tidegate.cli.output import Heading, counted, document, line, said, table, unbroken
from tidegate.operate import GroupStatus, Overview, Summaries
from tidegate.operate.states import State
from tidegate.operate.status import WINDOW

__all__ = ["status"]

_Group = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="One group, with its partitions.", autocompletion=complete_groups),
]
_Watch = Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it until SIGINT.")]
_Every = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="With --watch: how often.")]
_Window = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The period over which states are judged.")]
_Member = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST:PORT", help="A running consumer's metrics port, to show how far it has read; repeatable."
    ),
]
_Check = Annotated[bool, typer.Option("--check", help="End with code 1 if something is stalled, stopped or lagging.")]

_ALARMING = {State.STALLED, State.STOPPED, State.LAGGING}
_SUMMARY = (
    Heading("group"),
    Heading("state"),
    Heading("partitions", is_number=True),
    Heading("owned", is_number=True),
    Heading("lag", is_number=True),
    Heading("dead letters", is_number=True),
    Heading("updated at", spare=2),
    Heading("topics", spare=1),
)
_PARTITION = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("state"),
    Heading("committed", is_number=True),
    Heading("current", is_number=True, spare=4),
    Heading("stable end", is_number=True, spare=2),
    Heading("log end", is_number=True, spare=3),
    Heading("lag", is_number=True),
    Heading("behind", is_number=True),
    Heading("epoch", is_number=True, spare=5),
    Heading("owner", spare=1),
    Heading("updated at", spare=6),
)


@app.command("status")
def status(
    group: _Group = None,
    *,
    watch: _Watch = False,
    every: _Every = 2.0,
    window: _Window = WINDOW,
    member: _Member = None,
    check: _Check = False,
    no_kafka: NoKafka = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show how every group is doing, or one of them, partition by partition.

    Examples: tidegate status; tidegate status billing --watch; tidegate status billing --member localhost:9100
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        overview = Overview(store, surveyed(kafka, config, no_kafka=no_kafka), window=window)
        if group is not None:
            known_group(store, group)
        shown = _shown(overview, group, member or ())
        _show(shown, json=json, watch=watch)
        try:
            while watch:
                time.sleep(every)
                _show(_shown(overview, group, member or ()), json=json, watch=True)
        except KeyboardInterrupt:  # stopped by the user
            return
        if check and _states(shown) & _ALARMING:
            raise typer.Exit(ExitCode.FAILED)


def _shown(overview: Overview, group: str | None, members: Sequence[str]) -> Summaries | GroupStatus:
    return overview.groups() if group is None else overview.group(group, members=members)


def _show(shown: Summaries | GroupStatus, *, json: bool, watch: bool) -> None:
    if json:
        (line if watch else document)(shown)
    else:
        if watch and sys.stdout.isatty():
            typer.echo("\x1b[H\x1b[2J", nl=False)
        _show_groups(shown) if isinstance(shown, Summaries) else _show_group(shown)
    sys.stdout.flush()


def _states(shown: Summaries | GroupStatus) -> set[State]:
    return {each.state for each in shown.groups} if isinstance(shown, Summaries) else {shown.state}


def _show_groups(shown: Summaries) -> None:
    rows = [
        (
            *(each.group, each.state, each.partitions, each.owned, each.lag_records, each.dead_letters),
            *(each.updated_at, each.topics),
        )
        for each in shown.groups
    ]
    if rows:
        table(_SUMMARY, rows)
    else:
        said("the ledger has no groups")
    if shown.kafka:
        said(f"no lag is shown: {shown.kafka}")


def _show_group(shown: GroupStatus) -> None:
    lag = "lag not known" if shown.lag_records is None else f"{counted(shown.lag_records, 'record')} behind"
    sizes = f"{counted(len(shown.partitions), 'partition')}, {counted(shown.owners, 'owner')}"
    letters = f", {counted(shown.dead_letters, 'dead letter')}" if shown.dead_letters else ""
    said(f"{shown.group}: {shown.state}, {sizes}, {lag}{letters}")
    rows = [
        (
            *(each.topic, each.partition, each.state, each.committed, each.current, each.stable_end, each.log_end),
            *(each.lag_records, each.lag_seconds, each.epoch, each.owner, each.updated_at),
        )
        for each in shown.partitions
    ]
    if rows:
        table(_PARTITION, rows)
    if shown.unstored:
        said(f"no position is stored for: {', '.join(shown.unstored)}")
    if shown.kafka:
        said(f"only the ledger's columns are shown: {shown.kafka}")
    for silent in shown.members:
        said(f"no current position from {silent}")
