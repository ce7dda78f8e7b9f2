"""What may be called what: group and topic names within Kafka's limits and the ledger's."""

from __future__ import annotations

import re

from tidegate.core.errors import InvalidName

__all__ = ["GROUP_BYTES", "TOPIC_LENGTH", "check_group", "check_topic"]

GROUP_BYTES = 255
TOPIC_LENGTH = 249

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_group(group: str) -> str:
    """Return ``group``, or raise :class:`InvalidName` if a ledger cannot hold it byte for byte."""
    if not isinstance(group, str):
        raise InvalidName(f"group: expected the name of a group, not a {type(group).__name__}")
    if not group:
        raise InvalidName("the group name is empty; give the group a name, such as group='billing'")
    try:
        length = len(group.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"the group name {group!a} is not valid Unicode; use text that UTF-8 can encode") from None
    if "\0" in group:
        raise InvalidName(f"the group name {group!r} contains a NUL character, which databases cannot store; remove it")
    if length > GROUP_BYTES:
        raise InvalidName(
            f"the group name {group[:40]!r}… has {length} bytes; at most {GROUP_BYTES} can be stored, so shorten it"
        )
    return group


def check_topic(topic: str) -> str:
    """Return ``topic``, or raise :class:`InvalidName` if Kafka does not allow it."""
    if not isinstance(topic, str):
        raise InvalidName(f"topic: expected the name of a topic, not a {type(topic).__name__}")
    if _TOPIC.fullmatch(topic) and topic not in {".", ".."}:
        return topic
    shown = topic if len(topic) <= 60 else topic[:60] + "…"
    raise InvalidName(
        f"{shown!a} is not a Kafka topic name: 1 to {TOPIC_LENGTH} of letters, digits, '.', '_' and '-' are allowed"
    )
