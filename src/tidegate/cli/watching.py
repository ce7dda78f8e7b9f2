"""Watching a run: its log on standard error, its metrics and its health on a port."""

from __future__ import annotations

import logging
from enum import StrEnum

from tidegate.cli.health_server import HealthServer
from tidegate.observe import Health, LoggingObserver, ObservedHealth, Observers, PrometheusObserver

__all__ = ["EVERYWHERE", "LogLevel", "health_of", "log_to_stderr", "serve_metrics", "watch"]

EVERYWHERE = "0.0.0.0"  # noqa: S104 - those who scrape are on other machines, as a rule

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


def health_of(app: object) -> Health:
    """What an app tells of its health; one that tells nothing itself is observed."""
    told: Health | None = getattr(app, "health", None)
    if told is not None:
        return told
    observed = ObservedHealth()
    observers = getattr(app, "observers", None)
    if isinstance(observers, Observers):
        observers.add(observed)
    return observed


def serve_metrics(port: int, host: str = EVERYWHERE, health: Health | None = None) -> HealthServer:
    """Serve the default registry of prometheus_client, and health, at that port, for as long as the process lives."""
    return HealthServer(host, port, health or ObservedHealth())
