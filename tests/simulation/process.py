"""A process: the real member, on the runtime of the simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidegate.app.binding import bind
from tidegate.app.handler import FunctionHandler, Handler
from tidegate.app.pool import PoolQueue
from tidegate.app.pool_handler import PoolHandler
from tidegate.app.spec import ListenerSpec, Topics
from tidegate.core.batches import BatchBounds
from tidegate.core.policies import Backoff, OutOfRange, Recreated, Retry
from tidegate.core.positions import GroupState
from tidegate.core.records import Record, TopicPartition
from tidegate.errors import TransactionBroken

from .coordinator import SESSION, Notice
from .log import TOPIC
from .scheduler import GreenRuntime, GreenStrand
from .steps import Step
from .store import GROUP, LIMITS, PERSISTENT, Cut, Store, StoreTransaction

if TYPE_CHECKING:
    from .group import GroupWorld
    from .world import World

_SPEC = ListenerSpec(
    topics=Topics((TOPIC,)),
    group=GROUP,
    batch=BatchBounds(count=3, bytes=60, age=0.3),
    session_timeout=SESSION,
    out_of_range=OutOfRange.SKIP,
    recreated=Recreated.RESTART,
    on_error=Retry(50, Backoff(0.04, 2.0, 0.5)),
)
SPECS = {"record": _SPEC, "batch": _SPEC, "pool": replace(_SPEC, workers=2)}
RUNNING: list[World] = []
"""The world of the schedule that is run at present."""
KINDS = ("record", "record", "batch", "pool")


def _fail_by_chance() -> None:
    if RUNNING and RUNNING[0].is_unlucky(0.02):
        raise ValueError("the handler failed")


def write(record: Record, tx: StoreTransaction) -> None:
    """A handler of single records."""
    _fail_by_chance()
    tx.append(str(record.source), record)


def write_all(records: list[Record], tx: StoreTransaction) -> None:
    """A handler of batches."""
    for record in records:
        tx.append(str(record.source), record)
    _fail_by_chance()


def compute(record: Record) -> Callable[[StoreTransaction], None]:
    """A handler of a pool: it computes what to write."""
    RUNNING[0].scheduler.pause()
    _fail_by_chance()
    return lambda tx: tx.append(str(record.source), record)


BINDINGS = {"record": bind(write), "batch": bind(write_all), "pool": bind(compute)}


class Client:
    """A process that uses the store."""

    store: Store
    strand: GreenStrand

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.scheduler = world.scheduler
        self.name = name
        self.cut = Cut.NONE
        self.is_dead = self.is_frozen = False
        self.last_seen = self.deaf_until = 0.0
        self.in_doubt: set[TopicPartition] = set()
        self.knows_paused = False

    def saw(self, state: GroupState) -> None:
        """The process has read the rows of its partitions."""

    def reclaimed(self, began: float, owners: Mapping[TopicPartition, str]) -> None:
        """The process has looked, under their locks, who owns its rows; ``owners`` are others."""

    def claims(self, partition: TopicPartition) -> None:
        """The process is about to claim a partition, under a new owner."""

    @property
    def step(self) -> Step:
        """What the process does next."""
        return Step.FETCH if self.strand.step is None else self.strand.step

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that it works at."""
        return []

    def crash(self) -> None:
        """The process is gone: nothing of it runs any more, not even its way out."""
        self.is_dead = True
        self.scheduler.forget(self)
        self.world.server.lost(self)


class Operator(Client):
    """Runs the commands of operators, each on a strand of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "operator")
        self.store = world.protocol.store(world.server, self, PERSISTENT)


class Process(Client):
    """One process of the group. ``strand`` is its main thread."""

    world: GroupWorld

    def __init__(self, world: GroupWorld, name: str) -> None:
        super().__init__(world, name)
        # as the coordinator sees it
        self.joined = False
        self.asked_at: float | None = None
        self.inbox: deque[tuple[Notice, list[TopicPartition]]] = deque()
        runtime = GreenRuntime(self)
        part = world.protocol
        limits = LIMITS[int(world.rng.random() * len(LIMITS))]
        self.store = part.store(world.server, self, limits)
        spec = SPECS[world.kind]
        handler, computing = self._handler(spec, runtime)
        cluster = part.cluster(self)
        self.member = part.member(
            spec,
            self.store,
            cluster,
            lambda member: part.source(self, member),
            handler=handler,
            computing=computing,
            tell=lambda _: None,
            runtime=runtime,
        )
        self._notice_pauses()
        self.strand = GreenStrand(self, self._run)

    def _handler(self, spec: ListenerSpec, runtime: GreenRuntime) -> tuple[Handler, PoolQueue | None]:
        binding = BINDINGS[self.world.kind]
        if spec.workers is None:
            return FunctionHandler(binding, spec.on_error, sleep=runtime.sleep), None
        pool = PoolHandler(binding, spec.on_error, spec.group)
        return pool, pool.queue(spec, runtime)

    @property
    def step(self) -> Step:
        """What the process does next: of a job, if there is one at work."""
        for strand in self.scheduler.strands:
            if strand.process is self and strand.step is not None and strand.step is not Step.FETCH:
                return strand.step
        return Step.FETCH

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.member._assignment.partitions)

    def _notice_pauses(self) -> None:
        """Know whether the member has read that the group is paused."""
        look = self.member._lookout.look

        def watched(partitions: list[TopicPartition], *, identify: bool = False) -> Any:
            seen = look(partitions, identify=identify)
            if not (identify or seen.recreated):
                self.knows_paused = seen.group.paused
            return seen

        self.member._lookout.look = watched  # type: ignore[method-assign]

    def _run(self) -> None:
        world = self.world
        try:
            self.member.run()
        except TransactionBroken:  # the handler has swallowed an error of the store: the listener stops
            world.events["stopped"] += 1
        self.is_dead = True
        world.gone(self)
