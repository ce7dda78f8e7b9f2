"""Checks of a ledger in Redis, for ``tidegate doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from redis.exceptions import ResponseError

from tidegate.core.findings import Clock, Finding, Verdict, compare_clocks
from tidegate.errors import ConfigurationError, LedgerDenied, TidegateError
from tidegate.ledger.redis.ledger import SCHEMA_VERSION
from tidegate.ledger.transaction import Retriable

__all__ = ["examine_redis"]


_REACH = "see that Redis runs, that it can be reached from here, and that the login is right"
# A script with a write that changes nothing: it needs the same privileges as a transaction.
_TRY_WRITING = "redis.call('TIME') return redis.call('HDEL', KEYS[1], '')"


def examine_redis(ledger: Any, now: Clock) -> Iterator[Finding]:
    """Check a ledger and yield the findings; ``now`` is this machine's clock."""
    client = ledger._client
    try:
        with ledger._meant():
            client.ping()
            yield Finding.ok("ledger", f"{ledger} answers")
            yield _version(ledger, client.get(ledger._key("schema")))
        rights = _rights(ledger)
        yield rights
        if rights.verdict is Verdict.FAULT:
            return
        with ledger._meant():
            yield compare_clocks(lambda: _now(client), now)
            yield _eviction(ledger)
            yield from _durability(client)
    except Retriable as trouble:
        yield Finding.fault("ledger", str(trouble.amounts_to(f"the ledger at {ledger}")), _REACH)
    except TidegateError as error:
        yield Finding.fault("ledger", str(error), _REACH)


def _version(ledger: Any, stored: Any) -> Finding:
    if stored is None:
        return Finding.warning("tables", f"the ledger at {ledger} has no keys yet", "they are created on first use")
    version = stored if isinstance(stored, str) else bytes(stored).decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        said = f"the keys have schema version {version}, and this Tidegate knows only up to {SCHEMA_VERSION}"
        return Finding.fault("tables", said, "upgrade Tidegate here, or use another prefix")
    return Finding.ok("tables", f"the keys have schema version {version}")


def _rights(ledger: Any) -> Finding:
    try:
        with ledger._meant():
            ledger._client.register_script(_TRY_WRITING)([ledger._key("tries", "")])
    except (LedgerDenied, Retriable) as error:
        return Finding.fault("grants", str(error), "docs/redis.md lists the rights that the login needs")
    return Finding.ok("grants", "the login may run scripts, and write")


def _now(client: Any) -> datetime:
    seconds, microseconds = client.time()
    return datetime.fromtimestamp(seconds, UTC) + timedelta(microseconds=microseconds)


def _eviction(ledger: Any) -> Finding:
    try:
        ledger._check_eviction()
    except ConfigurationError as error:
        return Finding.fault("eviction", str(error), "set maxmemory-policy to noeviction, or to a volatile one")
    return Finding.ok("eviction", "Redis evicts no positions, as far as it tells")


def _durability(client: Any) -> Iterator[Finding]:
    try:
        is_on = client.info("persistence").get("aof_enabled")
    except ResponseError:  # the login may lack this privilege
        return
    if is_on:
        yield Finding.ok("durability", "the append-only file is on")
    else:
        yield Finding.warning(
            "durability",
            "the append-only file is off: after a crash Redis is as at its last snapshot, data and position alike",
            "turn it on, with appendfsync always if no commit may be lost",
        )
