"""The settings, section by section: what may be said, what holds if nothing is, and what cannot be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from tidegate.core.arguments import (
    Amount,
    ByteCount,
    ClientConfig,
    Count,
    Kind,
    Label,
    argument,
    convert_arguments,
)
from tidegate.core.batching import BatchBounds
from tidegate.core.bounds import Hold, LockWait, ThreadCount
from tidegate.core.delivery import CommitStrategy, Delivery
from tidegate.core.errors import ConfigurationError
from tidegate.core.lag import LagGuard
from tidegate.core.protocols import Protocol, SessionTimeout
from tidegate.core.recovery import Backoff, OutOfRange, Recreated, Retry
from tidegate.core.start import Earliest, Start, StartStrategy
from tidegate.settings.masking import Masked
from tidegate.settings.on_error import OnError
from tidegate.settings.reading import read
from tidegate.settings.refusals import refuse_unsafe
from tidegate.settings.sinks import SinkSettings

__all__ = [
    "KafkaSettings",
    "LedgerSettings",
    "LimitSettings",
    "ListenerSettings",
    "Settings",
    "settings_file",
]

# A transaction takes what came in while the one before it ran: quick where there is little, large where there is much.
_WHATEVER_IS_THERE = BatchBounds(count=10_000, bytes=4 << 20, age=0.0)
_EARLIEST = Earliest()
_BACKOFF = Backoff()


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSettings(Masked):
    """The cluster; ``client`` goes to librdkafka as it is."""

    bootstrap: Label | None = None
    client: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)
        argument("client", ClientConfig, self.client)
        refuse_unsafe(self.client)
        if self.bootstrap is not None and "bootstrap.servers" in self.client:
            raise ConfigurationError("the brokers are named twice, as 'bootstrap' and as 'bootstrap.servers'; keep one")

    def configuration(self) -> dict[str, Any]:
        """What clients of the cluster are opened with."""
        return {**({} if self.bootstrap is None else {"bootstrap.servers": self.bootstrap}), **self.client}


@dataclass(frozen=True, slots=True, repr=False)
class LimitSettings(Masked):
    """How long the ledger waits, and how long it may keep others waiting: see ``Limits``."""

    hold: Hold = 10.0
    lock_wait: LockWait = 15.0
    attempts: Count = 100

    def __post_init__(self) -> None:
        convert_arguments(self)
        if self.hold > self.lock_wait:
            raise ConfigurationError("'lock_wait' has to be at least as long as 'hold'")


@dataclass(frozen=True, slots=True, repr=False)
class LedgerSettings(Masked):
    """Where positions live. Without a URL they are kept in Kafka, and nothing is exactly once."""

    url: Label | None = None
    prefix: Label | None = None
    limits: LimitSettings = LimitSettings()

    def __post_init__(self) -> None:
        convert_arguments(self)


@dataclass(frozen=True, slots=True, repr=False)
class ListenerSettings(Masked):
    """What holds for every listener that does not say otherwise itself."""

    delivery: Delivery = Delivery.EXACTLY_ONCE
    commit: CommitStrategy = CommitStrategy.SYNCHRONOUS
    protocol: Protocol = Protocol.COOPERATIVE
    start: Start = _EARLIEST
    deployment: Label | None = None
    batch: BatchBounds = _WHATEVER_IS_THERE
    buffer_bytes: ByteCount = 32 << 20
    on_error: OnError = OnError.FAIL
    retries: Amount = 0
    backoff: Backoff = _BACKOFF
    out_of_range: OutOfRange = OutOfRange.STOP
    recreated: Recreated = Recreated.STOP
    lag_guard: LagGuard | None = None
    mirror: bool = False
    threads: ThreadCount = 1
    session_timeout: SessionTimeout = 45.0

    def __post_init__(self) -> None:
        convert_arguments(self)

    def defaults(self) -> dict[str, Any]:
        """Keyword arguments of a listener's specification."""
        policy = self.on_error.policy
        return {
            "delivery": self.delivery,
            "commit": self.commit,
            "lag_guard": self.lag_guard,
            "protocol": self.protocol,
            "start": StartStrategy(self.start, self.deployment),
            "batch": self.batch,
            "buffer_bytes": self.buffer_bytes,
            "on_error": Retry(self.retries, self.backoff, policy) if self.retries else policy,
            "out_of_range": self.out_of_range,
            "recreated": self.recreated,
            "mirror": self.mirror,
            "threads": self.threads,
            "session_timeout": self.session_timeout,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Settings(Masked):
    """All settings."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    ledger: LedgerSettings = LedgerSettings()
    listener: ListenerSettings = ListenerSettings()
    sink: Mapping[str, SinkSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_arguments(self)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the file at ``path``, or the one that ``TIDEGATE_CONFIG`` names, or ``tidegate.toml`` in the current
        directory if there is one; what the environment says goes before what the file says.
        """
        environ = os.environ if environ is None else environ
        return read(cls, settings_file(path, environ), environ)


def _file(given: Any) -> Any:
    return given if isinstance(given, (str, os.PathLike)) and os.fspath(given) else None


_FileArgument: TypeAlias = Annotated[Any, Kind("the path of a file", _file)]


def settings_file(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that :meth:`Settings.load` reads with the same arguments; ``None`` if it reads none."""
    path = argument("path", _FileArgument | None, path)
    chosen = path or (os.environ if environ is None else environ).get("TIDEGATE_CONFIG")
    default = Path("tidegate.toml")
    return Path(chosen) if chosen else default if default.exists() else None
