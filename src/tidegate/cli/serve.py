"""Services of a running command: logging to standard error, and a port for metrics, health, readiness and positions."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple, TypeAlias, cast

from tidegate.core.masks import masked
from tidegate.errors import ConfigurationError
from tidegate.observe import LoggingObserver, ObservedHealth, Observers, PrometheusObserver
from tidegate.observe.health import Health
from tidegate.observe.log import StderrHandler

__all__ = ["LOOPBACK", "HealthServer", "LogLevel", "health_of", "log_to_stderr", "serve_metrics", "watch"]


_log = logging.getLogger("tidegate")
_PATIENCE = 5.0  # seconds that a request may take, from the connection to the last byte of its answer
_MOST_CONNECTIONS = 32


class Answer(NamedTuple):
    """An HTTP answer."""

    status: HTTPStatus
    kind: str
    body: bytes


Page: TypeAlias = Callable[[str], Answer]
"""Answers a request, given its ``Accept`` header."""


class HealthServer:
    """Serves ``/metrics``, ``/healthz``, ``/readyz`` and ``/positions`` in its own threads.

    It answers GET and HEAD, changes nothing and requires no login. Bind it to an address that only those can reach who
    may know the names of groups and topics. A request has to be over within seconds, and few are served at a time, so
    that clients cannot keep the process from its work.
    """

    def __init__(self, host: str, port: int, health: Health) -> None:
        pages: dict[str, Page] = {
            "/metrics": _metrics(),
            "/healthz": lambda _: _state(health.failing(), "failing"),
            "/readyz": lambda _: _state(health.unready(), "not ready"),
            "/positions": lambda _: _json({"positions": [each._asdict() for each in health.positions()]}),
        }
        try:
            self._server = _server(host, port, pages)
        except OSError as error:
            raise ConfigurationError(f"metrics cannot be served on port {port}: {error.strerror}") from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="tidegate-metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _metrics() -> Page:
    try:
        from prometheus_client import REGISTRY  # noqa: PLC0415 - an extra
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "--metrics-port needs prometheus_client, which is not installed; run: pip install 'tidegate[metrics]'"
        ) from None

    def page(accept: str) -> Answer:
        encode, kind = choose_encoder(accept)
        return Answer(HTTPStatus.OK, kind, encode(REGISTRY))

    return page


def _state(reasons: list[str], otherwise: str) -> Answer:
    if not reasons:
        return _json({"status": "ok"})
    return _json({"status": otherwise, "reasons": [masked(each) for each in reasons]}, HTTPStatus.SERVICE_UNAVAILABLE)


def _json(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(status, "application/json", json.dumps(content).encode() + b"\n")


def _answered(pages: dict[str, Page], path: str, accept: str) -> Answer:
    if path not in pages:
        return _json({"error": "not found", "pages": sorted(pages)}, HTTPStatus.NOT_FOUND)
    try:
        return pages[path](accept)
    except Exception as error:
        _log.exception("%s could not be answered", path)
        return _json({"error": type(error).__name__}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _server(host: str, port: int, pages: dict[str, Page]) -> ThreadingTCPServer:
    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "tidegate", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            cast(Server, self.server).open.sent(self.request)
            answer = _answered(pages, self.path.partition("?")[0], self.headers.get("Accept") or "")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if with_body:
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a line for each scrape would be noise."""

    class Server(ThreadingTCPServer):  # an HTTPServer looks up its own host name first, which can take long
        allow_reuse_address = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        request_queue_size = 128

        def __init__(self) -> None:
            self.open = _OpenConnections()
            super().__init__((host, port), Handler)

        def process_request(self, request: Any, client_address: Any) -> None:
            self.open.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            self.open.remove(request)
            super().shutdown_request(request)

        def service_actions(self) -> None:
            self.open.drop_late()

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore errors of a connection, such as a client that disconnects."""

    return Server()


class _OpenConnections:
    """The connections of a server. Each has a thread, so there are few of them, and none is open for long.

    A timeout of a socket would not do: it starts again with each byte.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        self._waiting: dict[socket.socket, None] = {}  # those whose request is not complete, the oldest first

    def add(self, connection: socket.socket) -> None:
        """Add a connection. Of too many, drop the oldest that has not sent its request, or else the oldest of all."""
        with self._lock:
            if len(self._since) >= _MOST_CONNECTIONS:
                self._drop(next(iter(self._waiting or self._since)))
            self._since[connection] = time.monotonic()
            self._waiting[connection] = None

    def sent(self, connection: socket.socket) -> None:
        """Note that the client has sent its whole request."""
        with self._lock:
            self._waiting.pop(connection, None)

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection that is about to be closed."""
        with self._lock:
            self._since.pop(connection, None)
            self._waiting.pop(connection, None)

    def drop_late(self) -> None:
        """Drop the connections whose time is up."""
        with self._lock:
            limit = time.monotonic() - _PATIENCE
            for connection in [each for each, since in self._since.items() if since < limit]:
                self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        del self._since[connection]
        self._waiting.pop(connection, None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # ends the reads and writes of its thread, which then closes it


LOOPBACK = "127.0.0.1"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_to_stderr(level: LogLevel) -> None:
    """Log to standard error, unless the program has set up logging itself."""
    logging.basicConfig(handlers=[StderrHandler()], level=level.upper())
    ours = logging.getLogger("tidegate")
    if ours.level == logging.NOTSET:
        ours.setLevel(level.upper())


def watch(app: object, *, metrics: bool) -> None:
    """Add the observers for logs and, if ``metrics``, for metrics to the app, unless it already has them."""
    observers = getattr(app, "observers", None)
    if not isinstance(observers, Observers):
        return
    if not any(isinstance(observer, LoggingObserver) for observer in observers):
        observers.add(LoggingObserver())
    if metrics and not any(isinstance(observer, PrometheusObserver) for observer in observers):
        observers.add(PrometheusObserver())


def health_of(app: object) -> Health:
    """Return the app's own health; for an app without one, health derived from its events."""
    told: Health | None = getattr(app, "health", None)
    if told is not None:
        return told
    observed = ObservedHealth()
    observers = getattr(app, "observers", None)
    if isinstance(observers, Observers):
        observers.add(observed)
    return observed


def serve_metrics(port: int, host: str = LOOPBACK, health: Health | None = None) -> HealthServer:
    """Serve the default registry of prometheus_client and the health at that port, as long as the process lives."""
    return HealthServer(host, port, health or ObservedHealth())
