"""The page of one group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from tidegate.operate.figures import GroupStatus, PartitionStatus
from tidegate.web.chart import Chart
from tidegate.web.rendering import render
from tidegate.web.site import Site, page, session_of, site_of
from tidegate.web.watch import GroupSeen

__all__ = ["group", "group_region"]

_ROWS = 100
_MARKS = 60  # that a chart has room for
_GAP = 30.0  # seconds without a look that interrupt a line


@dataclass(frozen=True)
class _Window:
    """How far back the charts go, and in which steps."""

    seconds: int
    text: str
    step: int


_WINDOWS = {
    "10m": _Window(600, "10 minutes", 5),
    "1h": _Window(3600, "1 hour", 30),
    "3h": _Window(3 * 3600, "3 hours", 60),
}


@dataclass(frozen=True)
class _View:
    status: GroupStatus
    window: str
    throughput: Chart
    lag: Chart
    rate: float | None
    cut: str | None
    page: int
    trouble: str | None

    @property
    def windows(self) -> list[tuple[str, str]]:
        return [(key, window.text) for key, window in _WINDOWS.items()]

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.status.partitions) // _ROWS))

    @property
    def rows(self) -> tuple[PartitionStatus, ...]:
        return self.status.partitions[(self.page - 1) * _ROWS : self.page * _ROWS]

    @property
    def first(self) -> int:
        return (self.page - 1) * _ROWS + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1

    @property
    def owned(self) -> int:
        return sum(each.owner is not None for each in self.status.partitions)

    @property
    def announcement(self) -> str:
        """What a screen reader is told when it changes."""
        return f"{self.status.group} is {self.status.state.value}"

    def link(self, **changed: object) -> str:
        """This view, with something else asked for."""
        asked = {"name": self.status.group, "window": self.window, "page": self.page} | changed
        return f"/group?{urlencode(asked)}"


def group(request: Request) -> Response:
    """One group: figures, charts, partitions."""
    site, asked = site_of(request), request.query_params
    name = asked.get("name", "")
    seen = site.watch.group_now(name)
    if not seen.status.partitions and not seen.status.paused:
        message = f"The ledger has no group {name!r}. One appears when its first consumer claims a partition."
        return page(request, "error.html", 404, heading="No such group", message=message)
    events = f"/events/group?{urlencode(dict(asked))}"
    view, told = _view(site, seen, asked), session_of(request).take_note()
    return page(request, "group.html", events=events, view=view, group=name, tab="partitions", told=told)


def group_region(site: Site, asked: Mapping[str, str]) -> str | None:
    """The parts of the page that change; ``None`` until the group was looked at."""
    seen = site.watch.group(asked.get("name", ""))
    if seen is None:
        return None
    view = _view(site, seen, asked)
    return render("group_title.html", view=view, site=site) + render("group_region.html", view=view)


def _view(site: Site, seen: GroupSeen, asked: Mapping[str, str]) -> _View:
    key = asked.get("window", "10m")
    key = key if key in _WINDOWS else "10m"
    window, now = _WINDOWS[key], time.time()
    since = now - window.seconds
    marks = seen.tail.marks(since, window.seconds / _MARKS)
    number = asked.get("page", "1")
    pages = max(1, -(-len(seen.status.partitions) // _ROWS))
    return _View(
        status=seen.status,
        window=key,
        throughput=Chart.of(seen.tail.throughput(since, now, window.step), since, now, marks),
        lag=Chart.of(site.watch.history.lag(seen.status.group, since, now), since, now, marks, _GAP),
        rate=seen.tail.rate(now),
        cut="The journal is busy: its newest entries are drawn, not all of this time." if seen.tail.is_cut else None,
        page=min(max(1, int(number) if number.isdecimal() and len(number) < 9 else 1), pages),
        trouble=seen.trouble,
    )
