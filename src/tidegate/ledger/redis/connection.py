"""Timeouts for the waits of redis-py, and the translation of its errors into the ledger's."""

from __future__ import annotations

import re
from typing import Any

from redis import ConnectionPool, exceptions

from tidegate.errors import ConfigurationError, LedgerBusy, LedgerDenied, LedgerError, LedgerUnavailable, WritesRefused
from tidegate.ledger.transaction import ConnectionLost, OutcomeUnknown
from tidegate.ledger.watch import Watch

__all__ = ["ERRORS", "RefusedNow", "meaning", "watch_connections"]


ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
"""The base classes of all errors of redis-py."""

# Temporary refusals: Redis refuses the script before its first write, and may accept it later.
_PASSING: dict[str, tuple[type[LedgerError], str]] = {
    "READONLY": (WritesRefused, "this Redis is a read-only replica; connect to its primary"),
    "OOM": (WritesRefused, "Redis has reached its maxmemory; give it more, or delete data"),
    "MISCONF": (WritesRefused, "Redis cannot save to its disk and takes no writes; see its log"),
    "NOREPLICAS": (WritesRefused, "Redis has fewer replicas than min-replicas-to-write asks for"),
    "BUSY": (LedgerBusy, "another script keeps Redis busy; SCRIPT KILL ends it"),
    "LOADING": (LedgerUnavailable, "Redis is still loading its data"),
    "TRYAGAIN": (LedgerUnavailable, "the slot of the ledger is being moved to another node"),
    "CLUSTERDOWN": (LedgerUnavailable, "the cluster is down"),
    "MASTERDOWN": (LedgerUnavailable, "this replica has lost its primary"),
}
_FINAL: dict[str, tuple[type[Exception], str]] = {
    "NOPERM": (LedgerDenied, "the login lacks a right; the page about Redis lists what it needs"),
    "CROSSSLOT": (ConfigurationError, "a cluster keeps the ledger and the data together only under one hash tag"),
    "WRONGTYPE": (LedgerError, "a key of the ledger holds something else; give the ledger a prefix of its own"),
}
_CODES: dict[type[Exception], str] = {  # redis-py raises these as classes and removes the code from the message
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
}
_LOGIN = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
)
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.RedisClusterException, exceptions.ClusterError)


class RefusedNow(OutcomeUnknown):
    """Redis refuses such commands at present.

    It counts as an unknown outcome, because the same command may have been sent before: a client that is set to retry
    may have lost the first reply, and then reached a server that is loading or has become a replica.
    """

    def __init__(self, kind: type[LedgerError], message: str) -> None:
        super().__init__(message)
        self._kind = kind

    def amounts_to(self, what: str) -> LedgerError:
        """Return the public error for this kind of refusal."""
        return self._kind(f"{what}: {self}")


def meaning(error: Exception, where: str, lost: type[ConnectionLost | OutcomeUnknown]) -> Exception:
    """Return the ledger's exception for an error of redis-py; ``lost`` is the one for a lost connection."""
    if isinstance(error, _LOGIN):
        return LedgerUnavailable(f"Redis at {where} refused the login: {error}. Are user and password right?")
    code = _code(error)
    if code in _PASSING:
        kind, advice = _PASSING[code]
        return RefusedNow(kind, f"Redis at {where}: {advice} ({error})")
    if code in _FINAL:
        final, advice = _FINAL[code]
        return final(f"Redis at {where}: {advice} ({error})")
    if isinstance(error, _LOST):
        return lost(f"Redis at {where}: {error}")
    return LedgerError(f"Redis at {where} refused: {error}")


def _code(error: Exception) -> str:
    """Return the first word of a Redis error, its code; older versions of Redis put it after the script's name."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    text = str(error)
    inside = re.search(r"@user_script:\d+: (?:@user_script: \d+: )?-?([A-Z]+) ", text)
    return inside[1] if inside else text.partition(" ")[0]


def watch_connections(pool: ConnectionPool, watch: Watch) -> None:
    """Watch the waits of a pool's connections, in addition to redis-py's own timeout."""
    plain: Any = pool.connection_class

    class Watched(plain):  # type: ignore[misc]
        """A connection whose wait for a reply can be broken off."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._line = watch.line(lambda: int(self._sock.fileno()), exceptions.ConnectionError)
            self.read_response: Any = self._line.watched(super().read_response)

        def _connect(self) -> Any:
            self._line.reason = None  # the same object is used for the next connection
            return super()._connect()

    pool.connection_class = Watched
