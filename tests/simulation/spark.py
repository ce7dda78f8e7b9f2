"""Spark as a driver sees it: jobs whose tasks die, are repeated, and overtake each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from greenlet import GreenletExit

from tidegate.core.records import Record, TopicPartition
from tidegate.core.work import Claim, Span
from tidegate.spark.executor import ExecutorCommit, Kept, TaskResult
from tidegate.spark.jobs import Collected, JobFailed, RecordJobs
from tidegate.spark.rows import Made
from tidegate.tables.plan import PlanStep

from .process import Client
from .scheduler import GreenSignal, GreenStrand
from .steps import Step

if TYPE_CHECKING:
    from .pipeline import DriverProcess

MOST_FAILURES = 4
"""Failures of one task that fail its job, as ``spark.task.maxFailures``."""
SLOTS = 2
"""Tasks that one executor runs at a time."""
LOOK = 1.5
"""Seconds after which a driver without news looks for slow tasks."""


class ReadFailed(Exception):
    """The records of a span are not in the log any more."""


class Block(NamedTuple):
    """Records, where a pipeline has rows in Arrow batches."""

    records: Sequence[Record]

    nbytes = 0

    def __len__(self) -> int:
        return len(self.records)

    @property
    def num_rows(self) -> int:
        return len(self.records)

    @property
    def batch(self) -> Block:
        return self


class OneToOne:
    """Makes a row from each record: the record itself."""

    counts = False

    def make(self, batch: Block, into: object) -> Made:
        return Made(len(batch), batch, [], None)  # type: ignore[arg-type]

    def of_partitions(self, count: int) -> OneToOne:
        """No record empties the table."""
        return self


class Worker(Client):
    """A Python worker of an executor: it runs one attempt at a task after the other."""

    def __init__(self, driver: DriverProcess, number: int) -> None:
        super().__init__(driver.world, f"{driver.name}.w{number}")
        self.driver = driver
        self.executor = number // SLOTS
        self.store = driver.world.protocol.store(driver.world.server, self, driver.limits)
        self.planned_at = 0.0
        self.is_lost = False
        """Whether Spark cannot reach it any more, although it goes on."""
        self.attempt: Attempt | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        return [] if self.attempt is None else [self.attempt.task.span.partition]


class Task:
    """One task of a job: the attempts at it, and its result."""

    def __init__(self, span: Span, body: Callable[[Span, int], Any]) -> None:
        self.span = span
        self.body = body
        self.tries = 0
        self.failures = 0
        self.running: list[Attempt] = []
        self.is_done = False
        self.result: Any = None


class Attempt:
    """One attempt at a task, on a strand of its own."""

    def __init__(self, job: Job, task: Task, worker: Worker) -> None:
        self.job, self.task, self.worker = job, task, worker
        self.number = task.tries
        self.began = worker.world.now
        self.is_reported = False
        task.tries += 1
        task.running.append(self)
        worker.attempt = self
        worker.planned_at = job.planned_at
        worker.strand = GreenStrand(worker, self._run)
        worker.world.awake.append(worker)

    def _run(self) -> None:
        result, error = None, None
        try:
            result = self.task.body(self.task.span, self.number)
        except GreenletExit:
            raise
        except Exception as failure:
            error = failure
        worker = self.worker
        worker.attempt = None
        worker.world.left(worker)
        if not worker.is_lost:
            worker.driver.idle.append(worker)
        self.report(result, error)

    def report(self, result: Any, error: Exception | None) -> None:
        """Tell the driver how it ended. A driver that is gone, or has finished the job, does not hear it."""
        if not self.is_reported:
            self.is_reported = True
            self.job.news.append((self, result, error))
            self.job.has_news.set()

    def lose(self) -> None:
        """Spark takes the attempt for dead, although it goes on."""
        self.report(None, ReadFailed("the executor was lost"))

    def kill(self) -> None:
        """The worker dies."""
        if self.worker.attempt is self and not self.worker.is_dead:
            self.worker.world.left(self.worker)
            self.worker.crash()


class Job:
    """A job: one task for each span. The driver that runs it hears of ends and losses, and starts attempts."""

    def __init__(self, driver: DriverProcess, body: Callable[[Span, int], Any], spans: Sequence[Span]) -> None:
        self.driver = driver
        self.world = driver.world
        self.planned_at = driver.looked_at
        self.tasks = [Task(span, body) for span in spans]
        self.waiting = list(self.tasks)
        self.news: list[tuple[Attempt, Any, Exception | None]] = []
        self.has_news = GreenSignal(driver.scheduler)
        self.is_over = False

    def run(self) -> list[Any]:
        """The results of the tasks; raises as soon as one of them has failed too often."""
        self.driver.job = self
        try:
            self._start()
            while not all(task.is_done for task in self.tasks):
                if not self.has_news.wait(LOOK):
                    self._look_for_slow_tasks()
                self.has_news.clear()
                while self.news:
                    self._heed(*self.news.pop(0))
                self._start()
        finally:
            if not self.driver.scheduler.over:
                self._end()
        return [task.result for task in self.tasks]

    def _start(self) -> None:
        self.waiting = [task for task in self.waiting if not task.is_done]
        while self.waiting and (worker := self.driver.free_worker()) is not None:
            Attempt(self, self.waiting.pop(0), worker)

    def _heed(self, attempt: Attempt, result: Any, error: Exception | None) -> None:
        task = attempt.task
        task.running.remove(attempt)
        events = self.world.events
        if task.is_done:
            events["overtaken"] += 1
            return
        if error is None:
            task.is_done, task.result = True, result
            self._drop(task)
            return
        events["attempt failed"] += 1
        task.failures += 1
        if task.failures >= MOST_FAILURES:
            events["job failed"] += 1
            raise JobFailed(f"{task.span}: {error}")
        if not task.running and task not in self.waiting:
            self.waiting.append(task)

    def _look_for_slow_tasks(self) -> None:
        for task in self.tasks:
            if len(task.running) == 1 and self.world.now - task.running[0].began > LOOK:
                self.speculate(task)

    def speculate(self, task: Task) -> bool:
        """Start a second attempt beside the first."""
        if task.is_done or task in self.waiting or len(task.running) != 1:
            return False
        self.world.events["speculated"] += 1
        self.waiting.insert(0, task)
        self.has_news.set()
        return True

    def _drop(self, task: Task) -> None:
        """Kill the attempts that are not needed any more; some do not die."""
        for attempt in task.running:
            if self.world.rng.random() < 0.5:
                attempt.kill()

    def _end(self) -> None:
        self.is_over = True
        self.driver.job = None
        for task in self.tasks:
            self._drop(task)
            for attempt in task.running:
                attempt.is_reported = True


class Jobs(RecordJobs):
    """The jobs of one driver."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        self.world = driver.world

    def commit(self, task: ExecutorCommit, spans: Sequence[Span]) -> list[TaskResult]:
        job = Job(self.driver, lambda span, number: self._committed(job, task, span, number), spans)
        self.world.check_paused(self.driver)
        return [result for result in job.run() if result is not None]

    def collect(self, rowwise: Any, spans: Sequence[Span]) -> Collected:
        claims = self.driver.holding.claims
        job = Job(self.driver, lambda span, _: self._read(span, claims[span.partition]), spans)
        self.world.check_paused(self.driver)
        found = {span.partition: Block(records) for span, records in zip(spans, job.run(), strict=True)}
        return Collected(
            [block for block in found.values() if len(block)], {tp: len(block) for tp, block in found.items()}, {}
        )

    def _committed(self, job: Job, task: ExecutorCommit, span: Span, number: int) -> TaskResult | None:
        """A task: read the span, and let the function commit it that Spark is given."""
        records = self._read(span, task.claims[span.partition])
        if not records:
            return None
        kept = Kept()
        block: Any = Block(records)
        if task.parks:
            kept.raw.add(block)
        else:
            kept.add(task.rowwise.make(block, task.into), [PlanStep(block)])
        result = task._commit(task.target(), span.partition, len(records), kept, is_retried=number > 0)
        self.world.events[f"{'zombie' if job.is_over or self.driver.is_dead else 'task'} {result.ended}"] += 1
        return result

    def _read(self, span: Span, claim: Claim) -> Sequence[Record]:
        """Read a span. A consumer reads the incarnation of the topic that the claim was for."""
        world, tp = self.world, span.partition
        world.scheduler.pause(Step.FETCH)
        log, row = world.logs[tp], world.store.row(tp)
        if row is not None and row.epoch == claim.epoch and row.identity.topic_id != str(world.topic_id):
            raise ReadFailed(f"{tp} was created again")
        if span.start < log.start or span.end > log.end:
            raise ReadFailed(f"{span} is not in the log")
        return log.reel.between(span.start, span.end)
