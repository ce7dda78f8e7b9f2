"""A standalone Spark cluster, and what can be done to it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tidegate.sandbox import SandboxError, SparkCluster

from .processes import descendants_of, state_of, watched

DRIVER = """
import sys
from tidegate.spark.session import SparkOptions, open_session

fast = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
session = open_session(SparkOptions(sys.argv[1], conf=fast))
for line in sys.stdin:
    total = session.sparkContext.parallelize(range(int(line)), 4).map(lambda number: number + 1).sum()
    print(total, flush=True)
session.stop()
"""


def total(driver: subprocess.Popen[str], count: int) -> int:
    """Have the driver run a job."""
    driver.stdin.write(f"{count}\n")
    driver.stdin.flush()
    return int(driver.stdout.readline())


def wait_for(happens: Callable[[], bool], seconds: float = 300) -> None:
    """Processes of others come and go without an event that a test could await."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_job_runs_what_is_killed_is_replaced_and_nothing_is_left() -> None:
    with SparkCluster(2) as cluster:
        directories = [node.directory for node in (cluster.master, *cluster.workers)]
        assert cluster.master.workers_alive() == 2
        with subprocess.Popen(
            [sys.executable, "-c", DRIVER, cluster.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as driver:
            assert total(driver, 10) == 55
            wait_for(lambda: len(cluster.executors) == 2)
            first, other = cluster.executors
            first.kill()
            assert not first.running and other.running
            assert total(driver, 20) == 210
            wait_for(lambda: len(cluster.executors) == 2)
            assert first not in cluster.executors and other in cluster.executors

            other.pause()
            assert state_of(other.pid) == "T"
            other.resume()
            wait_for(lambda: state_of(other.pid) != "T")

            worker = next(it for it in cluster.workers if other in it.executors)
            worker.kill()
            assert not other.running
            assert total(driver, 30) == 465
            worker.restart()
            wait_for(lambda: len(cluster.executors) == 2)
            assert total(driver, 40) == 820
            driver.stdin.close()
            assert driver.wait(60) == 0
        nodes = [cluster.master.pid, *(worker.pid for worker in cluster.workers)]
        with watched([pid for node in nodes for pid in (node, *descendants_of(node))]) as processes:
            cluster.stop()
            assert processes.all_end_within(10)
    assert not [directory for directory in directories if directory.exists()]
    with pytest.raises(SandboxError, match="not running"):
        _ = cluster.url


def test_a_cluster_without_workers_is_refused() -> None:
    with pytest.raises(SandboxError, match="at least one worker"):
        SparkCluster(0)
