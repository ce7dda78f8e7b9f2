"""The ordeal: a topic that grows, a pipeline that reads it, and what befalls its drivers and tasks, one by one."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, NullPool, create_engine, make_url
from tests.app.listener.topic import Topic
from tests.chaos.feed import Feed
from tests.chaos.spark.audit import Audit
from tests.chaos.spark.crew import ROOT, Crew, Driver, ancestors, wait_until, wake
from tests.chaos.spark.faulty import FOLDER
from tests.chaos.spark.feed import PARTITIONS, feed
from tests.chaos.spark.orders import GROUP, LIMITS, Orders, Way
from tests.chaos.spark.traps import Action, Place, Traps

from tidegate import open_ledger
from tidegate.core.records import TopicPartition
from tidegate.ledger import Ledger, Verification
from tidegate.sandbox import Executor, Kafka, Proxy, SparkCluster

Fault = Callable[["Ordeal"], None]
T = TypeVar("T")


@dataclass
class Ordeal:
    way: Way
    topic: Topic
    ledger: Ledger[Any]
    engine: Engine
    feed: Feed
    crew: Crew
    traps: Traps
    chance: random.Random
    faults: Sequence[Fault]
    cluster: SparkCluster | None = None
    proxy: Proxy | None = None
    """Between the drivers and the database, if that is a server."""
    executors_killed: int = 0

    def endure(self) -> None:
        """One fault after the other."""
        for fault in self.faults:
            began = time.monotonic()
            fault(self)
            print(f"  {fault.__name__}: {time.monotonic() - began:.1f} s", flush=True)

    # Drivers

    def driver_killed_after_a_commit(self) -> None:
        """Behind the commit, before the next plan."""
        driver = self.crew.at_work
        self.crew.sprung(Place.DRIVER_AFTER, Action.DIE)
        self._killed(driver)

    def driver_killed_before_a_commit(self) -> None:
        """Of a staged batch: its rows are loaded, and wait to be moved."""
        driver = self.crew.at_work
        self.crew.sprung(Place.DRIVER_BEFORE, Action.DIE)
        self._killed(driver)

    def driver_killed_anywhere(self) -> None:
        driver = self.crew.at_work
        driver.wait_for("batch")
        time.sleep(self.chance.uniform(0, 1.0))
        assert driver.alive, driver.last_words
        driver.process.kill()
        self._killed(driver)

    def driver_killed_with_a_frozen_task(self) -> None:
        """Its tasks outlive it: one that wakes up later finds its partition claimed."""
        driver = self.crew.at_work
        note = self.crew.sprung(Place.TASK_BEFORE, Action.FREEZE)
        driver.process.kill()
        self._killed(driver)
        wake(note["pid"])

    def driver_taken_over(self) -> None:
        """A second driver claims the group while the first is about to commit: that one stops, and names the other."""
        first = self.crew.at_work
        second = self._frozen_meanwhile(self._about_to_commit, lambda _: self.crew.next())
        self._stopped(first, second)

    def driver_taken_over_while_loading(self) -> None:
        """The frozen one holds the locks of the rows that the second driver claims."""
        first = self.crew.at_work
        place = Place.TASK_LOADING if self.way.by_partition else Place.DRIVER_LOADING
        second = self._frozen_meanwhile(place, lambda _: self.crew.next())
        self._stopped(first, second)

    def commit_unanswered(self) -> None:
        """The driver's COMMIT is carried out and its answer lost: by its token it finds out."""
        assert self.proxy is not None
        arm = self.proxy.swallow_one_reply
        settled = self.settled
        self._frozen_meanwhile(Place.DRIVER_LOADING, lambda _: arm(b"COMMIT"))
        wait_until(lambda: self.settled > settled, "a commit that was found out about")

    def _killed(self, driver: Driver) -> None:
        assert driver.ended() == -signal.SIGKILL, driver.last_words
        self.crew.kills += 1
        self.crew.next()

    def _stopped(self, first: Driver, second: Driver) -> None:
        first.ended()
        (note,) = first.notes("stopped")
        assert note["error"] == "PipelineStopped", note
        assert f":{second.process.pid}:" in note["reason"], f"{note['reason']} does not name {second.process.pid}"

    # Operators

    def position_edited(self) -> None:
        """To where it is: what is in flight is fenced, and read again."""
        fences = self.fences
        self._frozen_meanwhile(self._about_to_commit, self._edit)
        wait_until(lambda: self.fences > fences, "a fence")

    def _edit(self, note: Mapping[str, Any]) -> None:
        rows = self._rows()
        offsets = {tp: rows[tp].next_offset for tp in rows if tp.partition in {span[0] for span in note["spans"]}}

        def unmoved(now: Mapping[TopicPartition, Any]) -> None:
            if any(now[tp].next_offset != offset for tp, offset in offsets.items()):
                raise _Moved

        try:
            self.ledger.edit(GROUP, offsets, check=unmoved)
        except _Moved:  # by a second attempt at the same task
            self._edit(note)

    # Tasks

    def task_failed_after_its_commit(self) -> None:
        self._after_its_commit(Action.FAIL)

    def worker_killed_after_its_commit(self) -> None:
        self._after_its_commit(Action.DIE)

    def worker_killed_while_loading(self) -> None:
        """What it had written is rolled back, and its next attempt commits."""
        driver = self.crew.at_work
        self.crew.sprung(Place.TASK_LOADING, Action.DIE)
        driver.another("batch")

    def task_failed_after_its_load(self) -> None:
        """Of a staged batch: the rows of the first attempt stay behind."""
        driver = self.crew.at_work
        self.crew.sprung(Place.TASK_AFTER, Action.FAIL)
        driver.another("batch")

    def worker_killed_after_its_load(self) -> None:
        driver = self.crew.at_work
        self.crew.sprung(Place.TASK_AFTER, Action.DIE)
        driver.another("batch")

    def _after_its_commit(self, action: Action) -> None:
        note = self.crew.sprung(Place.TASK_AFTER, action)
        self._found_done(note)

    def _found_done(self, note: Mapping[str, Any]) -> None:
        """Another attempt at the same task finds its work done."""
        same = {"where": "task", "outcome": "ALREADY_DONE", "spans": note["spans"]}
        wait_until(lambda: self.traps.notes("committed", **same), f"another attempt at {note['spans']}")

    # Executors

    def executor_killed(self) -> None:
        driver = self.crew.at_work
        driver.another("batch")
        time.sleep(self.chance.uniform(0, 1.0))
        self._kill(self.chance.choice(self._executors()))
        driver.another("batch")

    def executor_killed_after_a_commit(self) -> None:
        """The task has committed, and its result is lost with the executor."""
        note = self.crew.sprung(Place.TASK_AFTER, Action.FREEZE)
        self._kill(self._executor_of(note["pid"]))
        self._found_done(note)
        wake(note["pid"])

    def task_overtaken(self) -> None:
        """A speculative attempt commits while the first one is frozen before its own; then that one goes on."""
        self.crew.at_work.another("batch")  # what takes long is measured by the others
        note = self.crew.sprung(Place.TASK_BEFORE, Action.FREEZE)
        wait_until(lambda: self._committed(note["spans"][0][:2], but=note["pid"]), "the speculative attempt")
        wake(note["pid"])

    def executor_frozen_while_loading(self) -> None:
        """All of it, with the lock of the row: what replaces the task gets past that."""
        note = self.crew.sprung(Place.TASK_LOADING, Action.FREEZE)
        frozen = self._executor_of(note["pid"])
        frozen.pause()
        try:
            self.crew.at_work.another("batch")
        finally:
            if frozen.running:  # or it was missed, and ended
                frozen.resume()
            wake(note["pid"])

    def _kill(self, executor: Executor) -> None:
        executor.kill()
        self.executors_killed += 1

    def _executors(self) -> tuple[Executor, ...]:
        assert self.cluster is not None
        return self.cluster.executors

    def _executor_of(self, worker: int) -> Executor:
        above = ancestors(worker)
        return next(executor for executor in self._executors() if executor.pid in above)

    # What was observed

    @property
    def fences(self) -> int:
        return len(self.traps.notes("fenced"))

    @property
    def already_done(self) -> int:
        return len(self.traps.notes("committed", where="task", outcome="ALREADY_DONE"))

    @property
    def settled(self) -> int:
        """Commits of the driver that went unanswered and were found to be done."""
        return sum(note["unknown"] > 0 for note in self.traps.notes("committed", where="driver"))

    @property
    def modes(self) -> set[str]:
        """How micro-batches were committed."""
        return {note["mode"] for note in self.traps.notes("batch") if note["records"]}

    def counts(self) -> dict[str, int]:
        sprung = self.traps.notes("sprung")
        return {
            "drivers killed": self.crew.kills,
            "executors killed": self.executors_killed,
            "fences": self.fences,
            "already done": self.already_done,
            "found out about": self.settled,
            **{f"{place} {action}": n for (place, action), n in _counted(sprung).items()},
        }

    def positions(self) -> dict[int, int]:
        return {tp.partition: row.next_offset for tp, row in self._rows().items()}

    def calm(self) -> Audit:
        """Write no more, read what there is, and have the driver stop; what came of it."""
        self.feed.end()
        driver = self.crew.at_work
        wait_until(lambda: self.positions() == self.feed.written or not driver.alive, f"the end: {self.feed.written}")
        assert driver.alive, driver.last_words
        driver.process.send_signal(signal.SIGTERM)
        assert driver.ended() == 0, driver.last_words
        assert all(row.owner is None for row in self._rows().values()), "claims were not released"
        return Audit.of(self.engine, self.way, self.feed.written)

    def verify(self) -> Verification:
        return self.ledger.verify(GROUP)

    def _rows(self) -> Mapping[TopicPartition, Any]:
        found = self.ledger.read(GROUP).positions  # where those of an earlier ordeal may be as well
        return {tp: row for tp, row in found.items() if tp.topic == self.topic.name}

    def _committed(self, start: Sequence[int], *, but: int) -> bool:
        found = self.traps.notes("committed", where="task")
        return any(note["pid"] != but and list(start) in [span[:2] for span in note["spans"]] for note in found)

    @property
    def _about_to_commit(self) -> Place:
        return Place.TASK_BEFORE if self.way.by_partition else Place.DRIVER_BEFORE

    def _frozen_meanwhile(self, place: Place, do: Callable[[Mapping[str, Any]], T]) -> T:
        """Do something while somebody is frozen at a place."""
        note = self.crew.sprung(place, Action.FREEZE)
        try:
            return do(note)
        finally:
            wake(note["pid"])


class _Moved(Exception):
    """A position is not any more what it was read as."""


def _counted(sprung: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for note in sprung:
        at = (note["place"], note["action"])
        found[at] = found.get(at, 0) + 1
    return found


@contextmanager
def ordeal(
    broker: Kafka,
    url: str,
    way: Way,
    folder: Path,
    faults: Sequence[Fault],
    *,
    seed: int,
    cluster: SparkCluster | None = None,
    **conf: str,
) -> Iterator[Ordeal]:
    """Everything that an ordeal needs, with a driver at work. The faults come in an order of the seed's."""
    chance = random.Random(seed)
    planned = chance.sample(faults, len(faults))
    topic = Topic.create(broker.bootstrap, PARTITIONS)
    engine = create_engine(url, poolclass=NullPool)
    way.table.drop(engine, checkfirst=True)
    way.table.create(engine)
    ledger = open_ledger(url, limits=LIMITS)
    ledger.create()
    traps = Traps(folder)
    database = make_url(url)
    proxy = Proxy(database.host, database.port).start() if database.host and database.port else None
    if proxy is not None:
        database = database.set(host=proxy.host, port=proxy.port)
        if database.get_backend_name() == "mysql":  # or the proxy could not read what it passes on
            database = database.update_query_dict({"ssl_disabled": "true"})
    reached = database.render_as_string(hide_password=False)
    orders = Orders(broker.bootstrap, topic.name, reached, way, str(folder), conf=_conf(folder, conf))
    if cluster is not None:
        orders = replace(orders, master=cluster.url, conf={**orders.conf, **cluster.conf})
    lives = 1 + sum(fault.__name__.startswith("driver_") for fault in faults)
    crew = Crew(orders, traps, lives, with_reserve=cluster is None)  # its executors would take the cores
    try:
        with feed(topic) as fed:
            crew.next()
            crew.at_work.wait_for("batch")
            yield Ordeal(way, topic, ledger, engine, fed, crew, traps, chance, planned, cluster, proxy)
    finally:
        crew.end()
        if proxy is not None:
            proxy.stop()
        ledger.close()
        engine.dispose()


def _conf(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        f"spark.executorEnv.{FOLDER}": str(folder),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
