"""Arguments with bounds that hold wherever they are given: in Python and in settings."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from tidegate.core.arguments import span, whole

__all__ = ["Hold", "LockWait", "ThreadCount"]

ThreadCount: TypeAlias = Annotated[int, whole(1, 1000)]
"""Threads of one process."""

# An idle transaction is ended after so long: with less, PostgreSQL ends every one of them between two statements.
_LEAST = 0.05
_DAY = 86_400.0

Hold: TypeAlias = Annotated[float, span(_LEAST)]
"""How long a transaction may sit idle on its locks."""

LockWait: TypeAlias = Annotated[float, span(_LEAST, _DAY)]
"""How long an operation waits for a lock; the servers count it in integers, which have an end."""
