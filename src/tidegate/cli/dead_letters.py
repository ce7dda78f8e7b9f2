"""``tidegate dead-letters``: list, show, drop and replay parked records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.app.app import App, configured
from tidegate.app.replay import Replay, Replayed, ReplayOutcome
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
from tidegate.cli.output import Heading, counted, document, harmless, lines_of, members, said, table
from tidegate.cli.positions import Execute, interruptible
from tidegate.cli.run import load
from tidegate.cli.serve import LogLevel, log_to_stderr
from tidegate.core.records import LetterHead, StoredLetter
from tidegate.errors import ConfigurationError, LedgerError
from tidegate.ledger.letters import find_heads
from tidegate.operate import plain
from tidegate.operate.letters import LetterKind, kinds
from tidegate.settings import Settings

__all__ = ["drop", "letter_text", "list_letters", "listed", "replay", "show", "show_letters", "whole"]


_LONGEST_ERROR = 80
_ERROR = 4_096  # characters of an error that JSON has in a list
_KINDS = (
    Heading("group"),
    Heading("letters", is_number=True),
    Heading("first", is_number=True),
    Heading("last", is_number=True),
    Heading("error"),
)
_COLUMNS = (
    Heading("id", is_number=True),
    Heading("group"),
    Heading("topic"),
    Heading("partition", is_number=True),
    Heading("offset", is_number=True),
    Heading("attempts", is_number=True),
    Heading("at"),
    Heading("error"),
)


def listed(head: LetterHead) -> dict[str, Any]:
    """Return a dead letter without its payload, and the beginning of its error."""
    return {
        "id": head.id,
        "group": head.group,
        "topic": head.topic,
        "partition": head.partition,
        "offset": head.offset,
        "attempts": head.attempts,
        "error": f"{head.error}…" if head.is_error_cut else head.error,
        "at": head.at,
        "key_bytes": head.key_bytes,
        "value_bytes": head.value_bytes,
    }


def whole(parked: StoredLetter) -> dict[str, Any]:
    """Return a dead letter with its whole record."""
    record, error, attempts = parked.letter
    return {
        "id": parked.id,
        "group": parked.group,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempts": attempts,
        "error": error,
        "at": parked.at,
        "key_bytes": None if record.key is None else len(record.key),
        "value_bytes": None if record.value is None else len(record.value),
        "record": members(record),
    }


def show_letters(letters: Sequence[dict[str, Any]]) -> None:
    """Print a table of dead letters as :func:`listed` returns them."""
    shown = ({**letter, "error": _cut(letter["error"])} for letter in letters)
    table(_COLUMNS, [[letter[column.name] for column in _COLUMNS] for letter in shown])


def letter_text(parked: StoredLetter) -> str:
    """Return everything about one dead letter as text. A payload that is not UTF-8 is shown as base64."""
    record, error, attempts = parked.letter
    stamp = record.timestamp
    facts = {
        "dead letter": parked.id,
        "group": parked.group,
        "record": f"{record.source} offset {record.offset}",
        "timestamp": "none" if stamp is None else plain(datetime.fromtimestamp(stamp / 1000, UTC)),
        "parked": plain(parked.at),
        "attempts": attempts,
        "error": error,
    }
    lines = [_fact(name, harmless(str(said))) for name, said in facts.items()]
    for name, value in record.headers:
        lines += _block(f"header {harmless(name)}", *lines_of(value))
    for name, content in (("key", record.key), ("value", record.value)):
        lines += _block(name, *lines_of(content))
    return "\n".join(lines)


def _block(name: str, what: str, shown: Iterable[str]) -> list[str]:
    return [_fact(name, what), *(f"    {line}" for line in shown)]


def _fact(name: str, said: str) -> str:
    return f"{name + ':':<12} {said}"


def _cut(error: str) -> str:
    shown = harmless(error)
    return shown if len(shown) <= _LONGEST_ERROR else f"{shown[: _LONGEST_ERROR - 1]}…"


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
_Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Only those of this topic.", autocompletion=complete_topics)
]
_ByError = Annotated[bool, typer.Option("--by-error", help="Count them by error; values in errors do not matter.")]
_Limit = Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")]


@letters.command("list")
def list_letters(
    group: _AnyGroup = None,
    *,
    topic: _Topic = None,
    limit: _Limit = 100,
    by_error: _ByError = False,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """List dead letters, oldest first, without their payloads; or count them by error."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        if group is not None:
            known_group(opened, group)
        counts = opened.count_letters()
        groups = sorted(counts) if group is None else [group]
        total = sum(counts.get(name, 0) for name in groups)
        if by_error:
            if topic is not None:
                raise ConfigurationError("--by-error counts the letters of all topics; leave --topic out")
            _show_kinds([(name, each) for name in groups for each in kinds(opened.letter_errors(name))], json=json)
        else:
            heads = (head for name in groups for head in find_heads(opened, name, topic=topic, most=_ERROR))
            found = [listed(head) for head in islice(heads, limit)]
            if json:
                document({"dead_letters": found, "total": total})
                return
            show_letters(found)
        if not json:
            said(_total(total, None if by_error else len(found), topic))


def _show_kinds(found: list[tuple[str, LetterKind]], *, json: bool) -> None:
    if json:
        document({"errors": [{"group": group, **each._asdict()} for group, each in found]})
    else:
        table(_KINDS, [(group, each.letters, each.first, each.last, _cut(each.kind)) for group, each in found])


def _total(total: int, shown: int | None, topic: str | None) -> str:
    if total == 0:
        return "no dead letters"
    if shown is None or shown == total:
        return f"{counted(total, 'dead letter')} in all"
    more = "of all topics" if topic is not None else "in all; --limit shows more"
    return f"{shown} shown, {counted(total, 'dead letter')} {more}"


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
    """Show one dead letter with its record: text as text, other bytes as base64, control characters escaped."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        known_group(opened, group)
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
    """Remove dead letters for good. Without --execute, this is a preview."""
    with reported(debug=debug), opened_ledger(ledger, config) as opened:
        known_group(opened, group)
        chosen = _chosen(ids, every=every)
        found = [listed(head) for head in find_heads(opened, group, chosen, topic, most=_ERROR)]
        if not execute:
            _preview(found, "dropped", json=json)
            return
        with interruptible():
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
    """Pass dead letters to their listeners again. Without --execute, this is a preview.

    The transaction that handles a record also removes its letter, so it is handled exactly once. A letter whose record
    fails again stays.
    """
    with reported(debug=debug):
        if len(names) > 2:
            raise ConfigurationError("name the app and the group: tidegate dead-letters replay shop:app billing --all")
        log_to_stderr(LogLevel.WARNING)
        loaded, group = _loaded(names[:-1], config), names[-1]
        chosen = _chosen(ids, every=every)
        try:
            if not execute:
                store = Replay(loaded.ledger, loaded.listeners, group).ledger
                meant = find_heads(store, group, chosen, topic, most=_ERROR)
                _preview([listed(head) for head in meant], "replayed", json=json)
                return
            done = _replayed(loaded, group, chosen, topic, json=json)
        finally:
            if loaded.ledger is not None:
                loaded.ledger.close()
        raise typer.Exit(ExitCode.FAILED if any(each.outcome is ReplayOutcome.FAILED for each in done) else ExitCode.OK)


def _replayed(app: App, group: str, chosen: set[int] | None, topic: str | None, *, json: bool) -> list[Replayed]:
    """Replay the dead letters and show the outcome of each, even if one of them raises and ends the replay."""
    done: list[Replayed] = []

    def tell(each: Replayed) -> None:
        done.append(each)
        if not json:  # JSON is a single document, printed at the end
            _tell(each)

    try:
        with interruptible():
            app.replay(group, chosen, topic=topic, tell=tell)
    finally:
        if json:
            document({"replayed": [_members(each) for each in done]})
        else:
            each = (f"{sum(one.outcome is outcome for one in done)} {outcome.value}" for outcome in ReplayOutcome)
            said(", ".join(each))
    return done


def _loaded(target: list[str], config: Path | None) -> App:
    if config is not None:
        os.environ["TIDEGATE_CONFIG"] = str(config.resolve())
    found = load(target[0]) if target else configured(Settings.load())
    if not isinstance(found, App):
        raise ConfigurationError(f"{target[0]} is of type {type(found).__name__}; dead letters are replayed by an App")
    return found


def _chosen(ids: list[int] | None, *, every: bool) -> set[int] | None:
    """Return the chosen ids; ``None`` stands for all."""
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
