"""A pipeline: the real loop, claims, driver and tasks, on a Spark that is simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DataError

from tidegate.core.policies import CommitMode, OutOfRange, Recreated
from tidegate.core.positions import GroupState
from tidegate.core.records import FailedRecord, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.errors import Fenced, IdentityChanged, PipelineStopped
from tidegate.kafka.claims import Claimer
from tidegate.observe.events import Committed, Event
from tidegate.spark.claims import ClaimedTopics, Waiting
from tidegate.spark.driver import Driver
from tidegate.spark.jobs import JobFailed
from tidegate.spark.loop import Loop, MicroBatches
from tidegate.spark.report import Report
from tidegate.spark.rows import Made
from tidegate.spark.spec import PipelineSpec
from tidegate.tables.plan import PlanStep
from tidegate.tables.table import Table
from tidegate.tables.writer import TableAltered

from .coordinator import SESSION
from .faults import Fault, Faults
from .invariants import Violation
from .log import TOPIC
from .process import Client
from .scheduler import GreenRuntime, GreenStrand
from .spark import Block, Job, Jobs, OneToOne, Worker
from .store import GROUP, LIMITS, Store, StoreTransaction
from .world import Parts, World

if TYPE_CHECKING:
    from .faults import Tally

_SPEC = PipelineSpec(
    (TOPIC,),
    Table("orders"),
    GROUP,
    out_of_range=OutOfRange.SKIP,
    recreated=Recreated.RESTART,
    max_records=14,
    collect=0,
)
SPECS = {
    "partition": _SPEC,
    "batch": replace(_SPEC, commit=CommitMode.BATCH),
    "small": replace(_SPEC, collect=6),
}
"""Each task commits; the driver commits; the driver commits small micro-batches."""
MODES = ("partition", "partition", "partition", "small", "batch")
INTERVALS = (0.0, 0.4)

FAULTS = Faults(
    {
        Fault.CRASH: 9,
        Fault.FREEZE: 12,
        Fault.REQUEST_LOST: 8,
        Fault.REPLY_LOST: 9,
        Fault.LANDS_LATE: 10,
        Fault.EXECUTOR_LOST: 7,
        Fault.SPECULATION: 9,
        Fault.TAKEOVER: 6,
        Fault.STOP: 4,
        Fault.GROWTH: 4,
        Fault.RECREATION: 3,
        Fault.RETENTION: 5,
        Fault.REWIND: 6,
        Fault.SKIP: 5,
        Fault.PAUSE: 4,
        Fault.RESUME: 4,
    }
)


@dataclass(frozen=True)
class PipelineParts(Parts):
    """The parts that a pipeline is run with."""

    claims: type[ClaimedTopics] = ClaimedTopics
    driver: type[Driver] = Driver
    loop: type[Loop] = Loop

    faults = FAULTS
    option = " --pipeline"

    def world(self, seed: int, tally: Tally, trace: list[str] | None) -> PipelineWorld:
        return PipelineWorld(seed, self, tally, trace)


class Sink:
    """The pipeline's table. It also is what writes to it, and the address that executors open the ledger by."""

    is_local = False
    is_ready = True
    layout = target = object()

    def __init__(self, world: PipelineWorld) -> None:
        self._world = world

    @property
    def address(self) -> Sink:
        return self

    def open(self) -> Store:
        """The ledger of the worker that asks for it."""
        strand = self._world.scheduler.current
        assert strand is not None
        return strand.process.store

    def look(self) -> None:
        self._world.events["looked at the table"] += 1

    def made(self, make: Callable[[object], Any]) -> Any:
        return make(self.target)

    def writing(self) -> Sink:
        return self

    def on(self, engine: object) -> Sink:
        return self

    def fixed(self) -> Sink:
        return self

    def write(self, tx: StoreTransaction, steps: Iterable[PlanStep]) -> None:
        if self._world.is_unlucky(0.03):
            self._world.events["row refused"] += 1
            raise DataError("INSERT", {}, ValueError("a value does not fit"))
        self._write(tx, (step.batch for step in steps))

    def write_or_park(
        self, tx: StoreTransaction, made: Iterable[Made], park: Callable[[list[FailedRecord]], None]
    ) -> int:
        blocks: list[Any] = [each.rows for each in made]
        self._write(tx, blocks)
        park([])
        return sum(map(len, blocks))

    def _write(self, tx: StoreTransaction, rows: Iterable[Block]) -> None:
        for block in rows:
            tx.load(str(block.records[0].source), block.records)
        if self._world.is_unlucky(0.02):
            raise TableAltered("the table was altered")


class Batches(MicroBatches):
    """The real micro-batches; rows are the records themselves, so no layout decides how they are made."""

    def _shape(self) -> None:
        self._rowwise = OneToOne()  # type: ignore[assignment]


class DriverProcess(Client):
    """The driver of a Spark application, with its workers."""

    world: PipelineWorld

    def __init__(self, world: PipelineWorld, number: int) -> None:
        super().__init__(world, f"d{number}")
        self.number = number
        self.looked_at = 0.0
        """When it read the positions that it plans by, or earlier."""
        self.replaced_by: Mapping[TopicPartition, str] = {}
        """Who owned partitions when it last looked whether it still does."""
        self.took_over_at = math.inf
        """When it claimed the partitions that were there at its start."""
        self.knows_replaced = False
        self.job: Job | None = None
        self.idle: list[Worker] = []
        self.workers: list[Worker] = []
        self.started = 0
        """How many workers it has started."""
        self.limits = LIMITS[int(world.rng.random() * len(LIMITS))]
        runtime = GreenRuntime(self)
        part, spec = world.protocol, SPECS[world.mode]
        self.store: Any = part.store(world.server, self, self.limits)
        cluster = part.cluster(self)
        self.stopping = runtime.signal()
        sink: Any = Sink(world)
        self.holding = part.claims(
            *(GROUP, spec.topics, self.store, cluster),
            claimer=Claimer(GROUP, self.store, cluster, start=spec.start, recreated=spec.recreated),
            policy=spec.out_of_range,
            tell=self._tell,
            runtime=runtime,
        )
        jobs: Any = Jobs(self)
        driver = part.driver(spec, self.store, sink, self._tell, runtime)
        self.loop = part.loop(
            *(self.holding, Batches(spec, jobs, driver, sink), Report(GROUP), self.stopping, self._tell),
            waiting=Waiting(GROUP, self.stopping, self._tell, runtime),
            most=spec.max_records,
            most_bytes=spec.max_bytes,
            on_batch=None,
            runtime=runtime,
        )
        self.strand = GreenStrand(self, self._run)

    @property
    def planned_at(self) -> float:
        return self.looked_at

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.holding.claims)

    def saw(self, state: GroupState) -> None:
        self.looked_at = self.world.now
        self.knows_paused = state.paused
        self.knows_replaced = self._has_others(state)

    def _has_others(self, state: GroupState) -> bool:
        """Whether another driver owns one of the partitions that this one has claimed."""
        owners = (row.owner for tp, row in state.positions.items() if tp in self.holding.claims)
        return any(owner is not None and self.world.server.owners[owner] is not self for owner in owners)

    def claims(self, partition: TopicPartition) -> None:
        """A driver that knows that it was replaced claims nothing, or it would stop its successor."""
        held = self.holding.claims
        if not held:
            self.took_over_at = self.world.now
        elif self._has_others(self.store.read_now()) if partition in held else self.knows_replaced:
            self.world.violations.append(Violation("fence", f"{self.name} was replaced, and claimed {partition}"))

    def reclaimed(self, began: float, owners: Mapping[TopicPartition, str]) -> None:
        self.looked_at = began
        self.replaced_by = owners
        self.knows_replaced = bool(owners)

    def free_worker(self) -> Worker | None:
        """A worker without a task, if an executor has a slot."""
        while self.idle:
            worker = self.idle.pop()
            if not worker.is_dead:
                return worker
        self.workers = [worker for worker in self.workers if not worker.is_dead and not worker.is_lost]
        if len(self.workers) >= self.world.slots:
            return None
        self.started += 1
        self.workers.append(Worker(self, self.started))
        return self.workers[-1]

    def _tell(self, event: Event) -> None:
        """What the driver reports as committed is committed."""
        if isinstance(event, Committed):
            self.world.check_committed(self.holding.claims, event.spans)

    def _run(self) -> None:
        world = self.world
        try:
            try:
                self.loop.run(world.every)
            finally:
                self.holding.release()
        except IdentityChanged:
            world.events["topic recreated"] += 1
        except JobFailed:
            world.events["gave up"] += 1
        except PipelineStopped:
            if not self.replaced_by:
                raise
            world.check_replaced(self)
        finally:
            if not self.scheduler.over:
                self.is_dead = True
                world.gone(self)


class PipelineWorld(World):
    """One pipeline: a driver with its executors; now and then a second one beside it."""

    protocol: PipelineParts
    length = 180

    def prepare(self) -> None:
        random = self.rng.random
        self.mode = MODES[int(random() * len(MODES))]
        self.every = INTERVALS[int(random() * len(INTERVALS))]
        self.slots = 2 + int(random() * 3)
        self.drivers: list[DriverProcess] = []

    def populate(self) -> None:
        self.spawn()

    def spawn(self) -> None:
        """Start a driver."""
        self.spawned += 1
        driver = DriverProcess(self, self.spawned)
        self.drivers.append(driver)
        self.awake.append(driver)

    def gone(self, driver: DriverProcess) -> None:
        """A driver has ended. Its executors end too, some of them late; another driver is started."""
        self.drivers.remove(driver)
        if driver in self.awake:
            self.awake.remove(driver)
        for worker in driver.workers:
            if worker.attempt is not None and self.rng.random() < 0.4:
                worker.attempt.kill()
        if not self.drivers and not self.respawning:
            self.respawning.append(self.now + self.rng.random() * SESSION if self.has_faults else self.now)

    def left(self, worker: Worker) -> None:
        """A worker has no task any more."""
        if worker in self.awake:
            self.awake.remove(worker)

    def suffers(self, fault: Fault, victim: Client) -> bool:
        driver = victim.driver if isinstance(victim, Worker) else victim
        assert isinstance(driver, DriverProcess)
        match fault:
            case Fault.CRASH if victim is driver:
                victim.crash()
                self.gone(driver)
            case Fault.CRASH:
                self._kill(victim)
            case Fault.FREEZE:
                self.awake.remove(victim)
                self.freeze(victim)
            case Fault.EXECUTOR_LOST:
                return self._lose_executor(driver, victim)
            case Fault.SPECULATION:
                attempt = victim.attempt if isinstance(victim, Worker) else None
                return attempt is not None and not attempt.job.is_over and attempt.job.speculate(attempt.task)
            case Fault.TAKEOVER:
                if len(self.drivers) > 1 or self.respawning:
                    return False
                self.spawn()
            case Fault.STOP:
                if driver.stopping.is_set() or driver.is_dead:
                    return False
                driver.stopping.set()
            case other:
                raise NotImplementedError(other)
        return True

    def _kill(self, victim: Client) -> None:
        """A worker dies; Spark notices after a while."""
        assert isinstance(victim, Worker)
        attempt = victim.attempt
        assert attempt is not None
        attempt.kill()
        self.server.later(attempt.lose)

    def _lose_executor(self, driver: DriverProcess, victim: Client) -> bool:
        """An executor is lost: it is dead, or it cannot be reached any more, and its tasks go on."""
        if not isinstance(victim, Worker):
            return False
        dies = self.rng.random() < 0.4
        for worker in driver.workers:
            if worker.executor == victim.executor and not worker.is_dead:
                worker.is_lost = True
                if worker in driver.idle:
                    driver.idle.remove(worker)
                if worker.attempt is not None:
                    attempt = worker.attempt
                    if dies:
                        attempt.kill()
                    attempt.lose()
        return True

    def idle(self) -> None:
        """The clock goes on to when something happens."""
        times = [strand.until for strand in self.scheduler.strands if not strand.process.is_frozen]
        times += [at for at, _ in self.server.timers] + [at for at, _ in self.thawing] + self.respawning
        soonest = min(times, default=math.inf)
        if soonest < math.inf:
            self.scheduler.now = max(self.scheduler.now, soonest)

    def at_the_end(self) -> bool:
        """Whether one driver is left, with no task under way."""
        return (
            len(self.drivers) == 1
            and not any(isinstance(process, Worker) for process in self.awake)
            and super().at_the_end()
        )

    def check_cause(
        self, process: Any, fenced: Fenced, claims: Mapping[TopicPartition, Claim], spans: Sequence[Span]
    ) -> None:
        """A fence has a cause: the row was claimed, released or edited since, or has moved since the driver looked."""
        self.events["fence"] += 1
        rows = self.store.read_now().positions
        starts = {span.partition: span.start for span in spans}
        for tp in fenced.owners:
            row, claim = rows[tp], claims[tp]
            moved = row.next_offset > starts[tp] and self.server.moved_at[tp] >= process.planned_at
            if not (row.epoch > claim.epoch or row.owner is None or moved):
                text = f"{process.name} was fenced from {tp} at {starts[tp]}, but nobody else moved it: {row}"
                self.violations.append(Violation("fence", text))

    def check_replaced(self, driver: DriverProcess) -> None:
        """A driver ends if another one has replaced it."""
        self.events["replaced"] += 1
        for tp, owner in driver.replaced_by.items():
            other = self.server.owners[owner]
            assert isinstance(other, DriverProcess)
            if other is driver:
                self.violations.append(Violation("fence", f"{driver.name} took itself for another owner of {tp}"))
            elif other.took_over_at < driver.took_over_at:
                self.events["replaced by its predecessor"] += 1
