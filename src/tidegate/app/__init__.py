"""Listeners: Python functions that are called with the records of Kafka topics."""

from __future__ import annotations

from tidegate.app.app import App
from tidegate.app.decoder import DecodingError
from tidegate.app.handler import HandlerFailed
from tidegate.app.listener import Listener
from tidegate.app.replay import Replay, Replayed, ReplayOutcome
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.policies import CommitStrategy, LagGuard, OutOfRange, Recreated

__all__ = [
    "App",
    "CommitStrategy",
    "DecodingError",
    "HandlerFailed",
    "LagGuard",
    "Listener",
    "ListenerSpec",
    "OutOfRange",
    "Recreated",
    "Replay",
    "ReplayOutcome",
    "Replayed",
    "Topics",
]
