"""The group coordinator: who is assigned what, told by notices that may arrive late or never."""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from tidegate.core.records import TopicPartition

if TYPE_CHECKING:
    from .process import Process

SESSION = 3.0
"""Seconds without a sign of life after which a member is expelled."""


class Notice(Enum):
    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


class Coordinator:
    """Assignments of one group.

    Eager: everything is revoked, and only when all have given up everything is it assigned anew. Cooperative: what
    moves is revoked, and each partition is assigned as soon as it was given up. A member that does not answer in time
    is expelled: its partitions go to others at once, and it learns of it when it next asks.
    """

    def __init__(self, rng: Random, cooperative: bool) -> None:
        self.rng = rng
        self.cooperative = cooperative
        self.partitions: list[TopicPartition] = []
        self.members: list[Process] = []
        self.held: dict[TopicPartition, Process] = {}
        self.revoking: dict[TopicPartition, Process] = {}
        self.target: dict[TopicPartition, Process] = {}
        self.barrier = False

    def join(self, member: Process, now: float) -> None:
        if member not in self.members:
            self.members.append(member)
        member.joined = True
        member.last_seen = now

    def leave(self, member: Process, now: float) -> None:
        """A member says goodbye."""
        if member in self.members:
            self.members.remove(member)
            self._take_all(member)
            member.inbox.clear()
            self.rebalance(now)

    def rebalance(self, now: float, *, everything: bool = False) -> None:
        """Assign the partitions to the members anew; ``everything``: even what stays where it is, is revoked first."""
        live = [member for member in self.members if member.joined]
        self.target = {}
        if not live:
            return
        random = self.rng.random
        shift = int(random() * len(live))
        for i, tp in enumerate(self.partitions):
            holder = self.held.get(tp)
            sticks = self.cooperative and holder is not None and random() < 0.4
            self.target[tp] = holder if sticks and holder is not None else live[(i + shift) % len(live)]
        if everything or not self.cooperative:
            self.barrier = True
        for member in live:
            moving = [
                tp
                for tp, holder in self.held.items()
                if holder is member and tp not in self.revoking and (self.barrier or self.target[tp] is not member)
            ]
            if moving:
                self.revoking.update(dict.fromkeys(moving, member))
                member.inbox.append((Notice.REVOKED, moving))
                if member.asked_at is None:
                    member.asked_at = now
        self._assign()

    def gave_up(self, member: Process, partitions: list[TopicPartition]) -> None:
        """A member has answered a revocation; one that was expelled meanwhile has nothing to say."""
        for tp in partitions:
            if self.held.get(tp) is member:
                del self.held[tp]
                self.revoking.pop(tp, None)
        if member not in self.revoking.values():
            member.asked_at = None
        self._assign()

    def expel_the_silent(self, now: float) -> None:
        for member in self.members:
            if member.joined and (
                now - member.last_seen > SESSION
                or (member.asked_at is not None and now - member.asked_at > 2 * SESSION)
            ):
                self._expel(member, now)
                return

    def _expel(self, member: Process, now: float) -> None:
        self._take_all(member)
        member.inbox.clear()
        if member.is_dead:
            self.members.remove(member)
        else:
            member.inbox.append((Notice.LOST, []))
        self.rebalance(now)

    def _take_all(self, member: Process) -> None:
        member.joined = False
        member.asked_at = None
        for tp in [tp for tp, holder in self.held.items() if holder is member]:
            del self.held[tp]
            self.revoking.pop(tp, None)

    def _assign(self) -> None:
        if self.barrier and self.revoking:
            return
        self.barrier = False
        given: dict[Process, list[TopicPartition]] = {}
        for tp, member in self.target.items():
            if tp not in self.held and member.joined:
                self.held[tp] = member
                given.setdefault(member, []).append(tp)
        for member, partitions in given.items():
            member.inbox.append((Notice.ASSIGNED, partitions))
