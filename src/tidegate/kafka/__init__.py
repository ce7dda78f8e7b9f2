"""Kafka: the only part that talks to brokers."""

from __future__ import annotations

from tidegate.kafka.own_loop import OwnLoop

__all__ = ["OwnLoop"]
