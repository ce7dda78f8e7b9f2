"""Owners: who holds a claim."""

from __future__ import annotations

import os
import secrets
import socket

__all__ = ["new_owner"]

_HOST = socket.gethostname()[:100]


def new_owner() -> str:
    """An id for the holder of one claim: host and process for people, a random part so that no two are alike."""
    return f"{_HOST}:{os.getpid()}:{secrets.token_hex(6)}"
