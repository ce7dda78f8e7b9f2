"""The application: which page is where."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tidegate.core.errors import TidegateError
from tidegate.settings import masked
from tidegate.web.change_pages import carry_out, change, preview
from tidegate.web.events import Stop, events
from tidegate.web.group_page import group
from tidegate.web.guard import Guard
from tidegate.web.journal_page import journal
from tidegate.web.letter_pages import letter, letter_part, letters
from tidegate.web.login_pages import login, logout, show_login
from tidegate.web.overview_page import overview
from tidegate.web.site import Site, page

__all__ = ["application"]

_STATIC = Path(__file__).with_name("static")


def application(site: Site, stop: Stop) -> Guard:
    """The pages of a site, behind its guard."""
    app = Starlette(
        routes=[
            Route("/", overview),
            Route("/group", group),
            Route("/letters", letters),
            Route("/letter", letter),
            Route("/letter/{part}", letter_part),
            Route("/journal", journal),
            Route("/change", change, methods=["GET"]),
            Route("/change", preview, methods=["POST"]),
            Route("/execute", carry_out, methods=["POST"]),
            Route("/events/{view}", events),
            Route("/login", show_login, methods=["GET"]),
            Route("/login", login, methods=["POST"]),
            Route("/logout", logout, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        exception_handlers={TidegateError: _unavailable, HTTPException: _wrong},
    )
    app.state.site = site
    app.state.stop = stop
    return Guard(app, site.rules, site.sessions)


def _unavailable(request: Request, error: Exception) -> Response:
    message = masked(" ".join(str(error).split()))
    return page(request, "error.html", 503, heading="The ledger cannot be read", message=message)


def _wrong(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    heading = "There is no such page" if status == 404 else "That cannot be done"
    return page(request, "error.html", status, heading=heading, message=f"The server answered {status}.")
