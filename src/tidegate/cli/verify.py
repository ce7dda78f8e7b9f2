"""``tidegate verify``: whether the journal explains every position."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli.codes import ExitCode
from tidegate.cli.connecting import Config, Debug, Json
from tidegate.cli.failures import reported
from tidegate.cli.names import complete_groups, known_group
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import Column, document, said, table
from tidegate.cli.root import app
from tidegate.core.journal import Verification

__all__ = ["verify"]

_Group = Annotated[
    str | None,
    typer.Argument(metavar="[GROUP]", help="One group; otherwise all of them.", autocompletion=complete_groups),
]
_COLUMNS = (
    Column("group"),
    Column("verdict"),
    Column("partitions", is_number=True),
    Column("entries", is_number=True),
    Column("first break"),
)


@app.command("verify")
def verify(
    group: _Group = None,
    *,
    json: Json = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Prove from the journal that nothing was skipped or repeated unsaid; ends with code 1 if that fails.

    Example: tidegate verify billing
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        if group is not None:
            known_group(store, group)
        names = sorted({total.group for total in store.totals()}) if group is None else [group]
        found = {name: store.verify(name) for name in names}
        ok = all(each.ok for each in found.values())
        if json:
            document({"ok": ok, "groups": [_members(name, each) for name, each in found.items()]})
        elif found:
            table(_COLUMNS, [_row(name, each) for name, each in found.items()])
        else:
            said("the ledger has no groups")
        if not ok:
            raise typer.Exit(ExitCode.FAILED)


def _row(group: str, found: Verification) -> tuple[Any, ...]:
    verdict = "ok" if found.ok else f"{len(found.breaks)} broken"
    return group, verdict, found.partitions, found.entries, None if found.ok else str(found.breaks[0])


def _members(group: str, found: Verification) -> dict[str, Any]:
    return {
        "group": group,
        "ok": found.ok,
        "partitions": found.partitions,
        "entries": found.entries,
        "breaks": [{**each.partition._asdict(), "seq": each.seq, "reason": each.reason} for each in found.breaks],
    }
