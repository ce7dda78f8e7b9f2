from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.schedule import seed
from tests.chaos.spark.ordeal import Ordeal, ordeal
from tests.chaos.spark.orders import Way

from tidegate.sandbox import Kafka, SparkCluster

# Short times, so that what was frozen is missed soon; and a second attempt for whatever takes longer than the others.
CLUSTER = {
    "spark_cores_max": "4",
    "spark_executor_memory": "512m",
    "spark_executor_extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark_network_timeout": "20s",
    "spark_network_timeoutInterval": "5s",
    "spark_executor_heartbeatInterval": "2s",
    "spark_speculation": "true",
    "spark_speculation_interval": "100ms",
    "spark_speculation_multiplier": "1.5",
    "spark_speculation_quantile": "0.5",
    "spark_speculation_minTaskRuntime": "500ms",
    "spark_speculation_efficiency_enabled": "false",
}

KILLS = [Ordeal.driver_killed_after_a_commit] * 5 + [Ordeal.driver_killed_anywhere] * 5
COMMITS_REPEATED = [Ordeal.task_failed_after_its_commit] * 3 + [Ordeal.worker_killed_after_its_commit] * 2
FENCES = [Ordeal.position_edited] * 3 + [Ordeal.driver_taken_over] * 2


def endured(trial: Ordeal) -> None:
    """Nothing was lost and nothing came twice, and it was not for want of trying."""
    trial.endure()
    audit = trial.calm()
    print(audit, trial.counts(), trial.modes, flush=True)
    assert audit.faults == 0, audit
    verification = trial.verify()
    assert verification.ok, verification.breaks


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("postgres", Way.PARTITION_ROWS),
        ("postgres", Way.PARTITION_TOTALS),
        ("mariadb", Way.PARTITION_TOTALS),
        ("mysql", Way.PARTITION_ROWS),
    ],
    indirect=["url"],
)
def test_kills_fences_and_repeated_tasks_of_commits_by_partition(
    kafka: Kafka, url: str, way: Way, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} {way}")
    faults = [*KILLS, *COMMITS_REPEATED, *FENCES]
    faults += [Ordeal.driver_taken_over_while_loading, Ordeal.worker_killed_while_loading]
    with ordeal(kafka, url, way, tmp_path, faults, seed=number) as trial:
        endured(trial)
        assert trial.crew.kills >= 10
        assert trial.fences >= 5
        assert trial.already_done >= 5
        assert trial.modes == {"partition"}


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("url", "way"),
    [
        ("postgres", Way.DRIVER_TOTALS),
        ("mariadb", Way.DRIVER_TOTALS),
        ("sqlite", Way.DRIVER_TOTALS),
        ("postgres", Way.STAGED_ROWS),
        ("mysql", Way.STAGED_TOTALS),
    ],
    indirect=["url"],
)
def test_kills_and_fences_of_commits_by_batch(kafka: Kafka, url: str, way: Way, tmp_path: Path) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} {way}")
    faults = [*KILLS, *FENCES, Ordeal.driver_killed_before_a_commit]
    if way.staged:
        faults += [Ordeal.task_failed_after_its_load, Ordeal.worker_killed_after_its_load]
    is_server = not url.startswith("sqlite")  # whose claims cannot get past a frozen holder, and whose commits answer
    if is_server:
        faults += [Ordeal.driver_taken_over_while_loading] + [Ordeal.commit_unanswered] * 5
    with ordeal(kafka, url, way, tmp_path, faults, seed=number) as trial:
        endured(trial)
        assert trial.crew.kills >= 10
        assert trial.fences >= 5
        assert trial.settled >= 5 * is_server
        assert trial.modes == {"staged" if way.staged else "driver"}


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("url", "way"),
    [("postgres", Way.PARTITION_ROWS), ("mysql", Way.PARTITION_TOTALS)],
    indirect=["url"],
)
def test_executors_killed_and_frozen_and_tasks_tried_twice_at_once(
    kafka: Kafka, cluster: SparkCluster, url: str, way: Way, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} {way}")
    faults = [
        *[Ordeal.executor_killed] * 3,
        *[Ordeal.executor_killed_after_a_commit] * 3,
        *[Ordeal.task_overtaken] * 3,
        *[Ordeal.task_failed_after_its_commit] * 2,
        *[Ordeal.position_edited] * 3,
        *[Ordeal.driver_taken_over] * 2,
        Ordeal.executor_frozen_while_loading,
        Ordeal.driver_killed_with_a_frozen_task,
    ]
    with ordeal(kafka, url, way, tmp_path, faults, seed=number, cluster=cluster, **CLUSTER) as trial:
        endured(trial)
        assert trial.executors_killed >= 6
        assert trial.fences >= 5
        assert trial.already_done >= 5


@pytest.mark.parametrize(("url", "way"), [("postgres", Way.PARTITION_ROWS)], indirect=["url"])
def test_a_fault_of_each_kind_neither_loses_nor_repeats_a_record(
    kafka: Kafka, url: str, way: Way, tmp_path: Path
) -> None:
    number = seed()
    print(f"\nCHAOS_SEED={number} {way}")
    faults = [
        Ordeal.driver_killed_after_a_commit,
        Ordeal.position_edited,
        Ordeal.task_failed_after_its_commit,
        Ordeal.worker_killed_after_its_commit,
        Ordeal.worker_killed_while_loading,
    ]
    with ordeal(kafka, url, way, tmp_path, faults, seed=number) as trial:
        endured(trial)
        assert trial.crew.kills == 1
        assert trial.fences >= 1
        assert trial.already_done >= 2
        assert trial.modes == {"partition"}
