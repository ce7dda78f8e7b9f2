"""A consumer group without a broker: who has which partition, and who is to have it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

from tidegate.core.positions import KeptOffset
from tidegate.core.records import TopicPartition

__all__ = ["Group", "GroupMember"]


class GroupMember(Protocol):
    """A consumer of a group."""

    @property
    def subscription(self) -> list[str]:
        """Topics, and patterns, which begin with ``^``."""


class Group:
    """The members of one group, in the order in which they joined.

    Partitions move as under the cooperative protocol: those that stay are not touched, and one that moves goes to its
    new owner when the old one has given it up. To be used under the broker's lock.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, KeptOffset] = {}
        """What members keep in Kafka."""
        self._members: list[GroupMember] = []
        self._target: dict[TopicPartition, GroupMember] = {}
        self._held: dict[TopicPartition, GroupMember] = {}
        self._bounced: set[TopicPartition] = set()
        self._lost: dict[TopicPartition, GroupMember] = {}

    # Who there is

    def join(
        self, member: GroupMember, partitions: Iterable[TopicPartition], first: Collection[TopicPartition]
    ) -> None:
        """A member joins, and gets its share: of the partitions that come ``first``, if there are any."""
        self._members.append(member)
        self._target.clear()
        self.share_out(sorted(partitions, key=lambda tp: (tp not in first, tp)))

    def leave(self, member: GroupMember, partitions: Iterable[TopicPartition]) -> None:
        """A member leaves; the others get what it had."""
        if member in self._members:
            self._members.remove(member)
        self._bounced -= {tp for tp, owner in self._held.items() if owner is member}
        for owners in (self._target, self._held, self._lost):
            for tp in [tp for tp, owner in owners.items() if owner is member]:
                del owners[tp]
        self.share_out(sorted(partitions))

    def share_out(self, partitions: Iterable[TopicPartition]) -> None:
        """Give partitions that nobody is to have to members in turn, to the newest one first."""
        turn = 0
        for tp in partitions:
            interested = [member for member in reversed(self._members) if _wants(member.subscription, tp.topic)]
            if interested and tp not in self._target:
                self._target[tp] = interested[turn % len(interested)]
                turn += 1

    # Faults

    def bounce(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions away from whoever has them, and give them back."""
        self._bounced.update(tp for tp in partitions if tp in self._held)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions away without asking: whoever has them is told later."""
        for tp in partitions:
            if tp in self._held:
                self._lost[tp] = self._held.pop(tp)

    # What a member has to be told

    def to_lose(self, member: GroupMember) -> list[TopicPartition]:
        """Partitions that were taken from a member; it is told once."""
        gone = sorted(tp for tp, owner in self._lost.items() if owner is member)
        for tp in gone:
            del self._lost[tp]
        return gone

    def to_revoke(self, member: GroupMember) -> list[TopicPartition]:
        """Partitions that a member has to give up; it says so by :meth:`given_up`."""
        held = (tp for tp, owner in self._held.items() if owner is member)
        return sorted(tp for tp in held if self._target.get(tp) is not member or tp in self._bounced)

    def given_up(self, member: GroupMember, partitions: Iterable[TopicPartition]) -> None:
        """The new owner can have them, if they were not taken meanwhile."""
        for tp in partitions:
            if self._held.get(tp) is member:
                del self._held[tp]
                self._bounced.discard(tp)

    def to_assign(self, member: GroupMember) -> list[TopicPartition]:
        """Partitions that a member gets now; from here on it has them."""
        mine = (tp for tp, owner in self._target.items() if owner is member)
        added = sorted(tp for tp in mine if tp not in self._held and self._lost.get(tp) is not member)
        self._held.update(dict.fromkeys(added, member))
        return added

    def has_news(self, member: GroupMember) -> bool:
        """Whether there is something to tell a member."""
        mine = [tp for tp, owner in self._target.items() if owner is member]
        waiting = any(tp not in self._held for tp in mine)
        return waiting or member in self._lost.values() or bool(self.to_revoke(member))


def _wants(subscription: list[str], topic: str) -> bool:
    return any(re.match(wanted, topic) if wanted.startswith("^") else wanted == topic for wanted in subscription)
