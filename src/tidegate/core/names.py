"""What may be called what: group and topic names within Kafka's limits and the ledger's."""

from __future__ import annotations

import re

from tidegate.core.errors import InvalidName
from tidegate.core.texts import is_text

__all__ = ["DEPLOYMENT_BYTES", "GROUP_BYTES", "TOPIC_LENGTH", "check_deployment", "check_group", "check_topic"]

GROUP_BYTES = 255
DEPLOYMENT_BYTES = 255
TOPIC_LENGTH = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_group(group: str) -> str:
    """Return ``group``, or raise :class:`InvalidName` if a ledger cannot hold it byte for byte."""
    if not is_text(group):
        raise InvalidName(f"group: expected the name of a group, not a {type(group).__name__}")
    if not group.strip():
        raise InvalidName("the group name is empty; give the group a name, such as group='billing'")
    return _storable("group name", group, GROUP_BYTES)


def check_deployment(deployment: str) -> str:
    """Return ``deployment``, or raise :class:`InvalidName` if a ledger cannot hold it byte for byte."""
    if not deployment:
        raise InvalidName("the deployment has no name; give it one, such as deployment='2026-11-replay'")
    return _storable("deployment", deployment, DEPLOYMENT_BYTES)


def _storable(what: str, name: str, most: int) -> str:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the {what} {name!a} is not valid Unicode; use text that UTF-8 can encode") from None
    if "\0" in name:
        raise InvalidName(f"the {what} {name!r} contains a NUL character, which databases cannot store; remove it")
    if length > most:
        raise InvalidName(f"the {what} {name[:40]!r}… has {length} bytes; at most {most} can be stored, so shorten it")
    return name


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise :class:`InvalidName` if Kafka does not allow it."""
    if not is_text(topic):
        raise InvalidName(f"topic: expected the name of a topic, not a {type(topic).__name__}")
    if _TOPIC.fullmatch(topic) and topic not in {".", ".."}:
        return topic
    shown = topic if len(topic) <= 60 else topic[:60] + "…"
    raise InvalidName(
        f"{shown!a} is not a Kafka topic name: 1 to {TOPIC_LENGTH} of letters, digits, '.', '_' and '-' are allowed"
    )
