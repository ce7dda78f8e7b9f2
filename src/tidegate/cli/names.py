"""Names: groups and topics as arguments, which a shell can complete."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli.connecting import surveyed
from tidegate.cli.opening import opened_ledger
from tidegate.core.errors import ConfigurationError
from tidegate.core.positions import GroupState
from tidegate.ledger import Ledger

__all__ = ["Group", "Topic", "complete_groups", "complete_topics", "known_group"]


def complete_groups(incomplete: str) -> list[str]:
    """The ledger's groups that begin so, for the shell: an error would be in the way of whoever types."""
    try:
        with opened_ledger(None, None) as ledger:
            return sorted({total.group for total in ledger.totals() if total.group.startswith(incomplete)})
    except Exception:
        return []


def complete_topics(incomplete: str) -> list[str]:
    """The cluster's topics that begin so, likewise."""
    try:
        survey = surveyed(None, None)
        return [] if survey is None else [each.topic for each in survey.topics() if each.topic.startswith(incomplete)]
    except Exception:
        return []


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_groups)]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topics)]


def known_group(ledger: Ledger[Any], group: str) -> GroupState:
    """A group that the ledger has, or else an error that names those that it has."""
    state = ledger.read(group)
    if not state.positions and not state.paused:
        names = sorted({total.group for total in ledger.totals()})
        if group not in names:
            there = ", ".join(names[:10]) or "none"
            more = f" and {len(names) - 10} more" if len(names) > 10 else ""
            raise ConfigurationError(f"the ledger has no group {group!r}; it has: {there}{more}")
    return state
