"""Questions to a cluster about its topics, groups and logs: from listeners, pipelines and operators."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from tidegate.core.arguments import argument, span
from tidegate.core.masks import masked
from tidegate.core.policies import GroupProtocol, LogOffsets
from tidegate.core.positions import Identity, KeptOffset
from tidegate.core.records import TopicPartition
from tidegate.errors import BrokerUnavailable, ChangeRefused
from tidegate.kafka.codes import LOGIN, LOGIN_ADVICE
from tidegate.kafka.config import ClientLog, address_of, admin_config, client_config, consumer_config, opened
from tidegate.kafka.records import as_record

__all__ = [
    "Admin",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "LogEnds",
    "Survey",
    "TopicDescription",
    "TopicListing",
    "TopicReplicas",
    "describe_group",
    "describe_topic",
    "kept_offsets",
    "list_groups",
    "list_topics",
    "once_coordinated",
]


_SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "max.message.bytes",
    "message.timestamp.type",
)


class TopicListing(NamedTuple):
    """A topic in a list; ``out_of_sync`` counts the partitions with a replica that is not in sync."""

    topic: str
    partitions: int
    replicas: int
    out_of_sync: int


class TopicReplicas(NamedTuple):
    """A partition: its leader, the brokers that have a replica, and where its log begins and ends."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    log_begin: int | None
    log_end: int | None


class TopicDescription(NamedTuple):
    """A topic, its partitions and its settings."""

    topic: str
    topic_id: str
    partitions: tuple[TopicReplicas, ...]
    settings: Mapping[str, str]


def list_topics(client: AdminClient, seconds: float) -> list[TopicListing]:
    """Return every topic, sorted by name, except the cluster's internal ones (``__…``)."""
    known = client.list_topics(timeout=seconds).topics
    return [
        TopicListing(
            name,
            len(topic.partitions),
            max((len(each.replicas) for each in topic.partitions.values()), default=0),
            sum(len(each.isrs) < len(each.replicas) for each in topic.partitions.values()),
        )
        for name, topic in sorted(known.items())
        if not name.startswith("__")
    ]


def describe_topic(
    client: AdminClient, name: str, ends: Mapping[int, tuple[int, int]], seconds: float
) -> TopicDescription:
    """Describe a topic that exists; ``ends`` maps each partition to the begin and end of its log."""
    resource = ConfigResource(ResourceType.TOPIC, name)
    described = client.describe_topics(TopicCollection([name]), request_timeout=seconds)[name]
    configured = client.describe_configs([resource], request_timeout=seconds)[resource]
    found = described.result(seconds + 1)
    settings = configured.result(seconds + 1)
    partitions = tuple(
        TopicReplicas(
            each.id,
            None if each.leader is None else each.leader.id,
            tuple(node.id for node in each.replicas),
            tuple(node.id for node in each.isr),
            *ends.get(each.id, (None, None)),
        )
        for each in sorted(found.partitions, key=lambda each: each.id)
    )
    shown = {key: str(settings[key].value) for key in _SETTINGS if key in settings}
    return TopicDescription(name, str(found.topic_id), partitions, shown)


class GroupListing(NamedTuple):
    """A group in a list: its state (``stable``, ``empty``, …) and its protocol (``classic`` or ``consumer``)."""

    group: str
    state: str
    protocol: str


class GroupMember(NamedTuple):
    """A consumer that has joined a group, and the partitions that it was assigned."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[str, ...]


class GroupDescription(NamedTuple):
    """A group: its state, its protocol, how partitions are assigned, the broker that coordinates it, its members."""

    group: str
    state: str
    protocol: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]


def list_groups(client: AdminClient, seconds: float) -> list[GroupListing]:
    """Return every group of the cluster, sorted by name."""
    found = client.list_consumer_groups(request_timeout=seconds).result(seconds + 1)
    if found.errors and not found.valid:
        raise KafkaException(found.errors[0])
    listings = (
        GroupListing(each.group_id, _word(getattr(each, "state", None)), _word(getattr(each, "type", None)))
        for each in found.valid
    )
    return sorted(listings)


def describe_group(client: AdminClient, name: str, seconds: float) -> GroupDescription | None:
    """Describe a group; ``None`` if the cluster does not know it."""
    try:
        found = client.describe_consumer_groups([name], request_timeout=seconds)[name].result(seconds + 1)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            return None
        raise
    members = tuple(
        sorted(
            GroupMember(
                each.member_id,
                each.client_id,
                each.host.removeprefix("/"),
                each.group_instance_id,
                tuple(map(str, sorted(TopicPartition(tp.topic, tp.partition) for tp in _assigned(each)))),
            )
            for each in found.members
        )
    )
    state = _word(found.state)
    if state == "dead" and not members:  # how brokers describe a group that does not exist
        return None
    node = found.coordinator
    coordinator = f"{node.host}:{node.port} (broker {node.id})" if node is not None else "none"
    return GroupDescription(name, state, _word(found.type), found.partition_assignor, coordinator, members)


def _assigned(member: object) -> list[TopicPartition]:
    assignment = getattr(member, "assignment", None)
    return list(assignment.topic_partitions) if assignment is not None else []


def _word(value: object) -> str:
    """Return the name of one of the client's enum members, in lower case with hyphens."""
    name = getattr(value, "name", None) or "unknown"
    return str(name).lower().replace("_", "-")


_SECONDS = 10.0
_SESSION = 45.0  # seconds; required by consumer_config, but unused because the group is never joined
_NO_COORDINATOR = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}

T = TypeVar("T")


class Admin:
    """Asks one cluster. A request that is not answered within ten seconds raises :class:`BrokerUnavailable`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._refused_login: str | None = None
        self._client = opened(AdminClient, {**config, "error_cb": self._on_error}, "administration client")
        self._address = address_of(config)
        self._cluster_id: str | None = None

    def _on_error(self, error: KafkaError) -> None:
        """Keep the broker's reason for refusing the login: the request itself only times out."""
        if error.code() in LOGIN:
            self._refused_login = error.str()

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """Return the identity of each of these topics that exists."""
        try:
            if self._cluster_id is None:
                self._cluster_id = self._client.describe_cluster(request_timeout=_SECONDS).result(_SECONDS).cluster_id
            wanted = TopicCollection(sorted(topics))
            found: dict[str, Identity] = {}
            for topic, future in self._client.describe_topics(wanted, request_timeout=_SECONDS).items():
                try:
                    found[topic] = Identity(self._cluster_id, str(future.result(_SECONDS).topic_id))
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found
        except (KafkaException, TimeoutError) as error:
            raise BrokerUnavailable(f"{self._address} did not list its topics: {_reason(error)}") from error

    def logs(self, partitions: Iterable[TopicPartition], at: int | None = None) -> dict[TopicPartition, LogOffsets]:
        """Return where the logs of these partitions begin and end, and their first offset not before time ``at``."""
        wanted = sorted(partitions)
        earliest = self._offsets(wanted, OffsetSpec.earliest())
        latest = self._offsets(wanted, OffsetSpec.latest())
        times = {} if at is None else self._offsets(wanted, OffsetSpec.for_timestamp(at))
        return {
            tp: LogOffsets(earliest[tp], latest[tp], None if times.get(tp, -1) < 0 else times[tp])
            for tp in wanted
            if tp in earliest and tp in latest
        }

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KeptOffset]:
        """Return the positions that a group has committed to Kafka; partitions without one are left out.

        If an open transaction may still move a position, this waits for that transaction to end. It asks through a
        consumer that never joins the group, because librdkafka's admin client aborts the process if the group has no
        coordinator at that moment.
        """
        unknown = f"{self._address} did not return the coordinator of group {group!r}"
        wanted = [KafkaPartition(tp.topic, tp.partition) for tp in partitions]
        consumer = opened(Consumer, consumer_config(self._config, group, GroupProtocol.RANGE, _SESSION), "consumer")
        try:
            found = once_coordinated(lambda: consumer.committed(wanted, timeout=_SECONDS), _SECONDS)
        except KafkaException as error:
            raise BrokerUnavailable(f"{unknown}: {_reason(error)}") from error
        finally:
            consumer.close()
        for tp in found:
            if tp.error is not None:
                raise BrokerUnavailable(f"{unknown}: {tp.error.str()}")
        return kept_offsets(found)

    def unanswered(self, timeout: float = 0.5) -> str | None:
        """Return why the cluster does not answer; ``None`` if it does.

        It asks the admin client: a consumer would block on its own callbacks.
        """
        try:
            self._client.list_topics(timeout=timeout)
        except KafkaException:
            self._client.poll(0)
            if self._refused_login is not None:
                return f"{self._address} refuses the login: {masked(self._refused_login)}; {LOGIN_ADVICE}"
            return f"{self._address} does not answer; check the address, and whether the broker runs"
        self._refused_login = None  # a later outage is not the login's fault
        return None

    def partitions(self, topics: Collection[str]) -> set[TopicPartition]:
        """Return every partition of these topics."""
        try:
            metadata = self._client.list_topics(timeout=_SECONDS)
        except KafkaException as error:
            raise BrokerUnavailable(f"{self._address} did not list its topics: {_reason(error)}") from error
        return {
            TopicPartition(topic, number)
            for topic in topics
            if (known := metadata.topics.get(topic)) is not None
            for number in known.partitions
        }

    def _offsets(self, partitions: list[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(tp.topic, tp.partition): which for tp in partitions}
        try:
            futures = self._client.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_SECONDS
            )
            found: dict[TopicPartition, int] = {}
            for tp, future in futures.items():
                try:
                    found[TopicPartition(tp.topic, tp.partition)] = future.result(_SECONDS).offset
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
            return found
        except (KafkaException, TimeoutError) as error:
            raise BrokerUnavailable(
                f"{self._address} did not return the offsets of its logs: {_reason(error)}"
            ) from error


def no_topic(missing: Sequence[str]) -> str:
    """Return that these topics do not exist, and what to do."""
    names = ", ".join(map(repr, missing))
    there = f"there is no topic {names}" if len(missing) == 1 else f"there are no topics {names}"
    return f"{there}: create it (tidegate topics create {missing[0]}), or check its name"


def once_coordinated(ask: Callable[[], T], seconds: float) -> T:
    """Repeat a question about a group for up to ``seconds`` while the group has no coordinator.

    Right after the first group of a cluster appears, its coordinator takes a moment to start.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _NO_COORDINATOR or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)


def kept_offsets(found: Iterable[KafkaPartition]) -> dict[TopicPartition, KeptOffset]:
    """Convert the committed offsets that the client returned; partitions without one are left out."""
    return {
        TopicPartition(tp.topic, tp.partition): KeptOffset(tp.offset, tp.metadata or "")
        for tp in found
        if tp.offset >= 0
    }


def _reason(error: BaseException) -> str:
    if not isinstance(error, KafkaException):
        return str(error) or type(error).__name__
    found: KafkaError = error.args[0]
    if found.code() in _NO_COORDINATOR:
        return f"the group has no coordinator ({found.name()})"
    return str(found.str())


_SMALL_FETCHES = {
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 64 << 10,
    "fetch.max.bytes": 1 << 20,
    "message.max.bytes": 1 << 20,
}


class LogEnds(NamedTuple):
    """Where the log of a partition begins and ends.

    ``stable_end`` is the last stable offset: no transaction is open before it. ``log_end`` is the high watermark.
    ``at_time`` is the first offset not before the requested time; ``None`` if there is none or no time was requested.
    """

    begin: int
    stable_end: int
    log_end: int
    at_time: int | None = None


class Survey:
    """Asks one cluster. A request that is not answered within ``seconds`` raises :class:`BrokerUnavailable`.

    Each call opens a new client, because a client that once lost its connection may never again answer questions about
    groups.
    """

    def __init__(self, kafka: str | Mapping[str, Any], *, seconds: float = 5.0) -> None:
        """``kafka``: the address of a broker, or settings of librdkafka."""
        self._kafka = client_config(kafka)
        self._seconds: float = argument("seconds", Annotated[float, span(above=True)], seconds)

    def partitions(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each of these topics that exists."""
        return self._partitions(self._client(), topics)

    def stable_ends(self, topics: Collection[str], at: int | None = None) -> dict[TopicPartition, int]:
        """Return the last stable offset of each partition of these topics.

        With ``at``, return the first offset not before that timestamp instead, where there is one.
        """
        if not topics:
            return {}
        client = self._client()
        wanted = [tp for topic, count in self._partitions(client, topics).items() for tp in _all(topic, count)]
        ends = self._offsets(client, wanted, OffsetSpec.latest())
        if at is None:
            return ends
        return ends | {
            tp: offset
            for tp, offset in self._offsets(client, wanted, OffsetSpec.for_timestamp(at)).items()
            if offset >= 0
        }

    def logs(self, topics: Collection[str], at: int | None = None) -> dict[TopicPartition, LogEnds]:
        """Return where the logs of these topics begin and end, and their first offset not before time ``at``."""
        if not topics:
            return {}
        client = self._client()
        wanted = [tp for topic, count in self._partitions(client, topics).items() for tp in _all(topic, count)]
        begins = self._offsets(client, wanted, OffsetSpec.earliest())
        stable = self._offsets(client, wanted, OffsetSpec.latest())
        ends = self._offsets(client, wanted, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        times = {} if at is None else self._offsets(client, wanted, OffsetSpec.for_timestamp(at))
        return {
            tp: LogEnds(begins[tp], stable[tp], ends[tp], None if times.get(tp, -1) < 0 else times[tp])
            for tp in wanted
            if tp in begins and tp in stable and tp in ends
        }

    def oldest(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the timestamp, in milliseconds, of the first record at or after each of these positions.

        It is ``None`` if there is no such record. A partition that cannot be read in time, or whose record has no
        timestamp, is left out.
        """
        if not positions:
            return {}
        config = consumer_config(self._kafka, f"tidegate-survey-{secrets.token_hex(4)}", GroupProtocol.RANGE, _SESSION)
        consumer = opened(Consumer, {"logger": ClientLog(), **config, **_SMALL_FETCHES}, "consumer")
        found: dict[TopicPartition, int | None] = {}
        left = set(positions)
        deadline = time.monotonic() + self._seconds
        try:
            consumer.assign([KafkaPartition(*tp, offset) for tp, offset in positions.items()])
            while left and (remaining := deadline - time.monotonic()) > 0:
                message = consumer.poll(remaining)
                if message is None or message.topic() is None:  # nothing, or an error that belongs to no partition
                    continue
                tp = TopicPartition(message.topic(), message.partition())
                if tp not in left:
                    continue
                error = message.error()
                if error is None:
                    if (at := as_record(message).timestamp) is not None:
                        found[tp] = at
                elif error.code() == KafkaError._PARTITION_EOF:
                    found[tp] = None
                elif error.retriable():
                    continue
                left.discard(tp)
                consumer.pause([KafkaPartition(*tp)])
        except KafkaException as error:
            raise self._unavailable(error) from error
        finally:
            consumer.close()
        return found

    def identities(self, topics: Collection[str]) -> dict[str, Identity]:
        """Return the identity of each of these topics that exists."""
        return Admin(admin_config(self._kafka)).identities(topics)

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that a consumer group has committed; partitions without one are left out."""
        if not partitions:
            return {}
        found = Admin(admin_config(self._kafka)).group_offsets(group, partitions)
        return {tp: kept.offset for tp, kept in found.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], note: str) -> None:
        """Commit offsets for a consumer group that has no members, and check that Kafka has them.

        Raises :class:`ChangeRefused` if the group has members: Kafka accepts the offsets of members only then.
        """
        config = consumer_config(self._kafka, group, GroupProtocol.RANGE, _SESSION)
        answers: list[KafkaError | None] = []
        consumer = opened(
            Consumer, {"logger": ClientLog(), **config, "on_commit": lambda error, _: answers.append(error)}, "consumer"
        )
        wanted = [KafkaPartition(*tp, offset, note) for tp, offset in offsets.items()]

        def sent() -> None:
            answers.clear()
            consumer.commit(offsets=wanted, asynchronous=True)
            deadline = time.monotonic() + self._seconds
            while not answers and time.monotonic() < deadline:
                consumer.poll(0.1)
            if not answers:
                raise TimeoutError
            if answers[0] is not None:
                raise KafkaException(answers[0])

        try:
            once_coordinated(sent, self._seconds)
        except KafkaException as error:
            if error.args[0].code() in _HAS_MEMBERS:
                raise ChangeRefused(f"Kafka's group {group!r} has members: {error.args[0].str()}") from error
            raise self._unavailable(error) from error
        except TimeoutError as error:
            raise self._unavailable(error) from error
        finally:
            consumer.close()
        if self.committed(group, list(offsets)) != dict(offsets):
            raise BrokerUnavailable(f"Kafka's group {group!r} does not have the offsets that were committed")

    def groups(self) -> list[GroupListing]:
        """Return every consumer group of the cluster, sorted by name."""
        return self._asked(lambda client: once_coordinated(lambda: list_groups(client, self._seconds), self._seconds))

    def group(self, name: str) -> GroupDescription | None:
        """Describe a consumer group and its members; ``None`` if the cluster does not know it."""
        return self._asked(
            lambda client: once_coordinated(lambda: describe_group(client, name, self._seconds), self._seconds)
        )

    def topics(self) -> list[TopicListing]:
        """Return every topic, sorted by name, except the cluster's internal ones."""
        return self._asked(lambda client: list_topics(client, self._seconds))

    def topic(self, name: str) -> TopicDescription | None:
        """Describe a topic, its partitions and its most important settings; ``None`` if it does not exist."""
        logs = self.logs([name])
        if not logs:
            return None
        ends = {tp.partition: (log.begin, log.log_end) for tp, log in logs.items()}
        return self._asked(lambda client: describe_topic(client, name, ends, self._seconds))

    def _asked(self, ask: Callable[[AdminClient], T]) -> T:
        try:
            return ask(self._client())
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: BaseException) -> BrokerUnavailable:
        reason = _reason(error) if isinstance(error, KafkaException) else "it did not answer in time"
        return BrokerUnavailable(
            f"Kafka cannot be asked: {reason}; are address and login of {address_of(self._kafka)} right, and is it "
            "running?"
        )

    def _client(self) -> AdminClient:
        return opened(AdminClient, admin_config(self._kafka), "administration client")

    def _partitions(self, client: AdminClient, topics: Collection[str]) -> dict[str, int]:
        try:
            known = client.list_topics(timeout=self._seconds).topics
        except KafkaException as error:
            raise self._unavailable(error) from error
        return {topic: len(known[topic].partitions) for topic in sorted(topics) if topic in known}

    def _offsets(
        self,
        client: AdminClient,
        partitions: Iterable[TopicPartition],
        which: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(*tp): which for tp in partitions}
        if not wanted:
            return {}
        found: dict[TopicPartition, int] = {}
        try:
            futures = client.list_offsets(wanted, isolation_level=isolation, request_timeout=self._seconds)
            for tp, future in futures.items():
                try:
                    found[TopicPartition(tp.topic, tp.partition)] = future.result(self._seconds + 1).offset
                except KafkaException as error:
                    if error.args[0].code() not in _PARTITION_AWAY:
                        raise
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error
        return found


_HAS_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
}

_PARTITION_AWAY = {  # the partition was deleted or has no leader yet: it is left out, the others are still answered
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}


def _all(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]
