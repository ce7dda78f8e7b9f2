"""The read-only pages: all groups, one group, its journal, its dead letters; and the login."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from tidegate.core.journal import Entry, Kind
from tidegate.core.records import LetterHead, TopicPartition, check_group
from tidegate.errors import InvalidName
from tidegate.operate.letters import kinds
from tidegate.operate.states import State
from tidegate.operate.status import GroupStatus, GroupSummary, PartitionStatus
from tidegate.web.chart import Chart, spark
from tidegate.web.history import FINE, Point
from tidegate.web.security import valid_csrf
from tidegate.web.site import Site, form_of, page, session_of, site_of
from tidegate.web.templates import Payload, render
from tidegate.web.watch import GroupSeen

__all__ = [
    "group",
    "group_region",
    "journal",
    "letter",
    "letter_part",
    "letters",
    "login",
    "logout",
    "overview",
    "overview_region",
    "show_login",
    "unknown_group",
]


def show_login(request: Request) -> Response:
    """Show the login form, which asks for the token."""
    return page(request, "login.html", failed=False)


async def login(request: Request) -> Response:
    """Begin a session if the token is correct."""
    site = site_of(request)
    if not site.token.opens((await form_of(request)).get("token", "")):
        return page(request, "login.html", 403, failed=True)
    site.entered()
    response = RedirectResponse("/", 303)
    response.set_cookie(
        site.rules.cookie,
        site.sessions.begin(),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


async def logout(request: Request) -> Response:
    """End the session and go to the login form."""
    site = site_of(request)
    if not valid_csrf(session_of(request), (await form_of(request)).get("csrf")):
        return RedirectResponse("/", 303)
    site.sessions.end(request.cookies.get(site.rules.cookie))
    request.app.state.stop.wake()  # the streams of this session end
    response = RedirectResponse("/login", 303)
    response.delete_cookie(site.rules.cookie, httponly=True, samesite="strict")
    return response


_LETTERS = 25  # per page
_KINDS = 20
_SHOWN = 8_192  # bytes of a key, a value or an error that the page of a letter shows
_LARGEST_DOWNLOAD = 64 << 20
_downloads = asyncio.Semaphore(2)  # each of them is in memory as a whole
_LARGEST_NUMBER = (1 << 63) - 1
_NOT_IN_A_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")  # Kafka allows no other characters in the name of a topic


def letters(request: Request) -> Response:
    """Show the dead letters of a group, in the order in which they were parked."""
    site, group, after = site_of(request), request.query_params.get("group", ""), _number(request, "after")
    if (unknown := unknown_group(request, group)) is not None:
        return unknown
    found = site.ledger.letter_heads(group, after=after, limit=_LETTERS + 1)
    count = site.ledger.count_letters().get(group, 0)
    errors = kinds(site.ledger.letter_errors(group)) if count else []
    return page(
        request,
        "letters.html",
        group=group,
        tab="letters",
        letters=found[:_LETTERS],
        more=len(found) > _LETTERS,
        after=after,
        count=count,
        kinds=errors[:_KINDS],
        told=session_of(request).take_note(),
        others=count - sum(each.letters for each in errors[:_KINDS]),
    )


def letter(request: Request) -> Response:
    """Show one dead letter with its key, value and headers."""
    head = _head(request, _SHOWN)
    if head is None:
        return _gone(request)
    return page(
        request,
        "letter.html",
        group=head.group,
        tab="letters",
        parked=head,
        key=Payload.of(head.key, head.key_bytes),
        value=Payload.of(head.value, head.value_bytes),
        headers=None if head.headers is None else [(name, Payload.of(value)) for name, value in head.headers],
    )


async def letter_part(request: Request) -> Response:
    """Return the raw key or value of a dead letter as a download, which a browser does not open by itself."""
    return _Download(request)


class _Download(Response):
    """The download of a letter's key or value. Few run at a time, so that their memory is bounded."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _downloads:
            response = await run_in_threadpool(_downloaded, self._request)
            await response(scope, receive, send)


def _downloaded(request: Request) -> Response:
    head, part = _head(request, 0), request.path_params["part"]
    if head is None or part not in {"key", "value"}:
        return _gone(request)
    if head.size > _LARGEST_DOWNLOAD:
        command = f"tidegate dead-letters show GROUP {head.id} --json"
        message = f"This dead letter is too large for the page. To see all of it, run: {command}"
        return page(request, "error.html", 413, heading="Too large", message=message)
    parked = site_of(request).ledger.dead_letter(head.group, head.id)
    if parked is None:
        return _gone(request)
    record = parked.letter.record
    content = record.key if part == "key" else record.value
    name = f"{_NOT_IN_A_FILE_NAME.sub('_', record.topic[:100])}-{record.partition}-{record.offset}-{part}.bin"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content or b"", media_type="application/octet-stream", headers=headers)


def _head(request: Request, most: int) -> LetterHead | None:
    group = request.query_params.get("group", "")
    if not _is_name(group):
        return None
    return site_of(request).ledger.letter_head(group, _number(request, "id"), most=most)


def unknown_group(request: Request, group: str) -> Response | None:
    """Return an error page if the ledger has no such group."""
    site = site_of(request)
    if _is_name(group):
        state = site.ledger.read(group)
        if state.positions or state.paused or any(total.group == group for total in site.ledger.totals()):
            return None
    return _no_group(request, group)


def _is_name(group: str) -> bool:
    """Return whether a group can have this name; databases refuse to look for some of the others."""
    try:
        return bool(check_group(group))
    except InvalidName:
        return False


def _no_group(request: Request, group: str) -> Response:
    message = f"The ledger has no group {group[:300]!r}. One appears when its first consumer claims a partition."
    return page(request, "error.html", 404, heading="No such group", message=message)


def _gone(request: Request) -> Response:
    message = "That dead letter does not exist: it was replayed or dropped, or its address is wrong."
    return page(request, "error.html", 404, heading="No such dead letter", message=message)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return min(int(text), _LARGEST_NUMBER) if text.isdecimal() and len(text) < 20 else 0


_ENTRIES = 200
_MOST_LOOKED_AT = 50_000
_NOTABLE = "notable"
_SPANS = {"15m": 15, "1h": 60, "24h": 24 * 60, "all": 0}
_SPAN_TEXTS = (("15m", "Last 15 minutes"), ("1h", "Last hour"), ("24h", "Last 24 hours"), ("all", "All"))


def journal(request: Request) -> Response:
    """Show the newest journal entries, filtered by kind, partition and age; verify the journal on request."""
    asked, ledger = request.query_params, site_of(request).ledger
    group = asked.get("group", "")
    if (unknown := unknown_group(request, group)) is not None:
        return unknown
    partitions = sorted(ledger.read(group).positions)
    chosen = next((tp for tp in partitions if str(tp) == asked.get("partition")), None)
    since = asked.get("since", "24h")
    since = since if since in _SPANS else "24h"
    newest = islice(ledger.newest(group, chosen), _MOST_LOOKED_AT)
    found = list(islice(_wanted(newest, asked.get("kind", ""), _SPANS[since]), _ENTRIES + 1))
    return page(
        request,
        "journal.html",
        group=group,
        tab="journal",
        entries=found[:_ENTRIES],
        cut=len(found) > _ENTRIES,
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


_PARTITIONS = 100
_MARKS = 60  # the number of marks that fit into a chart
_GAP = 30.0  # seconds without an observation, after which a line is interrupted


@dataclass(frozen=True)
class _Window:
    """The time range of the charts, and the length of their steps in seconds."""

    seconds: int
    text: str
    step: int


_WINDOWS = {
    "10m": _Window(600, "10 minutes", 5),
    "1h": _Window(3600, "1 hour", 30),
    "3h": _Window(3 * 3600, "3 hours", 60),
    "24h": _Window(24 * 3600, "24 hours", 600),
}


@dataclass(frozen=True)
class _GroupView:
    status: GroupStatus
    window: str
    throughput: Chart
    lag: Chart
    rate: float | None
    cut: str | None
    gaps: str | None
    page: int
    trouble: str | None

    @property
    def windows(self) -> list[tuple[str, str]]:
        return [(key, window.text) for key, window in _WINDOWS.items()]

    @property
    def pages(self) -> int:
        return max(1, -(-len(self.status.partitions) // _PARTITIONS))

    @property
    def rows(self) -> tuple[PartitionStatus, ...]:
        return self.status.partitions[(self.page - 1) * _PARTITIONS : self.page * _PARTITIONS]

    @property
    def first(self) -> int:
        return (self.page - 1) * _PARTITIONS + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1

    @property
    def owned(self) -> int:
        return sum(each.owner is not None for each in self.status.partitions)

    @property
    def announcement(self) -> str:
        """The text that a screen reader announces when it changes."""
        return f"{self.status.group} is {self.status.state.value}"

    def link(self, **changed: object) -> str:
        """Return the URL of this view with some parameters changed."""
        asked = {"name": self.status.group, "window": self.window, "page": self.page} | changed
        return f"/group?{urlencode(asked)}"


def group(request: Request) -> Response:
    """Show one group: its figures, charts and partitions."""
    site, asked = site_of(request), request.query_params
    name = asked.get("name", "")
    if not _is_name(name):
        return _no_group(request, name)
    seen = site.watch.group_now(name)
    is_empty = not seen.status.partitions and not seen.status.paused
    if is_empty and (unknown := unknown_group(request, name)) is not None:
        return unknown
    events = f"/events/group?{urlencode(dict(asked))}"
    view, told = _group_view(site, seen, asked), session_of(request).take_note()
    return page(request, "group.html", events=events, view=view, group=name, tab="partitions", told=told)


def group_region(site: Site, asked: Mapping[str, str]) -> str | None:
    """Render the parts of the group page that change; ``None`` until the group has been observed."""
    name = asked.get("name", "")
    seen = site.watch.group(name) if _is_name(name) else None
    if seen is None:
        return None
    view = _group_view(site, seen, asked)
    return render("group_title.html", view=view, site=site) + render("group_region.html", view=view)


def _group_view(site: Site, seen: GroupSeen, asked: Mapping[str, str]) -> _GroupView:
    key = asked.get("window", "10m")
    key = key if key in _WINDOWS else "10m"
    window, now = _WINDOWS[key], time.time()
    since = now - window.seconds
    marks = seen.tail.marks(since, window.seconds / _MARKS)
    lag = site.watch.history.lag(seen.status.group, since, now)
    number = asked.get("page", "1")
    pages = max(1, -(-len(seen.status.partitions) // _PARTITIONS))
    return _GroupView(
        status=seen.status,
        window=key,
        throughput=Chart.of(seen.tail.throughput(since, now, window.step), since, now, marks),
        lag=Chart.of(lag, since, now, marks, _GAP),
        rate=seen.tail.rate(now),
        cut="This group is busy: what is older is drawn in steps of ten minutes." if seen.tail.is_cut else None,
        gaps=_gaps(lag, since),
        page=min(max(1, int(number) if number.isdecimal() and len(number) < 9 else 1), pages),
        trouble=seen.trouble,
    )


def _gaps(lag: Sequence[Point], since: float) -> str | None:
    """Explain where the line of the lag is missing."""
    known = [point.at for point in lag if point.value is not None]
    told = []
    if known and known[0] - since > 2 * _GAP:
        began = datetime.fromtimestamp(known[0], UTC)
        told.append(f"Lag is known since {began:%H:%M:%S} UTC: it is not stored, and the page began to look then.")
    if any(later - earlier > _GAP for earlier, later in pairwise(known)):
        told.append("Where the line is interrupted, the ledger or Kafka did not answer.")
    return " ".join(told) or None


_ROWS = 50
_ORDERS = (("state", "Worst first"), ("lag", "Most lag first"), ("name", "By name"))
_GRAVITY = {
    State.STALLED: 0,
    State.STOPPED: 1,
    State.LAGGING: 2,
    State.REWOUND: 3,
    State.PAUSED: 4,
    State.UNKNOWN: 5,
    State.IDLE: 6,
    State.OK: 7,
}
_ATTENTION = {State.STALLED, State.STOPPED, State.LAGGING}


@dataclass(frozen=True)
class _Totals:
    groups: int
    partitions: int
    owned: int
    lag: int | None
    attention: int
    dead_letters: int


@dataclass(frozen=True)
class _GroupRow:
    group: str
    state: State
    lag_records: int | None
    spark: str
    partitions: int
    owned: int
    topics: tuple[str, ...]
    updated_at: datetime | None
    dead_letters: int


@dataclass(frozen=True)
class _View:
    """The overview: the filters, the number of groups found, and the rows on this page."""

    query: str
    state: str
    sort: str
    page: int
    pages: int
    found: int
    rows: tuple[_GroupRow, ...]
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
        """The text that a screen reader announces when it changes."""
        return f"{self.totals.attention} of {self.totals.groups} groups need attention"

    def link(self, **changed: object) -> str:
        """Return the URL of this view with some parameters changed."""
        asked = {"q": self.query, "state": self.state, "sort": self.sort, "page": self.page} | changed
        return f"/?{urlencode({key: value for key, value in asked.items() if value and (key, value) not in _USUAL})}"


_USUAL = {("sort", "state"), ("page", 1)}


def overview(request: Request) -> Response:
    """Show all groups, or those that match the filters."""
    asked = request.query_params
    view = _view(site_of(request), asked)
    return page(request, "overview.html", events=f"/events/overview?{urlencode(dict(asked))}", view=view)


def overview_region(site: Site, asked: Mapping[str, str]) -> str:
    """Render the parts of the overview page that change."""
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
            sum(each.dead_letters for each in groups),
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


def _row(site: Site, group: GroupSummary) -> _GroupRow:
    now = time.time()
    return _GroupRow(
        group.group,
        group.state,
        group.lag_records,
        spark(site.watch.history.lag(group.group, now - FINE, now)),
        group.partitions,
        group.owned,
        group.topics,
        group.updated_at,
        group.dead_letters,
    )


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else 1
