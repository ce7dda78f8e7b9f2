"""What is taken for text."""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

__all__ = ["is_text"]


def is_text(given: object) -> TypeGuard[str]:
    """Whether it is plain text. A member of an enum is not, even of one whose members are strings: its word would be
    taken for the same word of something else.
    """
    return isinstance(given, str) and not isinstance(given, Enum)
