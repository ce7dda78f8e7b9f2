"""Refusals: settings of the Kafka client that would break the guarantee, or that Tidegate sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.core.errors import ConfigurationError

__all__ = ["refuse_unsafe"]

_COMMITS = "the client would commit positions on its own, before or without the data that belongs to them"
_FOLLOWS = "it follows from the listener's protocol; set 'protocol' there"
_CALLBACK = (
    "Tidegate claims, commits and releases in this callback; give the listener on_assigned, on_revoked or on_lost"
)
_RANGE = "any value but Tidegate's moves past a position that is out of range without a word; set 'out_of_range' there"

_REFUSED: dict[str, str] = {
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,  # the older name of the same
    "enable.auto.offset.store": _COMMITS,
    "offset.store.method": _COMMITS,
    "offset.store.path": _COMMITS,
    "auto.offset.reset": _RANGE,
    "enable.partition.eof": "the end of a partition is how Tidegate knows that it has caught up",
    "group.id": "it is the listener's group",
    "group.protocol": _FOLLOWS,
    "partition.assignment.strategy": _FOLLOWS,
    "session.timeout.ms": "Tidegate waits by the same time before it claims again; set 'session_timeout', in seconds",
    "default.topic.config": "it could hide what is refused; write its settings beside the others",
    "rebalance_cb": _CALLBACK,
    "on_assign": _CALLBACK,
    "on_revoke": _CALLBACK,
    "on_lost": _CALLBACK,
    "on_commit": "Tidegate commits, and tells its observers",
    "offset_commit_cb": "Tidegate commits, and tells its observers",
}


def refuse_unsafe(client: Mapping[str, Any]) -> None:
    """Raise a :class:`ConfigurationError` for the first setting of ``client`` that is not the user's to set."""
    for key, value in client.items():
        name = key.removeprefix("topic.")  # librdkafka takes the settings of topics with and without it
        if reason := _REFUSED.get(name):
            raise ConfigurationError(f"the client setting {key!r} is refused: {reason}")
        if name == "isolation.level" and str(value).strip().lower() != "read_committed":
            raise ConfigurationError(
                f"the client setting {key!r} is refused: records of aborted transactions would be handled; leave it "
                "out, or write read_committed"
            )
