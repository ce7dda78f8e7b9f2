"""Garbage collection, and when it would be of no use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """Put the collector off while many objects are made at once that are all to live on.

    It would look at them again and again, and find nothing: that takes as long as the making. It is off for the whole
    process, so only for moments.
    """
    if not gc.isenabled():  # by somebody who will enable it again, or does not want to
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
