"""A small server beside a run: metrics, health, readiness and positions, for machines that ask."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.errors import ConfigurationError
from tidegate.observe.health import Health
from tidegate.settings import masked

__all__ = ["HealthServer"]

_log = logging.getLogger("tidegate")
_PATIENCE = 10.0  # seconds that a client may take for its request


class Answer(NamedTuple):
    """What is sent back."""

    status: HTTPStatus
    kind: str
    body: bytes


Page: TypeAlias = Callable[[str], Answer]
"""Answers a request, given what kinds of answer the client accepts."""


class HealthServer:
    """Serves ``/metrics``, ``/healthz``, ``/readyz`` and ``/positions``, from threads of its own.

    It answers GET and HEAD, changes nothing, and asks for no login: bind it where only those can reach it who may know
    the names of groups and topics.
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
        """Serve no more."""
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
        timeout = _PATIENCE
        server_version, sys_version = "tidegate", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            answer = _answered(pages, self.path.partition("?")[0], self.headers.get("Accept") or "")
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if with_body:
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants a line for each scrape."""

    class Server(ThreadingTCPServer):  # an HTTPServer would look its own name up first, which can take long
        allow_reuse_address = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that went away is its own affair."""

    return Server((host, port), Handler)
