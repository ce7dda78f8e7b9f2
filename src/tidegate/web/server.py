"""The server: one process, one port, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import uvicorn

from tidegate.core.errors import ConfigurationError
from tidegate.kafka.survey import Survey
from tidegate.ledger.base import Ledger
from tidegate.web.application import application
from tidegate.web.events import Stop
from tidegate.web.guard import GuardRules, is_local
from tidegate.web.rendering import prepare
from tidegate.web.sessions import Sessions, Token
from tidegate.web.site import Site
from tidegate.web.watch import Watch

__all__ = ["Dashboard"]

_GRACE = 3  # seconds that requests under way have after a signal


class Dashboard:
    """The dashboard of one ledger, bound to its port from the beginning, so that its address is known."""

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
    ) -> None:
        """``names``: further names that browsers call the server by; port 0 is any free one. ``members``: addresses of
        consumers that are asked how far they have read."""
        GuardRules.of(host, port, names, allow_changes=allow_changes)  # before anything is opened
        self._socket = _bound(host, port)
        self._port = self._socket.getsockname()[1]
        self._host = names[0] if names else host
        self.is_local = is_local(host)
        self._token = token
        self._watch = Watch(ledger, survey, members)
        self._stop = Stop()
        rules = GuardRules.of(host, self._port, names, allow_changes=allow_changes)
        self._site = Site(ledger, ledger_name, survey, self._watch, rules, token, Sessions())

    @property
    def address(self) -> str:
        """Where the dashboard is."""
        shown = f"[{self._host.strip('[]')}]" if ":" in self._host else self._host
        return f"http://{shown}:{self._port}/"

    @property
    def way_in(self) -> str:
        """The address with the token behind the #, which browsers keep to themselves."""
        return f"{self.address}login#{self._token.text}"

    @property
    def printed(self) -> str:
        """The way in, to be printed: a token that was chosen is known already, and its owner may keep a log."""
        return self.way_in if self._token.is_random else f"{self.address}login"

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until SIGINT or SIGTERM; ``ready`` is called when pages can be asked for."""
        config = uvicorn.Config(
            application(self._site, self._stop),
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
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
            server.force_exit = server.should_exit  # the second signal does not wait
            server.should_exit = True
            self._stop.now()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        serving = asyncio.ensure_future(server.serve(sockets=[self._socket]))
        ready()
        await serving


class _Server(uvicorn.Server):
    """Leaves the signals to the dashboard, which has streams to end first."""

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
