"""The web application with its routes, and the server, which runs in one process on one port until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.app.listener import Listener
from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError, TidegateError
from tidegate.kafka.cluster import Survey
from tidegate.ledger.ledger import Ledger
from tidegate.web.changes import carry_out, change, preview, preview_letters
from tidegate.web.pages import group, journal, letter, letter_part, letters, login, logout, overview, show_login
from tidegate.web.security import Guard, GuardRules, Sessions, Token, is_local
from tidegate.web.site import Site, page
from tidegate.web.stream import StreamsEnd, events
from tidegate.web.templates import prepare
from tidegate.web.watch import DashboardWatch

__all__ = ["Dashboard", "application"]


_STATIC = Path(__file__).with_name("static")


def application(site: Site, stop: StreamsEnd) -> Guard:
    """Create the ASGI application: the pages of a site, protected by its guard."""
    app = Starlette(
        routes=[
            Route("/", overview),
            Route("/group", group),
            Route("/letters", letters, methods=["GET"]),
            Route("/letters", preview_letters, methods=["POST"]),
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


_GRACE = 3  # seconds that running requests may take after a signal


_REQUEST = 15.0  # seconds that a client may take for a request, counted from the end of the previous one
_WRITE = 30.0  # seconds within which a client has to read some of what is waiting for it
_MOST_CONNECTIONS = 256


class _Connection(H11Protocol):
    """A connection that is dropped if its client is slow to send a request, or to read the response.

    If there are too many, the one whose request is due first is dropped, so that idle ones do not keep others out.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(_REQUEST)
        if len(self.connections) > _MOST_CONNECTIONS:
            self._longest_waiting().transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._awaits_request:
            self._wait(None)

    def on_response_complete(self) -> None:
        self._wait(_REQUEST)
        super().on_response_complete()
        if not self._awaits_request:  # the client has sent several requests at once
            self._wait(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait(_WRITE)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait(_REQUEST if self._awaits_request else None)

    @property
    def _awaits_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _longest_waiting(self) -> _Connection:
        """Return the connection that waits longest for its client; this one if all others answer a request."""
        waiting = {
            each._deadline.when(): each
            for each in self.connections
            if isinstance(each, _Connection) and each._deadline and each._awaits_request
            if not each.transport.is_closing()
        }
        return waiting[min(waiting)] if waiting else self

    def _wait(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class Dashboard:
    """The dashboard of one ledger. It binds its port when it is created, so that its address is known."""

    def __init__(
        self,
        ledger: Ledger[Any],
        survey: Survey | None,
        *,
        ledger_name: str,
        token: Token,
        host: str = "127.0.0.1",
        port: int = 8600,
        allow_changes: bool = False,
        names: Sequence[str] = (),
        members: Collection[str] = (),
        listeners: Sequence[Listener] = (),
        entered: Callable[[], object] = lambda: None,
    ) -> None:
        """Bind the port; port 0 chooses a free one.

        ``names`` are further host names under which browsers reach the server. ``members`` are addresses of consumers
        that report how far they have read. Dead letters can be replayed to ``listeners``. ``entered`` is called after
        each login.
        """
        GuardRules.of(host, port, names, allow_changes=allow_changes)  # validate before binding the port
        self._socket = _bound(host, port)
        self._port = self._socket.getsockname()[1]
        self._host = names[0] if names else host
        self.is_local = is_local(host)
        self._token = token
        self._watch = DashboardWatch(ledger, survey, members)
        self._stop = StreamsEnd()
        rules = GuardRules.of(host, self._port, names, allow_changes=allow_changes)
        self._site = Site(ledger, ledger_name, survey, self._watch, rules, token, Sessions(), listeners, entered)

    @property
    def address(self) -> str:
        """The URL of the dashboard."""
        shown = f"[{self._host.strip('[]')}]" if ":" in self._host else self._host
        return f"http://{shown}:{self._port}/"

    def way_in(self) -> str:
        """Return a login URL that works once. Its secret is after the ``#``, which browsers do not send to servers."""
        return f"{self.address}login#{self._token.ticket()}"

    def printed(self) -> str:
        """Return the login URL to print: one that works once, or one without a secret if the user chose a token.

        The output may be kept in a log.
        """
        return f"{self.address}login" if self._token.is_chosen else self.way_in()

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM; call ``ready`` once clients can connect."""
        config = uvicorn.Config(
            application(self._site, self._stop),
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            http=_Connection,
            lifespan="off",
            ws="none",
        )
        prepare()
        self._watch.start()
        try:
            with self._socket:
                asyncio.run(self._serve(_Server(config), ready))
        finally:
            self._watch.stop()

    async def _serve(self, server: _Server, ready: Callable[[], None]) -> None:
        def stop() -> None:
            server.force_exit = server.should_exit  # a second signal stops at once
            server.should_exit = True
            self._stop.now()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        serving = asyncio.ensure_future(server.serve(sockets=[self._socket]))
        ready()
        await serving


class _Server(uvicorn.Server):
    """A server that does not handle signals: the dashboard does, because it has to end its streams first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"the dashboard cannot listen at {host}, port {port}: {reason}") from None
