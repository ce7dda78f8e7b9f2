"""Errors are part of the interface: what happened, to which group, topic, partition and offset, and what to do."""

from __future__ import annotations


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""
