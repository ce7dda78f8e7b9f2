"""A simulated broker for tests: topics, groups and consumers in this process."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidegate.core.policies import LogOffsets
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import Record, TopicPartition, check_topic
from tidegate.kafka.broker import Broker, Cluster, Membership, RecordSource
from tidegate.kafka.consumer import Fetched, RebalanceListener

__all__ = ["Group", "KitBroker", "LocalBroker", "LocalMember", "LocalSource", "LocalTopics"]


class KitBroker(Broker, Protocol):
    """Interface of a broker for the test kit; its topics belong to one test."""

    @property
    def can_aim(self) -> bool:
        """Whether the broker can take partitions away at an exact step."""

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to an existing one."""

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist."""

    def append(self, record: Record) -> Record:
        """Append a record; returns it with its offset."""

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the log ends of all partitions of these topics."""

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed to the broker."""

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Take partitions away from their owners and reassign them. With ``lost``, the owners cannot finish first."""

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Let the next member that joins get these partitions. With ``lost``, their owners cannot finish first."""

    def close(self) -> None:
        """Delete the test's topics."""


class LocalTopics:
    """Topics, their partitions and records, in memory. Nothing is ever removed.

    The condition ``changed`` guards all state of the broker, and is notified of every change.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._cluster_id = f"kit-{uuid.uuid4()}"
        self._ids: dict[str, str] = {}
        self._logs: dict[TopicPartition, list[Record]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._ids

    @property
    def all(self) -> list[TopicPartition]:
        """Every partition, sorted."""
        return sorted(self._logs)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic, or add partitions to an existing one."""
        with self.changed:
            self._ids.setdefault(check_topic(topic), str(uuid.uuid4()))
            for number in range(partitions):
                self._logs.setdefault(TopicPartition(topic, number), [])
            self.changed.notify_all()

    def append(self, record: Record) -> Record:
        """Append a record to its partition; returns it with its offset."""
        with self.changed:
            log = self._logs[record.source]
            stored = record._replace(offset=len(log))
            log.append(stored)
            self.changed.notify_all()
        return stored

    def read(self, partition: TopicPartition, offset: int, most: int) -> list[Record]:
        """Return at most ``most`` records from an offset on."""
        return self._logs[partition][offset : offset + most]

    def end(self, partition: TopicPartition) -> int:
        """Return the offset that the next record gets."""
        return len(self._logs[partition])

    def has(self, partition: TopicPartition, offset: int) -> bool:
        """Return whether the offset is in range; the end of the log is."""
        return 0 <= offset <= self.end(partition)

    # The interface Cluster

    def identities(self, topics: Iterable[str]) -> dict[str, Identity]:
        """Return the identity of each of these topics that exists."""
        return {topic: Identity(self._cluster_id, self._ids[topic]) for topic in topics if topic in self._ids}

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """Return every partition of these topics."""
        return {tp for tp in self.all if tp.topic in topics}

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """Return where the logs of these partitions begin and end, and their first offset not before time ``at``."""
        with self.changed:
            return {
                tp: LogOffsets(0, self.end(tp), None if at is None else self._since(tp, at))
                for tp in partitions
                if tp in self._logs
            }

    def unanswered(self) -> None:
        """Return ``None``: the local broker always answers."""

    def _since(self, partition: TopicPartition, at: int) -> int | None:
        """Return the first offset whose timestamp is not before ``at``; timestamps need not be in order."""
        log = self._logs[partition]
        return next((record.offset for record in log if record.timestamp is not None and record.timestamp >= at), None)


class LocalMember(Protocol):
    """Interface of a group's member."""

    @property
    def subscription(self) -> list[str]:
        """The topics of the member, and patterns, which begin with ``^``."""


class Group:
    """A group: its members, in the order in which they joined, and the partitions of each.

    Partitions move as under the cooperative protocol: those that stay with their owner are not touched, and one that
    moves goes to its new owner after the old one has given it up. Callers must hold the broker's lock.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, KeptOffset] = {}
        """The offsets that members have committed."""
        self._members: list[LocalMember] = []
        self._target: dict[TopicPartition, LocalMember] = {}
        self._held: dict[TopicPartition, LocalMember] = {}
        self._bounced: set[TopicPartition] = set()
        self._lost: dict[TopicPartition, LocalMember] = {}

    # Members

    def join(
        self, member: LocalMember, partitions: Iterable[TopicPartition], first: Collection[TopicPartition]
    ) -> None:
        """Add a member and assign all partitions again; the new member gets those in ``first`` before others."""
        self._members.append(member)
        self._target.clear()
        self.share_out(sorted(partitions, key=lambda tp: (tp not in first, tp)))

    def leave(self, member: LocalMember, partitions: Iterable[TopicPartition]) -> None:
        """Remove a member; the others get its partitions."""
        if member in self._members:
            self._members.remove(member)
        self._bounced -= {tp for tp, owner in self._held.items() if owner is member}
        for owners in (self._target, self._held, self._lost):
            for tp in [tp for tp, owner in owners.items() if owner is member]:
                del owners[tp]
        self.share_out(sorted(partitions))

    def share_out(self, partitions: Iterable[TopicPartition]) -> None:
        """Give partitions without an intended owner to the interested members in turn, beginning with the newest."""
        turn = 0
        for tp in partitions:
            interested = [member for member in reversed(self._members) if _wants(member.subscription, tp.topic)]
            if interested and tp not in self._target:
                self._target[tp] = interested[turn % len(interested)]
                turn += 1

    # Faults

    def bounce(self, partitions: Iterable[TopicPartition]) -> None:
        """Have the owners of these partitions give them up, and then assign them again."""
        self._bounced.update(tp for tp in partitions if tp in self._held)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions away at once; their owners are notified afterwards."""
        for tp in partitions:
            if tp in self._held:
                self._lost[tp] = self._held.pop(tp)

    # Notifications for a member

    def to_lose(self, member: LocalMember) -> list[TopicPartition]:
        """Return the partitions that a member has lost; each is returned once."""
        gone = sorted(tp for tp, owner in self._lost.items() if owner is member)
        for tp in gone:
            del self._lost[tp]
        return gone

    def to_revoke(self, member: LocalMember) -> list[TopicPartition]:
        """Return the partitions that a member has to give up; it confirms with :meth:`given_up`."""
        held = (tp for tp, owner in self._held.items() if owner is member)
        return sorted(tp for tp in held if self._target.get(tp) is not member or tp in self._bounced)

    def given_up(self, member: LocalMember, partitions: Iterable[TopicPartition]) -> None:
        """Free partitions for their new owner, unless they were taken from the member meanwhile."""
        for tp in partitions:
            if self._held.get(tp) is member:
                del self._held[tp]
                self._bounced.discard(tp)

    def to_assign(self, member: LocalMember) -> list[TopicPartition]:
        """Return the partitions that a member gets now, and make it their owner."""
        mine = (tp for tp, owner in self._target.items() if owner is member)
        added = sorted(tp for tp in mine if tp not in self._held and self._lost.get(tp) is not member)
        self._held.update(dict.fromkeys(added, member))
        return added

    def has_news(self, member: LocalMember) -> bool:
        """Return whether there is a notification for a member."""
        mine = [tp for tp, owner in self._target.items() if owner is member]
        waiting = any(tp not in self._held for tp in mine)
        return waiting or member in self._lost.values() or bool(self.to_revoke(member))


def _wants(subscription: list[str], topic: str) -> bool:
    return any(re.match(wanted, topic) if wanted.startswith("^") else wanted == topic for wanted in subscription)


class LocalBroker:
    """Takes the place of Kafka in tests, without a network."""

    can_aim = True

    def __init__(self) -> None:
        self.topics = LocalTopics()
        self._groups: dict[str, Group] = {}
        self._moving: set[TopicPartition] = set()
        self._losing = False

    # The interface Broker, for listeners

    def cluster(self, settings: Mapping[str, Any]) -> Cluster:
        """Return the topics, which answer questions about the cluster."""
        return self.topics

    def source(self, settings: Mapping[str, Any], membership: Membership, rebalance: RebalanceListener) -> RecordSource:
        """Create a consumer that reports its rebalances to ``rebalance``."""
        return LocalSource(self, self._group(membership.group), rebalance)

    def join(self, source: LocalSource, group: Group) -> None:
        """Add a consumer to a group; a move that is expected happens now."""
        with self.topics.changed:
            group.join(source, self.topics.all, self._moving)
            if self._losing:
                group.lose(self._moving)
            self._moving, self._losing = set(), False
            self.topics.changed.notify_all()

    def leave(self, source: LocalSource, group: Group) -> None:
        """Remove a consumer from its group."""
        with self.topics.changed:
            group.leave(source, self.topics.all)
            self.topics.changed.notify_all()

    # The interface KitBroker, for the test kit

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic or add partitions, and share the new partitions out to the groups."""
        with self.topics.changed:
            self.topics.create(topic, partitions)
            for group in self._groups.values():
                group.share_out(self.topics.all)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist."""
        return sum(tp.topic == topic for tp in self.topics.all)

    def append(self, record: Record) -> Record:
        """Append a record; returns it with its offset."""
        return self.topics.append(record)

    def ends(self, topics: Iterable[str]) -> dict[TopicPartition, int]:
        """Return the log ends of all partitions of these topics."""
        wanted = set(topics)
        return {tp: self.topics.end(tp) for tp in self.topics.all if tp.topic in wanted}

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted({tp.topic for tp in self.topics.all})

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return the offsets that a group has committed."""
        return {tp: kept.offset for tp, kept in sorted(self._group(group).offsets.items())}

    def bounce(self, group: str, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Take partitions away from their owners and reassign them. With ``lost``, the owners cannot finish first."""
        with self.topics.changed:
            known = self._group(group)
            known.lose(partitions) if lost else known.bounce(partitions)
            self.topics.changed.notify_all()

    def expect_move(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        """Let the next member that joins get these partitions. With ``lost``, their owners cannot finish first."""
        with self.topics.changed:
            self._moving, self._losing = set(partitions), lost

    def close(self) -> None:
        """Do nothing: everything is in memory."""

    def _group(self, name: str) -> Group:
        with self.topics.changed:
            return self._groups.setdefault(name, Group())


_LONGEST = 0.01  # seconds to wait for a record at most: in memory, none takes longer to arrive


class LocalSource:
    """A consumer of a :class:`LocalBroker`, in place of ``GroupConsumer``."""

    def __init__(self, broker: LocalBroker, group: Group, rebalance: RebalanceListener) -> None:
        self.subscription: list[str] = []
        self._broker = broker
        self._topics = broker.topics
        self._group = group
        self._rebalance = rebalance
        self._places: dict[TopicPartition, int | None] = {}
        self._paused: set[TopicPartition] = set()
        self._told: dict[TopicPartition, int] = {}  # offsets reported already, as a log end or as out of range

    def subscribe(self, topics: list[str]) -> None:
        """Join the group for these topics or patterns."""
        self.subscription = topics
        self._broker.join(self, self._group)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, without joining the group."""
        self._take(list(partitions))

    def fetch(self, most: int, timeout: float, room: int | None = None) -> Fetched:
        """Handle a rebalance, or else return the records that arrive within the timeout, which is kept short."""
        if self._rebalanced():
            return Fetched([], [], [], [])
        deadline = time.monotonic() + min(timeout, _LONGEST)
        with self._topics.changed:
            fetched = self._read(most, room)
            while not (any(fetched) or self._group.has_news(self)):
                if not self._topics.changed.wait(deadline - time.monotonic()):
                    break
                fetched = self._read(most, room)
        return fetched

    def seek(self, partition: TopicPartition, offset: int) -> bool:
        """Continue reading at ``offset``; returns whether the partition is assigned."""
        if partition not in self._places:
            return False
        self._places[partition] = offset
        self._told.pop(partition, None)
        return True

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions again."""
        self._paused.difference_update(partitions)

    def mirror(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the positions, without notes."""
        self.commit({tp: KeptOffset(offset) for tp, offset in positions.items()})

    def commit(self, positions: Mapping[TopicPartition, KeptOffset], *, asynchronous: bool = False) -> None:
        """Store the group's committed offsets."""
        with self._topics.changed:
            self._group.offsets.update(positions)

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Return the group's committed offsets; partitions without one are left out."""
        with self._topics.changed:
            return {tp: self._group.offsets[tp] for tp in partitions if tp in self._group.offsets}

    def end(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition's log."""
        return self._topics.end(partition)

    def serve(self) -> None:
        """Do nothing: any thread can make its calls itself."""

    def close(self) -> None:
        """Give up all partitions and leave the group."""
        if self.subscription and self._places:
            self._rebalance.revoked(sorted(self._places))
        self._drop(list(self._places))
        self._broker.leave(self, self._group)

    def _rebalanced(self) -> bool:
        """Notify the listener of lost, revoked and assigned partitions; returns whether there were any."""
        changed = self._topics.changed
        with changed:
            lost = self._group.to_lose(self)
        if lost:
            self._rebalance.lost(lost)
            self._drop(lost)
        with changed:
            revoked = self._group.to_revoke(self)
        if revoked:
            self._rebalance.revoked(revoked)
            self._drop(revoked)
            with changed:
                self._group.given_up(self, revoked)
                changed.notify_all()
        with changed:
            added = self._group.to_assign(self)
        if added:
            self._take(added)
        return bool(lost or revoked or added)

    def _take(self, partitions: list[TopicPartition]) -> None:
        starts = self._rebalance.assigned(partitions)
        self._places.update((tp, starts.get(tp)) for tp in partitions)
        self._paused.difference_update(partitions)

    def _drop(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._places.pop(tp, None)
            self._told.pop(tp, None)
            self._paused.discard(tp)

    def _read(self, most: int, room: int | None) -> Fetched:
        records: list[Record] = []
        fetched = Fetched(records, [], [], [])
        for tp, place in self._places.items():
            if place is None or tp in self._paused:
                continue
            if self._told.get(tp) == place and self._topics.end(tp) <= place:
                continue
            if not self._topics.has(tp, place):
                self._told[tp] = place
                fetched.out_of_range.append(tp)
                continue
            for record in self._topics.read(tp, place, most - len(records)):
                if room is not None and room <= 0:
                    break
                room = None if room is None else room - record.size
                records.append(record)
                self._places[tp] = record.offset + 1
            if (reached := self._places[tp]) == self._topics.end(tp):
                self._told[tp] = reached
                fetched.ends.append((tp, reached))
        return fetched
