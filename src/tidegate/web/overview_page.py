"""The page of all groups."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.core.verdicts import State
from tidegate.operate.figures import GroupSummary
from tidegate.web.chart import spark
from tidegate.web.history import FINE
from tidegate.web.rendering import render
from tidegate.web.site import Site, page, site_of

__all__ = ["overview", "overview_region"]

_ROWS = 50
_ORDERS = (("state", "Worst first"), ("lag", "Most lag first"), ("name", "By name"))
_GRAVITY = {
    State.STALLED: 0,
    State.STOPPED: 1,
    State.LAGGING: 2,
    State.REWOUND: 3,
    State.PAUSED: 4,
    State.UNKNOWN: 5,
    State.OK: 6,
}
_ATTENTION = {State.STALLED, State.STOPPED, State.LAGGING}


@dataclass(frozen=True)
class _Totals:
    groups: int
    partitions: int
    owned: int
    lag: int | None
    attention: int


@dataclass(frozen=True)
class _Row:
    group: str
    state: State
    lag_records: int | None
    spark: str
    partitions: int
    owned: int
    topics: tuple[str, ...]
    updated_at: datetime | None


@dataclass(frozen=True)
class _View:
    """What is asked for, and what of it is on this page."""

    query: str
    state: str
    sort: str
    page: int
    pages: int
    found: int
    rows: tuple[_Row, ...]
    counts: tuple[tuple[str, int], ...]
    totals: _Totals
    kafka: str | None
    trouble: str | None
    orders: tuple[tuple[str, str], ...] = _ORDERS

    @property
    def first(self) -> int:
        return (self.page - 1) * _ROWS + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1

    @property
    def announcement(self) -> str:
        """What a screen reader is told when it changes."""
        return f"{self.totals.attention} of {self.totals.groups} groups need attention"

    def link(self, **changed: object) -> str:
        """This view, with something else asked for."""
        asked = {"q": self.query, "state": self.state, "sort": self.sort, "page": self.page} | changed
        return f"/?{urlencode({key: value for key, value in asked.items() if value and (key, value) not in _USUAL})}"


_USUAL = {("sort", "state"), ("page", 1)}


def overview(request: Request) -> Response:
    """All groups, or those that were asked for."""
    asked = request.query_params
    view = _view(site_of(request), asked)
    return page(request, "overview.html", events=f"/events/overview?{urlencode(dict(asked))}", view=view)


def overview_region(site: Site, asked: Mapping[str, str]) -> str:
    """The parts of the page that change."""
    view = _view(site, asked)
    return render("overview_totals.html", view=view) + render("overview_list.html", view=view)


def _view(site: Site, asked: Mapping[str, str]) -> _View:
    seen = site.watch.summaries()
    groups = seen.summaries.groups
    query, state = asked.get("q", "").strip(), asked.get("state", "")
    sort = asked.get("sort", "state")
    found = [each for each in groups if _matches(each, query.casefold(), state)]
    found.sort(key=_order(sort))
    pages = max(1, -(-len(found) // _ROWS))
    number = min(max(1, _whole(asked.get("page"))), pages)
    states = Counter(each.state for each in groups)
    lags = [each.lag_records for each in groups if each.lag_records is not None]
    return _View(
        query=query,
        state=state,
        sort=sort if sort in dict(_ORDERS) else "state",
        page=number,
        pages=pages,
        found=len(found),
        rows=tuple(_row(site, each) for each in found[(number - 1) * _ROWS : number * _ROWS]),
        counts=tuple((each.value, states[each]) for each in _GRAVITY if states[each]),
        totals=_Totals(
            len(groups),
            sum(each.partitions for each in groups),
            sum(each.owned for each in groups),
            sum(lags) if lags else None,
            sum(states[each] for each in _ATTENTION),
        ),
        kafka=seen.summaries.kafka,
        trouble=seen.trouble,
    )


def _matches(group: GroupSummary, query: str, state: str) -> bool:
    if state and group.state.value != state:
        return False
    return not query or query in group.group.casefold() or any(query in topic.casefold() for topic in group.topics)


def _order(sort: str) -> Callable[[GroupSummary], tuple[int | str, ...]]:
    if sort == "name":
        return lambda each: (each.group,)
    if sort == "lag":
        return lambda each: (-(each.lag_records or 0), each.group)
    return lambda each: (_GRAVITY[each.state], -(each.lag_records or 0), each.group)


def _row(site: Site, group: GroupSummary) -> _Row:
    now = time.time()
    return _Row(
        group.group,
        group.state,
        group.lag_records,
        spark(site.watch.history.lag(group.group, now - FINE, now)),
        group.partitions,
        group.owned,
        group.topics,
        group.updated_at,
    )


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else 1
