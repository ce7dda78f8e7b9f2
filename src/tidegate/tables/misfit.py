"""Misfits: values that do not fit their column, found before anything is written."""

from __future__ import annotations

from typing import NamedTuple

from tidegate.core.errors import TidegateError

__all__ = ["DoesNotFit", "Misfit"]


class Misfit(NamedTuple):
    """One record that cannot become a row: its place among those that were read, the column, and why.

    ``column`` is ``None`` if the record as a whole is wrong. The value is never told: errors go to logs.
    """

    place: int
    column: str | None
    why: str

    def __str__(self) -> str:
        return self.why if self.column is None else f"column {self.column!r}: {self.why}"


class DoesNotFit(TidegateError):
    """The rows of a batch, put together, do not fit: a sum is out of its column's range."""
