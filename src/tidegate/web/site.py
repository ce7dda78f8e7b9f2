"""The site: the objects that all pages of a dashboard share, and helpers for requests, forms and responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tidegate.app.listener import Listener
from tidegate.app.replay import Replay
from tidegate.errors import ConfigurationError
from tidegate.kafka.cluster import Survey
from tidegate.ledger.ledger import Ledger
from tidegate.operate.edits import Operator
from tidegate.web.security import LARGEST_BODY, GuardRules, Session, Sessions, Token
from tidegate.web.templates import render
from tidegate.web.watch import DashboardWatch

__all__ = ["Site", "form_of", "page", "session_of", "site_of"]


_MOST_FIELDS = 20


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form; empty if the body is not a form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:  # the guard looks at the headers only
            raise HTTPException(413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}


@dataclass(frozen=True)
class Site:
    """The shared state of the pages: the ledger, the Kafka cluster if there is one, and the access rules."""

    ledger: Ledger[Any]
    ledger_name: str
    survey: Survey | None
    watch: DashboardWatch
    rules: GuardRules
    token: Token
    sessions: Sessions
    listeners: Sequence[Listener] = ()
    """The listeners that dead letters can be replayed to."""
    entered: Callable[[], object] = lambda: None
    """Called after a login, which may have used up the printed link."""

    @property
    def operator(self) -> Operator:
        """The operator that executes changes."""
        return Operator(self.ledger, self.survey)

    def replay(self, group: str) -> Replay:
        """Return the replay of a group's dead letters; raise if no listener of it is known."""
        if not self.listeners:
            raise ConfigurationError(
                "a replay needs the listener of the group: start the dashboard with --app MODULE:APP, or where "
                "tidegate.toml describes the sinks"
            )
        return Replay(self.ledger, self.listeners, group)

    def letters_of(self, group: str) -> int:
        """Return how many dead letters a group had when the watch last looked."""
        groups = self.watch.summaries().summaries.groups
        return next((each.dead_letters for each in groups if each.group == group), 0)

    @property
    def version(self) -> str:
        """The version of Tidegate."""
        return version("tidegate")


def site_of(request: Request) -> Site:
    """Return the site of a request."""
    return cast(Site, request.app.state.site)


def session_of(request: Request) -> Session:
    """Return the session of a request; the guard has checked that there is one."""
    return cast(Session, request.state.session)


def page(request: Request, template: str, status: int = 200, events: str | None = None, **context: Any) -> HTMLResponse:
    """Render a whole page; ``events`` is the URL of the event stream that keeps it up to date."""
    session = getattr(request.state, "session", None)
    shown = render(template, site=site_of(request), session=session, events=events, **context)
    return HTMLResponse(shown, status)
