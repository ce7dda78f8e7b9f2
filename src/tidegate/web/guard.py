"""The guard: every request passes it before anything else looks at it."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.core.errors import ConfigurationError
from tidegate.settings import masked
from tidegate.web.sessions import Session, Sessions

__all__ = ["Guard", "GuardRules", "host_name", "is_local", "valid_csrf"]

log = logging.getLogger(__name__)

# The scripts, styles and pictures are files of this server; nothing else is loaded, and nothing inline is run.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers would then send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READS = {"GET", "HEAD"}
_OPEN = {"/login"}
_OPEN_FOLDER = "/static/"
_LARGEST_BODY = 64 << 10
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - to be told from the others


@dataclass(frozen=True)
class GuardRules:
    """What the guard lets through: by which names the server may be called, and whether changes are allowed."""

    hosts: frozenset[str]
    cookie: str
    allow_changes: bool = False

    @classmethod
    def of(cls, host: str, port: int, names: Collection[str], *, allow_changes: bool) -> GuardRules:
        """The rules of a server that listens at ``host`` and is also called by ``names``.

        Browsers send a cookie to every port of a host, so that its name says which port it belongs to.
        """
        if host in _EVERYWHERE and not names:
            raise ConfigurationError(
                f"{host} is every address of this machine, and a browser calls it by none of that name; say with "
                "--allow-host which one is used"
            )
        own = {"localhost", "127.0.0.1", "::1"} if is_local(host) else {host_name(host)}
        return cls(frozenset(own | {host_name(name) for name in names}), f"tidegate-{port}", allow_changes)


class Guard:
    """Refuses foreign hosts and origins, requests without a session, and changes where none are allowed; and gives
    every answer the headers that keep a browser from doing more than it should."""

    def __init__(self, app: ASGIApp, rules: GuardRules, sessions: Sessions) -> None:
        self._app = app
        self._rules = rules
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._objection(scope) or self._app
        try:
            await answer(scope, receive, send_guarded)
        except Exception as error:  # the browser has its answer; a traceback might repeat what nobody is to read
            told = masked(" ".join(str(error).split()))
            log.error("the dashboard failed at %s: %s: %s", scope["path"], type(error).__name__, told)

    def _objection(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        path, method = scope["path"], scope["method"]
        host = headers.get("host", "")
        if host_name(host) not in self._rules.hosts:
            return _refused(421, "This server is not known by that name; --allow-host adds one.")
        if method not in _READS and (said := _foreign(headers, host)):
            return _refused(403, said)
        if path.startswith(_OPEN_FOLDER):
            return None
        session = self._sessions.find(Request(scope).cookies.get(self._rules.cookie))
        scope.setdefault("state", {})["session"] = session
        if path in _OPEN:
            return None
        if session is None:
            wants_page = method in _READS and "text/html" in headers.get("accept", "")
            return RedirectResponse("/login", 303) if wants_page else _refused(401, "Log in first, with the token.")
        if method not in _READS and path != "/logout" and not self._rules.allow_changes:
            return _refused(403, "This dashboard is read-only; start it with --allow-changes.")
        return None


def valid_csrf(session: Session, shown: object) -> bool:
    """Whether a form carries its session's own mark."""
    return isinstance(shown, str) and secrets.compare_digest(shown.encode(), session.csrf.encode())


def host_name(address: str) -> str:
    """The name or number in a Host header: without the port, in small letters."""
    try:
        return (urlsplit(f"//{address}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _foreign(headers: Headers, host: str) -> str | None:
    """What is wrong about where a change comes from."""
    origin = headers.get("origin")
    if origin is None:
        return "A change has to say where it comes from: there is no Origin."
    if urlsplit(origin).netloc.lower() != host.lower() or not host:
        return "That change comes from another site."
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "That change comes from another site."
    length = headers.get("content-length", "")
    if not length.isdecimal() or int(length) > _LARGEST_BODY:
        return "That is more than a form of this page can hold."
    return None


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)
