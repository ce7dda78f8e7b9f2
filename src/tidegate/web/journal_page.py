"""The page of a group's journal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from tidegate.core.journal import Entry, Kind
from tidegate.core.records import TopicPartition
from tidegate.web.site import page, site_of

__all__ = ["journal"]

_AT_ONCE = 200
_MOST_LOOKED_AT = 50_000
_NOTABLE = "notable"
_SPANS = {"15m": 15, "1h": 60, "24h": 24 * 60, "all": 0}
_SPAN_TEXTS = (("15m", "Last 15 minutes"), ("1h", "Last hour"), ("24h", "Last 24 hours"), ("all", "All"))


def journal(request: Request) -> Response:
    """The newest entries, of one kind or partition if that is asked for; and whether the whole adds up, on request."""
    asked, ledger = request.query_params, site_of(request).ledger
    group = asked.get("group", "")
    partitions = sorted(ledger.read(group).positions)
    chosen = next((tp for tp in partitions if str(tp) == asked.get("partition")), None)
    since = asked.get("since", "24h")
    since = since if since in _SPANS else "24h"
    newest = islice(ledger.newest(group, chosen), _MOST_LOOKED_AT)
    found = list(islice(_wanted(newest, asked.get("kind", ""), _SPANS[since]), _AT_ONCE + 1))
    return page(
        request,
        "journal.html",
        group=group,
        tab="journal",
        entries=found[:_AT_ONCE],
        cut=len(found) > _AT_ONCE,
        kinds=[kind.value for kind in Kind],
        partitions=partitions,
        spans=_SPAN_TEXTS,
        asked={"kind": asked.get("kind", ""), "partition": _text(chosen), "since": since},
        verified=ledger.verify(group) if asked.get("verify") else None,
    )


def _wanted(entries: Iterator[Entry], kind: str, minutes: int) -> Iterator[Entry]:
    oldest = datetime.now(UTC) - timedelta(minutes=minutes) if minutes else None
    for entry in entries:
        if oldest is not None and entry.at is not None and entry.at < oldest:
            return
        if not kind or entry.kind == kind or (kind == _NOTABLE and entry.kind is not Kind.ADVANCE):
            yield entry


def _text(partition: TopicPartition | None) -> str:
    return "" if partition is None else str(partition)
