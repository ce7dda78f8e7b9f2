"""Where an error of the user's own code came from, without its message: that may quote a record."""

from __future__ import annotations

import traceback
from pathlib import Path

__all__ = ["blamed"]


def blamed(error: BaseException) -> str:
    """The kind of an error and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
