"""Security of the dashboard: the token, the sessions, and the guard that checks every request."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError

__all__ = ["LARGEST_BODY", "Guard", "GuardRules", "Session", "Sessions", "Token", "host_name", "is_local", "valid_csrf"]


_SHORTEST_TOKEN = 16
_LIFE = 12 * 3600.0  # seconds after its last use when a session ends
_MOST_SESSIONS = 100
_MOST_TICKETS = 10
_MOST_PREVIEWS = 20


class Token:
    """The secrets for the login: the token from the environment, if there is one, and tickets that each work once.

    A link contains a ticket, because a browser may keep the link in its history.
    """

    def __init__(self, chosen: str | None = None) -> None:
        if chosen is not None and len(chosen.strip()) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"TIDEGATE_DASHBOARD_TOKEN must have at least {_SHORTEST_TOKEN} characters; leave it out to get a "
                "random one at each start"
            )
        self.is_chosen = chosen is not None
        self._chosen = None if chosen is None else chosen.strip()
        self._tickets: deque[str] = deque(maxlen=_MOST_TICKETS)

    def ticket(self) -> str:
        """Return a new secret that opens once."""
        self._tickets.append(secrets.token_urlsafe(32))
        return self._tickets[-1]

    def opens(self, shown: str) -> bool:
        """Return whether ``shown`` is the token or an unused ticket, in constant time; a ticket is then used up."""
        given = shown.strip().encode()
        for ticket in list(self._tickets):
            if secrets.compare_digest(given, ticket.encode()):
                self._tickets.remove(ticket)
                return True
        return self._chosen is not None and secrets.compare_digest(given, self._chosen.encode())

    def __repr__(self) -> str:
        return "Token(***)"


@dataclass
class Session:
    """The session of one browser that has logged in.

    Every form that changes something has to contain ``csrf``. ``note`` is a message for the next page.
    """

    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used_at: float = 0.0
    note: str | None = None
    _previews: OrderedDict[str, object] = field(default_factory=OrderedDict, repr=False)

    def keep(self, preview: object) -> str:
        """Store a preview, so that this session can execute what it showed; return the name for :meth:`take`."""
        name = secrets.token_urlsafe(16)
        self._previews[name] = preview
        while len(self._previews) > _MOST_PREVIEWS:
            self._previews.popitem(last=False)
        return name

    def take_note(self) -> str | None:
        """Return the note and clear it."""
        note, self.note = self.note, None
        return note

    def take(self, name: str) -> object | None:
        """Return the preview with this name and remove it; ``None`` if there is none."""
        return self._previews.pop(name, None)


class Sessions:
    """All open sessions.

    A session ends after 12 hours without use, with the process, or when 100 others were used more recently.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Session] = OrderedDict()

    def begin(self) -> str:
        """Begin a session and return its name, which is the value of the cookie."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._known[name] = Session(used_at=self._clock())
            while len(self._known) > _MOST_SESSIONS:
                self._known.popitem(last=False)
        return name

    def find(self, name: str | None) -> Session | None:
        """Return the session with this name and mark it as used; ``None`` if it has ended."""
        with self._lock:
            session = None if name is None else self._known.get(name)
            if name is None or session is None:
                return None
            if self._clock() - session.used_at > _LIFE:
                del self._known[name]
                return None
            session.used_at = self._clock()
            self._known.move_to_end(name)
            return session

    def is_open(self, name: str | None) -> bool:
        """Return whether a session has not ended, without marking it as used."""
        with self._lock:
            session = self._known.get(name or "")
            return session is not None and self._clock() - session.used_at <= _LIFE

    def end(self, name: str | None) -> None:
        """End a session."""
        with self._lock:
            self._known.pop(name or "", None)


log = logging.getLogger(__name__)

# Scripts, styles and images come only from files of this server. Nothing else is loaded, and no inline script runs.
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
    # With no-referrer, browsers would send "Origin: null" with the forms of this site.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READS = {"GET", "HEAD"}
_OPEN = {"/login"}
_OPEN_FOLDER = "/static/"
LARGEST_BODY = 64 << 10
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - only compared with


@dataclass(frozen=True)
class GuardRules:
    """The rules of the guard: the allowed host names, the name of the cookie, and whether changes are allowed."""

    hosts: frozenset[str]
    cookie: str
    allow_changes: bool = False

    @classmethod
    def of(cls, host: str, port: int, names: Collection[str], *, allow_changes: bool) -> GuardRules:
        """Create the rules of a server that listens at ``host`` and is also reached under ``names``.

        Browsers send a cookie to every port of a host. So the name of the cookie contains the port.
        """
        if host in _EVERYWHERE and not names:
            raise ConfigurationError(
                f"{host} stands for every address of this machine, and browsers do not send it as a name; give the "
                "name that they use with --allow-host"
            )
        own = {"localhost", "127.0.0.1", "::1"} if is_local(host) else {host_name(host)}
        return cls(frozenset(own | {host_name(name) for name in names}), f"tidegate-{port}", allow_changes)


class Guard:
    """ASGI middleware that rejects foreign hosts and origins, requests without a session, and forbidden changes.

    It adds security headers to every response.
    """

    def __init__(self, app: ASGIApp, rules: GuardRules, sessions: Sessions) -> None:
        self._app = app
        self._rules = rules
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request, or pass it to the application."""
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
        except Exception as error:  # the browser has its response; a traceback in the log might contain secrets
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
    """Return whether a form contains the CSRF token of its session."""
    return isinstance(shown, str) and secrets.compare_digest(shown.encode(), session.csrf.encode())


def host_name(address: str) -> str:
    """Return the host name or IP address of a Host header, without the port, in lower case."""
    try:
        return (urlsplit(f"//{address}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _foreign(headers: Headers, host: str) -> str | None:
    """Return why a change is rejected because of its origin or its size; ``None`` if it is accepted."""
    origin = headers.get("origin")
    if origin is None:
        return "The request for a change has no Origin header."
    if _authority(origin) != host.lower() or not host:
        return "That change comes from another site."
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "That change comes from another site."
    length = headers.get("content-length", "")
    # A body in chunks has no length; a Content-Length beside it would be ignored.
    if "transfer-encoding" in headers or not length.isdecimal() or int(length) > LARGEST_BODY:
        return "That is more than a form of this page can hold."
    return None


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _refused(status: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status)
