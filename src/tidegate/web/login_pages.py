"""Logging in and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidegate.web.form import form_of
from tidegate.web.guard import valid_csrf
from tidegate.web.site import page, session_of, site_of

__all__ = ["login", "logout", "show_login"]


def show_login(request: Request) -> Response:
    """The form that takes the token."""
    return page(request, "login.html", failed=False)


async def login(request: Request) -> Response:
    """Begin a session, if the token is right."""
    site = site_of(request)
    if not site.token.opens((await form_of(request)).get("token", "")):
        return page(request, "login.html", 403, failed=True)
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
    """End a session."""
    site = site_of(request)
    if not valid_csrf(session_of(request), (await form_of(request)).get("csrf")):
        return RedirectResponse("/", 303)
    site.sessions.end(request.cookies.get(site.rules.cookie))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(site.rules.cookie, httponly=True, samesite="strict")
    return response
