"""Sessions: who has shown the token, and what they have been shown before they change something."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.core.errors import ConfigurationError

__all__ = ["Session", "Sessions", "Token"]

_SHORTEST_TOKEN = 16
_LIFE = 12 * 3600.0  # seconds since it was last used
_MOST_SESSIONS = 100
_MOST_PREVIEWS = 20


class Token:
    """What opens the dashboard: as the environment says, or a random one for as long as the process lives."""

    def __init__(self, chosen: str | None = None) -> None:
        if chosen is not None and len(chosen.strip()) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"TIDEGATE_DASHBOARD_TOKEN has to have at least {_SHORTEST_TOKEN} characters; leave it out, and a "
                "random one is made at each start"
            )
        self.is_random = chosen is None
        self.text = secrets.token_urlsafe(32) if chosen is None else chosen.strip()

    def opens(self, shown: str) -> bool:
        """Whether this is it; takes the same time either way."""
        return secrets.compare_digest(shown.strip().encode(), self.text.encode())

    def __repr__(self) -> str:
        return "Token(***)"


@dataclass
class Session:
    """One browser that has shown the token. ``csrf`` has to come back with every change; ``note`` is what the next page
    is to tell."""

    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used_at: float = 0.0
    note: str | None = None
    _previews: OrderedDict[str, object] = field(default_factory=OrderedDict, repr=False)

    def keep(self, preview: object) -> str:
        """Keep what is shown now, to be carried out by this session and as it was shown; the name to ask for it by."""
        name = secrets.token_urlsafe(16)
        self._previews[name] = preview
        while len(self._previews) > _MOST_PREVIEWS:
            self._previews.popitem(last=False)
        return name

    def take_note(self) -> str | None:
        """The note, once."""
        note, self.note = self.note, None
        return note

    def take(self, name: str) -> object | None:
        """What was kept under this name, once."""
        return self._previews.pop(name, None)


class Sessions:
    """The sessions that there are. They end when they were not used for long, and with the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Session] = OrderedDict()

    def begin(self) -> str:
        """A new session; the name that its cookie carries."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._known[name] = Session(used_at=self._clock())
            while len(self._known) > _MOST_SESSIONS:
                self._known.popitem(last=False)
        return name

    def find(self, name: str | None) -> Session | None:
        """The session of a cookie, if it has not ended."""
        with self._lock:
            session = None if name is None else self._known.get(name)
            if name is None or session is None:
                return None
            if self._clock() - session.used_at > _LIFE:
                del self._known[name]
                return None
            session.used_at = self._clock()
            self._known.move_to_end(name)
            return session

    def end(self, name: str | None) -> None:
        """Forget a session."""
        with self._lock:
            self._known.pop(name or "", None)
