"""Watching a run: its log on standard error, and its metrics on a port."""

from __future__ import annotations

import logging
from enum import StrEnum

from tidegate.core.errors import ConfigurationError
from tidegate.observe import LoggingObserver, Observers, PrometheusObserver

__all__ = ["LogLevel", "log_to_stderr", "serve_metrics", "watch"]

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """From which level on lines are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def log_to_stderr(level: LogLevel) -> None:
    """Log to standard error, unless the program has set up logging itself."""
    logging.basicConfig(format=_FORMAT, level=level.upper())
    ours = logging.getLogger("tidegate")
    if ours.level == logging.NOTSET:
        ours.setLevel(level.upper())


def watch(app: object, *, metrics: bool) -> None:
    """Let the app's observers hear what it does, those that it does not have yet."""
    observers = getattr(app, "observers", None)
    if not isinstance(observers, Observers):
        return
    if not any(isinstance(observer, LoggingObserver) for observer in observers):
        observers.add(LoggingObserver())
    if metrics and not any(isinstance(observer, PrometheusObserver) for observer in observers):
        observers.add(PrometheusObserver())


def serve_metrics(port: int) -> None:
    """Serve the default registry of prometheus_client at that port, for as long as the process lives."""
    try:
        from prometheus_client import start_http_server  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError(
            "--metrics-port needs prometheus_client, which is not installed; run: pip install 'tidegate[metrics]'"
        ) from None
    try:
        start_http_server(port)
    except OSError as error:
        raise ConfigurationError(f"metrics cannot be served on port {port}: {error.strerror}") from None
