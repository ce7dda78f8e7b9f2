"""A standalone Spark cluster, and what can be done to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes import descendants_of, state_of, watched

from tidegate.sandbox import SandboxError, SparkCluster

DRIVER = """
import json, os, sys
from tidegate.spark.session import SparkOptions, open_session

fast = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
session = open_session(SparkOptions(sys.argv[1], conf={**fast, **json.loads(os.environ.get("CONF", "{}"))}))
for line in sys.stdin:
    total = session.sparkContext.parallelize(range(int(line)), 4).map(lambda number: number + 1).sum()
    print(total, flush=True)
session.stop()
"""


def started(cluster: SparkCluster) -> subprocess.Popen[str]:
    """A driver that runs jobs on a cluster; it ends with its standard input."""
    command = [sys.executable, "-c", DRIVER, cluster.url]
    environment = {**os.environ, "CONF": json.dumps(cluster.conf)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


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


def assert_nothing_is_left_of(cluster: SparkCluster) -> None:
    """Stop a cluster and see that its processes and directories are gone."""
    directories = [node.directory for node in (cluster.master, *cluster.workers)]
    nodes = [cluster.master.pid, *(worker.pid for worker in cluster.workers)]
    with watched([pid for node in nodes for pid in (node, *descendants_of(node))]) as processes:
        cluster.stop()
        assert processes.all_end_within(10)
    assert not [directory for directory in directories if directory.exists()]
    with pytest.raises(SandboxError, match="not running"):
        _ = cluster.url


def test_a_driver_without_the_secret_runs_nothing() -> None:
    with SparkCluster(1) as cluster:
        secret = cluster.conf["spark.authenticate.secret"]
        arguments = [Path(f"/proc/{node.pid}/cmdline").read_text() for node in (cluster.master, *cluster.workers)]
        assert not [line for line in arguments if secret in line]
        environment = {**os.environ, "CONF": json.dumps({"spark.authenticate": False})}
        command = [sys.executable, "-c", DRIVER, cluster.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        ) as stranger:
            wait_for(lambda: stranger.poll() is not None or _is_refused(cluster))
            assert not cluster.executors
            stranger.kill()


def _is_refused(cluster: SparkCluster) -> bool:
    """Whether the master has told that someone did not know the secret."""
    log = cluster.master.log_path.read_text(errors="replace")
    return "SaslException" in log or "authenticate" in log.lower() or "AuthRpcHandler" in log


def test_a_job_runs_a_killed_executor_is_replaced_and_nothing_is_left() -> None:
    with SparkCluster(1) as cluster:
        with started(cluster) as driver:
            assert total(driver, 10) == 55
            (first,) = cluster.executors
            first.kill()
            assert not first.running
            assert total(driver, 20) == 210
            assert first not in cluster.executors
        assert_nothing_is_left_of(cluster)


@pytest.mark.chaos
def test_workers_and_executors_are_killed_frozen_and_restarted_while_a_job_runs() -> None:
    with SparkCluster(2) as cluster:
        assert cluster.master.workers_alive() == 2
        with started(cluster) as driver:
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
        assert_nothing_is_left_of(cluster)


def test_a_cluster_without_workers_is_refused() -> None:
    with pytest.raises(SandboxError, match="at least one worker"):
        SparkCluster(0)
