"""The site: what the pages of one dashboard have in common."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import HTMLResponse

from tidegate.kafka.survey import Survey
from tidegate.ledger.base import Ledger
from tidegate.operate.operator import Operator
from tidegate.web.guard import GuardRules
from tidegate.web.rendering import render
from tidegate.web.sessions import Session, Sessions, Token
from tidegate.web.watch import Watch

__all__ = ["Site", "page", "session_of", "site_of"]


@dataclass(frozen=True)
class Site:
    """The ledger that is shown, the cluster if one is named, and who may come in."""

    ledger: Ledger[Any]
    ledger_name: str
    survey: Survey | None
    watch: Watch
    rules: GuardRules
    token: Token
    sessions: Sessions

    @property
    def operator(self) -> Operator:
        """Who makes the changes."""
        return Operator(self.ledger, self.survey)

    @property
    def version(self) -> str:
        """Of Tidegate."""
        return version("tidegate")


def site_of(request: Request) -> Site:
    """The site that a request came to."""
    return cast(Site, request.app.state.site)


def session_of(request: Request) -> Session:
    """The session of a request that the guard let through."""
    return cast(Session, request.state.session)


def page(request: Request, template: str, status: int = 200, events: str | None = None, **context: Any) -> HTMLResponse:
    """A whole page; ``events`` is the address of the stream that keeps it up to date."""
    session = getattr(request.state, "session", None)
    shown = render(template, site=site_of(request), session=session, events=events, **context)
    return HTMLResponse(shown, status)
