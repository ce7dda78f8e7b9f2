"""What goes to executors: its fields, and nothing that was computed from them here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

__all__ = ["Portable"]


class Portable:
    """A dataclass whose cached properties stay where they were computed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, item.name) for item in fields(self))  # type: ignore[arg-type]
