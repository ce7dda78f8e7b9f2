"""Traces calls of Tidegate's functions in a real run: which functions are entered, in which order, and from where."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

__all__ = ["Way", "code_of", "traced", "watched"]


def code_of(function: Any) -> CodeType:
    """The code of a function, a method or a property, without its decorators."""
    function = getattr(function, "fget", None) or getattr(function, "__func__", function)
    while wrapped := getattr(function, "__wrapped__", None):
        function = wrapped
    code: CodeType = function.__code__
    return code


@dataclass
class Way:
    """What one call of the first function entered, until it returned."""

    modules: set[str] = field(default_factory=set)
    """The modules of Tidegate whose functions were entered, the first function's own among them."""
    hands: list[str] | None = None
    """The functions on the stack when the last function was first entered: from the first one to its caller."""


@contextmanager
def watched(profile: Callable[[FrameType, str, Any], object]) -> Iterator[None]:
    """Call ``profile`` for the calls on this thread and on threads that start in the block."""
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


class _Ways(threading.local):
    """The way that is open on this thread, and the depth of its first function."""

    way: Way | None = None
    first: FrameType | None = None


@contextmanager
def traced(first: CodeType, last: CodeType) -> Iterator[list[Way]]:
    """Collect each way from a call of ``first`` to its return, if it entered ``last``."""
    ways: list[Way] = []
    here = _Ways()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            if here.way is None and frame.f_code is first:
                here.way, here.first = Way(), frame
            if here.way is None:
                return
            module = str(frame.f_globals.get("__name__"))
            if module.partition(".")[0] == "tidegate":
                here.way.modules.add(module)
            if frame.f_code is last and here.way.hands is None:
                here.way.hands = list(_stack(frame, here.first))
        elif event == "return" and frame is here.first:
            if here.way is not None and here.way.hands is not None:
                ways.append(here.way)
            here.way = here.first = None

    with watched(profile):
        yield ways


def _stack(frame: FrameType, first: FrameType | None) -> list[str]:
    """The functions from ``first`` to the caller of ``frame``; those of other packages count as well."""
    found = []
    above = frame.f_back
    while above is not None:
        found.append(f"{above.f_globals.get('__name__')}.{above.f_code.co_qualname}")
        if above is first:
            break
        above = above.f_back
    return found[::-1]
