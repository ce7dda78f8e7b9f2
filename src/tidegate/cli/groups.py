"""``tidegate groups``: what Kafka knows of consumer groups, beside what the ledger knows."""

from __future__ import annotations

from typing import Any

import typer

from tidegate.cli.connecting import Config, Debug, Json, Kafka, cluster
from tidegate.cli.failures import reported
from tidegate.cli.names import Group
from tidegate.cli.opening import LedgerUrl, opened_ledger
from tidegate.cli.output import Column, document, said, table
from tidegate.cli.root import app
from tidegate.core.errors import ConfigurationError
from tidegate.core.totals import Totals

__all__ = ["describe_group", "groups", "list_groups"]

groups = typer.Typer(no_args_is_help=True, help="Consumer groups: their members and what these were assigned.")
app.add_typer(groups, name="groups")

_LISTING = (
    Column("group"),
    Column("kafka"),
    Column("protocol"),
    Column("positions", is_number=True),
    Column("owned", is_number=True),
    Column("paused"),
)
_MEMBER = (Column("member"), Column("client"), Column("host"), Column("partitions"))


@groups.command("list")
def list_groups(
    *, json: Json = False, ledger: LedgerUrl = None, kafka: Kafka = None, config: Config = None, debug: Debug = False
) -> None:
    """List the groups that Kafka or the ledger knows."""
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        known = {each.group: each for each in cluster(kafka, config).groups()}
        stored = _stored(store.totals())
        found = []
        for name in sorted(known.keys() | stored.keys()):
            listing = known.get(name)
            in_kafka = None if listing is None else {"state": listing.state, "protocol": listing.protocol}
            found.append({"group": name, "kafka": in_kafka, "ledger": stored.get(name)})
        if json:
            document({"groups": found})
        else:
            table(_LISTING, [_row(each) for each in found])


@groups.command("describe")
def describe_group(
    group: Group,
    *,
    json: Json = False,
    ledger: LedgerUrl = None,
    kafka: Kafka = None,
    config: Config = None,
    debug: Debug = False,
) -> None:
    """Show the members of a group, where they are and what they were assigned.

    Example: tidegate groups describe billing
    """
    with reported(debug=debug), opened_ledger(ledger, config) as store:
        found = cluster(kafka, config).group(group)
        stored = _stored(store.totals()).get(group)
        if found is None and stored is None:
            raise ConfigurationError(f"neither Kafka nor the ledger knows a group {group!r}")
        if json:
            document({"group": group, "kafka": found, "ledger": stored})
            return
        if found is None:
            said(f"{group}: Kafka does not know it; nobody has joined it")
        else:
            said(f"{group}: {found.state}, protocol {found.protocol}, assignor {found.assignor or 'none'}")
            said(f"coordinator: {found.coordinator}")
        if stored is None:
            said("ledger: no positions")
        else:
            paused = ", paused" if stored["paused"] else ""
            said(f"ledger: {stored['partitions']} positions, {stored['owned']} with an owner{paused}")
        if found is not None and found.members:
            table(_MEMBER, [(each.member_id, each.client_id, each.host, each.partitions) for each in found.members])


def _stored(totals: list[Totals]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for total in totals:
        each = found.setdefault(total.group, {"partitions": 0, "owned": 0, "paused": total.paused})
        each["partitions"] += total.partitions
        each["owned"] += total.owned
    return found


def _row(found: dict[str, Any]) -> tuple[Any, ...]:
    known, stored = found["kafka"] or {}, found["ledger"] or {}
    ours = (stored.get("partitions"), stored.get("owned"), stored.get("paused"))
    return (found["group"], known.get("state"), known.get("protocol"), *ours)
