"""Handlers of sinks as a test needs them: without a ledger, a group and a broker."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine

from tidegate import DeadLetter
from tidegate.app.sink import Sink, SinkHandler


def sink_handler(sink: Sink, engine: Engine, *, count: Callable[[], int] = lambda: 0) -> SinkHandler:
    """The handler of a sink into one table, which parks what it cannot write."""
    return sink.into_table(engine, "rule", DeadLetter(), count=count)
