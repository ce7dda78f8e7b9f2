"""Listeners: Python functions bound to topics."""

from __future__ import annotations

from tidegate.app.app import App
from tidegate.app.decoding import DecodingError
from tidegate.app.handling import HandlerFailed
from tidegate.app.listener import Listener
from tidegate.app.replay import Replay, Replayed, ReplayOutcome
from tidegate.app.spec import ListenerSpec, Topics

__all__ = [
    "App",
    "DecodingError",
    "HandlerFailed",
    "Listener",
    "ListenerSpec",
    "Replay",
    "ReplayOutcome",
    "Replayed",
    "Topics",
]
