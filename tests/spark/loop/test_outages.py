"""The database goes away at a moment that no micro-batch has to do with, and comes back: it is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import create_engine, inspect, text
from tests.app.member.stage import Running, numbered
from tests.spark.loop.stage import PipelineStage, wait_until

import tidegate.spark.staging
from tidegate.ledger import Limits
from tidegate.observe.events import StoreBack, StoreLost
from tidegate.sandbox import Kafka, Postgres
from tidegate.spark.claims import ClaimedTopics
from tidegate.spark.driver import PipelineTable
from tidegate.spark.loop import MicroBatches
from tidegate.spark.staging import Staging

LIMITS = Limits(hold=1.0, lock_wait=2.0)  # a ledger that gives up soon, so that an outage shows


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def stage(mortal: Postgres, kafka: Kafka, spark: SparkSession) -> Iterator[PipelineStage]:
    mortal.start()
    made = PipelineStage(kafka.bootstrap, mortal.url, spark, LIMITS)
    yield made
    mortal.start()
    made.close()


@pytest.fixture
def kill(mortal: Postgres, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the database killed before or after a function, the first time that it is called."""

    def at(owner: Any, name: str, *, after: bool = False) -> None:
        original, killed = getattr(owner, name), []

        def wrapped(*args: Any, **options: Any) -> Any:
            result = original(*args, **options) if after else None
            if not killed:
                killed.append(True)
                mortal.kill()
            return result if after else original(*args, **options)

        monkeypatch.setattr(owner, name, wrapped)

    return at


MOMENTS: dict[str, tuple[Any, str, bool]] = {
    "the first look at the table": (PipelineTable, "look", False),
    "the first claim": (MicroBatches, "check", True),
    "the sweep": (tidegate.spark.staging, "sweep_stages", False),
    "the staging table": (tidegate.spark.staging, "create_stage", False),
    "the load": (Staging, "_emptied", True),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_database_that_is_away_is_waited_for(
    moment: str, stage: PipelineStage, mortal: Postgres, kill: Callable[..., None]
) -> None:
    topic = stage.topic(2)
    for partition in range(2):
        stage.send(topic, numbered(10), partition=partition)
    owner, name, after = MOMENTS[moment]
    kill(owner, name, after=after)

    running = stage.pipe(topic, way="staged")
    running.wait_for(StoreLost)
    mortal.restart()

    wait_until(lambda: len(stage.rows()) == 20, "all rows")
    running.stop()
    assert outages(running) == [("lost", "ledger"), ("back", "ledger")]
    assert sorted(stage.offsets(partition=0)) == sorted(stage.offsets(partition=1)) == list(range(10))
    with stage.ledger.engine.connect() as conn:
        assert not [name for name in inspect(conn).get_table_names() if "_stage_" in name]
    stage.verify()


@pytest.mark.parametrize("way", ["partition", "staged"])
def test_a_database_that_is_read_only_is_waited_for(way: str, stage: PipelineStage, mortal: Postgres) -> None:
    admin = create_engine(mortal.url, isolation_level="AUTOCOMMIT")

    def read_only(value: str) -> None:
        with admin.connect() as conn:
            conn.execute(text(f"ALTER SYSTEM SET default_transaction_read_only = {value}"))
            conn.execute(text("SELECT pg_reload_conf()"))

    topic = stage.topic()
    stage.send(topic, numbered(10))
    running = stage.pipe(topic, way=way)
    wait_until(lambda: len(stage.rows()) == 10, "the first rows")
    read_only("on")
    try:
        stage.send(topic, numbered(10, first=10))
        assert "read-only" in running.wait_for(StoreLost).reason
    finally:
        read_only("off")
    wait_until(lambda: len(stage.rows()) == 20, "all rows")
    running.stop()
    assert outages(running) == [("lost", "ledger"), ("back", "ledger")]
    assert sorted(stage.offsets()) == list(range(20))
    stage.verify()
    admin.dispose()


def test_a_pipeline_that_waits_to_claim_obeys_stop(stage: PipelineStage, kill: Callable[..., None]) -> None:
    topic = stage.topic()
    kill(MicroBatches, "check", after=True)
    running = stage.pipe(topic)
    running.wait_for(StoreLost)
    running.stop()
    assert running.member.report.stopped == "asked to stop"  # type: ignore[attr-defined]


def test_a_database_that_is_away_at_the_end_does_not_spoil_a_run(
    stage: PipelineStage, mortal: Postgres, kill: Callable[..., None]
) -> None:
    topic = stage.topic()
    stage.send(topic, numbered(10))
    kill(ClaimedTopics, "release")
    report = stage.pipe_through(topic)
    assert (report.stopped, report.records, report.lag) == ("caught up", 10, 0)
    mortal.restart()
    stage.send(topic, numbered(10, first=10))
    stage.pipe_through(topic)
    assert stage.offsets() == list(range(20))


def outages(running: Running) -> list[tuple[str, str]]:
    told = [event for event in list(running.events) if isinstance(event, StoreLost | StoreBack)]
    return [("lost" if isinstance(event, StoreLost) else "back", event.what) for event in told]
