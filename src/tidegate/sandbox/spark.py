"""A standalone Spark cluster."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tidegate.sandbox.errors import SandboxError
from tidegate.sandbox.executor import Executor
from tidegate.sandbox.server import Setting
from tidegate.sandbox.several import Several
from tidegate.sandbox.spark_nodes import SparkMaster, SparkWorker, authentication

__all__ = ["SparkCluster"]


class SparkCluster(Several):
    """A master and workers, each its own process, that can be killed, paused and restarted one by one.

    ``cores`` and ``memory`` are those of each worker. ``settings`` are those of Spark's daemons. A driver needs the
    settings in ``conf``, which hold a secret: without it, anybody on the machine could have the cluster run code.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 1,
        memory: str = "1g",
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        if workers < 1:
            raise SandboxError(f"A Spark cluster needs at least one worker, not {workers}.")
        self._size, self._cores, self._memory, self._settings = workers, cores, memory, dict(settings or {})
        self._secret = secrets.token_hex(32)
        self._master: SparkMaster | None = None
        self._workers: tuple[SparkWorker, ...] = ()

    @property
    def master(self) -> SparkMaster:
        """The master."""
        if self._master is None:
            raise SandboxError("The Spark cluster is not running.")
        return self._master

    @property
    def workers(self) -> tuple[SparkWorker, ...]:
        """The workers; empty before the start."""
        return self._workers

    @property
    def url(self) -> str:
        """The master URL for drivers: ``spark://…``."""
        return self.master.url

    @property
    def conf(self) -> dict[str, str]:
        """The settings with which a driver may use the cluster; they hold a secret that is new in each cluster."""
        return authentication(self._secret)

    @property
    def executors(self) -> tuple[Executor, ...]:
        """The executors of all workers."""
        return tuple(executor for worker in self._workers for executor in worker.executors)

    def stop(self) -> None:
        """End all processes, including executors, and remove their directories."""
        for worker in self._workers:
            worker.kill()  # a graceful stop waits for its executors to report to the driver
            worker.stop()
        if self._master is not None:
            self._master.stop()
        self._master, self._workers = None, ()

    @property
    def _has_started(self) -> bool:
        return self._master is not None

    def _start(self, timeout: float | None) -> None:
        self._master = SparkMaster(settings=self._settings, secret=self._secret).start(timeout)
        self._workers = tuple(
            SparkWorker(
                self._master,
                cores=self._cores,
                memory=self._memory,
                host=host,
                settings=self._settings,
                secret=self._secret,
            )
            for host in self._hosts()
        )
        with ThreadPoolExecutor(self._size) as pool:
            for _ in pool.map(lambda worker: worker.start(timeout), self._workers):
                pass

    def _hosts(self) -> list[str]:
        """Return a separate address for each worker: Spark starts no second attempt at a task on the same host."""
        return [f"127.0.0.{1 + number % 254}" for number in range(self._size)]
