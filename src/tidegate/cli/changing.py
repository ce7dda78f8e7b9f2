"""Changing: what the commands that change a group have in common."""

from __future__ import annotations

import getpass
from typing import Annotated

import typer

from tidegate.cli.output import Column, counted, said, table
from tidegate.operate import Action, EditPreview, PausePreview

__all__ = ["Execute", "Force", "Reason", "User", "login", "show_edit", "show_pause"]

Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, only show what would be done.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the journal.")]
User = Annotated[str | None, typer.Option(metavar="NAME", help="Who, for the journal; otherwise the login.")]
Force = Annotated[bool, typer.Option("--force", help="Do what would be refused because it may be a mistake.")]

_SHIFT = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("old", is_number=True),
    Column("new", is_number=True),
    Column("records", is_number=True),
    Column("fenced owner"),
)


def login(user: str | None) -> str:
    """Who does it."""
    if user is not None:
        return user
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return "unknown"


def show_edit(preview: EditPreview, *, executed: bool) -> None:
    """Show which positions move, or moved, and whom that concerns."""
    table(_SHIFT, [(s.topic, s.partition, s.old, s.new, s.records, s.owner) for s in preview.shifts])
    for sentence in preview.unmoved:
        said(f"not moved: {sentence}")
    for sentence in preview.warnings:
        said(f"warning: {sentence}")
    done = "to be read again" if preview.action is Action.REWIND else "stepped over"
    facts = f"{counted(preview.records, 'record')} {done}, {counted(len(preview.owners), 'owner')} fenced"
    said(f"{preview.group}: {facts}")
    said("done, and journalled" if executed else "nothing was changed; add --execute to do it")


def show_pause(preview: PausePreview, *, executed: bool) -> None:
    """Show which group is concerned."""
    if not preview.changes:
        said(f"{preview.group}: is {'paused' if preview.action is Action.PAUSE else 'not paused'} already")
        return
    word = f"{preview.action}d"
    facts = f"{counted(preview.partitions, 'partition')}, {counted(len(preview.owners), 'owner')}"
    if executed:
        said(f"{preview.group}: was {word} ({facts}), and that was journalled")
    else:
        said(f"{preview.group}: would be {word} ({facts})")
        said("nothing was changed; add --execute to do it")
