"""``tidegate adopt`` and ``hand-back``: take positions over from other tools, and give them back to Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.options import (
    Config,
    Debug,
    Group,
    Json,
    Kafka,
    LedgerUrl,
    app,
    cluster,
    complete_groups,
    complete_topics,
    opened_ledger,
    reported,
)
from tidegate.cli.output import Heading, counted, document, said, table, unbroken
from tidegate.cli.positions import Execute, Reason, User, interruptible, login
from tidegate.core.arguments import argument
from tidegate.core.policies import Start
from tidegate.operate.adopt import (
    Adoption,
    AdoptPreview,
    HandBack,
    HandBackPreview,
    InDoubt,
    KafkaGroup,
)
from tidegate.operate.checkpoint import Checkpoint
from tidegate.operate.connector import Connector, new_file
from tidegate.operate.status import plain
from tidegate.settings import Settings

__all__ = ["adopt", "adopt_checkpoint", "adopt_connect", "adopt_group", "hand_back"]


adopt = typer.Typer(
    no_args_is_help=True,
    help="Take positions over from a consumer group, a checkpoint of Structured Streaming or a Connect sink.",
)
app.add_typer(adopt, name="adopt")

_Into = Annotated[
    str, typer.Option("--into", metavar="GROUP", help="The group of the ledger.", autocompletion=complete_groups)
]
_Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this; may be given again.", autocompletion=complete_topics),
]
_Start = Annotated[
    str | None,
    typer.Option(
        "--start",
        metavar="START",
        help="Where partitions begin that have no offset: earliest, latest, or a time. Default: listener.start.",
    ),
]
_Choice = Annotated[
    InDoubt | None, typer.Option("--in-doubt", help="What becomes of records that may have been written.")
]
_Replace = Annotated[bool, typer.Option("--replace", help="Overwrite the positions that the group has.")]
_Force = Annotated[bool, typer.Option("--force", help="Store an offset whose records Kafka has deleted.")]

_POSITIONS = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("old", is_number=True),
    Heading("new", is_number=True),
    Heading("from"),
)
_DOUBTS = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("from", is_number=True),
    Heading("to", is_number=True),
    Heading("records", is_number=True),
)
_HANDED = (
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("committed", is_number=True),
    Heading("new", is_number=True),
)
_NOTHING_YET = "nothing was changed; add --execute to do it"


@adopt.command("group")
def adopt_group(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The consumer group of Kafka.")],
    *,
    into: _Into,
    topic: _Topics = None,
    start: _Start = None,
    in_doubt: _Choice = None,
    replace: _Replace = False,
    force: _Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Take over the committed offsets of a consumer group that has no members. Without --execute, this is a preview.

    Example: tidegate adopt group billing-v1 --into billing --execute
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        survey = cluster(kafka, config)
        adoption = Adoption(
            store,
            survey,
            KafkaGroup(survey, old),
            into,
            topics=topic or (),
            start=_start(start, config),
            in_doubt=in_doubt,
            replace=replace,
            force=force,
        )
        _show(_adopted(adoption, execute, user, reason), execute=execute, json=json)


@adopt.command("checkpoint")
def adopt_checkpoint(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="The checkpoint, on this machine.")],
    *,
    into: _Into,
    topic: _Topics = None,
    start: _Start = None,
    in_doubt: _Choice = None,
    stopped: Annotated[bool, typer.Option("--stopped", help="Say that the query does not run.")] = False,
    source: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="This source of the query, counted from 0.")
    ] = None,
    without_state: Annotated[
        bool, typer.Option("--without-state", help="Leave the state of the query behind, and begin with none.")
    ] = False,
    replace: _Replace = False,
    force: _Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Take over where a query of Structured Streaming stopped. Without --execute, this is a preview.

    Example: tidegate adopt checkpoint /var/checkpoints/orders --into orders --stopped --in-doubt repeat --execute
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        found = Checkpoint(directory, stopped=stopped, source=source, without_state=without_state)
        adoption = Adoption(
            store,
            cluster(kafka, config),
            found,
            into,
            topics=topic or (),
            start=_start(start, config),
            in_doubt=in_doubt,
            replace=replace,
            force=force,
        )
        _show(_adopted(adoption, execute, user, reason), execute=execute, json=json)


@adopt.command("connect")
def adopt_connect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration of the connector, as JSON.")],
    *,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="GROUP",
            help="The group of the ledger. Default: sink- and the connector's name.",
            autocompletion=complete_groups,
        ),
    ] = None,
    toml: Annotated[
        Path | None, typer.Option("--toml", metavar="FILE", help="With --execute: write the settings to this new file.")
    ] = None,
    settings_only: Annotated[
        bool, typer.Option("--settings-only", help="Convert the settings; ask neither Kafka nor the ledger.")
    ] = False,
    start: _Start = None,
    in_doubt: _Choice = None,
    replace: _Replace = False,
    force: _Force = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Take over a JDBC sink of Kafka Connect: its settings and its offsets. Without --execute, this is a preview.

    Example: tidegate adopt connect orders.json --into sink-orders --toml tidegate.toml --execute
    """
    with reported(debug=debug), unbroken():
        connector = Connector.read(file)
        group = into or f"sink-{connector.name}"
        text = connector.toml(group)
        preview = None
        if not settings_only:
            with opened_ledger(ledger, config) as store:
                survey = cluster(kafka, config)
                source = KafkaGroup(survey, connector.group, "Kafka group of the connector")
                adoption = Adoption(
                    store,
                    survey,
                    source,
                    group,
                    start=_start(start, config),
                    in_doubt=in_doubt,
                    replace=replace,
                    force=force,
                )
                preview = adoption.preview()
                if toml is not None and execute:
                    new_file(toml, text)  # first, so that an adoption is never reported as a file that failed
                if execute:
                    with interruptible():
                        preview = adoption.execute(preview, user=login(user), reason=reason)
        elif toml is not None and execute:
            new_file(toml, text)
        left = connector.left_out()
        if json:
            shown = {} if preview is None else plain(preview)
            document({"executed": execute, **shown, "toml": text, "left_out": left})
            return
        if preview is not None:
            _show(preview, execute=execute, json=False)
        if toml is not None and execute:
            said(f"the settings are in {toml}")
        else:
            for line in ("", *text.splitlines()):
                said(line)
        for name, advice in left.items():
            said(f"{name}: {advice}")
        if preview is None and not execute:
            said(_NOTHING_YET if toml is not None else "these are the settings alone; no position was looked at")


@app.command("hand-back")
def hand_back(
    group: Group,
    *,
    to: Annotated[str, typer.Option("--to", metavar="OLD", help="The consumer group of Kafka.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Let the consumer group move back, so that it repeats records.")
    ] = False,
    fence: Annotated[
        bool, typer.Option("--fence", help="Take partitions away from owners that are gone, such as killed processes.")
    ] = False,
    execute: Execute = False,
    reason: Reason = None,
    user: User = None,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Give the positions of a group back to a consumer group of Kafka. Without --execute, this is a preview.

    Example: tidegate hand-back billing --to billing-v1 --execute
    """
    with reported(debug=debug), unbroken(), opened_ledger(ledger, config) as store:
        handing = HandBack(store, cluster(kafka, config), group, to, replace=replace, fence=fence)
        preview = handing.preview()
        if execute:
            with interruptible():
                preview = handing.execute(preview, user=login(user), reason=reason)
        if json:
            document({"executed": execute, **plain(preview)})
        else:
            _show_hand_back(preview, execute=execute)


def _start(given: str | None, config: Path | None) -> Start:
    if given is None:
        return Settings.load(config).listener.start
    start: Start = argument("--start", Start, given)
    return start


def _adopted(adoption: Adoption, execute: bool, user: str | None, reason: str | None) -> AdoptPreview:
    preview = adoption.preview()
    if not execute:
        return preview
    with interruptible():
        return adoption.execute(preview, user=login(user), reason=reason)


def _show(preview: AdoptPreview, *, execute: bool, json: bool) -> None:
    if json:
        document({"executed": execute, **plain(preview)})
        return
    table(_POSITIONS, [(p.topic, p.partition, p.old, p.new, p.origin.value) for p in preview.positions])
    if preview.doubts:
        said("")
        said(_doubt(preview))
        table(_DOUBTS, [(d.topic, d.partition, d.start, d.end, d.records) for d in preview.doubts])
    for sentence in preview.warnings:
        said(f"warning: {sentence}")
    said(f"{preview.group}: {counted(len(preview.positions), 'position')} from {preview.title}")
    if preview.done:
        said("the group has these positions already; nothing was changed")
    else:
        said("done, and journalled" if execute else _NOTHING_YET)


def _doubt(preview: AdoptPreview) -> str:
    records = counted(preview.records_in_doubt, "record")
    if not preview.exact:
        return (
            f"in doubt are {records} at most, from the committed offset to the end of the log: how many of them were "
            "written is not recorded, and those are written again"
        )
    match preview.in_doubt:
        case None:
            what = "look whether they are in the table, and choose --in-doubt repeat or --in-doubt skip"
        case InDoubt.REPEAT:
            what = "they are read again"
        case InDoubt.SKIP:
            what = "they are skipped"
    return f"in doubt are exactly these {records}, of which any may be written: {what}"


def _show_hand_back(preview: HandBackPreview, *, execute: bool) -> None:
    table(_HANDED, [(p.topic, p.partition, p.old, p.new) for p in preview.positions])
    for sentence in preview.warnings:
        said(f"warning: {sentence}")
    owners = f", {counted(len(preview.owners), 'owner')} fenced" if preview.owners else ""
    said(f"{preview.group}: {counted(len(preview.positions), 'offset')} for Kafka group {preview.to}{owners}")
    if preview.done:
        said("this was done already; nothing was changed")
    else:
        said("done, and journalled; the group is paused" if execute else _NOTHING_YET)
