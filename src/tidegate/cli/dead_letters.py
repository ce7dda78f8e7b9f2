"""``tidegate dead-letters``: list, show, drop and replay the records that were parked."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.app.app import App
from tidegate.app.configured import configured
from tidegate.app.replay import Replay, Replayed, ReplayOutcome
from tidegate.cli.changing import Execute
from tidegate.cli.codes import ExitCode
from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.failures import reported
from tidegate.cli.letters import letter_text, listed, show_letters, whole
from tidegate.cli.loading import load
from tidegate.cli.names import Group, complete_groups
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import counted, document, said
from tidegate.cli.root import app
from tidegate.cli.watching import LogLevel, log_to_stderr
from tidegate.core.errors import ConfigurationError, LedgerError
from tidegate.ledger.letters import find_letters
from tidegate.settings import Settings

__all__ = ["drop", "list_letters", "replay", "show"]

letters = typer.Typer(
    no_args_is_help=True, help="Records whose handling failed for good: look at them, try them again."
)
app.add_typer(letters, name="dead-letters")

_AnyGroup = Annotated[
    str | None,
    typer.Argument(
        metavar="[GROUP]", help="The consumer group; without it all of them.", autocompletion=complete_groups
    ),
]
_Names = Annotated[
    list[str],
    typer.Argument(
        metavar="[MODULE:APP] GROUP", help="The app, such as shop:app, or the settings' sinks; and the consumer group."
    ),
]
_Id = Annotated[int, typer.Argument(metavar="ID", help="Its number, as the list has it.")]
_Ids = Annotated[list[int] | None, typer.Option("--id", metavar="N", help="This letter; may be given again.")]
_All = Annotated[bool, typer.Option("--all", help="All of them.")]
_Topic = Annotated[str | None, typer.Option(metavar="TOPIC", help="Only those of this topic.")]
_Limit = Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")]


@letters.command("list")
def list_letters(
    group: _AnyGroup = None,
    *,
    topic: _Topic = None,
    limit: _Limit = 100,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """List dead letters, oldest first, without their payloads."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        groups = sorted({total.group for total in opened.totals()}) if group is None else [group]
        each = (listed(parked) for name in groups for parked in find_letters(opened, name, topic=topic))
        found = list(islice(each, limit))
        if json:
            document({"dead_letters": found})
        else:
            show_letters(found)


@letters.command("show")
def show(
    group: Group,
    number: _Id,
    *,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show one dead letter with its record: text as text, other bytes as base64, nothing that a terminal obeys."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        parked = opened.dead_letter(group, number)
        if parked is None:
            raise LedgerError(f"group {group!r} has no dead letter {number}; `tidegate dead-letters list` shows them")
        if json:
            document(whole(parked))
        else:
            typer.echo(letter_text(parked))


@letters.command("drop")
def drop(
    group: Group,
    *,
    ids: _Ids = None,
    every: _All = False,
    topic: _Topic = None,
    execute: Execute = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Remove dead letters for good. Without --execute it is only shown which."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        chosen = _chosen(ids, every=every)
        found = [listed(parked) for parked in find_letters(opened, group, chosen, topic)]
        if not execute:
            _preview(found, "dropped", json=json)
            return
        dropped = opened.drop_letters(group, [each["id"] for each in found])
        if json:
            document({"dropped": dropped})
        else:
            said(f"dropped {counted(dropped, 'dead letter')}")


@letters.command("replay")
def replay(
    names: _Names,
    *,
    ids: _Ids = None,
    every: _All = False,
    topic: _Topic = None,
    execute: Execute = False,
    json: Json = False,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Give dead letters to their listener once more. Without --execute it is only shown which.

    A letter goes in the transaction that handles its record, so it is handled exactly once. One that fails again stays.
    """
    with reported(debug=debug):
        if len(names) > 2:
            raise ConfigurationError("name the app and the group: tidegate dead-letters replay shop:app billing --all")
        log_to_stderr(LogLevel.WARNING)
        loaded, group = _loaded(names[:-1], config), names[-1]
        chosen = _chosen(ids, every=every)
        try:
            if not execute:
                meant = find_letters(Replay(loaded.ledger, loaded.listeners, group).ledger, group, chosen, topic)
                _preview([listed(parked) for parked in meant], "replayed", json=json)
                return
            done = loaded.replay(group, chosen, topic=topic, tell=_tell_nothing if json else _tell)
        finally:
            if loaded.ledger is not None:
                loaded.ledger.close()
        if json:
            document({"replayed": [_members(each) for each in done]})
        else:
            each = (f"{sum(one.outcome is outcome for one in done)} {outcome.value}" for outcome in ReplayOutcome)
            said(", ".join(each))
        raise typer.Exit(ExitCode.FAILED if any(each.outcome is ReplayOutcome.FAILED for each in done) else ExitCode.OK)


def _loaded(target: list[str], config: Path | None) -> App:
    if config is not None:
        os.environ["TIDEGATE_CONFIG"] = str(config.resolve())
    found = load(target[0]) if target else configured(Settings.load())
    if not isinstance(found, App):
        raise ConfigurationError(f"{target[0]} is of type {type(found).__name__}; dead letters are replayed by an App")
    return found


def _chosen(ids: list[int] | None, *, every: bool) -> set[int] | None:
    """The ids that were named; ``None`` stands for all."""
    if bool(ids) == every:
        raise ConfigurationError("which ones? Give --id N, as often as there are letters, or --all; not both")
    return set(ids) if ids else None


def _preview(found: list[dict[str, Any]], what: str, *, json: bool) -> None:
    if json:
        document({f"would_be_{what}": found})
        return
    show_letters(found)
    said(f"{counted(len(found), 'dead letter')} would be {what}; nothing was changed; add --execute to do it")


def _tell(each: Replayed) -> None:
    where = "" if each.partition is None else f" {each.partition} offset {each.offset}"
    more = f": {each.error}" if each.error else ""
    if each.parked_anew:
        more = f", and {counted(each.parked_anew, 'command')} of it failed and became a dead letter"
    said(f"{each.id}{where}: {each.outcome.value}{more}")


def _tell_nothing(each: Replayed) -> None:
    """JSON is one document, and comes at the end."""


def _members(each: Replayed) -> dict[str, Any]:
    topic, partition = each.partition or (None, None)
    return {
        "id": each.id,
        "topic": topic,
        "partition": partition,
        "offset": each.offset,
        "outcome": each.outcome,
        "attempts": each.attempts,
        "error": each.error,
        "parked_anew": each.parked_anew,
    }
