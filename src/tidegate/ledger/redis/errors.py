"""What the errors of redis-py mean for a ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from tidegate.core.errors import ConfigurationError, LedgerBusy, LedgerDenied, LedgerError, LedgerUnavailable
from tidegate.ledger.trouble import ConnectionLost, OutcomeUnknown, Trouble

__all__ = ["Refused", "meant"]

ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)

# Redis refuses before the first write of a script, and may take it later.
_PASSING: dict[str, tuple[type[LedgerError], str]] = {
    "READONLY": (LedgerDenied, "this Redis is a read-only replica; connect to its primary"),
    "OOM": (LedgerUnavailable, "Redis has reached its maxmemory; give it more, or delete data"),
    "MISCONF": (LedgerUnavailable, "Redis cannot save to its disk and takes no writes; see its log"),
    "NOREPLICAS": (LedgerUnavailable, "Redis has fewer replicas than min-replicas-to-write asks for"),
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
_CODES: dict[type[Exception], str] = {  # redis-py turns these into classes and takes the code away
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


class Refused(OutcomeUnknown):
    """Redis takes no commands of this kind at present.

    That says nothing about an earlier sending of the same command: a client that is set to retry may have lost the
    reply to that one, and then met a server that is loading or has become a replica.
    """

    def __init__(self, kind: type[LedgerError], message: str) -> None:
        super().__init__(message)
        self._kind = kind

    def amounts_to(self, what: str) -> LedgerError:
        """It went on for longer than the bound."""
        return self._kind(f"{what}: {self}")


@contextmanager
def meant(where: str, lost: type[ConnectionLost | OutcomeUnknown] = ConnectionLost) -> Iterator[None]:
    """Say what an error of redis-py means; ``lost`` is what a lost connection means."""
    try:
        yield
    except ERRORS as error:
        raise _meaning(error, where, lost) from error


def _meaning(error: Exception, where: str, lost: type[Trouble]) -> Exception:
    if isinstance(error, _LOGIN):
        return LedgerUnavailable(f"Redis at {where} refused the login: {error}. Are user and password right?")
    code = _code(error)
    if code in _PASSING:
        kind, advice = _PASSING[code]
        return Refused(kind, f"Redis at {where}: {advice} ({error})")
    if code in _FINAL:
        final, advice = _FINAL[code]
        return final(f"Redis at {where}: {advice} ({error})")
    if isinstance(error, _LOST):
        return lost(f"Redis at {where}: {error}")
    return LedgerError(f"Redis at {where} refused: {error}")


def _code(error: Exception) -> str:
    """The word that begins an error of Redis, also where an older Redis puts it behind the name of the script."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    text = str(error)
    inside = re.search(r"@user_script:\d+: (?:@user_script: \d+: )?-?([A-Z]+) ", text)
    return inside[1] if inside else text.partition(" ")[0]
